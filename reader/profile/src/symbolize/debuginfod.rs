//! Fetches debug files from a debuginfod server, through the client program of elfutils and its cache.
//!
//! Servers are asked only if the user requests it, because they learn what is profiled.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::image::hex;

/// The client program.
#[derive(Debug, Clone)]
pub struct Debuginfod {
    /// `debuginfod-find`, searched in PATH if it has no directory. It reads `DEBUGINFOD_URLS` and the like.
    pub program: PathBuf,
}

impl Default for Debuginfod {
    fn default() -> Self {
        Debuginfod { program: PathBuf::from("debuginfod-find") }
    }
}

impl Debuginfod {
    /// Why no server can be asked, and what to do.
    pub fn problem(&self) -> Option<String> {
        if self.installed().is_none() {
            let program = self.program.display();
            return Some(format!(
                "{program} is not installed (Debian: apt-get install debuginfod); no debug files are fetched"
            ));
        }
        let servers = std::env::var_os("DEBUGINFOD_URLS").unwrap_or_default();
        let blank = servers.as_bytes().iter().all(u8::is_ascii_whitespace);
        // A client named by its path has its own list of servers.
        (blank && self.program.parent() == Some(Path::new(""))).then(|| {
            "DEBUGINFOD_URLS names no server (for example https://debuginfod.debian.net); no debug files are fetched".into()
        })
    }

    fn installed(&self) -> Option<PathBuf> {
        if self.program.parent() != Some(Path::new("")) {
            return self.program.exists().then(|| self.program.clone());
        }
        let directories = std::env::var_os("PATH")?;
        std::env::split_paths(&directories).map(|path| path.join(&self.program)).find(|path| path.is_file())
    }

    /// Fetches the debug file of a build-id and returns its path. The client has its own time limits.
    pub(super) fn debug_file(&self, id: &[u8]) -> Option<PathBuf> {
        if id.is_empty() {
            return None;
        }
        let mut client = Command::new(self.installed()?);
        client.args(["debuginfo", &hex(id)]).stdin(Stdio::null()).stderr(Stdio::null());
        let output = client.output().ok().filter(|output| output.status.success())?;
        let path = output.stdout.trim_ascii_end();
        (!path.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(path)))
    }
}
