//! From regions to events: every process of a recording, its samples in the order of their time.

pub mod chains;
pub mod collector;
pub mod demand;
pub mod follow;
pub mod held;
pub mod merge;
pub mod process;
pub mod regions;
pub mod sequences;
pub mod stitch;
pub mod watch;
