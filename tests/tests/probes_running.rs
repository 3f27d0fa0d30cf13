//! Sources that need the agent from the program's start (`lock`, `mmap`, `tp:`), with running processes: a
//! refusal whose remedy works, and correct numbers for a process that was started accordingly.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::recording::stats;
use selfwind_tests::scratch::Scratch;
use selfwind_tests::sites::folded;
use selfwind_tests::target::Target;

/// `heap_grows` with a runtime directory of its own, executed step by step. Killed at the end.
struct Growing {
    scratch: Scratch,
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Growing {
    /// Started by a shell, with `environment` before it, and one step done.
    fn start(environment: &str) -> Self {
        let scratch = Scratch::new();
        let runtime = scratch.join("run");
        fs::create_dir(&runtime).expect("a new directory");
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).expect("our directory");
        let mut command = Command::new("/bin/sh");
        let program = Target::c("heap_grows").build();
        let ours = "selfwind() { \"$SELFWIND_BIN\" \"$@\"; }";
        command.args(["-c", &format!("{ours}; {environment} exec \"$0\"")]).arg(&program);
        command.env("SELFWIND_BIN", selfwind()).env("XDG_RUNTIME_DIR", &runtime);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell runs");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut growing = Self { scratch, child, output };
        growing.step();
        growing
    }

    /// One step; returns what `in_steady` and `in_growing` hold after it, according to the program.
    fn step(&mut self) -> [u64; 2] {
        self.child.stdin.as_mut().expect("piped").write_all(b"x").expect("a pipe");
        let mut said = String::new();
        self.output.read_line(&mut said).expect("a line");
        let numbers: Vec<u64> = said.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        numbers.try_into().expect("two numbers")
    }

    fn file(&self) -> PathBuf {
        self.scratch.join("heap.data")
    }

    /// `record -p` of it.
    fn record(&self, options: &[&str]) -> Command {
        let mut command = Command::new(selfwind());
        command.arg("record").args(options).arg("-p").arg(self.child.id().to_string());
        command.arg("-o").arg(self.file()).env("XDG_RUNTIME_DIR", self.scratch.join("run"));
        command
    }

