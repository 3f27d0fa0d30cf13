//! Unwinders that programs register for regions of code: stacks through generated code are correct, a removed unwinder
//! is never called again, and an incorrect one ends its stack with a reason.
//!
//! Oracle: a program all of whose stacks are parts of one known stack.

use std::fs;
use std::process::Command;

use selfwind_tests::binary::{selfwind, target_dir, workspace};
use selfwind_tests::folded::Folded;
use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::recording::{Recorder, assert_named_in_every_format, record_unharmed};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::target::Target;

const MARK: &str = "_[made]";
const TRUNCATED: &str = "[truncated";

/// The call path of `work` in `region_code`, root first.
fn truth() -> Vec<String> {
    let generated = |_| (0..10).map(|n| format!("gen{n} (made.code:{}){MARK}", n + 1));
    let twice = (0..2).flat_map(|round| generated(round).chain(["middle".to_owned()]));
    twice.chain(["burn".to_owned()]).collect()
}

/// The elements of a stack after `function`, without those of the kernel.
fn behind<'s>(stack: &'s [String], function: &str) -> Option<&'s [String]> {
    let own = stack.iter().position(|element| element.ends_with("_[k]")).unwrap_or(stack.len());
    stack[..own].iter().position(|element| element == function).and_then(|at| stack.get(at + 1..own))
}

/// Asserts that all stacks in `work` are possible; returns their weight.
fn assert_possible(what: &str, folded: &Folded) -> u64 {
    let truth = truth();
    let mut inside = 0;
    for (stack, weight) in &folded.stacks {
        let Some(part) = behind(stack, "work") else {
            // A stack without its outer end has a marker with the reason.
            let is_cut = stack.iter().any(|element| element.starts_with(TRUNCATED));
            assert!(is_cut || !stack.iter().any(|element| element.ends_with(MARK)), "{what}: {stack:?}");
            continue;
        };
        assert!(part.len() <= truth.len() && part == &truth[..part.len()], "{what}: {stack:?}");
        inside += weight;
    }
    inside
}

fn truncated(folded: &Folded) -> u64 {
    let is_cut = |stack: &[String]| stack.iter().any(|element| element.starts_with(TRUNCATED));
    folded.stacks.iter().filter(|(stack, _)| is_cut(stack)).map(|(_, weight)| weight).sum()
}

#[test]
fn stacks_through_generated_code_are_correct() {
    let program = Target::c("region_code").with_header().build();
    for source in ["cpu", "itimer", "perf"] {
        let recording = record_unharmed(&Recorder::at(9973).event(source), &program, &["2000"]);
        let folded = recording.folded();
        let inside = assert_possible(source, &folded);
        assert!(
            inside > 100 && inside * 100 >= folded.total() * 95,
            "{source}: {inside} of {}",
            folded.total()
        );
        assert_eq!(truncated(&folded), 0, "{source}: {folded:?}");
        let deepest = truth().len();
        let complete = |(stack, _): &&(Vec<String>, u64)| {
            behind(stack, "work").is_some_and(|part| part.len() == deepest)
        };
        assert!(folded.stacks.iter().any(|stack| complete(&stack)), "{source}: {folded:?}");
        // Some were interrupted in the generated code itself, where its own rules apply.
        let at_leaf = |stack: &[String]| stack.last().is_some_and(|leaf| leaf.ends_with(MARK));
        let leaves: u64 =
            folded.stacks.iter().filter(|(stack, _)| at_leaf(stack)).map(|(_, weight)| weight).sum();
        assert!(leaves > 0, "{source}: {folded:?}");
    }
}

#[test]
fn lines_and_other_views_show_region_frames() {
    let program = Target::c("region_code").with_header().build();
    let recording = Recorder::at(9973).record(&program, &["1000"]);
    let show = |arguments: &[&str]| run(Command::new(selfwind()).args(arguments).arg(&recording.file)).stdout;
    assert!(show(&["report"]).contains("gen3 (made.code:4)"), "{}", show(&["report"]));
    // With line numbers, the number is the instruction's: all but the innermost are after their call.
    assert!(show(&["export", "-f", "folded", "--python-line"]).contains("gen3 (made.code:25)_[made]"));
    assert_named_in_every_format(&recording.file, "gen3");
}

#[test]
fn a_removed_unwinder_is_never_called_again() {
    let is_long = std::env::var_os("SELFWIND_LONG").is_some();
    let (milliseconds, least) = if is_long { ("15000", 1_000_000) } else { ("1500", 10_000) };
    let program = Target::c("region_code").with_header().build();
    let recorder = Recorder::at(10_000).event("cpu").env("REGION_COUNTS", "1");
    let recording = recorder.record(&program, &[milliseconds, "4", "1"]);
    let Outcome { status, stdout, .. } = &recording.outcome;
    assert!(*status == 0 && stdout.starts_with("violations 0\n"), "{:?}", recording.outcome);
    let numbers: Vec<u64> = stdout.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [_, asked, churned] = numbers[..] else { panic!("{stdout}") };
    assert!(asked > 100 && churned >= least, "{stdout}");
    println!("{stdout}");
    recording.assert_adds_up();
    assert!(assert_possible("churn", &recording.folded()) > 100);
}

