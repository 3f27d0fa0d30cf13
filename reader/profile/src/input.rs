//! The profile that a command reads: a file or a pipe.
//!
//! A profile is read twice, which a pipe does not allow. So its bytes are copied to an unnamed temporary file.

use std::borrow::Cow;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;

/// Stands for standard input.
const STANDARD_INPUT: &str = "-";
/// Where the copy of a pipe is reopened.
const DESCRIPTORS: &str = "/proc/self/fd";

/// A profile that can be opened several times.
#[derive(Debug)]
pub struct Input {
    path: PathBuf,
    /// The copy of a pipe's contents.
    _kept: Option<File>,
}

impl Input {
    /// Uses a file as it is; copies standard input (`-`) or a pipe to the end.
    ///
    /// # Errors
    /// If standard input is a terminal, or a pipe cannot be copied.
    pub fn open(path: &Path) -> anyhow::Result<Input> {
        let standard_input = path == Path::new(STANDARD_INPUT);
        let is_pipe = |file: fs::Metadata| file.file_type().is_fifo() || file.file_type().is_socket();
        if !standard_input && !fs::metadata(path).is_ok_and(is_pipe) {
            return Ok(Input { path: path.to_owned(), _kept: None });
        }
        if standard_input && io::stdin().is_terminal() {
            anyhow::bail!(
                "`-` is standard input, which is a terminal here; name a file, or pipe a profile into this command"
            );
        }
        let kept = if standard_input {
            keep(&mut io::stdin().lock())
        } else {
            File::open(path).and_then(|mut pipe| keep(&mut pipe))
        };
        let kept = kept.with_context(|| format!("{}: cannot copy it to a temporary file", path.display()))?;
        let path = PathBuf::from(format!("{DESCRIPTORS}/{}", kept.as_raw_fd()));
        Ok(Input { path, _kept: Some(kept) })
    }

    /// The path to open.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The name of a profile in messages.
pub fn name(path: &Path) -> Cow<'_, str> {
    if path.starts_with(DESCRIPTORS) { "piped profile".into() } else { path.to_string_lossy() }
}

/// Copies `pipe` to an unnamed file, which is deleted when its descriptor is closed.
fn keep(pipe: &mut impl Read) -> io::Result<File> {
    let path = std::env::temp_dir().join(format!("selfwind-input-{}", std::process::id()));
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    fs::remove_file(&path)?;
    io::copy(pipe, &mut file)?;
    Ok(file)
}
