//! Programs under a debugger or strace. One that a tracer attaches to while perf events sample it shows each sample as a
//! signal, and whatever the tracer does with it, the program continues unharmed. One that asks to be traced is left alone,
//! and one that is traced from its start is sampled by timers.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use selfwind_tests::asked::Asked;
use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::{Outcome, run, run_within};
use selfwind_tests::recording::{Recorder, Recording, record_unharmed, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;
use selfwind_tests::target::Target;

/// A tracer on a slow machine, with its symbols to read.
const PATIENCE: Duration = Duration::from_secs(180);

fn threads() -> Asked {
    Asked::sampled_by("perf", &["threads", "4"])
}

/// Whether the kernel permits perf events; without them there are no traps.
fn is_sampled_by_events(asked: &Asked) -> bool {
    let scratch = Scratch::new();
    let file = scratch.join("snapshot.data");
    let outcome = snapshot(asked, &file);
    assert_eq!(outcome.status, 0, "{}", outcome.stderr);
    let source = stats(&file).source();
    let sampled = source.contains("perf: ");
    if !sampled {
        skip(format_args!("{source}"));
    }
    sampled
}

fn snapshot(asked: &Asked, file: &Path) -> Outcome {
    let pid = asked.pid().to_string();
    let mut command = Command::new(selfwind());
    command.args(["record", "-q", "--snapshot", "-p", &pid, "-o"]).arg(file);
    run(command.env("SELFWIND_DIR", asked.directory()))
}

/// Runs gdb on the program with these commands; `None` if gdb is missing or not permitted.
fn gdb(pid: &str, commands: &[&str]) -> Option<Outcome> {
    let mut gdb = Command::new("gdb");
    gdb.args(["-q", "-batch", "-nx", "-iex", "set debuginfod enabled off", "-p", pid]);
    commands.iter().for_each(|command| _ = gdb.args(["-ex", command]));
    if Command::new("gdb").arg("--version").stdout(Stdio::null()).status().is_err() {
        skip(format_args!("no gdb"));
        return None;
    }
    let outcome = run_within(&mut gdb, PATIENCE).unwrap_or_else(|said| panic!("gdb hangs: {said:?}"));
    if outcome.stderr.contains("Operation not permitted") {
        skip(format_args!("{}", outcome.stderr));
        return None;
    }
    Some(outcome)
}

fn assert_unharmed(asked: &mut Asked) {
    assert_eq!(asked.end(), ("4 threads ended, 0 reads went wrong\n".into(), 0));
}

#[test]
fn a_debugger_stops_at_a_sample() {
    let mut asked = threads();
    if is_sampled_by_events(&asked)
        && let Some(outcome) = gdb(&asked.pid().to_string(), &["continue", "backtrace", "detach"])
    {
        assert!(outcome.stdout.contains("received signal SIGTRAP"), "{outcome:?}");
    }
    assert_unharmed(&mut asked);
}

#[test]
fn a_debugger_that_suppresses_samples_keeps_its_breakpoints() {
    let mut asked = threads();
    let commands = [
        "handle SIGTRAP nostop noprint nopass",
        "break asked_spins",
        "continue",
        "next",
        "continue",
        "delete",
        "detach",
    ];
    if is_sampled_by_events(&asked)
        && let Some(outcome) = gdb(&asked.pid().to_string(), &commands)
    {
        // One that it steps into counts too.
        assert!(outcome.stdout.matches("hit Breakpoint 1").count() >= 2, "{outcome:?}");
        assert!(!outcome.stdout.contains("received signal SIGTRAP"), "{outcome:?}");
    }
    assert_unharmed(&mut asked);
}

#[test]
fn a_debugger_that_passes_samples_on_reaches_the_end() {
    let mut asked = threads();
    if !is_sampled_by_events(&asked) {
        return;
    }
    let status = format!("/proc/{}/status", asked.pid());
    let pid = asked.pid().to_string();
    let watching = std::thread::spawn(move || gdb(&pid, &["handle SIGTRAP nostop noprint pass", "continue"]));
    // It lets the program continue after reading symbols for a while; it makes no difference whether that is over.
    let is_traced = || {
        let status = std::fs::read_to_string(&status).unwrap_or_default();
        status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
    };
    while !is_traced() && !watching.is_finished() {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(500));
    assert_unharmed(&mut asked);
    if let Some(outcome) = watching.join().expect("gdb was watched") {
        assert!(outcome.stdout.contains("exited normally"), "{outcome:?}");
    }
}

/// Runs strace on the program, with its output in `file`.
fn strace(asked: &Asked, file: &Path) -> Option<Child> {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-q", "-e", "trace=none", "-p", &asked.pid().to_string(), "-o"]).arg(file);
    match strace.stdin(Stdio::null()).spawn() {
        Ok(child) => Some(child),
        Err(error) => {
            skip(format_args!("cannot run strace: {error}"));
            None
        }
    }
}

#[test]
fn strace_shows_samples_as_signals() {
    let mut asked = threads();
    let scratch = Scratch::new();
    let file = scratch.join("trace");
    if is_sampled_by_events(&asked)
        && let Some(mut strace) = strace(&asked, &file)
    {
        let begin = Instant::now();
        let seen = || std::fs::read_to_string(&file).unwrap_or_default().matches("TRAP_PERF").count();
        let mut ended = None;
        while seen() < 20 && ended.is_none() && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(50));
            ended = strace.try_wait().expect("our child");
        }
        if ended.is_none() {
            kill(Pid::from_raw(strace.id() as i32), Signal::SIGINT).expect("our child");
            strace.wait().expect("our child");
        }
        match ended {
            Some(status) if seen() == 0 => skip(format_args!("strace may not: {status}")),
            _ => assert!(seen() >= 20, "strace saw {} samples", seen()),
        }
        // Sampling continued meanwhile, and still does.
        let after = scratch.join("after.data");
        assert_eq!(snapshot(&asked, &after).status, 0);
        stats(&after).assert_adds_up();
    }
    assert_unharmed(&mut asked);
}

