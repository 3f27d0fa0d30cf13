//! Generated code with registered call frame information: stacks through it are correct, even while other code replaces
//! it.
//!
//! Oracle: a program all of whose stacks are parts of one known stack.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use selfwind_tests::attacher::Attacher;
use selfwind_tests::binary::workspace;
use selfwind_tests::folded::Folded;
use selfwind_tests::outcome::Outcome;
use selfwind_tests::recording::{Recorder, Recording, folded, read, stats};
use selfwind_tests::skip::{may_mount, skip};
use selfwind_tests::target::{Target, is_installed};

const TRUNCATED: &str = "[truncated";

/// The call path of `work` in `registered_frames`, root first.
fn truth() -> Vec<String> {
    let generated = || (0..10).map(|n| format!("gen{n}"));
    let twice = (0..2).flat_map(|_| generated().chain(["middle".to_owned()]));
    twice.chain(["burn".to_owned()]).collect()
}

/// Records `registered_frames`; also returns how often it registered code.
fn record(recorder: &Recorder, arguments: &[&str]) -> (Recording, u64) {
    let program = Target::c("registered_frames").with("libgcc", &["-lgcc_s"]).build();
    let recording = recorder.record(&program, arguments);
    let Outcome { status, stdout, stderr } = &recording.outcome;
    assert!(*status == 0 && stderr.is_empty(), "{:?}", recording.outcome);
    let ["process", process, "churned", churned] = stdout.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("{stdout}")
    };
    let _ = fs::remove_file(format!("/tmp/perf-{process}.map"));
    recording.assert_adds_up();
    let churned = churned.parse().expect("a number");
    (recording, churned)
}

/// Asserts that all stacks in `work` are possible; returns their weight, and the weight of those with full depth.
fn assert_possible(what: &str, folded: &Folded) -> (u64, u64) {
    let truth = truth();
    let (mut inside, mut deepest) = (0, 0);
    for (stack, weight) in &folded.stacks {
        let own = stack.iter().position(|element| element.ends_with("_[k]")).unwrap_or(stack.len());
        let Some(work) = stack[..own].iter().position(|element| element == "work") else {
            assert!(!stack.iter().any(|element| truth.contains(element)), "{what}: {stack:?}");
            continue;
        };
        let part = &stack[work + 1..own];
        assert!(part.len() <= truth.len() && part == &truth[..part.len()], "{what}: {stack:?}");
        inside += weight;
        deepest += if part.len() == truth.len() { weight } else { &0 };
    }
    (inside, deepest)
}

/// Weight of truncated stacks, except those of threads about to end, which block all signals.
fn truncated(folded: &Folded) -> u64 {
    let is_cut = |stack: &[String]| {
        stack.iter().any(|element| element.starts_with(TRUNCATED) && !element.contains("no-answer"))
    };
    folded.stacks.iter().filter(|(stack, _)| is_cut(stack)).map(|(_, weight)| weight).sum()
}

#[test]
fn stacks_through_registered_code_are_correct() {
    for source in ["cpu", "itimer", "perf"] {
        let (recording, _) = record(&Recorder::at(9973).event(source), &["2000"]);
        let folded = recording.folded();
        let (inside, deepest) = assert_possible(source, &folded);
        let total = folded.total();
        assert!(inside > 100 && inside * 10 >= total * 9, "{source}: {inside} of {total}");
        assert!(deepest > 0, "{source}: {folded:?}");
        assert_eq!(truncated(&folded), 0, "{source}: {folded:?}");
    }
}

/// The names are only in the process's memory, in the list for debuggers.
#[test]
fn code_registered_with_debuggers_has_its_names() {
    let (recording, _) = record(&Recorder::at(997), &["1500", "2", "0", "1"]);
    let folded = recording.folded();
    let (inside, deepest) = assert_possible("debugger", &folded);
    assert!(inside > 100 && inside * 10 >= folded.total() * 9 && deepest > 0, "{folded:?}");
    assert_eq!(truncated(&folded), 0, "{folded:?}");
    assert!(read(&["report"], &recording.file).contains("gen3"));
}

