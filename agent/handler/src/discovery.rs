//! Thread discovery: registers threads that were created by a bare `clone`, by the C library for itself, by functions
//! that are not interposed, or before the agent was injected.
//!
//! A process cannot discover them by itself without disturbing others: a process-wide timer signals arbitrary threads,
//! including sleeping ones, and the list of threads is a directory in /proc. So the recorder looks from outside and
//! sends a request to a thread that is running and not known to it. The thread's handler then registers its thread: it
//! gets a slot and a timer on its CPU clock, and its first sample stands for all CPU time used before.

use core::sync::atomic::{AtomicU32, Ordering};

use platform::activity::Active;
use platform::clock;
use platform::sys;
use shm_format::record::{DurableRecord, Thread};

use crate::learned_stack;
use crate::recording::{self, Clock, Recording};
use crate::slot::{self, Slot};
use crate::thread_timer;

/// Slots that are checked for ended threads whenever a thread is registered.
const VISITS: u32 = 8;
/// Longest thread name, with its NUL (kernel: TASK_COMM_LEN).
const NAME: usize = 16;

/// Position of the next check.
static VISITED: AtomicU32 = AtomicU32::new(0);

/// Starts sampling the calling thread, whose slot is `slot`, unless it is sampled already. Returns the periods that it
/// has used until now, for its first sample.
#[cold]
pub(crate) fn start(recording: &Recording, slot: &Slot) -> u32 {
    let late_start = &recording.late_start;
    let period_ns = late_start.period_ns();
    let has_clock = slot.timer() != Slot::NO_TIMER || slot.kernel_rings.are_attached();
    if period_ns == 0
        || has_clock
        || !slot.is_discovered()
        || slot::has_ended()
        || recording.is_clocked_by(Clock::ProcessTimer)
    {
        return 0;
    }
    let Some(_active) = Active::enter() else { return 0 };
    if !slot.start_once() {
        return 0;
    }
    let first_ns = thread_timer::first_expiry(period_ns, slot.tid().into());
    if thread_timer::arm(slot, late_start.signal(), period_ns, first_ns).is_err() {
        // The user may not create more timers.
        thread_timer::disarm(slot);
    }
    periods(late_start.used_ns(), period_ns)
}

/// Reaps: releases slots of threads that have ended, checking a few in turn.
fn reap(recording: &Recording) {
    let process = sys::process_id();
    let first = VISITED.fetch_add(VISITS, Ordering::Relaxed);
    for number in first..first.saturating_add(VISITS) {
        let Some(slot) = slot::some(number).filter(|slot| slot.is_discovered()) else { continue };
        let (sequence, tid) = (slot.sequence(), slot.tid());
        // SAFETY: signal 0 only tests whether the thread exists.
        let found = unsafe { sys::call(libc::SYS_tgkill, [process as usize, tid as usize, 0, 0, 0, 0]) };
        if found == -libc::ESRCH as isize {
            end(recording, slot, sequence);
        }
    }
}

/// Converts `used_ns` to periods, rounded randomly, so that short threads get the right total weight.
fn periods(used_ns: u64, period_ns: u64) -> u32 {
    let chance = thread_timer::first_expiry(period_ns, used_ns) - 1;
    (used_ns.saturating_add(chance) / period_ns.max(1)).min(u32::MAX.into()) as u32
}

/// Finds or creates the slot of the calling thread, which nobody registered, and reports it to the reader. `None` if
/// there is no memory, or system calls are filtered.
pub(crate) fn adopt(tid: u32) -> Option<&'static Slot> {
    let _active = Active::enter()?;
    let recording = recording::current();
    let known = slot::find(tid);
    if let Some(slot) = known
        && let Some(recording) = recording
        && is_stale(slot)
    {
        end(recording, slot, slot.sequence());
    } else if known.is_some() {
        return known.inspect(|slot| learned_stack::forget_earlier(slot));
    }
    // First, so that there is a slot for this thread.
    recording.into_iter().for_each(reap);
    let sequence = slot::next_sequence();
    let slot = slot::adopt(tid, sequence)?;
    if let Some(recording) = recording.filter(|_| slot.sequence() == sequence) {
        tell(recording, slot);
    }
    Some(slot)
}

/// Whether the slot belonged to an earlier thread whose id the calling one has now: the timer of a thread that has
/// ended has no time left.
fn is_stale(slot: &Slot) -> bool {
    slot.is_discovered() && slot.timer() != Slot::NO_TIMER && thread_timer::is_dead(slot.timer())
}

/// Releases a slot whose thread has ended, unless another thread does so.
fn end(recording: &Recording, slot: &Slot, sequence: u32) {
    if !slot.end_discovered(sequence) {
        return;
    }
    thread_timer::disarm(slot);
    slot.kernel_rings.close();
    let control = recording.region.control();
    control.leave_out(slot.take_carried().into());
    slot.tell_events(recording.region.control());
    if slot.cursor.close(&recording.region).wake {
        recording.ring();
    }
    let thread = Thread { ticks: clock::now(), tid: slot.tid(), seq: sequence, name: &[] };
    let _ = recording.region.append(&DurableRecord::ThreadEnd(thread));
    control.thread_ended();
    slot.release();
}

/// Reports the calling thread to the reader. If the log is full nothing is reported: its records still carry its id.
fn tell(recording: &Recording, slot: &Slot) {
    let mut name = [0u8; NAME];
    let arguments = [libc::PR_GET_NAME as usize, name.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes 16 bytes.
    unsafe { sys::call(libc::SYS_prctl, arguments) };
    let name = name.split(|byte| *byte == 0).next().unwrap_or(&[]);
    let thread = Thread { ticks: clock::now(), tid: slot.tid(), seq: slot.sequence(), name };
    let _ = recording.region.append(&DurableRecord::Thread(thread));
    recording.region.control().thread_started();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_periods_count_in_the_mean() {
        let sum: u64 = (0..20_000).map(|extra| u64::from(periods(2_500 + extra % 7, 1_000))).sum();
        assert!((48_000..52_500).contains(&sum), "{sum}");
        assert_eq!(periods(0, 1_000), 0);
        assert_eq!(periods(u64::MAX, 1), u32::MAX);
    }
}
