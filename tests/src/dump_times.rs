//! Durations of repeated dumps, and which of them coincide with CPU time stolen by the hypervisor, for which no program
//! can compensate.

use std::fmt;
use std::time::Duration;

/// The times of many dumps.
#[derive(Default)]
pub struct DumpTimes(Vec<Dump>);

struct Dump {
    elapsed: Duration,
    /// The hypervisor ran something else meanwhile; the kernel counts that in units of ten milliseconds.
    was_robbed: bool,
}

impl DumpTimes {
    /// Runs `dump`, which returns how long it took and its result, and records the time.
    pub fn time<T>(&mut self, dump: impl FnOnce() -> (Duration, T)) -> T {
        let before = stolen_ticks();
        let (elapsed, found) = dump();
        self.0.push(Dump { elapsed, was_robbed: stolen_ticks() != before });
        found
    }
}

/// Stolen ticks of all CPUs (`steal` in proc_stat(5)); 0 where nobody counts them.
fn stolen_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    stat.split_whitespace().nth(8).and_then(|field| field.parse().ok()).unwrap_or(0)
}

impl fmt::Display for DumpTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |robbed: bool| {
            let mut times: Vec<_> =
                self.0.iter().filter(|dump| !dump.was_robbed || robbed).map(|dump| dump.elapsed).collect();
            times.sort_unstable();
            times
        };
        let (all, own) = (of(true), of(false));
        let at = |times: &[Duration], part: f64| {
            let index = (times.len() as f64 * part) as usize;
            times.get(index.min(times.len().saturating_sub(1))).copied().unwrap_or_default()
        };
        write!(f, "{} dumps: p50 {:.1?}, p99 {:.1?}, ", all.len(), at(&all, 0.5), at(&all, 0.99))?;
        write!(f, "slowest {:.1?}; ", at(&all, 1.0))?;
        write!(f, "of the {} with the machine to itself the slowest {:.1?}", own.len(), at(&own, 1.0))
    }
}
