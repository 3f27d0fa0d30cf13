//! Finds executable file mappings that a program made itself, without the loader, in /proc/PID/maps.
//!
//! V8, for example, maps its built-in functions a second time near the code it generates. The agent does not see that.

use std::collections::BTreeSet;
use std::fs::File;

use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object, ReadCache, elf};
use selfwind_profile::profile_file::{ModuleInfo, ProcessInfo};

use crate::proc::{Mapping, PAGE};
use crate::process_files;

/// These modules are numbered from here on; the agent's numbers are lower.
const NUMBERS: u32 = 3 << 30;

/// The modules in `mappings` at sampled addresses outside all known modules. `found_before` is how many of them were found before.
pub(crate) fn find(
    mappings: &[Mapping],
    process: &ProcessInfo,
    sampled: &BTreeSet<u64>,
    found_before: u32,
) -> Vec<ModuleInfo> {
    let mut modules = Vec::new();
    let code = |mapping: &&Mapping| mapping.executable && mapping.is_of_file() && !mapping.is_deleted;
    for mapping in mappings.iter().filter(code) {
        if mapping.start < mapping.end
            && sampled.range(mapping.start..mapping.end).next().is_some()
            && let Some(module) = describe(mapping, process, NUMBERS + found_before + modules.len() as u32)
        {
            modules.push(module);
        }
    }
    modules
}

fn describe(mapping: &Mapping, process: &ProcessInfo, number: u32) -> Option<ModuleInfo> {
    let content = ReadCache::new(process_files::mapped_file(mapping, process.pid)?);
    let elf = ElfFile64::<Endianness, _>::parse(&content).ok()?;
    Some(ModuleInfo {
        process: process.id,
        module: number,
        start: mapping.start,
        end: mapping.end,
        bias: bias(mapping, &elf, &content)?,
        path: mapping.path.clone(),
        build_id: elf.build_id().ok()?.unwrap_or_default().to_vec(),
        loaded_ns: process.start_ns,
        ..ModuleInfo::default()
    })
}

/// The load bias: address in memory minus address in the file.
pub(super) fn bias<'c>(
    mapping: &Mapping,
    elf: &ElfFile64<'c, Endianness, &'c ReadCache<File>>,
    content: &'c ReadCache<File>,
) -> Option<u64> {
    let endian = elf.endian();
    let headers = elf.elf_header().program_headers(endian, content).ok()?;
    // Segments are mapped in whole pages, so neighbours may share one.
    let page = |value: u64| value & !(PAGE - 1);
    let is_code = |header: &&elf::ProgramHeader64<Endianness>| {
        header.p_type(endian) == elf::PT_LOAD && header.p_flags(endian) & elf::PF_X != 0
    };
    let load = headers.iter().filter(is_code).find(|header| {
        let end = header.p_offset(endian).checked_add(header.p_filesz(endian));
        page(header.p_offset(endian)) <= mapping.offset && end.is_some_and(|end| mapping.offset < end)
    })?;
    let address = page(load.p_vaddr(endian)).wrapping_add(mapping.offset - page(load.p_offset(endian)));
    Some(mapping.start.wrapping_sub(address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc;
    use std::fs;

    use object::ObjectSymbol;

    #[test]
    fn this_test_is_found_as_if_nobody_had_told_of_it() {
        let mappings = proc::mappings(std::process::id()).unwrap();
        let here = this_test_is_found_as_if_nobody_had_told_of_it as fn() as usize as u64;
        let process = ProcessInfo { id: 4, pid: std::process::id(), start_ns: 77, ..ProcessInfo::default() };
        let modules = find(&mappings, &process, &BTreeSet::from([here]), 3);
        let [module] = modules.as_slice() else { panic!("{modules:?}") };
        assert_eq!((module.process, module.module, module.loaded_ns), (4, NUMBERS + 3, 77));
        assert!(module.start <= here && here < module.end);
        let file = fs::read(std::env::current_exe().unwrap()).unwrap();
        let elf = ElfFile64::<Endianness>::parse(&*file).unwrap();
        let mut names = elf.symbols().filter(|symbol| symbol.address() == here.wrapping_sub(module.bias));
        let found = names.any(|symbol| symbol.name().is_ok_and(|name| name.contains("this_test_is_found")));
        assert!(found, "bias {:#x}", module.bias);
        assert!(find(&mappings, &process, &BTreeSet::new(), 0).is_empty());
    }
}
