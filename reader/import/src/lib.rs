//! Reads files of `perf record` and converts them to the events of a profile.
//!
//! Call chains are used as they are; copied stacks (`--call-graph dwarf`) are unwound here, with the tables and the walker of the agent.
//! The file is read once, from beginning to end. Memory is bounded whatever the file contains: sizes in it are checked against its
//! length. A truncated file is read as far as possible.
//!
//! The record layouts are those of `linux-perf-event-reader`. The header, the order of records and their compression
//! are parsed here and not by `linux-perf-data`: that crate allocates as much memory as a damaged file asks for, rejects
//! truncated files completely, and keeps a file without round marks in memory.
//!
//! ```no_run
//! use std::fs::File;
//! use std::io;
//!
//! use selfwind_import::{Import, Sink};
//! use selfwind_profile::profile_file::{Event, ProfileWriter};
//!
//! struct Profile(ProfileWriter<File>);
//!
//! impl Sink for Profile {
//!     fn event(&mut self, event: Event) -> io::Result<()> {
//!         self.0.push(&event)
//!     }
//! }
//!
//! let mut profile = Profile(ProfileWriter::new(File::create("selfwind.data")?)?);
//! let import = Import::open(File::open("perf.data")?)?;
//! let summary = import.run(Default::default(), &mut profile)?;
//! println!("{} samples", summary.samples);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod callchain;
mod compressed;
mod error;
mod fields;
mod header;
mod images;
mod import;
mod measures;
mod records;
mod registers;

pub use error::ImportError;
pub use import::{Import, Sink, Summary};
pub use records::Tail;
