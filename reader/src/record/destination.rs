//! The output file of a recording. It is opened before the program is started, so that an unwritable file is an error in
//! time, and truncated only once the program is running, so that a mistyped command leaves the last profile alone.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// The name used without `-o`.
const DEFAULT_NAME: &str = "selfwind.data";

/// The output cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: cannot write the output: {cause}; choose another file with -o")]
pub(crate) struct DestinationError {
    path: String,
    cause: io::Error,
}

/// An output file that is opened, but not changed yet.
#[derive(Debug)]
pub(crate) struct Destination {
    file: File,
    path: PathBuf,
    /// The name as given, if it contains a `%p`.
    pattern: Option<PathBuf>,
    created: bool,
    /// The file to which the previous profile was renamed.
    kept: Option<PathBuf>,
}

impl Destination {
    /// Opens `path`. `None` means [`DEFAULT_NAME`], whose previous contents are kept as [`DEFAULT_NAME`] with `.old`.
    pub(super) fn prepare(path: Option<&Path>) -> Result<Self, DestinationError> {
        let pattern = path.filter(|path| path.as_os_str().as_bytes().windows(2).any(|pair| pair == b"%p"));
        let opened = match (path, pattern) {
            (_, Some(pattern)) => {
                let mut name = expand(pattern, std::process::id()).into_os_string();
                name.push(".part");
                PathBuf::from(name)
            }
            (Some(path), None) => path.to_owned(),
            (None, None) => PathBuf::from(DEFAULT_NAME),
        };
        let failed = |cause| DestinationError { path: opened.display().to_string(), cause };
        let mut kept = None;
        if path.is_none()
            && fs::metadata(&opened).is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0)
        {
            if let Ok(last) = File::open(&opened) {
                claim(&last).map_err(failed)?;
            }
            let old = PathBuf::from(format!("{DEFAULT_NAME}.old"));
            fs::rename(&opened, &old).map_err(failed)?;
            kept = Some(old);
        }
        let created = fs::symlink_metadata(&opened).is_err();
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).open(&opened).map_err(failed)?;
        claim(&file).map_err(failed)?;
        Ok(Self { file, pattern: pattern.map(Path::to_owned), path: opened, created, kept })
    }

    /// True unless it is a device or a pipe, which cannot be read back.
    pub(super) fn is_regular_file(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.is_file())
    }

    /// Empties the file and gives it its final name; `pid` stands for `%p`.
    pub(crate) fn commit(mut self, pid: u32) -> Result<(File, PathBuf), DestinationError> {
        let failed = |path: &Path, cause| DestinationError { path: path.display().to_string(), cause };
        if self.is_regular_file() {
            self.file.set_len(0).map_err(|cause| failed(&self.path, cause))?;
        }
        if let Some(pattern) = self.pattern.take() {
            let path = expand(&pattern, pid);
            fs::rename(&self.path, &path).map_err(|cause| failed(&path, cause))?;
            self.path = path;
        }
        Ok((self.file, self.path))
    }

    /// Undoes `prepare`: nothing was recorded.
    pub(super) fn abandon(self) {
        if self.created {
            let _ = fs::remove_file(&self.path);
        }
        if let Some(kept) = self.kept {
            let _ = fs::rename(kept, &self.path);
        }
    }
}

/// Locks a file for as long as it is open. If files cannot be locked there, other recorders go unnoticed.
fn claim(file: &File) -> io::Result<()> {
    let busy = file.metadata()?.is_file()
        && flock(file, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK);
    if busy { Err(io::Error::other("another selfwind is recording to it")) } else { Ok(()) }
}

/// Replaces each `%p` by `pid`.
fn expand(pattern: &Path, pid: u32) -> PathBuf {
    let mut bytes = pattern.as_os_str().as_bytes();
    let mut name = Vec::new();
    while let Some((&first, rest)) = bytes.split_first() {
        if bytes.starts_with(b"%p") {
            name.extend_from_slice(pid.to_string().as_bytes());
            bytes = &bytes[2..];
        } else {
            name.push(first);
            bytes = rest;
        }
    }
    PathBuf::from(OsString::from_vec(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn an_abandoned_output_leaves_no_trace() {
        let dir = std::env::temp_dir().join(format!("selfwind-destination-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let (new, old) = (dir.join("new"), dir.join("old"));
        fs::write(&old, b"before").unwrap();
        Destination::prepare(Some(&new)).unwrap().abandon();
        Destination::prepare(Some(&old)).unwrap().abandon();
        assert!(!new.exists());
        assert_eq!(fs::read(&old).unwrap(), b"before");

        let (mut file, path) = Destination::prepare(Some(&dir.join("a-%p-%p"))).unwrap().commit(7).unwrap();
        file.write_all(b"x").unwrap();
        assert_eq!(path, dir.join("a-7-7"));
        assert_eq!(fs::read(&path).unwrap(), b"x");
        let (_, path) = Destination::prepare(Some(&old)).unwrap().commit(7).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_file_that_is_being_recorded_to_is_left_alone() {
        let path = std::env::temp_dir().join(format!("selfwind-claimed-{}", std::process::id()));
        let (mut file, _) = Destination::prepare(Some(&path)).unwrap().commit(7).unwrap();
        file.write_all(b"first").unwrap();
        crate::resolve::hold(&file);
        let text = Destination::prepare(Some(&path)).unwrap_err().to_string();
        assert!(text.contains("another selfwind is recording to it; choose another file"), "{text}");
        assert_eq!(fs::read(&path).unwrap(), b"first");
        drop(file);
        Destination::prepare(Some(&path)).unwrap().abandon();
        fs::remove_file(&path).unwrap();
        // Anybody may write to a device.
        let null = Path::new("/dev/null");
        let _devices = [null, null].map(|path| Destination::prepare(Some(path)).unwrap());
    }

    #[test]
    fn an_unwritable_output_is_named() {
        for path in ["/nonexistent/x.data", "/", "/proc/selfwind"] {
            let text = Destination::prepare(Some(Path::new(path))).unwrap_err().to_string();
            assert!(text.starts_with(path) && text.contains("-o"), "{text}");
        }
    }
}
