//! The functions of one ELF file that contain the requested addresses.
//!
//! Built from `.symtab`, `.dynsym` and names made up for linker stubs; read only after [`SymbolTable::sort`]. A file may have
//! hundreds of thousands of symbols, while a profile has some hundred addresses: the others are skipped at once.

use std::borrow::Cow;
use std::collections::HashSet;

use object::read::elf::{ElfFile64, SectionHeader as _, Sym as _, SymbolTable as ElfSymbols};
use object::{Endianness, SymbolIndex, elf};

/// A function: its address range and its linkage name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Symbol<'data> {
    /// First virtual address.
    pub address: u64,
    /// End address, exclusive; equal to `address` while the size is unknown.
    pub end: u64,
    /// How far a symbol without a size may reach: the end of its section.
    limit: u64,
    /// Preference among names at the same address; the greatest wins.
    rank: u8,
    /// Linkage name.
    pub name: Cow<'data, [u8]>,
}

impl<'data> Symbol<'data> {
    /// A linker stub of known size.
    pub(super) fn stub(address: u64, size: u64, name: Cow<'data, [u8]>) -> Self {
        let end = address.saturating_add(size);
        Symbol { address, end, limit: end, rank: 0, name }
    }
}

/// Symbols sorted by address.
#[derive(Debug, Default)]
pub(super) struct SymbolTable<'data> {
    symbols: Vec<Symbol<'data>>,
    /// The file has functions besides linker stubs, requested or not.
    named: bool,
    /// Greatest end among the symbols up to this one, which bounds backward searches.
    reach: Vec<u64>,
}

impl<'data> SymbolTable<'data> {
    /// Adds those functions of one ELF symbol table that begin where some function does that may hold one of the `asked`
    /// addresses (ascending), or where the last one before such an address does, since there one without a size ends.
    /// Nameless, undefined and absolute symbols, data and mapping symbols are left out.
    pub(super) fn add(
        &mut self,
        file: &ElfFile64<'data, Endianness>,
        symbols: &ElfSymbols<'data, elf::FileHeader64<Endianness>>,
        asked: &[u64],
    ) {
        // For each requested address, the greatest start after the previous requested address.
        let mut last = vec![None; asked.len()];
        let mut starts = HashSet::new();
        for function in functions(file, symbols) {
            self.named = true;
            let index = asked.partition_point(|&address| address < function.address);
            let Some(&next) = asked.get(index) else { continue };
            last[index] = last[index].max(Some(function.address));
            if next < if function.size == 0 { function.limit } else { function.end() } {
                starts.insert(function.address);
            }
        }
        let mut before = None;
        for greatest in last {
            before = before.max(greatest);
            starts.extend(before);
        }
        let kept = functions(file, symbols).filter(|function| starts.contains(&function.address));
        self.symbols.extend(kept.filter_map(|function| function.symbol(file.endian(), symbols)));
    }

    /// Adds symbols made up for linker stubs.
    pub(super) fn add_stubs(&mut self, stubs: impl IntoIterator<Item = Symbol<'data>>) {
        self.symbols.extend(stubs);
    }

    /// True if the file has function names, requested or not.
    pub(super) fn is_named(&self) -> bool {
        self.named
    }

    /// Sorts the symbols, keeps the best name of each address, and extends symbols without a size to the next one.
    pub(super) fn sort(&mut self) {
        self.symbols.sort_unstable_by(|a, b| {
            (a.address.cmp(&b.address))
                .then_with(|| b.rank.cmp(&a.rank))
                .then_with(|| plainness(&a.name).cmp(&plainness(&b.name)))
                .then_with(|| a.name.cmp(&b.name))
        });
        self.symbols.dedup_by_key(|symbol| symbol.address);
        let mut next = u64::MAX;
        for symbol in self.symbols.iter_mut().rev() {
            if symbol.end <= symbol.address {
                symbol.end = symbol.limit.min(next);
            }
            next = symbol.address;
        }
        let mut reach = 0;
        self.reach = self
            .symbols
            .iter()
            .map(|symbol| {
                reach = symbol.end.max(reach);
                reach
            })
            .collect();
    }

    /// The innermost function that contains `address`.
    pub(super) fn find(&self, address: u64) -> Option<&Symbol<'data>> {
        let behind = self.symbols.partition_point(|symbol| symbol.address <= address);
        for at in (0..behind).rev() {
            if self.symbols[at].end > address {
                return Some(&self.symbols[at]);
            }
            if self.reach[at] <= address {
                return None;
            }
        }
        None
    }
}

