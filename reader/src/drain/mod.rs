//! From regions to events: every process of a recording, its samples in the order of their time.

mod chains;
pub(crate) mod collector;
mod comparison;
mod copies;
mod demand;
pub(crate) mod follow;
mod held;
mod in_use;
mod intake;
pub(crate) mod listener;
mod merge;
mod process;
mod regions;
mod sequences;
mod stitch;
mod unwinder;
pub(crate) mod watch;

#[cfg(test)]
mod hostile_tests;
