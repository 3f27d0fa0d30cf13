//! Scheduler statistics of a thread: `/proc/PID/task/TID/schedstat` (Documentation/scheduler/sched-stats.rst).

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Counts since the thread started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Schedstat {
    /// Nanoseconds on a CPU: for a running thread as of its last tick, otherwise exact.
    pub(super) running_ns: u64,
    /// Nanoseconds runnable, counted when the wait in the run queue has ended.
    pub(super) ready_ns: u64,
    /// How often it was scheduled.
    pub(super) turns: u64,
}

impl Schedstat {
    /// Reads the file; `None` if the thread has ended, or the kernel has no such statistics.
    pub(super) fn read(file: &File) -> Option<Self> {
        let mut text = [0; 80];
        let len = file.read_at(&mut text, 0).ok()?;
        Self::parse(std::str::from_utf8(&text[..len]).ok()?)
    }

    /// Nanoseconds running or runnable since `before`.
    pub(super) fn used_since(self, before: Self) -> u64 {
        self.running_ns.saturating_sub(before.running_ns) + self.ready_ns.saturating_sub(before.ready_ns)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_ascii_whitespace().map(|number| number.parse().ok());
        let mut next = || numbers.next()?;
        Some(Self { running_ns: next()?, ready_ns: next()?, turns: next()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_numbers() {
        let counts = Schedstat { running_ns: 12, ready_ns: 3, turns: 4 };
        assert_eq!(Schedstat::parse("12 3 4\n"), Some(counts));
        for text in ["", "1 2", "1 2 x", "-1 2 3"] {
            assert_eq!(Schedstat::parse(text), None, "{text}");
        }
        let own = File::open("/proc/thread-self/schedstat").unwrap();
        assert!(Schedstat::read(&own).is_some_and(|counts| counts.turns > 0));
    }
}
