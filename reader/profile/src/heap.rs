//! Heap profiles: the weights of sampled allocations.
//!
//! Allocations are sampled by a Poisson process over their bytes (`poisson`).

use std::str::FromStr;

use shm_format::AllocationNonce;

use crate::poisson;
pub(crate) use crate::profile_file::ALLOCATION;
use crate::profile_file::{LiveBlocks, Sample};
use crate::word_map::WordMap;

/// Default mean number of bytes between samples.
pub const DEFAULT_MEAN: u64 = 512 << 10;
/// Key of the note about blocks that the table of live blocks had no room for.
pub const UNTRACKED: &str = "live blocks";

/// The values of allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeapValue {
    /// Number of allocated blocks.
    AllocObjects,
    /// Their bytes.
    #[default]
    AllocSpace,
    /// Number of blocks not freed.
    InuseObjects,
    /// Their bytes.
    InuseSpace,
}

impl HeapValue {
    /// All of them, in the order of pprof's heap profiles.
    pub const ALL: [HeapValue; 4] =
        [HeapValue::AllocObjects, HeapValue::AllocSpace, HeapValue::InuseObjects, HeapValue::InuseSpace];

    /// Its name in pprof and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            HeapValue::AllocObjects => "alloc_objects",
            HeapValue::AllocSpace => "alloc_space",
            HeapValue::InuseObjects => "inuse_objects",
            HeapValue::InuseSpace => "inuse_space",
        }
    }
}

impl FromStr for HeapValue {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        HeapValue::ALL.into_iter().find(|value| value.name() == name).ok_or_else(|| {
            let names = HeapValue::ALL.map(HeapValue::name).join(", ");
            format!("unknown value `{name}`; use one of {names}")
        })
    }
}

/// Parses `alloc`, `alloc:BYTES` or `alloc:all` as the mean number of bytes between samples; `None` if it is another source.
///
/// # Errors
/// If it is `alloc` with an invalid value.
pub fn mean_of(source: &str) -> Result<Option<u64>, String> {
    let Some(rest) = source.strip_prefix("alloc") else { return Ok(None) };
    let wrong = || format!("`{source}`: expected alloc:all or a number of bytes above 0, such as alloc:64K");
    match rest.strip_prefix(':') {
        None if rest.is_empty() => Ok(Some(DEFAULT_MEAN)),
        None => Ok(None),
        Some("all") => Ok(Some(1)),
        Some(bytes) => {
            let (digits, shift) = match bytes.as_bytes().last() {
                Some(b'K' | b'k') => (&bytes[..bytes.len() - 1], 10),
                Some(b'M' | b'm') => (&bytes[..bytes.len() - 1], 20),
                Some(b'G' | b'g') => (&bytes[..bytes.len() - 1], 30),
                _ => (bytes, 0),
            };
            let mean: u64 = digits.parse().map_err(|_| wrong())?;
            Some(mean)
                .filter(|mean| (1..1 << 20).contains(mean))
                .map(|mean| Some(mean << shift))
                .ok_or_else(wrong)
        }
    }
}

/// The name of the source with this mean, as stored in a session.
pub fn source_name(mean: u64) -> String {
    if mean == 1 { "alloc:all".into() } else { format!("alloc:{mean}") }
}

/// What has to be known about allocations before samples are read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heap {
    /// Bytes between samples on average.
    pub(crate) mean: u64,
    /// How many blocks are not freed, by process number in the file and allocation number.
    pub(crate) live: WordMap<(u32, u64), u64>,
}

impl Heap {
    /// Adds blocks that are not freed.
    pub(crate) fn learn(&mut self, live: &LiveBlocks) {
        for block in &live.blocks {
            *self.live.entry((live.process, *block)).or_default() += 1;
        }
    }

    /// The block of a sampled allocation: its process, and its number there. `None` for further allocations, whose blocks
    /// have the number of an earlier one.
    pub(crate) fn block(sample: &Sample) -> Option<(u32, u64)> {
        let nonce = AllocationNonce(sample.nonce);
        (!nonce.is_further()).then(|| (sample.process, nonce.id(sample.thread_seq).0))
    }

    /// The values of a sampled allocation, in the order of [`HeapValue::ALL`].
    pub(crate) fn values(&self, sample: &Sample) -> [u64; 4] {
        let nonce = AllocationNonce(sample.nonce);
        let size = nonce.size();
        let live = Self::block(sample).and_then(|block| self.live.get(&block).copied()).unwrap_or(0);
        if self.mean <= 1 {
            // All allocations are recorded, so each counts as one.
            let allocated = sample.events();
            return [allocated, allocated.saturating_mul(size), live, live.saturating_mul(size)];
        }
        let (objects, bytes) = poisson::stands_for(size, self.mean);
        let id = nonce.id(sample.thread_seq).0;
        let dice = poisson::fraction(id ^ u64::from(sample.process) << 28);
        let (objects, bytes) = ((objects + dice) as u64, (bytes + dice) as u64);
        match live {
            0 => [objects, bytes, 0, 0],
            _ => [objects, bytes, objects, bytes],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_have_their_mean() {
        for (source, mean) in [
            ("alloc", Ok(Some(DEFAULT_MEAN))),
            ("alloc:all", Ok(Some(1))),
            ("alloc:1000", Ok(Some(1000))),
            ("alloc:2M", Ok(Some(2 << 20))),
            ("allocations", Ok(None)),
            ("cpu", Ok(None)),
        ] {
            assert_eq!(mean_of(source), mean, "{source}");
        }
        for source in ["alloc:", "alloc:0", "alloc:x", "alloc:-1", "alloc:K"] {
            assert!(mean_of(source).unwrap_err().contains("alloc:64K"), "{source}");
        }
        assert_eq!(mean_of(&source_name(77)), Ok(Some(77)));
        assert_eq!(mean_of(&source_name(1)), Ok(Some(1)));
    }

    /// Allocations of one stack and size are one sample, and their blocks have one number.
    #[test]
    fn each_of_all_allocations_counts() {
        let mut heap = Heap { mean: 1, ..Heap::default() };
        heap.learn(&LiveBlocks { process: 1, blocks: vec![5, 5, 7] });
        let of = |serial, weight| {
            let nonce = AllocationNonce::new(100, serial).0;
            heap.values(&Sample { process: 1, nonce, weight, source: ALLOCATION, ..Sample::default() })
        };
        assert_eq!(of(5, 1), [1, 100, 2, 200]);
        assert_eq!(of(0, 30), [30, 3000, 0, 0]);
        assert_eq!(of(6, 1), [1, 100, 0, 0]);
        assert_eq!(of(7, 1), [1, 100, 1, 100]);
    }

    #[test]
    fn rounding_leaves_sums_right_on_average() {
        let heap = Heap { mean: 1 << 19, live: WordMap::from_iter([((1, 5), 1)]) };
        let of = |serial| {
            let nonce = AllocationNonce::new(1 << 19, serial).0;
            heap.values(&Sample { process: 1, nonce, source: ALLOCATION, ..Sample::default() })
        };
        let objects: u64 = (1..=100_000).map(|serial| of(serial)[0]).sum();
        let expected = 100_000.0 / (1.0 - (-1f64).exp());
        assert!((objects as f64 / expected - 1.0).abs() < 0.01, "{objects} instead of {expected}");
        assert_eq!(of(5)[..2], of(5)[2..], "a live block counts twice");
        assert_eq!(of(6)[2..], [0, 0]);
    }
}
