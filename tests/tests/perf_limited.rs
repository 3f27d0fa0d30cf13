//! The source `perf` where the kernel permits less than everything: user mode only, or no events at all.
//!
//! What this machine does not permit is skipped.

use std::path::Path;
use std::process::Command;

use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::recording::{Recorder, read, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;
use selfwind_tests::stats::Stats;
use selfwind_tests::target::Target;

const WORK: &[&str] = &["2", "200"];

/// Records with `reader`, a copy of `selfwind`, as started by `command`; returns the profile and the recorder's output.
fn recorded_by(
    command: &mut Command,
    reader: &Path,
    scratch: &Path,
    event: &str,
    program: &Path,
    arguments: &[&str],
) -> (Outcome, Option<Stats>) {
    let file = scratch.join("x.data");
    let outcome = run(command
        .arg(reader)
        .args(["record", "-F", "997", "-e", event, "-o"])
        .arg(&file)
        .arg("--")
        .arg(program)
        .args(arguments));
    let stats = file.exists().then(|| stats(&file));
    (outcome, stats)
}

/// Records as another user, whose shell runs `before`; skips if that is not possible.
fn recorded_by_a_user(before: &str, program: &Path, arguments: &[&str]) -> Option<(Outcome, Stats)> {
    let reachable = Scratch::for_all_users();
    let (home, user) = (reachable.path(), "65534");
    let chown = run(Command::new("chown").arg(user).arg(home));
    let mut command = Command::new("setpriv");
    command.args(["--reuid", user, "--regid", user, "--clear-groups", "env"]);
    command.arg(format!("HOME={}", home.display())).arg(format!("XDG_RUNTIME_DIR={}", home.display()));
    command.args(["sh", "-c", &format!("{before}; exec \"$@\""), "sh"]);
    let reader = reachable.copy(selfwind());
    let (outcome, stats) =
        recorded_by(&mut command, &reader, home, "perf", &reachable.copy(program), arguments);
    let Some(stats) = stats.filter(|_| chown.status == 0 && outcome.status == 0) else {
        skip(format_args!("{} {}", chown.stderr, outcome.stderr));
        return None;
    };
    stats.assert_adds_up();
    Some((outcome, stats))
}

#[test]
fn an_ordinary_user_gets_user_mode_and_a_hint() {
    let program = Target::c("kernel_work").build();
    let Some((outcome, stats)) = recorded_by_a_user(":", &program, WORK) else { return };
    assert!(outcome.stderr.contains("perf_event_paranoid"), "{}", outcome.stderr);
    // Two threads of 200 ms, half of them in the kernel, of which the last milliseconds are missing.
    let weight = stats.number("weight") as f64;
    assert!(weight > 0.85 * 0.4 * 997.0, "{:#}", stats.0);
}

#[test]
fn threads_without_a_ring_buffer_have_timers_and_the_limit_is_named() {
    let processors = std::thread::available_parallelism().expect("some").get();
    // The smallest ring has 8 KiB, and the kernel permits half a mebibyte per processor.
    let threads = (100 * processors).to_string();
    let program = Target::c("crowd").build();
    let Some((outcome, stats)) = recorded_by_a_user("ulimit -l 0", &program, &["threads", &threads, "5"])
    else {
        return;
    };
    let note = "no kernel events for some threads, CPU timers instead: Operation not permitted (os error 1): the limit on \
                locked memory (ulimit -l, kernel.perf_event_mlock_kb)";
    assert!(outcome.stderr.contains(note), "{}", outcome.stderr);
    assert_eq!(
        (stats.number("lost"), stats.number("threads")),
        (0, 100 * processors as u64 + 1),
        "{:#}",
        stats.0
    );
}

/// The timer for time in the kernel and the event have the same signal. If both expire at once, the kernel delivers only one.
#[test]
fn events_that_coincide_with_the_timer_have_their_own_stacks() {
    let program = Target::c("coinciding_signals").build();
    let Some((outcome, stats)) = recorded_by_a_user(":", &program, &["2000"]) else { return };
    if !outcome.stderr.contains("user mode only") {
        skip(format_args!("{}", outcome.stderr));
        return;
    }
    let [events, exact, overhead] = ["events", "exact", "overhead"].map(|name| stats.kernel(name));
    assert!(events > 1000, "{:#}", stats.0);
    assert_eq!(exact + overhead, events, "{:#}", stats.0["detail"]["kernel"]);
}

#[test]
fn by_default_the_source_is_the_best_that_does_no_harm() {
    let scratch = Scratch::new();
    let program = Target::c("kernel_work").build();
    let recording = Recorder::at(997).record(&program, &["2", "200"]);
    assert!(recording.stats().source().contains("perf: "), "{}", recording.stats().source());
    let mut denied = Command::new(Target::c("perf_denied").build());
    denied.arg(libc::EPERM.to_string());
    let (outcome, stats) = recorded_by(&mut denied, selfwind(), scratch.path(), "auto", &program, WORK);
    assert!(outcome.stderr.contains("cpu timers instead of perf"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("of 997 Hz (timers tick with the kernel's HZ)"), "{}", outcome.stderr);
    assert!(stats.is_some_and(|stats| stats.source().contains("cpu timers")));
    let report = read(&["report"], &scratch.join("x.data"));
    assert!(report.contains("of 997 Hz (timers tick with the kernel's HZ)"), "{report}");
    // A tracer would be told of each event.
    let (outcome, stats) = recorded_by(
        Command::new("strace").args(["-f", "-o", "/dev/null"]),
        selfwind(),
        scratch.path(),
        "auto",
        &program,
        WORK,
    );
    assert_eq!(outcome.stdout, "done\n", "{}", outcome.stderr);
    assert!(stats.is_some_and(|stats| stats.source().contains("the process is traced")));
}

/// By a container's seccomp filter (EPERM), or as with `perf_event_paranoid` 3 or 4 (EACCES), which no test may set.
#[test]
fn timers_replace_denied_perf_events() {
    let scratch = Scratch::new();
    let program = Target::c("kernel_work").build();
    for error in [libc::EPERM, libc::EACCES] {
        let denied = || {
            let mut command = Command::new(Target::c("perf_denied").build());
            command.arg(error.to_string());
            command
        };
        let (outcome, stats) = recorded_by(&mut denied(), selfwind(), scratch.path(), "perf", &program, WORK);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (0, "done\n"), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("cpu timers instead of perf"), "{}", outcome.stderr);
        let stats = stats.expect("a profile");
        stats.assert_adds_up();
        assert!(stats.number("weight") > 200, "{:#}", stats.0);
        // Nothing can replace page faults.
        let (outcome, stats) =
            recorded_by(&mut denied(), selfwind(), scratch.path(), "perf:faults", &program, WORK);
        assert_eq!(
            (outcome.status, stats.expect("a profile").number("samples")),
            (0, 0),
            "{}",
            outcome.stderr
        );
        assert!(outcome.stderr.contains("nothing is sampled"), "{}", outcome.stderr);
    }
}
