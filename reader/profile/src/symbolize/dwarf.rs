//! Source lines and inlined functions from DWARF, including split and supplementary files.

use std::sync::Arc;

use addr2line::{LookupContinuation as _, LookupResult};
use gimli::{AbbreviationsCacheStrategy, Dwarf};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection};

use super::dwarf_storage::{Reader, Storage};
use super::split_dwarf::SplitFiles;

/// Whether a file has DWARF of its own.
pub(super) fn is_in(file: &ElfFile64<'_, Endianness>) -> bool {
    // The section is empty in files whose debug information was split off.
    [".debug_info", ".zdebug_info"].iter().any(|name| {
        let section = file.section_by_name(name);
        section.and_then(|section| section.file_range()).is_some_and(|(_, len)| len > 0)
    })
}

/// One function at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Call<'a, 'c> {
    /// Linkage name, or else the plain one; `None` if DWARF has only the line.
    pub name: Option<&'a [u8]>,
    /// The compiler omitted the linkage name, so this is the plain one.
    pub short: bool,
    /// Source file and line.
    pub file: Option<&'c str>,
    /// Line, counted from 1.
    pub line: Option<u32>,
}

/// DWARF ready for lookups.
pub(super) struct Lines<'a> {
    context: addr2line::Context<Reader<'a>>,
    split: SplitFiles<'a>,
}

impl<'a> Lines<'a> {
    /// Indexes the units of a file; `None` if that fails. `shared` is a supplementary file.
    pub(super) fn new(
        storage: &'a Storage,
        file: &ElfFile64<'a, Endianness>,
        shared: Option<&ElfFile64<'a, Endianness>>,
        split: SplitFiles<'a>,
    ) -> Option<Self> {
        let mut dwarf = storage.dwarf(file);
        if let Some(shared) = shared {
            dwarf.set_sup(storage.dwarf(shared));
        }
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
        let context = addr2line::Context::from_dwarf(dwarf).ok()?;
        Some(Lines { context, split })
    }

    /// The functions at a virtual address, innermost first; the last one is the function that contains the code. Empty
    /// if DWARF does not cover the address.
    pub(super) fn calls<'c>(&'c self, address: u64, calls: &mut Vec<Call<'a, 'c>>) {
        calls.clear();
        let mut answer = self.context.find_frames(address);
        let frames = loop {
            match answer {
                LookupResult::Output(frames) => break frames,
                LookupResult::Load { load, continuation } => {
                    let unit: Option<Arc<Dwarf<Reader<'a>>>> = self.split.load(&load);
                    answer = continuation.resume(unit);
                }
            }
        };
        let Ok(mut frames) = frames else { return };
        while let Ok(Some(frame)) = frames.next() {
            let location = frame.location.as_ref();
            let short = frame.function.as_ref().is_some_and(|function| {
                !is_linker_name(function.name.slice()) && function.language.is_some_and(has_linker_names)
            });
            calls.push(Call {
                name: frame.function.map(|function| function.name.slice()),
                short,
                file: location.and_then(|l| l.file),
                line: location.and_then(|l| l.line).filter(|&line| line != 0),
            });
        }
    }
}

/// Whether a name is mangled.
pub(super) fn is_linker_name(name: &[u8]) -> bool {
    name.starts_with(b"_Z") || name.starts_with(b"_R")
}

/// Whether functions of this language have mangled names, as in C++ and Rust.
fn has_linker_names(language: gimli::DwLang) -> bool {
    use gimli::constants as c;
    let same = [c::DW_LANG_C, c::DW_LANG_C89, c::DW_LANG_C99, c::DW_LANG_C11, c::DW_LANG_Mips_Assembler];
    !same.contains(&language)
}
