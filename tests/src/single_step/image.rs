//! The files mapped into a tracee: their address ranges and function names.

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};

use super::tracee::Tracee;

/// One line of `/proc/PID/maps`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// End address, exclusive.
    pub end: u64,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// True if its code may run.
    pub executable: bool,
    /// Path, or a name in brackets, or nothing.
    pub path: String,
}

/// Reads the mappings of a process.
pub fn mappings(pid: i32) -> io::Result<Vec<Mapping>> {
    Ok(fs::read_to_string(format!("/proc/{pid}/maps"))?.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?;
    let offset = fields.next()?;
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        offset: u64::from_str_radix(offset, 16).ok()?,
        executable: permissions.contains('x'),
        path: fields.nth(2).unwrap_or("").trim().to_string(),
    })
}

/// A function's name and its range of link-time addresses.
#[derive(Clone, Debug)]
struct Function {
    start: u64,
    end: u64,
    name: String,
}

/// One ELF file mapped into the tracee.
#[derive(Clone, Debug)]
pub struct Image {
    /// Path, or `[vdso]`.
    pub path: String,
    /// First mapped address.
    pub start: u64,
    /// End of the last mapping.
    pub end: u64,
    /// Address minus link-time address.
    pub bias: u64,
    /// The mapped ranges.
    pub parts: Vec<(u64, u64)>,
    /// Changes whenever a part, its place in the file or its permissions change.
    pub layout: u64,
    file: Rc<File>,
}

/// What the file on disk says.
#[derive(Debug)]
struct File {
    /// Lowest link-time address.
    base: u64,
    /// By address.
    functions: Vec<Function>,
    /// Link-time ranges that call frame information describes, by address.
    described: Vec<(u64, u64)>,
}

impl Image {
    /// The function at `address`: its name and the range it covers.
    pub fn function(&self, address: u64) -> Option<(&str, std::ops::Range<u64>)> {
        let vaddr = address.wrapping_sub(self.bias);
        let functions = &self.file.functions;
        let after = functions.partition_point(|f| f.start <= vaddr);
        let near = functions[..after].iter().rev().take(8);
        let found = near.into_iter().find(|f| vaddr < f.end)?;
        Some((&found.name, found.start.wrapping_add(self.bias)..found.end.wrapping_add(self.bias)))
    }

    /// Whether any call frame information covers `address`.
    pub fn describes(&self, address: u64) -> bool {
        let vaddr = address.wrapping_sub(self.bias);
        let described = &self.file.described;
        let after = described.partition_point(|range| range.0 <= vaddr);
        described[..after].iter().rev().take(8).any(|range| vaddr < range.1)
    }

    /// The file's name without its directories.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// The images of one tracee, and the files already parsed.
#[derive(Debug, Default)]
pub struct Images {
    /// Sorted by address.
    pub all: Vec<Image>,
    parsed: HashMap<String, Rc<File>>,
}

impl Images {
    /// Reads the mappings again.
    pub fn refresh(&mut self, tracee: &Tracee) -> io::Result<()> {
        let maps = mappings(tracee.pid().as_raw())?;
        let mut all: Vec<Image> = Vec::new();
        for first in maps.iter().filter(|m| m.path.starts_with('/') || m.path == "[vdso]") {
            // A file is one image from its first byte on; other mappings of it belong to the image before.
            if first.offset != 0 || all.last().is_some_and(|i| i.path == first.path) {
                continue;
            }
            let rest = maps.iter().filter(|m| m.start >= first.start && m.path == first.path);
            let same: Vec<_> = rest.collect();
            if !same.iter().any(|m| m.executable) {
                continue;
            }
            let end = same.iter().map(|m| m.end).max().unwrap_or(first.end);
            if let Some(file) = self.parse(tracee, first) {
                let bias = first.start.wrapping_sub(file.base);
                let parts = same.iter().map(|m| (m.start, m.end)).collect();
                let mut hasher = DefaultHasher::new();
                same.hash(&mut hasher);
                let layout = hasher.finish();
                let (path, start) = (first.path.clone(), first.start);
                all.push(Image { path, start, end, bias, parts, layout, file });
            }
        }
        self.all = all;
        Ok(())
    }

