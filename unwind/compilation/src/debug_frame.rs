//! Rewrites `.debug_frame` as `.eh_frame`, so that one reader handles both. Allocates, so it must never run in a
//! handler.
//!
//! The two differ in how an FDE refers to its CIE, in the id that marks a CIE, and in the width of both in the 64-bit
//! format (DWARF 5, section 6.4.1; Linux Standard Base, "Exception Frames"). Addresses are absolute and take the load
//! bias.

use alloc::vec::Vec;

use unwind::Section;

/// Id of a CIE in the 32-bit and in the 64-bit format.
const CIE_32: u64 = 0xffff_ffff;
const CIE_64: u64 = u64::MAX;
/// Size of an FDE's start address, in bytes.
const ADDRESS: usize = 8;

/// Merges entries in the form of `.eh_frame`, with absolute addresses, and that section; gives the bytes and the address of both.
/// Where both describe a function, `.eh_frame` wins.
pub fn merge(mut bytes: Vec<u8>, eh_frame: Option<Section<'_>>) -> (Vec<u8>, u64) {
    // The rewritten entries go in front: of two entries for a function the last counts, and `.eh_frame` keeps its
    // addresses.
    let eh_frame = eh_frame.unwrap_or_default();
    let address = eh_frame.address.wrapping_sub(bytes.len() as u64);
    bytes.extend_from_slice(eh_frame.bytes);
    (bytes, address)
}

/// The entries of a section that holds virtual addresses, with addresses that are `bias` higher. Malformed entries, and FDEs whose
/// CIE does not precede them, are dropped.
pub fn rewrite(debug_frame: &[u8], bias: u64) -> Vec<u8> {
    let mut rewritten = Vec::with_capacity(debug_frame.len());
    // (offset in the input, offset in the output) of each CIE, ascending.
    let mut cies: Vec<(usize, usize)> = Vec::new();
    let mut offset = 0;
    while let Some((entry, end)) = Entry::at(debug_frame, offset) {
        let here = rewritten.len();
        let id = match entry.id {
            None => {
                cies.push((offset, here));
                Some(0)
            }
            Some(cie) => {
                let known = cies.binary_search_by_key(&cie, |&(there, _)| there as u64);
                // The CIE pointer is relative to its own field, which follows the length.
                known.ok().and_then(|at| u32::try_from(here + 4 - cies[at].1).ok())
            }
        };
        let length = u32::try_from(entry.body.len() + 4).ok();
        offset = end;
        let (Some(id), Some(length)) = (id, length) else { continue };
        let start = entry.id.and(entry.body.first_chunk::<ADDRESS>());
        if entry.id.is_some() && start.is_none() {
            continue;
        }
        rewritten.extend(length.to_le_bytes());
        rewritten.extend(id.to_le_bytes());
        rewritten.extend(
            start.iter().flat_map(|start| u64::from_le_bytes(**start).wrapping_add(bias).to_le_bytes()),
        );
        rewritten.extend_from_slice(&entry.body[start.map_or(0, |_| ADDRESS)..]);
    }
    rewritten
}

struct Entry<'a> {
    /// Offset of the FDE's CIE; `None` in a CIE.
    id: Option<u64>,
    /// The entry's bytes after the id.
    body: &'a [u8],
}

impl<'a> Entry<'a> {
    /// The entry at `offset`, and the offset after it.
    fn at(debug_frame: &'a [u8], offset: usize) -> Option<(Entry<'a>, usize)> {
        let mut rest = debug_frame.get(offset..)?;
        let (length, is_64) = match take_u32(&mut rest)? {
            0xffff_ffff => (usize::try_from(take_u64(&mut rest)?).ok()?, true),
            length => (length as usize, false),
        };
        let (mut body, after) = rest.split_at_checked(length)?;
        let (id, mark) =
            if is_64 { (take_u64(&mut body)?, CIE_64) } else { (take_u32(&mut body)?.into(), CIE_32) };
        Some((Entry { id: (id != mark).then_some(id), body }, debug_frame.len() - after.len()))
    }
}

/// Takes a number from the front of the bytes.
fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    bytes.split_off(..4)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Takes a number from the front of the bytes.
fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    bytes.split_off(..8)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;
    use crate::compile::compile;
    use crate::fixture::{START, one};
    use unwind::{Kind, Rule, SavedFp, Table};

    fn entry(is_64: bool, id: u64, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        if is_64 {
            bytes.extend(u32::MAX.to_le_bytes());
            bytes.extend((body.len() as u64 + 8).to_le_bytes());
            bytes.extend(id.to_le_bytes());
        } else {
            bytes.extend((body.len() as u32 + 4).to_le_bytes());
            bytes.extend((id as u32).to_le_bytes());
        }
        bytes.extend_from_slice(body);
        bytes
    }

    /// A CIE and an FDE of the function at `start`, whose CFA is at sp + 16.
    fn made(is_64: bool, start: u64) -> Vec<u8> {
        // Version 4, no augmentation, 8-byte addresses, factors 1 and -8, return address in 16.
        let cie = [4, 0, 8, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1];
        let mut bytes = entry(is_64, u64::MAX, &cie);
        let fde: Vec<u8> = [&start.to_le_bytes()[..], &0x40u64.to_le_bytes(), &[0x0e, 16]].concat();
        bytes.extend(entry(is_64, 0, &fde));
        bytes
    }

    fn rows(bytes: &[u8], address: u64, bias: u64) -> Vec<(u64, Rule)> {
        let compiled = compile(Section { bytes, address }, bias, &[]).unwrap();
        Table::from_bytes(&compiled).unwrap().rows().collect()
    }

    fn sp(offset: i32) -> Rule {
        Rule::new(Kind::Sp, offset, 0, SavedFp::Same).unwrap()
    }

    #[test]
    fn both_formats_give_the_same_rows() {
        for is_64 in [false, true] {
            let expected = vec![(START, sp(16)), (START + 0x40, Rule::UNCOVERED)];
            let (bytes, address) = merge(rewrite(&made(is_64, START), 0), None);
            assert_eq!(rows(&bytes, address, 0), expected);
            let (bytes, address) = merge(rewrite(&made(is_64, START), 0x7000_0000), None);
            assert_eq!(rows(&bytes, address, 0x7000_0000), expected, "with a bias");
        }
    }

    #[test]
    fn eh_frame_wins_where_both_describe_a_function() {
        let eh_frame = one(&[]);
        let (bytes, address) = merge(rewrite(&made(false, START), 0), Some(eh_frame.section()));
        assert_eq!(rows(&bytes, address, 0), rows(&eh_frame.bytes, eh_frame.section().address, 0));
        let (bytes, address) = merge(rewrite(&made(false, START - 0x100), 0), Some(eh_frame.section()));
        assert_eq!(rows(&bytes, address, 0)[..2], [(START - 0x100, sp(16)), (START - 0xc0, Rule::UNCOVERED)]);
    }

    #[test]
    fn damaged_entries_are_dropped() {
        let good = made(false, START);
        for length in 0..good.len() {
            let (bytes, address) = merge(rewrite(&good[..length], 0), None);
            assert!(compile(Section { bytes: &bytes, address }, 0, &[]).is_err(), "{length} bytes");
        }
        // The FDE of a CIE that is none.
        let mut other = good.clone();
        let id = 4 + 4 + 12 + 4;
        other[id] = 1;
        assert_eq!(merge(rewrite(&other, 0), None).0.len(), 20);
    }
}
