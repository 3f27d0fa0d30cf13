//! What a drain hands to its caller: records, the chunks they were in, and counts.

use crate::record::RecordKind;

/// How a drain treats chunks that are still being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Writers may be at work: takes what is complete, in order.
    Live,
    /// The process is gone: takes everything that was committed.
    Final,
    /// Writers may be at work: copies what is complete and was not overwritten meanwhile, and leaves all of it where
    /// it is, for the next look or for a reader that takes it.
    Look,
}

/// The chunk a record was in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkInfo {
    /// Its index.
    pub index: u32,
    /// Its generation.
    pub generation: u64,
    /// Thread that wrote it.
    pub tid: u32,
    /// That thread's number in the region.
    pub thread_seq: u32,
    /// Records the thread had lost in all before it took this chunk.
    pub lost: u64,
}

/// One record; the payload is a private copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRef<'a> {
    /// Trace-clock ticks at which it was reserved.
    pub ticks: u64,
    /// What it is.
    pub kind: RecordKind,
    /// Its number among its thread's records, from 0 without holes: a hole was overwritten, torn or void.
    pub sequence: u64,
    /// An earlier reader has taken it already. It comes once more because later records may refer to it.
    pub again: bool,
    /// Little-endian words.
    pub payload: &'a [u8],
}

/// What one drain did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainStats {
    /// Records delivered.
    pub records: u64,
    /// Their payload bytes.
    pub bytes: u64,
    /// Chunks given back to the writers.
    pub chunks: u64,
    /// Chunks that their writers had left, taken now.
    pub claimed: u64,
    /// Records that were reserved and never completed.
    pub torn: u64,
    /// Records that their writer gave up.
    pub void: u64,
    /// Records of a kind that this version does not know, or larger than the scratch buffer.
    pub unknown: u64,
    /// Chunks taken by a writer while they were being copied (overwrite mode): nothing of it was delivered.
    pub overtaken: u64,
    /// Things that no correct writer produces; the rest of that chunk was left out.
    pub violations: u64,
}
