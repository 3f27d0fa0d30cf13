//! Sharing the sampling signal with the program.
//!
//! The kernel's disposition is the agent's handler. The disposition that the program sets through `sigaction` and older
//! functions is stored, and [`handler::chain`] acts on it. SA_RESTART of the program's handler is passed to the kernel,
//! which applies it before any handler runs; SA_ONSTACK is always set.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use handler::chain::{self, Disposition, KernelAction};
use handler::entry;
use handler::siginfo::SignalInfo;
use platform::sys::SIGSET_BYTES;

use crate::kernel::{self, Errno};
use crate::lock::Lock;
use crate::pending;
use crate::sampling_signal;

const SA_RESTORER: c_int = 0x0400_0000;

/// The disposition that the program requests with `action`.
pub(crate) fn asked(action: &KernelAction) -> Disposition {
    Disposition { handler: action.handler, flags: action.flags as c_int & !SA_RESTORER, mask: action.mask }
}

/// The kernel's form of `disposition`.
pub(crate) fn kernel_action(disposition: &Disposition) -> KernelAction {
    let Disposition { handler, flags, mask } = *disposition;
    KernelAction { handler, flags: flags as u32 as u64, restorer: 0, mask }
}

/// Replaces the kernel's disposition of the signal and returns the previous one.
fn exchange(action: Option<&KernelAction>) -> Result<KernelAction, Errno> {
    let mut before = KernelAction::DEFAULT;
    let new = action.map_or(core::ptr::null(), core::ptr::from_ref);
    let arguments =
        [sampling_signal::get() as usize, new as usize, (&raw mut before) as usize, SIGSET_BYTES, 0, 0];
    // SAFETY: both actions are live; the handlers installed here take SA_SIGINFO's arguments.
    unsafe { kernel::call(libc::SYS_rt_sigaction, arguments) }?;
    Ok(before)
}

/// Installs the agent's handler, with the flags that the program's handler needs.
fn install_for(wanted: &Disposition) -> Result<KernelAction, Errno> {
    let has_handler = wanted.handler != libc::SIG_DFL && wanted.handler != libc::SIG_IGN;
    let restart = if has_handler { libc::SA_RESTART & wanted.flags } else { libc::SA_RESTART };
    exchange(Some(&KernelAction {
        handler: own_handler(),
        flags: (libc::SA_SIGINFO | libc::SA_ONSTACK | SA_RESTORER | restart) as u64,
        restorer: entry::restorer(),
        mask: !0,
    }))
}

/// Dispositions that the program has set. They are never freed, because a handler may be reading one; equal ones are
/// stored once.
struct StoredDisposition {
    disposition: Disposition,
    next: *mut StoredDisposition,
}

static STORED: AtomicPtr<StoredDisposition> = AtomicPtr::new(core::ptr::null_mut());
static LOCK: Lock = Lock::new();
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Whether the kernel's disposition is the agent's.
pub(crate) fn is_taken() -> bool {
    TAKEN.load(Ordering::Acquire)
}

/// The lock, which a fork must hold so that the child finds it free.
pub(crate) fn lock() -> &'static Lock {
    &LOCK
}

/// The stored disposition equal to `wanted`. The lock must be held.
fn keep(wanted: Disposition) -> &'static Disposition {
    let mut next = STORED.load(Ordering::Relaxed);
    // SAFETY: stored entries are never freed.
    while let Some(stored) = unsafe { next.as_ref() } {
        if stored.disposition == wanted {
            return &stored.disposition;
        }
        next = stored.next;
    }
    let stored =
        Box::leak(Box::new(StoredDisposition { disposition: wanted, next: STORED.load(Ordering::Relaxed) }));
    STORED.store(core::ptr::from_mut(stored), Ordering::Relaxed);
    &stored.disposition
}

/// The kernel's disposition before the signal was taken over.
struct Original(UnsafeCell<Option<KernelAction>>);

