//! What must be known of a process before anything is done to it: all from /proc, nothing is touched.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{geteuid, getuid};

use crate::target::inject::memory::Memory;
use crate::target::inject::refusal::InjectError;
use crate::target::liveness;

const AT_PHDR: u64 = 3;
const AT_PHNUM: u64 = 5;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_DEBUG: u64 = 21;
/// Entries of a dynamic section that are looked at; real ones have about 30.
const DYNAMIC_LIMIT: u64 = 200;
const PHDR_SIZE: u64 = 56;
const PAGE: u64 = 4096;

/// The value of `name` in a status file.
pub(super) fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Checks that the process can take an agent, or says why not and what to do.
pub(super) fn check(pid: i32) -> Result<(), InjectError> {
    let status =
        fs::read_to_string(format!("/proc/{pid}/status")).map_err(|_| InjectError::NoProcess(pid))?;
    let number =
        |name| field(&status, name).and_then(|text| text.split_whitespace().nth(1)?.parse::<u32>().ok());
    if has_ended(pid) {
        return Err(InjectError::NoProcess(pid));
    }
    if pid as u32 == std::process::id() {
        return Err(InjectError::Oneself);
    }
    match field(&status, "TracerPid:").and_then(|tracer| tracer.parse().ok()) {
        Some(0) | None => {}
        Some(tracer) => return Err(InjectError::Traced { pid, tracer }),
    }
    if field(&status, "State:").is_some_and(|state| state.starts_with('T')) {
        return Err(InjectError::Stopped(pid));
    }
    if let Some(user) = number("Uid:").filter(|user| *user != geteuid().as_raw() && !geteuid().is_root()) {
        return Err(InjectError::OtherUser { pid, user, own: getuid().as_raw() });
    }
    if has_shadow_stack(&status) {
        return Err(InjectError::ShadowStack(pid));
    }
    if is_filtered(pid) {
        return Err(InjectError::Filtered(pid));
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
    Ok(())
}

/// True if no thread of the process lives; its first one may have ended before the others.
pub(super) fn has_ended(pid: i32) -> bool {
    liveness::start_time(pid as u32).is_none()
        && fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count) < 2
}

/// True if the processor compares return addresses with a stack of its own: who is sent elsewhere could not come back.
fn has_shadow_stack(status: &str) -> bool {
    field(status, "x86_Thread_features:")
        .is_some_and(|features| features.split_whitespace().any(|feature| feature == "shstk"))
}

/// True if our directories are closed to the process: it belongs to another user, or has another root or mount namespace.
pub(super) fn is_apart(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    // Real, effective, saved, of the file system.
    let own = geteuid().to_string();
    let is_other =
        field(&status, "Uid:").is_none_or(|users| users.split_whitespace().any(|user| user != own));
    let at = |name: &str| fs::metadata(name).map(|found| (found.dev(), found.ino())).ok();
    let differs = |name: &str| at(&format!("/proc/{pid}/{name}")) != at(&format!("/proc/self/{name}"));
    is_other || differs("ns/mnt") || differs("ns/user") || differs("root")
}

/// True if a thread of the process filters its system calls.
fn is_filtered(pid: i32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("status")).ok())
        .any(|status| field(&status, "Seccomp:").is_some_and(|mode| mode != "0"))
}

/// True if the process has mapped the file at `path`.
pub(super) fn maps(pid: u32, path: &Path) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    path.to_str().is_some_and(|path| {
        maps.lines().any(|line| {
            line.ends_with(path) || line.strip_suffix(" (deleted)").is_some_and(|l| l.ends_with(path))
        })
    })
}

/// One line of /proc/PID/maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(super) end: u64,
    pub(crate) executable: bool,
    pub(crate) name: String,
}

/// What the process has mapped.
pub(crate) fn mappings(pid: i32) -> Vec<Mapping> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines().filter_map(parse_mapping).collect()
}

fn parse_mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    let executable = fields.next()?.contains('x');
    let name = fields.nth(3).unwrap_or_default().trim().to_owned();
    Some(Mapping { start: number(start)?, end: number(end)?, executable, name })
}

/// The address of the loader's `struct r_debug`, which every loader notes in the program's dynamic section; 0 if there
/// is none.
pub(super) fn debugger_interface(pid: i32, memory: &Memory) -> u64 {
    find_debugger_interface(pid, memory).unwrap_or(0)
}

fn find_debugger_interface(pid: i32, memory: &Memory) -> Option<u64> {
    let auxv = fs::read(format!("/proc/{pid}/auxv")).ok()?;
    let words: Vec<u64> = auxv.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let of = |tag| words.as_chunks::<2>().0.iter().find(|pair| pair[0] == tag).map(|pair| pair[1]);
    let (headers, count) = (of(AT_PHDR)?, of(AT_PHNUM)?.min(64));
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
        assert!(has_shadow_stack(
            "Name:\tx\nx86_Thread_features:\tshstk wrss \nx86_Thread_features_locked:\t\n"
        ));
        assert!(!has_shadow_stack("x86_Thread_features:\t\nx86_Thread_features_locked:\tshstk\n"));
        assert!(!has_shadow_stack("Name:\tshstk\n"));
    }

    #[test]
    fn lines_of_maps() {
        let line = "7f00-7f10 r-xp 00001000 fe:01 12   /usr/lib/a b.so";
        let mapping = parse_mapping(line).unwrap();
        assert_eq!((mapping.start, mapping.end, mapping.executable), (0x7f00, 0x7f10, true));
        assert_eq!(mapping.name, "/usr/lib/a b.so");
        assert_eq!(parse_mapping("1-2 rw-p 0 0:0 0").unwrap().name, "");
        assert!(parse_mapping("").is_none() && parse_mapping("x-y rw-p 0 0:0 0").is_none());
        assert!(mappings(std::process::id() as i32).iter().any(|mapping| mapping.name == "[stack]"));
    }
}
