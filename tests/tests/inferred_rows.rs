//! Unwind rows that are inferred from code, compared with the call frame information that compilers wrote for the same code,
//! and used in recordings of programs that have none.

use std::path::Path;

use compilation::{InferredRow, compile};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};
use inference::Code;
use object::{Object, ObjectSection, ObjectSymbol, SectionFlags, SymbolKind};
use selfwind_tests::recording::{Recorder, Recording};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;
use selfwind_tests::target::Target;
use unwind::{Kind, Rule, SavedFp, Section, Table};

const EXECUTABLE: u64 = 4;

/// What became of the instructions of a file.
#[derive(Debug, Default)]
struct Comparison {
    /// The inferred rule leads to the same frame.
    same: u64,
    /// It leads to another one.
    wrong: u64,
    /// There is none.
    missing: u64,
}

/// Infers the rows of the file at `path` as if it had neither call frame information nor a symbol table beside that of the
/// dynamic linker, and compares them at every instruction.
fn compare(path: &Path) -> Comparison {
    let bytes = std::fs::read(path).expect("it can be read");
    let elf = object::File::parse(&*bytes).expect("an ELF file");
    let is_code = |section: &object::Section| {
        matches!(section.flags(), SectionFlags::Elf { sh_flags, .. } if sh_flags & EXECUTABLE != 0)
            && !section.name().unwrap().starts_with(".plt")
    };
    let content = |section: object::Section| (section.address(), section.data().unwrap().to_vec());
    let mut ranges: Vec<_> = elf.sections().filter(is_code).map(content).collect();
    ranges.sort_unstable();
    let functions =
        elf.dynamic_symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition());
    let code =
        Code { ranges, starts: functions.map(|symbol| symbol.address()).collect(), entry: elf.entry() };
    let rows = inference::infer(&code);

    let eh_frame = elf.section_by_name(".eh_frame").expect("it has call frame information");
    let eh_frame = Section { bytes: eh_frame.data().unwrap(), address: eh_frame.address() };
    let table = compile(eh_frame, 0, &[]).expect("a table");
    let table = Table::from_bytes(&table).expect("a sound one");
    let mut comparison = Comparison::default();
    for (start, bytes) in &code.ranges {
        let mut decoder = Decoder::with_ip(64, bytes, *start, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            let address = decoder.ip();
            decoder.decode_out(&mut instruction);
            let told = table.lookup(address);
            let is_padding = matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
            if is_padding || !matches!(told.kind(), Kind::Sp | Kind::Fp) {
                continue;
            }
            match rule_at(&rows, address) {
                None => comparison.missing += 1,
                Some(rule) if leads_to_same(rule, told) => comparison.same += 1,
                Some(_) => comparison.wrong += 1,
            }
        }
    }
    comparison
}

fn rule_at(rows: &[InferredRow], address: u64) -> Option<Rule> {
    let row = rows.get(rows.partition_point(|row| row.start <= address).checked_sub(1)?)?;
    (address < row.end).then_some(row.rule)
}

/// Compilers keep a row in which the frame pointer is saved where it has been restored already, and has the same value.
fn leads_to_same(rule: Rule, told: Rule) -> bool {
    let is_restored = rule.fp() == SavedFp::Same && matches!(told.fp(), SavedFp::AtCfa(_));
    (rule.kind(), rule.offset()) == (told.kind(), told.offset()) && (rule.fp() == told.fp() || is_restored)
}

#[test]
fn inferred_rows_agree_with_those_of_compilers() {
    // glibc has assembly whose functions are not called as C functions are.
    let libc = "/lib/x86_64-linux-gnu/libc.so.6";
    for (path, share) in
        [("/bin/bash", 5_000), ("/usr/bin/perl", 5_000), ("/usr/bin/git", 5_000), (libc, 500)]
    {
        let path = Path::new(path);
        if !path.exists() {
            skip(format!("{} is not installed", path.display()));
            continue;
        }
        let Comparison { same, wrong, missing } = compare(path);
        println!(
            "{}: {same} instructions with the same rule, {wrong} with another, {missing} without",
            path.display()
        );
        assert!(same > 50_000, "{}: {same}", path.display());
        assert!(wrong <= same / share, "{}: {wrong} of {same}", path.display());
        assert!(missing <= same / 50, "{}: {missing} of {same}", path.display());
    }
}

const BARE: [&str; 4] =
    ["-fno-asynchronous-unwind-tables", "-fomit-frame-pointer", "-g0", "-Wl,--build-id=none"];

/// What runs in the functions that are hard to leave has all its callers, and nothing else is in its stacks.
fn assert_whole(recording: &Recording) {
    assert_eq!(recording.outcome.status, 44, "{}", recording.outcome.stderr);
    let folded = recording.folded();
    for leaf in ["held_in_register", "held_in_frame", "with_stale_frame"] {
        let of_leaf = folded.inclusive(leaf);
        let chain = ["run", "outer", leaf];
        let whole = folded.stacks.iter().filter(|(stack, _)| {
            let at = stack.iter().position(|frame| frame == chain[0]);
            at.is_some_and(|at| stack[at..].iter().map(String::as_str).take(chain.len()).eq(chain))
        });
        let whole: u64 = whole.map(|(_, weight)| weight).sum();
        assert!(of_leaf >= 50, "{of_leaf} samples of {leaf}: {folded:?}");
        // A tick may come before the first table is there.
        assert!(whole >= of_leaf - of_leaf / 50, "{whole} of {of_leaf} are {chain:?}: {folded:?}");
    }
    let stats = recording.stats();
    assert!(stats.complete() >= 0.98, "{:#}", stats.0);
}

#[test]
fn programs_without_call_frame_information_have_whole_stacks() {
    let program = || Target::c("uncovered");
    let static_flags = [&BARE[..], &["-static"]].concat();
    // The tables of programs that consist of such code are made before they start, those of others while they run.
    for (program, recordings) in [
        (program().with("bare", &BARE), 1),
        (program().musl().with("bare", &BARE), 1),
        (program().with("bare-static", &static_flags), 2),
    ] {
        let (program, scratch) = (program.build(), Scratch::new());
        let recorder = Recorder::at(499).event("cpu").env("SELFWIND_TABLES", scratch.join("tables"));
        for _ in 1..recordings {
            recorder.record(&program, &[] as &[&str]);
        }
        assert_whole(&recorder.record(&program, &[] as &[&str]));
    }
}

#[test]
fn libraries_without_call_frame_information_have_whole_stacks() {
    let program = Target::c("uncovered").build();
    let library = Target::c("uncovered")
        .named("uncovered-bare.so", &[&BARE[..], &["-shared", "-fPIC"]].concat())
        .build();
    let scratch = Scratch::new();
    for source in ["cpu", "perf"] {
        let recorder = Recorder::at(499).event(source).env("SELFWIND_TABLES", scratch.join("tables"));
        // The table is made meanwhile.
        recorder.record(&program, &[&library]);
        assert_whole(&recorder.record(&program, &[&library]));
    }
}
