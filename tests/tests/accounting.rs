//! The total of every output is the weight of the profile, and everything that fired is accounted for: with every
//! source, at rates that the kernel cannot deliver, with a pool that is too small, with every thread busy.
//!
//! That the profiler's own numbers add up proves little if one of them is computed from the others. So what fired is
//! also compared with the program's own CPU clocks.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use selfwind_tests::binary::selfwind;
use selfwind_tests::folded::{Folded, UNPLACED};
use selfwind_tests::outcome::run;
use selfwind_tests::recording::{Recorder, Recording, folded, read, record_unharmed, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::stats::Stats;
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

/// CPU time by thread, in nanoseconds, as printed by `own_clocks`.
fn clocks(said: &str) -> BTreeMap<u32, f64> {
    let line = |line: &str| {
        let (tid, ns) = line.strip_prefix("clock ")?.split_once(' ')?;
        Some((tid.parse().ok()?, ns.parse().ok()?))
    };
    let clocks: BTreeMap<u32, f64> = said.lines().filter_map(line).collect();
    assert_eq!(clocks.len(), 3, "{said}");
    clocks
}

/// Asserts that `weight` periods at `hertz` equal the CPU time of `threads` threads by their own clocks. It may exceed
/// that by two periods, since a first sample weighs one or two by chance, plus the thread's end; it may fall short by
/// what follows a thread's last tick (two ticks of the slowest kernels) and by 5 %.
fn assert_is_time(what: &str, weight: u64, hertz: f64, ns: f64, threads: usize) {
    const LAST_TICKS_NS: f64 = 2e7;
    let threads = threads as f64;
    let most = 1.03 * ns / 1e9 * hertz + 2.0 * threads;
    let least = 0.95 * (ns - threads * LAST_TICKS_NS) / 1e9 * hertz - threads;
    let weight = weight as f64;
    assert!(weight <= most && weight >= least, "{what}: weight {weight}, not {least:.0} to {most:.0}");
}

/// Weight by thread, from the stacks themselves.
fn by_thread(file: &Path) -> BTreeMap<u32, u64> {
    let mut sums = BTreeMap::new();
    for line in read(&["export", "-f", "folded", "--per-thread"], file).lines() {
        let (stack, weight) = line.rsplit_once(' ').expect("a count");
        let thread = stack.split(';').next().expect("a thread");
        let tid: u32 = thread.rsplit_once('/').and_then(|(_, tid)| tid.parse().ok()).expect("NAME-PID/TID");
        *sums.entry(tid).or_default() += weight.parse::<u64>().expect("a count");
    }
    sums
}

/// Asserts what fired, by the program's clocks and independently of the profiler's numbers.
fn assert_fired(what: &str, stats: &Stats, hertz: f64, clocks: &BTreeMap<u32, f64>) {
    let used: f64 = clocks.values().sum();
    let counted = stats.number("weight") + stats.causes("lost_weight");
    assert_is_time(&format!("{what}: recorded and lost"), counted, hertz, used, clocks.len());
    let fired = stats.detail(&["accounting", "fired_weight"]);
    assert_is_time(&format!("{what}: fired"), fired, hertz, used, clocks.len());
}

#[test]
fn threads_weigh_what_their_own_clocks_say() {
    let program = Target::c("own_clocks").build();
    for source in ["cpu", "auto", "perf"] {
        let recording = Recorder::default().event(source).record(&program, &["200"]);
        recording.assert_adds_up();
        let (clocks, stats) = (clocks(&recording.outcome.stdout), recording.stats());
        assert_fired(source, &stats, 499.0, &clocks);
        let weights = by_thread(&recording.file);
        assert!(weights.keys().all(|tid| clocks.contains_key(tid)), "{source}: {weights:?} {clocks:?}");
        if stats.number("lost") == 0 {
            for (tid, ns) in &clocks {
                let weight = weights.get(tid).copied().unwrap_or(0);
                assert_is_time(&format!("{source}: thread {tid}"), weight, 499.0, *ns, 1);
            }
        }
    }
}

#[test]
fn one_timer_for_the_process_finds_all_its_threads() {
    // Twice the kernel's tick on Debian, and three threads share one timer: most expirations are merged.
    let program = Target::c("own_clocks").build();
    let recording = Recorder::at(499).event("itimer").record(&program, &["200"]);
    recording.assert_adds_up();
    assert_fired("itimer", &recording.stats(), 499.0, &clocks(&recording.outcome.stdout));
    for function in ["clock_first", "clock_second", "clock_third"] {
        // The timer hits whichever thread runs when it expires: at random, not by each thread's clock.
        assert!(recording.folded().inclusive(function) > 0, "{function}: {:?}", recording.folded());
    }
}

#[test]
fn a_rate_beyond_the_clock_gives_larger_weights() {
    for source in ["cpu", "perf"] {
        let recorder = Recorder::at(50_000).event(source).env("SELFWIND_MAX_OVERHEAD", "100");
        let recording = recorder.record(&Target::c("own_clocks").build(), &["100"]);
        recording.assert_adds_up();
        let stats = recording.stats();
        assert_fired(source, &stats, 50_000.0, &clocks(&recording.outcome.stdout));
        assert!(stats.number("samples") < stats.number("weight"), "{:#}", stats.0);
    }
}

/// A stopped recorder does not drain a small pool: recorded and lost samples together must be all that fired.
#[test]
fn a_small_pool_records_and_loses_what_the_clock_says() {
    let scratch = Scratch::new();
    let file = scratch.join("x.data");
    let recorder = Recorder::at(997).env("SELFWIND_POOL", "65536").event("cpu");
    // Stacks of hundreds of frames that change; the program says when its time is over.
    let mut command = recorder.command(&file, &Target::c("deep_changes").build(), &["3000"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("selfwind runs");
    let pid = Pid::from_raw(child.id() as i32);
    std::thread::sleep(Duration::from_millis(300));
    kill(pid, Signal::SIGSTOP).expect("our child");
    let said = BufReader::new(child.stdout.take().expect("piped")).lines().next();
    kill(pid, Signal::SIGCONT).expect("our child");
    child.wait().expect("our child");
    assert!(said.is_some(), "the program ended without a word");
    let stats = stats(&file);
    stats.assert_adds_up();
    let counted = stats.number("weight") + stats.causes("lost_weight");
    assert_is_time("recorded and lost", counted, 997.0, 3e9, 1);
}

#[test]
fn rates_from_one_to_the_highest() {
    for frequency in [1, 99, 997, 20_000, 100_000] {
        spin(&Recorder::at(frequency), "60");
    }
}

/// If handlers would exceed their share of CPU time, fewer samples are taken; the total weight stays the same.
#[test]
fn the_rate_limit_lowers_the_rate_for_expensive_stacks() {
    let target = Target::c("deep_changes").build();
    for source in ["cpu", "itimer", "perf"] {
        // A handler walks hundreds of frames; at a tick of 4 ms its share is 800 ns, too little on any machine.
        let recorder = Recorder::at(9973).event(source).env("SELFWIND_MAX_OVERHEAD", "0.02");
        let recording = record_unharmed(&recorder, &target, &["3000"]);
        let stats = recording.stats();
        let left_out = stats.detail(&["skipped", "max_overhead"]);
        assert!(left_out > 0, "{source}: {:#}", stats.0);
        let delivered = stats.0["detail"]["rate"]["delivered"].as_f64().expect("a rate");
        assert!(delivered < 0.5 * 9973.0, "{source}: {:#}", stats.0["detail"]["rate"]);
        let (weight, due) = (stats.number("weight") as f64, 3.0 * 9973.0);
        // Weight carried over at the end has no sample to go to.
        assert!(weight > 0.6 * due && weight < 1.1 * due, "{source}: weight {weight}, {due} used");
        let words = read(&["stats"], &recording.file);
        assert!(words.contains("(--max-overhead)"), "{words}");
    }
}

#[test]
fn the_rate_limit_does_not_affect_ordinary_stacks() {
    for source in ["cpu", "itimer"] {
        let recording = spin(&Recorder::at(99).event(source), "500");
        assert_eq!(recording.stats().detail(&["rate", "left_out"]), 0, "{:#}", recording.stats().0);
    }
}

/// A handler's cost is the CPU time of its thread: with hundreds of threads on few CPUs it is preempted all the time.
#[test]
fn being_preempted_does_not_lower_the_rate() {
    let recorder = Recorder::at(997).event("perf").env("SELFWIND_POOL", "8388608");
    let recording = record_unharmed(&recorder, &Target::c("crowd").build(), &["threads", "400"]);
    let stats = recording.stats();
    let (left_out, samples) = (stats.detail(&["rate", "left_out"]), stats.number("samples"));
    assert!(left_out <= samples / 10, "{left_out} left out: {:#}", stats.0["detail"]["rate"]);
}

/// Programs shorter than a period are sampled in proportion to their CPU time, including what kernel and loader used
/// before the agent started. What the kernel needs to end a process is not sampled.
#[test]
fn programs_shorter_than_a_period_are_sampled_in_proportion() {
    for source in ["auto", "cpu"] {
        let scratch = Scratch::new();
        let file = scratch.join("x.data");
        let mut command = Command::new(selfwind());
        command.args(["record", "-F", "997", "-e", source, "-o"]).arg(&file).args(["--", "sh", "-c"]);
        let outcome = run(command.arg("i=0; while [ $i -lt 400 ]; do /bin/true; i=$((i + 1)); done; times"));
        assert_eq!(outcome.status, 0, "{}", outcome.stderr);
        let stats = stats(&file);
        stats.assert_adds_up();
        // `0m0.01s 0m0.02s` of the shell, and of its children.
        let minutes =
            outcome.stdout.split_whitespace().map(|time| time.trim_end_matches('s').split_once('m'));
        let used: f64 = minutes.map(|time| time.expect("minutes").1.parse::<f64>().expect("seconds")).sum();
        let share = stats.number("weight") as f64 / 997.0 / used;
        assert!((0.7..=1.1).contains(&share), "{source}: {share} of {used} s: {:#}", stats.0);
        // Most of it at no known place, which must not appear at the places where the agent runs.
        let stacks = folded(&file);
        let short: u64 = UNPLACED.iter().map(|mark| stacks.inclusive(mark)).sum();
        assert!(short * 2 > stats.number("weight"), "{source}: {short}: {:#}", stats.0);
        // But for a tick while it runs.
        let agent = stacks.inclusive("call_init") + stacks.inclusive("_dl_call_fini");
        assert!(agent * 20 < stats.number("weight"), "{source}: {agent}: {:#}", stats.0);
        assert!(stats.complete() > 0.99, "{source}: {:#}", stats.0);
    }
}

/// Shorter than a period, and none of the exit functions of libraries runs.
#[test]
fn children_that_end_by_exit_at_once_are_sampled_in_proportion() {
    let program = Target::c("short_children").build();
    for source in ["auto", "cpu"] {
        let recording = Recorder::at(199).event(source).record(&program, &[] as &[&str]);
        recording.assert_adds_up();
        let used: f64 = recording.outcome.stdout.trim().parse().expect("nanoseconds");
        let stats = recording.stats();
        let share = stats.number("weight") as f64 / 199.0 / (used / 1e9);
        // About 120 samples by chance; starts and ends of processes in the kernel are missing.
        assert!((0.7..=1.2).contains(&share), "{source}: {share} of {used} ns: {:#}", stats.0);
    }
}

/// Nothing is prepared for an exec that is about to fail, so that its thread has samples at all places.
#[test]
fn failed_execs_leave_samples_where_they_are() {
    let program = Target::c("missing_programs").build();
    for source in ["auto", "cpu", "itimer"] {
        let recording = Recorder::at(199).event(source).record(&program, &[] as &[&str]);
        assert_eq!(recording.outcome.status, 0, "{source}: {}", recording.outcome.stderr);
        recording.assert_adds_up();
        // The process's timer must not survive an exec, and the kernel delays it at each restart.
        if source != "itimer" {
            let (weight, stacks) = (recording.stats().number("weight"), recording.folded());
            let computing = stacks.inclusive("compute");
            assert!(
                weight >= 110 && computing * 10 >= weight * 8,
                "{source}: {weight}: {:#?}",
                stacks.stacks
            );
        }
    }
}

/// The file that is executed is not where the program says.
#[test]
fn execs_that_another_library_redirects_are_prepared() {
    let library = Target::c("other_paths").with("shared", &["-DSHARED"]).shared("other_paths.so").build();
    let program = Target::c("other_paths").build();
    let recorder = Recorder::at(199).env("LD_PRELOAD", &library);
    let recording = recorder.record(&program, &["100"]);
    assert_eq!(recording.outcome.status, 0, "{}", recording.outcome.stderr);
    recording.assert_adds_up();
    let stats = recording.stats();
    // Of 0.3 s, which are 60 periods, of programs that are shorter than one, and what it takes to start them.
    assert!((40..200).contains(&stats.number("weight")), "{:#}", stats.0);
    assert!(recording.folded().inclusive("[since last sample]") >= 30, "{:#?}", recording.folded().stacks);
}

/// What kernel and loader take before the agent starts is known from an exec on, however long it is.
#[test]
fn programs_that_start_slowly_are_sampled_from_their_exec_on() {
    let program = Target::c("slow_start").build();
    for source in ["auto", "cpu"] {
        let recording = Recorder::at(997).event(source).record(&program, &[] as &[&str]);
        recording.assert_adds_up();
        let used: f64 = recording.outcome.stdout.trim().parse().expect("nanoseconds");
        let stats = recording.stats();
        let share = stats.number("weight") as f64 / 997.0 / (used / 1e9);
        // The kernel's work to end a process is missing.
        assert!((0.8..=1.05).contains(&share), "{source}: {share} of {used} ns: {:#}", stats.0);
        let stacks = recording.folded();
        let starting = stacks.inclusive("[program start]");
        assert!(starting * 2 > stats.number("weight"), "{source}: {starting}: {:#}", stats.0);
        assert!(
            stats.0["detail"]["rate"]["delivered"].as_f64() > Some(900.0),
            "{:#}",
            stats.0["detail"]["rate"]
        );
    }
}

/// Of the agent's start only the outermost frame is recorded. What comes after it has that frame, too, and others that were
/// there already: all of them belong to its stack, the mark does not.
#[test]
fn what_follows_the_start_has_its_own_frames() {
    // The loader calls the constructor of the last library first.
    const SCRIPT: &str = "LD_PRELOAD=\"$1:$LD_PRELOAD\" \"$0\" 10 > /dev/null || true";
    let slow = Target::c("slow_constructor").shared("slow_constructor.so").build();
    let spin = Target::c("spin").build();
    let arguments = [OsStr::new("-c"), SCRIPT.as_ref(), spin.as_ref(), slow.as_ref()];
    let recording = Recorder::at(9973).event("cpu").record(Path::new("sh"), &arguments);
    assert_eq!(recording.outcome.status, 0, "{}", recording.outcome.stderr);
    let stacks = recording.folded();
    let constructing = |stack: &[String]| stack.iter().any(|element| element.starts_with("slow_work"));
    let started = stacks.stacks.iter().filter(|(stack, _)| constructing(stack)).count();
    assert!(started > 0 && stacks.inclusive("[agent start]") > 0, "{stacks:#?}");
    for (stack, _) in &stacks.stacks {
        let inner = stack.split_last().map_or(&[][..], |(_, callers)| callers);
        let is_mark = |element: &String| UNPLACED.contains(&element.as_str());
        assert!(!inner.iter().any(is_mark), "a mark has callees: {stack:#?}");
    }
}

/// The summary says so if most of the CPU time was not sampled.
#[test]
fn the_summary_says_what_the_samples_do_not_cover() {
    const SCRIPT: &str = "\"$0\" 100; i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done";
    let scratch = Scratch::new();
    let file = scratch.join("x.data");
    let mut command = Command::new(selfwind());
    // A statically linked program, into which the agent is injected for CPU timers only.
    command.args(["record", "-F", "997", "-e", "perf", "-o"]).arg(&file).args(["--", "sh", "-c", SCRIPT]);
    let outcome = run(command.arg(Target::c("spin").fixed().build()));
    assert_eq!(outcome.status, 0, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("s of CPU time; the rest was used"), "{}", outcome.stderr);
}

#[test]
fn the_summary_reports_a_lowered_rate() {
    let scratch = Scratch::new();
    let file = scratch.join("x.data");
    let mut command = Command::new(selfwind());
    command.args(["record", "-F", "9973", "--max-overhead", "0.02", "-o"]).arg(&file).arg("--");
    let outcome = run(command.arg(Target::c("deep_changes").build()));
    assert_eq!(outcome.status, 0, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("to stay below --max-overhead"), "{}", outcome.stderr);
}
