//! Executable mappings of files that the program itself has made, of files that the loader has mapped too.
//!
//! The loader does not list them: V8, for example, maps its built-in functions again near its generated code. The
//! recorder sees such mappings in running processes; for short-lived ones they are reported when the process ends.

use alloc::vec::Vec;

use handler::activity;
use handler::recording::Recording;
use handler::snapshot;
use shm_format::record::{self, DurableRecord, Segments};

use crate::hexadecimal;
use crate::journal;
use crate::kernel::File;
use crate::modules::{self, Listener, Object, Segment};

/// First id of these modules; those of the loader's objects are below.
const NUMBERS: u32 = 1 << 31;
/// Maximum number reported.
const MOST: u32 = 64;
/// Maximum bytes of /proc/self/maps that are read.
const LONGEST: usize = 4 << 20;
const CHUNK: usize = 16 << 10;

/// A loaded object.
struct Known {
    start: u64,
    end: u64,
    bias: u64,
    path: Vec<u8>,
    build_id: Vec<u8>,
    segments: Vec<Segment>,
}

impl Known {
    /// The virtual address of a file offset.
    fn address_of(&self, offset: u64) -> Option<u64> {
        let segment = self
            .segments
            .iter()
            .find(|segment| offset.checked_sub(segment.file_offset).is_some_and(|at| at < segment.bytes))?;
        Some(segment.address.wrapping_sub(self.bias).wrapping_add(offset - segment.file_offset))
    }
}

struct Collected(Vec<Known>);

impl Listener for Collected {
    fn loaded(&mut self, object: &Object) {
        self.0.push(Known {
            start: object.start,
            end: object.end,
            bias: object.bias,
            path: object.path.clone(),
            build_id: object.build_id.clone(),
            segments: object.segments.clone(),
        });
    }

    fn unloaded(&mut self, _: &Object) {}
}

/// Reports all such mappings, if samples hit code outside all known objects.
pub(crate) fn tell(recording: &Recording) {
    // A seccomp filter may forbid the following system calls.
    if !snapshot::saw_unknown_code() || activity::is_filtered() {
        return;
    }
    let Some(maps) = read_maps() else { return };
    let mut known = Collected(Vec::new());
    modules::tell_all(&mut known);
    let mut number = NUMBERS;
    for line in maps.split(|&byte| byte == b'\n') {
        let Some(mapping) = Mapping::parse(line) else { continue };
        if known.0.iter().any(|object| object.start <= mapping.start && mapping.start < object.end) {
            continue;
        }
        let found = known
            .0
            .iter()
            .filter(|object| object.path == mapping.path)
            .find_map(|object| Some((object, object.address_of(mapping.offset)?)));
        if let Some((object, address)) = found
            && number < NUMBERS + MOST
        {
            let module = record::Module {
                ticks: journal::started(),
                id: number,
                start: mapping.start,
                end: mapping.end,
                bias: mapping.start.wrapping_sub(address),
                build_id: &object.build_id,
                path: &object.path,
                segments: Segments::new(&[]),
            };
            journal::append(recording, &DurableRecord::Module(module));
            number += 1;
        }
    }
}

fn read_maps() -> Option<Vec<u8>> {
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

/// An executable mapping of a file.
struct Mapping<'a> {
    start: u64,
    end: u64,
    offset: u64,
    path: &'a [u8],
}

impl<'a> Mapping<'a> {
    /// `START-END PERMISSIONS OFFSET DEVICE INODE PATH`.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let path = &line[line.iter().position(|&byte| byte == b'/')?..];
        let mut fields = line.split(|&byte| byte == b' ');
        let mut range = fields.next()?.split(|&byte| byte == b'-');
        let (start, end) = (hexadecimal::number(range.next()?)?, hexadecimal::number(range.next()?)?);
        if fields.next()?.get(2) != Some(&b'x') {
            return None;
        }
        Some(Self { start, end, offset: hexadecimal::number(fields.next()?)?, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_mappings_of_files_are_told() {
        let line =
            b"7fcafe600000-7fcafe792000 r-xp 014c4000 fe:00 247584                     /usr/bin/node (x)";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!(
            (mapping.start, mapping.end, mapping.offset),
            (0x7fca_fe60_0000, 0x7fca_fe79_2000, 0x14c_4000)
        );
        assert_eq!(mapping.path, b"/usr/bin/node (x)");
        for other in [
            &b"7fcafe600000-7fcafe792000 rw-p 014c4000 fe:00 247584 /usr/bin/node"[..],
            b"7ffd0000-7ffe0000 r-xp 00000000 00:00 0 [vdso]",
            b"/",
            b"",
        ] {
            assert!(Mapping::parse(other).is_none());
        }
    }

    #[test]
    fn file_offsets_are_addresses_in_their_segments() {
        let segment = Segment { address: 0x1_2000, bytes: 0x1000, file_offset: 0x800, flags: 5 };
        let object = Known {
            start: 0x1_0000,
            end: 0x2_0000,
            bias: 0x1_0000,
            path: Vec::new(),
            build_id: Vec::new(),
            segments: alloc::vec![segment],
        };
        assert_eq!(object.address_of(0x900), Some(0x2100));
        assert_eq!(object.address_of(0x7ff), None);
        assert_eq!(object.address_of(0x1800), None);
    }
}
