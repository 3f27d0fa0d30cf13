//! Compiles `.eh_frame` into a [`Table`](crate::Table). Allocates: never in a handler.
//!
//! Every FDE's byte code is run once, in address order; equal neighbouring rows become one, and a gap of at most
//! [`GAP_ABSORBED`] bytes between two functions, which is alignment, belongs to the row before it. What a program
//! counter finds in the table is what the search in `.eh_frame_hdr` would find: of overlapping FDEs the one that starts
//! last.

use alloc::vec;
use alloc::vec::Vec;

use crate::cfi::{self, Cie, Entry, Fde};
use crate::pointer::Bases;
use crate::program::{Code, Program, Row};
use crate::rule::{NarrowRow, Rule};
use crate::section::Section;
use crate::table::{self, BLOCK_SHIFT, BUILD_ID_AT, BUILD_ID_MAX, GROUP_SHIFT, HEADER, MAGIC, VERSION};
use crate::x86_64::ELF_MACHINE;

/// Longest gap between functions that counts as alignment, in bytes.
pub const GAP_ABSORBED: u64 = 15;
/// Bytes of the section per FDE and per row, at least roughly: room is made once.
const BYTES_PER_FDE: usize = 40;
const BYTES_PER_ROW: usize = 5;
/// Address span that a table can describe; the block index grows with it.
const SPAN_MAX: u64 = 1 << 32;

/// Why there is no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompileError {
    /// The section has no FDE that covers any address.
    NoFdes,
    /// The addresses reach over more than 4 GiB.
    TooWide,
    /// The build-id is longer than [`BUILD_ID_MAX`].
    BuildIdTooLong,
}

impl core::fmt::Display for CompileError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            CompileError::NoFdes => "no FDEs in .eh_frame",
            CompileError::TooWide => "addresses in .eh_frame span more than 4 GiB",
            CompileError::BuildIdTooLong => "build-id longer than 48 bytes",
        })
    }
}

impl core::error::Error for CompileError {}

/// The table for `eh_frame`, whose addresses are `bias` above the virtual addresses (0 for a file).
///
/// A malformed FDE has its rows up to the fault and is complex from there on, so that the exact evaluation has the last word on them.
pub fn compile(eh_frame: Section<'_>, bias: u64, build_id: &[u8]) -> Result<Vec<u8>, CompileError> {
    if build_id.len() > BUILD_ID_MAX {
        return Err(CompileError::BuildIdTooLong);
    }
    let functions = Functions::collect(eh_frame);
    let (Some(first), Some(last)) = (functions.fdes.first(), functions.fdes.iter().map(|fde| fde.end).max())
    else {
        return Err(CompileError::NoFdes);
    };
    let base = first.start.wrapping_sub(bias) & !((1 << BLOCK_SHIFT) - 1);
    if last.wrapping_sub(bias).wrapping_sub(base) >= SPAN_MAX {
        return Err(CompileError::TooWide);
    }
    let rows = Rows::from(&functions, bias.wrapping_add(base));
    Ok(rows.write(base, functions.fdes.len() as u32, eh_frame.bytes.len() as u64, build_id))
}

/// A parsed CIE and the rules that its own program leaves; `None` when that program is malformed.
struct Common {
    offset: usize,
    cie: Cie,
    initial: Option<NarrowRow>,
}

/// The extent of a function and where its program is.
struct Function {
    start: u64,
    end: u64,
    common: u32,
    code: Code,
}

struct Functions<'a> {
    section: Section<'a>,
    commons: Vec<Common>,
    /// By start address; none is empty, and none reaches into the next.
    fdes: Vec<Function>,
}

impl<'a> Functions<'a> {
    fn collect(section: Section<'a>) -> Self {
        let fdes = Vec::with_capacity(section.bytes.len() / BYTES_PER_FDE);
        let mut found = Self { section, commons: Vec::new(), fdes };
        for extent in cfi::entries(section) {
            let Entry::Fde { cie: offset } = extent.entry else { continue };
            let Some(index) = found.common(offset) else { continue };
            let Some(common) = found.commons.get(index) else { continue };
            let Some(fde) = Fde::with_cie(&section, &extent, common.cie) else { continue };
            if fde.start < fde.end {
                let common = index as u32;
                found.fdes.push(Function { start: fde.start, end: fde.end, common, code: fde.code });
            }
        }
        found.fdes.sort_by_key(|fde| fde.start);
        // Of FDEs with the same start the last is kept, as the search in the header finds it.
        found.fdes.dedup_by(|later, earlier| {
            let same = later.start == earlier.start;
            if same {
                core::mem::swap(later, earlier);
            }
            same
        });
        let mut limit = u64::MAX;
        for fde in found.fdes.iter_mut().rev() {
            fde.end = fde.end.min(limit);
            limit = fde.start;
        }
        found
    }

    /// The index of the CIE at `offset`, parsed at its first use. Neighbouring FDEs share theirs.
    fn common(&mut self, offset: usize) -> Option<usize> {
        if let Some(index) = self.commons.iter().rposition(|common| common.offset == offset) {
            return Some(index);
        }
        let cie = Cie::at(&self.section, offset)?;
        let program =
            Program { section: self.section.bytes, cie: &cie, bases: Bases::default(), code: cie.code };
        let mut initial = NarrowRow::EMPTY;
        let initial = program.initial(&mut initial).map(|()| initial);
        self.commons.push(Common { offset, cie, initial });
        Some(self.commons.len() - 1)
    }
}

/// Rows in address order and the distinct rules they use.
struct Rows {
    /// Address of block 0.
    base: u64,
    starts: Vec<u32>,
    rules: Vec<u16>,
    distinct: Distinct,
    last: Option<Rule>,
}

