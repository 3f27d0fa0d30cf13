//! An output file that is written atomically: to a temporary file next to it, renamed when complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::file_name::with_suffix;

/// A file being written. If dropped before [`StagedFile::commit`], the old contents stay.
#[derive(Debug)]
pub struct StagedFile {
    file: File,
    /// The temporary path and the final one; none for files that can only be written in place.
    staged: Option<(PathBuf, PathBuf)>,
}

impl StagedFile {
    /// Begins the file `path`. Devices and pipes, and files in directories that are closed to this user, are written
    /// in place.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(path: &Path) -> io::Result<Self> {
        // A symbolic link stays, and its target is replaced.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let before = fs::metadata(&target).ok();
        let in_place = || OpenOptions::new().write(true).create(true).truncate(true).open(path);
        if before.as_ref().is_some_and(|before| !before.is_file()) {
            return Ok(Self { file: in_place()?, staged: None });
        }
        if before.is_some() {
            // A file without write permission must not be replaced either.
            OpenOptions::new().write(true).open(&target)?;
        }
        let aside = with_suffix(&target, format!(".{}.part", std::process::id()));
        let file = match OpenOptions::new().write(true).create_new(true).open(&aside) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && before.is_some() => {
                return Ok(Self { file: in_place()?, staged: None });
            }
            opened => opened?,
        };
        let staged = Self { file, staged: Some((aside, target)) };
        if let Some(before) = before {
            staged.file.set_permissions(before.permissions())?;
        }
        Ok(staged)
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// If it cannot be renamed; the old contents then stay.
    pub fn commit(mut self) -> io::Result<()> {
        self.file.flush()?;
        let Some((aside, target)) = &self.staged else { return Ok(()) };
        fs::rename(aside, target)?;
        self.staged = None;
        Ok(())
    }
}

impl Write for StagedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if let Some((aside, _)) = &self.staged {
            let _ = fs::remove_file(aside);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finished_leaves_no_trace() {
        let directory = std::env::temp_dir().join(format!("selfwind-staged-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let (path, link) = (directory.join("x.svg"), directory.join("link.svg"));
        let mut file = StagedFile::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        drop(file);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);

        fs::write(&path, b"before").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut file = StagedFile::create(&link).unwrap();
        file.write_all(b"half").unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"before");
        let mut file = StagedFile::create(&link).unwrap();
        file.write_all(b"whole").unwrap();
        file.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_device_is_written_in_place() {
        let mut file = StagedFile::create(Path::new("/dev/null")).unwrap();
        file.write_all(b"x").unwrap();
        file.commit().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
