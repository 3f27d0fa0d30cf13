//! Java stacks: HotSpot's interpreter, which jumps instead of calling, and its JIT compilers, with and without frame
//! pointers.
//!
//! Oracle: a program with a known call graph.

use std::path::{Path, PathBuf};
use std::process::Command;

use selfwind_tests::binary::workspace;
use selfwind_tests::folded::Folded;
use selfwind_tests::outcome::run;
use selfwind_tests::recording::{Recorder, Recording};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;
use selfwind_tests::target::is_installed;

/// Make HotSpot write the names of all code when the program ends.
const NAMES: [&str; 2] = ["-XX:+UnlockDiagnosticVMOptions", "-XX:+DumpPerfMapAtExit"];
/// Name of the interpreter's code.
const INTERPRETER: &str = "Interpreter";

/// The call path in `java_graph.java`, outermost first. The fourteenth is `often` or `once`.
fn truth() -> Vec<&'static [&'static str]> {
    let deep = std::iter::repeat_n(&["deep"][..], 11);
    let behind = [&["both"][..], &["often", "once"], &["inner"], &["spin"]];
    [&["main"][..]].into_iter().chain(deep).chain(behind).collect()
}

/// The method of the program in `element`, or the interpreter, which may run any.
fn method(element: &str) -> Option<&str> {
    if element == INTERPRETER {
        return Some(element);
    }
    element.split_once(" Graph.")?.1.split('(').next()
}

/// Number of samples in `main`, of those that show each call without a gap, and of those that reach the root.
#[derive(Debug, Default)]
struct Seen {
    all: u64,
    exact: u64,
    rooted: u64,
}

struct Java {
    scratch: Scratch,
}

impl Java {
    fn compiled() -> Option<Java> {
        if !is_installed("javac") {
            skip("javac is not installed");
            return None;
        }
        let scratch = Scratch::new();
        let source: PathBuf = workspace().join("tests/targets/java_graph.java");
        let outcome = run(Command::new("javac").arg("-d").arg(scratch.path()).arg(source));
        assert_eq!(outcome.status, 0, "{outcome:?}");
        Some(Java { scratch })
    }

    fn record(&self, flags: &[&str]) -> Folded {
        self.record_by(&Recorder::at(997), flags).folded()
    }

    fn record_by(&self, recorder: &Recorder, flags: &[&str]) -> Recording {
        let classes = self.scratch.path().to_str().expect("UTF-8");
        let arguments = [flags, &NAMES, &["-cp", classes, "Graph", "2500"]].concat();
        let recording = recorder.record(Path::new("java"), &arguments);
        assert_eq!(recording.outcome.status, 0, "{:?}", recording.outcome);
        recording.assert_adds_up();
        recording
    }
}

/// Checks all stacks in which the launcher has called the program: the calls that they show must be possible, in this
/// order, and there is no Java code below native leaf functions.
fn seen(flags: &[&str], folded: &Folded) -> Seen {
    let truth = truth();
    let mut seen = Seen::default();
    for (stack, weight) in &folded.stacks {
        let methods: Vec<&str> = stack.iter().filter_map(|element| method(element)).collect();
        let is_other =
            |element: &String| element.starts_with("JNI_CreateJavaVM") || element.contains("CompileBroker");
        let names_program = methods.iter().any(|method| *method != INTERPRETER);
        let is_called = stack.iter().any(|element| element == "jni_CallStaticVoidMethod");
        if !(is_called || names_program) || stack.iter().any(is_other) {
            continue;
        }
        let mut rest = truth.iter();
        let happened = methods
            .iter()
            .all(|&method| rest.any(|possible| method == INTERPRETER || possible.contains(&method)));
        assert!(happened, "{flags:?}: {stack:?}");
        seen.all += weight;
        seen.exact += if methods.len() == truth.len() { *weight } else { 0 };
        seen.rooted += if is_called { *weight } else { 0 };
    }
    assert!(seen.all > 200, "{flags:?}: {folded:?}");
    seen
}

#[test]
fn interpreted_methods_are_all_there() {
    let Some(java) = Java::compiled() else { return };
    let flags = ["-Xint"];
    let seen = seen(&flags, &java.record(&flags));
    assert!(seen.exact * 100 >= seen.all * 95 && seen.rooted * 100 >= seen.all * 99, "{seen:?}");
}

#[test]
fn compiled_methods_with_frame_pointers_have_callers() {
    let Some(java) = Java::compiled() else { return };
    // The second set disables inlining, so that each call has a frame.
    for more in [&[][..], &["-XX:-Inline", "-XX:-UseOnStackReplacement"]] {
        let flags = [&["-XX:+PreserveFramePointer"][..], more].concat();
        let seen = seen(&flags, &java.record(&flags));
        assert!(seen.rooted * 100 >= seen.all * 98, "{flags:?}: {seen:?}");
        assert!(more.is_empty() || seen.exact * 100 >= seen.all * 90, "{flags:?}: {seen:?}");
    }
}

#[test]
fn compiled_methods_without_frame_pointers_have_no_wrong_callers() {
    let Some(java) = Java::compiled() else { return };
    for more in [&[][..], &["-XX:-Inline"], &["-XX:TieredStopAtLevel=1"]] {
        let seen = seen(more, &java.record(more));
        assert!(seen.rooted * 10 >= seen.all * 9, "{more:?}: {seen:?}");
    }
}

/// The recorder finds the callers of generated code in a copy as the thread does. A few differ: while Java starts, the
/// agent does not know libraries whose constructors run yet, and copies treat their code as generated.
#[test]
fn copies_lead_to_the_same_frames() {
    let Some(java) = Java::compiled() else { return };
    let recorder = Recorder::at(1999).env("SELFWIND_UNWIND", "both").env("SELFWIND_MAX_OVERHEAD", "100");
    for flags in [&["-Xint"][..], &[], &["-XX:+PreserveFramePointer"]] {
        let stats = java.record_by(&recorder, flags).stats();
        let [identical, differ] = ["identical", "differ"].map(|name| stats.detail(&["copy", name]));
        println!("{flags:?}: identical {identical}, differ {differ}");
        assert!(identical > 500 && differ * 100 <= identical, "{flags:?}: {identical} and {differ}");
    }
}
