//! Memory that programs map (mmap(2)): the weights of its samples. Every mapping is recorded, so each counts as one.

use std::collections::HashMap;

use shm_format::{MappingKind, MappingNonce};

use crate::heap::HeapValue;
use crate::profile_file::{LiveMappings, Sample, WALL_MARKS};

/// Source number of mappings in samples.
pub(crate) const MAPPING: u8 = 8;
/// Key of the note about mappings that are missing in the table of live mappings.
pub const UNTRACKED: &str = "live mappings";

/// Marker frames on top of a stack, in place of kernel addresses: the kind of mapping, in the order of [`NAMES`].
const MARKS: [u64; 4] = [FIRST_MARK, FIRST_MARK + 1, FIRST_MARK + 2, FIRST_MARK + 3];
const FIRST_MARK: u64 = WALL_MARKS + 0xff00;
const NAMES: [&str; 4] = ["[anonymous]", "[shared]", "[file]", "[reserved]"];

/// The name of a marker frame; `None` for other addresses.
pub fn mark_name(address: u64) -> Option<&'static str> {
    NAMES.get(usize::try_from(address.checked_sub(FIRST_MARK)?).ok()?).copied()
}

/// The marker frame of a sampled mapping.
pub(crate) fn mark(sample: &Sample) -> &'static [u64] {
    let index = match MappingNonce(sample.nonce).kind() {
        MappingKind::Anonymous => 0,
        MappingKind::Shared => 1,
        MappingKind::File => 2,
        MappingKind::Reserved => 3,
    };
    &MARKS[index..=index]
}

/// The name of a mapping value in outputs.
pub const fn name(value: HeapValue) -> &'static str {
    match value {
        HeapValue::AllocObjects => "mmap_objects",
        HeapValue::AllocSpace => "mmap_space",
        HeapValue::InuseObjects => "mmap_inuse_objects",
        HeapValue::InuseSpace => "mmap_inuse_space",
    }
}

/// The value of this name.
pub fn value(name: &str) -> Option<HeapValue> {
    HeapValue::ALL.into_iter().find(|value| self::name(*value) == name)
}

/// What must be known about mappings before samples are read.
#[derive(Clone, Debug, Default)]
pub(crate) struct MappedMemory {
    /// Bytes still mapped, by process number in the file and mapping number.
    pub(crate) live: HashMap<(u32, u64), u64>,
}

impl MappedMemory {
    pub(crate) fn learn(&mut self, live: &LiveMappings) {
        self.live.extend(live.mappings.iter().map(|(id, bytes)| ((live.process, *id), *bytes)));
    }

    /// A mapping: its process, and its number there.
    pub(crate) fn block(sample: &Sample) -> (u32, u64) {
        (sample.process, MappingNonce(sample.nonce).id(sample.thread_seq).0)
    }

    /// The values of a mapping, in the order of [`HeapValue::ALL`].
    pub(crate) fn values(&self, sample: &Sample) -> [u64; 4] {
        let size = MappingNonce(sample.nonce).size();
        let left = self.live.get(&Self::block(sample)).copied().unwrap_or(0).min(size);
        [1, size, u64::from(left > 0), left]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_mapping_counts() {
        let nonce = MappingNonce::new(10 << 12, MappingKind::File, 5);
        let sample =
            Sample { process: 1, thread_seq: 3, nonce: nonce.0, source: MAPPING, ..Sample::default() };
        let mut memory = MappedMemory::default();
        assert_eq!(memory.values(&sample), [1, 10 << 12, 0, 0]);
        memory.learn(&LiveMappings { process: 2, mappings: vec![(nonce.id(3).0, 4096)] });
        assert_eq!(memory.values(&sample), [1, 10 << 12, 0, 0]);
        memory.learn(&LiveMappings { process: 1, mappings: vec![(nonce.id(3).0, 4096)] });
        assert_eq!(memory.values(&sample), [1, 10 << 12, 1, 4096]);
        assert_eq!(mark(&sample).iter().map(|&mark| mark_name(mark)).collect::<Vec<_>>(), [Some("[file]")]);
        assert_eq!((mark_name(FIRST_MARK - 1), mark_name(FIRST_MARK + 4)), (None, None));
        assert_eq!(value("mmap_inuse_space"), Some(HeapValue::InuseSpace));
    }
}
