//! The reader: everything that happens outside the profiled process.
//!
//! A library so that tests and fuzz targets reach its parsers; `main.rs` is only the door.

pub mod agent_file;
pub mod destination;
pub mod liveness;
pub mod mappings;
pub mod merge;
pub mod names;
pub mod notices;
pub mod output;
pub mod profile;
pub mod profile_file;
pub mod program;
pub mod report;
pub mod stats;
pub mod symbolize;
