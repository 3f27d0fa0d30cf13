//! The reader: everything that happens outside the profiled process.
//!
//! A library so that tests and fuzz targets reach its parsers; `main.rs` is only the door.

pub mod mappings;
pub mod names;
pub mod output;
pub mod profile;
pub mod profile_file;
pub mod symbolize;
