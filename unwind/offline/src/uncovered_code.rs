//! The code of a file that no call frame information covers, as input for [`inference`].

use std::io::{Read, Seek};
use std::ops::Range;

use compilation::uncovered;
use inference::Code;
use object::read::elf::ElfFile64;
use object::{
    LittleEndian, Object, ObjectSection, ObjectSymbol, ReadCache, SectionFlags, SectionKind, SymbolKind,
};
use unwind::{Machine, Section};

const SHF_EXECINSTR: u64 = 4;
/// Shorter gaps between functions are alignment.
const SHORTEST: u64 = 16;
/// Where initialisers and finalisers are listed.
const LISTS: [&str; 3] = [".init_array", ".fini_array", ".preinit_array"];
/// A linker's stubs for calls of other objects. The walker knows them.
const STUBS: &str = ".plt";

/// The code of `elf`, a file for x86-64, that `eh_frame` does not cover.
pub(crate) fn read<'c, R: Read + Seek>(
    elf: &ElfFile64<'c, LittleEndian, &'c ReadCache<R>>,
    eh_frame: Option<Section<'_>>,
) -> Code {
    let mut code = Code { entry: elf.entry(), ..Code::default() };
    let gaps = uncovered(Machine::X86_64, eh_frame, 0..u64::MAX);
    for section in elf.sections() {
        let is_stubs = section.name().is_ok_and(|name| name.starts_with(STUBS));
        // Separate debug files have the sections of their program without contents.
        if !is_executable(&section) || is_stubs || section.kind() == SectionKind::UninitializedData {
            continue;
        }
        let (start, end) = (section.address(), section.address().saturating_add(section.size()));
        let first = gaps.partition_point(|gap| gap.end <= start);
        let inside = gaps.iter().skip(first).take_while(|gap| gap.start < end);
        let inside = inside.map(|gap| gap.start.max(start)..gap.end.min(end));
        let read = |gap: Range<u64>| {
            let bytes = section.data_range(gap.start, gap.end - gap.start).ok().flatten()?;
            Some((gap.start, bytes.to_vec()))
        };
        code.ranges.extend(inside.filter(|gap| gap.end - gap.start >= SHORTEST).filter_map(read));
    }
    code.ranges.sort_by_key(|(start, _)| *start);
    code.ranges.dedup_by_key(|(start, _)| *start);
    if code.ranges.is_empty() {
        return code;
    }
    let symbols = elf.symbols().chain(elf.dynamic_symbols());
    let functions = symbols.filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition());
    code.starts.extend(functions.map(|symbol| symbol.address()));
    for section in elf.sections().filter(|section| section.name().is_ok_and(|name| LISTS.contains(&name))) {
        let words = section.data().unwrap_or_default().as_chunks().0;
        code.starts.extend(words.iter().map(|word| u64::from_le_bytes(*word)));
    }
    code.starts.sort_unstable();
    code.starts.dedup();
    code
}

/// Whether the section contains code.
pub(crate) fn is_executable<'d>(section: &impl ObjectSection<'d>) -> bool {
    matches!(section.flags(), SectionFlags::Elf { sh_flags, .. } if sh_flags & SHF_EXECINSTR != 0)
}
