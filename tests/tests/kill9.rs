//! SIGKILL at any moment: a killed target leaves everything it committed; a killed recorder does not affect the target
//! and leaves a readable file, and the samples it had taken but not written go to the next recorder.
//!
//! `RECORDER_KILLS` sets the number of kills.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use selfwind_tests::outcome::shell_status;
use selfwind_tests::recording::{Recorder, folded, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::stats::Stats;
use selfwind_tests::target::Target;

/// Starts a recording of `spin` and waits until that is ready; returns it and the target's pid.
fn start(recorder: &Recorder, scratch: &Scratch, arguments: &[&str]) -> (Child, Pid) {
    let program = Target::c("spin").build();
    let mut command = recorder.command(&scratch.join("selfwind.data"), &program, arguments);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn().expect("selfwind runs");
    let mut said = String::new();
    let mut pipe = BufReader::new(child.stdout.as_mut().expect("piped"));
    pipe.read_line(&mut said).expect("a line");
    assert_eq!(said, "ready\n");
    let target = wait_for("the target", || child_of(child.id()));
    (child, target)
}

fn child_of(parent: u32) -> Option<Pid> {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok().map(Pid::from_raw)
}

/// The CPU time of a process, in seconds.
fn cpu_time(pid: Pid) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    Some(ticks / 100.0)
}

fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Number of samples in a profile that is being written.
fn samples(file: &Path) -> Option<u64> {
    let mut command = Command::new(selfwind_tests::binary::selfwind());
    let output = command.args(["stats", "--json"]).arg(file).output().ok()?;
    let text = output.status.success().then(|| String::from_utf8(output.stdout).ok())??;
    Some(Stats::parse(&text).number("samples"))
}

/// Waits until the target has used this many seconds of CPU time.
fn let_run(target: Pid, seconds: f64) -> f64 {
    wait_for("CPU time", || cpu_time(target).filter(|used| *used >= seconds))
}

#[test]
fn a_killed_target_leaves_all_it_committed() {
    for frequency in [499, 9999] {
        // A virtual machine on a busy host may have no tick for a long time.
        let missing: Vec<String> = (0..3).map_while(|_| missing_after_kill(frequency)).collect();
        assert!(missing.len() < 3, "three times: {missing:?}");
    }
}

/// What a killed target should have left and did not.
fn missing_after_kill(frequency: u32) -> Option<String> {
    let scratch = Scratch::new();
    let (mut recorder, target) = start(&Recorder::at(frequency), &scratch, &[]);
    let used = let_run(target, 1.0);
    kill(target, Signal::SIGKILL).expect("our grandchild");
    assert_eq!(shell_status(recorder.wait().expect("our child")), 137);
    let file = scratch.join("selfwind.data");
    let stats = stats(&file);
    stats.assert_adds_up();
    let folded = folded(&file);
    assert_eq!(folded.total(), stats.number("weight"));
    for function in ["spin_first", "spin_second", "spin_third"] {
        assert!(folded.inclusive(function) > 0, "{function}: {folded:?}");
    }
    // Nothing that was due before the kill is missing without being counted: three threads, CPU timers.
    let due = used * f64::from(frequency);
    let weight = (stats.number("weight") + stats.causes("lost_weight")) as f64;
    (weight < 0.9 * due).then(|| format!("{weight} of {due} at {frequency} Hz"))
}

#[test]
fn a_killed_recorder_leaves_the_target_unharmed_and_a_readable_file() {
    let scratch = Scratch::new();
    let (mut recorder, target) = start(&Recorder::at(999), &scratch, &["6000"]);
    let_run(target, 1.5);
    recorder.kill().expect("our child");
    let mut output = recorder.stdout.take().expect("piped");
    recorder.wait().expect("our child");

    // The file as the recorder left it.
    let file = scratch.join("selfwind.data");
    let stats = stats(&file);
    assert!(stats.number("samples") > 0, "{:#}", stats.0);
    assert_eq!(stats.0["detail"]["complete"], false, "{:#}", stats.0);
    assert_eq!(folded(&file).total(), stats.number("weight"));

    // The target runs to its end and prints its last line to the pipe that this test holds.
    assert!(cpu_time(target).is_some(), "the target died with its recorder");
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("the target's output");
    assert_eq!(rest, "spun\n");
}

/// A process that outlives its recorder, killed when dropped, even if the test fails.
struct Orphan(Pid);

impl Drop for Orphan {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = kill(self.0, Signal::SIGKILL);
    }
}

