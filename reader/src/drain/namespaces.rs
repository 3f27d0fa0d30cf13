//! Processes with a /proc of another PID namespace (`unshare --mount-proc`, sandboxes): their regions name them by a pid that
//! means nothing here, or another process. Their real pid is usually that of the image which executed them, or of a child of a
//! process that was found so before. Otherwise all processes are searched for it.

use std::fs;
use std::time::{Duration, Instant};

use selfwind_profile::profile_file::Setting;
use shm_format::Identity;

use crate::proc::{self, Status};

/// After a search of all processes, the next one waits this many times as long as that took.
const PAUSE: u32 = 20;

/// The process that a region is of.
#[derive(Clone, Copy)]
pub(super) struct Located {
    /// As the region says, but with the real pid.
    pub(super) identity: Identity,
    /// The region says another pid.
    is_inner: bool,
    /// The pid is that of another process, and its own is not known.
    is_lost: bool,
}

/// The key of the setting that says which pid a process has here, if it is not the one that it has for itself; without a value if that is
/// not known.
pub(crate) const PID_HERE: &str = "pid here";

/// Finds processes.
#[derive(Default)]
pub(super) struct Finder {
    /// When all processes were last searched, and how long that took.
    searched: Option<(Instant, Duration)>,
}

impl Finder {
    /// Finds the process whose region says `identity`; `known` are running processes.
    pub(super) fn find(&mut self, identity: Identity, known: impl Iterator<Item = Located>) -> Located {
        let named = proc::start_time(identity.pid);
        if named == Some(identity.start_time) {
            return Located { identity, is_inner: false, is_lost: false };
        }
        // A process that ended has usually had a later id than this one.
        let may_be_inner = named.is_some() || identity.pid < std::process::id();
        let found = relative(&identity, known);
        match found.or_else(|| if may_be_inner { self.search(&identity) } else { None }) {
            Some(pid) => Located { identity: Identity { pid, ..identity }, is_inner: true, is_lost: false },
            // Usually it has ended.
            None => Located { identity, is_inner: false, is_lost: named.is_some() },
        }
    }

    /// Searches all processes, unless that has just been done.
    fn search(&mut self, identity: &Identity) -> Option<u32> {
        if self.searched.is_some_and(|(when, took)| when.elapsed() < took * PAUSE) {
            return None;
        }
        let began = Instant::now();
        let found = proc::processes().into_iter().find(|&pid| is_process(pid, identity));
        self.searched = Some((Instant::now(), began.elapsed()));
        found
    }
}

impl Located {
    /// The setting for a process that has the pid `own` for itself.
    pub(super) fn setting(&self, process: u32, own: u32) -> Option<Setting> {
        let pid = self.identity.pid;
        let value = if self.is_lost { String::new() } else { pid.to_string() };
        (pid != own || self.is_lost).then(|| Setting { process, key: PID_HERE.into(), value })
    }
}

/// The pid of the process, if it is one of the `known` or a child of one in another PID namespace.
fn relative(identity: &Identity, known: impl Iterator<Item = Located>) -> Option<u32> {
    let start_time = Some(identity.start_time);
    known
        .flat_map(|Located { identity: other, is_inner, .. }| {
            let itself = (Some(other.start_time) == start_time).then_some(other.pid);
            itself.into_iter().chain(if is_inner { children(other.pid) } else { Vec::new() })
        })
        .find(|&pid| is_process(pid, identity))
}

/// True if the process started at that time, and has that pid in the innermost namespace.
fn is_process(pid: u32, identity: &Identity) -> bool {
    proc::start_time(pid) == Some(identity.start_time)
        && Status::of_process(pid).is_ok_and(|status| status.inner_id() == Some(identity.pid))
}

/// The children of all threads of a process.
fn children(pid: u32) -> Vec<u32> {
    let of_thread = |tid| fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
    let listed =
        |list: String| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>();
    proc::threads(pid).unwrap_or_default().into_iter().flat_map(|tid| listed(of_thread(tid))).collect()
}
