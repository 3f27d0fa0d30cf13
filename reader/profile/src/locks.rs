//! Lock profiles: the weights of sampled waits, and the stacks that ended them.
//!
//! Waits are sampled by a Poisson process over the time waited, one in R nanoseconds on average. So a wait of D nanoseconds
//! is sampled with the probability `p = 1 - exp(-D/R)`, and represents `1/p` waits and `D/p` nanoseconds. A lock sample that is
//! not a wait is the stack of the thread that released the lock or woke the waiter: it has no weight of its own, and is joined
//! with the waits that it ended. The two come from different threads, so either may come first.

use std::collections::{BTreeMap, VecDeque};

use shm_format::LockNonce;

use crate::poisson;
use crate::profile_file::Sample;

/// Source number of waits for locks, and of their ends, in samples.
pub const LOCK: u8 = 7;
/// Default mean number of nanoseconds of waiting between samples.
pub const DEFAULT_MEAN: u64 = 100_000;

/// The values of waits for locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockValue {
    /// Number of waits, at the waiting stack.
    Contentions,
    /// Nanoseconds waited, at the waiting stack.
    #[default]
    Delay,
    /// Nanoseconds that others waited, at the stack that released the lock or woke the waiter.
    HeldDelay,
}

impl LockValue {
    /// All of them; the first two are those of pprof's contention profiles.
    pub const ALL: [LockValue; 3] = [LockValue::Contentions, LockValue::Delay, LockValue::HeldDelay];

    /// As pprof and the command line name it.
    pub const fn name(self) -> &'static str {
        match self {
            LockValue::Contentions => "contentions",
            LockValue::Delay => "delay",
            LockValue::HeldDelay => "held_delay",
        }
    }
}

/// Parses `lock`, `lock:TIME` or `lock:all` as the mean number of nanoseconds between samples; `None` if it is another source.
///
/// # Errors
/// If it is `lock` with an invalid value.
pub fn mean_of(source: &str) -> Result<Option<u64>, String> {
    let Some(rest) = source.strip_prefix("lock") else { return Ok(None) };
    let wrong = || format!("`{source}`: expected lock:all or a time above 0, such as lock:10us");
    match rest.strip_prefix(':') {
        None if rest.is_empty() => Ok(Some(DEFAULT_MEAN)),
        None => Ok(None),
        Some("all") => Ok(Some(1)),
        Some(time) => {
            let units = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("", 1)];
            let (digits, unit) = units
                .into_iter()
                .find_map(|(name, unit)| Some((time.strip_suffix(name)?, unit)))
                .ok_or_else(wrong)?;
            let mean: u64 = digits.parse().map_err(|_| wrong())?;
            Some(mean)
                .filter(|mean| (1..1 << 30).contains(mean))
                .map(|mean| Some(mean * unit))
                .ok_or_else(wrong)
        }
    }
}

/// The source of that mean distance, as a session names it.
pub fn source_name(mean: u64) -> String {
    if mean == 1 { "lock:all".into() } else { format!("lock:{mean}") }
}

/// The number of waits and the nanoseconds that a sampled wait represents; `None` for the end of a wait.
pub(crate) fn values(sample: &Sample, mean: u64) -> Option<[u64; 2]> {
    let nonce = LockNonce(sample.nonce);
    if nonce.is_holder() {
        return None;
    }
    // The agent doubles the mean where recording takes too much time, and says how often.
    let mean = mean.saturating_mul(sample.weight.max(1).into());
    let (waits, delay) = poisson::stands_for(nonce.time(), mean);
    let dice = poisson::fraction(sample.ns ^ u64::from(sample.tid) << 40);
    Some([(waits + dice) as u64, (delay + dice) as u64])
}

/// Maximum number of remembered ends, and of waits whose end is not known yet.
const REMEMBERED: usize = 1 << 14;
/// How long before or after a wait the stack that ended it may have been taken. Either thread may lose its CPU between the wait
/// and the record of its stack, whose time this is; links are used again only after many more.
const APART_NS: u64 = 10_000_000_000;

/// What is kept of a sample until its counterpart arrives.
type Kept<T> = BTreeMap<(u32, u32), VecDeque<(u64, T)>>;

/// Joins waits with their ends. `T` is the caller's data for each.
#[derive(Debug)]
pub struct Joiner<T> {
    ends: Kept<T>,
    waits: Kept<(u64, T)>,
    /// In order of arrival, to forget the oldest.
    kept: VecDeque<(bool, (u32, u32))>,
}

impl<T> Default for Joiner<T> {
    fn default() -> Self {
        Joiner { ends: BTreeMap::new(), waits: BTreeMap::new(), kept: VecDeque::new() }
    }
}

impl<T: Clone> Joiner<T> {
    /// Takes in a sample, and calls `pair` with each wait and end that it completes.
    pub fn take(&mut self, sample: &Sample, what: impl FnOnce() -> T, mut pair: impl FnMut(&T, &T)) {
        let nonce = LockNonce(sample.nonce);
        if nonce.link() == 0 {
            return;
        }
        let key = (sample.process, nonce.link());
        let what = what();
        if nonce.is_holder() {
            if let Some(waits) = self.waits.get_mut(&key) {
                waits.retain(|(ns, (began, wait))| {
                    let is_its_end = is_end(sample.ns, *began, *ns);
                    if is_its_end {
                        pair(wait, &what);
                    }
                    !is_its_end
                });
            }
            self.ends.entry(key).or_default().push_back((sample.ns, what));
            return self.keep(true, key);
        }
        let began = sample.ns.saturating_sub(nonce.time());
        let ends = self.ends.get(&key).into_iter().flatten().rev();
        let mut fitting = ends.filter(|(ns, _)| is_end(*ns, began, sample.ns));
        match fitting.next() {
            Some((_, end)) => pair(&what, end),
            None => {
                self.waits.entry(key).or_default().push_back((sample.ns, (began, what)));
                self.keep(false, key);
            }
        }
    }

