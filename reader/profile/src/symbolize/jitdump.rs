//! Names of generated code from a jitdump (tools/perf/Documentation/jitdump-specification.txt), as LLVM, V8,
//! Java agents and others write it. Unlike a map it says when each function was generated.

use std::collections::HashMap;
use std::io::{self, BufRead, Read};

use super::generated_name::short_name;
use crate::profile_file::GeneratedFunction;

const MAGIC: [u8; 4] = *b"DTiJ"; // little endian; other machines' dumps are not read
/// Size of the header in every version.
const HEADER: u64 = 40;
/// Flag: timestamps are those of the processor's counter, not of CLOCK_MONOTONIC.
const ARCH_TIMESTAMP: u64 = 1;
/// Size of a record's header.
const RECORD: u64 = 16;
const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;
/// Maximum number of names remembered for functions that move.
const NAMES_MAX: usize = 1 << 20;
/// Maximum length of a name.
const LONGEST_NAME: u64 = 64 * 1024;

/// The functions for which `wanted` is true, in the order of time. A truncated dump is read as far as it goes: its process
/// may have been killed.
pub(super) fn parse(
    mut dump: impl BufRead,
    wanted: impl Fn(u64, u64) -> bool,
) -> io::Result<Vec<GeneratedFunction>> {
    let mut header = [0; HEADER as usize];
    dump.read_exact(&mut header)?;
    let size = u64::from(u32_at(&header, 8));
    if header[..4] != MAGIC || size < HEADER {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a jitdump of this machine"));
    }
    skip(&mut dump, size - HEADER)?;
    let timed = u64_at(&header, 32) & ARCH_TIMESTAMP == 0;
    let mut records = Records { timed, names: HashMap::new() };
    let mut functions = Vec::new();
    while let Ok(Some(function)) = records.next(&mut dump) {
        functions.extend(function.filter(|function| wanted(function.start, function.len)));
    }
    functions.sort_by_key(|function| function.since_ns);
    Ok(functions)
}

/// What later records need of earlier ones.
struct Records {
    /// Timestamps are those of CLOCK_MONOTONIC.
    timed: bool,
    /// Names of functions by number, for those that move.
    names: HashMap<u64, String>,
}

impl Records {
    /// The next record; `None` at the end, an empty one if it is not about a function.
    fn next(&mut self, dump: &mut impl BufRead) -> io::Result<Option<Option<GeneratedFunction>>> {
        if dump.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let mut head = [0; RECORD as usize];
        dump.read_exact(&mut head)?;
        let (kind, size) = (u32_at(&head, 0), u64::from(u32_at(&head, 4)));
        let since_ns = if self.timed { u64_at(&head, 8) } else { 0 };
        let mut body = dump.take(size.checked_sub(RECORD).ok_or(io::ErrorKind::InvalidData)?);
        let function = match kind {
            CODE_LOAD => Some(self.load(&mut body, since_ns)?),
            CODE_MOVE => self.moved(&mut body, since_ns)?,
            _ => None,
        };
        let rest = body.limit();
        skip(&mut body, rest)?;
        Ok(Some(function))
    }

    fn load(&mut self, body: &mut io::Take<impl BufRead>, since_ns: u64) -> io::Result<GeneratedFunction> {
        let mut numbers = [0; 40];
        body.read_exact(&mut numbers)?;
        let mut name = Vec::new();
        body.by_ref().take(LONGEST_NAME).read_until(0, &mut name)?;
        let name = short_name(&String::from_utf8_lossy(name.strip_suffix(&[0]).unwrap_or(&name)));
        if self.names.len() < NAMES_MAX {
            self.names.insert(u64_at(&numbers, 32), name.clone());
        }
        Ok(GeneratedFunction { since_ns, start: u64_at(&numbers, 16), len: u64_at(&numbers, 24), name })
    }

    fn moved(&self, body: &mut impl Read, since_ns: u64) -> io::Result<Option<GeneratedFunction>> {
        let mut numbers = [0; 48];
        body.read_exact(&mut numbers)?;
        let name = self.names.get(&u64_at(&numbers, 40)).cloned();
        let (start, len) = (u64_at(&numbers, 24), u64_at(&numbers, 32));
        Ok(name.map(|name| GeneratedFunction { since_ns, start, len, name }))
    }
}

fn skip(dump: &mut impl BufRead, len: u64) -> io::Result<()> {
    let skipped = io::copy(&mut dump.take(len), &mut io::sink())?;
    if skipped == len { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use selfwind_tests::random::Random;

    use super::*;

    fn hit(hits: &[u64]) -> impl Fn(u64, u64) -> bool + '_ {
        |start, len| hits.iter().any(|&hit| hit >= start && hit - start < len)
    }

    fn record(kind: u32, ns: u64, body: &[u8]) -> Vec<u8> {
        let size = (RECORD as usize + body.len()) as u32;
        [&kind.to_le_bytes()[..], &size.to_le_bytes(), &ns.to_le_bytes(), body].concat()
    }

    fn numbers(numbers: &[u64]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn load(ns: u64, index: u64, start: u64, len: u64, name: &str) -> Vec<u8> {
        let code = vec![0xcc; len as usize];
        let body = [&numbers(&[7, start, start, len, index]), name.as_bytes(), &[0], &code].concat();
        record(CODE_LOAD, ns, &body)
    }

    fn dump(records: &[Vec<u8>]) -> Vec<u8> {
        let mut header = MAGIC.to_vec();
        for word in [1u32, HEADER as u32, 62, 0, 7] {
            header.extend_from_slice(&word.to_le_bytes());
        }
        header.extend(numbers(&[1, 0]));
        header.extend(records.concat());
        header
    }

    fn names(bytes: &[u8], hits: &[u64]) -> Vec<(u64, String)> {
        let functions = parse(bytes, hit(hits)).unwrap();
        functions.into_iter().map(|function| (function.since_ns, function.name)).collect()
    }

    fn example() -> Vec<u8> {
        dump(&[
            load(20, 2, 0x2000, 32, "second"),
            load(10, 1, 0x1000, 64, "first"),
            record(2, 25, &[0; 100]), // lines
            record(CODE_MOVE, 30, &numbers(&[7, 0x1000, 0x1000, 0x2000, 64, 1])),
            record(3, 40, &[]),
        ])
    }

    #[test]
    fn functions_have_their_times() {
        let dump = example();
        let first = (10, "first".to_owned());
        assert_eq!(names(&dump, &[0x103f]), std::slice::from_ref(&first));
        assert_eq!(names(&dump, &[0x1040, 0x1fff]), []);
        let all = [first, (20, "second".to_owned()), (30, "first".to_owned())];
        assert_eq!(names(&dump, &[0x1000, 0x2000]), all);
    }

    #[test]
    fn damaged_dumps_are_read_as_far_as_they_go() {
        let intact = example();
        let hits = [0x1000, 0x2000];
        for len in 0..intact.len() {
            let read = parse(&intact[..len], hit(&hits)).map(|functions| functions.len());
            assert!(matches!(read, Ok(0..=3)) == (len >= HEADER as usize), "{len}");
        }
        let mut random = Random::new(0x1234_5678_9abc_def1);
        for _ in 0..20_000 {
            let mut bytes = intact.clone();
            for _ in 0..3 {
                random.damage(&mut bytes);
            }
            let _ = parse(&*bytes, hit(&hits));
        }
    }
}
