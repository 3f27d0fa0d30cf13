//! Resolves sites for kernel breakpoints (uprobes) in programs and libraries: USDT probes (sdt.h) and function entries.
//!
//! This is possible before anything is started, because a uprobe is a file and an offset; libraries may be loaded later.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolFlags, SymbolKind, elf};

/// Prefix of USDT probes in a list of sources.
pub(super) const USDT: &str = "usdt:";
/// Prefix of function entries.
pub(super) const FUNCTION: &str = "fn:";
/// Stands for the program itself.
const MAIN: &str = "main";

/// Probes as named in `-e`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    kind: &'static str,
    /// `main`, a path, or the name of a library; none: the program and all its libraries.
    file: Option<String>,
    /// With `*` and `?`.
    glob: String,
}

/// One site of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site {
    /// The name of the probe's event.
    pub(super) name: String,
    pub(super) file: String,
    pub(super) offset: u64,
    /// File offset of the probe's semaphore, which counts its observers; 0 if there is none.
    pub(super) semaphore: u64,
}

impl Pattern {
    /// Parses `usdt:[FILE:]PROVIDER:NAME` or `fn:FILE:SYMBOL`; `None` if it is something else.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, String> {
        let parts = |rest: &str| rest.split(':').map(str::to_owned).collect::<Vec<_>>();
        let (kind, file, glob) = if let Some(rest) = text.strip_prefix(USDT) {
            match &parts(rest)[..] {
                [provider, name] => (USDT, None, [&provider[..], name].join(":")),
                [file, provider, name] => (USDT, Some(file.clone()), [&provider[..], name].join(":")),
                _ => (USDT, None, String::new()),
            }
        } else if let Some(rest) = text.strip_prefix(FUNCTION) {
            match &parts(rest)[..] {
                [file, symbol] => (FUNCTION, Some(file.clone()), symbol.clone()),
                _ => (FUNCTION, None, String::new()),
            }
        } else {
            return Ok(None);
        };
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_:*?.$".contains(c);
        let is_whole = !glob.is_empty() && !glob.starts_with(':') && !glob.ends_with(':');
        let has_file = file.as_ref().is_none_or(|file| !file.is_empty() && !file.contains(';'));
        if !is_whole || !has_file || !glob.chars().all(is_word) {
            let (what, form) = match kind {
                USDT => {
                    ("probe", "usdt:PROVIDER:NAME or usdt:FILE:PROVIDER:NAME, such as usdt:libstdcxx:throw")
                }
                _ => ("function", "fn:FILE:SYMBOL, such as fn:main:work or fn:libc.so.6:malloc"),
            };
            return Err(format!("`{text}` names no {what}; give {form}"));
        }
        Ok(Some(Self { kind, file, glob }))
    }

    /// As written in `-e`.
    pub(super) fn name(&self) -> String {
        match &self.file {
            Some(file) => format!("{}{file}:{}", self.kind, self.glob),
            None => format!("{}{}", self.kind, self.glob),
        }
    }

    /// The sites that match when `program` runs; at least one.
    pub(super) fn find(&self, program: &Path) -> anyhow::Result<Vec<Site>> {
        let name = self.name();
        let files = self.files(program)?;
        let mut sites = Vec::new();
        let mut is_indirect = false;
        for file in &files {
            let data = fs::read(file).with_context(|| format!("{name}: cannot read {}", file.display()))?;
            let image = Image::parse(&data)
                .with_context(|| format!("{name}: {} is not a 64-bit ELF file", file.display()))?;
            let path = file.to_str().filter(|path| !path.contains(';'));
            let path = path.with_context(|| {
                format!(
                    "{name}: the kernel does not accept the path {}; copy the file to a path without special characters",
                    file.display()
                )
            })?;
            let found = if self.kind == USDT {
                image.probes()
            } else {
                image.functions(&mut is_indirect, &self.glob)
            };
            for (own, offset, semaphore) in found {
                if matches(self.glob.as_bytes(), own.as_bytes()) {
                    let pattern = Self { glob: own, ..self.clone() };
                    sites.push(Site { name: pattern.name(), file: path.to_owned(), offset, semaphore });
                }
            }
        }
        if sites.is_empty() {
            let looked: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
            let looked = looked.join(", ");
            match self.kind {
                USDT => bail!(
                    "{name}: no such probe in {looked}; `readelf -n FILE` lists probes; for a library that is loaded later, use usdt:FILE:PROVIDER:NAME"
                ),
                _ if is_indirect => bail!(
                    "{name}: {looked} chooses this function when it is loaded (IFUNC); give the name of the one chosen, such as __memcpy_avx_unaligned, or a path with its own symbols"
                ),
                _ => bail!(
                    "{name}: no such function in the symbol tables of {looked}; `nm -D FILE` and `nm FILE` list them"
                ),
            }
        }
        sites.sort_by(|a, b| (&a.name, &a.file, a.offset).cmp(&(&b.name, &b.file, b.offset)));
        // A site occurs once per name; aliases of a function share a breakpoint.
        sites.dedup_by(|a, b| (&a.name, &a.file, a.offset) == (&b.name, &b.file, b.offset));
        Ok(sites)
    }

    /// The files to search.
    fn files(&self, program: &Path) -> anyhow::Result<Vec<PathBuf>> {
        let real =
            |path: &Path| path.canonicalize().with_context(|| format!("{}: {}", self.name(), path.display()));
        match self.file.as_deref() {
            Some(file) if file.contains('/') => Ok(vec![real(Path::new(file))?]),
            Some(MAIN) => Ok(vec![real(&executed(program))?]),
            None => {
                let program = real(&executed(program))?;
                let mut files = vec![program.clone()];
                files.extend(libraries(&program).into_iter().map(|(_, path)| path));
                Ok(files)
            }
            Some(name) => {
                let program = real(&executed(program))?;
                let known = libraries(&program);
                let is_it = |own: &str| {
                    own == name || own.strip_prefix(name).is_some_and(|rest| rest.starts_with(".so"))
                };
                let found = known.into_iter().find(|(own, _)| is_it(own));
                let (_, path) = found.with_context(|| {
                    format!(
                        "{}: {} is not linked with {name}; give the path of the library, fn:/PATH:SYMBOL",
                        self.name(),
                        program.display()
                    )
                })?;
                Ok(vec![path])
            }
        }
    }
}

