//! The program's own use of the signal, exactly as the kernel would serve it.
//!
//! The agent owns the kernel's disposition of SIGPROF; the program's `sigaction` changes the one kept here. A
//! signal that no timer of ours sent goes where the program wanted it.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::context::Context;
use crate::siginfo::SignalInfo;
use crate::slot::{self, Slot};
use crate::sys;

/// What the program wants done with the signal. Immutable once published and never freed, so that a handler
/// may read it at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disposition {
    /// Address of the handler, SIG_DFL or SIG_IGN.
    pub handler: usize,
    /// The program's SA_ flags.
    pub flags: c_int,
    /// Signals to block during the handler.
    pub mask: u64,
}

impl Disposition {
    /// What a fresh program has.
    pub const DEFAULT: Disposition = Disposition { handler: libc::SIG_DFL, flags: 0, mask: 0 };
}

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelAction {
    /// Address of the handler, SIG_DFL or SIG_IGN.
    pub handler: usize,
    /// SA_ flags.
    pub flags: u64,
    /// Where the handler returns to.
    pub restorer: usize,
    /// Signals to block during the handler.
    pub mask: u64,
}

impl KernelAction {
    /// What a fresh program has.
    pub const DEFAULT: KernelAction = KernelAction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
}

static DEFAULT: Disposition = Disposition::DEFAULT;
static CURRENT: AtomicPtr<Disposition> = AtomicPtr::new(ptr::null_mut());

/// The program's disposition.
pub fn disposition() -> &'static Disposition {
    // SAFETY: published dispositions are never freed. Pairs with the release in `set_disposition`.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }.unwrap_or(&DEFAULT)
}

/// Replaces the program's disposition.
pub fn set_disposition(disposition: &'static Disposition) {
    CURRENT.store(ptr::from_ref(disposition).cast_mut(), Ordering::Release);
}

/// True if the program handles the signal itself.
pub fn has_handler() -> bool {
    !matches!(disposition().handler, libc::SIG_DFL | libc::SIG_IGN)
}

/// What the timer carries in its signals that takes the place of the program's ITIMER_PROF.
pub fn fallback_value() -> usize {
    (&raw const CURRENT) as usize
}

/// The bit of `signal` in a kernel signal set.
const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Serves a signal that is not ours, unless it is for a handler of the program's: that is the result.
#[cold]
#[inline(never)]
pub(crate) fn forward(
    signal: c_int,
    info: &mut SignalInfo,
    context: Context<'_>,
) -> Option<&'static Disposition> {
    info.disguise(fallback_value());
    let forced = info.is_forced(signal);
    if let Some(slot) = slot::noted()
        && slot.is_hidden()
    {
        match forced {
            true => die(signal),
            false => keep_pending(slot, signal, info, context),
        }
        return None;
    }
    let wanted = disposition();
    match wanted.handler {
        // The kernel forces its own traps upon a program that ignores them.
        libc::SIG_IGN if forced => die(signal),
        libc::SIG_IGN => {}
        libc::SIG_DFL => die(signal),
        _ => return Some(wanted),
    }
    None
}

/// What the kernel does as a handler begins, for `wanted`; gives the handler. `context` is on the frame on which it is about
/// to run.
pub(crate) fn begin(signal: c_int, context: Context<'_>, wanted: &Disposition) -> usize {
    if wanted.flags & libc::SA_RESETHAND != 0 {
        set_disposition(&DEFAULT);
    }
    let own = if wanted.flags & libc::SA_NODEFER != 0 { 0 } else { bit(signal) };
    sys::set_signal_mask(context.signal_mask() | wanted.mask | own);
    wanted.handler
}

/// Blocks the signal, as the program believes it is, and sends it once more, so that it waits.
fn keep_pending(slot: &Slot, signal: c_int, info: &SignalInfo, context: Context<'_>) {
    slot.set_hidden(false);
    context.block(bit(signal));
    let (process, thread) = (sys::process_id() as usize, sys::thread_id() as usize);
    let arguments = [process, thread, signal as usize, core::ptr::from_ref(info) as usize, 0, 0];
    // SAFETY: the kernel reads one `siginfo`; a thread may send itself any.
    unsafe { sys::call(libc::SYS_rt_tgsigqueueinfo, arguments) };
}

/// Ends the process as an unhandled signal does.
fn die(signal: c_int) {
    let default = KernelAction::DEFAULT;
    let arguments = [signal as usize, (&raw const default) as usize, 0, sys::SIGSET_BYTES, 0, 0];
    // SAFETY: the default action is what the program asked for; the action is live during the call.
    unsafe { sys::call(libc::SYS_rt_sigaction, arguments) };
    let (process, thread) = (sys::process_id() as usize, sys::thread_id() as usize);
    // SAFETY: a signal to this very thread; blocked until the mask below lets it through.
    unsafe { sys::call(libc::SYS_tgkill, [process, thread, signal as usize, 0, 0, 0]) };
    sys::set_signal_mask(!bit(signal));
}
