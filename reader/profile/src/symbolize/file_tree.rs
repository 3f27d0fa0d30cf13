//! Finds ELF files below a directory by build-id, if they are not found by path.
//!
//! A tree is traversed only as far as necessary, and only once: the files on the way are remembered. Symbolic links are not
//! followed.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::image::{Image, build_id};

/// Maximum number of files examined in a tree.
const MOST_FILES: usize = 500_000;
/// The kernel's file systems: no ELF files, and an endless number of names.
const KERNEL_TREES: [i64; 3] = [0x9fa0, 0x6265_6572, 0x6367_7270];

/// A directory and what was found below it.
#[derive(Debug)]
pub struct FileTree {
    traversal: Mutex<Traversal>,
}

/// A traversal that can be continued.
#[derive(Debug)]
struct Traversal {
    /// Directories not yet read.
    ahead: Vec<PathBuf>,
    /// The files of the directory read last, in reverse order.
    files: Vec<PathBuf>,
    by_id: HashMap<Vec<u8>, Vec<PathBuf>>,
    looked_at: usize,
}

impl FileTree {
    /// A tree of which nothing has been read.
    pub fn new(root: PathBuf) -> Self {
        let traversal =
            Traversal { ahead: vec![root], files: Vec::new(), by_id: HashMap::new(), looked_at: 0 };
        FileTree { traversal: Mutex::new(traversal) }
    }

    /// The first file with this build-id for which `accept` returns something.
    pub(super) fn find<T>(&self, id: &[u8], mut accept: impl FnMut(Image) -> Option<T>) -> Option<T> {
        let mut traversal = self.traversal.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let known = traversal.by_id.get(id).cloned().unwrap_or_default();
        let open = |path: &Path| Image::open(path).ok().filter(|image| build_id(image.bytes()) == Some(id));
        if let Some(found) = known.iter().find_map(|path| accept(open(path)?)) {
            return Some(found);
        }
        while let Some(path) = traversal.next() {
            let Some(image) = elf(&path) else { continue };
            let Some(found) = build_id(image.bytes()) else { continue };
            let wanted = found == id;
            traversal.by_id.entry(found.to_vec()).or_default().push(path);
            if wanted && let Some(found) = accept(image) {
                return Some(found);
            }
        }
        None
    }

    /// True if it is too large to be searched completely.
    pub fn is_cut(&self) -> bool {
        let traversal = self.traversal.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        traversal.looked_at >= MOST_FILES
    }
}

impl Traversal {
    /// The next file.
    fn next(&mut self) -> Option<PathBuf> {
        loop {
            if self.looked_at >= MOST_FILES {
                return None;
            }
            if let Some(file) = self.files.pop() {
                self.looked_at += 1;
                return Some(file);
            }
            let directory = self.ahead.pop()?;
            if rustix::fs::statfs(&directory).is_ok_and(|fs| KERNEL_TREES.contains(&fs.f_type)) {
                continue;
            }
            self.looked_at += 1;
            let mut entries: Vec<_> = fs::read_dir(directory).into_iter().flatten().flatten().collect();
            entries.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.file_name()));
            for entry in entries {
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => self.ahead.push(entry.path()),
                    Ok(kind) if kind.is_file() => self.files.push(entry.path()),
                    _ => {}
                }
            }
        }
    }
}

/// The file, if it starts like an ELF file.
fn elf(path: &Path) -> Option<Image> {
    let mut magic = [0; 4];
    File::open(path).ok()?.read_exact(&mut magic).ok()?;
    if magic == *b"\x7fELF" { Image::open(path).ok() } else { None }
}
