//! The reader: everything that happens outside the profiled process.
//!
//! A library so that tests and fuzz targets reach its parsers; `main.rs` is only the door.

pub mod profile_file;
