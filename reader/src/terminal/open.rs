//! Opens a file in the user's desktop application for it.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

/// Opens files on freedesktop.org desktops.
const OPENER: &str = "xdg-open";

/// The file could not be opened. It exists all the same.
#[derive(Debug, thiserror::Error)]
#[error("cannot open {path} ({why}); open it yourself: file://{path}")]
pub(crate) struct OpenError {
    path: String,
    why: String,
}

/// Opens a file.
///
/// # Errors
/// If there is no desktop, or no application for such files.
pub(crate) fn open(path: &Path) -> Result<(), OpenError> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let failed = |why: String| OpenError { path: absolute.display().to_string(), why };
    if !is_on_path(OPENER) {
        return Err(failed(format!("{OPENER} is not installed (package xdg-utils)")));
    }
    let mut command = Command::new(OPENER);
    command.arg(&absolute).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failed(format!("{OPENER} found no program to show it: {status}"))),
        Err(error) => Err(failed(format!("{OPENER}: {error}"))),
    }
}

fn is_on_path(program: impl AsRef<OsStr>) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program.as_ref()).is_file())
}
