//! Running programs, and `selfwind` attaching to them.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::binary::selfwind;
use crate::outcome::{Outcome, run_within};
use crate::scratch::Scratch;

/// Timeout of an attach; several times that of selfwind itself, for busy machines.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// A program that should run for two seconds and is not done by then is hung.
const TOO_LONG: Duration = Duration::from_secs(60);

/// A program started without the agent, to be attached to.
pub struct Guest {
    /// The process.
    pub child: Child,
    /// Its output.
    pub output: BufReader<ChildStdout>,
}

impl Guest {
    /// Starts it and waits until it is working.
    pub fn start(program: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().expect("it was just built");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("readable");
        assert_eq!(line, "ready\n", "{arguments:?}");
        Self { child, output }
    }

    /// Whether it says at once that this machine does not support what it is about.
    pub fn is_unsupported(program: &Path, arguments: &[&str]) -> bool {
        let mut command = Command::new(program);
        let mut child = command.args(arguments).stdout(Stdio::piped()).spawn().expect("it was just built");
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        output.read_line(&mut line).expect("readable");
        let _ = child.kill();
        child.wait().expect("our child");
        line == "unsupported\n"
    }

    /// Its process id.
    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Waits for its end. Returns status and remaining output.
    pub fn end(mut self) -> (Option<i32>, String) {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("our child") {
                break status.code();
            }
            if begin.elapsed() > TOO_LONG {
                let wchan = std::fs::read_to_string(format!("/proc/{}/stack", self.pid()));
                let _ = self.child.kill();
                panic!("hangs: {wchan:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let mut words = String::new();
        self.output.read_to_string(&mut words).expect("readable");
        (status, words)
    }
}

/// A program that answers each input line with a number.
pub struct Conversation {
    /// Its input.
    pub child: Child,
    /// Its output.
    pub input: ChildStdin,
    /// What it says.
    pub output: BufReader<ChildStdout>,
}

impl Conversation {
    /// Starts it and waits until it is ready.
    pub fn start(program: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        let mut child = command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it was just built");
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let mut begun = Self { child, input, output: BufReader::new(output) };
        assert_eq!(begun.line(), "ready", "{arguments:?}");
        begun
    }

    /// Its next line.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("readable");
        line.trim_end().to_owned()
    }

    /// The number it answers a line with.
    pub fn ask(&mut self) -> i64 {
        writeln!(self.input).expect("it reads");
        self.line().parse().expect("a number")
    }

    /// Lets it end; its last words.
    pub fn end(mut self) -> String {
        drop(self.input);
        let mut words = String::new();
        self.output.read_to_string(&mut words).expect("readable");
        assert_eq!(self.child.wait().expect("our child").code(), Some(0));
        words
    }
}

/// Flight recorders of a test of its own.
pub struct Attacher {
    /// Their directory.
    pub scratch: Scratch,
}

impl Attacher {
    /// None yet.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self { scratch: Scratch::new() }
    }

    /// `selfwind` with these arguments.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(selfwind());
        command.args(arguments).env("XDG_RUNTIME_DIR", self.scratch.path());
        command
    }

    /// What it says in the end.
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        run_within(&mut self.command(arguments), PATIENCE + Duration::from_secs(5))
            .unwrap_or_else(|said| panic!("selfwind {arguments:?} hangs: {said:?}"))
    }
}