/// Nothing is lost between two recorders, wherever the first one was killed: what its file lacks is in the second
/// one's.
#[test]
fn a_killed_recorders_unwritten_samples_go_to_its_successor() {
    let kills = std::env::var("RECORDER_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(4);
    let mut twice = 0;
    for round in 0..kills {
        let scratch = Scratch::new();
        let (mut recorder, target) = start(&Recorder::at(9999), &scratch, &[]);
        let _orphan = Orphan(target);
        let first_file = scratch.join("selfwind.data");
        wait_for("samples of the first recorder", || (samples(&first_file)? > 100).then_some(()));
        // At a different moment each time, between flushes and during them.
        std::thread::sleep(Duration::from_micros(round * 7919 % 400_000));
        recorder.kill().expect("our child");
        recorder.wait().expect("our child");
        let first = stats(&first_file);
        let file = scratch.join("second.data");
        let mut command = Command::new(selfwind_tests::binary::selfwind());
        command.args(["record", "-q", "-p", &target.to_string(), "-o"]).arg(&file).stdin(Stdio::null());
        let mut second = command.spawn().expect("selfwind runs");
        wait_for("samples of the second recorder", || (samples(&file)? > 100).then_some(()));
        kill(target, Signal::SIGKILL).expect("orphaned");
        assert_eq!(shell_status(second.wait().expect("our child")), 0);
        let stats = stats(&file);
        stats.assert_adds_up();
        // What the second one neither has nor accounts for, the first must have.
        let (written, earlier) = (first.number("samples"), stats.detail(&["accounting", "earlier"]));
        assert!(written >= earlier, "the first wrote {written} of {earlier}: {:#}", stats.0);
        assert!(stats.detail(&["torn"]) <= 3, "{:#}", stats.0);
        assert_eq!(stats.detail(&["undecodable"]) + stats.detail(&["violations"]), 0, "{:#}", stats.0);
        // Killed after writing and before acknowledging.
        twice += u64::from(written > earlier);
    }
    println!("{kills} recorders killed, {twice} of them between writing and saying so");
}

#[test]
fn a_stopped_recorder_blocks_nobody() {
    let scratch = Scratch::new();
    let (mut recorder, target) = start(&Recorder::at(9999), &scratch, &["1500"]);
    let_run(target, 0.3);
    let pid = Pid::from_raw(recorder.id() as i32);
    kill(pid, Signal::SIGSTOP).expect("our child");
    // To its end, without a reader: what the pool cannot hold is counted as lost.
    wait_for("the target's end", || {
        let status = std::fs::read_to_string(format!("/proc/{target}/stat")).ok()?;
        status.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z')).then_some(())
    });
    kill(pid, Signal::SIGCONT).expect("our child");
    let mut output = recorder.stdout.take().expect("piped");
    assert_eq!(shell_status(recorder.wait().expect("our child")), 39);
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("the target's output");
    assert_eq!(rest, "spun\n");
    let stats = stats(&scratch.join("selfwind.data"));
    stats.assert_adds_up();
    assert!(stats.number("samples") > 0, "{:#}", stats.0);
}

#[test]
fn an_interrupt_ends_both_properly() {
    let scratch = Scratch::new();
    let (mut recorder, target) = start(&Recorder::at(999), &scratch, &[]);
    let_run(target, 0.5);
    // To the whole process group, as a terminal does.
    nix::sys::signal::killpg(Pid::from_raw(recorder.id() as i32), Signal::SIGINT).expect("our group");
    assert_eq!(shell_status(recorder.wait().expect("our child")), 130);
    let stats = stats(&scratch.join("selfwind.data"));
    assert_eq!(stats.0["detail"]["complete"], true, "{:#}", stats.0);
    stats.assert_adds_up();
    assert!(stats.number("samples") > 0);
}

#[test]
fn a_stopped_thread_blocks_nobody() {
    let scratch = Scratch::new();
    let (mut recorder, target) = start(&Recorder::at(999), &scratch, &[]);
    let_run(target, 0.3);
    kill(target, Signal::SIGSTOP).expect("our grandchild");
    std::thread::sleep(Duration::from_millis(300));
    kill(target, Signal::SIGCONT).expect("our grandchild");
    let before = cpu_time(target).expect("alive");
    let_run(target, before + 0.3);
    kill(target, Signal::SIGTERM).expect("our grandchild");
    assert_eq!(shell_status(recorder.wait().expect("our child")), 143);
    stats(&scratch.join("selfwind.data")).assert_adds_up();
}

#[test]
fn a_new_recording_after_killed_ones_is_whole() {
    for _ in 0..3 {
        let scratch = Scratch::new();
        let (mut recorder, target) = start(&Recorder::at(999), &scratch, &[]);
        let_run(target, 0.1);
        recorder.kill().expect("our child");
        recorder.wait().expect("our child");
        kill(target, Signal::SIGKILL).expect("orphaned, not reaped by us");
    }
    let recording = Recorder::default().record(&Target::c("spin").build(), &["100"]);
    assert_eq!(recording.outcome.status, 39);
    recording.assert_adds_up();
    assert!(recording.stats().number("samples") > 0);
}

/// Runs `selfwind list`.
#[test]
fn list_copes_with_what_killed_processes_left() {
    let output =
        Command::new(selfwind_tests::binary::selfwind()).arg("list").output().expect("selfwind runs");
    assert!(output.status.success(), "{output:?}");
}
