//! Processes with a /proc of another PID namespace (`unshare --mount-proc`, sandboxes): their regions name them by a pid that
//! means nothing here, or another process. Their real pid is that of the image which executed them, or of a child of a
//! process that was found so before.

use std::fs;

use shm_format::Identity;

use crate::proc::{self, Status};

/// The process that a region is of.
#[derive(Clone, Copy)]
pub(super) struct Located {
    /// As the region says, but with the real pid.
    pub(super) identity: Identity,
    /// The region says another pid.
    pub(super) is_inner: bool,
}

impl Located {
    /// Finds the process whose region says `identity`; `known` are running processes.
    pub(super) fn find(identity: Identity, known: impl Iterator<Item = Located>) -> Located {
        match real_pid(&identity, known) {
            Some(pid) => Located { identity: Identity { pid, ..identity }, is_inner: true },
            None => Located { identity, is_inner: false },
        }
    }
}

/// The real pid, if it is another one.
fn real_pid(identity: &Identity, known: impl Iterator<Item = Located>) -> Option<u32> {
    let start_time = Some(identity.start_time);
    if proc::start_time(identity.pid) == start_time {
        return None;
    }
    known
        .flat_map(|Located { identity: other, is_inner }| {
            let itself = (Some(other.start_time) == start_time).then_some(other.pid);
            itself.into_iter().chain(if is_inner { children(other.pid) } else { Vec::new() })
        })
        .find(|&pid| proc::start_time(pid) == start_time && inner_pid(pid) == Some(identity.pid))
}

/// The pid in the innermost namespace.
fn inner_pid(pid: u32) -> Option<u32> {
    Status::of_process(pid).ok()?.inner_id()
}

/// The children of all threads of a process.
fn children(pid: u32) -> Vec<u32> {
    let of_thread = |tid| fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
    let listed =
        |list: String| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>();
    proc::threads(pid).unwrap_or_default().into_iter().flat_map(|tid| listed(of_thread(tid))).collect()
}
