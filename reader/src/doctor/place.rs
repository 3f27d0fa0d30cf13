//! Examines the places of shared memory, agent and unwind tables. Without a session directory and an agent nothing can be recorded.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};

use super::finding::Finding;
use super::value::bytes;
use crate::tables::cache::Cache;
use crate::target::agent_file;
use crate::target::session::{self, Session};

/// Enough for the regions (512 KiB each) of a hundred processes.
const COMFORTABLE: u64 = 64 << 20;

pub(super) fn examine() -> Vec<Finding> {
    let mut findings = vec![session_directory(), agent()];
    findings.extend(shared_memory());
    findings.push(table_cache());
    findings
}

fn session_directory() -> Finding {
    let name = "session-directory";
    match Session::create() {
        Ok(session) => {
            let base = session.directory().parent().map_or_else(PathBuf::new, Path::to_owned);
            session.remove();
            let first = session::bases().first().is_some_and(|first| *first == base);
            let in_memory = base.starts_with("/dev/shm") || base.starts_with("/run");
            let value = base.display().to_string();
            if in_memory || first {
                Finding::good(name, value, "recordings can be made")
            } else {
                Finding::limited(
                    name,
                    value,
                    "the preferred directories cannot be used; samples may be written to a disk",
                    "set XDG_RUNTIME_DIR, or make /dev/shm writable",
                )
            }
        }
        Err(error) => Finding::blocked(
            name,
            error.to_string(),
            "nothing can be recorded",
            "give this user a writable XDG_RUNTIME_DIR, /dev/shm or /tmp",
        ),
    }
}

fn agent() -> Finding {
    let name = "agent-file";
    let path = match agent_file::unpack() {
        Ok(path) => path,
        Err(error) => {
            return Finding::blocked(
                name,
                error.to_string(),
                "no program can be started with the agent",
                "give this user a writable XDG_CACHE_HOME or XDG_RUNTIME_DIR",
            );
        }
    };
    let value = path.display().to_string();
    let noexec = statvfs(&path).is_ok_and(|status| status.f_flag.contains(StatVfsMountFlags::NOEXEC));
    if noexec {
        return Finding::blocked(
            name,
            value,
            "it is on a file system mounted noexec, so the loader cannot map it",
            "set XDG_CACHE_HOME to a directory on another file system",
        );
    }
    let is_for_all = path.metadata().is_ok_and(|metadata| metadata.mode() & 0o004 != 0);
    let whose = if is_for_all {
        "programs of all users can load it"
    } else {
        "programs of this user can load it; other users cannot"
    };
    Finding::good(name, value, whose)
}

fn shared_memory() -> Option<Finding> {
    let name = "shared-memory";
    let status = match statvfs("/dev/shm") {
        Ok(status) => status,
        Err(error) => {
            return Some(Finding::limited(
                name,
                error.to_string(),
                "samples go to another directory",
                "mount a tmpfs at /dev/shm, or set XDG_RUNTIME_DIR",
            ));
        }
    };
    let (size, free) = (status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize);
    let value = format!("/dev/shm {} of {} free", bytes(free), bytes(size));
    Some(if free < COMFORTABLE {
        Finding::limited(
            name,
            value,
            "each process needs about half a MiB; processes that find no space are not recorded",
            "free some space, or enlarge it (docker: --shm-size, mount -o remount,size=...)",
        )
    } else {
        Finding::good(name, value, format!("enough for about {} processes", free / (512 << 10)))
    })
}

fn table_cache() -> Finding {
    let name = "table-cache";
    match Cache::find() {
        Ok(Some(cache)) if cache.is_writable() => {
            let count = std::fs::read_dir(cache.directory()).map_or(0, Iterator::count);
            let value = format!("{} with {count} files", cache.directory().display());
            Finding::good(name, value, "unwind tables are built once per binary")
        }
        Ok(found) => Finding::limited(
            name,
            found.map_or_else(|| "none".into(), |cache| format!("{} read-only", cache.directory().display())),
            "programs unwind from .eh_frame, which is slower",
            "give this user a writable XDG_CACHE_HOME",
        ),
        Err(error) => Finding::limited(
            name,
            error.to_string(),
            "programs unwind from .eh_frame, which is slower",
            "make it a directory of this user that others cannot write to",
        ),
    }
}