    /// The image at `address`.
    pub fn at(&self, address: u64) -> Option<&Image> {
        self.all.iter().find(|i| (i.start..i.end).contains(&address))
    }

    /// `file!function+offset`, for people.
    pub fn describe(&self, address: u64) -> String {
        match self.at(address) {
            None => format!("{address:#x}"),
            Some(image) => match image.function(address) {
                Some((name, range)) => {
                    format!("{address:#x} {}!{name}+{:#x}", image.name(), address - range.start)
                }
                None => format!("{address:#x} {}+{:#x}", image.name(), address.wrapping_sub(image.bias)),
            },
        }
    }

    fn parse(&mut self, tracee: &Tracee, first: &Mapping) -> Option<Rc<File>> {
        if let Some(found) = self.parsed.get(&first.path) {
            return Some(found.clone());
        }
        let bytes = if first.path.starts_with('/') {
            fs::read(&first.path).ok()?
        } else {
            let mut bytes = vec![0; (first.end - first.start) as usize];
            let got = tracee.read(first.start, &mut bytes);
            bytes.truncate(got);
            bytes
        };
        let parsed = Rc::new(parse_elf(&bytes)?);
        self.parsed.insert(first.path.clone(), parsed.clone());
        Some(parsed)
    }
}

fn parse_elf(bytes: &[u8]) -> Option<File> {
    let file = object::File::parse(bytes).ok()?;
    let base = file.segments().map(|s| s.address()).min()? & !0xfff;
    let mut functions = functions(&file);
    // Debian keeps the names of local functions (`__longjmp`, `_dl_runtime_resolve_xsavec`) in a separate file.
    if let Some(debug) = debug_file(&file)
        && let Ok(bytes) = fs::read(debug)
        && let Ok(file) = object::File::parse(&*bytes)
    {
        functions.extend(self::functions(&file));
    }
    functions.sort_by(|a, b| (a.start, a.end, &a.name).cmp(&(b.start, b.end, &b.name)));
    let mut described = described(&file).unwrap_or_default();
    described.sort_unstable();
    Some(File { base, functions, described })
}

/// The ranges of all FDEs, read by gimli: independent of the unwinder under test.
fn described(file: &object::File) -> Option<Vec<(u64, u64)>> {
    let section = file.section_by_name(".eh_frame")?;
    let data = section.uncompressed_data().ok()?;
    let eh_frame = EhFrame::new(&data, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let mut entries = eh_frame.entries(&bases);
    let mut ranges = Vec::new();
    while let Ok(Some(entry)) = entries.next() {
        if let CieOrFde::Fde(partial) = entry
            && let Ok(fde) = partial.parse(EhFrame::cie_from_offset)
        {
            ranges.push((fde.initial_address(), fde.initial_address() + fde.len()));
        }
    }
    Some(ranges)
}

fn functions(file: &object::File) -> Vec<Function> {
    let named = file.symbols().chain(file.dynamic_symbols());
    let code =
        named.filter(|s| s.is_definition() && matches!(s.kind(), SymbolKind::Text | SymbolKind::Label));
    let sized = code.map(|s| (s.address(), s.size().max(1), s.name().unwrap_or("").to_string()));
    sized.map(|(start, size, name)| Function { start, end: start + size, name }).collect()
}

fn debug_file(file: &object::File) -> Option<PathBuf> {
    let id: String = file.build_id().ok()??.iter().map(|b| format!("{b:02x}")).collect();
    let path =
        Path::new("/usr/lib/debug/.build-id").join(id.get(..2)?).join(format!("{}.debug", id.get(2..)?));
    path.exists().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_line_of_maps() {
        let line = "7ffff7dc1000-7ffff7f16000 r-xp 00026000 fe:00 1234                    /lib/a b.so";
        let mapping = parse(line).unwrap();
        assert_eq!((mapping.start, mapping.end), (0x7ffff7dc1000, 0x7ffff7f16000));
        assert_eq!((mapping.offset, mapping.executable), (0x26000, true));
        assert_eq!(mapping.path, "/lib/a b.so");
        assert_eq!(parse("00400000-00401000 rw-p 00000000 00:00 0").unwrap().path, "");
    }
}
