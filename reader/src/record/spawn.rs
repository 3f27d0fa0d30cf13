//! Starts the command.
//!
//! The recorder blocks its signals before the command exists, so that no signal caused by or meant for the command can kill
//! the recorder. The command must never notice: it starts with the recorder's original signal mask.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::Mode;
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, waitpid};

use crate::record::closed_descriptors::closed_by_caller;
use crate::record::program::{Kind, Program, ProgramError};

/// The command, running or ended.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    status: Option<ExitStatus>,
}

impl Child {
    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.pid.as_raw_pid() as u32
    }

    /// Waits for its end and returns its exit status.
    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            match self.look(WaitOptions::empty()) {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Its exit status, if it has ended.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.look(WaitOptions::NOHANG)
    }

    fn look(&mut self, options: WaitOptions) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            let ended = waitpid(Some(self.pid), options)?;
            self.status = ended.map(|(_, status)| ExitStatus::from_raw(status.as_raw()));
        }
        Ok(self.status)
    }
}

/// Starts `program` with the arguments `command` (the name first), `environment` added to the recorder's, and the signal mask
/// `mask`. With a `log`, it is kept off the terminal: it has no input, and its output goes to the log.
pub(crate) fn start(
    program: &Program,
    command: &[OsString],
    environment: &[(OsString, OsString)],
    mask: &SigSet,
    log: Option<&File>,
) -> Result<Child, ProgramError> {
    spawn(program, &arguments(program, command), environment, mask, log).map_err(|errno| {
        let path = program.path.display().to_string();
        match errno {
            Errno::ENOENT => ProgramError::Missing { program: path },
            _ => ProgramError::Unexecutable { path, why: io::Error::from(errno).to_string() },
        }
    })
}

/// The arguments; a file that the kernel cannot execute is run as a shell script.
fn arguments(program: &Program, command: &[OsString]) -> Vec<OsString> {
    let mut arguments = command.to_vec();
    if program.kind == Kind::ShellScript {
        arguments.splice(..1, ["/bin/sh".into(), program.path.clone().into()]);
    }
    arguments
}

fn spawn(
    program: &Program,
    arguments: &[OsString],
    environment: &[(OsString, OsString)],
    mask: &SigSet,
    log: Option<&File>,
) -> nix::Result<Child> {
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_flags(PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF)?;
    attributes.set_sigmask(mask)?;
    // The recorder ignores SIGPIPE to report a closed pipe as an error; the command gets the default.
    attributes.set_sigdefault(&SigSet::from(Signal::SIGPIPE))?;
    let mut files = PosixSpawnFileActions::init()?;
    if let Some(log) = log {
        files.add_open(0, "/dev/null", OFlag::O_RDONLY, Mode::empty())?;
        files.add_dup2(log.as_raw_fd(), 1)?;
        files.add_dup2(log.as_raw_fd(), 2)?;
    } else {
        for descriptor in closed_by_caller() {
            files.add_close(descriptor)?;
        }
    }
    let path = if program.kind == Kind::ShellScript { "/bin/sh".as_ref() } else { program.path.as_path() };
    let arguments = arguments.iter().map(|argument| c_string(argument)).collect::<nix::Result<Vec<_>>>()?;
    let added = |name: &OsStr| environment.iter().any(|(added, _)| added == name);
    let inherited = std::env::vars_os().filter(|(name, _)| !added(name));
    let variables = inherited.chain(environment.iter().cloned()).map(|(mut variable, value)| {
        variable.push("=");
        variable.push(value);
        c_string(&variable)
    });
    let variables = variables.collect::<nix::Result<Vec<_>>>()?;
    let pid = posix_spawn(path, &files, &attributes, &arguments, &variables)?;
    let pid = Pid::from_raw(pid.as_raw()).ok_or(Errno::ESRCH)?;
    Ok(Child { pid, status: None })
}

fn c_string(text: &OsStr) -> nix::Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| Errno::EINVAL)
}

/// A descriptor that becomes readable when the process ends.
pub(crate) fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid as i32).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}