/// The file that the kernel maps when `program` is executed: for a script, its interpreter.
fn executed(program: &Path) -> PathBuf {
    let mut program = program.to_owned();
    for _ in 0..4 {
        let data = fs::read(&program).unwrap_or_default();
        let Some(line) = data.strip_prefix(b"#!").and_then(|rest| rest.split(|byte| *byte == b'\n').next())
        else {
            break;
        };
        let Ok(line) = std::str::from_utf8(line) else { break };
        let mut words = line.split_whitespace();
        let Some(mut interpreter) = words.next().map(PathBuf::from) else { break };
        if interpreter.file_name().is_some_and(|name| name == "env")
            && let Some(word) = words.find(|word| !word.starts_with('-') && !word.contains('='))
        {
            let directories = std::env::var_os("PATH").unwrap_or_default();
            let found = std::env::split_paths(&directories).map(|directory| directory.join(word));
            interpreter = found.into_iter().find(|path| path.is_file()).unwrap_or(interpreter);
        }
        program = interpreter;
    }
    program
}

/// The libraries that a program is linked with, by name, as resolved by its own loader (`--list`, as in ldd).
fn libraries(program: &Path) -> Vec<(String, PathBuf)> {
    let data = fs::read(program).unwrap_or_default();
    let Some(loader) = ElfFile64::<Endianness>::parse(&data[..]).ok().and_then(|file| {
        let section = file.section_by_name(".interp")?.data().ok()?;
        Some(PathBuf::from(std::str::from_utf8(section).ok()?.trim_end_matches('\0')))
    }) else {
        return Vec::new();
    };
    let Ok(listed) = Command::new(loader).arg("--list").arg(program).output() else { return Vec::new() };
    let listed = String::from_utf8_lossy(&listed.stdout);
    let line = |line: &str| {
        let (name, rest) = line.trim().split_once(" => ")?;
        let path = rest.rsplit_once(" (").map_or(rest, |(path, _)| path);
        Some((name.to_owned(), Path::new(path).canonicalize().ok()?))
    };
    let mut seen = BTreeSet::new();
    listed.lines().filter_map(line).filter(|(_, path)| seen.insert(path.clone())).collect()
}

/// A probe or function: its name, its offset in the file, and that of its semaphore.
type Found = (String, u64, u64);

/// An ELF file.
struct Image<'a>(ElfFile64<'a, Endianness>);

impl<'a> Image<'a> {
    fn parse(data: &'a [u8]) -> anyhow::Result<Self> {
        let file = ElfFile64::parse(data)?;
        ensure!(file.is_little_endian(), "of another byte order");
        Ok(Self(file))
    }

    /// The file offset of an address.
    fn offset(&self, address: u64) -> Option<u64> {
        self.0.segments().find_map(|segment| {
            let (start, size) = segment.file_range();
            address.checked_sub(segment.address()).filter(|at| *at < size).map(|at| start + at)
        })
    }

