//! Functions, source lines and inlined functions of Go programs, from the table (`.gopclntab`) in which Go's runtime itself finds
//! them.
//!
//! It is in every Go program, also in a stripped one. Its format is that of Go 1.16, 1.18 or 1.20 and later (src/runtime/symtab.go);
//! older ones are left out. What must never happen here: an offset is trusted.

use std::collections::BTreeMap;

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, RelocationTarget, SectionKind};

use super::dwarf::Call;

/// Index among a function's data by program counter: the innermost inlined function.
const INLINED_AT: usize = 2;
/// Index among a function's other data: the tree of inlined functions.
const INLINED_TREE: usize = 3;
/// Maximum depth of inlined functions; real ones are some tens deep.
const DEEPEST: usize = 100;
/// Words of the module data: the table, text, and the base of data of functions.
const MODULE_WORDS: usize = 48;
const MODULE_NAMES: usize = 1;
const MODULE_TEXT: usize = 22;

/// The versions of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Version {
    Go116,
    Go118,
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

    /// Position of the base of data of functions in the module data.
    fn module_data(self) -> usize {
        if self < Self::Go120 { 38 } else { 40 }
    }
}

/// The table of one file.
pub(super) struct GoTable<'a> {
    version: Version,
    /// Address of the code, from which functions are counted.
    text: u64,
    /// The index of functions and, behind it, their records.
    functions: &'a [u8],
    count: usize,
    names: &'a [u8],
    units: &'a [u8],
    files: &'a [u8],
    programs: &'a [u8],
    /// Data of functions, among them the trees of inlined functions; empty if not found.
    data: &'a [u8],
}

/// A function in the table.
#[derive(Clone, Copy)]
struct Function<'a> {
    start: u64,
    record: &'a [u8],
}

impl<'a> GoTable<'a> {
    /// The table in `file`, if there is a readable one.
    pub(super) fn of(file: &ElfFile64<'a, Endianness>) -> Option<Self> {
        let section = file.sections().find(|section| {
            section.name().is_ok_and(|name| name == ".gopclntab" || name == ".data.rel.ro.gopclntab")
        })?;
        let (table, address) = (section.data().ok()?, section.address());
        let version = Version::of(u32_at(table, 0)?)?;
        // The smallest length of an instruction, and the size of a pointer.
        if (table.get(6), table.get(7)) != (Some(&1), Some(&8)) {
            return None;
        }
        // From 1.18 on the address of the code comes behind the numbers of functions and files.
        let first = if version == Version::Go116 { 3 } else { 4 };
        let part = |index: usize| table.get(usize::try_from(u64_at(table, 8 * (first + index))?).ok()?..);
        let module = Module::find(file, address, u64_at(table, 8 * first)?);
        let named_text = || u64_at(table, 24).filter(|text| *text != 0);
        let text = match version {
            Version::Go116 => 0,
            _ => module.as_ref().map(|module| module.words[MODULE_TEXT]).or_else(named_text)?,
        };
        let data = module.filter(|_| version > Version::Go116);
        Some(Self {
            version,
            text,
            count: usize::try_from(u64_at(table, 8)?).ok()?,
            names: part(0)?,
            units: part(1)?,
            files: part(2)?,
            programs: part(3)?,
            functions: part(4)?,
            data: data
                .and_then(|module| data_from(file, module.words[version.module_data()]))
                .unwrap_or_default(),
        })
    }

