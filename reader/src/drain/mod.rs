//! From regions to events: every process of a recording, its samples in the order of their time.

pub(crate) mod chains;
pub(crate) mod collector;
pub(crate) mod demand;
pub(crate) mod follow;
pub(crate) mod held;
pub(crate) mod listener;
pub(crate) mod merge;
pub(crate) mod process;
pub(crate) mod regions;
pub(crate) mod sequences;
pub(crate) mod stitch;
pub(crate) mod watch;

#[cfg(test)]
mod hostile_tests;