    /// Functions in the symbol tables that match `glob`. Sets `is_indirect` if the loader chooses one of them (IFUNC).
    fn functions(&self, is_indirect: &mut bool, glob: &str) -> Vec<Found> {
        let (mut found, mut indirect): (Vec<Found>, _) = (Vec::new(), BTreeSet::new());
        for symbol in self.0.symbols().chain(self.0.dynamic_symbols()) {
            let Ok(name) = symbol.name() else { continue };
            // Versioned symbols end in `@VERSION` in some tables.
            let name = name.split('@').next().unwrap_or(name);
            if symbol.is_undefined() || !matches(glob.as_bytes(), name.as_bytes()) {
                continue;
            }
            if let SymbolFlags::Elf { st_info, .. } = symbol.flags()
                && st_info & 0xf == elf::STT_GNU_IFUNC
            {
                indirect.insert(name);
                continue;
            }
            if symbol.kind() == SymbolKind::Text
                && let Some(offset) = self.offset(symbol.address())
            {
                found.push((name.to_owned(), offset, 0));
            }
        }
        *is_indirect |= !indirect.is_empty();
        // Programs do not call an older version of such a function.
        found.retain(|(name, ..)| !indirect.contains(&name[..]));
        found
    }

    /// Probes of sdt.h, each `PROVIDER:NAME`.
    fn probes(&self) -> Vec<Found> {
        let section = |name| self.0.section_by_name(name);
        let base = section(".stapsdt.base").map(|section| section.address());
        let notes = section(".note.stapsdt").and_then(|section| section.data().ok()).unwrap_or(&[]);
        let mut found = Vec::new();
        for note in Notes(notes) {
            let word = |at: usize| Some(u64::from_le_bytes(note.get(at..at + 8)?.try_into().ok()?));
            let (Some(pc), Some(linked), Some(semaphore)) = (word(0), word(8), word(16)) else { continue };
            let mut texts = note[24..].split(|byte| *byte == 0).map(std::str::from_utf8);
            let (Some(Ok(provider)), Some(Ok(name))) = (texts.next(), texts.next()) else { continue };
            // prelink and the like move this section together with the rest of the file.
            let moved = base.map_or(0, |base| base.wrapping_sub(linked));
            let Some(offset) = self.offset(pc.wrapping_add(moved)) else { continue };
            let semaphore = match semaphore {
                0 => Some(0),
                address => self.offset(address.wrapping_add(moved)),
            };
            if let Some(semaphore) = semaphore {
                found.push((format!("{provider}:{name}"), offset, semaphore));
            }
        }
        found
    }
}

/// The descriptions of the notes `stapsdt` in a section.
struct Notes<'a>(&'a [u8]);

impl<'a> Iterator for Notes<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        /// NT_STAPSDT.
        const KIND: u32 = 3;
        loop {
            let word = |at: usize| Some(u32::from_le_bytes(self.0.get(at..at + 4)?.try_into().ok()?));
            let (name_size, size, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
            let begin = 12 + name_size.next_multiple_of(4);
            let (name, note) = (self.0.get(12..12 + name_size)?, self.0.get(begin..begin + size)?);
            self.0 = self.0.get(begin + size.next_multiple_of(4)..).unwrap_or(&[]);
            if kind == KIND && name == b"stapsdt\0" {
                return Some(note);
            }
        }
    }
}

/// True if a glob matches the whole text.
fn matches(glob: &[u8], text: &[u8]) -> bool {
    match glob.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|taken| matches(rest, &text[taken..])),
        Some((b'?', rest)) => !text.is_empty() && matches(rest, &text[1..]),
        Some((byte, rest)) => text.first() == Some(byte) && matches(rest, &text[1..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], kind: u32, description: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [name.len() as u32, description.len() as u32, kind] {
            bytes.extend(word.to_le_bytes());
        }
        for part in [name, description] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn notes_of_others_and_cut_ones_are_left_out() {
        let section =
            [note(b"GNU\0", 3, b"abc"), note(b"stapsdt\0", 3, b"first"), note(b"stapsdt\0", 3, b"2")]
                .concat();
        assert_eq!(Notes(&section).collect::<Vec<_>>(), [&b"first"[..], b"2"]);
        for cut in 0..section.len() {
            assert!(Notes(&section[..cut]).count() < 2 || cut + 4 > section.len());
        }
        assert_eq!(Notes(&[0xff; 64]).count(), 0);
    }

    #[test]
    fn globs() {
        for (glob, text, expected) in [
            ("*", "", true),
            ("a*c", "abc", true),
            ("a?c", "ac", false),
            ("a:*", "a:b", true),
            ("a", "ab", false),
        ] {
            assert_eq!(matches(glob.as_bytes(), text.as_bytes()), expected, "{glob} {text}");
        }
    }
}
