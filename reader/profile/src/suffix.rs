//! Names of files that stand beside others.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// `path` with `suffix` at the end of its name.
pub fn with_suffix(path: &Path, suffix: impl AsRef<OsStr>) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
