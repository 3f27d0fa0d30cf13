//! Whose tick it is. A signal can outlive its thread, and a thread can have another's thread-local storage: a slot is the
//! calling thread's only where that is known.

use core::ptr;

use shm_format::{Loss, Skip};

use crate::activity::is_filtered;
use crate::discovery;
use crate::outcome::Missed;
use crate::slot::{self, Slot};
use crate::sys;

/// What a signal says of its thread.
pub(crate) enum Owner {
    /// A thread's own timer.
    Thread { slot: &'static Slot, timer: i32 },
    /// The process's timer; the kernel picked the thread.
    Process,
    /// A thread's own events. The signal may have been blocked when they happened.
    Kernel { slot: &'static Slot, blocked: bool },
}

impl Owner {
    /// The slot of the calling thread, whose stack pointer is `sp`.
    #[inline]
    pub(crate) fn slot(&self, sp: u64) -> Result<&'static Slot, Missed> {
        if let Owner::Thread { slot, .. } = self
            && slot.is_discovered()
        {
            return verify_discovered(slot);
        }
        let noted = slot::noted();
        match (self, noted) {
            (Owner::Thread { slot, .. } | Owner::Kernel { slot, .. }, Some(noted))
                if ptr::eq(*slot, noted) =>
            {
                Ok(slot)
            }
            // A ring may be read by its own thread alone, and where the kernel cannot be asked whose it is, by none.
            (Owner::Kernel { .. }, _) if is_filtered() => Err(Missed::Skipped(Skip::DisabledThread)),
            (Owner::Thread { slot, .. } | Owner::Kernel { slot, .. }, _) => verify(slot, noted),
            (Owner::Process, _) => own_slot(sp),
        }
    }

    /// Stops what sends the signals, when nobody wants them any more.
    #[cold]
    pub(crate) fn silence(&self, sp: u64) {
        if is_filtered() {
            return;
        }
        // Both `itimerspec` and `itimerval` are four words; zero stops the timer.
        let never = [0usize; 4];
        let never = (&raw const never) as usize;
        let (number, arguments) = match self {
            Owner::Kernel { .. } => {
                return self.slot(sp).into_iter().for_each(|slot| slot.kernel_rings.close());
            }
            Owner::Thread { timer, .. } => (libc::SYS_timer_settime, [*timer as usize, 0, never, 0, 0, 0]),
            Owner::Process => (libc::SYS_setitimer, [libc::ITIMER_PROF as usize, never, 0, 0, 0, 0]),
        };
        // SAFETY: the kernel reads four words; the timer is ours.
        unsafe { sys::call(number, arguments) };
    }
}

/// The slot of the calling thread, whose stack pointer is `sp`, when the signal does not say which.
pub(crate) fn own_slot(sp: u64) -> Result<&'static Slot, Missed> {
    match slot::noted() {
        Some(noted) if noted.stack().hold(sp) => Ok(noted),
        noted => find(noted),
    }
}

/// Checks that `slot` is the calling thread's, although the thread does not know it: it was running before the
/// library came, or it is a bare thread on another's thread-local storage, or the timer outlived its thread.
#[cold]
fn verify(slot: &'static Slot, noted: Option<&Slot>) -> Result<&'static Slot, Missed> {
    if !is_filtered() {
        if slot.tid() != sys::thread_id() {
            return Err(Missed::Skipped(Skip::DisabledThread));
        }
        if noted.is_none() {
            slot::set_current(slot);
        }
    }
    Ok(slot)
}

/// The same for a slot that its thread does not know; thread-local storage is left alone.
fn verify_discovered(slot: &'static Slot) -> Result<&'static Slot, Missed> {
    match is_filtered() || slot.tid() == sys::thread_id() {
        true => Ok(slot),
        false => Err(Missed::Skipped(Skip::DisabledThread)),
    }
}

/// Finds or makes the slot of a thread that has none, or is not on its own stack.
#[cold]
fn find(noted: Option<&'static Slot>) -> Result<&'static Slot, Missed> {
    if is_filtered() {
        return noted.ok_or(Missed::Lost(Loss::NoSlot));
    }
    let tid = sys::thread_id();
    if let Some(noted) = noted
        && noted.tid() == tid
    {
        return Ok(noted);
    }
    // Not noted with the thread: its thread-local storage may not be the C library's.
    discovery::adopt(tid).ok_or(Missed::Lost(Loss::NoSlot))
}
