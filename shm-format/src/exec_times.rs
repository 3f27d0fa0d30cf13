//! How much CPU time a process had used when it executed a program, for the next image: samples of that image account
//! for the time from then on, which the kernel does not tell.
//!
//! A table that a process finds its entry in by its id. Entries of other processes may replace it, or remain from an
//! earlier process, so an entry is a hint: without one, the next image assumes a short time.

use crate::atomic::{AtomicU64, Ordering};

/// Number of entries: the processes that may execute a program at the same time.
const ENTRIES: usize = if cfg!(loom) { 1 } else { 256 };
/// Bits of a process id (the kernel's PID_MAX_LIMIT).
const PID_BITS: u32 = 22;
/// Nanoseconds per unit of time, as a shift: the remaining bits hold three days.
const UNIT: u32 = 6;

/// The table.
#[repr(C)]
pub struct ExecTimes([AtomicU64; ENTRIES]);

const fn entry(pid: u32, cpu_ns: u64) -> u64 {
    (pid as u64) << (64 - PID_BITS) | (cpu_ns >> UNIT) & (u64::MAX >> PID_BITS)
}

impl ExecTimes {
    /// A table without entries.
    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        ExecTimes(core::array::from_fn(|_| AtomicU64::new(0)))
    }

    fn at(&self, pid: u32) -> &AtomicU64 {
        &self.0[pid as usize % ENTRIES]
    }

    /// Process `pid` is about to execute a program. Its thread has used this much CPU time, all of which samples account
    /// for.
    pub fn put(&self, pid: u32, cpu_ns: u64) {
        self.at(pid).store(entry(pid, cpu_ns), Ordering::Relaxed);
    }

    /// The CPU time in nanoseconds at the exec that made process `pid` what it is, if that is known. Its thread has now
    /// used `cpu_ns`.
    pub fn take(&self, pid: u32, cpu_ns: u64) -> Option<u64> {
        let word = self.at(pid);
        let found = word.load(Ordering::Relaxed);
        if found == 0 || found >> (64 - PID_BITS) != u64::from(pid) {
            return None;
        }
        let taken = word.compare_exchange(found, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let at_ns = (found & (u64::MAX >> PID_BITS)) << UNIT;
        (taken && at_ns <= cpu_ns).then_some(at_ns)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_taken_once_by_its_process() {
        let times = ExecTimes::empty();
        assert_eq!(times.take(7, u64::MAX), None);
        times.put(7, 6_400_063);
        assert_eq!(times.take(7 + ENTRIES as u32, u64::MAX), None);
        assert_eq!(times.take(7, 6_400_063), Some(6_400_000));
        assert_eq!(times.take(7, u64::MAX), None);
        times.put(7, 0);
        assert_eq!(times.take(7, 0), Some(0));
        let last = (1 << PID_BITS) - 1;
        times.put(last, 3 << 40);
        assert_eq!(times.take(last, 3 << 40), Some(3 << 40));
    }

    #[test]
    fn an_entry_of_another_process_is_no_use() {
        let times = ExecTimes::empty();
        times.put(7, 1000);
        times.put(7 + ENTRIES as u32, 2000);
        assert_eq!(times.take(7, u64::MAX), None);
        // More than the process has used.
        assert_eq!(times.take(7 + ENTRIES as u32, 1900), None);
    }
}
