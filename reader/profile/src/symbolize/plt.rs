//! Names of PLT stubs: an entry of the procedure linkage table that jumps to `malloc` is `malloc@plt`.
//!
//! The code is decoded rather than the entries counted: each x86-64 stub contains `jmp *slot(%rip)`, and the relocation of
//! the slot names the function. That is so for lazy, immediate and IBT tables of every linker.

use std::borrow::Cow;
use std::collections::HashMap;

use object::read::elf::{ElfFile64, SectionHeader as _};
use object::{Endianness, Object, ObjectSymbol, ObjectSymbolTable, RelocationTarget, elf};

use super::symbol_table::Symbol;

/// `jmp *disp32(%rip)`
const JUMP: [u8; 2] = [0xff, 0x25];

/// The stubs of a file as symbols. Empty for architectures whose stubs are not known here.
pub(super) fn stubs<'data>(file: &ElfFile64<'data, Endianness>) -> Vec<Symbol<'data>> {
    if file.elf_header().e_machine.get(file.endian()) != elf::EM_X86_64 {
        return Vec::new();
    }
    let slots = slots(file);
    let mut stubs = Vec::new();
    for section in file.elf_section_table().iter() {
        let endian = file.endian();
        let name = file.elf_section_table().section_name(endian, section).unwrap_or_default();
        if !matches!(name, b".plt" | b".plt.sec" | b".plt.got" | b".plt.bnd" | b".iplt") {
            continue;
        }
        let Ok(bytes) = section.data(endian, file.data()) else { continue };
        let address = section.sh_addr(endian);
        let size = entry_size(name, section.sh_entsize(endian), bytes);
        for (index, entry) in bytes.chunks_exact(size).enumerate() {
            let entry_address = address.wrapping_add((index * size) as u64);
            let function = target(entry, entry_address).and_then(|slot| slots.get(&slot));
            let name = match function {
                Some(function) => [function, b"@plt".as_slice()].concat(),
                None if index == 0 && name == b".plt" => b"[plt]".to_vec(),
                None => continue,
            };
            stubs.push(Symbol::stub(entry_address, size as u64, Cow::Owned(name)));
        }
    }
    stubs
}

/// Size of a stub: 8 bytes in `.plt.got` without IBT, otherwise 16. Linkers do not always record it.
fn entry_size(section: &[u8], told: u64, bytes: &[u8]) -> usize {
    match told {
        8 | 16 => told as usize,
        _ if section == b".plt.got" && bytes.get(8..10) == Some(&JUMP) => 8,
        _ => 16,
    }
}

/// The slot that the stub at `address` jumps through.
fn target(entry: &[u8], address: u64) -> Option<u64> {
    let at = entry.windows(2).position(|bytes| bytes == JUMP)?;
    let displacement = i32::from_le_bytes(entry.get(at + 2..at + 6)?.try_into().ok()?);
    Some(address.wrapping_add(at as u64 + 6).wrapping_add_signed(i64::from(displacement)))
}

/// The function of each slot that the dynamic linker fills.
fn slots<'data>(file: &ElfFile64<'data, Endianness>) -> HashMap<u64, &'data [u8]> {
    let mut slots = HashMap::new();
    let (Some(relocations), Some(symbols)) = (file.dynamic_relocations(), file.dynamic_symbol_table()) else {
        return slots;
    };
    for (slot, relocation) in relocations {
        if let RelocationTarget::Symbol(index) = relocation.target()
            && let Ok(symbol) = symbols.symbol_by_index(index)
            && let Ok(name) = symbol.name_bytes()
            && !name.is_empty()
        {
            slots.insert(slot, name);
        }
    }
    slots
}