    /// Forgets the oldest if there are too many.
    fn keep(&mut self, is_end: bool, key: (u32, u32)) {
        self.kept.push_back((is_end, key));
        if self.kept.len() <= REMEMBERED {
            return;
        }
        match self.kept.pop_front() {
            Some((true, oldest)) => forget(&mut self.ends, oldest),
            Some((false, oldest)) => forget(&mut self.waits, oldest),
            None => {}
        }
    }
}

/// True if the stack of an end, taken at `ns`, may belong to a wait from `began` to `ended`.
fn is_end(ns: u64, began: u64, ended: u64) -> bool {
    (began.saturating_sub(APART_NS)..ended.saturating_add(APART_NS)).contains(&ns)
}

fn forget<T>(kept: &mut Kept<T>, key: (u32, u32)) {
    if let Some(of_key) = kept.get_mut(&key) {
        of_key.pop_front();
        if of_key.is_empty() {
            kept.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_have_their_mean() {
        for (source, mean) in [
            ("lock", Ok(Some(DEFAULT_MEAN))),
            ("lock:all", Ok(Some(1))),
            ("lock:1000", Ok(Some(1000))),
            ("lock:10us", Ok(Some(10_000))),
            ("lock:2ms", Ok(Some(2_000_000))),
            ("locks", Ok(None)),
            ("cpu", Ok(None)),
        ] {
            assert_eq!(mean_of(source), mean, "{source}");
        }
        for source in ["lock:", "lock:0", "lock:x", "lock:-1", "lock:us", "lock:10s"] {
            assert!(mean_of(source).unwrap_err().contains("lock:10us"), "{source}");
        }
        assert_eq!(mean_of(&source_name(77)), Ok(Some(77)));
        assert_eq!(mean_of(&source_name(1)), Ok(Some(1)));
    }

    fn sample(ns: u64, nonce: LockNonce) -> Sample {
        Sample { process: 1, ns, nonce: nonce.0, source: LOCK, ..Sample::default() }
    }

    #[test]
    fn a_long_wait_stands_for_itself_and_ends_for_nothing() {
        let wait = sample(5_000_000, LockNonce::wait(1 << 20, 3));
        let [waits, delay] = values(&wait, 1000).unwrap();
        assert!(waits == 1 && delay.abs_diff(1 << 20) <= 1, "{waits} {delay}");
        assert_eq!(values(&sample(5, LockNonce::holder(3)), 1000), None);
    }

    /// Takes in samples in this order, with their indexes as what is kept.
    fn pairs(samples: &[Sample]) -> Vec<(usize, usize)> {
        let mut joiner = Joiner::default();
        let mut found = Vec::new();
        for (index, sample) in samples.iter().enumerate() {
            joiner.take(sample, || index, |wait, end| found.push((*wait, *end)));
        }
        found
    }

    #[test]
    fn waits_find_their_ends_in_either_order() {
        let end = sample(2_000_000, LockNonce::holder(3));
        let wait = sample(2_100_000, LockNonce::wait(1_000_000, 3));
        assert_eq!(pairs(&[end.clone(), wait.clone(), wait.clone()]), [(1, 0), (2, 0)]);
        assert_eq!(pairs(&[wait.clone(), wait.clone(), end.clone()]), [(0, 2), (1, 2)]);
        // The waiter lost its CPU after the wait, before its stack was recorded.
        let late = sample(402_100_000, LockNonce::wait(1_000_000, 3));
        assert_eq!(pairs(&[end.clone(), late]), [(1, 0)]);
        // Of another process, without a link, long before the wait.
        assert_eq!(pairs(&[end.clone(), Sample { process: 2, ..wait }]), []);
        assert_eq!(pairs(&[sample(2_000_000, LockNonce::holder(0)), sample(9, LockNonce::wait(9, 0))]), []);
        assert_eq!(pairs(&[end, sample(20_000_000_000, LockNonce::wait(1_000_000, 3))]), []);
    }

    #[test]
    fn a_link_that_is_used_again_means_the_nearest_end() {
        let first = sample(1_000_000, LockNonce::holder(3));
        let second = sample(9_000_000, LockNonce::holder(3));
        let wait = sample(9_050_000, LockNonce::wait(8_500_000, 3));
        assert_eq!(pairs(&[first, second, wait]), [(2, 1)]);
    }

    #[test]
    fn what_finds_no_counterpart_is_forgotten() {
        let mut joiner: Joiner<()> = Joiner::default();
        for link in 0..3 * REMEMBERED as u32 {
            let link = link % LockNonce::MOST_LINKS + 1;
            joiner.take(&sample(link.into(), LockNonce::holder(link)), || (), |(), ()| {});
        }
        assert_eq!(joiner.ends.len(), REMEMBERED);
    }
}
