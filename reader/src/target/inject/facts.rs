//! Checks whether a process can take an agent, before it is changed in any way: from /proc, and for threads with a system call
//! filter by stopping them briefly.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{geteuid, getuid};

use crate::proc::{self, Mapping, PAGE, Status, mappings, threads};
use crate::target::inject::error::InjectError;
use crate::target::inject::filter;
use crate::target::inject::memory::Memory;

const AT_PHDR: u64 = 3;
const AT_PHNUM: u64 = 5;
const AT_SECURE: u64 = 23;
const AT_BASE: u64 = 7;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_DEBUG: u64 = 21;
/// Maximum number of dynamic section entries to read; real ones have about 30.
const DYNAMIC_LIMIT: u64 = 200;
const PHDR_SIZE: u64 = 56;

/// Checks that the process can take an agent, or says why not and what to do.
pub(super) fn check(pid: i32) -> Result<(), InjectError> {
    let status = Status::of_process(pid).map_err(|_| InjectError::NoProcess(pid))?;
    let number =
        |name| status.field(name).and_then(|text| text.split_whitespace().nth(1)?.parse::<u32>().ok());
    if has_ended(pid) {
        return Err(InjectError::NoProcess(pid));
    }
    if pid as u32 == std::process::id() {
        return Err(InjectError::Oneself);
    }
    match status.field("TracerPid").and_then(|tracer| tracer.parse().ok()) {
        Some(0) | None => {}
        Some(tracer) => return Err(InjectError::Traced { pid, tracer }),
    }
    if status.state() == Some('T') {
        return Err(InjectError::Stopped(pid));
    }
    if let Some(user) = number("Uid").filter(|user| *user != geteuid().as_raw() && !geteuid().is_root()) {
        return Err(InjectError::OtherUser { pid, user, own: getuid().as_raw() });
    }
    if has_shadow_stack(&status) {
        return Err(InjectError::ShadowStack(pid));
    }
    let denied = |error| InjectError::denied(pid, error);
    let mut head = [0u8; 5];
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    fs::read_link(&exe).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => InjectError::Kernel(pid),
        _ => denied(error),
    })?;
    let mut file = fs::File::open(&exe).map_err(denied)?;
    std::io::Read::read_exact(&mut file, &mut head).map_err(denied)?;
    if head != *b"\x7fELF\x02" {
        return Err(InjectError::NotNative(pid));
    }
    filter::check(pid)
}

/// True if all threads of the process have ended; the main thread may end before the others.
pub(super) fn has_ended(pid: i32) -> bool {
    proc::start_time(pid as u32).is_none() && threads(pid as u32).map_or(0, |threads| threads.len()) < 2
}

/// True if the CPU compares return addresses with a shadow stack: a diverted thread could not return.
fn has_shadow_stack(status: &Status) -> bool {
    status
        .field("x86_Thread_features")
        .is_some_and(|features| features.split_whitespace().any(|feature| feature == "shstk"))
}

/// True if the process cannot access the reader's directories: it has another user, root directory or mount namespace.
pub(crate) fn is_apart(pid: i32) -> bool {
    let status = Status::of_process(pid);
    // Real, effective, saved, of the file system.
    let own = geteuid().to_string();
    let users = status.as_ref().ok().and_then(|status| status.field("Uid"));
    let is_other = users.is_none_or(|users| users.split_whitespace().any(|user| user != own));
    let at = |name: &str| fs::metadata(name).map(|found| (found.dev(), found.ino())).ok();
    let differs = |name: &str| at(&format!("/proc/{pid}/{name}")) != at(&format!("/proc/self/{name}"));
    is_other || differs("ns/mnt") || differs("ns/user") || differs("root")
}

/// The program that a process runs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RunningProgram {
    /// Its auxiliary vector. Addresses in it are random, so that of the next program is another.
    auxiliary: Vec<u64>,
    has_loader: bool,
}

