//! Explains errors that come from a resource limit or a lack of permission: which one, and what to do.

use std::io;

use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::geteuid;

/// The error, with the limit that caused it.
pub(crate) fn explain(error: &io::Error) -> String {
    let limit = |resource| getrlimit(resource).map_or(0, |(soft, _)| soft);
    match error.raw_os_error() {
        Some(libc::EMFILE) => format!(
            "{error}: the recorder is limited to {} (ulimit -n), and needs one for each process and some more",
            limit(Resource::RLIMIT_NOFILE)
        ),
        Some(libc::EFBIG) => {
            format!("{error}: files are limited to {} bytes (ulimit -f)", limit(Resource::RLIMIT_FSIZE))
        }
        Some(libc::ENOSPC | libc::EDQUOT) => {
            format!("{error}: free some space there, or choose another file")
        }
        _ => error.to_string(),
    }
}

/// The way out for a user who may not inspect a process.
pub(crate) fn of_permission() -> &'static str {
    match geteuid().is_root() {
        true => {
            ", although selfwind runs as root: a security module, or a lack of capabilities (CAP_SYS_PTRACE) in this container or user namespace"
        }
        false => "; run selfwind as its user, or as root",
    }
}

/// True for an error that may be gone at the next attempt.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// Raises the soft limit of open files to the hard limit, as each recorded process needs one. Call it after the command has been
/// started, so that the command keeps its limit.
pub(crate) fn raise_open_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
