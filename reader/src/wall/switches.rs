//! Context switches of a thread: `/proc/PID/task/TID/status` (proc_pid_status(5)).

use crate::proc;

/// Counts since the thread started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Switches {
    /// Voluntary switches: it blocked.
    pub(super) own: u64,
    /// Involuntary switches: it was preempted.
    pub(super) forced: u64,
}

impl Switches {
    /// Reads those of a thread; `None` if it has ended.
    pub(super) fn read(pid: u32, tid: u32) -> Option<Self> {
        Self::parse(&proc::beginning_of(pid, tid, "status").ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let number =
            |name: &str| text.lines().rev().find_map(|line| line.strip_prefix(name))?.trim().parse().ok();
        Some(Self {
            own: number("voluntary_ctxt_switches:")?,
            forced: number("nonvoluntary_ctxt_switches:")?,
        })
    }

    /// The part of the `ns` runnable nanoseconds since `before` that followed blocking, if all switches took equally long.
    pub(super) fn woken_ns(self, before: Self, ns: u64) -> u64 {
        let own = self.own.saturating_sub(before.own);
        let all = own + self.forced.saturating_sub(before.forced);
        if all == 0 { 0 } else { (u128::from(ns) * u128::from(own) / u128::from(all)) as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_of_a_status_file() {
        let text = "Name:\tvoluntary_ctxt_switches:\t9\nvoluntary_ctxt_switches:\t30\nnonvoluntary_ctxt_switches:\t10\n";
        let switches = Switches::parse(text).unwrap();
        assert_eq!(switches, Switches { own: 30, forced: 10 });
        assert_eq!(switches.woken_ns(Switches::default(), 100), 75);
        assert_eq!(switches.woken_ns(switches, 100), 0);
        assert_eq!(Switches::parse(""), None);
        assert!(Switches::read(std::process::id(), std::process::id()).is_some());
    }
}
