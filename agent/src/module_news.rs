//! Reports loads and unloads of objects to the reader.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use handler::recording::Recording;
use handler::snapshot;
use platform::clock;
use shm_format::record::{self, DurableRecord, Segments};

use crate::agent;
use crate::allocations;
use crate::journal::{self, append};
use crate::modules::{self, Listener, Object, Stage};
use crate::python;

/// When the first load has begun since the last rescan; 0 if none has.
static LOADING_SINCE: AtomicU64 = AtomicU64::new(0);

/// Notes that objects are about to be loaded. Their initialisers run before they can be reported.
pub(crate) fn note_load() {
    let _ = LOADING_SINCE.compare_exchange(0, clock::now(), Ordering::Relaxed, Ordering::Relaxed);
}

/// Rescans the loaded objects if they may have changed.
pub(crate) fn refresh(recording: &Recording) {
    if snapshot::take_stale()
        && let Some(agent) = agent::get()
    {
        let since = LOADING_SINCE.swap(0, Ordering::Relaxed);
        let mut news = ModuleNews { recording, since, has_loads: false };
        modules::rescan(Stage::Later, &agent.names, &mut news);
        recording.announce_change();
        if news.has_loads {
            allocations::follow_loads();
        }
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
pub(crate) struct ModuleNews<'a> {
    recording: &'a Recording,
    /// When new objects may have been mapped first; 0 for now.
    since: u64,
    /// An object was loaded.
    has_loads: bool,
}

impl<'a> ModuleNews<'a> {
    /// For what is loaded or unloaded now.
    pub(crate) fn new(recording: &'a Recording) -> Self {
        Self { recording, since: 0, has_loads: false }
    }
}

impl Listener for ModuleNews<'_> {
    fn loaded(&mut self, object: &Object) {
        self.has_loads = true;
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
        let ticks = if self.since == 0 { clock::now() } else { self.since };
        append(
            self.recording,
            &DurableRecord::Module(record::Module {
                ticks,
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
            tell_interpreter(self.recording, found);
        }
    }

    fn unloaded(&mut self, object: &Object) {
        let gone = record::ModuleGone { ticks: clock::now(), id: object.id };
        append(self.recording, &DurableRecord::ModuleGone(gone));
    }
}
