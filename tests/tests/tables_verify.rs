//! Every row of every table equals an independent evaluation of the same DWARF, for this machine's own files.

use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSymbol};
use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::run;
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;
use selfwind_tests::target::Target;
use unwind::{Kind, Machine, Rule, Table};

fn verify(files: &[PathBuf]) -> (u64, u64) {
    let outcome = run(Command::new(selfwind()).args(["tables", "verify"]).args(files));
    let last = outcome.stdout.lines().last().unwrap_or_default();
    let words: Vec<&str> = last.split_whitespace().collect();
    let ["rows", rows, "mismatches", mismatches] = words[..] else {
        panic!("the last line is `rows N mismatches M`: {last:?} {}", outcome.stderr)
    };
    let (rows, mismatches) = (rows.parse().expect("a number"), mismatches.parse().expect("a number"));
    let wrong: Vec<&str> = outcome.stdout.lines().filter(|l| !l.ends_with("mismatches 0")).take(40).collect();
    assert_eq!(outcome.status == 0, mismatches == 0, "{last} with status {}", outcome.status);
    assert_eq!(mismatches, 0, "{wrong:#?}");
    (rows, mismatches)
}

/// The regular files in `directory` whose name contains `part`.
fn files(directory: &str, part: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|e| panic!("{directory}: {e}"));
    let paths = entries.filter_map(|e| Some(e.ok()?.path()));
    let mut files: Vec<PathBuf> = paths
        .filter(|p| p.is_file() && p.to_string_lossy().contains(part))
        .filter_map(|p| p.canonicalize().ok())
        .collect();
    files.sort();
    files.dedup();
    files
}

/// All of them with `SELFWIND_TABLES_ALL`; else enough to meet every kind of row without an hour's work.
fn some(files: Vec<PathBuf>, count: usize) -> Vec<PathBuf> {
    if std::env::var_os("SELFWIND_TABLES_ALL").is_some() {
        return files;
    }
    // Of every size, the largest among them.
    let mut files = files;
    files.sort_by_key(|file| std::cmp::Reverse(std::fs::metadata(file).map_or(0, |metadata| metadata.len())));
    let step = files.len().div_ceil(count).max(1);
    files.into_iter().step_by(step).collect()
}

#[test]
fn the_c_library_and_the_loader() {
    let mut chosen = files("/lib/x86_64-linux-gnu", "libc.so.6");
    chosen.extend(files("/lib/x86_64-linux-gnu", "ld-linux"));
    chosen.extend(files("/lib/x86_64-linux-gnu", "libgcc_s"));
    let (rows, _) = verify(&chosen);
    assert!(rows > 20_000, "{rows} rows");
}

#[test]
fn shared_objects_of_this_machine() {
    let (rows, _) = verify(&some(files("/lib/x86_64-linux-gnu", ".so"), 60));
    assert!(rows > 100_000, "{rows} rows");
}

#[test]
fn programs_of_this_machine() {
    let (rows, _) = verify(&some(files("/usr/bin", ""), 80));
    assert!(rows > 100_000, "{rows} rows");
}

#[test]
fn hand_written_assembly() {
    let chosen = files("/usr/lib/x86_64-linux-gnu", "libcrypto.so");
    if chosen.is_empty() {
        return skip("no libcrypto (Debian: libssl3)");
    }
    assert!(verify(&chosen).0 > 50_000);
}

/// Address of a function in the file's own numbering.
fn address_of(file: &[u8], function: &str) -> u64 {
    let object = object::File::parse(file).expect("an ELF file");
    let symbol = object.symbols().find(|symbol| symbol.name() == Ok(function));
    symbol.unwrap_or_else(|| panic!("no {function}")).address()
}

#[test]
fn programs_with_debug_frame_alone() {
    let without = "-fno-asynchronous-unwind-tables";
    let variants: [&[&str]; 2] = [&[], &["-gz=zlib"]];
    let usual = Target::c("spin").build();
    let usual = (std::fs::read(&usual).unwrap(), table_of(&usual));
    let rule = |(file, table): &(Vec<u8>, Vec<u8>), function| {
        Table::from_bytes(table).unwrap().lookup(address_of(file, function) + 1)
    };
    for variant in variants {
        let name = format!("debug-frame{}", variant.concat());
        let program = Target::c("spin").with(&name, &[&[without], variant].concat()).build();
        let file = std::fs::read(&program).unwrap();
        assert!(file.windows(13).any(|name| name == b"\0.debug_frame"), "{variant:?}: no .debug_frame");
        let table = (file, table_of(&program));
        for function in ["main", "spin_first", "spin_second"] {
            assert_eq!(rule(&table, function), rule(&usual, function), "{variant:?}: {function}");
            assert_ne!(rule(&table, function), Rule::UNCOVERED, "{variant:?}: {function}");
        }
        verify(&[program]);
    }
}

