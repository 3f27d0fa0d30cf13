//! Why a profile cannot be read, in words for the user.

use std::io;
use std::os::unix::fs::MetadataExt;

use nix::unistd::User;

use super::header::{OLDEST, VERSION};

/// Why a profile cannot be read. Each message is one line: the cause, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file cannot be opened.
    #[error("{path}: {cause}; {}", way_out(path, cause))]
    Open {
        /// The path as given.
        path: String,
        /// The system's error.
        cause: io::Error,
    },
    /// Reading failed.
    #[error("{path}: cannot read it: {cause}")]
    Read {
        /// The path as given.
        path: String,
        /// The system's error.
        cause: io::Error,
    },
    /// It was read, and its copy cannot be written.
    #[error("{path}: cannot write its copy: {cause}")]
    Copy {
        /// The path as given.
        path: String,
        /// The system's error.
        cause: io::Error,
    },
    /// No bytes at all: the recorder ended before its first write.
    #[error("{path}: the file is empty; record again")]
    Empty {
        /// The path as given.
        path: String,
    },
    /// The magic is missing.
    #[error(
        "{path}: not a selfwind profile (it does not begin with SELFWIND); name a file written by `selfwind record`"
    )]
    NotAProfile {
        /// The path as given.
        path: String,
    },
    /// perf's own format.
    #[error(
        "{path}: a perf.data file, not a selfwind profile; `selfwind import {path}` converts it, `perf report -i {path}` shows it (`record -o` writes that format for names that end in perf.data; choose another name for a profile)"
    )]
    PerfData {
        /// The path as given.
        path: String,
    },
    /// Another version of the format.
    #[error(
        "{path}: profile version {found}, but this selfwind reads versions {OLDEST} to {VERSION}; use the selfwind that recorded it, or record again"
    )]
    Version {
        /// The path as given.
        path: String,
        /// The version in the file.
        found: u32,
    },
    /// The first block is damaged.
    #[error("{path}: damaged at byte {offset} ({what}), before the first sample; record again")]
    Corrupt {
        /// The path as given.
        path: String,
        /// Where the damaged block begins.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// What to do about a file that cannot be opened.
fn way_out(path: &str, cause: &io::Error) -> String {
    if cause.kind() != io::ErrorKind::PermissionDenied {
        return "name a profile written by `selfwind record`".into();
    }
    match std::fs::metadata(path) {
        Ok(file) => {
            let name = User::from_uid(file.uid().into()).ok().flatten().map(|user| user.name);
            let owner = name.unwrap_or_else(|| format!("user {}", file.uid()));
            format!("it belongs to {owner}, who can `chmod a+r` it; or read it as {owner}")
        }
        Err(_) => "you may not enter its directory; read it as the user who recorded it".into(),
    }
}
