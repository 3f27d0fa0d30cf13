//! Call frame information as programs register it for code that they generate (`__register_frame`): a copy of it, and
//! where it applies.
//!
//! libgcc takes the address of entries that a zero length ends, LLVM's libunwind that of a single FDE, whose CIE is
//! before it. Which of the two it is, the first entry says. The program may lie in every byte and change any of them
//! meanwhile: what is read once is copied, and only copies are looked at.

use alloc::vec::Vec;
use core::ops::Range;

use crate::arch::Native;
use crate::cfi::{Fde, entries};
use crate::section::Section;

/// Memory is read up to the end of a page: behind it there may be none.
const PAGE: u64 = 4096;
/// Bytes of a length of 32 bits.
const LENGTH: usize = 4;
/// The length is 64 bits long and comes behind this.
const LONG: u32 = 0xffff_ffff;

/// Reads so many bytes at an address; false if they are not there.
pub type Read<'r> = &'r mut dyn FnMut(u64, &mut [u8]) -> bool;

/// A copy of what was registered.
#[derive(Clone, Debug, Default)]
pub struct Registered {
    /// The entries.
    pub bytes: Vec<u8>,
    /// The address that they are relative to.
    pub address: u64,
}

impl Registered {
    /// Copies what is registered at `begin`, if it is at most `most` bytes of entries that are whole.
    pub fn copy(begin: u64, most: usize, read: Read<'_>) -> Option<Registered> {
        let mut entries = Copied::at(begin, most, &mut *read);
        let mut end = entries.entry_end(0)??;
        if entries.u32(0)? != LONG && entries.u32(LENGTH)? != 0 {
            return Self::of_fde(begin, most, read);
        }
        while let Some(next) = entries.entry_end(end)? {
            end = next;
        }
        Some(Registered { bytes: entries.whole(end)?, address: begin })
    }

    /// The one FDE at `begin` and its CIE, as if they were neighbours.
    fn of_fde(begin: u64, most: usize, read: Read<'_>) -> Option<Registered> {
        let mut fde = Copied::at(begin, most, &mut *read);
        let end = fde.entry_end(0)??;
        let distance = fde.u32(LENGTH)?;
        let mut fde = fde.whole(end)?;
        let mut cie = Copied::at((begin + LENGTH as u64).checked_sub(distance.into())?, most, read);
        let end = cie.entry_end(0)??;
        let mut bytes = cie.whole(end)?;
        let distance = u32::try_from(bytes.len() + LENGTH).ok()?;
        fde.get_mut(LENGTH..2 * LENGTH)?.copy_from_slice(&distance.to_le_bytes());
        let address = begin.checked_sub(bytes.len() as u64)?;
        bytes.extend(fde);
        Some(Registered { bytes, address })
    }

    /// The copy as a section.
    pub fn section(&self) -> Section<'_> {
        Section { bytes: &self.bytes, address: self.address }
    }

    /// From the first address that it is about to the last, and how many FDEs there are; none if there is no FDE.
    pub fn extent(&self) -> Option<(Range<u64>, usize)> {
        let section = self.section();
        let fdes = entries(section).filter_map(|entry| Fde::<Native>::at(&section, entry.offset));
        let mut all: Option<(Range<u64>, usize)> = None;
        for fde in fdes.filter(|fde| fde.start < fde.end) {
            let (range, count) = all.get_or_insert((fde.start..fde.end, 0));
            (range.start, range.end, *count) =
                (range.start.min(fde.start), range.end.max(fde.end), *count + 1);
        }
        all
    }
}

/// Memory of the program as far as it has been looked at.
struct Copied<'r> {
    start: u64,
    bytes: Vec<u8>,
    most: usize,
    read: Read<'r>,
}

impl<'r> Copied<'r> {
    fn at(start: u64, most: usize, read: Read<'r>) -> Self {
        Self { start, bytes: Vec::new(), most, read }
    }

    /// Copies up to `end`, at least.
    fn reach(&mut self, end: usize) -> Option<()> {
        while self.bytes.len() < end {
            if end > self.most {
                return None;
            }
            let (from, at) = (self.bytes.len(), self.start.checked_add(self.bytes.len() as u64)?);
            self.bytes.resize(from + (PAGE - at % PAGE) as usize, 0);
            if !(self.read)(at, self.bytes.get_mut(from..)?) {
                return None;
            }
        }
        Some(())
    }

    fn u32(&mut self, at: usize) -> Option<u32> {
        self.reach(at + 4)?;
        Some(u32::from_le_bytes(*self.bytes.get(at..)?.first_chunk()?))
    }

    /// The offset behind the entry at `at`; `Some(None)` if a zero length ends the entries there.
    fn entry_end(&mut self, at: usize) -> Option<Option<usize>> {
        let end = match self.u32(at)? {
            0 => return Some(None),
            LONG => {
                self.reach(at + 12)?;
                let length = u64::from_le_bytes(*self.bytes.get(at + LENGTH..)?.first_chunk()?);
                usize::try_from(length).ok()?.checked_add(at + 12)?
            }
            length => at + LENGTH + length as usize,
        };
        (end <= self.most).then_some(Some(end))
    }

