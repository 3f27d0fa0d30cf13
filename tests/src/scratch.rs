//! A directory for one test's files, removed with its owner unless the test fails.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::binary::target_dir;

/// A directory of its own.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes an empty directory.
    #[expect(clippy::new_without_default, reason = "it has an effect on the disk")]
    pub fn new() -> Self {
        let path = target_dir().join("scratch").join(unique());
        let _ = fs::remove_dir_all(&path); // left by a process of the same id
        fs::create_dir_all(&path).expect("the target directory is writable");
        Self { path }
    }

    /// Makes an empty directory that every user can reach, wherever the tests are.
    pub fn for_all_users() -> Self {
        let path = std::env::temp_dir().join(format!("selfwind-scratch-{}", unique()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a temporary directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
        Self { path }
    }

    /// Copies a program into it, and returns where it is.
    pub fn copy(&self, program: &Path) -> PathBuf {
        let copy = self.path.join(program.file_name().expect("a program's path"));
        fs::copy(program, &copy).expect("it was just built");
        copy
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// A name that no other directory of the tests has.
fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("files kept in {}", self.path.display());
        } else {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}
