//! Names of generated code from `/tmp/perf-PID.map`, as node, Java agents, Python and others write it.
//!
//! The format is perf's (tools/perf/Documentation/jit-interface.txt): lines of `START SIZE NAME`, numbers
//! hexadecimal.

use std::io::{self, BufRead, Read};
use std::path::PathBuf;

use super::generated_name::short_name;
use crate::profile_file::GeneratedFunction;

/// Maximum length of a line; the rest is ignored.
const LONGEST_LINE: u64 = 64 * 1024;

/// The path of a process's map.
pub fn perf_map_path(pid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/perf-{pid}.map"))
}

/// The functions for which `wanted` is true, in the order of the map; `since` gives their time by the offset of the line.
pub(super) fn parse(
    mut lines: impl BufRead,
    wanted: impl Fn(u64, u64) -> bool,
    since: impl Fn(u64) -> u64,
) -> io::Result<Vec<GeneratedFunction>> {
    let mut functions = Vec::new();
    let mut line = Vec::new();
    let mut offset = 0;
    while Read::take(&mut lines, LONGEST_LINE).read_until(b'\n', &mut line)? > 0 {
        let read = function(&String::from_utf8_lossy(&line), since(offset));
        functions.extend(read.filter(|function| wanted(function.start, function.len)));
        offset += line.len() as u64;
        line.clear();
    }
    Ok(functions)
}

/// Parses a line.
fn function(line: &str, since_ns: u64) -> Option<GeneratedFunction> {
    let mut parts = line.trim_end().splitn(3, ' ');
    let hexadecimal = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let start = hexadecimal(parts.next()?)?;
    let len = hexadecimal(parts.next()?)?;
    start.checked_add(len)?;
    let name = short_name(parts.next()?.trim_start());
    Some(GeneratedFunction { since_ns, start, len, name })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbolize::generated_name::LONGEST_NAME;

    fn hit(hits: &[u64]) -> impl Fn(u64, u64) -> bool + '_ {
        |start, len| hits.iter().any(|&hit| hit >= start && hit - start < len)
    }

    fn names(text: &str, hits: &[u64]) -> Vec<String> {
        let functions = parse(text.as_bytes(), hit(hits), |_| 0).unwrap();
        functions.into_iter().map(|function| function.name).collect()
    }

    #[test]
    fn functions_that_are_hit() {
        let map = "1000 100 old\n0x2000 10 LazyCompile:*f /a b.js:3\n1000 80 new\nbroken\nff zz x\n";
        assert_eq!(names(map, &[0xfff, 0x1100, 0x2010]), Vec::<String>::new());
        assert_eq!(names(map, &[0x1000]), ["old", "new"]);
        assert_eq!(names(map, &[0x10ff]), ["old"]);
        assert_eq!(names(map, &[0x200f]), ["LazyCompile:*f /a b.js:3"]);
    }

    #[test]
    fn functions_have_the_time_of_their_line() {
        let map = "1000 10 old\nbroken\n1000 10 new\n";
        let functions = parse(map.as_bytes(), |_, _| true, |offset| offset * 10).unwrap();
        let times: Vec<u64> = functions.iter().map(|function| function.since_ns).collect();
        assert_eq!(times, [0, 190]);
    }

    #[test]
    fn endless_lines_and_sizes_do_no_harm() {
        let long = format!("1000 10 {}\n2000 10 f\n", "x".repeat(200_000));
        assert_eq!(names(&long, &[0x2008]), ["f"]);
        assert_eq!(names(&long, &[0x1000])[0].len(), LONGEST_NAME);
        assert_eq!(names("ffffffffffffffff 10 f\n", &[u64::MAX]), Vec::<String>::new());
    }
}
