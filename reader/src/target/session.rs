//! Sessions: the directories in which recorded processes create their regions.
//!
//! A directory is private to its user (0700, checked). A running recorder holds a lock on the session's doorbell, which
//! distinguishes its session from one left behind by a killed recorder.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use selfwind_profile::private_directory::private_directory;

use crate::sampling::settings::SamplingSettings;
use crate::sampling::switch_cost;
use crate::sampling::unwinding::Unwinding;
use crate::target::attach::Doorbell;
use crate::target::others::Others;
use crate::target::session_directory::{self, DOORBELL, is_ours, is_recorded};
use crate::target::{liveness, shortage};

/// Directory of processes with a manually preloaded agent.
pub(super) const FLIGHT: &str = "flight";

/// No directory is suitable for a session.
#[derive(Debug, thiserror::Error)]
#[error("no directory for shared memory ({tried}); set XDG_RUNTIME_DIR to one that you own")]
pub(crate) struct SessionError {
    tried: String,
}

/// A session of this recorder. Dropping it leaves the directory; [`Session::remove`] cleans up.
pub(crate) struct Session {
    directory: PathBuf,
    nonce: u64,
    doorbell: Arc<Doorbell>,
    others: Option<Others>,
    /// Keeps the lock.
    _doorbell_file: File,
}

impl Session {
    /// Creates a directory with a doorbell in it.
    pub(crate) fn create() -> Result<Self, SessionError> {
        let mut tried = Vec::new();
        for base in bases() {
            match Self::create_in(&base) {
                Ok(session) => return Ok(session),
                Err(error) => tried.push(format!("{}: {}", base.display(), shortage::explain(&error))),
            }
        }
        Err(SessionError { tried: tried.join("; ") })
    }

    fn create_in(base: &Path) -> io::Result<Self> {
        private_directory(base)?;
        let nonce = nonce()?;
        let directory = base.join(format!("{nonce:016x}"));
        DirBuilder::new().mode(0o700).create(&directory)?;
        let made = || {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .custom_flags(OFlag::O_NOFOLLOW.bits())
                .open(directory.join(DOORBELL))?;
            session_directory::take(&file)?;
            let doorbell = Arc::new(Doorbell::in_file(&file)?);
            Ok((file, doorbell))
        };
        match made() {
            Ok((file, doorbell)) => {
                let others = Others::create(nonce);
                Ok(Self { directory, nonce, doorbell, others, _doorbell_file: file })
            }
            Err(error) => {
                let _ = fs::remove_dir_all(&directory);
                Err(error)
            }
        }
    }

    /// Where the regions appear.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The number by which processes know it (SELFWIND_SESSION).
    pub(crate) fn nonce(&self) -> u64 {
        self.nonce
    }

    /// All directories where regions appear: its own, and the one for other users.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let others = self.others.iter().map(|others| others.directory().to_owned());
        [self.directory.clone()].into_iter().chain(others).collect()
    }

    /// Has processes ring also once they have begun and when their modules have changed. Those of other users do not ring.
    pub(crate) fn ask_for_changes(&self) {
        self.doorbell.ask_for_changes();
    }

    /// Signals all processes that the recording has ended.
    pub(crate) fn stop(&self) {
        self.doorbell.stop();
        self.others.iter().for_each(Others::stop);
    }

    /// The doorbell that the processes of this session ring.
    pub(crate) fn doorbell(&self) -> Arc<Doorbell> {
        self.doorbell.clone()
    }

    /// The environment variables for a command to be recorded in this session. With `overwrite`, a process keeps its latest samples,
    /// otherwise all until its pool is full.
    pub(crate) fn environment(
        &self,
        sampling: &SamplingSettings,
        overwrite: bool,
        agent: &Path,
    ) -> Vec<(OsString, OsString)> {
        let mut variables: Vec<(OsString, OsString)> = vec![
            ("SELFWIND_DIR".into(), self.directory.clone().into()),
            ("SELFWIND_SESSION".into(), format!("{:016x}", self.nonce).into()),
            ("SELFWIND_MODE".into(), if overwrite { "overwrite" } else { "discard" }.into()),
            ("SELFWIND_FREQ".into(), sampling.frequency.to_string().into()),
            ("SELFWIND_EVENT".into(), sampling.sources.of_agent().into()),
            ("SELFWIND_MAX_STACK".into(), sampling.max_stack.to_string().into()),
            ("SELFWIND_MAX_OVERHEAD".into(), sampling.max_overhead.to_string().into()),
            (
                "LD_PRELOAD".into(),
                preload(agent, &sampling.plugins, std::env::var_os("LD_PRELOAD").as_deref()),
            ),
        ];
        if let Some(boot) = liveness::boot_id() {
            variables.push(("SELFWIND_BOOT".into(), format!("{:032x}", u128::from_be_bytes(boot)).into()));
        }
        if !sampling.plugins.is_empty() {
            // For programs that replace their environment.
            let files: Vec<&OsStr> = sampling.plugins.iter().map(|plugin| plugin.as_os_str()).collect();
            variables.push(("SELFWIND_PLUGINS".into(), files.join(OsStr::new(":"))));
        }
        if sampling.native_only {
            variables.push(("SELFWIND_NATIVE_ONLY".into(), "1".into()));
        }
        // The flag takes precedence over the environment.
        if sampling.unwinding != Unwinding::Own || std::env::var_os("SELFWIND_UNWIND").is_some() {
            variables.push(("SELFWIND_UNWIND".into(), sampling.unwinding.name().into()));
            variables.push(("SELFWIND_COPY_LIMIT".into(), sampling.copy_limit.to_string().into()));
        }
        if sampling.buffer.bytes() > 0 {
            variables.push(("SELFWIND_POOL".into(), sampling.buffer.to_string().into()));
        }
        if let Some(events) = sampling.sources.events(sampling.frequency) {
            variables.push(("SELFWIND_PERF".into(), events.into()));
        }
        if sampling.sources.are_automatic()
            && let Some(ns) = switch_cost::measure_ns(Duration::from_secs(1) / sampling.frequency.max(1))
        {
            variables.push(("SELFWIND_SWITCH_COST".into(), ns.to_string().into()));
        }
        if let Some(others) = &self.others {
            variables.push(("SELFWIND_OTHERS".into(), others.directory().into()));
        }
        // The ASan runtime refuses to start after another library. The agent works before it.
        let sanitizer = std::env::var("ASAN_OPTIONS").map(|set| set + ":").unwrap_or_default();
        variables.push(("ASAN_OPTIONS".into(), (sanitizer + "verify_asan_link_order=0").into()));
        variables
    }

    /// Removes the directory. Processes that are still mapped there keep their memory and nothing else.
    pub(crate) fn remove(self) {
        let _ = fs::remove_dir_all(&self.directory);
        self.others.iter().for_each(Others::remove);
    }
}

