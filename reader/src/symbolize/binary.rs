//! One binary: its files found and verified once, its addresses named.

use std::borrow::Cow;
use std::cell::LazyCell;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection};

use super::debug_file::{self, DebugDirectories, Image};
use super::demangle::demangle;
use super::dwarf::{self, Call, Lines};
use super::frame_entry::FrameEntries;
use super::symbol_table::SymbolTable;
use super::{plt, vdso};
use crate::names::{NameId, Names};

type Elf<'data> = ElfFile64<'data, Endianness>;

/// Most bytes a `.gnu_debugdata` section may unpack to.
const LARGEST_MINI_DEBUG: u64 = 1 << 30;

/// What glibc puts before its internal names of public functions. The symbol table has the public ones.
const GLIBC_ALIAS: &str = "__GI_";

/// A binary and the addresses to be named in it.
#[derive(Debug)]
pub struct Request {
    /// Where it was when it was recorded.
    pub path: PathBuf,
    /// Its build-id then; empty if it had none.
    pub build_id: Vec<u8>,
    /// Virtual addresses as its ELF file numbers them; ascending, without duplicates.
    pub addresses: Vec<u64>,
}

/// A function at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// Readable name.
    pub function: NameId,
    /// Source file.
    pub file: Option<NameId>,
    /// Source line, 0 if unknown.
    pub line: u32,
    /// It is inlined into the next one.
    pub inlined: bool,
}

/// Where the names of a binary come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// DWARF in this file, symbol tables for the rest.
    Dwarf(PathBuf),
    /// Symbol tables.
    Symbols,
    /// A map of generated code.
    PerfMap,
    /// The file has no names.
    Stripped,
    /// The file on disk is another one now: the build-id it has, if any.
    Changed(Vec<u8>),
    /// The file cannot be read, and why.
    Unreadable(String),
}

/// The names of the addresses of one binary.
#[derive(Debug)]
pub struct Symbols {
    /// Texts that `lines` refer to.
    pub names: Names,
    /// The functions of each requested address, in its order: innermost first, never empty.
    pub ranges: Vec<Range<u32>>,
    /// What `ranges` point into.
    pub lines: Vec<Line>,
    /// Where the names come from.
    pub origin: Origin,
}

/// The image of a binary while it is read.
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

/// Names all addresses of one binary.
pub(super) fn symbolize(request: &Request, directories: &DebugDirectories) -> Symbols {
    let main = open(request);
    let main_elf = main.as_ref().ok().and_then(|content| Elf::parse(content.bytes()).ok());
    let debug = directories
        .by_build_id(&request.build_id)
        .or_else(|| main_elf.as_ref().and_then(|elf| directories.by_debuglink(&request.path, elf)));
    let debug_elf = debug.as_ref().and_then(|image| Elf::parse(image.bytes()).ok());
    let unpacked = match (&main_elf, &debug_elf) {
        (Some(elf), None) => mini_debug_data(elf),
        _ => None,
    };
    let mini_elf = unpacked.as_ref().and_then(|bytes| Elf::parse(bytes.as_slice()).ok());

    let mut table = SymbolTable::default();
    for elf in [&main_elf, &debug_elf, &mini_elf].into_iter().flatten() {
        table.add(elf, elf.elf_symbol_table());
        table.add(elf, elf.elf_dynamic_symbol_table());
    }
    let named = !table.is_empty();
    if let Some(elf) = &main_elf {
        table.add_stubs(plt::stubs(elf));
    }
    table.sort();

    // The file itself first: a debug file may exist beside a file that was never stripped.
    let own = main_elf.as_ref().filter(|elf| dwarf::is_in(elf)).map(|elf| (elf, request.path.as_path()));
    let separate = debug_elf.as_ref().zip(debug.as_ref()).map(|(elf, image)| (elf, image.path.as_path()));
    let source = own.or_else(|| separate.filter(|(elf, _)| dwarf::is_in(elf)));
    let shared = source.and_then(|(elf, path)| directories.by_altlink(path, elf));
    let shared_elf = shared.as_ref().and_then(|image| Elf::parse(image.bytes()).ok());
    let sections = source.map(|(elf, _)| dwarf::sections(elf));
    let shared_sections = shared_elf.as_ref().map(dwarf::sections);
    let endian = source.map_or(Endianness::Little, |(elf, _)| elf.endian());
    let lines = sections.as_ref().and_then(|sections| Lines::new(sections, shared_sections.as_ref(), endian));

    let origin = match (&main, source, named) {
        (_, Some((_, path)), _) if lines.is_some() => Origin::Dwarf(path.to_owned()),
        (_, _, true) => Origin::Symbols,
        (Err(Failure::Changed(id)), ..) => Origin::Changed(id.clone()),
        (Err(Failure::Unreadable(error)), ..) => Origin::Unreadable(error.to_string()),
        (Ok(_), ..) if main_elf.is_none() => Origin::Unreadable("not a 64-bit ELF file".into()),
        (Ok(_), ..) => Origin::Stripped,
    };
    let entries = LazyCell::new(|| main_elf.as_ref().map(FrameEntries::read).unwrap_or_default());
    let namer = Namer {
        module: base_name(&request.path),
        table: &table,
        function_start: &|address| entries.start(address),
        lines,
    };
    namer.name_all(&request.addresses, origin)
}

