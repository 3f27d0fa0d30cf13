//! The table (`.gopclntab`) in which the runtime of a Go program finds its functions, and how far each has moved the stack pointer.
//!
//! It is in every Go program, also in a stripped one. Its format is that of Go 1.16, 1.18 or 1.20 and later (src/runtime/symtab.go);
//! older ones are left out, as are those of other machines than x86-64. What must never happen here: an offset is trusted.

pub use crate::table::{u32_at, u64_at};

/// The name of its section; in position-independent programs of earlier versions of Go, the end of the name.
pub const SECTION: &str = ".gopclntab";

/// The versions of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// Go 1.16 and 1.17.
    Go116,
    /// Go 1.18 and 1.19.
    Go118,
    /// Go 1.20 and later.
    Go120,
}

impl Version {
    fn of(magic: u32) -> Option<Self> {
        match magic {
            0xffff_fffa => Some(Self::Go116),
            0xffff_fff0 => Some(Self::Go118),
            0xffff_fff1 => Some(Self::Go120),
            _ => None,
        }
    }

    /// Size of the fixed part of a function's record.
    #[must_use]
    pub fn record_size(self) -> usize {
        match self {
            Self::Go116 => 44,
            Self::Go118 => 40,
            Self::Go120 => 44,
        }
    }
}

/// The table of one file.
#[derive(Clone, Copy, Debug)]
pub struct GoTable<'a> {
    /// The version of its format.
    pub version: Version,
    /// Address of the code, from which functions are counted; 0 if the file does not say it.
    pub text: u64,
    /// The number of functions.
    pub count: usize,
    /// Names of functions.
    pub names: &'a [u8],
    /// Indices of source files, for each unit of compilation.
    pub units: &'a [u8],
    /// Names of source files.
    pub files: &'a [u8],
    programs: &'a [u8],
    /// The index of functions and, behind it, their records.
    functions: &'a [u8],
}

/// A function in the table.
#[derive(Clone, Copy, Debug)]
pub struct GoFunction<'a> {
    /// Its first address.
    pub start: u64,
    /// The address behind it.
    pub end: u64,
    /// Its record.
    pub record: &'a [u8],
}

/// Fields of a function's record, by their offset behind its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Offset of its name.
    Name = 0,
    /// The program of its stack pointer: how far it is below that at the function's start, in bytes.
    StackProgram = 12,
    /// The program of source files.
    FileProgram = 16,
    /// The program of source lines.
    LineProgram = 20,
    /// The number of further programs.
    Programs = 24,
    /// First index of its unit of compilation in `units`.
    Unit = 28,
}

impl<'a> GoTable<'a> {
    /// The table with these contents; `None` if it is none, of another version, or of another machine.
    #[must_use]
    pub fn parse(table: &'a [u8]) -> Option<Self> {
        let version = Version::of(u32_at(table, 0)?)?;
        // The smallest length of an instruction, and the size of a pointer.
        if (table.get(6), table.get(7)) != (Some(&1), Some(&8)) {
            return None;
        }
        // From 1.18 on the address of the code comes behind the numbers of functions and files.
        let (first, text) = match version {
            Version::Go116 => (3, 0),
            _ => (4, u64_at(table, 24)?),
        };
        let part = |index: usize| table.get(usize::try_from(u64_at(table, 8 * (first + index))?).ok()?..);
        Some(Self {
            version,
            text,
            count: usize::try_from(u64_at(table, 8)?).ok()?,
            names: part(0)?,
            units: part(1)?,
            files: part(2)?,
            programs: part(3)?,
            functions: part(4)?,
        })
    }

    /// Offset of the names in the table.
    #[must_use]
    pub fn names_offset(table: &[u8]) -> Option<u64> {
        let first = if Version::of(u32_at(table, 0)?)? == Version::Go116 { 3 } else { 4 };
        u64_at(table, 8 * first)
    }

    /// The start of a function, and the offset of its record. Behind the last function is an entry with the end of the code.
    fn entry(&self, index: usize) -> Option<(u64, u64)> {
        let size = if self.version == Version::Go116 { 16 } else { 8 };
        let entry = self.functions.get(index.checked_mul(size)?..)?;
        Some(match self.version {
            Version::Go116 => (u64_at(entry, 0)?, u64_at(entry, 8).unwrap_or(0)),
            _ => (self.text.checked_add(u32_at(entry, 0)?.into())?, u32_at(entry, 4).unwrap_or(0).into()),
        })
    }

    /// The function with this number.
    #[must_use]
    pub fn function(&self, number: usize) -> Option<GoFunction<'a>> {
        let (start, offset) = self.entry(number).filter(|_| number < self.count)?;
        let (end, _) = self.entry(number.checked_add(1)?)?;
        Some(GoFunction { start, end, record: self.functions.get(usize::try_from(offset).ok()?..)? })
    }

    /// The function that contains an address.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<GoFunction<'a>> {
        let (mut low, mut high) = (0, self.count);
        while high.checked_sub(low)? > 1 {
            let middle = low + (high - low) / 2;
            if self.entry(middle)?.0 <= address { low = middle } else { high = middle }
        }
        self.function(low).filter(|function| (function.start..function.end).contains(&address))
    }

    /// A field of a function.
    #[must_use]
    pub fn field(&self, function: &GoFunction<'a>, field: Field) -> Option<u32> {
        // The record begins with the function's address, which later versions have in half the size.
        let behind_address = if self.version == Version::Go116 { 8 } else { 4 };
        u32_at(function.record, behind_address + field as usize)
    }

    /// The values of one of a function's programs, each with the address up to which it holds.
    #[must_use]
    pub fn values(&self, function: &GoFunction<'a>, program: u32) -> Values<'a> {
        let bytes = self.programs.get(program as usize..).filter(|_| program != 0);
        Values { bytes: bytes.unwrap_or_default(), value: -1, end: function.start, is_first: true }
    }

    /// The value of one of a function's programs at an address.
    #[must_use]
    pub fn value(&self, function: &GoFunction<'a>, program: u32, at: u64) -> Option<i32> {
        self.values(function, program).find(|(end, _)| at < *end).map(|(_, value)| value)
    }
}

/// A program: increments of a value, each with the length of the code for which it holds.
#[derive(Clone, Debug)]
pub struct Values<'a> {
    bytes: &'a [u8],
    value: i32,
    end: u64,
    is_first: bool,
}

impl Iterator for Values<'_> {
    type Item = (u64, i32);

    fn next(&mut self) -> Option<Self::Item> {
        let increment = self.varint()?;
        if increment == 0 && !core::mem::take(&mut self.is_first) {
            self.bytes = &[];
            return None;
        }
        self.is_first = false;
        // The lowest bit is the sign.
        self.value = self.value.wrapping_add((increment >> 1) as i32 ^ -((increment & 1) as i32));
        self.end = self.end.checked_add(self.varint()?.into())?;
        Some((self.end, self.value))
    }
}

impl Values<'_> {
    /// A number of 7 bits a byte, the lowest first.
    fn varint(&mut self) -> Option<u32> {
        let mut value = 0u32;
        for shift in (0..32).step_by(7) {
            let (&byte, rest) = self.bytes.split_first()?;
            self.bytes = rest;
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}
