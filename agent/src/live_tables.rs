//! The tables of what is in use, behind the answers in the region's file: sampled blocks, and mappings.

use core::ptr::NonNull;

use handler::recording::Probe;
use shm_format::{LiveBlocks, LiveMappings};

use crate::config::Config;
use crate::kernel::{self, Errno, File};

/// Parts of mappings that are told of: the kernel allows a process eight times as many (vm.max_map_count).
const MAPPINGS: usize = 1 << 13;

/// Those that a recording has.
pub(crate) struct LiveTables {
    pub(crate) blocks: Option<LiveBlocks>,
    pub(crate) mappings: Option<LiveMappings>,
}

/// Bytes of all of them.
pub(crate) fn len(config: &Config) -> usize {
    blocks_len(config) + if has_mappings(config) { LiveMappings::len_for(MAPPINGS) } else { 0 }
}

fn has_mappings(config: &Config) -> bool {
    config.sources.have(Probe::Mappings)
}

fn blocks_len(config: &Config) -> usize {
    blocks_capacity(config).map_or(0, LiveBlocks::len_for)
}

/// Places in the table of live blocks: half of them are enough for 8 GiB at the usual rate; none if allocations are not
/// sampled.
fn blocks_capacity(config: &Config) -> Option<usize> {
    const USUAL: u64 = 1 << 15;
    const MOST: u64 = 1 << 20;
    const HEAP: u64 = USUAL * (512 << 10);
    match config.allocations {
        0 => None,
        mean => Some((HEAP / mean).clamp(USUAL, MOST).next_power_of_two() as usize),
    }
}

impl LiveTables {
    /// Makes them from `offset` of a new file on.
    pub(crate) fn make(config: &Config, file: &File, offset: usize) -> Result<LiveTables, Errno> {
        // A store to what has no memory would be answered by a signal.
        match len(config) {
            0 => {}
            bytes => file.allocate(offset, bytes)?,
        }
        let blocks = blocks_capacity(config).map(|capacity| {
            let base = map(file, offset, LiveBlocks::len_for(capacity))?;
            // SAFETY: a new file's bytes are zero; they are backed, mapped, and never unmapped.
            Ok(unsafe { LiveBlocks::format(base, capacity) })
        });
        let mappings = has_mappings(config).then(|| {
            let base = map(file, offset + blocks_len(config), LiveMappings::len_for(MAPPINGS))?;
            // SAFETY: as above.
            Ok(unsafe { LiveMappings::format(base, MAPPINGS) })
        });
        Ok(LiveTables { blocks: blocks.transpose()?, mappings: mappings.transpose()? })
    }
}

/// Maps a part of the file.
fn map(file: &File, offset: usize, bytes: usize) -> Result<NonNull<u8>, Errno> {
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let base = file.map_from(offset, bytes, both, libc::MAP_SHARED)?;
    // SAFETY: a new mapping that nobody else knows. Not inherited: what a child uses is its own; nor dumped.
    let _ = unsafe {
        kernel::advise(base.as_ptr(), bytes, libc::MADV_DONTFORK)
            .and_then(|()| kernel::advise(base.as_ptr(), bytes, libc::MADV_DONTDUMP))
    };
    Ok(base)
}
