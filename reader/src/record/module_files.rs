//! The files of modules, as their processes see them.
//!
//! A process may have another root directory or mount namespace, as in a container or a sandbox. When the recording ends, both may be gone,
//! and with the files the names of its functions. The same holds for files that a program unpacks or mounts among the
//! temporary files, as one-file applications and Java libraries do, and for those that it has removed once they were mapped. So
//! these files are copied once they are mapped, in a thread of their own; others are kept open ([`kept_files`](super::kept_files)).
//! What must never happen: that a copied file stays open longer than it takes to copy it, because its file system could not be
//! unmounted, or that a copy is left behind.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use selfwind_profile::private_directory::{cache_directory, private_directory};
use selfwind_profile::profile_file::{Event, FileIdentity, ModuleInfo};
use selfwind_profile::symbolize::FileCopy;

use super::kept_files::KeptFiles;
use crate::drain::namespaces::PID_HERE;
use crate::process_files;
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

    fn sees_other_files(&self) -> bool {
        *self.sees_other_files.get_or_init(|| process_files::sees_other_files(self.pid))
    }
}

/// Identifies the files of the running images' modules.
pub(super) struct ModuleFiles {
    /// Copy files, because their names will be looked up.
    with_copies: bool,
    /// Which files will be gone.
    temporary: TemporaryFiles,
    /// Running images, by their numbers.
    images: HashMap<u32, Image>,
    copier: Option<Copier>,
    /// The copies at the end of the recording.
    copies: Vec<(PathBuf, File)>,
    /// Files that may be replaced.
    kept: KeptFiles,
}

impl ModuleFiles {
    pub(super) fn new(with_copies: bool) -> Self {
        let temporary = TemporaryFiles::since_now();
        Self {
            with_copies,
            temporary,
            images: HashMap::new(),
            copier: None,
            copies: Vec::new(),
            kept: KeptFiles::new(),
        }
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
                if let Some(image) = image.filter(|_| self.with_copies) {
                    match self.fleeting(image, module) {
                        Some(file) => {
                            if let Err(file) = self.kept.keep(&module.path, file) {
                                self.copy(&module.path, file);
                            }
                        }
                        None if image.sees_other_files() => {}
                        None => self.kept.find(image.pid, module),
                    }
                }
            }
            _ => {}
        }
    }

    /// The module's file, if it is not to be expected at its path when the recording has ended.
    fn fleeting(&self, image: &Image, module: &ModuleInfo) -> Option<File> {
        let (pid, path) = (image.pid, module.path.as_path());
        // A process can report any path.
        if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
            return None;
        }
        let here = fs::metadata(path);
        let found = if image.sees_other_files() {
            let inside = process_files::open_within_root(pid, path).ok();
            let found = inside.and_then(|file| Some((file.metadata().ok()?, file)));
            let is_here =
                |found: &Metadata| here.as_ref().is_ok_and(|here| process_files::is_same(here, found));
            found.filter(|(found, _)| !is_here(found)).map(|(_, file)| file)
        } else {
            let is_temporary = here.as_ref().is_ok_and(|here| self.temporary.include(path, here));
            is_temporary.then(|| process_files::open(path).ok()).flatten()
        };
        found.or_else(|| here.is_err().then(|| process_files::open_mapped(pid, module.start).ok()).flatten())
    }

    /// Copies the file, which its process has at `path`.
    fn copy(&mut self, path: &Path, file: File) {
        if self.copier.is_none() {
            self.copier = Copier::start().ok();
        }
        if let Some(copier) = &mut self.copier {
            copier.copy(path, file);
        }
    }

    /// The copies that have been made, and the files that have been replaced, in place until the next call.
    pub(super) fn copies(&mut self) -> Vec<FileCopy> {
        if let Some(copier) = self.copier.take() {
            self.copies = copier.finish();
        }
        let copy = |(path, file): &(PathBuf, File)| FileCopy {
            of: path.clone(),
            at: format!("/proc/self/fd/{}", file.as_raw_fd()).into(),
        };
        self.copies.iter().chain(self.kept.replaced()).map(copy).collect()
    }
}

/// The identity of the file of a module without a build-id, opened as its process sees it; `None` if there is no such file.
fn file_identity(module: &ModuleInfo, pid: Option<u32>) -> Option<FileIdentity> {
    if !module.path.is_absolute() {
        return None;
    }
    let inside = pid.and_then(|pid| process_files::open_within_root(pid, &module.path).ok()?.metadata().ok());
    let metadata = inside.or_else(|| fs::metadata(&module.path).ok().filter(Metadata::is_file))?;
    let identity = FileIdentity::of(&metadata);
    // A file changed after it was mapped is not the mapped one.
    let age = clock::monotonic_ns().saturating_sub(module.loaded_ns);
    let loaded = (clock::realtime_ns().saturating_sub(age)) as i64;
    Some(if identity.modified_ns > loaded { FileIdentity { len: 0, ..identity } } else { identity })
}

/// Directories of files that nobody keeps.
struct TemporaryFiles {
    /// With the device that each is on.
    directories: Vec<(PathBuf, u64)>,
    since_ns: i64,
}

impl TemporaryFiles {
    /// Those that are made from now on.
    fn since_now() -> Self {
        /// Files are marked with the time of the last tick.
        const TICK_NS: i64 = 10_000_000;
        let usual = ["/tmp", "/var/tmp", "/dev/shm"].map(PathBuf::from);
        let directories = usual.into_iter().chain([std::env::temp_dir()]);
        let directories =
            directories.filter_map(|path| fs::metadata(&path).ok().map(|metadata| (path, metadata.dev())));
        Self { directories: directories.collect(), since_ns: clock::realtime_ns() as i64 - TICK_NS }
    }

    /// Whether the file is one of these, or on a file system that is mounted among them.
    fn include(&self, path: &Path, file: &Metadata) -> bool {
        let changed_ns = file.ctime() * 1_000_000_000 + file.ctime_nsec();
        self.directories.iter().any(|(directory, device)| {
            path.starts_with(directory) && (file.dev() != *device || changed_ns >= self.since_ns)
        })
    }
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

    /// Copies the file, which its process has at `path`, unless that has been done.
    fn copy(&mut self, path: &Path, file: File) {
        let Ok(metadata) = file.metadata() else { return };
        let size = metadata.len();
        if self.known.len() >= MOST || size > LARGEST.min(self.room) {
            return;
        }
        if self.known.insert((metadata.dev(), metadata.ino()))
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
