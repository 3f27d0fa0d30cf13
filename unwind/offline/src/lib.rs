//! Unwinds threads after the fact: from a copy of their registers and stacks, with the tables and the walker that the
//! agent uses.
//!
//! [`Processes`] is told what processes map, unmap, fork, execute, and when they end, as a history: a sample is walked
//! with what was mapped at *its* time. Whatever processes have in common is there once: an ELF file is read, and its
//! table compiled, when the first frame of any process lies in it ([`Binaries`]). A frame is given to a callback with
//! the mapping that it lies in; names are for others (`selfwind-profile` has them, with inlined calls and lines).
//!
//! Nothing here trusts a stack, a register or a file, and nothing depends on the processes being there still. What a
//! file says counts only if it has the build-id that was told for it.
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
//! // The parent has it mapped no more.
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

pub use binaries::Binaries;
pub use binary::Binary;
pub use layout::Mapping;
pub use processes::{NewMapping, PlacedFrame, Processes};
pub use sample::{GeneratedCode, Sample};
pub use search::Search;
pub use source_file::{LoadSegment, SourceFile};
