//! Programs that count their own allocations or mappings per site, and comparison with their profiles.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::folded::Folded;
use crate::outcome::shell_status;
use crate::recording::read;

/// The values of allocations, in the order in which the programs say them.
pub const ALLOCATED: [&str; 4] = ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"];
/// The same of mappings.
pub const MAPPED: [&str; 4] = ["mmap_objects", "mmap_space", "mmap_inuse_objects", "mmap_inuse_space"];

/// Folded stacks of one value.
pub fn folded(file: &Path, value: &str) -> Folded {
    Folded::parse(&read(&["export", "-f", "folded", "--value", value], file))
}

/// By site: objects and bytes that it allocated, objects and bytes that are held at the end.
pub fn counted(said: &str) -> BTreeMap<String, [u64; 4]> {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next().expect("a name").to_owned();
        let numbers: Vec<u64> = words.map(|word| word.parse().expect("a number")).collect();
        (name, numbers.try_into().expect("four numbers"))
    };
    said.lines().map(line).collect()
}

/// All values of all sites are exactly what the program says.
pub fn assert_exact(file: &Path, said: &str, values: [&str; 4]) {
    let profiles = values.map(|value| folded(file, value));
    for (site, expected) in counted(said) {
        assert_eq!(profiles.each_ref().map(|profile| profile.inclusive(&site)), expected, "{site}");
    }
}

/// Runs a recorder whose program waits after this many lines, which are returned; then the program is killed.
pub fn killed_after(mut recorder: Command, lines: usize) -> String {
    let mut child = recorder.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("selfwind runs");
    let mut pipe = BufReader::new(child.stdout.take().expect("piped"));
    let mut said = String::new();
    for _ in 0..lines {
        pipe.read_line(&mut said).expect("a line");
    }
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let target = std::fs::read_to_string(children).expect("our child's").trim().parse().expect("one process");
    kill(Pid::from_raw(target), Signal::SIGKILL).expect("our grandchild");
    assert_eq!(shell_status(child.wait().expect("our child")), 137);
    said
}
