//! The program's signal dispositions. Those of the sampling signal are emulated here.

use core::ffi::c_int;

use handler::chain::{Disposition, KernelAction};
use platform::sys;

use super::handlers::{self, Change};
use super::real::{call_real, fail, real_functions};
use super::timers;
use crate::sampling_signal;
use crate::signals;

real_functions! {
    SIGACTION = c"sigaction";
    SIGNAL_BSD = c"signal";
    SIGNAL_SYSV = c"sysv_signal";
    SIGSET = c"sigset";
    SIGIGNORE = c"sigignore";
    SIGINTERRUPT = c"siginterrupt";
    MONSTARTUP = c"__monstartup";
}

const SIG_HOLD: usize = 2;
/// The sampling signal's bit in a kernel signal set.
fn bit() -> u64 {
    1 << (sampling_signal::get() - 1)
}

/// `struct sigaction` of glibc and musl.
#[repr(C)]
pub(crate) struct Action {
    handler: usize,
    mask: [u64; 16],
    flags: c_int,
    restorer: usize,
}

impl Action {
    fn disposition(&self) -> Disposition {
        Disposition { handler: self.handler, flags: self.flags, mask: self.mask[0] }
    }

    fn set(&mut self, disposition: &Disposition) {
        self.handler = disposition.handler;
        self.mask = [0; 16];
        self.mask[0] = disposition.mask;
        self.flags = disposition.flags;
    }
}

/// Whether a request about `signal` is handled here.
fn is_served(signal: c_int) -> bool {
    signal == sampling_signal::get() && signals::is_taken() && crate::agent::is_own_process()
}

/// POSIX `sigaction`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    if !is_served(signal) {
        // SAFETY: null, or valid by this function's contract.
        return unsafe { other_sigaction(signal, new, old) };
    }
    // SAFETY: null, or valid by this function's contract.
    unsafe {
        let before = signals::change(new.as_ref().map(Action::disposition));
        if let Some(old) = old.as_mut() {
            old.set(&before);
        }
    }
    0
}

/// `sigaction` for signals other than the sampling signal.
///
/// # Safety
/// The pointers must be null or valid.
unsafe fn other_sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the caller fulfils this function's contract.
    let wanted = unsafe { new.as_ref() };
    let change = Change::begin(signal, wanted.map(|wanted| wanted.handler));
    let given = wanted.map(|wanted| Action { handler: change.given, ..*wanted });
    let result = call_real!(
        SIGACTION as fn(c_int, *const Action, *mut Action) -> c_int,
        (signal, given.as_ref().map_or(core::ptr::null(), core::ptr::from_ref), old),
        else fail(libc::ENOSYS)
    );
    // SAFETY: the caller fulfils this function's contract.
    match unsafe { old.as_mut() } {
        _ if result != 0 => change.undo(),
        Some(old) => old.handler = change.seen(old.handler),
        None => {}
    }
    result
}

/// glibc's alias of `sigaction`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the same function.
    unsafe { sigaction(signal, new, old) }
}

/// Installs a handler without a mask of its own, and returns the previous handler.
fn change_handler(handler: usize, flags: c_int, mask: u64) -> usize {
    signals::change(Some(Disposition { handler, flags, mask })).handler
}

/// ISO C `signal`, with the BSD semantics of glibc and musl.
///
/// # Safety
/// As ISO C says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn signal(signal: c_int, handler: usize) -> usize {
    if !is_served(signal) {
        return handlers::replace(
            signal,
            handler,
            |handler| call_real!(SIGNAL_BSD as fn(c_int, usize) -> usize, (signal, handler), else libc::SIG_ERR),
        );
    }
    change_handler(handler, libc::SA_RESTART, bit())
}

/// Alias of BSD `signal`.
///
/// # Safety
/// As ISO C says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn bsd_signal(number: c_int, handler: usize) -> usize {
    // SAFETY: the same function.
    unsafe { signal(number, handler) }
}

/// Alias of BSD `signal`.
///
/// # Safety
/// As ISO C says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ssignal(number: c_int, handler: usize) -> usize {
    // SAFETY: the same function.
    unsafe { signal(number, handler) }
}

/// System V `signal`: the handler is reset on delivery, and the signal not blocked meanwhile.
///
/// # Safety
/// As ISO C says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sysv_signal(signal: c_int, handler: usize) -> usize {
    if !is_served(signal) {
        return handlers::replace(
            signal,
            handler,
            |handler| call_real!(SIGNAL_SYSV as fn(c_int, usize) -> usize, (signal, handler), else libc::SIG_ERR),
        );
    }
    change_handler(handler, libc::SA_RESETHAND | libc::SA_NODEFER, 0)
}

/// System V `signal` under the name that glibc's headers use.
///
/// # Safety
/// As ISO C says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __sysv_signal(number: c_int, handler: usize) -> usize {
    // SAFETY: the same function.
    unsafe { sysv_signal(number, handler) }
}

/// POSIX `sigset` (System V).
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sigset(signal: c_int, handler: usize) -> usize {
    if !is_served(signal) {
        return handlers::replace(
            signal,
            handler,
            |handler| call_real!(SIGSET as fn(c_int, usize) -> usize, (signal, handler), else libc::SIG_ERR),
        );
    }
    let before =
        if handler == SIG_HOLD { signals::change(None).handler } else { change_handler(handler, 0, 0) };
    let mask = sys::set_signal_mask(!0);
    sys::set_signal_mask(if handler == SIG_HOLD { mask | bit() } else { mask & !bit() });
    if mask & bit() != 0 { SIG_HOLD } else { before }
}

/// POSIX `sigignore` (System V).
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sigignore(signal: c_int) -> c_int {
    if !is_served(signal) {
        return call_real!(SIGIGNORE as fn(c_int) -> c_int, (signal), else fail(libc::ENOSYS));
    }
    change_handler(libc::SIG_IGN, 0, 0);
    0
}

/// POSIX `siginterrupt`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn siginterrupt(signal: c_int, interrupt: c_int) -> c_int {
    if !is_served(signal) {
        return call_real!(
            SIGINTERRUPT as fn(c_int, c_int) -> c_int,
            (signal, interrupt),
            else fail(libc::ENOSYS)
        );
    }
    let mut wanted = signals::change(None);
    wanted.flags &= !libc::SA_RESTART;
    if interrupt == 0 {
        wanted.flags |= libc::SA_RESTART;
    }
    signals::change(Some(wanted));
    0
}

/// `rt_sigaction` made through `syscall`; `None` if it is not handled here.
///
/// # Safety
/// The arguments must be those of the system call.
pub(super) unsafe fn bare(signal: usize, new: usize, old: usize, set_bytes: usize) -> Option<libc::c_long> {
    if set_bytes != sys::SIGSET_BYTES || !is_served(signal as c_int) {
        return None;
    }
    let (new, old) = (new as *const KernelAction, old as *mut KernelAction);
    // SAFETY: null, or valid by this function's contract.
    unsafe {
        let before = signals::change(new.as_ref().map(signals::asked));
        if let Some(old) = old.as_mut() {
            *old = signals::kernel_action(&before);
        }
    }
    Some(0)
}

/// Where glibc starts to collect gprof's profile in a program compiled with `-pg`: it takes SIGPROF and ITIMER_PROF by calls of
/// its own.
///
/// # Safety
/// For glibc's start-up code to call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __monstartup(low: usize, high: usize) {
    timers::leave_to_program();
    call_real!(MONSTARTUP as fn(usize, usize) -> (), (low, high), else ());
    if is_served(sampling_signal::get()) {
        let _ = signals::take_over();
    }
}
