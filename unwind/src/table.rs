//! The compiled rows of one module: a flat, position-independent byte array, the same in memory and on disk. The format
//! is documented in `docs/table-file.md`.
//!
//! Lookups run in a handler, over bytes that their owner may damage at any time: every index is checked, and nothing
//! here may panic.

use crate::arch::{Machine, native};
use crate::rule::{ReturnAddress, Rule};
use crate::table_layout::{
    BLOCK_SHIFT, BUILD_ID_AT, BUILD_ID_MAX, CHECKED_FROM, GROUP_SHIFT, HEADER, MAGIC, SOURCE_AT, VERSION,
    checksum,
};

/// Why bytes are not a usable table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// Too short, or without the magic.
    NotATable,
    /// Of another format version.
    Version(u32),
    /// For another architecture (ELF machine number).
    Machine(u16),
    /// The lengths in the header contradict the number of bytes.
    Length,
    /// The checksum does not match.
    Checksum,
    /// An index is out of range, or rows are out of order.
    Structure,
}

impl core::fmt::Display for TableError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            TableError::NotATable => f.write_str("not an unwind table"),
            TableError::Version(version) => {
                write!(f, "table version {version}, this program reads {VERSION}")
            }
            TableError::Machine(machine) => write!(f, "table for ELF machine {machine}"),
            TableError::Length => f.write_str("table truncated, or its header is damaged"),
            TableError::Checksum => f.write_str("table checksum does not match"),
            TableError::Structure => f.write_str("table contents are inconsistent"),
        }
    }
}

impl core::error::Error for TableError {}

/// Identity of the file that a table was compiled from, from `stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Modification time, in nanoseconds since 1970.
    pub modified_ns: u64,
}

/// A validated table. Lookups are bounds-checked even so, and cannot panic.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    bytes: &'a [u8],
    machine: Machine,
    base: u64,
    rules: &'a [[u8; 8]],
    groups: &'a [[u8; 4]],
    blocks: &'a [[u8; 2]],
    row_rules: &'a [[u8; 2]],
    row_starts: &'a [u8],
}

impl<'a> Table<'a> {
    /// Accepts a table of any architecture, after checking everything: lengths, checksum, and every index.
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Self, TableError> {
        let table = Self::from_intact_bytes(bytes)?;
        table.is_consistent().then_some(table).ok_or(TableError::Structure)
    }

    /// Accepts a table that this user or root wrote, for walks in this process. Like
    /// [`from_intact_bytes`](Self::from_intact_bytes), but for this architecture only.
    pub fn from_trusted_bytes(bytes: &'a [u8]) -> Result<Self, TableError> {
        let table = Self::from_intact_bytes(bytes)?;
        if table.machine == Machine::NATIVE {
            Ok(table)
        } else {
            Err(TableError::Machine(table.machine.to_elf()))
        }
    }

    /// Accepts a table of any architecture that this user or root wrote, after checking lengths and checksum, which
    /// detect damage. Bad indices under a correct checksum can only be malice; lookups then find uncovered ranges.
    pub fn from_intact_bytes(bytes: &'a [u8]) -> Result<Self, TableError> {
        let table = Self::parse(bytes)?;
        let checked = table.bytes.get(CHECKED_FROM..).ok_or(TableError::Length)?;
        if u64_at(bytes, 24) != Some(checksum(checked)) {
            return Err(TableError::Checksum);
        }
        Ok(table)
    }