impl Rows {
    fn from(functions: &Functions<'_>, base: u64) -> Self {
        let room = functions.section.bytes.len() / BYTES_PER_ROW;
        let (starts, rules) = (Vec::with_capacity(room), Vec::with_capacity(room));
        let mut rows = Self { base, starts, rules, distinct: Distinct::new(), last: None };
        let mut end = None;
        for function in &functions.fdes {
            if end.is_some_and(|end| function.start - end > GAP_ABSORBED) {
                rows.push(end.unwrap_or(base), Rule::GAP);
            }
            rows.function(functions, function);
            end = Some(function.end);
        }
        rows.push(end.unwrap_or(base), Rule::GAP);
        rows
    }

    fn function(&mut self, functions: &Functions<'_>, function: &Function) {
        let Some(common) = functions.commons.get(function.common as usize) else { return };
        let (section, start, end) = (functions.section, function.start, function.end);
        let Some(initial) = common.initial else { return self.push(start, Rule::COMPLEX) };
        let bases = Bases { section: section.address, data: None, function: Some(start) };
        let program = Program { section: section.bytes, cie: &common.cie, bases, code: function.code };
        let signal = common.cie.is_signal_frame();
        let ran = program.rows(initial, start, end, |from, to, row| {
            if from < to && from < end {
                self.push(from, row.rule(section.bytes, signal));
            }
            to < end
        });
        if let Err(fault) = ran {
            self.push(fault, Rule::COMPLEX);
        }
    }

    fn push(&mut self, address: u64, rule: Rule) {
        if self.last == Some(rule) {
            return;
        }
        self.last = Some(rule);
        self.starts.push((address - self.base) as u32);
        self.rules.push(self.distinct.index(rule));
    }

    /// The bytes of the table.
    fn write(&self, base: u64, fdes: u32, eh_frame_length: u64, build_id: &[u8]) -> Vec<u8> {
        let blocks = self.starts.last().map_or(0, |&last| (last >> BLOCK_SHIFT) as usize + 1);
        let mut bytes = vec![0; HEADER];
        bytes[..8].copy_from_slice(&MAGIC);
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(8, &VERSION.to_le_bytes());
        put(12, &ELF_MACHINE.to_le_bytes());
        put(14, &(HEADER as u16).to_le_bytes());
        put(32, &base.to_le_bytes());
        put(40, &(blocks as u32).to_le_bytes());
        put(44, &(self.starts.len() as u32).to_le_bytes());
        put(48, &(self.distinct.rules.len() as u32).to_le_bytes());
        put(52, &fdes.to_le_bytes());
        put(56, &eh_frame_length.to_le_bytes());
        put(64, &(build_id.len() as u32).to_le_bytes());
        put(BUILD_ID_AT, build_id);
        bytes.extend(self.distinct.rules.iter().flat_map(|rule| rule.bits().to_le_bytes()));
        self.write_index(blocks, &mut bytes);
        bytes.extend(self.rules.iter().flat_map(|index| index.to_le_bytes()));
        bytes.extend(self.starts.iter().map(|&start| start as u8));
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let length = bytes.len() as u64;
        bytes[16..24].copy_from_slice(&length.to_le_bytes());
        let sum = table::checksum(&bytes[32..]);
        bytes[24..32].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn write_index(&self, blocks: usize, bytes: &mut Vec<u8>) {
        let mut first_rows = Vec::with_capacity(blocks);
        for (row, start) in self.starts.iter().enumerate() {
            while first_rows.len() <= (start >> BLOCK_SHIFT) as usize {
                first_rows.push(row as u32);
            }
        }
        let groups = first_rows.iter().step_by(1 << GROUP_SHIFT);
        bytes.extend(groups.flat_map(|first| first.to_le_bytes()));
        for group in first_rows.chunks(1 << GROUP_SHIFT) {
            // A group has 256 blocks of at most 256 rows, and its last block starts before row 65,281 of it.
            bytes.extend(group.iter().flat_map(|first| ((first - group[0]) as u16).to_le_bytes()));
        }
    }
}

/// The distinct rules, found again through a small open-addressed table.
struct Distinct {
    rules: Vec<Rule>,
    /// One plus the index of a rule, 0 when free; a power of two, at most half full.
    slots: Vec<u32>,
}

impl Distinct {
    fn new() -> Self {
        // The complex rule comes first: it stands in for rules beyond what an index can count.
        let mut distinct = Self { rules: Vec::new(), slots: vec![0; 1 << 10] };
        distinct.index(Rule::COMPLEX);
        distinct
    }

    fn index(&mut self, rule: Rule) -> u16 {
        let mut slot = self.slot(rule);
        loop {
            match self.slots[slot] {
                0 => break,
                taken if self.rules[taken as usize - 1] == rule => return (taken - 1) as u16,
                _ => slot = (slot + 1) & (self.slots.len() - 1),
            }
        }
        let index = self.rules.len();
        if index > usize::from(u16::MAX) {
            return 0;
        }
        self.rules.push(rule);
        self.slots[slot] = index as u32 + 1;
        if self.rules.len() * 2 > self.slots.len() {
            self.grow();
        }
        index as u16
    }

    fn slot(&self, rule: Rule) -> usize {
        let bits = self.slots.len().trailing_zeros();
        (rule.bits().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize
    }

    fn grow(&mut self) {
        self.slots = vec![0; self.slots.len() * 2];
        for index in 0..self.rules.len() {
            let mut slot = self.slot(self.rules[index]);
            while self.slots[slot] != 0 {
                slot = (slot + 1) & (self.slots.len() - 1);
            }
            self.slots[slot] = index as u32 + 1;
        }
    }
}