/// The value of LD_PRELOAD: the agent, then plug-ins, then the present value.
fn preload(agent: &Path, plugins: &[PathBuf], present: Option<&OsStr>) -> OsString {
    let mut value = agent.as_os_str().to_owned();
    for plugin in plugins {
        value.push(":");
        value.push(plugin);
    }
    if let Some(present) = present.filter(|present| !present.is_empty() && *present != agent) {
        value.push(":");
        value.push(present);
    }
    value
}

fn nonce() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Parent directories of sessions, best first; the agent uses the same order.
pub(crate) fn bases() -> Vec<PathBuf> {
    let uid = geteuid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    runtime
        .map(|base| base.join("selfwind"))
        .into_iter()
        .chain(["/dev/shm", "/tmp"].map(|base| PathBuf::from(format!("{base}/selfwind-{uid}"))))
        .collect()
}

/// All session directories of this user.
pub(crate) fn directories() -> Vec<PathBuf> {
    let named = std::env::var_os("SELFWIND_DIR").map(PathBuf::from);
    let mut found: Vec<PathBuf> = bases().iter().flat_map(|base| subdirectories(base)).chain(named).collect();
    found.retain(|path| is_ours(path));
    found.sort();
    found.dedup();
    found
}

/// The directories of flight recorders, even if they do not exist yet.
pub(crate) fn flight_directories() -> Vec<PathBuf> {
    let mut found = directories();
    found.retain(|directory| !is_recorded(directory));
    found.extend(bases().into_iter().map(|base| base.join(FLIGHT)));
    found.sort();
    found.dedup();
    found
}

fn subdirectories(base: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_agent_comes_first() {
        let agent = Path::new("/a/agent.so");
        assert_eq!(preload(agent, &[], None), "/a/agent.so");
        assert_eq!(preload(agent, &[], Some(OsStr::new(""))), "/a/agent.so");
        assert_eq!(preload(agent, &[], Some(OsStr::new("/a/agent.so"))), "/a/agent.so");
        assert_eq!(preload(agent, &[], Some(OsStr::new("/b.so c.so"))), "/a/agent.so:/b.so c.so");
        let plugins = ["/p/lua.so", "/p/q.so"].map(PathBuf::from);
        assert_eq!(
            preload(agent, &plugins, Some(OsStr::new("/b.so"))),
            "/a/agent.so:/p/lua.so:/p/q.so:/b.so"
        );
    }

    #[test]
    fn a_session_is_private_locked_and_gone_at_the_end() {
        let base = std::env::temp_dir().join(format!("selfwind-session-{}", std::process::id()));
        let session = Session::create_in(&base).unwrap();
        let directory = session.directory().to_owned();
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o7777, 0o700);
        assert_eq!(fs::metadata(directory.join(DOORBELL)).unwrap().mode() & 0o7777, 0o600);
        assert!(is_recorded(&directory) && is_ours(&directory));
        session.remove();
        assert!(!directory.exists() && !is_recorded(&directory));
        fs::remove_dir_all(&base).unwrap();
    }
}
