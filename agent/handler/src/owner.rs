//! Finds the thread that a tick belongs to. A signal can outlive its thread, and a thread can run on another's
//! thread-local storage, so neither the slot named by a signal nor the noted one may be used before it is verified.

use core::ptr;

use platform::activity::is_filtered;
use platform::sys;
use shm_format::{Loss, Skip};

use crate::discovery;
use crate::learned_stack;
use crate::outcome::Missed;
use crate::slot::{self, Slot};

/// What a signal says about its thread.
pub(crate) enum Owner {
    /// A timer of one thread.
    Thread { slot: &'static Slot, timer: i32 },
    /// The timer of the process; the kernel picked the thread.
    Process,
    /// Perf events of one thread. `blocked`: the signal was blocked when they occurred.
    Kernel { slot: &'static Slot, blocked: bool },
}

impl Owner {
    /// The slot of the calling thread, whose stack pointer is `sp`, and which has noted the slot `noted`; an error if the
    /// signal was for another thread.
    #[inline(always)]
    pub(crate) fn slot(&self, sp: u64, noted: Option<&'static Slot>) -> Result<&'static Slot, Missed> {
        let is_own = |noted: &&Slot| match self {
            Owner::Process => noted.stack().hold(sp),
            Owner::Thread { slot, .. } | Owner::Kernel { slot, .. } => {
                ptr::eq(*slot, *noted) && !slot.is_discovered()
            }
        };
        match noted.filter(is_own) {
            Some(noted) => Ok(noted),
            None => self.verified(noted),
        }
    }

    /// The same by asking the kernel.
    #[cold]
    #[inline(never)]
    fn verified(&self, noted: Option<&'static Slot>) -> Result<&'static Slot, Missed> {
        match self {
            Owner::Thread { slot, .. } if slot.is_discovered() => verify_discovered(slot),
            // Only its own thread may read a ring. While system calls are filtered the thread's id is unknown, so leave
            // the ring alone.
            Owner::Kernel { .. } if is_filtered() => Err(Missed::Skipped(Skip::DisabledThread)),
            Owner::Thread { slot, .. } | Owner::Kernel { slot, .. } => verify(slot, noted),
            Owner::Process => find(noted),
        }
    }

    /// Stops the source of the signals after the end of the recording.
    #[cold]
    #[inline(never)]
    pub(crate) fn silence(&self, sp: u64) {
        if is_filtered() {
            return;
        }
        // `itimerspec` and `itimerval` are both four words; all zeros stop the timer.
        let never = [0usize; 4];
        let never = (&raw const never) as usize;
        let (number, arguments) = match self {
            Owner::Kernel { .. } => {
                return self.slot(sp, slot::noted()).into_iter().for_each(|slot| slot.kernel_rings.close());
            }
            Owner::Thread { timer, .. } => (libc::SYS_timer_settime, [*timer as usize, 0, never, 0, 0, 0]),
            Owner::Process => (libc::SYS_setitimer, [libc::ITIMER_PROF as usize, never, 0, 0, 0, 0]),
        };
        // SAFETY: the kernel reads four words, which are live; the timer is the agent's.
        unsafe { sys::call(number, arguments) };
    }
}

/// The slot of the calling thread, whose stack pointer is `sp`, if the signal does not name it.
pub(crate) fn own_slot(sp: u64) -> Result<&'static Slot, Missed> {
    Owner::Process.slot(sp, slot::noted())
}

/// Checks that `slot` belongs to the calling thread although the thread's word does not name it: the thread was running
/// before the agent was loaded, or was made by a bare `clone` and uses another's thread-local storage, or the timer
/// outlived its thread. Cannot be checked, and is accepted, while system calls are filtered.
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

/// As [`verify`], for a discovered thread: its thread-local storage is left alone.
fn verify_discovered(slot: &'static Slot) -> Result<&'static Slot, Missed> {
    if !is_filtered() && slot.tid() != sys::thread_id() {
        return Err(Missed::Skipped(Skip::DisabledThread));
    }
    learned_stack::forget_earlier(slot);
    Ok(slot)
}

/// Finds or creates the slot of a thread that has none noted, or is not on its own stack.
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
    // The slot is not noted in the thread's word: its thread-local storage may not be the C library's.
    discovery::adopt(tid).ok_or(Missed::Lost(Loss::NoSlot))
}
