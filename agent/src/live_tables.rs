//! Creates the tables of live blocks, allocation counts and live mappings, after the answers in the region's file.

use core::ptr::NonNull;

use handler::recording::Probe;
use platform::activity::{self, Active};
use shm_format::layout::PAGE;
use shm_format::{AllocationCounts, LiveBlocks, LiveMappings};

use crate::config::Config;
use crate::kernel::{self, Errno, File};

/// Entries of the table of counts that get memory in time, if the process cannot give it to more when it needs them. It has at
/// least as many.
const FIXED_COUNTS: usize = 1 << 17;

/// The tables of a recording.
pub(crate) struct LiveTables {
    pub(crate) blocks: Option<LiveBlocks>,
    pub(crate) counts: Option<AllocationCounts>,
    pub(crate) mappings: Option<LiveMappings>,
}

/// How many entries the tables of a recording have.
pub(crate) struct TableSizes {
    /// Of both parts.
    blocks: Option<(usize, usize)>,
    counts: Option<usize>,
    mappings: Option<usize>,
}

impl TableSizes {
    /// Those for a process that may spare `space` bytes of addresses and of its file for the counts.
    pub(crate) fn of(config: &Config, space: usize) -> TableSizes {
        let counts = (space / AllocationCounts::ENTRY).clamp(FIXED_COUNTS, AllocationCounts::CAPACITY_MOST);
        TableSizes {
            blocks: blocks_parts(config),
            counts: config.records_all_allocations().then_some(counts - counts % AllocationCounts::STEP),
            mappings: config.sources.have(Probe::Mappings).then_some(LiveMappings::CAPACITY_MOST),
        }
    }

    /// Total size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.blocks_len() + self.counts_len() + self.mappings.map_or(0, LiveMappings::len_for)
    }

    fn blocks_len(&self) -> usize {
        self.blocks.map_or(0, |(first, second)| LiveBlocks::len_for(first, second))
    }

    fn counts_len(&self) -> usize {
        self.counts.map_or(0, AllocationCounts::len_for)
    }
}

/// Entries of both parts of the table of live blocks; half of the first suffice for 8 GiB at the default rate. `None` if
/// allocations are not sampled.
fn blocks_parts(config: &Config) -> Option<(usize, usize)> {
    const USUAL: u64 = 1 << 15;
    const MOST: u64 = LiveBlocks::PART_MOST as u64;
    const HEAP: u64 = USUAL * (512 << 10);
    match config.allocations {
        0 => None,
        1 => Some((LiveBlocks::FIRST, LiveBlocks::PART_MOST)),
        mean => Some(((HEAP / mean).clamp(USUAL, MOST).next_power_of_two() as usize, 0)),
    }
}

impl LiveTables {
    /// Creates the tables in a new file, from `offset` on.
    pub(crate) fn make(sizes: &TableSizes, file: &File, offset: usize) -> Result<LiveTables, Errno> {
        // Allocate storage first: a store to a page without storage would raise SIGBUS.
        let blocks = sizes.blocks.map(|(first, second)| {
            file.allocate(offset, LiveBlocks::len_for(first, 0))?;
            let base = map(file, offset, LiveBlocks::len_for(first, second))?;
            // SAFETY: a new file's bytes are zero; they are mapped, never unmapped, and those of the first part are backed.
            let blocks = unsafe { LiveBlocks::format(base, first, second) };
            // Later there will be no descriptor, and perhaps no permission.
            if second > 0 && (activity::is_filtered() || !can_back(base)) {
                let (start, bytes) = blocks.second_part();
                blocks.set_second(file.allocate(offset + start, bytes).is_ok());
            }
            Ok(blocks)
        });
        let offset = offset + sizes.blocks_len();
        let counts = sizes.counts.map(|entries| {
            file.allocate(offset, AllocationCounts::len_for(AllocationCounts::FIRST))?;
            let base = map(file, offset, AllocationCounts::len_for(entries))?;
            // SAFETY: as above.
            let counts = unsafe { AllocationCounts::format(base, entries) };
            // As above.
            if (activity::is_filtered() || !can_back(base))
                && file.allocate(offset, AllocationCounts::len_for(FIXED_COUNTS)).is_ok()
            {
                counts.set_backed(FIXED_COUNTS);
            }
            Ok(counts)
        });
        let offset = offset + sizes.counts_len();
        let mappings = sizes.mappings.map(|entries| {
            file.allocate(offset, LiveMappings::len_for(entries))?;
            let base = map(file, offset, LiveMappings::len_for(entries))?;
            // SAFETY: as above.
            Ok(unsafe { LiveMappings::format(base, entries) })
        });
        Ok(LiveTables {
            blocks: blocks.transpose()?,
            counts: counts.transpose()?,
            mappings: mappings.transpose()?,
        })
    }
}

/// Whether the kernel can back a table through its mapping, such as its first page.
fn can_back(base: NonNull<u8>) -> bool {
    // SAFETY: a page of the table's mapping.
    unsafe { kernel::populate(base.as_ptr(), PAGE) }.is_ok()
}

/// Backs the second part of a table of live blocks, if that has not been tried yet. Any thread may do so, even in a signal
/// handler of the program, and several at a time.
#[cold]
pub(crate) fn grow_blocks(blocks: &LiveBlocks) {
    if !blocks.can_grow() {
        return;
    }
    // Without permission the second part is given up, and the first filled.
    let active = Active::enter();
    let (start, bytes) = blocks.second_part();
    let part = blocks.memory().0.as_ptr().wrapping_add(start);
    // SAFETY: inside the table's mapping.
    let is_backed = active.is_some() && unsafe { kernel::populate(part, bytes) }.is_ok();
    blocks.set_second(is_backed);
}

/// Backs as much of a table of counts as a process needs that cannot do so later.
pub(crate) fn grow_counts(counts: &AllocationCounts) {
    let Some(_active) = Active::enter() else { return };
    while let Some((start, bytes, backed)) =
        counts.without_memory().filter(|_| counts.backed() < FIXED_COUNTS)
    {
        // SAFETY: a part of the table's mapping.
        if unsafe { kernel::populate(start.as_ptr(), bytes) }.is_err() {
            return;
        }
        counts.set_backed(backed);
    }
}

/// Maps a part of the file.
fn map(file: &File, offset: usize, bytes: usize) -> Result<NonNull<u8>, Errno> {
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let base = file.map_from(offset, bytes, both, libc::MAP_SHARED)?;
    // SAFETY: a new mapping that nobody else uses yet. Not inherited, since a child has its own; not in core dumps.
    let _ = unsafe {
        kernel::advise(base.as_ptr(), bytes, libc::MADV_DONTFORK)
            .and_then(|()| kernel::advise(base.as_ptr(), bytes, libc::MADV_DONTDUMP))
    };
    Ok(base)
}
