//! Copies call frame information that programs register for generated code (`__register_frame`).
//!
//! libgcc's interface takes the address of entries that end with a zero length; that of LLVM's libunwind takes a single
//! FDE, whose CIE precedes it. The first entry tells which of the two was passed. The bytes are untrusted and may
//! change at any time: each is read once, into a copy, and only the copy is parsed.

use alloc::vec::Vec;
use core::ops::Range;

use unwind::cfi::{CfiEntry, Reader, entries};
use unwind::{Native, Section};

/// Memory is read page by page, since the next page may be unmapped.
const PAGE: u64 = 4096;
/// Size of a 32-bit length, in bytes.
const LENGTH: usize = 4;
/// Marks a 64-bit length, which follows.
const LONG: u32 = 0xffff_ffff;

/// Fills the buffer from an address; false if that is not readable.
pub type Read<'r> = &'r mut dyn FnMut(u64, &mut [u8]) -> bool;

/// A copy of registered call frame information.
#[derive(Clone, Debug, Default)]
pub struct Registered {
    /// The entries.
    pub bytes: Vec<u8>,
    /// The address that the entries were registered at.
    pub address: u64,
}

impl Registered {
    /// Copies the entries registered at `begin`. `None` if they are malformed or longer than `most` bytes.
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

    /// The single FDE at `begin` and its CIE, moved next to each other.
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

    /// The address range that the FDEs cover and their number; `None` if there is no FDE.
    pub fn extent(&self) -> Option<(Range<u64>, usize)> {
        let section = self.section();
        let fdes = entries(section).filter_map(|extent| match extent.entry {
            CfiEntry::Fde { cie } => Native::fde(&section, &extent, Native::cie(&section, cie)?),
            CfiEntry::Cie => None,
        });
        let mut all: Option<(Range<u64>, usize)> = None;
        for fde in fdes.filter(|fde| fde.start < fde.end) {
            let (range, count) = all.get_or_insert((fde.start..fde.end, 0));
            (range.start, range.end, *count) =
                (range.start.min(fde.start), range.end.max(fde.end), *count + 1);
        }
        all
    }
}

/// The part of the program's memory that has been copied.
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

    /// Extends the copy to at least `end`.
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

    /// The offset after the entry at `at`; `Some(None)` if that is the terminator.
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

    /// The copy, truncated to `end`.
    fn whole(mut self, end: usize) -> Option<Vec<u8>> {
        self.reach(end)?;
        self.bytes.truncate(end);
        Some(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::compile;
    use crate::fixture::{ADDRESS, EhFrame, LENGTH as SIZE, Random, START};
    use std::vec;
    use unwind::{Module, Rule, Table};

    /// Copies from memory in which the pages after the section are unmapped.
    fn copy(made: &EhFrame, begin: u64, most: usize) -> Option<Registered> {
        let mut memory = made.bytes.clone();
        memory.resize(memory.len().next_multiple_of(PAGE as usize), 0xaa);
        Registered::copy(begin, most, &mut |address, to| {
            let from = address.wrapping_sub(ADDRESS) as usize;
            let there = from.checked_add(to.len()).and_then(|end| memory.get(from..end));
            there.inspect(|bytes| to.copy_from_slice(bytes)).is_some()
        })
    }

    /// Two CIEs with two FDEs each; returns the offsets of the FDEs.
    fn four() -> (EhFrame, [usize; 4]) {
        let mut made = EhFrame::new();
        let mut fdes = [0; 4];
        for (number, pair) in fdes.chunks_mut(2).enumerate() {
            let cie = made.usual_cie();
            for (at, fde) in pair.iter_mut().enumerate() {
                let start = START + 2 * SIZE * (2 * number + at) as u64;
                *fde = made.fde(cie, start, SIZE, &[0x0e, 16 * (1 + number as u8)]);
            }
        }
        made.terminate();
        (made, fdes)
    }

    fn rule_at(registered: &Registered, address: u64) -> Rule {
        let range = registered.extent().unwrap().0;
        let bytes = compile(registered.section(), 0, &[]).unwrap();
        let table = Table::from_bytes(&bytes).unwrap();
        let plain = Module {
            start: range.start,
            end: range.end,
            eh_frame: Some(registered.section()),
            ..Module::default()
        };
        let rule = plain.decode_rule(address).unwrap();
        assert_eq!(table.lookup(address), rule);
        for module in [plain, Module { table: Some(table), ..plain }] {
            assert_eq!(module.covers(address), rule != Rule::UNCOVERED);
        }
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
    fn one_fde_is_copied_with_its_cie() {
        let (made, fdes) = four();
        for (number, fde) in fdes.into_iter().enumerate() {
            let registered = copy(&made, ADDRESS + fde as u64, 1 << 20).unwrap();
            let start = START + 2 * SIZE * number as u64;
            assert_eq!(registered.extent(), Some((start..start + SIZE, 1)));
            assert_eq!(rule_at(&registered, start).offset(), if number < 2 { 16 } else { 32 });
        }
    }

    #[test]
    fn missing_or_truncated_entries_are_refused() {
        let (mut made, _) = four();
        assert!(copy(&made, ADDRESS - 64, 1 << 20).is_none());
        assert!(copy(&made, u64::MAX - 2, 1 << 20).is_none());
        made.bytes.truncate(made.bytes.len() - 4);
        // No terminator before the end of mapped memory.
        let filled = made.bytes.len().next_multiple_of(PAGE as usize);
        made.bytes.resize(filled, 0xaa);
        assert!(copy(&made, ADDRESS, 1 << 20).is_none());
        let mut empty = EhFrame::new();
        empty.terminate();
        assert!(copy(&empty, ADDRESS, 1 << 20).is_none());
    }

    #[test]
    fn hostile_unwinders_do_no_harm() {
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
                let compiled = compile(registered.section(), 0, &[]).unwrap_or_default();
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
