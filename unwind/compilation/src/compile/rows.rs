//! Builds the rows in address order, their block index, and the set of distinct rules.

use alloc::vec;
use alloc::vec::Vec;

use unwind::Rule;
use unwind::cfi::Reader;
use unwind::table_layout::{BLOCK_SHIFT, BUILD_ID_AT, GROUP_SHIFT, HEADER, MAGIC, VERSION};

use super::functions::Functions;

/// Typical section bytes per row, for reserving memory once.
const BYTES_PER_ROW: usize = 5;

/// A table under construction. Addresses are relative to the base.
pub(super) struct Rows {
    /// Bits 0..=7: start of the row within its block; 8..=23: index of its rule.
    rows: Vec<u32>,
    /// Index of each block's first row.
    blocks: Vec<u32>,
    /// First address after the blocks so far.
    end: u64,
    distinct: Distinct,
    /// Bits of the last row's rule; [`NO_RULE`] before the first row.
    last: u64,
}

/// Bits that no rule has.
const NO_RULE: u64 = u64::MAX;

/// A position to return to with [`Rows::back_to`].
#[derive(Clone, Copy)]
pub(super) struct Mark {
    rows: usize,
    blocks: usize,
    last: u64,
}

impl Rows {
    /// Empty, with memory reserved for a section of `bytes` bytes and addresses up to `span`.
    pub(super) fn new(bytes: usize, span: u64) -> Self {
        Self {
            rows: Vec::with_capacity(bytes / BYTES_PER_ROW),
            blocks: Vec::with_capacity((span >> BLOCK_SHIFT) as usize + 1),
            end: 0,
            distinct: Distinct::new(),
            last: NO_RULE,
        }
    }

    /// Appends a row that starts at `address`, which must not be below the previous one.
    #[inline]
    pub(super) fn push(&mut self, address: u64, rule: Rule) {
        if self.last == rule.bits() {
            return;
        }
        self.last = rule.bits();
        if address >= self.end {
            self.reach(address);
        }
        let index = self.distinct.index(rule);
        self.rows.push(u32::from(index) << 8 | u32::from(address as u8));
    }

    /// Appends blocks up to the one that contains `address`.
    #[cold]
    fn reach(&mut self, address: u64) {
        let blocks = (address >> BLOCK_SHIFT) as usize + 1;
        self.blocks.resize(blocks, self.rows.len() as u32);
        self.end = (blocks as u64) << BLOCK_SHIFT;
    }

    /// The current position.
    pub(super) fn mark(&self) -> Mark {
        Mark { rows: self.rows.len(), blocks: self.blocks.len(), last: self.last }
    }

    /// Removes everything pushed since `mark`.
    pub(super) fn back_to(&mut self, mark: Mark) {
        self.rows.truncate(mark.rows);
        self.blocks.truncate(mark.blocks);
        self.end = (mark.blocks as u64) << BLOCK_SHIFT;
        self.last = mark.last;
    }

