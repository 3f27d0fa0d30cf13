//! Starts the command.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::program::{Program, ProgramError};

/// Starts `program` with `command` as its arguments (the name first) and `environment` added to ours.
/// It inherits our signal mask.
pub fn start(
    program: &Program,
    command: &[OsString],
    environment: Vec<(OsString, OsString)>,
) -> Result<Child, ProgramError> {
    spawn(program, prepared(program, command, environment))
}

/// The same away from the terminal: without input, with its output in `log`.
pub fn start_aside(
    program: &Program,
    command: &[OsString],
    environment: Vec<(OsString, OsString)>,
    log: File,
) -> Result<Child, ProgramError> {
    let mut process = prepared(program, command, environment);
    let errors = log.try_clone().map(Stdio::from).unwrap_or_else(|_| Stdio::null());
    process.stdin(Stdio::null()).stdout(log).stderr(errors);
    spawn(program, process)
}

fn prepared(program: &Program, command: &[OsString], environment: Vec<(OsString, OsString)>) -> Command {
    let mut process = if program.by_shell {
        let mut shell = Command::new("/bin/sh");
        shell.arg(&program.path);
        shell
    } else {
        let mut process = Command::new(&program.path);
        process.arg0(&command[0]);
        process
    };
    process.args(&command[1..]).envs(environment);
    process
}

fn spawn(program: &Program, mut process: Command) -> Result<Child, ProgramError> {
    process.spawn().map_err(|error| {
        let path = program.path.display().to_string();
        match error.kind() {
            io::ErrorKind::NotFound => ProgramError::NotFound { program: path },
            _ => ProgramError::NotExecutable { path, why: error.to_string() },
        }
    })
}

/// A descriptor that becomes readable when the process ends.
pub fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid as i32).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}
