//! Programs built for the tests of symbolization, and one name of them.

// Each test file takes what it needs.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSymbol, SymbolKind};
use selfwind_profile::symbolize::{Origin, Request, SymbolSources, Symbols, symbolize};

/// An empty directory for one test.
pub(crate) fn directory(test: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("symbolize-{test}"));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    directory
}

pub(crate) fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Compiles the C program of these tests with the given flags.
pub(crate) fn c_program(directory: &Path, flags: &[&str]) -> PathBuf {
    let source = directory.join("mixer.c");
    fs::write(&source, include_str!("../symbolize/mixer.c")).unwrap();
    let program = directory.join("mixer");
    run(Command::new("cc").args(flags).arg("-o").arg(&program).arg(&source));
    program
}

/// `step`th bytes of all functions with a size, at most `limit`.
pub(crate) fn addresses(
    program: &Path,
    step: usize,
    limit: usize,
    wanted: impl Fn(&str) -> bool,
) -> Vec<u64> {
    let bytes = fs::read(program).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let mut addresses: Vec<u64> = file
        .symbols()
        .filter(|s| s.kind() == SymbolKind::Text && s.size() > 0 && s.name().is_ok_and(&wanted))
        .flat_map(|s| (s.address()..s.address() + s.size()).step_by(step))
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    let keep = addresses.len().div_ceil(limit).max(1);
    addresses.into_iter().step_by(keep).collect()
}

/// The build-id of a file.
pub(crate) fn build_id(program: &Path) -> Vec<u8> {
    let bytes = fs::read(program).unwrap();
    object::File::parse(&*bytes).unwrap().build_id().unwrap().unwrap_or_default().to_vec()
}

/// Where `function` is in an unstripped program.
pub(crate) fn function(program: &Path, function: &str) -> u64 {
    let bytes = fs::read(program).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    file.symbols().find(|symbol| symbol.name() == Ok(function)).unwrap().address()
}

/// The name at an address of the file at `path`, recorded with `build_id`.
pub(crate) fn name(path: &Path, build_id: &[u8], address: u64, sources: &SymbolSources) -> (String, Origin) {
    let request =
        Request { path: path.to_owned(), build_id: build_id.to_vec(), file: None, addresses: vec![address] };
    let symbols = symbolize(&[request], sources).pop().unwrap();
    let line = symbols.lines[symbols.ranges[0].end as usize - 1];
    (symbols.names.get(line.function).to_owned(), symbols.origin)
}

/// Splits the debug information off into `debug`; what stays has no names.
pub(crate) fn split(program: &Path, debug: &Path, link: bool) {
    run(Command::new("objcopy").arg("--only-keep-debug").args([program, debug]));
    run(Command::new("strip").arg("--strip-all").arg(program));
    if link {
        let link = format!("--add-gnu-debuglink={}", debug.display());
        run(Command::new("objcopy").arg(link).arg(program));
    }
}

/// A function, its file and its line.
pub(crate) type Call = (String, String, u32);

/// The functions at these addresses, innermost first.
pub(crate) fn ours(program: &Path, addresses: &[u64], sources: &SymbolSources) -> (Vec<Vec<Call>>, Symbols) {
    let request = Request {
        path: program.to_owned(),
        build_id: build_id(program),
        file: None,
        addresses: addresses.to_vec(),
    };
    let symbols = symbolize(&[request], sources).pop().unwrap();
    let calls = symbols.ranges.iter().map(|range| {
        let lines = &symbols.lines[range.start as usize..range.end as usize];
        lines
            .iter()
            .map(|line| {
                let file = line.file.map_or("??", |file| symbols.names.get(file));
                (symbols.names.get(line.function).to_owned(), normal(file), line.line)
            })
            .collect()
    });
    (calls.collect(), symbols)
}

/// A path without `.` and `..`, which the two tools keep or drop as they like.
pub(crate) fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." if parts.last().is_some_and(|last| !last.is_empty()) => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}