/// A function of an ELF symbol table, but for its name, which costs more than the rest.
struct Function {
    index: SymbolIndex,
    address: u64,
    size: u64,
    /// The end of its section.
    limit: u64,
    rank: u8,
}

impl Function {
    fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }

    fn symbol<'data>(
        &self,
        endian: Endianness,
        symbols: &ElfSymbols<'data, elf::FileHeader64<Endianness>>,
    ) -> Option<Symbol<'data>> {
        let name = symbols.symbol(self.index).ok()?.name(endian, symbols.strings()).ok()?;
        let symbol = Symbol {
            address: self.address,
            end: self.end(),
            limit: self.limit,
            rank: self.rank,
            name: Cow::Borrowed(name),
        };
        (!name.is_empty()).then_some(symbol)
    }
}

fn functions<'data>(
    file: &ElfFile64<'data, Endianness>,
    symbols: &ElfSymbols<'data, elf::FileHeader64<Endianness>>,
) -> impl Iterator<Item = Function> {
    let endian = file.endian();
    symbols.enumerate().filter_map(move |(index, symbol)| {
        let typed = match symbol.st_type() {
            elf::STT_FUNC | elf::STT_GNU_IFUNC => true,
            elf::STT_NOTYPE => false,
            _ => return None,
        };
        let section = symbols.symbol_section(endian, symbol, index).ok()??;
        let section = file.elf_section_table().section(section).ok()?;
        if section.sh_flags(endian) & u64::from(elf::SHF_EXECINSTR) == 0 || symbol.st_name(endian) == 0 {
            return None;
        }
        if !typed {
            let name = symbol.name(endian, symbols.strings()).ok()?;
            if name.is_empty() || name[0] == b'$' || name.starts_with(b".L") {
                return None;
            }
        }
        let size = symbol.st_size(endian);
        let binding = match symbol.st_bind() {
            elf::STB_GLOBAL | elf::STB_GNU_UNIQUE => 2,
            elf::STB_WEAK => 1,
            _ => 0,
        };
        Some(Function {
            index,
            address: symbol.st_value(endian),
            size,
            limit: section.sh_addr(endian).saturating_add(section.sh_size(endian)),
            rank: u8::from(typed) << 4 | u8::from(size > 0) << 3 | binding,
        })
    })
}

/// How far an alias is from the function's usual name: public names have fewer leading underscores, no outdated version
/// (`name@OLD`; the current one is `name@@NEW`), and fewer letters.
fn plainness(name: &[u8]) -> (usize, bool, usize) {
    let underscores = name.iter().take_while(|&&byte| byte == b'_').count();
    let length = name.iter().position(|&byte| byte == b'@').unwrap_or(name.len());
    let outdated = name.len() > length && name.get(length + 1) != Some(&b'@');
    (underscores, outdated, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(address: u64, size: u64, rank: u8, name: &'static str) -> Symbol<'static> {
        Symbol { address, end: address + size, limit: 0x1000, rank, name: Cow::Borrowed(name.as_bytes()) }
    }

    fn name_at(table: &SymbolTable<'_>, address: u64) -> String {
        table.find(address).map_or(String::new(), |s| String::from_utf8_lossy(&s.name).into_owned())
    }

    #[test]
    fn finds_sized_sizeless_nested_and_aliased_functions() {
        let mut table = SymbolTable::default();
        table.add_stubs([
            symbol(0x500, 0, 0, "label"),
            symbol(0x100, 0x100, 26, "outer"),
            symbol(0x140, 0x10, 26, "inner"),
            symbol(0x300, 0x10, 25, "weak"),
            symbol(0x300, 0x10, 26, "__global"),
            symbol(0x300, 0x10, 26, "_global"),
            symbol(0x600, 0x10, 26, "last"),
            symbol(0x700, 0x10, 26, "__libc_free"),
            symbol(0x700, 0x10, 26, "cfree"),
            symbol(0x700, 0x10, 26, "free@@NEW"),
            symbol(0x700, 0x10, 26, "fre@OLD"),
        ]);
        table.sort();
        assert_eq!(name_at(&table, 0xff), "");
        assert_eq!(name_at(&table, 0x100), "outer");
        assert_eq!(name_at(&table, 0x14f), "inner");
        assert_eq!(name_at(&table, 0x150), "outer");
        assert_eq!(name_at(&table, 0x1ff), "outer");
        assert_eq!(name_at(&table, 0x200), "");
        assert_eq!(name_at(&table, 0x305), "_global");
        assert_eq!(name_at(&table, 0x5ff), "label");
        assert_eq!(name_at(&table, 0x610), "");
        assert_eq!(name_at(&table, 0x700), "free@@NEW");
    }
}
