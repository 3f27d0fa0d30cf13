//! Signal chaining: emulates the kernel's treatment of the sampling signal for the program.
//!
//! The kernel's disposition is the agent's; the program's `sigaction` changes the one stored here. A signal that no
//! timer of the agent sent is treated according to that disposition.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use platform::sys;

use crate::context::Context;
use crate::siginfo::SignalInfo;
use crate::slot::{self, Slot};

/// A disposition set by the program. Immutable once published and never freed, so that a handler may read it at any
/// time.
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
    /// The disposition of a new program.
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
    /// The code that the handler returns to.
    pub restorer: usize,
    /// Signals blocked during the handler.
    pub mask: u64,
}

impl KernelAction {
    /// The disposition of a new program.
    pub const DEFAULT: KernelAction = KernelAction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
}

static DEFAULT: Disposition = Disposition::DEFAULT;
static CURRENT: AtomicPtr<Disposition> = AtomicPtr::new(ptr::null_mut());

/// The program's disposition.
pub fn disposition() -> &'static Disposition {
    // SAFETY: published dispositions are never freed. The acquire pairs with the release in `set_disposition`.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }.unwrap_or(&DEFAULT)
}

/// Replaces the program's disposition.
pub fn set_disposition(disposition: &'static Disposition) {
    CURRENT.store(ptr::from_ref(disposition).cast_mut(), Ordering::Release);
}

/// Whether the program handles the signal itself.
pub fn has_handler() -> bool {
    !matches!(disposition().handler, libc::SIG_DFL | libc::SIG_IGN)
}

/// The signal value of the timer that emulates the program's ITIMER_PROF.
pub fn fallback_value() -> usize {
    (&raw const CURRENT) as usize
}

/// The bit of `signal` in a kernel signal set.
const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Handles a signal that is not the agent's. Returns the program's disposition if its handler must run.
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
        // The kernel does not let a program ignore its own traps.
        libc::SIG_IGN if forced => die(signal),
        libc::SIG_IGN => {}
        libc::SIG_DFL => die(signal),
        _ => return Some(wanted),
    }
    None
}

/// Does what the kernel does when a handler with this disposition begins; returns the handler. `context` is in the
/// frame on which it is about to run.
pub(crate) fn begin(signal: c_int, context: Context<'_>, wanted: &Disposition) -> usize {
    if wanted.flags & libc::SA_RESETHAND != 0 {
        set_disposition(&DEFAULT);
    }
    let own = if wanted.flags & libc::SA_NODEFER != 0 { 0 } else { bit(signal) };
    sys::set_signal_mask(context.signal_mask() | wanted.mask | own);
    wanted.handler
}

/// Blocks the signal, which the program believes is blocked, and sends it again, so that it becomes pending.
fn keep_pending(slot: &Slot, signal: c_int, info: &SignalInfo, context: Context<'_>) {
    slot.set_hidden(false);
    context.block(bit(signal));
    let (process, thread) = (sys::process_id() as usize, sys::thread_id() as usize);
    let arguments = [process, thread, signal as usize, core::ptr::from_ref(info) as usize, 0, 0];
    // SAFETY: the kernel reads one `siginfo`; a thread may send itself any.
    unsafe { sys::call(libc::SYS_rt_tgsigqueueinfo, arguments) };
}

/// Ends the process as an unhandled signal would.
fn die(signal: c_int) {
    let default = KernelAction::DEFAULT;
    let arguments = [signal as usize, (&raw const default) as usize, 0, sys::SIGSET_BYTES, 0, 0];
    // SAFETY: the default action is what the program asked for; the action is live during the call.
    unsafe { sys::call(libc::SYS_rt_sigaction, arguments) };
    let (process, thread) = (sys::process_id() as usize, sys::thread_id() as usize);
    // SAFETY: a signal to this very thread, blocked until the mask below unblocks it.
    unsafe { sys::call(libc::SYS_tgkill, [process, thread, signal as usize, 0, 0, 0]) };
    sys::set_signal_mask(!bit(signal));
}
