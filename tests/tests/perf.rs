//! The source `perf`: kernel and user stacks put together exactly, nothing interrupted, no child killed; and what is
//! left of it where the kernel permits less.
//!
//! Where this machine does not permit what a test needs, the test says so and passes: `skipped: ...`.

use std::path::Path;
use std::process::Command;

use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::recording::{Recorder, Recording, folded, record_unharmed, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::stats::Stats;
use selfwind_tests::target::Target;

/// What the agent said of its source.
fn source(stats: &Stats) -> String {
    stats.0["detail"]["settings"]["source"].to_string()
}

/// One of the counts of what became of the kernel's events; what never happened is not there.
fn kernel(stats: &Stats, name: &str) -> u64 {
    stats.0["detail"]["kernel"][name].as_u64().unwrap_or(0)
}

/// True if the recording saw the kernel; otherwise says why the test is skipped.
fn sees_kernel(recording: &Recording) -> bool {
    let source = source(&recording.stats());
    let sees = source.contains("kernel and user stacks");
    if !sees {
        eprintln!("skipped: {source}");
    }
    sees
}

/// All events are somewhere.
fn assert_all_counted(stats: &Stats) {
    let parts =
        ["exact", "restarted", "deeper", "overhead", "blocked", "unmatched", "unanswered", "not_waiting"];
    let sum: u64 = parts.iter().map(|part| kernel(stats, part)).sum();
    assert_eq!(sum, kernel(stats, "events"), "{:#}", stats.0["detail"]["kernel"]);
    assert_eq!(
        kernel(stats, "missing_bytes") + kernel(stats, "malformed"),
        0,
        "{:#}",
        stats.0["detail"]["kernel"]
    );
}

/// The share of the events of the program that have the stack at which they happened.
fn stitched(stats: &Stats) -> f64 {
    let good = kernel(stats, "exact") + kernel(stats, "restarted") + kernel(stats, "deeper");
    good as f64 / (kernel(stats, "events") - kernel(stats, "overhead")).max(1) as f64
}

#[test]
fn every_period_of_processor_time_has_its_sample_and_its_stack() {
    let program = Target::c("kernel_work").build();
    let recording = record_unharmed(&Recorder::at(997).event("perf"), &program, &["3", "500"]);
    if !sees_kernel(&recording) {
        return;
    }
    let stats = recording.stats();
    assert_all_counted(&stats);
    // Three threads of half a second; a loaded machine delays no CPU time.
    let due = 3.0 * 0.5 * 997.0;
    let weight = stats.number("weight") as f64;
    assert!(weight > 0.97 * due && weight < 1.1 * due, "weight {weight}, due {due}");
    assert!(stitched(&stats) >= 0.995, "{:#}", stats.0["detail"]["kernel"]);
    assert_eq!(kernel(&stats, "unmatched"), 0, "{:#}", stats.0["detail"]["kernel"]);
    let folded = recording.folded();
    assert!(folded.rooted() > 0.99, "{:?}", folded.roots());
    assert!(folded.nested("fault_work", "asm_exc_page_fault_[k]") > 0, "{folded:?}");
    assert!(folded.nested("call_work", "do_syscall_64_[k]") > 0, "{folded:?}");
}

#[test]
fn a_foreign_handler_on_top_does_not_hide_the_stack() {
    let program = Target::c("kernel_work").build();
    let recording = record_unharmed(&Recorder::at(1999).event("perf"), &program, &["2", "500", "300"]);
    if sees_kernel(&recording) {
        let stats = recording.stats();
        assert_all_counted(&stats);
        assert!(stitched(&stats) >= 0.98, "{:#}", stats.0["detail"]["kernel"]);
    }
}

#[test]
fn many_faults_of_one_call_share_one_walk() {
    let program = Target::c("faults_in_read").build();
    // Its output says that both reads came back whole.
    let recording = record_unharmed(&Recorder::at(99).event("perf:page-faults"), &program, &[""; 0]);
    if !sees_kernel(&recording) {
        return;
    }
    let stats = recording.stats();
    assert_all_counted(&stats);
    assert_eq!(recording.folded().inclusive("one_read"), 64, "{:?}", recording.folded());
    assert!(stats.detail(&["unwinds"]) < 40, "{:#}", stats.0);
    // The ring has no room for all of the 4096 faults of the second read: they are counted all the same.
    let main = recording.folded().inclusive("main");
    assert!(main >= 64 + 4096, "{main}: {:#}", stats.0["detail"]["kernel"]);
}

#[test]
fn calls_are_not_interrupted() {
    record_unharmed(&Recorder::at(997).event("perf"), &Target::c("eintr").build(), &[""; 0]);
}

#[test]
fn children_are_not_killed() {
    let rounds = if std::env::var_os("SELFWIND_LONG").is_some() { "334" } else { "25" };
    let program = Target::c("spawn_storm").build();
    let recording = record_unharmed(&Recorder::at(997).event("perf"), &program, &[rounds]);
    assert_eq!(recording.outcome.stdout, "0 bad\n");
}

#[test]
fn the_signal_stays_the_programs() {
    for event in ["perf", "cpu"] {
        record_unharmed(&Recorder::at(997).event(event), &Target::c("own_sigtrap").build(), &[""; 0]);
    }
}

#[test]
fn programs_of_every_hazard_are_unharmed() {
    for name in [
        "fork",
        "vfork",
        "posix_spawn",
        "close_all_fds",
        "siglongjmp",
        "sigaltstack",
        "own_sigprof",
        "sigwait",
        "thread_churn",
        "coroutine",
        "seccomp",
    ] {
        let recording = record_unharmed(&Recorder::at(997).event("perf"), &Target::c(name).build(), &[""; 0]);
        eprintln!("{name}: {:#}", recording.stats().0["detail"]["kernel"]);
    }
}

#[test]
fn no_event_reaches_the_image_that_an_exec_starts() {
    let program = Target::c("exec").build();
    for mode in ["chain", "threads", "fails"] {
        record_unharmed(&Recorder::at(997).event("perf"), &program, &[mode]);
    }
}

#[test]
fn time_off_the_processor_is_told_by_function() {
    let program = Target::c("off_processor").build();
    let recording = Recorder::at(99).event("offcpu").record(&program, &["15"]);
    if recording.outcome.status == 125 {
        eprintln!("skipped: {}", recording.outcome.stderr);
        return;
    }
    let told: Vec<f64> =
        recording.outcome.stdout.split_whitespace().map(|ns| ns.parse().expect("nanoseconds")).collect();
    let folded = recording.folded();
    assert_eq!(folded.total(), recording.stats().number("weight"));
    for (function, ns) in [("sleeping", told[0]), ("waiting", told[1])] {
        // The program's own clocks include the way in and out, and being preempted there.
        let us = folded.inclusive(function) as f64;
        let wall = 15.0 * 100_000.0;
        assert!((us - ns / 1000.0).abs() / wall < 0.03, "{function}: {us} us of {ns} ns: {folded:?}");
    }
    assert_eq!(folded.inclusive("burning"), 0, "{folded:?}");
}

#[test]
fn every_call_of_git_has_its_stack() {
    let scratch = Scratch::new();
    let file = scratch.join("git.data");
    let source = env!("CARGO_MANIFEST_DIR");
    let script = "mount -t tracefs tracefs /sys/kernel/tracing && exec \"$0\" \"$@\"";
    let outcome = run(Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .arg(selfwind())
        .args(["record", "-q", "-e", "perf:raw_syscalls:sys_enter", "-o"])
        .arg(&file)
        .args(["--", "git", "-C", source, "status"]));
    if outcome.status != 0 {
        eprintln!("skipped: {}", outcome.stderr);
        return;
    }
    let stats = stats(&file);
    assert_all_counted(&stats);
    let (events, overhead) = (kernel(&stats, "events"), kernel(&stats, "overhead"));
    assert!(events - overhead > 100, "{:#}", stats.0);
    assert!(stitched(&stats) >= 0.99, "{:#}", stats.0["detail"]["kernel"]);
    assert_eq!(folded(&file).total(), stats.number("weight"));
}

/// Records under conditions of its own; the profile and what the recorder said.
fn recorded_by(
    command: &mut Command,
    scratch: &Path,
    event: &str,
    program: &Path,
) -> (Outcome, Option<Stats>) {
    let file = scratch.join("x.data");
    let outcome = run(command
        .arg(selfwind())
        .args(["record", "-F", "997", "-e", event, "-o"])
        .arg(&file)
        .arg("--")
        .arg(program)
        .args(["2", "200"]));
    let stats = file.exists().then(|| stats(&file));
    (outcome, stats)
}

#[test]
fn an_ordinary_user_gets_user_mode_and_is_told_what_is_missing() {
    let program = Target::c("kernel_work").build();
    let home = Path::new("/tmp").join(format!("selfwind-perf-{}", std::process::id()));
    std::fs::create_dir_all(&home).expect("a directory");
    let user = "65534";
    let chown = run(Command::new("chown").arg(user).arg(&home));
    let mut command = Command::new("setpriv");
    command.args(["--reuid", user, "--regid", user, "--clear-groups", "env"]);
    command.arg(format!("HOME={}", home.display())).arg(format!("XDG_RUNTIME_DIR={}", home.display()));
    let (outcome, stats) = recorded_by(&mut command, &home, "perf", &program);
    let _ = std::fs::remove_dir_all(&home);
    let Some(stats) = stats.filter(|_| chown.status == 0 && outcome.status == 0) else {
        eprintln!("skipped: {} {}", chown.stderr, outcome.stderr);
        return;
    };
    stats.assert_adds_up();
    assert!(outcome.stderr.contains("perf_event_paranoid"), "{}", outcome.stderr);
    assert!(stats.number("samples") > 50, "{:#}", stats.0);
}

#[test]
fn where_events_are_denied_timers_take_their_place() {
    let scratch = Scratch::new();
    let denied = Target::c("perf_denied").build();
    let program = Target::c("kernel_work").build();
    let (outcome, stats) = recorded_by(&mut Command::new(&denied), scratch.path(), "perf", &program);
    assert_eq!((outcome.status, outcome.stdout.as_str()), (0, "done\n"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("cpu timers instead of perf"), "{}", outcome.stderr);
    let stats = stats.expect("a profile");
    stats.assert_adds_up();
    assert!(stats.number("weight") > 200, "{:#}", stats.0);
    // Nothing takes the place of faults.
    let (outcome, stats) = recorded_by(&mut Command::new(&denied), scratch.path(), "perf:faults", &program);
    assert_eq!((outcome.status, stats.expect("a profile").number("samples")), (0, 0), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("nothing is sampled"), "{}", outcome.stderr);
}

#[test]
fn events_that_do_not_exist_are_explained() {
    for (event, part) in [("perf:nonsense", "no event"), ("perf:a:b:c", "no tracepoint")] {
        let outcome = run(Command::new(selfwind()).args(["record", "-e", event, "true"]));
        assert_eq!(outcome.status, 125, "{event}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(part), "{event}: {}", outcome.stderr);
    }
}
