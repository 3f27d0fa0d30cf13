//! Creates the tables of live blocks, allocation counts and live mappings, after the answers in the region's file.

use core::ptr::NonNull;

use handler::recording::Probe;
use shm_format::{AllocationCounts, LiveBlocks, LiveMappings};

use crate::config::Config;
use crate::kernel::{self, Errno, File};

/// Entries of the table of mappings.
const MAPPINGS: usize = LiveMappings::CAPACITY_MOST;

/// The tables of a recording.
pub(crate) struct LiveTables {
    pub(crate) blocks: Option<LiveBlocks>,
    pub(crate) counts: Option<AllocationCounts>,
    pub(crate) mappings: Option<LiveMappings>,
}

/// Total size in bytes.
pub(crate) fn len(config: &Config) -> usize {
    let mappings = if has_mappings(config) { LiveMappings::len_for(MAPPINGS) } else { 0 };
    blocks_len(config) + counts_len(config) + mappings
}

fn has_mappings(config: &Config) -> bool {
    config.sources.have(Probe::Mappings)
}

fn blocks_len(config: &Config) -> usize {
    blocks_capacity(config).map_or(0, LiveBlocks::len_for)
}

/// Bytes of the table of allocation counts.
fn counts_len(config: &Config) -> usize {
    if config.allocations == 1 { AllocationCounts::LEN } else { 0 }
}

/// Entries of the table of live blocks; half of them suffice for 8 GiB at the default rate. `None` if allocations are
/// not sampled.
fn blocks_capacity(config: &Config) -> Option<usize> {
    const USUAL: u64 = 1 << 15;
    const MOST: u64 = LiveBlocks::CAPACITY_MOST as u64;
    const HEAP: u64 = USUAL * (512 << 10);
    match config.allocations {
        0 => None,
        mean => Some((HEAP / mean).clamp(USUAL, MOST).next_power_of_two() as usize),
    }
}

impl LiveTables {
    /// Creates the tables in a new file, from `offset` on.
    pub(crate) fn make(config: &Config, file: &File, offset: usize) -> Result<LiveTables, Errno> {
        // Allocate storage first: a store to a page without storage would raise SIGBUS.
        match len(config) {
            0 => {}
            bytes => file.allocate(offset, bytes)?,
        }
        let blocks = blocks_capacity(config).map(|capacity| {
            let base = map(file, offset, LiveBlocks::len_for(capacity))?;
            // SAFETY: a new file's bytes are zero; they are backed, mapped, and never unmapped.
            Ok(unsafe { LiveBlocks::format(base, capacity) })
        });
        let offset = offset + blocks_len(config);
        let counts = (counts_len(config) > 0).then(|| {
            let base = map(file, offset, AllocationCounts::LEN)?;
            // SAFETY: as above.
            Ok(unsafe { AllocationCounts::format(base) })
        });
        let offset = offset + counts_len(config);
        let mappings = has_mappings(config).then(|| {
            let base = map(file, offset, LiveMappings::len_for(MAPPINGS))?;
            // SAFETY: as above.
            Ok(unsafe { LiveMappings::format(base, MAPPINGS) })
        });
        Ok(LiveTables {
            blocks: blocks.transpose()?,
            counts: counts.transpose()?,
            mappings: mappings.transpose()?,
        })
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
