//! Reads the tables of live blocks and live mappings behind a region and reports their contents as events: the memory in use.

use std::sync::atomic::AtomicU64;

use selfwind_profile::heap;
use selfwind_profile::mapped_memory;
use selfwind_profile::profile_file::{Event, LiveBlocks, LiveMappings, Setting};
use shm_format::{BlocksView, MappingsView};

use crate::drain::counted_allocations::CountedAllocations;

/// Adds the sampled blocks that are not freed and the remaining mappings to `events`, from a process's `tables`.
pub(super) fn report(
    process: u32,
    tables: &[AtomicU64],
    counted: &CountedAllocations,
    events: &mut Vec<Event>,
) {
    let complain = |key: &str, untracked, value: String| {
        (untracked > 0).then(|| Event::Setting(Setting { process, key: key.into(), value }))
    };
    if let Some(view) = BlocksView::find(tables) {
        events.extend(LiveBlocks::in_parts(process, counted.in_use(view)).into_iter().map(Event::LiveBlocks));
        let text =
            format!("the table of live blocks is full: {} sampled blocks count as freed", view.untracked);
        events.extend(complain(heap::UNTRACKED, view.untracked, text));
    }
    if let Some(view) = MappingsView::find(tables) {
        let parts = view.parts().map(|(id, bytes)| (id.0, bytes));
        events.extend(LiveMappings::in_parts(process, parts).into_iter().map(Event::LiveMappings));
        let text = format!(
            "the table of live mappings was full or locked: memory in use leaves out {} mapping changes",
            view.untracked
        );
        events.extend(complain(mapped_memory::UNTRACKED, view.untracked, text));
    }
}
