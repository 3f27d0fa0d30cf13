//! Names and stacks of stripped Go programs, from the table of Go's runtime, compared with the DWARF of the same program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use compilation::{compile, debug_frame, go_frame};
use object::{Object, ObjectSection, ObjectSymbol};
use selfwind_profile::symbolize::{Origin, Request, SymbolSources, Symbols, symbolize};
use selfwind_tests::binary::workspace;
use selfwind_tests::outcome::run;
use selfwind_tests::random::Random;
use selfwind_tests::recording::{Recorder, record_unharmed};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;
use selfwind_tests::target::is_installed;
use unwind::elf_file::ElfFile;
use unwind::go_table::GoTable;
use unwind::{Rule, SavedFp, Section, Table};

/// Builds a program that uses much of the standard library.
fn build(scratch: &Scratch, name: &str, flags: &[&str]) -> PathBuf {
    let program = scratch.join(name);
    let mut build = Command::new("go");
    build.arg("build").args(flags).arg("-o").arg(&program);
    build.arg(workspace().join("tests/targets/go_profiles_itself.go"));
    let built = run(build.env("CGO_ENABLED", "0").env("GO111MODULE", "off"));
    assert_eq!(built.status, 0, "{built:?}");
    program
}

/// Addresses all over the code.
fn addresses(program: &Path) -> Vec<u64> {
    let bytes = fs::read(program).expect("it was built");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let text = file.section_by_name(".text").expect("code");
    (text.address()..text.address() + text.size()).step_by(13).collect()
}

fn named(program: &Path, addresses: &[u64]) -> Symbols {
    let request =
        Request { path: program.to_owned(), build_id: Vec::new(), file: None, addresses: addresses.to_vec() };
    symbolize(&[request], &SymbolSources::default()).remove(0)
}

/// Functions with files and lines, innermost first.
fn at(symbols: &Symbols, index: usize) -> Vec<(String, String, u32)> {
    let range = symbols.ranges[index].clone();
    let lines = &symbols.lines[range.start as usize..range.end as usize];
    let text = |id| symbols.names.get(id).to_owned();
    lines
        .iter()
        .map(|line| (text(line.function), line.file.map(text).unwrap_or_default(), line.line))
        .collect()
}

#[test]
fn a_stripped_program_has_the_names_lines_and_inlined_functions_of_its_dwarf() {
    if !is_installed("go") {
        return skip("go is not installed (Debian: golang-go)");
    }
    let scratch = Scratch::new();
    for (kind, flags) in [("fixed", &[][..]), ("pie", &["-buildmode=pie"])] {
        let whole = build(&scratch, &format!("{kind}-whole"), flags);
        let stripped = build(&scratch, &format!("{kind}-stripped"), &[flags, &["-ldflags=-s -w"]].concat());
        let addresses = addresses(&whole);
        assert_eq!(addresses, self::addresses(&stripped), "{kind}: the same code");
        let (dwarf, table) = (named(&whole, &addresses), named(&stripped, &addresses));
        assert!(matches!(dwarf.origin, Origin::Dwarf(_)), "{kind}: {:?}", dwarf.origin);
        assert_eq!(table.origin, Origin::Symbols, "{kind}");
        let (mut compared, mut inlined, mut different) = (0, 0, Vec::new());
        for (index, address) in addresses.iter().enumerate() {
            let (of_dwarf, of_table) = (at(&dwarf, index), at(&table, index));
            // Gaps between functions have no lines.
            if of_dwarf.iter().any(|(_, _, line)| *line == 0) {
                continue;
            }
            // What its linker made up has no directory.
            let of_dwarf: Vec<_> = of_dwarf
                .into_iter()
                .map(|(function, file, line)| (function, file.replace("./<", "<"), line))
                .collect();
            compared += 1;
            inlined += usize::from(of_dwarf.len() > 1);
            if of_dwarf != of_table {
                different.push((address, of_dwarf, of_table));
            }
        }
        println!("{kind}: {compared} compared, {inlined} inlined, {} different", different.len());
        assert!(compared > 20_000 && inlined > 1_000, "{kind}: {compared}, {inlined}");
        // The table shortens the names of functions that compare arrays, and has wrappers that the DWARF leaves out.
        assert!(
            different.len() * 500 < compared,
            "{kind}: {} of {compared}: {different:#x?}",
            different.len()
        );
    }
}

