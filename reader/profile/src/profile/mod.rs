//! A profile in memory: named stacks with their weights.
//!
//! Its size depends on the number of distinct stacks, not of samples. The weights of the buckets add up exactly to the weight of
//! all samples; every output is generated from the buckets alone, so it has that total.

mod addresses;
mod batch;
mod bucket;
mod code;
mod contents;
mod generated;
mod interpreted;
mod kernel;
mod load;
mod naming;
mod preempted;
mod process;
mod reshape;
mod resolve;
mod sample_reader;
mod stacks;
mod stored;
mod timeline;

#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
#[cfg(test)]
mod tests;

pub use addresses::Addresses;
pub(crate) use bucket::found_by_name;
pub use bucket::{Bucket, LockPair, Stack, StackFrame, Totals, truncation_mark};
pub use code::{Binary, Function, FunctionId, Location, SourceLine};
pub use contents::{Profile, Trail};
pub(crate) use load::load_timed;
pub use load::{Resolved, load, load_wanted, of_events, resolve, resolve_addresses};
pub use process::{Process, Thread};
pub(crate) use timeline::LossFinder;
pub use timeline::{Loss, TimedSample};