#[test]
fn a_program_may_be_recorded_under_strace() {
    let scratch = Scratch::new();
    let (file, trace) = (scratch.join("x.data"), scratch.join("trace"));
    let program = Target::c("kernel_work").build();
    let mut command = Command::new("strace");
    command.args(["-f", "-q", "-e", "trace=none", "-o"]).arg(&trace).arg(selfwind());
    command.args(["record", "-q", "-e", "perf", "-F", "997", "-o"]).arg(&file).arg("--").arg(program);
    command.args(["2", "200"]);
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_err() {
        return skip(format_args!("no strace"));
    }
    let outcome = run_within(&mut command, PATIENCE).unwrap_or_else(|said| panic!("hangs: {said:?}"));
    if outcome.stderr.contains("Operation not permitted") {
        return skip(format_args!("{}", outcome.stderr));
    }
    assert_eq!((outcome.status, outcome.stdout.as_str()), (0, "done\n"), "{}", outcome.stderr);
    let stats = stats(&file);
    stats.assert_adds_up();
    assert!(stats.number("weight") > 200, "{:#}", stats.0);
}

/// What every source by signals does for a program that asks to be traced.
fn each_source(mode: &str, check: impl Fn(&str, &Recording)) {
    for source in ["perf", "cpu", "itimer", "perf:page-faults"] {
        let recorder = Recorder::at(4999).event(source);
        check(source, &record_unharmed(&recorder, &Target::c("asks_tracer").build(), &[mode]));
    }
    let musl = Target::c("asks_tracer").musl().build();
    check("cpu", &record_unharmed(&Recorder::at(4999).event("cpu"), &musl, &[mode]));
}

#[test]
fn a_tracer_that_was_asked_for_sees_no_samples() {
    for mode in ["stop", "born"] {
        each_source(mode, |source, recording| {
            assert_eq!(recording.folded().inclusive("traced_work"), 0, "{source} {mode}");
            let stopped = recording.stats().0["detail"]["settings"]["stopped"].to_string();
            assert!(stopped.contains("PTRACE_TRACEME"), "{source} {mode}: {stopped}");
        });
    }
}

#[test]
fn a_program_that_asks_its_parent_runs_and_its_other_threads_are_sampled() {
    for mode in ["parent", "raw", "again"] {
        each_source(mode, |source, recording| {
            let folded = recording.folded();
            assert_eq!(folded.inclusive("traced_work"), 0, "{source} {mode}: {folded:?}");
            // One timer for the process would signal any of its threads; and page faults come at other times.
            if ["perf", "cpu"].contains(&source) {
                assert!(folded.inclusive("other_work") > 0, "{source} {mode}: {folded:?}");
            }
        });
    }
}

#[test]
fn a_program_that_is_traced_from_its_start_is_not_sampled_by_traps() {
    each_source("exec", |source, recording| {
        let found = recording.folded().inclusive("executed_work");
        assert_eq!(found > 0, source != "perf:page-faults", "{source}: {found}");
    });
}

/// proot stands between a program and the kernel, also where the program reads about itself in /proc.
#[test]
fn a_program_runs_in_proot() {
    let program = Target::c("job").build();
    if Command::new("proot").arg("--version").stdout(Stdio::null()).status().is_err() {
        return skip(format_args!("no proot"));
    }
    for source in ["perf", "cpu"] {
        let recorder = Recorder::at(9973).event(source);
        let recording = record_unharmed(&recorder, Path::new("proot"), &[program.as_os_str()]);
        assert!(recording.folded().inclusive("parse") > 0, "{source}: {:?}", recording.folded());
        let source = recording.stats().source();
        assert!(!source.contains("kernel and user stacks") || source.contains("is traced"), "{source}");
    }
}