/// Leaves, calls, frames of every size and of no known size, and many saved registers.
const FRAMES: &str = "
    extern void take(void *); extern int other(int);
    int leaf(int a, int b) { return a * b + 1; }
    int calls(int a) { return other(a) + other(a + 1); }
    int small(int a) { char room[40]; take(room); return room[a]; }
    int large(int a) { char room[20000]; take(room); return room[a]; }
    int larger(int a) { char room[200000]; take(room); return room[a]; }
    int unknown(int a) { char room[a]; take(room); return room[0] + other(a); }
    int tail(int a) { return other(a + 2); }
    void forever(void) { for (;;) other(0); }
    double floats(double a, double b) { return a * other(1) + b * other(2) + a * b * other(3); }
    int many(int a, int b, int c, int d, int e, int f, int g, int h) {
        int sum = 0;
        for (int i = 0; i < a; i++) sum += other(b + i) * c + other(d) * e + other(f) * g + h;
        return sum;
    }
";

#[test]
fn objects_for_aarch64() {
    let scratch = Scratch::new();
    let source = scratch.join("frames.c");
    std::fs::write(&source, FRAMES).unwrap();
    let signed = "-mbranch-protection=standard";
    let variants: [&[&str]; 5] = [
        &["-O2"],
        &["-O2", signed],
        &["-O0", signed],
        &["-Os", "-fomit-frame-pointer"],
        &["-O2", "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer"],
    ];
    for (number, variant) in variants.into_iter().enumerate() {
        let object = scratch.join(&format!("frames{number}.so"));
        let clang = Command::new("clang")
            .args(["--target=aarch64-linux-gnu", "-fuse-ld=lld", "-nostdlib", "-shared", "-fPIC"])
            .args(["-fasynchronous-unwind-tables", "-Wl,--build-id", "-o"])
            .args([&object, &source])
            .args(variant)
            .status();
        assert!(clang.expect("clang").success(), "{variant:?}");
        assert!(verify(std::slice::from_ref(&object)).0 >= 15, "{variant:?}");
        let table = table_of(&object);
        let table = Table::from_bytes(&table).unwrap();
        assert_eq!(table.machine(), Machine::Aarch64);
        assert_eq!(Table::from_trusted_bytes(table.as_bytes()).is_ok(), Machine::NATIVE == Machine::Aarch64);
        let leaf = table.lookup(address_of(&std::fs::read(&object).unwrap(), "leaf"));
        assert_eq!(leaf, Rule::ENTRY_LINKED, "{variant:?}");
        let complex = table.rows().filter(|(_, rule)| rule.kind() == Kind::Complex).count();
        assert_eq!(complex, 0, "{variant:?}");
    }
}

fn table_of(program: &Path) -> Vec<u8> {
    let scratch = Scratch::new();
    let built = run(Command::new(selfwind()).args(["tables", "build", "-o"]).args([scratch.path(), program]));
    assert_eq!(built.status, 0, "{built:?}");
    let (_, path) = built.stdout.trim().split_once(" -> ").expect("`FILE -> TABLE`");
    std::fs::read(path).unwrap()
}

#[test]
fn unusable_files_are_reported_with_a_reason() {
    let scratch = Scratch::new();
    let program = std::fs::read(Target::c("spin").build()).unwrap();
    let headers = u64::from_le_bytes(program[40..48].try_into().unwrap()) as usize;
    let damaged = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = program.clone();
        change(&mut bytes);
        let path = scratch.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let cases = [
        (damaged("script", &|file| *file = b"#!/bin/sh\n".to_vec()), "not an ELF file"),
        (damaged("empty", &Vec::clear), "not an ELF file"),
        (damaged("other", &|file| file[18] = 40), "another machine"),
        (damaged("narrow", &|file| file[4] = 1), "another machine"),
        (damaged("short", &|file| file.truncate(headers + 100)), "damaged ELF file"),
        (damaged("sections", &|file| file[headers + 64 + 24..].fill(0xff)), ""),
        (PathBuf::from("/dev/null"), "not a regular file"),
    ];
    for (path, reason) in cases {
        let outcome = run(Command::new(selfwind()).args(["tables", "verify"]).arg(&path));
        let said = outcome.stdout.lines().next().unwrap_or_default().to_owned();
        let skipped = said.strip_prefix(&format!("{}: skipped: ", path.display()));
        assert!(skipped.is_some_and(|said| said.contains(reason)), "{}: {outcome:?}", path.display());
        assert!(outcome.status <= 1 && !outcome.stderr.contains("panicked"), "{outcome:?}");
    }
}