#[test]
fn a_false_unwinder_ends_the_stack_with_a_reason() {
    let program = Target::c("region_hostile").with_header().build();
    let ways = [
        ("nonsense", "bad-unwinder"),
        ("no-stack", "bad-unwinder"),
        ("wild-stack", "unreadable"),
        ("backwards", "no-progress"),
        ("itself", "no-progress"),
        ("interrupted", "no-progress"),
        ("elsewhere", "no-progress"),
        ("endless", "depth-limit"),
        ("no-result", "bad-unwinder"),
        ("wild-reads", "unreadable"),
        ("reads-for-ever", "unreadable"),
        ("frames-for-ever", "depth-limit"),
        ("strange-frames", ""),
    ];
    for (way, reason) in ways {
        let recorder = Recorder::at(997).env("REGION_COUNTS", "1");
        let recording = recorder.record(&program, &[way, "200"]);
        let Outcome { status, stdout, .. } = &recording.outcome;
        let refused = matches!(way, "wild-reads" | "strange-frames");
        assert_eq!(
            (*status, stdout.as_str()),
            (0, format!("done\nrefused {}\n", u8::from(refused)).as_str()),
            "{way}"
        );
        recording.assert_adds_up();
        let folded = recording.folded();
        let mark = format!("[truncated: {reason}]");
        let marked: u64 =
            folded.stacks.iter().filter(|(stack, _)| stack.contains(&mark)).map(|(_, weight)| weight).sum();
        let expected = if reason.is_empty() { folded.total() - truncated(&folded) } else { marked };
        assert!(expected * 10 >= folded.total() * 9 && expected > 10, "{way}: {folded:?}");
    }
}

#[test]
fn the_header_matches_the_agent() {
    let without = "agent 0\nfirst -38\nagain -38 -38 -38\nrefused 0\nsymbols -38 0\nremoved -38 -38 -38\nnames 0 1\nmost 0 -38\n";
    let with = "agent 1\nfirst 1\nagain -17 -17 -17\nrefused 10\nsymbols -2 1\nremoved 0 -2 -2\nnames 1 1\nmost 1023 -28\n";
    let source = Target::c("region_layout").with_header();
    let others = [
        source.clone().with("no-pie", &["-no-pie"]),
        source.clone().with("clang", &[]).by("clang"),
        source.clone().with("cxx", &["-xc++", "-std=c++17"]),
        source.clone().musl(),
    ];
    for target in [source].into_iter().chain(others) {
        let program = target.build();
        assert_eq!(run(&mut Command::new(&program)).stdout, without, "{target:?}");
        let recording = Recorder::at(997).record(&program, &[""; 0]);
        assert_eq!(recording.outcome.stdout, with, "{target:?}: {:?}", recording.outcome);
    }
}

#[test]
fn rust_programs_register_unwinders_too() {
    let target = target_dir().join("plugin");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args([
        "build",
        "--quiet",
        "--release",
        "-p",
        "selfwind-plugin",
        "--example",
        "levels",
        "--target-dir",
    ]);
    assert!(build.arg(&target).current_dir(workspace()).status().expect("cargo runs").success());
    let recording = record_unharmed(&Recorder::at(997), &target.join("release/examples/levels"), &[""; 0]);
    let folded = recording.folded();
    let levels = (0..5).map(|level| format!("level {level} (levels:{})_[levels]", level + 1));
    let levels: Vec<String> = levels.collect();
    let named = |stack: &[String]| stack.iter().filter(|element| element.ends_with("_[levels]")).eq(&levels);
    let weight: u64 = folded.stacks.iter().filter(|(stack, _)| named(stack)).map(|(_, weight)| weight).sum();
    assert!(weight * 10 > folded.total() * 9 && weight > 20, "{folded:?}");
}

#[test]
fn an_invalid_plugin_is_refused_by_name() {
    let scratch = Scratch::new();
    let text = scratch.join("plug.so");
    fs::write(&text, "no library").expect("written");
    for (file, why) in [(text.display().to_string(), "cc -shared"), ("/nowhere/p.so".into(), "No such file")]
    {
        let outcome = run(Command::new(selfwind()).args(["record", "--plugin", &file, "--", "true"]));
        assert!(outcome.status != 0 && outcome.stderr.contains(why), "{outcome:?}");
        assert!(outcome.stderr.contains(&file), "{outcome:?}");
    }
}
