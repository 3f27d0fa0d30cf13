//! Every output's total is the weight of the profile, and everything that fired is accounted for: under either
//! source, at rates the kernel cannot deliver, with a pool too small for what comes, with every thread busy.

use std::process::Command;

use selfwind_tests::binary::selfwind;
use selfwind_tests::folded::Folded;
use selfwind_tests::outcome::run;
use selfwind_tests::recording::{Recorder, Recording, read, record_unharmed};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::target::Target;
use serde_json::Value;

fn spin(recorder: &Recorder, milliseconds: &str) -> Recording {
    record_unharmed(recorder, &Target::c("spin").build(), &[milliseconds])
}

#[test]
fn every_output_has_the_weight_of_the_profile() {
    let recording = spin(&Recorder::default(), "300");
    let weight = recording.stats().number("weight");
    assert!(weight > 0);
    for grouping in ["--per-process", "--per-thread"] {
        let grouped = Folded::parse(&read(&["export", "-f", "folded", grouping], &recording.file));
        assert_eq!(grouped.total(), weight, "{grouping}");
    }
    let report: Value = serde_json::from_str(&read(&["report", "--json"], &recording.file)).expect("JSON");
    let functions = report["functions"].as_array().expect("functions");
    let own: u64 = functions.iter().map(|f| f["self"].as_u64().expect("self")).sum();
    assert_eq!(own, weight, "what all functions used themselves: {report:#}");
    let lines = read(&["export", "-f", "jsonl"], &recording.file);
    let samples = lines.lines().map(|l| serde_json::from_str::<Value>(l).expect("one JSON value a line"));
    let total: u64 = samples.filter_map(|s| s["weight"].as_u64()).sum();
    assert_eq!(total, weight, "jsonl");
    let svg = read(&["export", "-f", "flamegraph"], &recording.file);
    assert!(svg.contains("</svg>") && svg.contains("spin_first"), "a flame graph");
}

const SPINNERS: [&str; 3] = ["spin_first", "spin_second", "spin_third"];

/// What three threads of 400 ms at 499 Hz got wrong, if anything.
fn unfairness(source: &str) -> Option<String> {
    let recording = spin(&Recorder::default().event(source), "400");
    let (weight, due) = (recording.stats().number("weight") as f64, 3.0 * 0.4 * 499.0);
    if (weight - due).abs() >= 0.05 * due {
        return Some(format!("{source}: weight {weight}, due {due}"));
    }
    let shares = SPINNERS.map(|function| recording.folded().inclusive(function) as f64 / weight);
    let fair = shares.iter().all(|share| (share - 1.0 / 3.0).abs() < 0.03);
    (!fair).then(|| format!("{source}: {shares:?}"))
}

#[test]
fn three_busy_threads_get_what_they_used() {
    for source in ["cpu", "auto"] {
        // What a thread used after the last tick that found it running is in no sample. A virtual machine whose host is
        // busy can go without a tick for long.
        let mut attempts = (0..5).map(|_| unfairness(source));
        let fair = attempts.any(|wrong| wrong.is_none());
        assert!(fair, "{source}: unfair five times, at last {:?}", unfairness(source));
    }
}

/// The first of five recordings that weighs what is due, the losses included. A virtual machine whose host is busy can
/// go without a tick for long.
fn paid(tolerance: f64, due: f64, record: impl Fn() -> Recording) -> Recording {
    let weight = |recording: &Recording| {
        let stats = recording.stats();
        (stats.number("weight") + stats.causes("lost_weight")) as f64
    };
    let mut attempts = (0..5).map(|_| record());
    let right = attempts.find(|recording| (weight(recording) - due).abs() < tolerance * due);
    right.unwrap_or_else(|| panic!("five times not the weight due, {due}"))
}

#[test]
fn one_timer_for_the_process_finds_all_its_threads() {
    // Twice the kernel's tick on Debian, and three threads share one timer: most expiries are merged.
    let recording = paid(0.05, 3.0 * 0.4 * 499.0, || spin(&Recorder::at(499).event("itimer"), "400"));
    for function in SPINNERS {
        // It hits whoever runs when it is due: by chance, not by the clock of each thread.
        assert!(recording.folded().inclusive(function) > 0, "{function}: {:?}", recording.folded());
    }
}

#[test]
fn a_rate_beyond_the_clock_is_paid_in_weight() {
    let stats = paid(0.1, 3.0 * 0.2 * 50_000.0, || spin(&Recorder::at(50_000), "200")).stats();
    assert!(stats.number("samples") < stats.number("weight"), "{:#}", stats.0);
}

#[test]
fn a_small_pool_loses_by_name_or_not_at_all() {
    for mode in ["discard", "overwrite"] {
        let recorder = Recorder::at(9999).env("SELFWIND_POOL", "65536").env("SELFWIND_MODE", mode);
        spin(&recorder, "400");
    }
}

#[test]
fn rates_from_one_to_the_highest() {
    for frequency in [1, 99, 997, 20_000, 100_000] {
        spin(&Recorder::at(frequency), "60");
    }
}

/// Where handlers would take more than they may, fewer samples are taken; the profile weighs the same.
#[test]
fn dear_stacks_are_sampled_less_often() {
    let target = Target::c("deep_changes").build();
    for source in ["cpu", "itimer", "perf"] {
        // A handler walks hundreds of frames; of a tick of four milliseconds it may take 800 ns, less than on any machine.
        let recorder = Recorder::at(9973).event(source).env("SELFWIND_MAX_OVERHEAD", "0.02");
        let recording = record_unharmed(&recorder, &target, &["3000"]);
        let stats = recording.stats();
        let left_out = stats.detail(&["skipped", "max_overhead"]);
        assert!(left_out > 0, "{source}: {:#}", stats.0);
        let delivered = stats.0["detail"]["rate"]["delivered"].as_f64().expect("a rate");
        assert!(delivered < 0.5 * 9973.0, "{source}: {:#}", stats.0["detail"]["rate"]);
        let (weight, due) = (stats.number("weight") as f64, 3.0 * 9973.0);
        // What was left out last has no sample that it could go to.
        assert!(weight > 0.6 * due && weight < 1.1 * due, "{source}: weight {weight}, {due} used");
        let words = read(&["stats"], &recording.file);
        assert!(words.contains("(--max-overhead)"), "{words}");
    }
}

#[test]
fn ordinary_stacks_are_not() {
    for source in ["cpu", "itimer"] {
        let recording = spin(&Recorder::at(99).event(source), "500");
        assert_eq!(recording.stats().detail(&["rate", "left_out"]), 0, "{:#}", recording.stats().0);
    }
}

#[test]
fn the_summary_tells_of_a_lowered_rate() {
    let scratch = Scratch::new();
    let file = scratch.join("x.data");
    let mut command = Command::new(selfwind());
    command.args(["record", "-F", "9973", "--max-overhead", "0.02", "-o"]).arg(&file).arg("--");
    let outcome = run(command.arg(Target::c("deep_changes").build()));
    assert_eq!(outcome.status, 0, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("to stay below --max-overhead"), "{}", outcome.stderr);
}
