//! Errors that come from a limit: what it is, its value, and what to do.

use std::io;

use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The error in words, with the limit that it comes from.
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

/// True for an error that may be over the next time.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// Lets this process have as many open files as it may: one for each process that it records. To be called when what it
/// starts has its own limit.
pub(crate) fn raise_open_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
