//! Periodic snapshots of a recording (`record --every`), and `diff` of two of them.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use selfwind_tests::binary::selfwind;
use selfwind_tests::folded::Folded;
use selfwind_tests::outcome::run;
use selfwind_tests::recording::{read, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::target::Target;

/// A recording of `heap_grows` in progress.
struct Growing {
    scratch: Scratch,
    recorder: Child,
}

impl Growing {
    fn start(flags: &[&str]) -> Self {
        let scratch = Scratch::new();
        let mut command = Command::new(selfwind());
        command.args(["record", "-e", "alloc:all"]).args(flags).arg("-o").arg(scratch.join("heap.data"));
        command.arg("--").arg(Target::c("heap_grows").build());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let recorder = command.spawn().expect("selfwind runs");
        Self { scratch, recorder }
    }

    /// One step; returns what `in_steady` and `in_growing` hold after it, according to the program.
    fn step(&mut self) -> [u64; 2] {
        self.recorder.stdin.as_mut().expect("piped").write_all(b"x").expect("a pipe");
        let mut said = String::new();
        BufReader::new(self.recorder.stdout.as_mut().expect("piped")).read_line(&mut said).expect("a line");
        let numbers: Vec<u64> = said.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        numbers.try_into().expect("two numbers")
    }

    fn snapshot(&self, number: u32) -> PathBuf {
        self.scratch.join(&format!("heap.data.{number}"))
    }

    fn wait_for(&self, number: u32) -> PathBuf {
        let (path, begin) = (self.snapshot(number), Instant::now());
        while !path.exists() {
            assert!(begin.elapsed() < Duration::from_secs(120), "no {}", path.display());
            std::thread::sleep(Duration::from_millis(10));
        }
        path
    }

    /// The first snapshot started after this call, and its number.
    fn next(&self) -> (PathBuf, u32) {
        let there = (1..).find(|&number| !self.snapshot(number).exists()).expect("an end");
        (self.wait_for(there + 1), there + 1)
    }

    /// Ends the program; returns the profile and the recorder's output.
    fn end(mut self) -> (Scratch, PathBuf, String) {
        drop(self.recorder.stdin.take());
        let mut said = String::new();
        self.recorder.stderr.take().expect("piped").read_to_string(&mut said).expect("a pipe");
        assert!(self.recorder.wait().expect("our child").success(), "{said}");
        let file = self.scratch.join("heap.data");
        (self.scratch, file, said)
    }
}

/// Live bytes of each site in a complete profile.
fn held(file: &Path) -> [u64; 3] {
    let told = stats(file);
    told.assert_adds_up();
    assert_eq!(told.0["detail"]["complete"], true, "{}", file.display());
    let value = ["export", "-f", "folded", "--event", "inuse_space"];
    let profile = Folded::parse(&read(&value, file));
    ["in_steady", "in_growing", "in_passing"].map(|site| profile.inclusive(site))
}

#[test]
fn each_snapshot_has_the_live_memory_of_its_time() {
    let mut growing = Growing::start(&["--every", "300ms"]);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let [steady, grown] = growing.step();
        let (file, number) = growing.next();
        assert_eq!(held(&file), [steady, grown, 0], "{}", file.display());
        seen.push((number, grown, file));
    }
    // Allocated between two of them, and live before.
    let (scratch, whole, said) = growing.end();
    assert_eq!(held(&whole), [30_000, 150_000, 0]);
    let last =
        (1..).find(|number| !scratch.join(&format!("heap.data.{number}")).exists()).expect("an end") - 1;
    let names =
        ["1", &last.to_string()].map(|n| scratch.join(&format!("heap.data.{n}")).display().to_string());
    assert!(said.contains(&format!("snapshots: {} to {}", names[0], names[1])), "{said}");
    let partial = std::fs::read_dir(scratch.path())
        .expect("ours")
        .filter(|file| file.as_ref().expect("an entry").file_name().to_string_lossy().ends_with(".part"));
    assert_eq!(partial.count(), 0, "half a snapshot is left");
    for pair in seen.windows(2) {
        assert_growth(&pair[0].2, &pair[1].2, pair[1].1 - pair[0].1);
    }
}

/// Asserts that only `in_growing` and its callers have grown from `a` to `b`, by `bytes` bytes.
fn assert_growth(a: &Path, b: &Path, bytes: u64) {
    let diff = |flags: &[&str]| {
        let mut command = Command::new(selfwind());
        let outcome = run(command.args(["diff", "--event", "inuse_space"]).args(flags).args([a, b]));
        assert_eq!(outcome.status, 0, "{}", outcome.stderr);
        outcome.stdout
    };
    let document: serde_json::Value =
        serde_json::from_str(&diff(&["--json", "--sort", "total"])).expect("JSON");
    let rows = document["functions"].as_array().expect("a list");
    let growth = |name: &str| {
        let row = rows.iter().find(|row| row["function"] == name).expect(name);
        row["total_growth"].as_i64().expect("a number")
    };
    assert_eq!((growth("in_growing"), growth("in_steady")), (bytes as i64, 0));
    let text = diff(&["--sort", "total"]);
    println!("{text}");
    let row = text.lines().find(|line| line.contains("in_growing")).expect("a row");
    assert!(row.contains("+50,000"), "{text}");
    assert!(!text.contains("in_steady"), "what has not grown is shown:\n{text}");
    let folded = diff(&["--folded"]);
    let stack = folded.lines().find(|line| line.contains("in_steady")).expect("a stack");
    assert!(stack.ends_with(" 30000 30000"), "unscaled: {stack}");
}

#[test]
fn a_signal_takes_another_snapshot() {
    let mut growing = Growing::start(&["--every", "1h"]);
    let [steady, grown] = growing.step();
    kill(Pid::from_raw(growing.recorder.id() as i32), Signal::SIGUSR2).expect("our child");
    assert_eq!(held(&growing.wait_for(1)), [steady, grown, 0]);
    let (scratch, _, said) = growing.end();
    assert!(said.contains(&format!("snapshot: {}", scratch.join("heap.data.1").display())), "{said}");
}

#[test]
fn a_flight_recorder_takes_snapshots_too() {
    let mut growing = Growing::start(&["--snapshot", "--every", "300ms"]);
    let [steady, grown] = growing.step();
    let (file, number) = growing.next();
    // The next one exists, so this one is complete.
    growing.wait_for(number + 1);
    assert_eq!(held(&file), [steady, grown, 0]);
    growing.end();
}

#[test]
fn invalid_options_are_refused() {
    let refused = |arguments: &[&str], part: &str| {
        let outcome = run(Command::new(selfwind()).arg("record").args(arguments));
        assert!(outcome.status != 0 && outcome.stderr.contains(part), "{arguments:?}: {outcome:?}");
    };
    refused(&["--every", "soon", "--", "true"], "such as 500ms, 10s, 5m or 1h");
    refused(&["--every", "0", "--", "true"], "expected 100ms or more");
    refused(&["--every", "1s", "-o", "/dev/null", "--", "true"], "must be a regular file");
    refused(&["--every", "1s", "--snapshot", "-p", "1"], "leave out --snapshot");
}
