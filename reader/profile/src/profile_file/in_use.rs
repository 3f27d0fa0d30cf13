//! The events for memory in use, and their encoding.

use std::collections::BTreeMap;

use super::fields::{Fields, Malformed, Put};

pub(super) const LIVE_BLOCKS: u8 = 20;
pub(super) const LIVE_MAPPINGS: u8 = 26;

/// Sampled blocks of memory not freed. Precedes the process's end; a process may have several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveBlocks {
    /// The process's number.
    pub process: u32,
    /// The allocations: number of the thread in its process:32, number of the allocation in the thread:32. Ascending; each
    /// as often as it has blocks.
    pub blocks: Vec<u64>,
}

impl LiveBlocks {
    /// Most blocks in one event.
    const MOST: usize = 4096;

    /// Blocks in any order, in events that are smaller than a block of the file.
    pub fn in_parts(process: u32, mut blocks: Vec<u64>) -> Vec<Self> {
        blocks.sort_unstable();
        blocks.chunks(Self::MOST).map(|part| Self { process, blocks: part.to_vec() }).collect()
    }
}

/// Mappings of which something is left. Precedes the process's end; there may be several of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveMappings {
    /// The process's number.
    pub process: u32,
    /// The mappings, numbered as blocks are, ascending, and the bytes that are left of each.
    pub mappings: Vec<(u64, u64)>,
}

impl LiveMappings {
    /// Most mappings in one event.
    const MOST: usize = 4096;

    /// Parts of mappings in any order, in events that are smaller than a block of the file.
    pub fn in_parts(process: u32, parts: impl Iterator<Item = (u64, u64)>) -> Vec<Self> {
        let mut sums = BTreeMap::<u64, u64>::new();
        for (id, bytes) in parts {
            let sum = sums.entry(id).or_default();
            *sum = sum.saturating_add(bytes);
        }
        let mappings: Vec<(u64, u64)> = sums.into_iter().collect();
        mappings.chunks(Self::MOST).map(|part| Self { process, mappings: part.to_vec() }).collect()
    }
}

pub(super) fn put_live_blocks(v: &LiveBlocks, body: &mut Vec<u8>) -> u8 {
    body.put_u32(v.process);
    body.put_u64(v.blocks.len() as u64);
    let mut before = 0;
    for &block in &v.blocks {
        body.put_u64(block.wrapping_sub(before));
        before = block;
    }
    LIVE_BLOCKS
}

pub(super) fn live_blocks(f: &mut Fields<'_>) -> Result<LiveBlocks, Malformed> {
    let (process, mut blocks) = (f.u32()?, f.list(Fields::u64)?);
    let mut before = 0u64;
    for block in &mut blocks {
        *block = block.wrapping_add(before);
        before = *block;
    }
    Ok(LiveBlocks { process, blocks })
}

pub(super) fn put_live_mappings(v: &LiveMappings, body: &mut Vec<u8>) -> u8 {
    body.put_u32(v.process);
    body.put_u64(v.mappings.len() as u64);
    let mut before = 0;
    for &(mapping, bytes) in &v.mappings {
        body.put_u64(mapping.wrapping_sub(before));
        body.put_u64(bytes);
        before = mapping;
    }
    LIVE_MAPPINGS
}

pub(super) fn live_mappings(f: &mut Fields<'_>) -> Result<LiveMappings, Malformed> {
    fn mapping(f: &mut Fields<'_>) -> Result<(u64, u64), Malformed> {
        Ok((f.u64()?, f.u64()?))
    }
    let (process, mut mappings) = (f.u32()?, f.list(mapping)?);
    let mut before = 0u64;
    for (mapping, _) in &mut mappings {
        *mapping = mapping.wrapping_add(before);
        before = *mapping;
    }
    Ok(LiveMappings { process, mappings })
}