/// A walk with the rules of replaced code would give an impossible stack.
#[test]
fn replaced_code_is_walked_by_its_own_rules() {
    let is_long = std::env::var_os("SELFWIND_LONG").is_some();
    let (milliseconds, least) = if is_long { ("16000", 1_000_000) } else { ("1500", 10_000) };
    for source in ["cpu", "perf"] {
        let (recording, churned) = record(&Recorder::at(10_000).event(source), &[milliseconds, "4", "1"]);
        assert!(churned >= least, "{churned}");
        let folded = recording.folded();
        let (inside, _) = assert_possible(source, &folded);
        assert!(inside > 100, "{source}: {folded:?}");
    }
}

/// Whatever is registered for generated code, the program continues, and claims about other code are ignored.
#[test]
fn code_in_the_place_of_other_code_has_its_own_name() {
    let recorder = Recorder::at(997).event("perf");
    let recording = recorder.record(&Target::c("replaced_generated").build(), &["4"]);
    assert_eq!(recording.outcome.status, 0, "{:?}", recording.outcome);
    let _ = fs::remove_file(format!("/tmp/perf-{}.map", recording.outcome.stdout.trim()));
    let folded = recording.folded();
    for n in 0..4 {
        // A second each; when a name was written is known to a quarter of a second.
        let found = folded.inclusive(&format!("function_{n}"));
        let expected = folded.total() * 15 / 100..folded.total() * 35 / 100;
        assert!(expected.contains(&found), "function_{n} has {found} of {}", folded.total());
    }
}

/// By frame pointers, from the C function over both stacks to the first generated function.
#[test]
fn generated_code_on_a_stack_of_its_own_has_complete_stacks() {
    for (source, place) in [("cpu", "near"), ("cpu", "far"), ("perf", "near"), ("perf", "far")] {
        let recording =
            Recorder::at(997).event(source).record(&Target::c("generated_stack").build(), &[place]);
        assert_eq!(recording.outcome.status, 0, "{source}, {place}: {:?}", recording.outcome);
        let _ = fs::remove_file(recording.outcome.stdout.trim());
        let (stats, folded) = (recording.stats(), recording.folded());
        assert!(stats.complete() > 0.98, "{source}, {place}: {folded:#?}");
        // Interrupts have kernel frames on top.
        let user = |stack: &[String]| stack.iter().take_while(|name| !name.ends_with("_[k]")).count();
        let is = |wanted: &[&str]| {
            let found = folded.stacks.iter().filter(|(stack, _)| &stack[..user(stack)] == wanted);
            found.map(|(_, weight)| weight).sum::<u64>()
        };
        let (called, running) = (is(&["first", "inner", "burn"]), is(&["first", "inner"]));
        assert!(called > 100 && running > 100, "{source}, {place}: {called} {running}: {folded:#?}");
        assert!((called + running) * 20 > folded.total() * 19, "{source}, {place}: {folded:#?}");
    }
}

/// As in a container: the map is in a file system of the process's own, and is named after the process's number there.
#[test]
fn maps_in_other_namespaces_are_found() {
    if !may_mount() {
        return;
    }
    let program = Target::c("replaced_generated").build();
    let program = program.to_str().expect("UTF-8");
    let own_tmp = "mount -t tmpfs none /mnt && cp \"$0\" /mnt/elsewhere && mount -t tmpfs none /tmp \
                   && exec /mnt/elsewhere \"$@\"";
    let arguments = ["--pid", "--fork", "--mount-proc", "sh", "-c", own_tmp, program, "2"];
    let recording = Recorder::at(499).event("cpu").record(Path::new("unshare"), &arguments);
    assert_eq!(recording.outcome.status, 0, "{:?}", recording.outcome);
    let folded = recording.folded();
    let named = folded.inclusive("function_0") + folded.inclusive("function_1");
    assert!(named > folded.total() * 9 / 10, "{named} of {}: {folded:#?}", folded.total());
}

#[test]
fn false_registrations_truncate_a_stack_at_worst() {
    let program = Target::c("registered_lies").build();
    for source in ["cpu", "perf"] {
        let recording = Recorder::at(9973).event(source).record(&program, &["2000"]);
        let Outcome { status, stdout, stderr } = &recording.outcome;
        assert!(*status == 0 && stderr.is_empty(), "{source}: {:?}", recording.outcome);
        let told = stdout.trim().strip_prefix("told ").and_then(|told| told.parse::<u64>().ok());
        assert!(told.is_some_and(|told| told > 1000), "{source}: {stdout}");
        recording.assert_adds_up();
        let folded = recording.folded();
        let is_plain = |stack: &[String]| stack.iter().any(|element| element == "plain");
        let plain: Vec<_> = folded.stacks.iter().filter(|(stack, _)| is_plain(stack)).collect();
        // `tell` may be part of `main`.
        let callers: [&[&str]; 2] = [&["main", "plain"], &["main", "tell", "plain"]];
        let is_whole = |stack: &[String]| {
            callers.iter().any(|calls| stack.windows(calls.len()).any(|part| part == *calls))
        };
        assert!(plain.iter().all(|(stack, _)| is_whole(stack)), "{source}: {plain:?}");
        assert!(plain.iter().map(|(_, weight)| weight).sum::<u64>() > 50, "{source}: {folded:?}");
    }
}

