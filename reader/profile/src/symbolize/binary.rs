//! Finds and verifies the files of one binary, and names its addresses.

use std::cell::LazyCell;
use std::io;

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, SectionKind};

use super::cache_file::Provenance;
use super::dwarf::{self, Lines};
use super::dwarf_storage::Storage;
use super::frame_entry::FrameEntries;
use super::go_lines::GoLines;
use super::image::{Image, Witness, build_id};
use super::locator::Locator;
use super::namer::Namer;
use super::sources::SymbolSources;
use super::split_dwarf::SplitFiles;
use super::symbol_table::SymbolTable;
use super::symbols::{Origin, Request, Symbols};
use super::{plt, vdso};
use crate::file_name::base_name;
use crate::profile_file::FileIdentity;

type Elf<'data> = ElfFile64<'data, Endianness>;

/// Maximum size of a `.gnu_debugdata` section after decompression.
const LARGEST_MINI_DEBUG: u64 = 1 << 30;

/// A binary being read.
enum Content {
    File(Image),
    Memory(Vec<u8>),
}

impl Content {
    fn bytes(&self) -> &[u8] {
        match self {
            Content::File(image) => image.bytes(),
            Content::Memory(bytes) => bytes,
        }
    }
}

/// Names all addresses of one binary, as many as possible from the cache.
pub(super) fn symbolize(request: &Request, sources: &SymbolSources) -> Symbols {
    let Some(cache) = &sources.cache else { return read(request, sources).0 };
    let searched = sources.searched();
    let cached = cache.open(request, &searched, sources.debuginfod.is_some()).and_then(|file| {
        let mut symbols = Symbols::new(file.origin.clone(), request.addresses.len());
        let missing = file.answer(&request.addresses, &mut symbols)?;
        Some((file, symbols, missing))
    });
    let (earlier, symbols, missing) = match cached {
        Some((_, symbols, missing)) if missing.is_empty() => return symbols,
        Some((file, symbols, missing)) => (Some(file), Some(symbols), missing),
        None => (None, None, request.addresses.clone()),
    };
    let rest = Request { addresses: missing, ..request.clone() };
    let (found, witnesses) = read(&rest, sources);
    if let Some(mut witnesses) = witnesses.filter(|_| !request.build_id.is_empty()) {
        witnesses.extend(earlier.iter().flat_map(|file| file.witnesses.iter().cloned()));
        witnesses.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        witnesses.dedup();
        let of = Provenance {
            build_id: &request.build_id,
            origin: &found.origin,
            directories: &searched,
            witnesses: &witnesses,
        };
        cache.store(&of, &rest.addresses, &found, earlier.as_ref());
    }
    match symbols {
        None => found,
        Some(mut symbols) => {
            found.fill(&mut symbols, &request.addresses, &rest.addresses);
            Symbols { origin: found.origin, read: true, ..symbols }
        }
    }
}

/// Names all addresses of one binary from its files. Also returns the files that decided the answers, unless something
/// else did, too.
fn read(request: &Request, sources: &SymbolSources) -> (Symbols, Option<Vec<Witness>>) {
    let locator = Locator::new(sources);
    let symbols = read_files(request, &locator);
    (symbols, locator.into_witnesses())
}

fn read_files(request: &Request, locator: &Locator<'_>) -> Symbols {
    let storage = Storage::default();
    let main = open(request, locator);
    let main_elf = main.as_ref().ok().and_then(|content| Elf::parse(content.bytes()).ok());
    let here = match &main {
        Ok(Content::File(image)) => image.path.as_path(),
        _ => request.path.as_path(),
    };
    let debug = locator
        .by_build_id(&request.build_id)
        .or_else(|| main_elf.as_ref().and_then(|elf| locator.by_debuglink(&request.path, here, elf)))
        .or_else(|| match &main_elf {
            Some(elf) if dwarf::is_in(elf) => None,
            _ => locator
                .in_trees(&request.build_id, dwarf::is_in)
                .or_else(|| locator.by_server(&request.build_id)),
        });
    let debug_elf = debug.as_ref().and_then(|image| Elf::parse(image.bytes()).ok());

    // The file itself first: a debug file may exist beside a file that was never stripped.
    let own = main_elf.as_ref().filter(|elf| dwarf::is_in(elf)).map(|elf| (elf, here));
    let separate = debug_elf.as_ref().zip(debug.as_ref()).map(|(elf, image)| (elf, image.path.as_path()));
    let source = own.or_else(|| separate.filter(|(elf, _)| dwarf::is_in(elf)));
    let shared = source.and_then(|(elf, path)| locator.by_altlink(path, elf));
    let shared_elf = shared.as_ref().and_then(|image| Elf::parse(image.bytes()).ok());
    let lines = source.and_then(|(elf, path)| {
        let beside = vec![here.to_owned(), path.to_owned()];
        Lines::new(&storage, elf, shared_elf.as_ref(), SplitFiles::new(&storage, locator, beside))
    });

    let go = main_elf.as_ref().filter(|_| lines.is_none()).and_then(GoLines::of);

    let mini = LazyCell::new(|| match (&main_elf, &debug_elf) {
        (Some(elf), None) => mini_debug_data(elf),
        _ => None,
    });
    let table = LazyCell::new(|| {
        let mini_elf = mini.as_ref().and_then(|bytes| Elf::parse(bytes.as_slice()).ok());
        symbol_table(main_elf.as_ref(), [&debug_elf, &mini_elf].into_iter().flatten(), &request.addresses)
    });
    let origin = match (&main, source) {
        (_, Some((_, path))) if lines.is_some() => Origin::Dwarf(path.to_owned()),
        _ if table.is_named() || go.is_some() => Origin::Symbols,
        (Err(Failure::Changed(id)), _) => Origin::Changed(id.clone()),
        (Err(Failure::Unreadable(error)), _) => Origin::Unreadable(error.to_string()),
        (Ok(_), _) if main_elf.is_none() => Origin::Unreadable("not a 64-bit ELF file".into()),
        (Ok(_), _) => Origin::Stripped,
    };
    let entries = LazyCell::new(|| main_elf.as_ref().map(FrameEntries::read).unwrap_or_default());
    let module = base_name(&request.path);
    let find = |address| table.find(address).map(|symbol| (symbol.address, symbol.name.clone()));
    let start = |address| entries.start(address);
    let namer = Namer::new(&module, &find, &start, lines.as_ref(), go.as_ref());
    namer.name_all(&request.addresses, origin)
}

