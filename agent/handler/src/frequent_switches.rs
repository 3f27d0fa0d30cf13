//! Threads that switch often: the kernel programs a timer for a thread's perf event whenever the thread gets or leaves
//! a processor, and in a virtual machine this can take longer than the program's own work. Such a thread continues with
//! a timer on its CPU clock, which the scheduler's tick drives: its samples have no kernel stacks, and switches cost
//! nothing.

use platform::activity::is_filtered;
use platform::sys;

use crate::kernel_ring::KernelRings;
use crate::recording::Recording;
use crate::slot::Slot;
use crate::thread_timer;

/// Periods of a thread's CPU time between two looks at its switches.
const PERIODS: u64 = 8;
const RUSAGE_THREAD: usize = 1;

/// The kernel's `struct rusage`: two times of two words each, then fourteen counts.
#[repr(C)]
#[derive(Default)]
struct Usage {
    times: [u64; 4],
    other: [u64; 12],
    voluntary: u64,
    involuntary: u64,
}

/// Replaces the perf events of the calling thread by a timer if it switches too often. It has used `cpu_ns` of CPU time,
/// and the sample that is being taken stands for `weight` periods. Called inside the slot's nesting guard, with nothing
/// left in the rings that waits for an answer.
#[inline(never)]
pub(crate) fn avoid(recording: &Recording, slot: &Slot, cpu_ns: u64, weight: u32) {
    let period_ns = slot.kernel_rings.period_ns();
    let is_limited = recording.switch_limit.is_set() && period_ns != 0;
    if is_limited && is_due(&slot.kernel_rings, period_ns, cpu_ns, weight) && !is_filtered() {
        look(recording, slot, period_ns, cpu_ns);
    }
}

/// Whether the last `weight` periods contain a time to look.
fn is_due(rings: &KernelRings, period_ns: u64, cpu_ns: u64, weight: u32) -> bool {
    let periods = rings.counted_ns() / period_ns;
    cpu_ns >= PERIODS * period_ns && periods % PERIODS < weight.into()
}

#[cold]
#[inline(never)]
fn look(recording: &Recording, slot: &Slot, period_ns: u64, cpu_ns: u64) {
    let mut usage = Usage::default();
    let arguments = [RUSAGE_THREAD, (&raw mut usage) as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes one `rusage`.
    let told = unsafe { sys::call(libc::SYS_getrusage, arguments) } == 0;
    let switches = usage.voluntary.wrapping_add(usage.involuntary);
    if !told || !recording.switch_limit.is_exceeded(switches, cpu_ns) {
        return;
    }
    // The timer for kernel time, if events cover user mode only.
    thread_timer::disarm(slot);
    let rings = &slot.kernel_rings;
    let until_ns = rings.counted_ns().wrapping_add(period_ns).wrapping_sub(cpu_ns).cast_signed();
    let first_ns = until_ns.clamp(1, period_ns.cast_signed()).cast_unsigned();
    if thread_timer::arm(slot, recording.late_start.signal(), period_ns, first_ns).is_ok() {
        rings.close();
        recording.region.control().thread_switches_often();
    } else {
        // No timer left for this user: the events go on, for all time.
        thread_timer::disarm(slot);
        rings.weigh_all();
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn every_eighth_period_is_one_to_look() {
        let rings = KernelRings::new();
        let looks = |periods: u64, weight| {
            rings.count_time(periods * 1000, 1000, false);
            is_due(&rings, 1000, 100_000, weight)
        };
        assert_eq!((0..17).filter(|periods| looks(*periods, 1)).collect::<Vec<_>>(), [0, 8, 16]);
        assert!(looks(10, 3) && !looks(10, 2) && looks(15, 9));
        assert!(!is_due(&rings, 1000, 7_999, 100), "too early to tell");
    }
}
