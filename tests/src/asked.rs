//! A running program, as the target of dumps and other visits.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::binary::agent;
use crate::outcome::shell_status;
use crate::scratch::Scratch;
use crate::target::Target;

/// A preloaded program that says `ready` and waits for the end of its input.
pub struct Asked {
    child: Child,
    directory: Scratch,
}

impl Asked {
    /// Starts `command` with the agent, and waits until it is ready.
    pub fn start(mut command: Command) -> Self {
        let directory = Scratch::new();
        let child = command
            .env("LD_PRELOAD", agent())
            .env("SELFWIND_DIR", directory.join(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let mut asked = Self { child, directory };
        let mut said = String::new();
        let output = asked.child.stdout.as_mut().expect("piped");
        BufReader::with_capacity(1, output).read_line(&mut said).expect("a line");
        assert_eq!(said, "ready\n");
        asked
    }

    /// Starts `tests/targets/asked.c`, sampled by timers: it knows their signal.
    pub fn program(arguments: &[&str]) -> Self {
        let mut command = Command::new(Target::c("asked").build());
        command.args(arguments).env("SELFWIND_EVENT", "cpu");
        Self::start(command)
    }

    /// The same, sampled by `event` at 997 Hz.
    pub fn sampled_by(event: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(Target::c("asked").build());
        command.args(arguments).env("SELFWIND_EVENT", event).env("SELFWIND_FREQ", "997");
        Self::start(command)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The directory of its region, which `SELFWIND_DIR` names.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Lets the program end. Returns its output, and its status as a shell reports it.
    pub fn end(&mut self) -> (String, i32) {
        drop(self.child.stdin.take());
        let mut said = String::new();
        self.child.stdout.take().expect("piped").read_to_string(&mut said).expect("text");
        (said, shell_status(self.child.wait().expect("our child")))
    }

    /// The file of its region.
    pub fn region(&self) -> PathBuf {
        let name = format!("{}-", self.pid());
        let files = std::fs::read_dir(self.directory.join("")).expect("the session").flatten();
        let mut regions = files.filter(|file| file.file_name().to_string_lossy().starts_with(&name));
        regions.next().expect("a region").path()
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
