//! A preloaded program with a flight recorder: it keeps its latest samples, without a reader.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::binary::{agent, selfwind};
use crate::scratch::Scratch;
use crate::target::Target;

/// A program under the agent, with a runtime directory of its own. Killed at the end.
pub struct Flight {
    scratch: Scratch,
    child: Child,
}

impl Flight {
    /// `spin`, started with `settings` in its environment, and computing.
    pub fn start(settings: &[(&str, &str)]) -> Self {
        Self::of(Command::new(Target::c("spin").build()).arg("60000").env("LD_PRELOAD", agent()), settings)
    }

    /// A program that says "ready".
    pub fn of(command: &mut Command, settings: &[(&str, &str)]) -> Self {
        let scratch = Scratch::new();
        let runtime = scratch.join("run");
        fs::create_dir(&runtime).expect("a new directory");
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).expect("our directory");
        command.env("XDG_RUNTIME_DIR", &runtime);
        command.envs(settings.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut said).expect("a line");
        assert_eq!(said, "ready\n");
        Self { scratch, child }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A file of the directory that goes with it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("our child");
    }

    /// `record -p` with these options, into the file of this name.
    pub fn record(&self, options: &[&str], file: &str) -> Command {
        let mut command = Command::new(selfwind());
        command.arg("record").args(options).arg("-p").arg(self.pid().to_string());
        command.arg("-o").arg(self.file(file)).env("XDG_RUNTIME_DIR", self.scratch.join("run"));
        command
    }

    /// The file of its region.
    pub fn region(&self) -> PathBuf {
        let files = fs::read_dir(self.scratch.join("run/selfwind/flight")).expect("a flight directory");
        let mut paths = files.map(|file| file.expect("an entry").path());
        paths.find(|path| path.extension().is_some_and(|e| e == "region")).expect("a region")
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
