//! The files of modules, as their processes see them.
//!
//! A process may have another root directory or mount namespace, as in a container or a sandbox. When the recording ends, both may be gone,
//! and with the files the names of its functions. So a file that this program does not have is copied once it is mapped, in a
//! thread of its own. What must never happen: that a file stays open longer than it takes to copy it, because its file
//! system could not be unmounted, or that a copy is left behind.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use nix::fcntl::OFlag;
use selfwind_profile::private_directory::{cache_directory, private_directory};
use selfwind_profile::profile_file::{Event, FileIdentity, ModuleInfo};
use selfwind_profile::symbolize::FileCopy;

use crate::drain::namespaces::PID_HERE;
use crate::proc;
use crate::target::clock;

/// Largest file that is copied, in bytes.
const LARGEST: u64 = 1 << 30;
/// Largest sum of all copies, in bytes.
const LARGEST_SUM: u64 = 4 << 30;
/// Most copies: each has a descriptor until the end.
const MOST: usize = 512;

struct Image {
    pid: u32,
    sees_other_files: OnceCell<bool>,
}

impl Image {
    fn of(pid: u32) -> Self {
        Self { pid, sees_other_files: OnceCell::new() }
    }
}

/// Identifies the files of the running images' modules.
pub(super) struct ModuleFiles {
    /// Copy files, because their names will be looked up.
    with_copies: bool,
    /// Running images, by their numbers.
    images: HashMap<u32, Image>,
    copier: Option<Copier>,
    /// The copies at the end of the recording.
    copies: Vec<(PathBuf, File)>,
}

impl ModuleFiles {
    pub(super) fn new(with_copies: bool) -> Self {
        Self { with_copies, images: HashMap::new(), copier: None, copies: Vec::new() }
    }

    /// Observes an event. Adds the identity of its file to a module without a build-id.
    pub(super) fn identify(&mut self, event: &mut Event) {
        match event {
            Event::Process(info) => drop(self.images.insert(info.id, Image::of(info.pid))),
            Event::Setting(setting) if setting.key == PID_HERE => {
                self.images.insert(setting.process, Image::of(setting.value.parse().unwrap_or(0)));
            }
            Event::ProcessEnd(end) => drop(self.images.remove(&end.process)),
            Event::Module(module) => {
                let image = self.images.get(&module.process);
                if module.build_id.is_empty() {
                    module.file = file_identity(module, image.map(|image| image.pid));
                }
                let apart = |image: &&Image| {
                    *image.sees_other_files.get_or_init(|| proc::sees_other_files(image.pid))
                };
                let copied = image.filter(|_| self.with_copies).filter(apart);
                if let Some(pid) = copied.map(|image| image.pid) {
                    self.copy(pid, &module.path);
                }
            }
            _ => {}
        }
    }

    /// Copies the file that the process has at `path`, if this program has another one there, or none.
    fn copy(&mut self, pid: u32, path: &Path) {
        // A process can report any path.
        if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
            return;
        }
        if proc::path_here(pid, path) == path {
            return;
        }
        if self.copier.is_none() {
            self.copier = Copier::start().ok();
        }
        if let Some(copier) = &mut self.copier {
            copier.copy(path, &proc::within_root(pid, path));
        }
    }

    /// The copies that have been made, in place until the next call.
    pub(super) fn copies(&mut self) -> Vec<FileCopy> {
        if let Some(copier) = self.copier.take() {
            self.copies = copier.finish();
        }
        let copy = |(path, file): &(PathBuf, File)| FileCopy {
            of: path.clone(),
            at: format!("/proc/self/fd/{}", file.as_raw_fd()).into(),
        };
        self.copies.iter().map(copy).collect()
    }
}

/// The identity of the file of a module without a build-id, opened as its process sees it; `None` if there is no such file.
fn file_identity(module: &ModuleInfo, pid: Option<u32>) -> Option<FileIdentity> {
    if !module.path.is_absolute() {
        return None;
    }
    let inside = pid.map(|pid| proc::within_root(pid, &module.path));
    let paths = inside.iter().chain([&module.path]);
    let metadata = paths.filter_map(|path| fs::metadata(path).ok()).find(Metadata::is_file)?;
    let identity = FileIdentity::of(&metadata);
    // A file changed after it was mapped is not the mapped one.
    let age = clock::monotonic_ns().saturating_sub(module.loaded_ns);
    let loaded = (clock::realtime_ns().saturating_sub(age)) as i64;
    Some(if identity.modified_ns > loaded { FileIdentity { len: 0, ..identity } } else { identity })
}

/// An open file, and its path in its process.
type Source = (PathBuf, File);

/// Copies files in a thread.
struct Copier {
    sources: Sender<Source>,
    thread: JoinHandle<Vec<Source>>,
    /// Device and inode of those that were given to it.
    known: HashSet<(u64, u64)>,
    room: u64,
}

impl Copier {
    fn start() -> io::Result<Copier> {
        let (sources, given) = channel();
        let thread = thread::Builder::new().name("selfwind-files".into()).spawn(move || copy_all(&given))?;
        Ok(Copier { sources, thread, known: HashSet::new(), room: LARGEST_SUM })
    }

    /// Copies the file at `here`, which its process has at `path`, unless that has been done.
    fn copy(&mut self, path: &Path, here: &Path) {
        if self.known.len() >= MOST {
            return;
        }
        let Ok(metadata) = fs::symlink_metadata(here) else { return };
        let size = metadata.len();
        if !metadata.is_file() || size > LARGEST.min(self.room) {
            return;
        }
        if !self.known.insert((metadata.dev(), metadata.ino())) {
            return;
        }
        // Not a pipe that has taken its place.
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
        if let Ok(file) = OpenOptions::new().read(true).custom_flags(flags.bits()).open(here)
            && self.sources.send((path.to_owned(), file)).is_ok()
        {
            self.room -= size;
        }
    }

    /// Waits for the copies.
    fn finish(self) -> Vec<Source> {
        drop(self.sources);
        self.thread.join().unwrap_or_default()
    }
}

/// What cannot be copied has no names, as if it could not be read.
fn copy_all(given: &Receiver<Source>) -> Vec<Source> {
    let copy = |(path, file): Source| Some((path, copy(file).ok()?));
    given.iter().filter_map(copy).collect()
}

/// A file without a name that has the content and the modification time of `file`, which is an ELF file.
fn copy(mut file: File) -> io::Result<File> {
    let metadata = file.metadata()?;
    let mut magic = [0; 4];
    file.read_exact(&mut magic)?;
    if !metadata.is_file() || magic != *b"\x7fELF" {
        return Err(io::ErrorKind::InvalidData.into());
    }
    file.rewind()?;
    let mut copy = anonymous_file()?;
    io::copy(&mut file.take(LARGEST), &mut copy)?;
    copy.set_modified(metadata.modified()?)?;
    Ok(copy)
}

/// A new file on disk whose space is free again once it is closed.
fn anonymous_file() -> io::Result<File> {
    let directory = cache_directory();
    private_directory(&directory)?;
    let path = directory.join(format!(".copy-{}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}