    /// What was copied, up to `end` and no further.
    fn whole(mut self, end: usize) -> Option<Vec<u8>> {
        self.reach(end)?;
        self.bytes.truncate(end);
        Some(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{ADDRESS, EhFrame, LENGTH as SIZE, Random, START};
    use crate::{Module, Rule, Table, compile};
    use std::vec;

    /// A section in memory of whole pages, of which those behind it are not there.
    fn copy(made: &EhFrame, begin: u64, most: usize) -> Option<Registered> {
        let mut memory = made.bytes.clone();
        memory.resize(memory.len().next_multiple_of(PAGE as usize), 0xaa);
        Registered::copy(begin, most, &mut |address, to| {
            let from = address.wrapping_sub(ADDRESS) as usize;
            let there = from.checked_add(to.len()).and_then(|end| memory.get(from..end));
            there.inspect(|bytes| to.copy_from_slice(bytes)).is_some()
        })
    }

    /// Two CIEs with two FDEs each; the offsets of the FDEs.
    fn four() -> (EhFrame, [usize; 4]) {
        let mut made = EhFrame::new();
        let mut fdes = [0; 4];
        for (number, pair) in fdes.chunks_mut(2).enumerate() {
            let cie = made.usual_cie();
            for (place, fde) in pair.iter_mut().enumerate() {
                let start = START + 2 * SIZE * (2 * number + place) as u64;
                *fde = made.fde(cie, start, SIZE, &[0x0e, 16 * (1 + number as u8)]);
            }
        }
        made.terminate();
        (made, fdes)
    }

    fn rule_at(registered: &Registered, address: u64) -> Rule {
        let range = registered.extent().unwrap().0;
        let bytes = compile::compile(registered.section(), 0, &[]).unwrap();
        let table = Table::from_bytes(&bytes).unwrap();
        let plain = Module {
            start: range.start,
            end: range.end,
            eh_frame: Some(registered.section()),
            ..Module::default()
        };
        let rule = plain.rule_at(address).unwrap();
        assert_eq!(Module { table: Some(table), ..plain }.rule_at(address), Ok(rule));
        assert_eq!(plain.covers(address), rule != Rule::UNCOVERED);
        rule
    }

    #[test]
    fn entries_end_with_a_zero_length() {
        let (made, _) = four();
        let registered = copy(&made, ADDRESS, 1 << 20).unwrap();
        assert_eq!(registered.bytes, made.bytes[..made.bytes.len() - 4]);
        assert_eq!(registered.extent(), Some((START..START + 7 * SIZE, 4)));
        assert_eq!(rule_at(&registered, START).offset(), 16);
        assert_eq!(rule_at(&registered, START + 6 * SIZE).offset(), 32);
        assert_eq!(rule_at(&registered, START + SIZE), Rule::UNCOVERED);
        assert!(copy(&made, ADDRESS, registered.bytes.len()).is_some());
        assert!(copy(&made, ADDRESS, registered.bytes.len() - 1).is_none());
    }

    #[test]
    fn one_fde_brings_its_cie() {
        let (made, fdes) = four();
        for (number, fde) in fdes.into_iter().enumerate() {
            let registered = copy(&made, ADDRESS + fde as u64, 1 << 20).unwrap();
            let start = START + 2 * SIZE * number as u64;
            assert_eq!(registered.extent(), Some((start..start + SIZE, 1)));
            assert_eq!(rule_at(&registered, start).offset(), if number < 2 { 16 } else { 32 });
        }
    }

    #[test]
    fn what_is_not_there_or_not_whole_is_refused() {
        let (mut made, _) = four();
        assert!(copy(&made, ADDRESS - 64, 1 << 20).is_none());
        assert!(copy(&made, u64::MAX - 2, 1 << 20).is_none());
        made.bytes.truncate(made.bytes.len() - 4);
        // No terminator up to where memory ends.
        let filled = made.bytes.len().next_multiple_of(PAGE as usize);
        made.bytes.resize(filled, 0xaa);
        assert!(copy(&made, ADDRESS, 1 << 20).is_none());
        let mut empty = EhFrame::new();
        empty.terminate();
        assert!(copy(&empty, ADDRESS, 1 << 20).is_none());
    }

    #[test]
    fn lies_do_no_harm() {
        let (intact, fdes) = four();
        let (mut random, mut accepted) = (Random(7), 0);
        for _ in 0..20_000 {
            let mut made = EhFrame { bytes: intact.bytes.clone() };
            for _ in 0..1 + random.below(4) {
                let at = random.below(made.bytes.len() as u64 - 8) as usize;
                let edge = random.edge().to_le_bytes();
                made.bytes[at..at + 1 + random.below(8) as usize]
                    .iter_mut()
                    .zip(edge)
                    .for_each(|(byte, edge)| *byte = edge);
            }
            for begin in [0, fdes[random.below(4) as usize]] {
                let Some(registered) = copy(&made, ADDRESS + begin as u64, 1 << 16) else { continue };
                let Some((range, _)) = registered.extent() else { continue };
                accepted += 1;
                let compiled = compile::compile(registered.section(), 0, &[]).unwrap_or_default();
                let table = Table::from_bytes(&compiled).ok();
                let eh_frame = Some(registered.section());
                let module =
                    Module { start: range.start, end: range.end, eh_frame, table, ..Module::default() };
                for address in [range.start, range.end.wrapping_sub(1), random.edge()] {
                    module.covers(address);
                }
            }
        }
        assert!(accepted > 10_000, "{accepted}");
        assert!(Registered { bytes: vec![1; 3], address: 0 }.extent().is_none());
    }
}
