//! Uprobes (`-e usdt:...`, `-e fn:...`) in a program that counts its own hits.
//!
//! Skipped where this machine does not permit them.

use std::process::Command;

use selfwind_tests::binary::selfwind;
use selfwind_tests::folded::Folded;
use selfwind_tests::outcome::run;
use selfwind_tests::recording::{Recorder, Recording, read};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;
use selfwind_tests::target::Target;

const ROUNDS: u64 = 400;
const THREADS: u64 = 2;

/// None where it is not permitted.
fn record(source: &str, arguments: &[&str]) -> Option<Recording> {
    let recorder = Recorder::at(99).event(source).env("SELFWIND_POOL", "64M");
    let recording = recorder.record(&Target::c("probes").build(), arguments);
    let told = &recording.outcome.stderr;
    if told.contains("CAP_SYS_ADMIN") || told.contains("no uprobes") {
        skip(format_args!("{told}"));
        return None;
    }
    assert_eq!(recording.outcome.status, 0, "{told}");
    recording.stats().assert_adds_up();
    Some(recording)
}

#[test]
fn every_hit_has_a_sample_with_the_stack_at_the_probe() {
    let sources = "fn:main:pushes,fn:main:computes,fn:main:makes_room,usdt:app:*";
    let Some(recording) = record(sources, &[&ROUNDS.to_string()]) else { return };
    // The program sees that the probe is enabled.
    assert_eq!(recording.outcome.stdout, "watched 1\n");
    let passes = ROUNDS * THREADS;
    for (event, functions, expected) in [
        ("fn:main:pushes", &["pushes"][..], passes),
        ("fn:main:computes", &["computes"], passes),
        ("fn:main:makes_room", &["makes_room"], passes),
        ("usdt:app:inside", &["pushes"], passes),
        ("usdt:app:gated", &["computes", "makes_room"], 2 * passes),
    ] {
        let text = read(&["export", "-f", "folded", "--event", event], &recording.file);
        let folded = Folded::parse(&text);
        assert_eq!(folded.total(), expected, "{event}: {text}");
        for line in text.lines() {
            let (stack, _) = line.rsplit_once(' ').expect("stack and count");
            let leaf = |function: &&str| stack.ends_with(&format!(";rounds;way;{function}"));
            assert!(functions.iter().any(leaf), "{event}: {line}");
        }
        assert_eq!(folded.nested("main", "way"), expected / 2, "{event}: {text}");
    }
    assert_eq!(recording.stats().kernel("events"), 6 * passes);
    assert_eq!(
        recording.stats().kernel("stepped"),
        6 * passes,
        "{:#}",
        recording.stats().0["detail"]["kernel"]
    );
    let lines = read(&["export", "-f", "jsonl"], &recording.file);
    assert!(lines.contains(r#""event":"usdt:app:gated""#), "{lines}");
}

#[test]
fn functions_of_libraries_are_found_by_name_path_and_glob() {
    for source in ["fn:libc.so.6:getppid", "fn:libc:getppid", "fn:libc:getppi?"] {
        let Some(recording) = record(source, &[&ROUNDS.to_string()]) else { return };
        let folded = recording.folded();
        assert_eq!(folded.total(), ROUNDS * THREADS, "{source}: {folded:?}");
        assert_eq!(folded.nested("rounds", "way"), folded.total(), "{source}: {folded:?}");
        assert_eq!(recording.stats().kernel("unmatched"), 0, "{source}");
    }
}

/// The agent keeps its own signal unblocked.
#[test]
fn a_program_that_blocks_all_signals_is_answered_too() {
    let Some(recording) = record("fn:main:pushes", &["20", "blocked"]) else { return };
    let folded = recording.folded();
    assert_eq!((folded.total(), folded.nested("way", "pushes")), (20 * THREADS, 20 * THREADS), "{folded:?}");
}

#[test]
fn unusable_probes_are_explained() {
    let program = Target::c("probes").build();
    let scratch = Scratch::new();
    let file = scratch.join("x.data");
    let permitted = record("fn:main:pushes", &["1"]).is_some();
    for (event, part) in [
        ("fn:main:no_such_function", "no such function"),
        ("fn:libnothing:work", "is not linked with libnothing"),
        ("fn:/no/such/file:work", "/no/such/file"),
        ("usdt:app:nothing", "no such probe"),
        ("fn:main:*,fn:libc:str*", "at most 16"),
        ("fn:libc:memcpy", "IFUNC"),
    ] {
        let refused = run(&mut Recorder::at(99).event(event).command(&file, &program, &["1"]));
        if permitted {
            assert_eq!((refused.status, refused.stdout.as_str()), (125, ""), "{event}: {}", refused.stderr);
            assert!(refused.stderr.contains(part), "{event}: {}", refused.stderr);
        }
    }
    let mut other = Command::new("setpriv");
    other.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(selfwind());
    let refused = run(other.args(["record", "-e", "fn:main:pushes", "-o", "/dev/null", "true"]));
    if permitted && !refused.stderr.contains("setpriv") {
        assert!(refused.stderr.contains("CAP_SYS_ADMIN"), "{}", refused.stderr);
    }
}
