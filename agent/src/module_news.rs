//! Reports loads and unloads of objects to the reader.

use alloc::vec::Vec;

use handler::clock;
use handler::recording::Recording;
use handler::snapshot;
use shm_format::record::{self, DurableRecord, Segments};

use crate::agent;
use crate::journal::{self, append};
use crate::modules::{self, Listener, Object, Stage};
use crate::python;

/// Rescans the loaded objects if they may have changed.
pub(crate) fn refresh(recording: &Recording) {
    if snapshot::take_stale()
        && let Some(agent) = agent::get()
    {
        modules::rescan(Stage::Later, &agent.names, &mut ModuleNews(recording));
        recording.announce_change();
    }
}

/// Reports an interpreter, and opens the log for the function descriptions that handlers will append.
fn tell_interpreter(recording: &Recording, found: &python::Found) {
    /// Space for some 2500 functions.
    const NAMES: u64 = 1 << 20;
    let (major, minor, remark): (_, _, &[u8]) = match found {
        python::Found::Known(python) => {
            journal::open_log(recording, NAMES);
            let (minor, runtime, code_type) = (python.layout.minor, python.runtime, python.code_type);
            let place = alloc::format!("{minor} {runtime:x} {code_type:x}");
            journal::tell_setting(recording, b"python at", place.as_bytes());
            (3, python.layout.minor, b"")
        }
        python::Found::Refused(3, minor @ 13..=14) => {
            (3, *minor, b" is free-threaded or has unknown structures: native frames only")
        }
        python::Found::Refused(major, minor) => (*major, *minor, b" is not known: native frames only"),
    };
    let mut version = Vec::new();
    push_number(&mut version, major);
    version.push(b'.');
    push_number(&mut version, minor);
    version.extend_from_slice(remark);
    journal::tell_setting(recording, b"python", &version);
}

fn push_number(text: &mut Vec<u8>, number: u8) {
    for unit in [100, 10, 1] {
        if number >= unit || unit == 1 {
            text.push(b'0' + number / unit % 10);
        }
    }
}

/// A listener that appends records of loads and unloads.
pub(crate) struct ModuleNews<'a>(pub(crate) &'a Recording);

impl Listener for ModuleNews<'_> {
    fn loaded(&mut self, object: &Object) {
        let segments: Vec<record::Segment> = object
            .segments
            .iter()
            .map(|segment| record::Segment {
                address: segment.address,
                len: segment.bytes,
                page_offset: segment.file_offset,
                flags: segment.flags,
                reserved: 0,
            })
            .collect();
        append(
            self.0,
            &DurableRecord::Module(record::Module {
                ticks: clock::now(),
                id: object.id,
                start: object.start,
                end: object.end,
                bias: object.bias,
                build_id: &object.build_id,
                path: &object.path,
                segments: Segments::new(&segments),
            }),
        );
        if let Some(found) = &object.python {
            tell_interpreter(self.0, found);
        }
    }

    fn unloaded(&mut self, object: &Object) {
        let gone = record::ModuleGone { ticks: clock::now(), id: object.id };
        append(self.0, &DurableRecord::ModuleGone(gone));
    }
}
