//! Test suites of real programs pass under the agent at 997 Hz as they do without. Long: only with `SELFWIND_LONG`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use selfwind_tests::binary::{selfwind, workspace};
use selfwind_tests::outcome::{Outcome, run, run_within};
use selfwind_tests::scratch::Scratch;

const HOUR: Duration = Duration::from_secs(3600);

/// Modules of CPython's own tests that deal with what a profiler may disturb.
const PYTHON: [&str; 18] = [
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
];

/// Those of virtual sockets wait for ever in some virtual machines.
const NOT_ASKED: [&str; 2] = ["-i", "*VSOCK*"];

fn is_long() -> bool {
    let long = std::env::var_os("SELFWIND_LONG").is_some();
    if !long {
        println!("only with SELFWIND_LONG");
    }
    long
}

/// Runs the words alone and recorded.
fn both(words: &[&str]) -> (Outcome, Outcome) {
    let scratch = Scratch::new();
    let mut alone = Command::new(words[0]);
    let alone = run_within(alone.args(&words[1..]).current_dir(scratch.path()), HOUR).expect("ends alone");
    let mut recorded = Command::new(selfwind());
    recorded.args(["record", "-q", "-F", "997", "-o"]).arg(scratch.join("x.data")).arg("--").args(words);
    let recorded = run_within(recorded.current_dir(scratch.path()), HOUR).expect("ends recorded");
    (alone, recorded)
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
        let (alone, recorded) = both(&[&[python, "-m", "test", "-q"], &NOT_ASKED[..], &[module]].concat());
        println!("{module}: {} alone, {} recorded", alone.status, recorded.status);
        if alone.status != recorded.status {
            different.push((module, alone.status, recorded));
        }
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
    let (alone, recorded) = both(&["sh", "-c", line]);
    assert_eq!(recorded, alone);
}

#[test]
fn a_rust_project() {
    if !is_long() {
        return;
    }
    let manifest = workspace().join("unwind/Cargo.toml");
    let manifest = manifest.to_str().expect("UTF-8");
    let (alone, recorded) = both(&["cargo", "test", "--quiet", "--lib", "--manifest-path", manifest]);
    assert_eq!((alone.status, recorded.status), (0, 0), "{}", recorded.stderr);
}
