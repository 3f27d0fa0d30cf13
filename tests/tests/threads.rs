//! Threads, however they are created and whatever they do: all their CPU time is in the profile, none is disturbed, and
//! an idle one costs next to nothing.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::recording::{Recorder, folded, record_unharmed, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;
use selfwind_tests::target::Target;
use serde_json::Value;

/// A program that runs without the agent until it is attached to.
struct Guest {
    child: Child,
    output: BufReader<ChildStdout>,
    scratch: Scratch,
}

impl Guest {
    fn start(target: &Target, arguments: &[&str]) -> Self {
        let mut command = Command::new(target.build());
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it was just built");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("readable");
        assert_eq!(line, "ready\n");
        Self { child, output, scratch: Scratch::new() }
    }

    fn selfwind(&self, arguments: &[&str]) -> Outcome {
        let mut command = Command::new(selfwind());
        command.args(arguments).args(["-p", &self.child.id().to_string()]);
        run(command.env("XDG_RUNTIME_DIR", self.scratch.path()))
    }

    fn dump(&self) -> Value {
        let outcome = self.selfwind(&["dump", "--json", "--timeout", "5"]);
        assert_eq!(outcome.status, 0, "{}", outcome.stderr);
        serde_json::from_str(&outcome.stdout).expect("JSON")
    }

    /// Ends its input and waits for its last words.
    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let mut words = String::new();
        self.output.read_to_string(&mut words).expect("readable");
        assert!(self.child.wait().expect("our child").success());
        words
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Nothing to do where it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Threads created without `pthread_create` are sampled for all their CPU time, while the main thread waits in a system
/// call that a signal would end.
#[test]
fn threads_not_made_by_pthread_create_are_sampled() {
    let target = Target::c("strange_threads").with("pthread", &["-pthread"]);
    for (mode, threads) in [("c11", 4.0), ("notify", 1.0), ("clone", 1.0)] {
        for source in ["cpu", "perf"] {
            let recorder = Recorder::at(997).event(source);
            let recording = record_unharmed(&recorder, &target.build(), &[mode, "1500"]);
            let folded = recording.folded();
            let (found, expected) = (folded.inclusive("strange_work") as f64, 1.5 * 997.0 * threads);
            assert!((found / expected - 1.0).abs() < 0.15, "{mode} {source}: {found} of {expected}");
        }
    }
}

#[test]
fn hundreds_of_an_attached_program_answer_every_time() {
    let guest = Guest::start(&Target::c("idle_threads").with("pthread", &["-pthread"]), &["400", "wait"]);
    let attached = guest.selfwind(&["attach"]);
    assert_eq!(attached.status, 0, "{}", attached.stderr);
    for round in 0..3 {
        let dump = guest.dump();
        assert_eq!(dump["answered"], 401, "round {round}");
    }
    let again = guest.selfwind(&["record", "-q", "-d", "0.2", "-F", "49", "-o", "/dev/null"]);
    assert_eq!(again.status, 0, "{}", again.stderr);
    assert_eq!(guest.end(), "ok\n");
}

#[test]
fn a_thread_that_waits_for_all_signals_gets_no_tick() {
    let guest = Guest::start(&Target::c("signal_waiter").with("pthread", &["-pthread"]), &[]);
    let pid = Pid::from_raw(guest.child.id() as i32);
    let file = guest.scratch.join("waiter.data");
    let path = file.to_str().expect("UTF-8");
    let outcome = guest.selfwind(&["record", "-F", "997", "-d", "1", "-o", path]);
    assert_eq!(outcome.status, 0, "{}", outcome.stderr);
    // Nothing can be recorded, and the reason given is the right one.
    assert!(outcome.stderr.contains("block") && !outcome.stderr.contains("CPU time"), "{}", outcome.stderr);
    stats(&file).assert_adds_up();
    let attached = guest.selfwind(&["attach"]);
    assert_eq!(attached.status, 0, "{}", attached.stderr);
    for _ in 0..2 {
        let dump = guest.selfwind(&["dump"]);
        assert!(dump.stdout.contains("in sigwait"), "{dump:?}");
    }
    kill(pid, Signal::SIGTERM).expect("our child");
    assert_eq!(guest.end(), "ok\n");
}

/// If the user may not create timers, only ITIMER_PROF is left; a program that uses it keeps it.
#[test]
fn a_timer_of_the_programs_own_stays_its_own() {
    let program = Target::c("own_sigprof").with("pthread", &["-pthread"]).build();
    let scratch = Scratch::new();
    let mut alone = Command::new("bash");
    alone.args(["-c", "ulimit -i 0; exec \"$@\"", "bash"]).arg(&program).arg("itimer");
    let mut recorded = Command::new("bash");
    recorded.args(["-c", "ulimit -i 0; exec \"$@\"", "bash"]).arg(selfwind());
    recorded.args(["record", "-F", "997", "-e", "cpu", "-o"]).arg(scratch.join("own.data")).arg("--");
    let (alone, recorded) = (run(&mut alone), run(recorded.arg(&program).arg("itimer")));
    assert_eq!((recorded.status, &recorded.stdout), (alone.status, &alone.stdout), "{}", recorded.stderr);
    assert!(recorded.stderr.contains("uses ITIMER_PROF itself"), "{}", recorded.stderr);
}

#[test]
fn an_idle_thread_costs_next_to_nothing() {
    let program = Target::c("idle_threads").with("pthread", &["-pthread"]).build();
    for more in [&["600"][..], &["600", "locked"]] {
        let words = |outcome: Outcome| -> Vec<i64> {
            assert_eq!(outcome.status, 0, "{outcome:?}");
            outcome.stdout.split_whitespace().filter_map(|word| word.parse().ok()).collect()
        };
        let scratch = Scratch::new();
        let alone = words(run(Command::new(&program).args(more)));
        let mut command = Command::new(selfwind());
        command
            .args(["record", "-q", "-o"])
            .arg(scratch.join("idle.data"))
            .arg("--")
            .arg(&program)
            .args(more);
        let recorded = words(run(&mut command));
        println!("{more:?}: alone {alone:?}, recorded {recorded:?} (resident, mapped)");
        assert!(recorded[0] - alone[0] <= 4096, "{alone:?} {recorded:?}");
        // Room for two signal frames, which are larger where processors have more registers.
        // SAFETY: reads the auxiliary vector.
        let frame = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as i64;
        assert!(recorded[1] - alone[1] <= (56 << 10) + 2 * frame, "{alone:?} {recorded:?}");
        assert!(folded(&scratch.join("idle.data")).total() < 10_000);
    }
}

/// The kernel's workers run no code of the program, so no sample is missing.
#[test]
fn kernel_workers() {
    let program = Target::c("kernel_workers").build();
    if run(&mut Command::new(&program)).stdout == "unsupported\n" {
        return skip("no io_uring here");
    }
    let scratch = Scratch::new();
    for event in ["cpu", "perf", "wall"] {
        let mut record = Command::new(selfwind());
        record.args(["record", "-e", event, "-o"]).arg(scratch.join("x.data")).arg("--").arg(&program);
        let outcome = run(&mut record);
        assert_eq!((outcome.status, &*outcome.stdout), (0, "0 of 60 failed\n"), "{event}");
        assert!(outcome.stderr.contains("these threads are the kernel's"), "{event}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains("blocked"), "{event}: {}", outcome.stderr);
    }
}
