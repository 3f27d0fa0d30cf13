//! The flight recorder: a program started by hand keeps its last samples in memory; a snapshot writes them and leaves
//! them there; no modification of that memory breaks the reader.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use selfwind_tests::binary::selfwind;
use selfwind_tests::flight::Flight;
use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::recording::{folded, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::stats::Stats;
use selfwind_tests::target::Target;

/// Takes a snapshot; returns its statistics and file.
fn snapshot(flight: &Flight, file: &str) -> (Stats, PathBuf) {
    let outcome = run(&mut flight.record(&["--snapshot"], file));
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let file = flight.file(file);
    let stats = stats(&file);
    stats.assert_adds_up();
    assert_eq!(stats.detail(&["torn"]) + stats.detail(&["violations"]), 0, "{:#}", stats.0);
    assert_eq!(stats.detail(&["undecodable"]), 0, "{:#}", stats.0);
    (stats, file)
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(120), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Number of samples in a profile that may still be written.
fn samples(file: &Path) -> u64 {
    let outcome = run(Command::new(selfwind()).args(["stats", "--json"]).arg(file));
    if outcome.status == 0 { Stats::parse(&outcome.stdout).number("samples") } else { 0 }
}

#[test]
fn a_snapshot_removes_nothing() {
    let flight = Flight::start(&[("SELFWIND_FREQ", "999")]);
    wait_for("samples", || snapshot(&flight, "early.data").0.number("samples") > 300);
    flight.signal(Signal::SIGSTOP);
    let (first, file) = snapshot(&flight, "first.data");
    let (second, _) = snapshot(&flight, "second.data");
    assert_eq!(first.number("samples"), second.number("samples"));
    assert_eq!(folded(&file).total(), first.number("weight"));
    assert!(folded(&file).inclusive("spin_first") > 0, "{:?}", folded(&file));
    flight.signal(Signal::SIGCONT);
    let more = || snapshot(&flight, "third.data").0.number("samples") > first.number("samples");
    wait_for("more samples", more);
}

#[test]
fn overwritten_samples_are_counted_and_the_rest_is_intact() {
    let flight = Flight::start(&[("SELFWIND_FREQ", "9999"), ("SELFWIND_POOL", "65536")]);
    let is_overwritten = |stats: &Stats| {
        let unread = stats.0["detail"]["lost"]["unread"].as_u64().unwrap_or(0);
        stats.detail(&["accounting", "earlier"]) + unread > 0
    };
    wait_for("the ring to be full", || is_overwritten(&snapshot(&flight, "early.data").0));
    // Under full load; and names are known although the modules were reported long ago.
    for _ in 0..8 {
        let (stats, file) = snapshot(&flight, "late.data");
        assert!(stats.number("samples") > 0, "{:#}", stats.0);
        assert!(folded(&file).inclusive("spin_first") > 0, "{:?}", folded(&file));
    }
}

#[test]
fn a_signal_asks_a_running_recorder_for_a_snapshot() {
    let scratch = Scratch::new();
    let file = scratch.join("whole.data");
    let mut command = Command::new(selfwind());
    command.args(["record", "-q", "-F", "999", "--snapshot", "-o"]).arg(&file).arg("--");
    command.arg(Target::c("spin").build()).arg("60000").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut recorder = command.spawn().expect("selfwind runs");
    let mut said = String::new();
    BufReader::new(recorder.stdout.as_mut().expect("piped")).read_line(&mut said).expect("a line");
    assert_eq!(said, "ready\n");
    let pid = Pid::from_raw(recorder.id() as i32);
    let mut taken = 0;
    wait_for("a snapshot with samples", || {
        taken += 1;
        let snapshot = scratch.join(&format!("whole.data.{taken}"));
        kill(pid, Signal::SIGUSR2).expect("our child");
        wait_for("the snapshot's end", || {
            let outcome = run(Command::new(selfwind()).args(["stats", "--json"]).arg(&snapshot));
            outcome.status == 0 && Stats::parse(&outcome.stdout).0["detail"]["complete"] == true
        });
        stats(&snapshot).assert_adds_up();
        samples(&snapshot) > 100
    });
    kill(pid, Signal::SIGTERM).expect("our child");
    assert!(!recorder.wait().expect("our child").success(), "the status is that of the program");
    let whole = stats(&file);
    whole.assert_adds_up();
    // The snapshots have not removed anything.
    assert!(whole.number("samples") >= samples(&scratch.join(&format!("whole.data.{taken}"))));
}

#[test]
fn a_truncated_region_does_not_kill_its_recorder() {
    for length in [0, 4096, 8192, 1 << 16] {
        let flight = Flight::start(&[("SELFWIND_FREQ", "999"), ("SELFWIND_MODE", "discard")]);
        let mut command = flight.record(&[], "cut.data");
        let mut recorder = command.stderr(Stdio::piped()).spawn().expect("selfwind runs");
        wait_for("samples", || samples(&flight.file("cut.data")) > 10);
        // The program itself would crash from the modifications.
        flight.signal(Signal::SIGSTOP);
        let region = OpenOptions::new().write(true).open(flight.region()).expect("our file");
        region.set_len(length).expect("our file");
        let mut said = String::new();
        recorder.stderr.take().expect("piped").read_to_string(&mut said).expect("what it says");
        let status = recorder.wait().expect("our child");
        assert_eq!(status.code(), Some(0), "length {length}: {status:?}: {said}");
        assert!(said.contains("was truncated"), "length {length}: {said}");
        assert!(samples(&flight.file("cut.data")) > 10);
        // Nor does the next reader.
        let after: Outcome = run(&mut flight.record(&["--snapshot"], "after.data"));
        assert_ne!(after.status, 0, "{after:?}");
        assert!(after.stderr.contains("selfwind: process"), "{after:?}");
    }
}

/// Equal allocations are one sample in any number of recordings.
#[test]
fn many_recordings_of_one_process_share_samples() {
    let library = run(Command::new(selfwind()).args(["agent-path", "-e", "alloc"])).stdout;
    let mut program = Command::new(Target::c("heap_steady").build());
    let flight = Flight::of(program.env("LD_PRELOAD", library.trim()), &[("SELFWIND_EVENT", "alloc:all")]);
    for _ in 0..70 {
        let outcome = run(&mut flight.record(&["-q", "-d", "0.01"], "short.data"));
        assert_eq!(outcome.status, 0, "{outcome:?}");
    }
    let outcome = run(&mut flight.record(&["-d", "1"], "last.data"));
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let stats = stats(&flight.file("last.data"));
    let (samples, bytes) = (stats.number("samples"), stats.number("bytes"));
    assert!(samples > 100_000 && bytes < samples, "{samples} samples in {bytes} bytes");
}
