//! The format of a symbol cache file: the names of one binary, and what they depend on.
//!
//! All numbers are little-endian. Magic and version (8 bytes), CRC-32 of the rest (4), then the sections below in the order
//! of [`CacheFile::encode`]. Although only this user can have written the file, it is not trusted: a malformed file counts
//! as missing.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::image::{FileState, Witness};
use super::symbols::{Line, Origin, Symbols};
use crate::names::{NameId, Names};

/// The last byte is the version.
const MAGIC: [u8; 8] = *b"SWNAMES\x04";
const LINE_BYTES: usize = 16;
/// Maximum number of items of one kind: counts, and sums of two counts, fit 32 bits.
const MOST: usize = 1 << 30;

/// The answers of one binary.
pub(super) struct CacheFile {
    bytes: Vec<u8>,
    pub(super) build_id: Vec<u8>,
    pub(super) origin: Origin,
    /// The directories that were searched.
    pub(super) directories: Vec<PathBuf>,
    pub(super) witnesses: Vec<Witness>,
    /// `u64` addresses, ascending.
    addresses: Range<usize>,
    /// `u32`: the end of each address's lines; they begin where those of the previous address end.
    ends: Range<usize>,
    lines: Range<usize>,
    /// `u32`: the end of each text.
    text_ends: Range<usize>,
    texts: Range<usize>,
}

/// A file that an answer depends on.
pub(super) struct Provenance<'a> {
    pub(super) build_id: &'a [u8],
    pub(super) origin: &'a Origin,
    pub(super) directories: &'a [PathBuf],
    pub(super) witnesses: &'a [Witness],
}

impl CacheFile {
    /// Encodes the answers to ascending addresses. `None` if they cannot be cached.
    pub(super) fn encode(of: &Provenance<'_>, addresses: &[u64], symbols: &Symbols) -> Option<Vec<u8>> {
        let (kind, path) = match of.origin {
            Origin::Dwarf(path) => (0, path.as_path()),
            Origin::Symbols => (1, Path::new("")),
            Origin::Stripped => (2, Path::new("")),
            Origin::PerfMap | Origin::Changed(_) | Origin::Unreadable(_) => return None,
        };
        if addresses.len().max(symbols.lines.len()).max(symbols.names.len()) > MOST {
            return None;
        }
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&[0; 4]);
        put_bytes(&mut out, of.build_id);
        out.push(kind);
        put_bytes(&mut out, path.as_os_str().as_bytes());
        put_u32(&mut out, of.directories.len());
        of.directories.iter().for_each(|path| put_bytes(&mut out, path.as_os_str().as_bytes()));
        put_u32(&mut out, of.witnesses.len());
        for Witness { path, state } in of.witnesses {
            put_bytes(&mut out, path.as_os_str().as_bytes());
            let FileState { inode, len, changed_ns } =
                state.unwrap_or(FileState { inode: 0, len: 0, changed_ns: 0 });
            out.push(u8::from(state.is_some()));
            [inode, len, changed_ns as u64].iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes()));
        }
        put_answers(&mut out, addresses, symbols)?;
        let checksum = crc32fast::hash(&out[12..]);
        out[8..12].copy_from_slice(&checksum.to_le_bytes());
        Some(out)
    }

    /// Decodes a file. `None` if it is damaged.
    pub(super) fn decode(bytes: Vec<u8>) -> Option<Self> {
        if bytes.get(..8)? != MAGIC || word(&bytes, 8)? != crc32fast::hash(&bytes[12..]) {
            return None;
        }
        let mut cursor = Cursor { bytes: &bytes, at: 12 };
        let build_id = cursor.bytes()?.to_vec();
        let kind = cursor.byte()?;
        let path = cursor.path()?;
        let origin = match kind {
            0 => Origin::Dwarf(path),
            1 => Origin::Symbols,
            2 => Origin::Stripped,
            _ => return None,
        };
        let directories = (0..cursor.u32()?).map(|_| cursor.path()).collect::<Option<_>>()?;
        let witnesses = (0..cursor.u32()?).map(|_| cursor.witness()).collect::<Option<_>>()?;
        let [answers, lines, texts] = [cursor.u32()?, cursor.u32()?, cursor.u32()?].map(|n| n as usize);
        let addresses = cursor.skip(answers.checked_mul(8)?)?;
        let ends = cursor.skip(answers.checked_mul(4)?)?;
        let lines = cursor.skip(lines.checked_mul(LINE_BYTES)?)?;
        let text_ends = cursor.skip(texts.checked_mul(4)?)?;
        let texts = cursor.at..bytes.len();
        Some(Self {
            bytes,
            build_id,
            origin,
            directories,
            witnesses,
            addresses,
            ends,
            lines,
            text_ends,
            texts,
        })
    }

    /// The addresses with an answer.
    pub(super) fn addresses(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        let bytes = &self.bytes[self.addresses.clone()];
        bytes.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
    }

    /// Its size in bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends the answers for ascending addresses to `symbols`, and returns the addresses that have none. `None` if the
    /// file is malformed.
    pub(super) fn answer(&self, addresses: &[u64], symbols: &mut Symbols) -> Option<Vec<u64>> {
        let mut known = self.addresses().enumerate().peekable();
        let mut names: Vec<Option<NameId>> = vec![None; self.text_ends.len() / 4];
        let mut missing = Vec::new();
        for &address in addresses {
            while known.next_if(|&(_, other)| other < address).is_some() {}
            let Some(&(index, _)) = known.peek().filter(|&&(_, other)| other == address) else {
                missing.push(address);
                symbols.ranges.push(0..0);
                continue;
            };
            let begin = if index == 0 { 0 } else { self.u32(&self.ends, index - 1)? as usize };
            let end = self.u32(&self.ends, index)? as usize;
            if begin >= end || end > self.lines.len() / LINE_BYTES {
                return None;
            }
            let first = symbols.lines.len() as u32;
            for line in begin..end {
                let line = self.line(line, &mut names, &mut symbols.names)?;
                symbols.lines.push(line);
            }
            symbols.ranges.push(first..symbols.lines.len() as u32);
        }
        Some(missing)
    }

    fn line(&self, line: usize, known: &mut [Option<NameId>], names: &mut Names) -> Option<Line> {
        let word = |index: usize| word(&self.bytes, self.lines.start + line * LINE_BYTES + index * 4);
        let mut name = |number: u32| -> Option<NameId> {
            let slot = known.get_mut(number as usize)?;
            if slot.is_none() {
                *slot = Some(names.intern(self.text(number as usize)?));
            }
            *slot
        };
        let (function, linkage, packed) = (name(word(0)?)?, name(word(1)?)?, word(3)?);
        let file = match word(2)? {
            0 => None,
            more => Some(name(more - 1)?),
        };
        Some(Line { function, linkage, file, line: packed >> 1, inlined: packed & 1 == 1 })
    }

    fn text(&self, number: usize) -> Option<&str> {
        let begin = if number == 0 { 0 } else { self.u32(&self.text_ends, number - 1)? as usize };
        let end = self.u32(&self.text_ends, number)? as usize;
        std::str::from_utf8(self.bytes[self.texts.clone()].get(begin..end)?).ok()
    }

    fn u32(&self, section: &Range<usize>, index: usize) -> Option<u32> {
        word(&self.bytes, section.start + index * 4)
    }
}