// SAFETY: accessed only while `LOCK` is held.
unsafe impl Sync for Original {}

static ORIGINAL: Original = Original(UnsafeCell::new(None));

/// Address of the agent's handler.
fn own_handler() -> usize {
    entry::on_own_signal as unsafe extern "C" fn(_, _, _) as usize
}

/// Takes the signal over, unless it is already; the disposition that the program inherited is stored.
pub(crate) fn take_over() -> Result<(), Errno> {
    let _held = LOCK.hold();
    let before = exchange(None)?;
    if before.handler == own_handler() {
        return Ok(());
    }
    // SAFETY: the lock is held.
    unsafe { *ORIGINAL.0.get() = Some(before) };
    let inherited = keep(asked(&before));
    chain::set_disposition(inherited);
    install_for(inherited)?;
    TAKEN.store(true, Ordering::Release);
    Ok(())
}

/// Restores the original disposition, once no timer signal of the agent is pending for any thread. If one stays pending
/// in a thread that blocks it, the agent's handler stays: the default action would end the program.
pub(crate) fn give_back() {
    const LOOKS: usize = 20;
    const PAUSE_NS: u32 = 10_000_000;
    let _held = LOCK.hold();
    // SAFETY: the lock is held.
    let original = unsafe { *ORIGINAL.0.get() };
    let is_ours = exchange(None).is_ok_and(|action| action.handler == own_handler());
    let Some(original) = original.filter(|_| is_ours) else { return };
    for _ in 0..LOOKS {
        if !pending::any(sampling_signal::get()) {
            let _ = exchange(Some(&original));
            return TAKEN.store(false, Ordering::Release);
        }
        kernel::sleep(PAUSE_NS);
    }
}

/// Replaces the program's disposition if `new` is given; returns the previous one.
pub(crate) fn change(new: Option<Disposition>) -> Disposition {
    let Some(new) = new else { return *chain::disposition() };
    let _held = LOCK.hold();
    let before = *chain::disposition();
    let stored = keep(new);
    chain::set_disposition(stored);
    // Cannot fail: the signal and the memory are valid.
    let _ = install_for(stored);
    before
}

/// Before an exec: installs what the new image is to inherit. The kernel resets handlers to the default, but preserves
/// "ignored".
pub(crate) fn uncover() {
    if chain::disposition().handler == libc::SIG_IGN {
        let _ = exchange(Some(&KernelAction { handler: libc::SIG_IGN, ..KernelAction::DEFAULT }));
    }
}

/// Removes pending ITIMER_PROF signals from the queue; the signal must be blocked and the timer stopped. Signals from
/// other senders are queued again.
pub(crate) fn drain_process_timer() {
    let set = 1u64 << (sampling_signal::get() - 1);
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut others: Vec<SignalInfo> = Vec::new();
    loop {
        let mut info = SignalInfo::EMPTY;
        let arguments = [
            (&raw const set) as usize,
            (&raw mut info) as usize,
            (&raw const now) as usize,
            SIGSET_BYTES,
            0,
            0,
        ];
        // SAFETY: the kernel reads a set and a time, and writes one `siginfo`.
        if unsafe { kernel::call(libc::SYS_rt_sigtimedwait, arguments) }.is_err() {
            break;
        }
        if !info.is_kernels() {
            others.push(info);
        }
    }
    for info in others {
        let arguments = [
            platform::sys::process_id() as usize,
            sampling_signal::get() as usize,
            (&raw const info) as usize,
            0,
            0,
            0,
        ];
        // SAFETY: the kernel reads one `siginfo`; a process may send itself any.
        let _ = unsafe { kernel::call(libc::SYS_rt_sigqueueinfo, arguments) };
    }
}

/// After a failed exec: installs the agent's handler again.
pub(crate) fn cover() {
    if chain::disposition().handler == libc::SIG_IGN {
        let _ = install_for(chain::disposition());
    }
}