    /// The functions at a virtual address, innermost first; the last one is the function that contains the code. Empty if the table
    /// does not cover the address.
    pub(super) fn calls<'c>(&'c self, address: u64, calls: &mut Vec<Call<'a, 'c>>) {
        calls.clear();
        let Some(function) = self.find(address) else { return };
        let mut at = address;
        while let Some(inlined) = self.inlined(&function, at) {
            if calls.len() >= DEEPEST {
                break;
            }
            calls.push(self.call(&function, inlined.name, at));
            at = function.start.saturating_add(inlined.parent);
        }
        calls.push(self.call(&function, self.field(&function, Field::Name), at));
    }

    fn call<'c>(&'c self, function: &Function<'a>, name: Option<u32>, at: u64) -> Call<'a, 'c> {
        let value = |field| self.value(function, self.field(function, field)?, at);
        let file = || {
            let index = self
                .field(function, Field::Unit)?
                .checked_add(u32::try_from(value(Field::FileProgram)?).ok()?)?;
            let offset = u32_at(self.units, 4 * index as usize)?;
            std::str::from_utf8(text_at(self.files, offset)?).ok()
        };
        let line = value(Field::LineProgram).and_then(|line| u32::try_from(line).ok());
        Call {
            name: name.and_then(|offset| text_at(self.names, offset)),
            short: false,
            file: file(),
            line: line.filter(|&line| line != 0),
        }
    }

    /// The start of a function, and the offset of its record. Behind the last function is an entry with the end of the code.
    fn entry(&self, index: usize) -> Option<(u64, usize)> {
        let size = if self.version == Version::Go116 { 16 } else { 8 };
        let entry = self.functions.get(index.checked_mul(size)?..)?;
        let (start, record) = match self.version {
            Version::Go116 => (u64_at(entry, 0)?, u64_at(entry, 8).unwrap_or(0)),
            _ => (self.text.checked_add(u32_at(entry, 0)?.into())?, u32_at(entry, 4).unwrap_or(0).into()),
        };
        Some((start, usize::try_from(record).ok()?))
    }

    /// The function that contains an address.
    fn find(&self, address: u64) -> Option<Function<'a>> {
        let (mut low, mut high) = (0, self.count);
        if self.entry(self.count)?.0 <= address || self.entry(0)?.0 > address {
            return None;
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.entry(middle)?.0 <= address { low = middle } else { high = middle }
        }
        let (start, offset) = self.entry(low)?;
        Some(Function { start, record: self.functions.get(offset..)? })
    }

    fn field(&self, function: &Function<'a>, field: Field) -> Option<u32> {
        // The record begins with the function's address, which later versions have in half the size.
        let behind_address = if self.version == Version::Go116 { 8 } else { 4 };
        u32_at(function.record, behind_address + field as usize)
    }

    /// The value of one of a function's programs at an address: increments of the value, each with the length of the code for which it
    /// holds.
    fn value(&self, function: &Function<'a>, program: u32, at: u64) -> Option<i32> {
        let mut bytes = self.programs.get(program as usize..).filter(|_| program != 0)?;
        let (mut value, mut end) = (-1i32, function.start);
        let mut is_first = true;
        loop {
            let increment = varint(&mut bytes)?;
            if increment == 0 && !is_first {
                return None;
            }
            is_first = false;
            value = value.wrapping_add((increment >> 1) as i32 ^ -((increment & 1) as i32));
            end = end.checked_add(varint(&mut bytes)?.into())?;
            if at < end {
                return Some(value);
            }
        }
    }

    /// The innermost function that is inlined at an address.
    fn inlined(&self, function: &Function<'a>, at: u64) -> Option<Inlined> {
        let programs = self.field(function, Field::Programs)? as usize;
        let (header, entry, name, parent) = match self.version {
            Version::Go116 => return None,
            Version::Go118 => (40, 20, 12, 16),
            Version::Go120 => (44, 16, 4, 8),
        };
        // The last byte before the programs is the number of other data.
        let others = usize::from(*function.record.get(header - 1)?);
        if programs <= INLINED_AT || others <= INLINED_TREE || self.data.is_empty() {
            return None;
        }
        let program = u32_at(function.record, header + 4 * INLINED_AT)?;
        let index = usize::try_from(self.value(function, program, at)?).ok()?;
        let tree = u32_at(function.record, header + 4 * (programs + INLINED_TREE))?;
        let inlined = self.data.get(tree as usize..)?.get(entry * index..)?;
        Some(Inlined { name: Some(u32_at(inlined, name)?), parent: u32_at(inlined, parent)?.into() })
    }
}

/// A function that is inlined: where its name is, and from where in the function it is called.
struct Inlined {
    name: Option<u32>,
    parent: u64,
}

/// Fields of a function's record, by their offset behind its address.
#[derive(Clone, Copy)]
enum Field {
    Name = 0,
    FileProgram = 16,
    LineProgram = 20,
    Programs = 24,
    Unit = 28,
}

/// The runtime's description of the program.
struct Module {
    words: [u64; MODULE_WORDS],
}

impl Module {
    /// Finds it by its first words: the addresses of the table and of the names in it.
    fn find(file: &ElfFile64<'_, Endianness>, table: u64, names: u64) -> Option<Self> {
        let names = table.checked_add(names)?;
        // In a position-independent file the words are in the relocations.
        let relocated = file.dynamic_relocations().into_iter().flatten().filter_map(|(at, relocation)| {
            (relocation.target() == RelocationTarget::Absolute).then_some((at, relocation.addend() as u64))
        });
        let relocated: BTreeMap<u64, u64> = relocated.collect();
        let writable = file.sections().filter(|section| section.kind() == SectionKind::Data);
        for section in writable {
            let (Ok(bytes), address) = (section.data(), section.address()) else { continue };
            let word = |index: usize| {
                let own = u64_at(bytes, 8 * index)?;
                Some(relocated.get(&(address + 8 * index as u64)).copied().unwrap_or(own))
            };
            let is_module =
                |&index: &usize| word(index) == Some(table) && word(index + MODULE_NAMES) == Some(names);
            if let Some(first) = (0..bytes.len() / 8).find(is_module) {
                let mut words = [0; MODULE_WORDS];
                for (index, found) in words.iter_mut().enumerate() {
                    *found = word(first + index)?;
                }
                return Some(Self { words });
            }
        }
        None
    }
}

/// What a file has from a virtual address to the end of the section there.
fn data_from<'a>(file: &ElfFile64<'a, Endianness>, address: u64) -> Option<&'a [u8]> {
    let holds = |start: u64, size: u64| (start..start.saturating_add(size)).contains(&address);
    let section = file.sections().find(|section| holds(section.address(), section.size()))?;
    section.data().ok()?.get(usize::try_from(address - section.address()).ok()?..)
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes.get(offset..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// The text at an offset, which ends before a zero byte.
fn text_at(bytes: &[u8], offset: u32) -> Option<&[u8]> {
    let bytes = bytes.get(offset as usize..)?;
    bytes.split(|&byte| byte == 0).next().filter(|text| !text.is_empty())
}

/// A number of 7 bits a byte, the lowest first.
fn varint(bytes: &mut &[u8]) -> Option<u32> {
    let mut value = 0u32;
    for shift in (0..32).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u32::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
