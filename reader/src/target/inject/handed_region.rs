//! The region for a process that cannot access the reader's directories: of another user, in a container, in a chroot.
//!
//! The file is created here, where all tools of this user find it, and its descriptor is passed to the agent through a socket that
//! the agent creates; the reader duplicates the other end of that socket (pidfd_getfd(2), Linux 5.6). With it goes the process's
//! directory in /proc, which there may be none of in its root directory.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use selfwind_profile::private_directory::private_directory;

use crate::proc;
use crate::target::inject::error::InjectError;
use crate::target::region_name::RegionName;
use crate::target::session;

/// A region that the agent may request.
#[derive(Debug)]
pub(super) struct HandedRegion {
    pid: u32,
    nonce: u64,
    path: PathBuf,
    handed: AtomicBool,
}

impl HandedRegion {
    /// Chooses its name in `directory`; the file is not created yet.
    pub(super) fn new(pid: i32, directory: &Path) -> Result<Self, InjectError> {
        let failed = |error| InjectError::HandOver { pid, error };
        let mut nonce = [0; 8];
        File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut nonce)).map_err(failed)?;
        let (pid, nonce) = (pid as u32, u64::from_le_bytes(nonce));
        let start = proc::start_time(pid).unwrap_or_default();
        let path = directory.join(format!("{pid}-{start}-{nonce:016x}.region"));
        Ok(Self { pid, nonce, path, handed: AtomicBool::new(false) })
    }

    /// The setting by which the agent knows of it.
    pub(super) fn setting(&self) -> String {
        format!("{}-{:016x}", self.pid, self.nonce)
    }

    /// Creates the file and sends it through the other end of `socket`, a descriptor of the process. Only once.
    pub(super) fn hand_over(&self, socket: i32) -> Result<(), InjectError> {
        if self.handed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let pid = self.pid as i32;
        let failed = |error: io::Error| InjectError::HandOver { pid, error };
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.custom_flags(libc::O_NOFOLLOW).open(&self.path).map_err(failed)?;
        self.send(pid, socket, &file).map_err(|error| {
            let _ = std::fs::remove_file(&self.path);
            failed(error)
        })
    }

    /// Removes the unused file.
    pub(super) fn remove(&self) {
        if self.handed.load(Ordering::Relaxed) {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Removes older regions of the process, as the agent does for those that it creates itself.
    pub(super) fn replace_others(&self) {
        let (Some(directory), Some(own)) =
            (self.path.parent(), self.path.file_name().and_then(RegionName::parse))
        else {
            return;
        };
        if !self.handed.load(Ordering::Relaxed) {
            return;
        }
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let Some(name) = RegionName::parse(&entry.file_name()) else { continue };
            if (name.pid, name.start_time) == (own.pid, own.start_time) && name.nonce != own.nonce {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    fn send(&self, pid: i32, socket: i32, file: &File) -> io::Result<()> {
        let process = pidfd_open(Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?, PidfdFlags::empty())?;
        let socket = pidfd_getfd(&process, socket, PidfdGetfdFlags::empty())?;
        let directory = process_directory(pid);
        let files: Vec<_> = [Some(file), directory.as_ref()].into_iter().flatten().map(File::as_fd).collect();
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut message = SendAncillaryBuffer::new(&mut room);
        message.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(&socket, &[IoSlice::new(&[1])], &mut message, SendFlags::empty())?;
        Ok(())
    }
}

/// What /proc/self is for the process. `None` if it has other process ids than /proc here.
fn process_directory(pid: i32) -> Option<File> {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/pid")).ok();
    let is_same = namespace(&pid.to_string())? == namespace("self")?;
    is_same.then(|| File::open(format!("/proc/{pid}")).ok()).flatten()
}

/// The directory of this user's flight recorders.
pub(super) fn flight_directory() -> Result<PathBuf, InjectError> {
    let mut tried = Vec::new();
    for base in session::bases() {
        let directory = base.join(session::FLIGHT);
        match private_directory(&base).and_then(|()| private_directory(&directory)) {
            Ok(()) => return Ok(directory),
            Err(error) => tried.push(format!("{}: {error}", base.display())),
        }
    }
    Err(InjectError::NoDirectory(tried.join("; ")))
}
