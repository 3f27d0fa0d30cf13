//! A cgroup with a memory limit, beyond which its processes are killed.

use std::fs;
use std::path::{Path, PathBuf};

/// The group; removed when dropped.
#[derive(Debug)]
pub struct MemoryGroup {
    directory: PathBuf,
}

impl MemoryGroup {
    /// A new group with this limit in bytes.
    ///
    /// # Errors
    /// Why there can be none on this machine.
    pub fn new(limit: u64) -> Result<Self, String> {
        let (parent, file) = parent()?;
        let directory = parent.join(format!("selfwind-test-{}", std::process::id()));
        fs::create_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let group = Self { directory };
        let limit_file = group.directory.join(file);
        fs::write(&limit_file, limit.to_string())
            .map_err(|error| format!("{}: {error}", limit_file.display()))?;
        // Where there is swap, it is not to be used. The files are missing where there is none.
        let _ = fs::write(group.directory.join("memory.swap.max"), "0");
        let _ = fs::write(group.directory.join("memory.memsw.limit_in_bytes"), limit.to_string());
        Ok(group)
    }

    /// The file by which a process joins.
    pub fn members(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A process that was killed stays a member until it is reaped.
        for _ in 0..50 {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Where a group can be made, and the name of the file with its limit.
fn parent() -> Result<(PathBuf, &'static str), String> {
    let first = Path::new("/sys/fs/cgroup/memory");
    if first.join("memory.limit_in_bytes").exists() {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = own.lines().find_map(|line| line.split_once(":memory:")).map_or("/", |(_, path)| path);
        let own = first.join(own.trim_start_matches('/'));
        return Ok((if own.exists() { own } else { first.into() }, "memory.limit_in_bytes"));
    }
    let second = Path::new("/sys/fs/cgroup");
    let control = second.join("cgroup.subtree_control");
    fs::write(&control, "+memory")
        .map_err(|error| format!("no memory cgroups: {}: {error}", control.display()))?;
    Ok((second.into(), "memory.max"))
}
