//! The files that the kernel has mapped for this process, as /proc/self/maps lists them.

use alloc::vec::Vec;

use crate::hexadecimal;
use crate::kernel::File;

/// Maximum bytes of the list that are read.
const LONGEST: usize = 4 << 20;
const CHUNK: usize = 16 << 10;

/// Reads the list; `None` if /proc is not there.
pub(crate) fn read() -> Option<Vec<u8>> {
    let file = File::read_only(c"/proc/self/maps").ok()?;
    let mut text = Vec::new();
    while text.len() < LONGEST {
        let before = text.len();
        text.resize(before + CHUNK, 0);
        let count = file.read(&mut text[before..]).ok()?;
        text.truncate(before + count);
        if count == 0 {
            break;
        }
    }
    Some(text)
}

/// The path of the file that is mapped at `address`.
pub(crate) fn path_at(address: u64) -> Option<Vec<u8>> {
    let list = read()?;
    MappedFile::all(&list)
        .find(|mapping| mapping.start <= address && address < mapping.end)
        .map(|mapping| mapping.path.to_vec())
}

/// A mapping of a file.
pub(crate) struct MappedFile<'a> {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Offset in the file.
    pub(crate) offset: u64,
    pub(crate) is_executable: bool,
    pub(crate) path: &'a [u8],
}

impl<'a> MappedFile<'a> {
    /// Those of a list.
    pub(crate) fn all(list: &'a [u8]) -> impl Iterator<Item = Self> {
        list.split(|&byte| byte == b'\n').filter_map(Self::parse)
    }

    /// `START-END PERMISSIONS OFFSET DEVICE INODE PATH`.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let path = &line[line.iter().position(|&byte| byte == b'/')?..];
        let mut fields = line.split(|&byte| byte == b' ');
        let mut range = fields.next()?.split(|&byte| byte == b'-');
        let (start, end) = (hexadecimal::number(range.next()?)?, hexadecimal::number(range.next()?)?);
        let is_executable = *fields.next()?.get(2)? == b'x';
        Some(Self { start, end, offset: hexadecimal::number(fields.next()?)?, is_executable, path })
    }
}