/// Whatever the list for debuggers contains, the recorder neither fails nor falls behind.
#[test]
fn false_debugger_lists_do_not_stop_the_recorder() {
    let program = Target::c("debugger_lies").build();
    let begun = Instant::now();
    let recording = Recorder::at(997).record(&program, &["6000"]);
    let Outcome { status, stdout, stderr } = &recording.outcome;
    assert!(*status == 0 && stderr.is_empty(), "{:?}", recording.outcome);
    assert!(stdout.starts_with("shown "), "{stdout}");
    recording.assert_adds_up();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let total = recording.folded().total();
    assert!(total > 100, "{total}");
}

/// LLVM's JIT compilers provide everything: unwind rules, and names in one way or another.
#[test]
fn functions_jitted_by_llvm_have_callers_and_names() {
    if !is_installed("lli") {
        return skip("lli is not installed");
    }
    for arguments in jit_shares() {
        let recording = Recorder::at(997).record(Path::new("lli"), &arguments);
        assert_eq!(recording.outcome.status, 0, "{:?}", recording.outcome);
        assert_shares(&arguments, &recording.file);
    }
}

/// Registrations from before the attach are unknown: callers are guessed, and names come from the list for debuggers.
#[test]
fn functions_jitted_before_an_attach_have_callers_and_names() {
    if !is_installed("lli") {
        return skip("lli is not installed");
    }
    for arguments in jit_shares() {
        let attacher = Attacher::new();
        let file = attacher.scratch.join("attached.data");
        let program = Command::new("lli").args(&arguments).stdin(Stdio::null()).spawn();
        let mut program = program.expect("it is installed");
        wait_until_generated(program.id());
        let process = program.id().to_string();
        let path = file.to_str().expect("UTF-8");
        let recorded = attacher.run(&["record", "-q", "-F", "997", "-p", &process, "-o", path]);
        assert_eq!(recorded.status, 0, "{recorded:?}");
        assert!(program.wait().expect("our child").success(), "{arguments:?}");
        stats(&file).assert_adds_up();
        assert_shares(&arguments, &file);
    }
}

/// `lli` with each of its compilers, and what it is to compile.
fn jit_shares() -> [[String; 2]; 2] {
    let program = workspace().join("tests/targets/jit_shares.ll");
    let program = program.to_str().expect("a path of ours");
    ["mcjit", "orc"].map(|kind| [format!("--jit-kind={kind}"), program.to_owned()])
}

/// Asserts that three quarters of the time are in `often` and a quarter in `once`, in complete stacks.
fn assert_shares(arguments: &[String], file: &Path) {
    let (folded, samples) = (folded(file), stats(file).number("samples") as f64);
    let share = |called: &[&str]| {
        let is_it = |stack: &[String]| stack.windows(called.len()).any(|part| part == called);
        let of = folded.stacks.iter().filter(|(stack, _)| stack[0] == "_start" && is_it(stack));
        of.map(|(_, weight)| weight).sum::<u64>() as f64 / folded.total() as f64
    };
    let (often, once) = (share(&["main", "often", "spin"]), share(&["main", "once", "spin"]));
    assert!(often + once > 0.9, "{arguments:?}: {often} {once} {folded:?}");
    // A sample may stand for several periods of the clock.
    assert!(samples >= 200.0, "{arguments:?}: {folded:?}");
    let five_deviations = 5.0 * (0.75 * 0.25 / samples).sqrt();
    assert!(
        (often / (often + once) - 0.75).abs() < five_deviations,
        "{arguments:?}: {often} {once} {samples}"
    );
}

/// Waits until the process has executable anonymous memory.
fn wait_until_generated(process: u32) {
    let begun = Instant::now();
    loop {
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).expect("it runs");
        if maps.lines().any(|line| line.contains("r-xp 00000000 00:00 0") && !line.ends_with(']')) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{maps}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
