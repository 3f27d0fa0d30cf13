//! Test suites of real programs pass under the agent as they do without: at a high rate, and with all allocations and
//! lock waits recorded. Only with `SELFWIND_LONG`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use selfwind_tests::binary::{selfwind, workspace};
use selfwind_tests::outcome::{Outcome, run, run_within};
use selfwind_tests::scratch::Scratch;

const HOUR: Duration = Duration::from_secs(3600);

/// Modules of CPython's own tests that deal with what a profiler may disturb.
const PYTHON: [&str; 24] = [
    "test_signal",
    "test_threading",
    "test_thread",
    "test_threadsignals",
    "test_subprocess",
    "test_socket",
    "test_ssl",
    "test_select",
    "test_poll",
    "test_epoll",
    "test_fork1",
    "test_itertools",
    "test_faulthandler",
    "test_eintr",
    "test_posix",
    "test_pty",
    "test_wait3",
    "test_tracemalloc",
    "test_gc",
    "test_sys",
    "test_frame",
    "test_generators",
    "test_coroutines",
    "test_asyncgen",
];

/// Tests of virtual sockets hang in some virtual machines.
const NOT_ASKED: [&str; 2] = ["-i", "*VSOCK*"];

fn is_long() -> bool {
    let long = std::env::var_os("SELFWIND_LONG").is_some();
    if !long {
        println!("only with SELFWIND_LONG");
    }
    long
}

/// The ways to record.
const WAYS: [&[&str]; 2] = [&["-F", "9973"], &["-F", "9973", "-e", "cpu,alloc:all,lock:all"]];

/// Runs the words alone, then recorded in each way.
fn in_all_ways(words: &[&str]) -> (Outcome, Vec<Outcome>) {
    let scratch = Scratch::new();
    let mut alone = Command::new(words[0]);
    let alone = run_within(alone.args(&words[1..]).current_dir(scratch.path()), HOUR).expect("ends alone");
    let recorded = |flags: &&[&str]| {
        let mut command = Command::new(selfwind());
        command.args(["record", "-q", "--no-names", "-o"]).arg(scratch.join("x.data")).args(*flags);
        command.arg("--").args(words).current_dir(scratch.path());
        run_within(&mut command, HOUR).expect("ends recorded")
    };
    (alone, WAYS.iter().map(recorded).collect())
}

#[test]
fn cpython() {
    if !is_long() {
        return;
    }
    let outcome = run(Command::new("python3").args(["-c", "import sys; print(sys.executable)"]));
    let python = PathBuf::from(outcome.stdout.trim());
    let python = python.to_str().expect("UTF-8");
    let mut different = Vec::new();
    for module in PYTHON {
        let words = [&[python, "-m", "test", "-q"], &NOT_ASKED[..], &[module]].concat();
        let (alone, recorded) = in_all_ways(&words);
        let statuses: Vec<i32> = recorded.iter().map(|outcome| outcome.status).collect();
        println!("{module}: {} alone, {statuses:?} recorded", alone.status);
        let others = recorded.into_iter().filter(|outcome| outcome.status != alone.status);
        different.extend(others.map(|outcome| (module, alone.status, outcome)));
    }
    assert!(different.is_empty(), "{different:#?}");
}

#[test]
fn redis() {
    if !is_long() {
        return;
    }
    let line = "redis-server --port 0 --unixsocket $PWD/s --save '' >/dev/null & \
                until redis-cli -s $PWD/s ping >/dev/null 2>&1; do sleep 0.1; done; \
                redis-benchmark -s $PWD/s -n 20000 -q >/dev/null; echo benchmark $?; \
                redis-cli -s $PWD/s shutdown nosave; wait $!; echo server $?";
    let (alone, recorded) = in_all_ways(&["sh", "-c", line]);
    assert!(recorded.iter().all(|outcome| *outcome == alone), "{alone:?}: {recorded:#?}");
}

#[test]
fn a_rust_project() {
    if !is_long() {
        return;
    }
    let manifest = workspace().join("unwind/Cargo.toml");
    let manifest = manifest.to_str().expect("UTF-8");
    let (alone, recorded) = in_all_ways(&["cargo", "test", "--quiet", "--lib", "--manifest-path", manifest]);
    let passes = |outcome: &Outcome| outcome.status == 0;
    assert!(passes(&alone) && recorded.iter().all(passes), "{alone:?}: {recorded:#?}");
}
