//! Executable mappings of files that the program itself has made, of files that the loader has mapped too.
//!
//! The loader does not list them: V8, for example, maps its built-in functions again near its generated code. The
//! recorder sees such mappings in running processes; for short-lived ones they are reported when the process ends.

use alloc::vec::Vec;

use handler::recording::Recording;
use handler::snapshot;
use platform::activity;
use shm_format::record::{self, DurableRecord, Segments};

use crate::journal;
use crate::mapped_files::{self, MappedFile};
use crate::modules::{self, Listener, Object, Segment};

/// First id of these modules; those of the loader's objects are below.
const NUMBERS: u32 = 1 << 31;
/// Maximum number reported.
const MOST: u32 = 64;

/// A loaded object.
struct Known {
    start: u64,
    end: u64,
    bias: u64,
    path: Vec<u8>,
    build_id: Vec<u8>,
    segments: Vec<Segment>,
}

impl Known {
    /// The virtual address of a file offset.
    fn address_of(&self, offset: u64) -> Option<u64> {
        let segment = self
            .segments
            .iter()
            .find(|segment| offset.checked_sub(segment.file_offset).is_some_and(|at| at < segment.bytes))?;
        Some(segment.address.wrapping_sub(self.bias).wrapping_add(offset - segment.file_offset))
    }
}

struct Collected(Vec<Known>);

impl Listener for Collected {
    fn loaded(&mut self, object: &Object) {
        self.0.push(Known {
            start: object.start,
            end: object.end,
            bias: object.bias,
            path: object.path.clone(),
            build_id: object.build_id.clone(),
            segments: object.segments.clone(),
        });
    }

    fn unloaded(&mut self, _: &Object) {}
}

/// Reports all such mappings, if samples hit code outside all known objects.
pub(crate) fn tell(recording: &Recording) {
    // A seccomp filter may forbid the following system calls.
    if !snapshot::saw_unknown_code() || activity::is_filtered() {
        return;
    }
    let Some(maps) = mapped_files::read() else { return };
    let mut known = Collected(Vec::new());
    modules::tell_all(&mut known);
    let mut number = NUMBERS;
    for mapping in MappedFile::all(&maps).filter(|mapping| mapping.is_executable) {
        if known.0.iter().any(|object| object.start <= mapping.start && mapping.start < object.end) {
            continue;
        }
        let found = known
            .0
            .iter()
            .filter(|object| object.path == mapping.path)
            .find_map(|object| Some((object, object.address_of(mapping.offset)?)));
        if let Some((object, address)) = found
            && number < NUMBERS + MOST
        {
            let module = record::Module {
                ticks: journal::started(),
                id: number,
                start: mapping.start,
                end: mapping.end,
                bias: mapping.start.wrapping_sub(address),
                build_id: &object.build_id,
                path: &object.path,
                segments: Segments::new(&[]),
            };
            journal::append(recording, &DurableRecord::Module(module));
            number += 1;
        }
    }
}
