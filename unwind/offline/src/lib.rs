//! Unwinds threads after the fact, from copies of their registers and stacks, with the same tables and walker as the
//! agent.
//!
//! [`Processes`] keeps a history of what processes map, unmap, fork and exec, and when they exit: a sample is walked
//! with the mappings of *its* time. Files are shared between processes: an ELF file is read, and its table compiled,
//! when the first frame of any process lies in it ([`Binaries`]). Each frame goes to a callback together with its
//! mapping. Symbolization, inlined calls and lines are the business of `selfwind-profile`.
//!
//! Stacks, registers and files are untrusted, and the processes need not exist any more. A file is used only if it has
//! the build-id that was recorded for it.
//!
//! ```
//! use offline::{Binaries, GeneratedCode, NewMapping, Processes, Sample, Search};
//! use unwind::Registers;
//!
//! let binaries = Binaries::new(Search::for_user());
//! let mut processes = Processes::new(&binaries);
//! // From PERF_RECORD_MMAP2: address, length, offset in the file, name.
//! let text = NewMapping {
//!     start: 0x7f00_0000_0000,
//!     len: 0x20_0000,
//!     offset: 0x2_6000,
//!     path: b"/usr/lib/x86_64-linux-gnu/libc.so.6",
//!     executable: true,
//!     ..NewMapping::default()
//! };
//! processes.map(4711, 1_000, &text);
//! processes.fork(4711, 4712, 2_000);
//! processes.unmap(4711, 3_000, text.start, text.len);
//!
//! let registers = Registers { pc: text.start + 0x1234, ..Registers::default() };
//! let (stack_start, stack, generated) = (0x7ffd_0000_0000, &[0; 64], GeneratedCode::default());
//! let sample = Sample { pid: 4712, ns: 4_000, registers, stack_start, stack, generated };
//! let mut names = Vec::new();
//! processes.frames(&sample, |placed| names.push(placed.mapping.and_then(|mapping| mapping.binary)));
//! assert_eq!(names[0].unwrap().path().file_name().unwrap(), "libc.so.6");
//! // The parent has unmapped it.
//! assert!(processes.find(4711, 4_000, registers.pc).is_none());
//! ```

mod binaries;
mod binary;
mod history;
mod layout;
mod processes;
mod sample;
mod search;
mod source_file;
mod uncovered_code;

pub use binaries::Binaries;
pub use binary::Binary;
pub use layout::Mapping;
pub use processes::{NewMapping, PlacedFrame, Processes};
pub use sample::{GeneratedCode, Sample};
pub use search::Search;
pub use source_file::{LoadSegment, SourceFile};
