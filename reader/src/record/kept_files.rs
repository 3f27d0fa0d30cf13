//! Files of modules, kept open because they may be replaced before their names are looked up: a program that is built again, a
//! library that is updated.
//!
//! What must never happen here: that a file system cannot be unmounted, or a directory not removed, because of an open file. So only
//! files of mounts that this program uses anyway are kept open, and none of file systems that rename an open file instead of
//! removing it.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit};
use rustix::fs::{AtFlags, CWD, StatxFlags, statfs, statx};

use selfwind_profile::profile_file::ModuleInfo;

use crate::proc::{Mapping, mappings};
use crate::process_files;

/// Most files, and the part of the descriptors that this program may have.
const MOST: usize = 256;
const SHARE: u64 = 4;
/// Largest sum of their sizes, in bytes: their space is not free before the end, even if they are removed.
const LARGEST_SUM: u64 = 4 << 30;

/// File systems that rename open files: NFS, FUSE, CIFS, SMB2.
const RENAMING: [i64; 4] = [0x6969, 0x6573_5546, 0xff53_4d42, 0xfe53_4d42];

pub(super) struct KeptFiles {
    /// Mounts that this program uses anyway.
    mounts: Vec<u64>,
    /// Number and bytes of further files.
    room: (usize, u64),
    /// Paths and build-ids of the modules that were seen.
    seen: HashSet<(PathBuf, Vec<u8>)>,
    /// By their paths.
    files: Vec<(PathBuf, File)>,
    /// Their devices and inodes.
    known: HashSet<(u64, u64)>,
    /// The image whose mappings were read last.
    last: Option<(u32, Vec<Mapping>)>,
}

impl KeptFiles {
    pub(super) fn new() -> Self {
        let removes = |path: &&str| statfs(*path).is_ok_and(|system| !RENAMING.contains(&system.f_type));
        let mounts = ["/", "."].into_iter().filter(removes).filter_map(|path| mount(CWD, path)).collect();
        let (descriptors, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
        let room = (MOST.min((descriptors / SHARE) as usize), LARGEST_SUM);
        Self { mounts, room, seen: HashSet::new(), files: Vec::new(), known: HashSet::new(), last: None }
    }

    /// Keeps the file of a module of a process that sees the same files as this program.
    pub(super) fn find(&mut self, pid: u32, module: &ModuleInfo) {
        let path = &module.path;
        if !self.seen.insert((path.clone(), module.build_id.clone())) {
            return;
        }
        let Ok(found) = process_files::open(path) else { return };
        let was_replaced =
            self.mapping(pid, module).is_some_and(|mapping| !process_files::is_mapped(&found, mapping));
        let mapped = was_replaced.then(|| process_files::open_mapped(pid, module.start).ok()).flatten();
        let _ = self.keep(path, mapped.unwrap_or(found));
    }

    /// Keeps the file, which its process has at `path`. Gives it back if it must not be kept.
    pub(super) fn keep(&mut self, path: &Path, file: File) -> Result<(), File> {
        let is_of_mounts = mount(&file, "").is_some_and(|mount| self.mounts.contains(&mount));
        let Some(metadata) = file.metadata().ok().filter(|_| is_of_mounts) else { return Err(file) };
        let identity = (metadata.dev(), metadata.ino());
        if self.known.contains(&identity) {
            return Ok(());
        }
        let (files, bytes) = self.room;
        let Some(room) = files.checked_sub(1).zip(bytes.checked_sub(metadata.len())) else {
            return Err(file);
        };
        self.room = room;
        self.known.insert(identity);
        self.files.push((path.to_owned(), file));
        Ok(())
    }

    /// The files whose paths are those of other files now.
    pub(super) fn replaced(&self) -> impl Iterator<Item = &(PathBuf, File)> {
        self.files.iter().filter(|(path, file)| {
            let kept = file.metadata().ok().zip(fs::metadata(path).ok());
            !kept.is_some_and(|(kept, here)| process_files::is_same(&kept, &here))
        })
    }

    /// Where the module was mapped, which is not up to date if something else is there by now.
    fn mapping(&mut self, pid: u32, module: &ModuleInfo) -> Option<&Mapping> {
        let at = |mappings: &[Mapping]| {
            mappings.iter().position(|mapping| (mapping.start..mapping.end).contains(&module.start))
        };
        let is_known =
            self.last.as_ref().is_some_and(|(image, known)| *image == module.process && at(known).is_some());
        if !is_known {
            self.last = Some((module.process, mappings(pid).ok()?));
        }
        let (_, known) = self.last.as_ref()?;
        known.get(at(known)?)
    }
}

/// The number of the mount of a file; `None` before Linux 5.8.
fn mount(directory: impl AsFd, path: impl AsRef<Path>) -> Option<u64> {
    let found = statx(directory, path.as_ref(), AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
}