    /// The serialized table, with block 0 at `base`, without its checksum.
    pub(super) fn write<A: Reader>(
        &self,
        base: u64,
        functions: &Functions<'_, A>,
        build_id: &[u8],
    ) -> Vec<u8> {
        let groups = self.blocks.len().div_ceil(1 << GROUP_SHIFT);
        let rules = &self.distinct.rules;
        let parts = 8 * rules.len() + 4 * groups + 2 * self.blocks.len() + 3 * self.rows.len();
        let length = (HEADER + parts).next_multiple_of(8);
        let mut bytes = Vec::with_capacity(length);
        bytes.resize(HEADER, 0);
        bytes[..8].copy_from_slice(&MAGIC);
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(8, &VERSION.to_le_bytes());
        put(12, &A::MACHINE.to_elf().to_le_bytes());
        put(14, &(HEADER as u16).to_le_bytes());
        put(16, &(length as u64).to_le_bytes());
        put(32, &base.to_le_bytes());
        put(40, &(self.blocks.len() as u32).to_le_bytes());
        put(44, &(self.rows.len() as u32).to_le_bytes());
        put(48, &(rules.len() as u32).to_le_bytes());
        put(52, &(functions.count() as u32).to_le_bytes());
        put(56, &(functions.section.bytes.len() as u64).to_le_bytes());
        put(64, &(build_id.len() as u32).to_le_bytes());
        put(BUILD_ID_AT, build_id);
        bytes.extend(rules.iter().flat_map(|rule| rule.bits().to_le_bytes()));
        let firsts = self.blocks.iter().step_by(1 << GROUP_SHIFT);
        bytes.extend(firsts.flat_map(|first| first.to_le_bytes()));
        for group in self.blocks.chunks(1 << GROUP_SHIFT) {
            // Fits a u16: a group has 256 blocks of at most 256 rows, so its last block starts before row 65,281 of the
            // group.
            bytes.extend(group.iter().flat_map(|first| ((first - group[0]) as u16).to_le_bytes()));
        }
        let at = bytes.len();
        bytes.resize(at + 2 * self.rows.len(), 0);
        for (bytes, row) in bytes[at..].as_chunks_mut().0.iter_mut().zip(&self.rows) {
            *bytes = ((row >> 8) as u16).to_le_bytes();
        }
        bytes.extend(self.rows.iter().map(|&row| row as u8));
        bytes.resize(length, 0);
        bytes
    }
}

/// The distinct rules, indexed by a small open-addressed hash table.
struct Distinct {
    rules: Vec<Rule>,
    slots: Vec<Slot>,
}

/// A slot of the hash table, which is at most half full.
#[derive(Clone, Copy)]
struct Slot {
    /// Bits of the rule; [`NO_RULE`] if the slot is free.
    rule: u64,
    index: u16,
}

impl Slot {
    const FREE: Slot = Slot { rule: NO_RULE, index: 0 };
}

impl Distinct {
    fn new() -> Self {
        // Index 0 is the complex rule: it stands in for rules beyond what a 16-bit index can count.
        let mut distinct = Self { rules: Vec::new(), slots: vec![Slot::FREE; 1 << 10] };
        distinct.index(Rule::COMPLEX);
        distinct
    }

    #[inline]
    fn index(&mut self, rule: Rule) -> u16 {
        match self.slots.get(self.first_slot(rule)) {
            Some(slot) if slot.rule == rule.bits() => slot.index,
            _ => self.search(rule),
        }
    }

    #[inline(never)]
    fn search(&mut self, rule: Rule) -> u16 {
        let slot_at = self.probe(rule);
        let slot = self.slots[slot_at];
        if slot.rule != NO_RULE {
            return slot.index;
        }
        let Ok(index) = u16::try_from(self.rules.len()) else { return 0 };
        self.rules.push(rule);
        self.slots[slot_at] = Slot { rule: rule.bits(), index };
        if self.rules.len() * 2 > self.slots.len() {
            self.grow();
        }
        index
    }

    /// The slot that holds the rule, or the free slot where it belongs.
    fn probe(&self, rule: Rule) -> usize {
        let mut slot_at = self.first_slot(rule);
        while ![NO_RULE, rule.bits()].contains(&self.slots[slot_at].rule) {
            slot_at = (slot_at + 1) & (self.slots.len() - 1);
        }
        slot_at
    }

    #[inline]
    fn first_slot(&self, rule: Rule) -> usize {
        let mixed = rule.bits().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        mixed as usize & (self.slots.len() - 1)
    }

    fn grow(&mut self) {
        self.slots = vec![Slot::FREE; self.slots.len() * 2];
        for (index, &rule) in self.rules.iter().enumerate() {
            let slot_at = self.probe(rule);
            self.slots[slot_at] = Slot { rule: rule.bits(), index: index as u16 };
        }
    }
}
