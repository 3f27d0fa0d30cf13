//! What a running process starts while it is recorded is recorded, too; what it has started before is not. All of it behaves as
//! without.

use std::collections::BTreeMap;

use selfwind_tests::attacher::{Attacher, Guest};
use selfwind_tests::binary::agent;
use selfwind_tests::recording::{folded, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::target::Target;

const HZ: f64 = 199.0;

/// A shell that has started one program and starts another one later.
const SCRIPT: &str = "\"$1\" 1500 > /dev/null & echo ready; sleep 0.5; \"$0\"; echo $?; wait";

fn recorded(program: &Target) -> BTreeMap<&'static str, f64> {
    let (new, old) = (program.build(), Target::c("spin").build());
    let guest = Guest::start(
        "sh".as_ref(),
        &["-c", SCRIPT, new.to_str().expect("UTF-8"), old.to_str().expect("UTF-8")],
    );
    let scratch = Scratch::new();
    let file = scratch.join("selfwind.data");
    let outcome = Attacher::new().run(&[
        "record",
        "-e",
        "cpu",
        "-o",
        file.to_str().expect("UTF-8"),
        "-p",
        &guest.pid(),
    ]);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    assert!(outcome.stderr.contains("already has children, which are not recorded: "), "{outcome:?}");
    assert_eq!(guest.end(), (Some(0), "3 5\n43\n".into()));
    let (folded, stats) = (folded(&file), stats(&file));
    stats.assert_adds_up();
    assert!(stats.complete() > 0.95, "{folded:#?}");
    let functions = ["parent_work", "child_work", "executed_work", "spin_first"];
    functions.map(|function| (function, folded.inclusive(function) as f64 / HZ)).into()
}

/// It forks in all ways, and one of its children executes a program.
#[test]
fn what_a_process_starts_is_recorded() {
    for program in [Target::c("raw_fork"), Target::c("raw_fork").fixed()] {
        let found = recorded(&program);
        for (function, seconds) in [("parent_work", 0.3), ("child_work", 1.6), ("executed_work", 0.3)] {
            let is_near = (0.6 * seconds..1.1 * seconds).contains(&found[function]);
            assert!(is_near, "{function}: {found:?}");
        }
        assert_eq!(found["spin_first"], 0.0, "{found:?}");
    }
}

/// A program with a preloaded agent of its own is left to that one, also while its loader is still at work.
#[test]
fn a_program_that_loads_an_agent_is_left_alone() {
    const SCRIPT: &str = "echo ready; sleep 0.5; LD_PRELOAD=\"$1:$2\" XDG_RUNTIME_DIR=$3 \"$0\" 300";
    let slow = Target::c("slow_constructor").shared("slow_constructor.so").build();
    let program = Target::c("spin").build();
    let attacher = Attacher::new();
    let paths = [&program, agent(), &slow, attacher.scratch.path()];
    let paths = paths.map(|path| path.to_str().expect("UTF-8"));
    let guest = Guest::start("sh".as_ref(), &[&["-c", SCRIPT], &paths[..]].concat());
    let file = attacher.scratch.join("selfwind.data");
    let file = file.to_str().expect("UTF-8");
    let outcome = attacher.run(&["record", "-e", "cpu", "-o", file, "-p", &guest.pid()]);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    assert_eq!(guest.end().0, Some(39));
    let stats = stats(file.as_ref());
    assert_eq!(stats.number("processes"), 1, "{:#}", stats.0);
}