/// Go's linker writes the same into `.debug_frame`.
#[test]
fn a_stripped_program_has_the_unwind_rules_of_its_debug_frame() {
    if !is_installed("go") {
        return skip("go is not installed (Debian: golang-go)");
    }
    let scratch = Scratch::new();
    let bytes = fs::read(build(&scratch, "whole", &["-ldflags=-compressdwarf=false"])).expect("it was built");
    let whole = ElfFile::parse(&bytes).expect("an ELF file");
    let symbols = object::File::parse(&*bytes).expect("an ELF file");
    let function = |name| {
        let symbol = symbols.symbols().find(|symbol| symbol.name() == Ok(name)).expect(name);
        symbol.address() + symbol.size() / 2
    };
    let stripped = fs::read(build(&scratch, "stripped", &["-ldflags=-s -w"])).expect("it was built");
    let stripped = ElfFile::parse(&stripped).expect("an ELF file");
    let go = stripped.go_table.and_then(GoTable::parse).expect("its table");
    let table = |entries| {
        let (bytes, address) = debug_frame::merge(entries, None);
        compile(Section { bytes: &bytes, address }, 0, &[]).expect("rules")
    };
    let expected = table(debug_frame::rewrite(whole.debug_frame.expect("its debug_frame").bytes, 0));
    let expected = Table::from_bytes(&expected).expect("a table");
    let found = table(go_frame::write(&go, 0).expect("its frames"));
    let found = Table::from_bytes(&found).expect("a table");
    let (mut covered, mut others, mut different) = (0, 0, Vec::new());
    for address in stripped.text_start..stripped.text_end {
        match (expected.lookup(address), found.lookup(address)) {
            (Rule::UNCOVERED, _) => {}
            // Which functions have no caller, or change stacks, is in the table alone.
            (_, Rule::ROOT | Rule::UNCOVERED) => others += 1,
            (expected, found) if (expected.kind(), expected.offset()) == (found.kind(), found.offset()) => {
                covered += 1;
            }
            both => different.push((address, both)),
        }
    }
    assert!(covered > 500_000 && others < covered / 200, "{covered} {others}");
    // A function with a frame saves the frame pointer beside the return address; one that changes stacks has no rule.
    assert_eq!(found.lookup(function("main.count")).fp(), SavedFp::AtCfa(-16));
    assert_eq!(found.lookup(function("runtime.systemstack.abi0")), Rule::UNCOVERED);
    assert_eq!(found.lookup(function("runtime.goexit.abi0")), Rule::ROOT);
    let shown = &different[..different.len().min(20)];
    assert!(different.is_empty(), "{} of {covered}: {shown:#x?}", different.len());
}

/// Whatever it says, the others are named and nothing fails.
#[test]
fn a_damaged_table_does_no_harm() {
    if !is_installed("go") {
        return skip("go is not installed (Debian: golang-go)");
    }
    let scratch = Scratch::new();
    let program = build(&scratch, "stripped", &["-ldflags=-s -w"]);
    let addresses: Vec<u64> = addresses(&program).into_iter().step_by(50).collect();
    let bytes = fs::read(&program).expect("it was built");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let table = file.section_by_name(".gopclntab").and_then(|section| section.file_range());
    let (start, size) = table.expect("its table");
    let (start, size) = (start as usize, size as usize);
    let damaged = scratch.join("damaged");
    let mut random = Random::new(1);
    let mut named_some = 0;
    for turn in 0..300 {
        let mut copy = bytes.clone();
        // The header, the index of functions, or anything.
        let within = [80, size / 2, size][turn % 3];
        for _ in 0..1 + turn % 8 * 20 {
            random.damage(&mut copy[start..start + within]);
        }
        fs::write(&damaged, &copy).expect("room");
        if let Some(go) = GoTable::parse(&copy[start..start + size]) {
            let _ = go_frame::write(&go, 0);
        }
        let symbols = named(&damaged, &addresses);
        assert_eq!(symbols.ranges.len(), addresses.len());
        named_some += u32::from(symbols.origin == Origin::Symbols);
    }
    assert!(named_some > 100, "{named_some}");
}

#[test]
fn a_stripped_program_is_recorded_with_names() {
    if !is_installed("go") {
        return skip("go is not installed (Debian: golang-go)");
    }
    let scratch = Scratch::new();
    let program = build(&scratch, "stripped", &["-ldflags=-s -w"]);
    let recording = record_unharmed(&Recorder::default(), &program, &[] as &[&str]);
    let folded = recording.folded();
    let spinning = folded.nested("main.main", "main.spin");
    assert!(spinning > 100 && folded.named() > 0.95, "{folded:#?}");
}