impl RunningProgram {
    /// That of the process `pid`; `None` if it has ended, or this user may not read its memory.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let auxiliary = auxiliary_vector(pid)?;
        let is_loader = |exe: PathBuf| exe.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld"));
        let has_loader = entry(&auxiliary, AT_BASE).is_none_or(|base| base != 0)
            // A program given to the loader as an argument.
            || fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(is_loader);
        Some(Self { auxiliary, has_loader })
    }

    /// True if a loader has started it, which loads the agent where it can; none does for a statically linked program.
    pub(crate) fn has_loader(&self) -> bool {
        self.has_loader
    }
}

/// True if the process has mapped the file at `path`.
pub(super) fn maps(pid: u32, path: &Path) -> bool {
    let ends = |mapping: &Mapping| mapping.path.as_os_str().as_bytes().ends_with(path.as_os_str().as_bytes());
    mappings(pid).is_ok_and(|mappings| mappings.iter().any(ends))
}

/// True if the process has glibc's loader.
pub(super) fn has_glibc(pid: u32) -> bool {
    let is_loader = |mapping: &Mapping| {
        let name = mapping.path.file_name().unwrap_or_default().as_bytes();
        name.starts_with(b"ld-linux") || name.starts_with(b"ld-2.")
    };
    mappings(pid).is_ok_and(|mappings| mappings.iter().any(is_loader))
}

/// The address of the loader's `struct r_debug`, which every loader stores in the program's dynamic section; 0 if there is none.
pub(super) fn debugger_interface(pid: i32, memory: &Memory) -> u64 {
    find_debugger_interface(pid, memory).unwrap_or(0)
}

/// The auxiliary vector of a process: pairs of a tag and a value (getauxval(3)).
pub(super) fn auxiliary_vector(pid: u32) -> Option<Vec<u64>> {
    let bytes = fs::read(format!("/proc/{pid}/auxv")).ok()?;
    Some(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

/// True if the process runs in secure mode since its exec (`AT_SECURE`): its loader ignores `LD_PRELOAD`.
pub(crate) fn is_secure(pid: u32) -> bool {
    auxiliary_vector(pid).and_then(|auxiliary| entry(&auxiliary, AT_SECURE)).is_some_and(|secure| secure != 0)
}

fn entry(auxiliary: &[u64], tag: u64) -> Option<u64> {
    auxiliary.as_chunks::<2>().0.iter().find(|pair| pair[0] == tag).map(|pair| pair[1])
}

fn find_debugger_interface(pid: i32, memory: &Memory) -> Option<u64> {
    let auxiliary = auxiliary_vector(pid as u32)?;
    let (headers, count) = (entry(&auxiliary, AT_PHDR)?, entry(&auxiliary, AT_PHNUM)?.min(64));
    // Kind and flags, offset, address.
    let headers_read: Vec<[u64; 3]> =
        (0..count).filter_map(|index| memory.words::<3>(headers + index * PHDR_SIZE).ok()).collect();
    let of_kind = |kind| headers_read.iter().find(|header| header[0] as u32 == kind);
    let bias = (headers & !(PAGE - 1)).wrapping_sub(of_kind(PT_LOAD)?[2] & !(PAGE - 1));
    let dynamic = bias.wrapping_add(of_kind(PT_DYNAMIC)?[2]);
    (0..DYNAMIC_LIMIT)
        .map_while(|index| memory.words::<2>(dynamic + 16 * index).ok().filter(|entry| entry[0] != 0))
        .find(|entry| entry[0] == DT_DEBUG)
        .map(|entry| entry[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shadow_stack_is_seen() {
        assert!(has_shadow_stack(&Status::of_text(
            "Name:\tx\nx86_Thread_features:\tshstk wrss \nx86_Thread_features_locked:\t\n"
        )));
        assert!(!has_shadow_stack(&Status::of_text(
            "x86_Thread_features:\t\nx86_Thread_features_locked:\tshstk\n"
        )));
        assert!(!has_shadow_stack(&Status::of_text("Name:\tshstk\n")));
    }
}