    /// Records it during one step; returns what it holds then, and the recorder's outcome.
    fn record_step(&mut self, options: &[&str]) -> ([u64; 2], Outcome) {
        let mut recorder = self.record(options).stderr(Stdio::piped()).spawn().expect("selfwind runs");
        let mut error: BufReader<ChildStderr> = BufReader::new(recorder.stderr.take().expect("piped"));
        let mut said = String::new();
        while !said.contains("recording process") {
            assert_ne!(error.read_line(&mut said).expect("a pipe"), 0, "not recording: {said}");
        }
        let held = self.step();
        kill(Pid::from_raw(recorder.id() as i32), Signal::SIGINT).expect("our child");
        while error.read_line(&mut said).expect("a pipe") != 0 {}
        let status = recorder.wait().expect("our child").code().expect("a status");
        (held, Outcome { status, stdout: String::new(), stderr: said })
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The environment that a refusal recommends.
fn way_out(refusal: &str) -> &str {
    let start = refusal.find("LD_PRELOAD=").unwrap_or_else(|| panic!("no way out: {refusal}"));
    refusal[start..].trim_end()
}

#[test]
fn sources_that_need_the_agent_from_the_start_are_refused() {
    let mut growing = Growing::start("");
    for event in ["lock", "lock:all", "cpu,lock", "alloc,lock", "mmap", "wall,mmap", "tp:app:*"] {
        let outcome = run(&mut growing.record(&["-e", event]));
        assert_eq!(outcome.status, 125, "{event}: {outcome:?}");
        for part in ["was started without the agent", "`selfwind record -e", "SELFWIND_EVENT="] {
            assert!(outcome.stderr.contains(part), "{event}: {}", outcome.stderr);
        }
        assert!(!growing.file().exists(), "{event}: a profile is left");
    }
    assert_eq!(growing.step(), [30_000, 100_000], "it goes on");
}

/// A process started as the refusal recommends can be recorded at any time: all its allocations, at the rate that it
/// was started with, requested or not.
#[test]
fn the_remedy_that_a_refusal_names_works() {
    let refusal = run(&mut Growing::start("").record(&["-e", "alloc:all,lock"])).stderr;
    for asked in [&[][..], &["-e", "alloc:all"], &["-e", "wall,alloc:all"]] {
        let mut growing = Growing::start(way_out(&refusal));
        let (held, outcome) = growing.record_step(asked);
        assert_eq!(outcome.status, 0, "{asked:?}: {outcome:?}");
        stats(&growing.file()).assert_adds_up();
        let found =
            ["in_steady", "in_growing"].map(|site| folded(&growing.file(), "inuse_space").inclusive(site));
        assert_eq!(found, held, "{asked:?}: {}", outcome.stderr);
        assert_eq!(folded(&growing.file(), "alloc_objects").inclusive("in_passing"), 100, "{asked:?}");
        let rest = growing.record_step(asked).0;
        assert_eq!(
            folded(&growing.file(), "alloc_space").inclusive("in_growing"),
            50_000,
            "{asked:?}: {rest:?}"
        );
    }
}

/// A thread tells of its events in batches. A few, fewer than a batch, are there all the same.
#[test]
fn a_few_events_of_a_running_process_are_recorded() {
    let mut growing = Growing::start("LD_PRELOAD=$(selfwind agent-path -e alloc) SELFWIND_EVENT=alloc:16384");
    let (_, outcome) = growing.record_step(&[]);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let stats = stats(&growing.file());
    stats.assert_adds_up();
    assert!((1..64).contains(&stats.number("samples")), "{:#}", stats.0);
}

/// The rate of a running process cannot be changed, and another library cannot be loaded.
#[test]
fn other_sources_than_those_of_the_start_are_refused() {
    let growing = Growing::start("LD_PRELOAD=$(selfwind agent-path -e alloc:all) SELFWIND_EVENT=alloc:all");
    for event in ["alloc", "lock", "tp:app:*"] {
        let outcome = run(&mut growing.record(&["-e", event]));
        assert_eq!(outcome.status, 125, "{event}: {outcome:?}");
        assert!(outcome.stderr.contains("it has recorded alloc:all"), "{event}: {}", outcome.stderr);
    }
    // The default library does not support allocations.
    let plain = Growing::start("LD_PRELOAD=$(selfwind agent-path) SELFWIND_EVENT=cpu");
    assert_eq!(run(&mut plain.record(&["-e", "alloc:all"])).status, 125);
    // Nor does a library for one source interpose what another one needs.
    let growing =
        Growing::start("LD_PRELOAD=$(selfwind agent-path -e alloc) SELFWIND_EVENT=alloc:all,lock:all");
    let outcome = run(&mut growing.record(&["-e", "lock:all"]));
    assert_eq!(outcome.status, 125, "{outcome:?}");
    assert!(outcome.stderr.contains("it has recorded alloc:all since"), "{}", outcome.stderr);
    // What the environment asks for chooses the library.
    let growing = Growing::start("export SELFWIND_EVENT=alloc:all; LD_PRELOAD=$(selfwind agent-path)");
    assert_eq!(run(&mut growing.record(&["-e", "alloc:all", "-d", "0.1"])).status, 0);
}

/// A snapshot uses the rate of the process, also after that was killed.
#[test]
fn a_snapshot_has_the_rate_of_the_process() {
    let mut growing = Growing::start("LD_PRELOAD=$(selfwind agent-path -e alloc) SELFWIND_EVENT=alloc:all");
    let assert_held = |growing: &Growing| {
        let outcome = run(&mut growing.record(&["--snapshot"]));
        assert_eq!(outcome.status, 0, "{outcome:?}");
        let held = folded(&growing.file(), "inuse_space");
        assert_eq!(["in_steady", "in_growing"].map(|site| held.inclusive(site)), [30_000, 50_000]);
    };
    assert_held(&growing);
    growing.child.kill().expect("our child");
    growing.child.wait().expect("our child");
    assert_held(&growing);
}