/// The functions that symbol tables have at the requested addresses.
fn symbol_table<'a, 'data: 'a>(
    main: Option<&'a Elf<'data>>,
    others: impl Iterator<Item = &'a Elf<'data>>,
    asked: &[u64],
) -> SymbolTable<'data> {
    let mut symbols = SymbolTable::default();
    for elf in main.into_iter().chain(others) {
        symbols.add(elf, elf.elf_symbol_table(), asked);
        symbols.add(elf, elf.elf_dynamic_symbol_table(), asked);
    }
    if let Some(elf) = main {
        symbols.add_stubs(plt::stubs(elf));
    }
    symbols.sort();
    symbols
}

/// Why the recorded file is not available.
enum Failure {
    Unreadable(io::Error),
    Changed(Vec<u8>),
}

/// Opens the recorded file if it is unchanged, or the same file elsewhere.
fn open(request: &Request, locator: &Locator<'_>) -> Result<Content, Failure> {
    if request.path.to_str().is_some_and(vdso::is_vdso) {
        let bytes = vdso::image().map_err(Failure::Unreadable)?;
        return same(request, &bytes, None).map(|()| Content::Memory(bytes));
    }
    let mut failure = None;
    for path in locator.candidates(&request.path, &request.build_id) {
        let opened = locator.open(&path).map_err(Failure::Unreadable).and_then(|image| {
            let identity = std::fs::metadata(&path).ok().map(|metadata| FileIdentity::of(&metadata));
            same(request, image.bytes(), identity).map(|()| image)
        });
        match opened {
            Ok(image) if path == request.path || has_code(image.bytes()) => return Ok(Content::File(image)),
            // Report the file at the recorded path, as users expect.
            Err(error) if path == request.path => failure = Some(error),
            _ => {}
        }
    }
    let elsewhere = locator.in_trees(&request.build_id, |elf| has_code(elf.data()));
    let missing = || Failure::Unreadable(io::ErrorKind::NotFound.into());
    elsewhere.map(Content::File).ok_or_else(|| failure.unwrap_or_else(missing))
}

/// Whether a file is the recorded one.
fn same(request: &Request, bytes: &[u8], identity: Option<FileIdentity>) -> Result<(), Failure> {
    let id = build_id(bytes).unwrap_or_default();
    let same = match &request.file {
        _ if !request.build_id.is_empty() => id == request.build_id,
        Some(file) => identity.is_none_or(|identity| file.is_of(&identity)),
        None => true,
    };
    if same { Ok(()) } else { Err(Failure::Changed(id.to_vec())) }
}

/// False for a debug file, whose code sections have no contents.
fn has_code(bytes: &[u8]) -> bool {
    Elf::parse(bytes).is_ok_and(|elf| {
        elf.sections().any(|section| {
            section.kind() == SectionKind::Text && section.file_range().is_some_and(|(_, len)| len > 0)
        })
    })
}

/// The symbol table that distributions leave in stripped files (MiniDebugInfo): an ELF file, packed by xz.
fn mini_debug_data(elf: &Elf<'_>) -> Option<Vec<u8>> {
    let section = elf.section_by_name(".gnu_debugdata")?;
    let mut packed = section.data().ok()?;
    let mut unpacked = Bounded { bytes: Vec::new(), room: LARGEST_MINI_DEBUG };
    lzma_rs::xz_decompress(&mut packed, &mut unpacked).ok()?;
    Some(unpacked.bytes)
}

/// A buffer of limited size.
struct Bounded {
    bytes: Vec<u8>,
    room: u64,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.room.checked_sub(bytes.len() as u64);
        self.room = left.ok_or_else(|| io::Error::other("the unpacked symbol table is too large"))?;
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
