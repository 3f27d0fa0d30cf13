//! The results of a drain: records, the chunks they came from, and counts.

use crate::record::RecordKind;

/// How a drain treats chunks that are still being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Writers may be active: takes complete records, in order.
    Live,
    /// The process is gone: takes everything committed.
    Final,
    /// Writers may be active: copies what is complete and not overwritten meanwhile, and leaves it in the region for
    /// the next look or for a reader that takes it.
    Look,
}

/// The chunk that a record came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkInfo {
    /// Its index.
    pub index: u32,
    /// Its generation.
    pub generation: u64,
    /// Id of the thread that wrote it.
    pub tid: u32,
    /// Sequence number of that thread in the region.
    pub thread_seq: u32,
    /// Total of records that the thread had lost when it took the chunk.
    pub lost: u64,
}

/// One record. The payload is a private copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRef<'a> {
    /// Trace-clock ticks at the reservation.
    pub ticks: u64,
    /// Its kind.
    pub kind: RecordKind,
    /// Sequence number in its thread, from 0 without gaps: a missing number was overwritten, torn or void.
    pub sequence: u64,
    /// An earlier reader has taken it already. Delivered again because later records may refer to it.
    pub again: bool,
    /// Little-endian words.
    pub payload: &'a [u8],
}

/// Counts of one drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainStats {
    /// Records delivered.
    pub records: u64,
    /// Payload bytes delivered.
    pub bytes: u64,
    /// Chunks released to the writers.
    pub chunks: u64,
    /// Completed chunks claimed by this drain.
    pub claimed: u64,
    /// Records reserved but never completed.
    pub torn: u64,
    /// Records that their writer cancelled.
    pub void: u64,
    /// Records of an unknown kind, or larger than the scratch buffer.
    pub unknown: u64,
    /// Chunks that a writer took while they were being copied (overwrite mode); nothing of them was delivered.
    pub overtaken: u64,
    /// Protocol violations, which no correct writer causes. The rest of the chunk was skipped.
    pub violations: u64,
}