/// Why the recorded file is not at hand.
enum Failure {
    Unreadable(io::Error),
    Changed(Vec<u8>),
}

/// Opens the recorded file if it still is the recorded file.
fn open(request: &Request) -> Result<Content, Failure> {
    let content = if request.path.to_str().is_some_and(vdso::is_vdso) {
        vdso::image().map(Content::Memory)
    } else {
        Image::open(&request.path).map(Content::File)
    };
    let content = content.map_err(Failure::Unreadable)?;
    let id = debug_file::build_id(content.bytes()).unwrap_or_default();
    if !request.build_id.is_empty() && id != request.build_id {
        return Err(Failure::Changed(id.to_vec()));
    }
    Ok(content)
}

/// The symbol table that distributions leave in stripped files (MiniDebugInfo): an ELF file, packed by xz.
fn mini_debug_data(elf: &Elf<'_>) -> Option<Vec<u8>> {
    let section = elf.section_by_name(".gnu_debugdata")?;
    let mut packed = section.data().ok()?;
    let mut unpacked = Bounded { bytes: Vec::new(), room: LARGEST_MINI_DEBUG };
    lzma_rs::xz_decompress(&mut packed, &mut unpacked).ok()?;
    Some(unpacked.bytes)
}

/// A buffer that refuses to grow without end.
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

/// The last part of a path, or all of a name like `[vdso]`.
pub fn base_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Turns addresses into names with what was found of a binary.
struct Namer<'a> {
    module: String,
    table: &'a SymbolTable<'a>,
    /// The start of the function that holds an address, where nothing names it.
    function_start: &'a dyn Fn(u64) -> Option<u64>,
    lines: Option<Lines<'a>>,
}

impl Namer<'_> {
    fn name_all(&self, addresses: &[u64], origin: Origin) -> Symbols {
        let mut symbols = Symbols {
            names: Names::default(),
            ranges: Vec::with_capacity(addresses.len()),
            lines: Vec::new(),
            origin,
        };
        for &address in addresses {
            let first = symbols.lines.len() as u32;
            self.name(address, &mut symbols);
            symbols.ranges.push(first..symbols.lines.len() as u32);
        }
        symbols
    }

    /// Appends the functions at one address.
    fn name(&self, address: u64, symbols: &mut Symbols) {
        let calls = self.lines.as_ref().map(|lines| lines.calls(address)).unwrap_or_default();
        let Some(outermost) = calls.len().checked_sub(1) else {
            let function = symbols.names.intern(&self.symbol(address));
            symbols.lines.push(Line { function, file: None, line: 0, inlined: false });
            return;
        };
        // The place in a part that the compiler split off a function and put back in.
        let mut innermost: Option<&Call> = None;
        for (depth, call) in calls.iter().enumerate() {
            let alias = call.name.as_deref().and_then(|name| name.strip_prefix(GLIBC_ALIAS));
            if alias.is_some() && calls.get(depth + 1).is_some_and(|outer| outer.name == call.name) {
                innermost = innermost.or(Some(call));
                continue;
            }
            let name = match (&call.name, alias) {
                (Some(_), Some(alias)) if depth < outermost => Cow::Borrowed(alias),
                (Some(name), None) => demangle(name),
                _ => Cow::Owned(self.symbol(address)),
            };
            let place = innermost.take().unwrap_or(call);
            let function = symbols.names.intern(&name);
            let file = place.file.as_deref().map(|file| symbols.names.intern(file));
            let line = place.line.unwrap_or(0);
            symbols.lines.push(Line { function, file, line, inlined: depth < outermost });
        }
    }

    /// The name of an address by symbol tables, else by the module and the start of its function.
    fn symbol(&self, address: u64) -> String {
        if let Some(symbol) = self.table.find(address) {
            let name = String::from_utf8_lossy(&symbol.name);
            return match name.strip_suffix("@plt") {
                Some(function) => format!("{}@plt", demangle(function)),
                None => demangle(&name).into_owned(),
            };
        }
        let start = (self.function_start)(address).unwrap_or(address);
        format!("{}+{start:#x}", self.module)
    }
}
