//! The reader: everything that happens outside the profiled process.
//!
//! A library so that tests and fuzz targets reach its parsers; `main.rs` is only the door.

pub mod agent_file;
pub mod attach;
pub mod cli;
pub mod clock;
pub mod collector;
pub mod destination;
pub mod follow;
pub mod list;
pub mod liveness;
pub mod mappings;
pub mod merge;
pub mod names;
pub mod notices;
pub mod output;
pub mod process;
pub mod profile;
pub mod profile_file;
pub mod program;
pub mod record;
pub mod report;
pub mod session;
pub mod spawn;
pub mod stats;
pub mod symbolize;
pub mod tables;
pub mod tail;
pub mod translate;
pub mod watch;
