//! Loads and unloads of objects, told to the reader.

use alloc::vec::Vec;

use handler::clock;
use handler::recording::Recording;
use handler::snapshot;
use shm_format::record::{self, DurableRecord, Segments};

use crate::agent;
use crate::journal::append;
use crate::modules::{self, Listener, Object, Stage};

/// Looks at the loaded objects again if something may have changed.
pub(crate) fn refresh(recording: &Recording) {
    if snapshot::take_stale()
        && let Some(agent) = agent::get()
    {
        modules::rescan(Stage::Later, &agent.names, &mut ModuleNews(recording));
    }
}

/// Tells loads and unloads.
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
    }

    fn unloaded(&mut self, object: &Object) {
        let gone = record::ModuleGone { ticks: clock::now(), id: object.id };
        append(self.0, &DurableRecord::ModuleGone(gone));
    }
}
