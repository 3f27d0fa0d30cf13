//! The contract between two programs that do not trust each other: a traced process and the reader.
//!
//! The traced process creates a [`Region`] of shared memory. Its threads write records into it from signal handlers,
//! each through its own [`ThreadCursor`]. A [`RegionReader`] in another process extracts them, even after the writer's
//! death. `FORMAT.md` specifies every byte and all memory ordering.
//!
//! Neither side trusts a value in shared memory: the writer takes positions from private memory, the reader copies and
//! checks before it uses anything. What must never happen on the writer's side: allocation, waiting, a lock, a panic.
#![no_std]

#[cfg(test)]
extern crate std;

mod alike_allocations;
#[cfg(not(loom))]
mod allocation_counts;
mod atomic;
mod chunk;
mod chunk_reading;
mod chunk_space;
mod clock;
mod control;
mod delivery;
mod doorbell;
mod drain;
mod durable;
mod exec_times;
pub mod injection;
mod kernel_answer;
pub mod layout;
#[cfg(not(loom))]
mod live_blocks;
#[cfg(not(loom))]
mod live_mappings;
#[cfg(not(loom))]
mod live_table;
mod lock_nonce;
mod pool;
pub mod record;
mod record_fields;
mod recurring_stack;
mod region;
mod repeat;
mod request;
mod stack;
mod stack_chain;
mod stack_copy;
mod stack_decoder;
mod time_namespace;
mod tracepoint;
pub mod word;
mod writer;

pub use alike_allocations::AlikeAllocations;
#[cfg(not(loom))]
pub use allocation_counts::{AllocationCounts, CountsView};
pub use chunk::Chunk;
pub use clock::{Anchor, ClockKind, Scale};
pub use control::{Control, CountersSnapshot, Loss, Skip, TallySnapshot, bucket_range};
pub use delivery::{ChunkInfo, DrainStats, Pass, RecordRef};
pub use doorbell::Doorbell;
pub use drain::{DurableStats, RegionReader};
pub use kernel_answer::{KernelAnswer, KernelAnswerHead, answer_nonce, event_nonce, is_event_nonce};
pub use layout::{
    ANSWER_BYTES, ANSWERS_LEN, DoorbellPage, Geometry, Identity, LayoutError, Mode, REQUEST_SLOTS,
};
#[cfg(not(loom))]
pub use live_blocks::{AllocationNonce, BlockId, BlocksView, Expected, Inserted, LiveBlocks};
#[cfg(not(loom))]
pub use live_mappings::{LiveMappings, MappedPart, MappingKind, MappingNonce, MappingsView, kind_of};
pub use lock_nonce::LockNonce;
pub use pool::{Pool, Step};
pub use record::{DurableKind, DurableRecord, RecordKind};
pub use region::Region;
pub use repeat::Repeat;
pub use request::{AnswerHead, Nonce, Progress, Requests, Trigger};
pub use stack::{MAX_DEPTH, StackHead};
pub use stack_chain::StackChain;
pub use stack_copy::{
    COPY_MOST, Copied, CopiedWord, CopyBuffer, CopyEnd, CopyHead, CopyPiece, CopyReader, CopyWriter,
};
pub use stack_decoder::{EncodedStack, StackDecoder, Undecodable};
pub use time_namespace::TimeNamespace;
pub use tracepoint::{FIELDS_MOST, FieldType, FieldTypes, FieldValue, Fields, TracepointRecord};
pub use writer::{Committed, Reservation, ThreadCursor};

#[cfg(all(test, loom))]
mod interleavings;
