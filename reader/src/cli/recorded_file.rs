//! The value of `record -o`.

use std::path::{Path, PathBuf};

use selfwind_profile::output::Format;

/// The help of `record -o`.
pub(super) fn help() -> String {
    let extensions = Format::ALL.map(|format| format!(".{}", format.extension())).join(", ");
    format!(
        "Output file: a profile, or another format if its extension is one of {extensions}; %p is the process id [default: selfwind.data]"
    )
}

/// Rejects `-`: standard output belongs to the command.
pub(super) fn checked(path: PathBuf) -> Result<PathBuf, String> {
    if path == Path::new("-") {
        return Err("standard output belongs to the command; name a file".into());
    }
    Ok(path)
}
