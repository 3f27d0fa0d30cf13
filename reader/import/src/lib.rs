//! Reads the files of `perf record` and tells what they hold as the events of a profile.
//!
//! Callchains are taken as they are; copied stacks (`--call-graph dwarf`) are unwound here, by the tables and the walker
//! of the agent. The file is read once from its beginning to its end. What is held of it is bounded whatever it says:
//! numbers of a file are believed only after they were compared with its length. A file that was cut short gives what
//! it has.
//!
//! The record layouts are those of `linux-perf-event-reader`. The header, the order of records and their compression
//! are read here, and not by `linux-perf-data`: that crate reserves as much memory as a damaged file asks for, refuses
//! whole files that lost their end, and holds a file without round marks in memory.
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
