//! One expiry of a timer of ours: how much it stands for, and whose it is.

use core::ptr;

use shm_format::{Loss, Skip};

use crate::Missed;
use crate::context::Context;
use crate::process::{self, Recording, Source};
use crate::slot::{self, Slot};
use crate::sys;

/// The head of the kernel's `siginfo`, as timers fill it.
#[repr(C)]
struct TimerInfo {
    signal: i32,
    errno: i32,
    code: i32,
    padding: i32,
    timer: i32,
    overrun: i32,
    value: usize,
}

const SI_TIMER: i32 = -2;
const SI_KERNEL: i32 = 0x80;

/// Makes the signal of a timer that carries `stand_in` look like that of ITIMER_PROF.
///
/// # Safety
/// `info` is the second argument of a running SA_SIGINFO handler.
pub(crate) unsafe fn disguise(info: *mut libc::siginfo_t, stand_in: usize) {
    // SAFETY: the kernel's `siginfo` has 128 bytes, in memory of the handler's own frame.
    let info = unsafe { &mut *info.cast::<TimerInfo>() };
    if info.code == SI_TIMER && info.value == stand_in {
        *info = TimerInfo {
            signal: info.signal,
            errno: 0,
            code: SI_KERNEL,
            padding: 0,
            timer: 0,
            overrun: 0,
            value: 0,
        };
    }
}

/// Counts a signal as skipped if it came from a timer of ours but was not handled; says whether it did.
///
/// # Safety
/// `info` is a `siginfo` that the kernel has filled.
pub unsafe fn discard(info: *const libc::siginfo_t, recording: &'static Recording) -> bool {
    // SAFETY: the caller's promise.
    let tick = unsafe { Tick::read(info, Some(recording)) };
    if let Some((_, tick)) = &tick {
        recording.region.control().fire(tick.weight.into());
        recording.region.control().skip(Skip::DisabledThread, tick.weight.into());
    }
    tick.is_some()
}

/// An expiry.
pub struct Tick {
    /// Timer periods that this signal stands for.
    pub weight: u32,
    owner: Owner,
}

enum Owner {
    /// A thread's own timer.
    Thread { slot: &'static Slot, timer: i32 },
    /// The process's timer; the kernel picked the thread.
    Process,
}

impl Tick {
    /// Reads `info`; none if the signal did not come from a timer of ours.
    ///
    /// # Safety
    /// `info` is the second argument of a running SA_SIGINFO handler.
    #[inline]
    pub unsafe fn read(
        info: *const libc::siginfo_t,
        recording: Option<&'static Recording>,
    ) -> Option<(&'static Recording, Tick)> {
        let recording = recording?;
        // SAFETY: the kernel's `siginfo` has 128 bytes; which of them mean something depends on the code.
        let info = unsafe { &*info.cast::<TimerInfo>() };
        let (weight, owner) = match (recording.source, info.code) {
            (Source::ThreadTimer, SI_TIMER) => {
                let owner = Owner::Thread { slot: slot::at(info.value)?, timer: info.timer };
                (info.overrun.max(0).unsigned_abs().saturating_add(1), owner)
            }
            (Source::ProcessTimer, SI_KERNEL) => (recording.process_time.periods(), Owner::Process),
            _ => return None,
        };
        Some((recording, Tick { weight, owner }))
    }

    /// The slot of the calling thread.
    #[inline]
    pub(crate) fn slot(&self, context: Context<'_>) -> Result<&'static Slot, Missed> {
        let noted = slot::noted();
        match (&self.owner, noted) {
            (Owner::Thread { slot, .. }, Some(noted)) if ptr::eq(*slot, noted) => Ok(slot),
            (Owner::Thread { slot, .. }, _) => verify(slot, noted),
            (Owner::Process, Some(noted)) if noted.stack().hold(context.stack_pointer()) => Ok(noted),
            (Owner::Process, _) => find(noted),
        }
    }

    /// Stops the timer, when nobody wants its ticks any more.
    #[cold]
    pub(crate) fn silence(&self) {
        if process::is_filtered() {
            return;
        }
        // Both `itimerspec` and `itimerval` are four words; zero stops the timer.
        let never = [0usize; 4];
        let never = (&raw const never) as usize;
        // SAFETY: the kernel reads four words; the timer is ours.
        unsafe {
            match self.owner {
                Owner::Thread { timer, .. } => {
                    sys::call(libc::SYS_timer_settime, [timer as usize, 0, never, 0, 0, 0])
                }
                Owner::Process => {
                    sys::call(libc::SYS_setitimer, [libc::ITIMER_PROF as usize, never, 0, 0, 0, 0])
                }
            }
        };
    }
}

/// Checks that `slot` is the calling thread's, although the thread does not know it: it was running before the
/// library came, or it is a bare thread on another's thread-local storage, or the timer outlived its thread.
#[cold]
fn verify(slot: &'static Slot, noted: Option<&Slot>) -> Result<&'static Slot, Missed> {
    if !process::is_filtered() {
        if slot.tid() != sys::thread_id() {
            return Err(Missed::Skipped(Skip::DisabledThread));
        }
        if noted.is_none() {
            slot::set_current(slot);
        }
    }
    Ok(slot)
}

/// Finds or makes the slot of a thread that has none, or is not on its own stack.
#[cold]
fn find(noted: Option<&'static Slot>) -> Result<&'static Slot, Missed> {
    if process::is_filtered() {
        return noted.ok_or(Missed::Lost(Loss::NoSlot));
    }
    let tid = sys::thread_id();
    if let Some(noted) = noted
        && noted.tid() == tid
    {
        return Ok(noted);
    }
    let slot = slot::adopt(tid, process::next_sequence()).ok_or(Missed::Lost(Loss::NoSlot))?;
    if noted.is_none() {
        slot::set_current(slot);
    }
    Ok(slot)
}
