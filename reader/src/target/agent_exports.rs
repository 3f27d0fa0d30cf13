//! Withdraws names from the agent's library, so that the loader does not bind them to it.
//!
//! One build interposes allocator, locks and mappings. A program must not pass through functions that its recording does
//! not use: they would cost it more than the recording itself. A symbol that is made local is ignored by every loader,
//! as if the library did not have it. What must never happen here: a change to anything else in the file.

use std::collections::BTreeSet;

use object::elf::{FileHeader64, SHT_DYNSYM, STB_LOCAL};
use object::read::elf::{ElfFile64, SectionHeader as _, Sym as _};
use object::{Endianness, SymbolIndex};

use crate::sampling::sources::Interposed;

/// What is interposed under this name, which only the build with all three has.
fn interposed(name: &str) -> Interposed {
    match name {
        "mmap" | "mmap64" | "munmap" | "mremap" => Interposed::Mappings,
        name if ["pthread_", "sem_", "mtx_", "cnd_"].iter().any(|start| name.starts_with(start)) => {
            Interposed::Locks
        }
        _ => Interposed::Allocator,
    }
}

/// `library`, with only the `wanted` names of those that the build `plain` does not have. `None` if either is no library.
pub(super) fn with_only(wanted: &[Interposed], library: &[u8], plain: &[u8]) -> Option<Vec<u8>> {
    let always: BTreeSet<String> = names(plain)?.into_iter().map(|(name, _)| name).collect();
    let mut changed = library.to_vec();
    for (name, info) in names(library)? {
        if !always.contains(&name) && !wanted.contains(&interposed(&name)) {
            let info = changed.get_mut(info)?;
            *info = STB_LOCAL << 4 | *info & 0xf;
        }
    }
    Some(changed)
}

/// The names that a library defines, and where in the file the byte with their symbol's binding is.
fn names(library: &[u8]) -> Option<Vec<(String, usize)>> {
    /// Offset of `st_info` in a symbol.
    const INFO: usize = 4;
    type File<'a> = ElfFile64<'a, Endianness>;
    type Symbol = <FileHeader64<Endianness> as object::read::elf::FileHeader>::Sym;
    let file: File<'_> = ElfFile64::parse(library).ok()?;
    let (endian, sections) = (file.endian(), file.elf_section_table());
    let table = sections.symbols(endian, library, SHT_DYNSYM).ok()?;
    let start = sections.section(table.section()).ok()?.sh_offset(endian) as usize;
    let mut names = Vec::new();
    for (SymbolIndex(index), symbol) in table.enumerate() {
        if symbol.st_bind() != STB_LOCAL && !symbol.is_undefined(endian) {
            let name = table.symbol_name(endian, symbol).ok()?;
            names.push((String::from_utf8(name.to_vec()).ok()?, start + index * size_of::<Symbol>() + INFO));
        }
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::agent_file;

    #[test]
    fn what_is_not_wanted_is_not_there() {
        let Some((plain, probes)) = agent_file::builds() else { return };
        let exported = |library: &[u8]| -> BTreeSet<String> {
            names(library).unwrap().into_iter().map(|(name, _)| name).collect()
        };
        let always = exported(plain);
        let more = |wanted: &[Interposed]| -> BTreeSet<String> {
            let library = with_only(wanted, probes, plain).unwrap();
            assert_eq!(library.len(), probes.len());
            exported(&library).difference(&always).cloned().collect()
        };
        assert!(more(&[]).is_empty());
        let groups = [Interposed::Allocator, Interposed::Locks, Interposed::Mappings];
        let each = groups.map(|group| more(&[group]));
        for (names, (some, count)) in each.iter().zip([
            (["malloc", "free", "_Znwm"], 30),
            (["pthread_mutex_lock", "sem_wait", "mtx_lock"], 28),
            (["mmap", "munmap", "mremap"], 4),
        ]) {
            assert!(some.iter().all(|name| names.contains(*name)), "{names:?}");
            assert_eq!(names.len(), count, "{names:?}");
        }
        assert_eq!(with_only(&groups, probes, plain).unwrap(), probes, "all are wanted");
    }

    #[test]
    fn what_is_no_library_is_left_alone() {
        assert_eq!(with_only(&[], b"no library", b"nor this"), None);
    }
}