    fn parse(bytes: &'a [u8]) -> Result<Self, TableError> {
        if bytes.len() < HEADER || !bytes.starts_with(&MAGIC) {
            return Err(TableError::NotATable);
        }
        let number = |at| u32_at(bytes, at).ok_or(TableError::NotATable);
        let version = number(8)?;
        if version != VERSION {
            return Err(TableError::Version(version));
        }
        let [machine, header] = [number(12)? as u16, (number(12)? >> 16) as u16];
        let machine = Machine::from_elf(machine).ok_or(TableError::Machine(machine))?;
        let length =
            u64_at(bytes, 16).and_then(|length| usize::try_from(length).ok()).ok_or(TableError::Length)?;
        let bytes = bytes.get(..length).ok_or(TableError::Length)?;
        let base = u64_at(bytes, 32).ok_or(TableError::Length)?;
        let (blocks, rows, rules) = (number(40)? as usize, number(44)? as usize, number(48)? as usize);
        let id_length = number(64)? as usize;
        if usize::from(header) != HEADER
            || id_length > BUILD_ID_MAX
            || !base.is_multiple_of(1 << BLOCK_SHIFT)
            || base.checked_add((blocks as u64) << BLOCK_SHIFT).is_none()
        {
            return Err(TableError::Length);
        }
        let groups = blocks.div_ceil(1 << GROUP_SHIFT);
        let mut rest = bytes.get(HEADER..).ok_or(TableError::Length)?;
        let mut part = |count: usize, size: usize| -> Result<&'a [u8], TableError> {
            let length = count.checked_mul(size).ok_or(TableError::Length)?;
            let (part, after) = rest.split_at_checked(length).ok_or(TableError::Length)?;
            rest = after;
            Ok(part)
        };
        let table = Self {
            bytes,
            machine,
            base,
            rules: part(rules, 8)?.as_chunks().0,
            groups: part(groups, 4)?.as_chunks().0,
            blocks: part(blocks, 2)?.as_chunks().0,
            row_rules: part(rows, 2)?.as_chunks().0,
            row_starts: part(rows, 1)?,
        };
        if rest.len() >= 8 || length % 8 != 0 {
            return Err(TableError::Length);
        }
        Ok(table)
    }

    fn is_consistent(&self) -> bool {
        let rows = self.row_starts.len();
        let mut next = 0;
        let blocks_fit = (0..self.blocks.len()).all(|block| match self.block_rows(block) {
            Some((start, end)) => {
                let contiguous = start == next && start <= end && end <= rows;
                next = end;
                let starts = self.row_starts.get(start..end).unwrap_or(&[]);
                contiguous && starts.is_sorted_by(|a, b| a < b)
            }
            None => false,
        });
        let rules_fit =
            self.row_rules.iter().all(|&index| usize::from(u16::from_le_bytes(index)) < self.rules.len());
        let is_valid =
            |rule: Rule| self.machine.links() || rule.return_address() != ReturnAddress::InRegister;
        let rules_valid =
            self.rules.iter().all(|&bits| Rule::from_bits(u64::from_le_bytes(bits)).is_some_and(is_valid));
        blocks_fit && next == rows && rules_fit && rules_valid
    }

    /// Index of a block's first row, and of the first row after the block.
    #[inline]
    fn block_rows(&self, block: usize) -> Option<(usize, usize)> {
        let start = self.first_row(block)?;
        let end = self.first_row(block + 1).unwrap_or(self.row_starts.len());
        Some((start, end))
    }

    #[inline]
    fn first_row(&self, block: usize) -> Option<usize> {
        let relative = u16::from_le_bytes(*self.blocks.get(block)?);
        let group = u32::from_le_bytes(*self.groups.get(block >> GROUP_SHIFT)?);
        Some(group as usize + usize::from(relative))
    }

    /// Prefetches what most lookups share: the rules, or the first ones of a large table.
    pub(crate) fn prefetch(&self) {
        native::prefetch(self.rules.get(..64).unwrap_or(self.rules));
    }

    /// The rule for virtual address `address`; [`Rule::UNCOVERED`] if no row covers it.
    #[inline]
    pub fn lookup(&self, address: u64) -> Rule {
        self.row(address).unwrap_or(Rule::UNCOVERED)
    }

    #[inline]
    fn row(&self, address: u64) -> Option<Rule> {
        // Wraps below the base, to more than the number of blocks.
        let distance = address.wrapping_sub(self.base) as usize;
        let (start, end) = self.block_rows(distance >> BLOCK_SHIFT)?;
        let rules = self.row_rules.get(start..end)?;
        // Prefetch the rules while the row starts are searched. They may span two cache lines.
        rules.first().into_iter().chain(rules.last()).for_each(native::prefetch);
        let starts = self.row_starts.get(start..end)?;
        let row = start + starts.partition_point(|&start| start <= distance as u8);
        self.rule(row.checked_sub(1)?)
    }

    fn rule(&self, row: usize) -> Option<Rule> {
        let index = u16::from_le_bytes(*self.row_rules.get(row)?);
        let bits = u64::from_le_bytes(*self.rules.get(usize::from(index))?);
        Rule::from_bits(bits)
    }

    /// All rows: first address and rule.
    pub fn rows(&self) -> impl Iterator<Item = (u64, Rule)> + '_ {
        (0..self.blocks.len()).flat_map(move |block| {
            let (start, end) = self.block_rows(block).unwrap_or((0, 0));
            let base = self.base + ((block as u64) << BLOCK_SHIFT);
            (start..end)
                .filter_map(move |row| Some((base + u64::from(*self.row_starts.get(row)?), self.rule(row)?)))
        })
    }

    /// The bytes of the table, without anything that follows it.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Machine of the file that it was compiled from.
    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// Build-id of the file that it was compiled from; empty if the file has none.
    pub fn build_id(&self) -> &'a [u8] {
        let length = u32_at(self.bytes, 64).unwrap_or(0) as usize;
        self.bytes.get(BUILD_ID_AT..BUILD_ID_AT + length.min(BUILD_ID_MAX)).unwrap_or(&[])
    }

    /// Identity of the file that it was compiled from; all zero if it was not compiled from a file.
    pub fn source(&self) -> Source {
        let number = |index: usize| u64_at(self.bytes, SOURCE_AT + 8 * index).unwrap_or(0);
        Source { device: number(0), inode: number(1), size: number(2), modified_ns: number(3) }
    }

    /// Number of rows.
    pub fn row_count(&self) -> usize {
        self.row_starts.len()
    }

    /// Number of distinct rules.
    pub fn rule_count(&self) -> usize {
        self.rules.len()
    }

    /// Number of FDEs that it was compiled from.
    pub fn fde_count(&self) -> u32 {
        u32_at(self.bytes, 52).unwrap_or(0)
    }

    /// Size in bytes of the `.eh_frame` that it was compiled from.
    pub fn eh_frame_length(&self) -> u64 {
        u64_at(self.bytes, 56).unwrap_or(0)
    }
}

/// The little-endian number at an offset, if there are enough bytes.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// The little-endian number at an offset, if there are enough bytes.
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}
