//! The reader: everything that happens outside the profiled process.
//!
//! A library so that tests and fuzz targets reach its parsers; `main.rs` is only the door.

pub mod cli;
pub mod diff;
pub mod doctor;
pub mod drain;
pub mod dump;
mod flags;
pub mod list;
pub mod live;
pub mod record;
pub mod report;
pub mod resolve;
pub mod sampling;
pub mod stats;
pub mod tables;
pub mod tail;
pub mod target;
pub mod terminal;
pub mod top;
