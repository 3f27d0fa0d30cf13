//! Drains the regions of all processes in a recording and turns them into events, with samples in timestamp order.
//!
//! What must never happen here: a record is lost without being counted, or a value from shared memory is trusted.

mod chains;
pub(crate) mod collector;
mod comparison;
mod copies;
mod counted_allocations;
pub(crate) mod follow;
mod in_use;
pub(crate) mod listener;
mod merge;
pub(crate) mod namespaces;
mod pool_size;
mod process;
mod record_decoder;
mod recurring_stacks;
mod regions;
mod sequences;
mod stitch;
mod unacknowledged;
mod unwinder;
pub(crate) mod watch;

#[cfg(test)]
mod hostile_tests;
