//! The files of a process: those that it has under its paths, and those that it has mapped.
//!
//! It may have another root directory or mount namespace than this program. Its files may be removed or replaced at any time, and
//! it can report any path. What must never happen: that a device or a pipe is opened for reading, which may block or have an
//! effect.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use crate::proc::{Mapping, mappings};

/// The path by which this program can open a path of a process that may have another root directory.
pub(crate) fn within_root(pid: u32, path: &Path) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/root")).join(path.strip_prefix("/").unwrap_or(path))
}

/// Opens a regular file for reading.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    read(OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?)
}

/// Opens a regular file of a process that may have another root directory, for reading. Symbolic links are followed as the process
/// would.
pub(crate) fn open_within_root(pid: u32, path: &Path) -> io::Result<File> {
    let root = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(format!("/proc/{pid}/root"))?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    match openat2(&root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve) {
        // Before Linux 5.6, or forbidden by a sandbox. A link could lead out of the root directory.
        Err(Errno::NOSYS | Errno::PERM) => {
            let flags = libc::O_PATH | libc::O_NOFOLLOW;
            read(OpenOptions::new().read(true).custom_flags(flags).open(within_root(pid, path))?)
        }
        opened => read(File::from(opened?)),
    }
}

/// Opens what an `O_PATH` descriptor names, if it is a regular file.
fn read(named: File) -> io::Result<File> {
    if !named.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    File::open(format!("/proc/self/fd/{}", named.as_raw_fd()))
}

/// Opens the file that a process has mapped at `address`, even if it has no name any more. Unless it is the program, that takes
/// CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN.
pub(crate) fn open_mapped(pid: u32, address: u64) -> io::Result<File> {
    let mapping = mappings(pid)?.into_iter().find(|mapping| (mapping.start..mapping.end).contains(&address));
    let mapping = mapping.filter(|mapping| mapping.inode != 0).ok_or(io::ErrorKind::NotFound)?;
    let link = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    [link, format!("/proc/{pid}/exe")]
        .iter()
        .filter_map(|link| open(link.as_ref()).ok())
        .find(|file| is_mapped(file, &mapping))
        .ok_or_else(|| io::ErrorKind::PermissionDenied.into())
}

/// Opens the mapped file by its path.
pub(crate) fn mapped_file(mapping: &Mapping, pid: u32) -> Option<File> {
    open_within_root(pid, &mapping.path).ok().filter(|file| is_mapped(file, mapping))
}

/// Whether that is the mapped file, not another one that has its name by now.
pub(crate) fn is_mapped(file: &File, mapping: &Mapping) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.ino() == mapping.inode)
}

/// Whether both are of one file.
pub(crate) fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Whether a process has another root directory or mount namespace than this program. False if that cannot be read.
pub(crate) fn sees_other_files(pid: u32) -> bool {
    let at = |name: &str| fs::metadata(name).map(|found| (found.dev(), found.ino())).ok();
    let differs = |name: &str| {
        at(&format!("/proc/{pid}/{name}")).is_some_and(|its| at(&format!("/proc/self/{name}")) != Some(its))
    };
    differs("ns/mnt") || differs("root")
}

/// A path by which this program can open the file that a process has under `path`: another one if the process has another root
/// directory or mount namespace.
pub(crate) fn path_here(pid: u32, path: &Path) -> PathBuf {
    if !sees_other_files(pid) {
        return path.to_owned();
    }
    let file = open_within_root(pid, path).and_then(|file| Ok((file.metadata()?, file)));
    let Ok((own, file)) = file else { return path.to_owned() };
    let resolved = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    // Without its symbolic links, which may lead out of the root directory.
    let resolved = resolved.into_iter().flat_map(|resolved| [within_root(pid, &resolved), resolved]);
    let mut paths = [path.to_owned(), within_root(pid, path)].into_iter().chain(resolved);
    paths
        .find(|path| fs::metadata(path).is_ok_and(|here| is_same(&here, &own)))
        .unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode as Permissions;
    use nix::unistd::mkfifo;
    use selfwind_tests::scratch::Scratch;

    use super::*;

    #[test]
    fn pipes_and_devices_are_not_opened() {
        let scratch = Scratch::new();
        let (pipe, file) = (scratch.join("pipe"), scratch.join("file"));
        mkfifo(&pipe, Permissions::S_IRWXU).unwrap();
        fs::write(&file, "read").unwrap();
        let ways: [fn(&Path) -> io::Result<File>; 2] =
            [open, |path| open_within_root(std::process::id(), path)];
        for open in ways {
            assert!(open(&pipe).is_err() && open(Path::new("/dev/null")).is_err());
            assert_eq!(io::read_to_string(open(&file).unwrap()).unwrap(), "read");
        }
        // Of another process it would be another file.
        assert!(open_within_root(std::process::id(), Path::new("/proc/self/exe")).is_err());
    }

    #[test]
    fn a_mapped_program_is_opened_though_its_path_leads_elsewhere() {
        let own = std::process::id();
        let program = fs::read_link("/proc/self/exe").unwrap();
        let mapping = mappings(own).unwrap().into_iter().find(|mapping| mapping.path == program).unwrap();
        assert!(mapped_file(&mapping, own).is_some());
        let elsewhere = Mapping { path: "/etc/passwd".into(), ..mapping };
        assert!(mapped_file(&elsewhere, own).is_none());
        assert!(is_mapped(&open_mapped(own, elsewhere.start).unwrap(), &elsewhere));
        assert!(open_mapped(own, 0).is_err());
    }
}
