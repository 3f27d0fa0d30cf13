//! File names: without their directory, and with another suffix.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// `path` with `suffix` at the end of its name.
pub fn with_suffix(path: &Path, suffix: impl AsRef<OsStr>) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The last part of a path, or all of a name like `[vdso]`.
pub fn base_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
