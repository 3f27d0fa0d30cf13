//! Names, source lines and inlined functions of Go programs, from the table in which Go's runtime itself finds them.

use std::collections::BTreeMap;

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, RelocationTarget, SectionKind};
use unwind::go_table::{self, Field, GoFunction, GoTable, Version, u32_at, u64_at};

use super::dwarf::Call;

/// Index among a function's programs: the innermost inlined function.
const INLINED_AT: usize = 2;
/// Index among a function's other data: the tree of inlined functions.
const INLINED_TREE: usize = 3;
/// Maximum depth of inlined functions; real ones are some tens deep.
const DEEPEST: usize = 100;

/// The table of one file.
pub(super) struct GoLines<'a> {
    table: GoTable<'a>,
    /// Data of functions, among them the trees of inlined functions; empty if not found.
    data: &'a [u8],
}

impl<'a> GoLines<'a> {
    /// The table in `file`, if there is a readable one.
    pub(super) fn of(file: &ElfFile64<'a, Endianness>) -> Option<Self> {
        let section = file
            .sections()
            .find(|section| section.name().is_ok_and(|name| name.ends_with(go_table::SECTION)))?;
        let bytes = section.data().ok()?;
        let mut table = GoTable::parse(bytes)?;
        let mut data = Default::default();
        if table.version > Version::Go116 {
            let module = Module::find(file, section.address(), GoTable::names_offset(bytes)?);
            if let Some(module) = &module {
                table.text = module.text();
                data = data_from(file, module.function_data(table.version)).unwrap_or_default();
            }
            if table.text == 0 {
                return None;
            }
        }
        Some(Self { table, data })
    }

    /// The functions at a virtual address, innermost first; the last one is the function that contains the code. Empty if the table
    /// does not cover the address.
    pub(super) fn calls<'c>(&'c self, address: u64, calls: &mut Vec<Call<'a, 'c>>) {
        calls.clear();
        let Some(function) = self.table.find(address) else { return };
        let mut at = address;
        while let Some(inlined) = self.inlined(&function, at).filter(|_| calls.len() < DEEPEST) {
            calls.push(self.call(&function, Some(inlined.name), at));
            at = function.start.saturating_add(inlined.parent);
        }
        calls.push(self.call(&function, self.table.field(&function, Field::Name), at));
    }

    fn call<'c>(&'c self, function: &GoFunction<'a>, name: Option<u32>, at: u64) -> Call<'a, 'c> {
        let value = |field| {
            let value = self.table.value(function, self.table.field(function, field)?, at)?;
            u32::try_from(value).ok()
        };
        let file = || {
            let index = self.table.field(function, Field::Unit)?.checked_add(value(Field::FileProgram)?)?;
            let offset = u32_at(self.table.units, 4 * index as usize)?;
            std::str::from_utf8(text_at(self.table.files, offset)?).ok()
        };
        Call {
            name: name.and_then(|offset| text_at(self.table.names, offset)),
            short: false,
            file: file(),
            line: value(Field::LineProgram).filter(|&line| line != 0),
        }
    }

    /// The innermost function that is inlined at an address.
    fn inlined(&self, function: &GoFunction<'a>, at: u64) -> Option<Inlined> {
        let programs = self.table.field(function, Field::Programs)? as usize;
        let (entry, name, parent) = match self.table.version {
            Version::Go116 => return None,
            Version::Go118 => (20, 12, 16),
            Version::Go120 => (16, 4, 8),
        };
        let header = self.table.version.record_size();
        // The last byte of the fixed part is the number of other data.
        let others = usize::from(*function.record.get(header - 1)?);
        if programs <= INLINED_AT || others <= INLINED_TREE || self.data.is_empty() {
            return None;
        }
        let program = u32_at(function.record, header + 4 * INLINED_AT)?;
        let index = usize::try_from(self.table.value(function, program, at)?).ok()?;
        let tree = u32_at(function.record, header + 4 * (programs + INLINED_TREE))?;
        let inlined = self.data.get(tree as usize..)?.get(entry * index..)?;
        Some(Inlined { name: u32_at(inlined, name)?, parent: u32_at(inlined, parent)?.into() })
    }
}

/// A function that is inlined: where its name is, and from where in the function it is called.
struct Inlined {
    name: u32,
    parent: u64,
}

/// The runtime's description of the program.
struct Module {
    words: [u64; Self::WORDS],
}

impl Module {
    const WORDS: usize = 48;
    const NAMES: usize = 1;
    const TEXT: usize = 22;

    /// Address of the code.
    fn text(&self) -> u64 {
        self.words[Self::TEXT]
    }

    /// Address of the data of functions.
    fn function_data(&self, version: Version) -> u64 {
        self.words[if version < Version::Go120 { 38 } else { 40 }]
    }

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
                |&index: &usize| word(index) == Some(table) && word(index + Self::NAMES) == Some(names);
            if let Some(first) = (0..bytes.len() / 8).find(is_module) {
                let mut words = [0; Self::WORDS];
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

/// The text at an offset, which ends before a zero byte.
fn text_at(bytes: &[u8], offset: u32) -> Option<&[u8]> {
    let bytes = bytes.get(offset as usize..)?;
    bytes.split(|&byte| byte == 0).next().filter(|text| !text.is_empty())
}