fn put_answers(out: &mut Vec<u8>, addresses: &[u64], symbols: &Symbols) -> Option<()> {
    let used: usize = symbols.ranges.iter().map(ExactSizeIterator::len).sum();
    put_u32(out, addresses.len());
    put_u32(out, used);
    put_u32(out, symbols.names.len());
    addresses.iter().for_each(|address| out.extend_from_slice(&address.to_le_bytes()));
    let mut end = 0;
    for range in &symbols.ranges {
        end += range.len();
        put_u32(out, end);
    }
    for line in symbols.ranges.iter().flat_map(|range| range.clone().map(|at| &symbols.lines[at as usize])) {
        let packed = line.line.min(u32::MAX >> 1) << 1 | u32::from(line.inlined);
        for word in [line.function.0, line.linkage.0, line.file.map_or(0, |file| file.0 + 1), packed] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }
    let mut end = 0;
    for text in symbols.names.iter() {
        end += text.len();
        put_u32(out, end);
    }
    symbols.names.iter().for_each(|text| out.extend_from_slice(text.as_bytes()));
    u32::try_from(end).ok().map(drop)
}

fn put_u32(out: &mut Vec<u8>, value: usize) {
    out.extend_from_slice(&(value as u32).to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// Reads the sections of a file in order.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn skip(&mut self, len: usize) -> Option<Range<usize>> {
        let range = self.at..self.at.checked_add(len).filter(|&end| end <= self.bytes.len())?;
        self.at = range.end;
        Some(range)
    }

    fn byte(&mut self) -> Option<u8> {
        self.skip(1).map(|range| self.bytes[range.start])
    }

    fn u32(&mut self) -> Option<u32> {
        self.skip(4).and_then(|range| word(self.bytes, range.start))
    }

    fn u64(&mut self) -> Option<u64> {
        self.skip(8).map(|range| u64::from_le_bytes(self.bytes[range].try_into().unwrap_or_default()))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        self.skip(len).map(|range| &self.bytes[range])
    }

    fn path(&mut self) -> Option<PathBuf> {
        self.bytes().map(|bytes| PathBuf::from(OsStr::from_bytes(bytes)))
    }

    fn witness(&mut self) -> Option<Witness> {
        let (path, there) = (self.path()?, self.byte()? != 0);
        let state = FileState { inode: self.u64()?, len: self.u64()?, changed_ns: self.u64()? as i64 };
        Some(Witness { path, state: there.then_some(state) })
    }
}
