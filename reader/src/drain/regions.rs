//! Finds the region files of a recording, and tells which are new.
//!
//! The header of a region identifies its process by boot id, pid and start time. A pid alone does not: it may be reused, and
//! containers that share a directory may use the same pid at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use shm_format::Identity;

use crate::proc;
use crate::target::attach::{AttachError, Attached, owner};
use crate::target::liveness::{self, Liveness};
use crate::target::region_name::RegionName;
use crate::target::shortage;
use crate::terminal::notices::Notices;

/// How often a flight recorder checks whether it has to remove regions.
const PRUNE_EVERY: Duration = Duration::from_secs(1);
/// Maximum size of all regions of dead processes in a flight recorder, in bytes.
const DEAD_LIMIT: u64 = 256 << 20;
/// How many bytes of an agent's note to show.
const NOTE_LIMIT: usize = 200;

/// Which processes to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All that have a region, including those that have ended.
    Everything,
    /// All that are running.
    Living,
    /// The process with this pid, and the images it executes. If none is running, the last one that had the pid.
    Process(u32),
}

/// Why the process with a given pid cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FindError {
    /// There is no such process, and no region of one.
    #[error(
        "process {0} does not exist and left no samples behind; `selfwind list` shows which processes can be recorded"
    )]
    NoProcess(u32),
    /// It is running without the agent.
    #[error(
        "process {0} runs without the agent; inject it with `selfwind attach -p {0}`, or start the program with LD_PRELOAD=$(selfwind agent-path)"
    )]
    NoAgent(u32),
    /// Its region cannot be attached.
    #[error("process {0}: {1}")]
    Attach(u32, AttachError),
}

/// The one process meant, of all that had its pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chosen {
    boot_id: [u8; 16],
    start_time: u64,
}

/// The region files of a recording.
pub(crate) struct Regions {
    directories: Vec<PathBuf>,
    scope: Scope,
    /// A directory whose processes are recorded in any case.
    session: Option<PathBuf>,
    notices: Notices,
    /// Id of the current boot.
    boot_id: Option<[u8; 16]>,
    chosen: Option<Chosen>,
    /// The regions of the process that was looked for. They stay open, so that no other recorder gets them meanwhile.
    found: BTreeMap<PathBuf, Attached>,
    /// Files that have been dealt with.
    seen: BTreeSet<PathBuf>,
    /// Directories and files that could not be opened, and why.
    failures: BTreeMap<PathBuf, String>,
    pruned: Instant,
}

impl Regions {
    /// The regions in `directories`.
    pub(crate) fn new(directories: Vec<PathBuf>, scope: Scope, notices: Notices) -> Self {
        let chosen = match scope {
            Scope::Process(pid) => choose_living(pid),
            _ => None,
        };
        Self {
            directories,
            scope,
            session: None,
            notices,
            boot_id: liveness::boot_id(),
            chosen,
            found: BTreeMap::new(),
            seen: BTreeSet::new(),
            failures: BTreeMap::new(),
            pruned: Instant::now(),
        }
    }

    /// Records all processes whose regions are in this directory, too.
    pub(crate) fn add_session(&mut self, directory: PathBuf) {
        self.directories.push(directory.clone());
        self.directories.sort();
        self.directories.dedup();
        self.session = Some(directory);
    }

    /// Whether a region is in the directory of [`add_session`](Self::add_session).
    pub(crate) fn is_of_session(&self, path: &Path) -> bool {
        self.session.is_some() && path.parent() == self.session.as_deref()
    }

    /// Which processes to record.
    pub(crate) fn scope(&self) -> Scope {
        self.scope
    }

    /// The directories searched.
    pub(crate) fn directories(&self) -> &[PathBuf] {
        &self.directories
    }

    /// Finds the region of `pid`, or says why there is none. Returns when the region was created (CLOCK_MONOTONIC, ns). If the
    /// process has ended, this is the last process that had the pid.
    pub(crate) fn find_process(&mut self, pid: u32) -> Result<u64, FindError> {
        let mut refused = None;
        for path in self.files() {
            match Attached::open(&path) {
                Ok(region) => {
                    self.found.insert(path, region);
                }
                Err(error) => refused = Some(FindError::Attach(pid, error)),
            }
        }
        let of_chosen = |region: &&Attached| self.chosen.is_none() || self.is_in_scope(&region.identity());
        let last = self.found.values().filter(of_chosen).max_by_key(|region| region.anchor().realtime_ns);
        if let Some((identity, began)) = last.map(|last| (last.identity(), last.anchor().monotonic_ns)) {
            let Identity { boot_id, start_time, .. } = identity;
            let chosen = *self.chosen.get_or_insert(Chosen { boot_id, start_time });
            self.found.retain(|_, region| {
                let Identity { boot_id, start_time, .. } = region.identity();
                chosen == Chosen { boot_id, start_time }
            });
            return Ok(began);
        }
        Err(refused.unwrap_or_else(|| match proc::start_time(pid) {
            Some(_) => FindError::NoAgent(pid),
            None => FindError::NoProcess(pid),
        }))
    }

    /// True if the one process to record has ended.
    pub(crate) fn is_over(&self) -> bool {
        match (self.scope, self.chosen) {
            (Scope::Process(pid), Some(chosen)) => {
                self.boot_id != Some(chosen.boot_id) || proc::start_time(pid) != Some(chosen.start_time)
            }
            (Scope::Process(pid), None) => proc::start_time(pid).is_none(),
            _ => false,
        }
    }

    fn is_in_scope(&self, identity: &Identity) -> bool {
        match (self.scope, self.chosen) {
            (Scope::Everything, _) => true,
            (Scope::Living, _) => self.boot_id.is_none_or(|boot_id| boot_id == identity.boot_id),
            (Scope::Process(pid), chosen) => {
                pid == identity.pid
                    && chosen.is_none_or(|chosen| {
                        (chosen.boot_id, chosen.start_time) == (identity.boot_id, identity.start_time)
                    })
            }
        }
    }

    fn files(&mut self) -> Vec<PathBuf> {
        let mut found: Vec<(RegionName, PathBuf)> = self
            .entries()
            .into_iter()
            .filter_map(|path| Some((RegionName::parse(path.file_name()?)?, path)))
            .filter(|(name, path)| match self.scope {
                _ if self.is_of_session(path) => true,
                Scope::Everything => true,
                Scope::Living => {
                    self.seen.contains(path) || Liveness::follow(name.pid, name.start_time).is_running()
                }
                Scope::Process(pid) => {
                    pid == name.pid && self.chosen.is_none_or(|chosen| chosen.start_time == name.start_time)
                }
            })
            .collect();
        found.sort();
        found.into_iter().map(|(_, path)| path).collect()
    }

    fn entries(&mut self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for directory in &self.directories {
            match std::fs::read_dir(directory) {
                Ok(entries) => {
                    self.failures.remove(directory);
                    found.extend(entries.flatten().map(|entry| entry.path()));
                }
                // No process has created it yet, or the last one has removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    self.failures.insert(directory.clone(), shortage::explain(&error));
                }
            }
        }
        found
    }

    /// Attaches the new regions. They are ordered by creation, so parents come before children, and images before those that
    /// they execute.
    pub(crate) fn new_regions(&mut self) -> Vec<(PathBuf, Attached)> {
        let mut found = Vec::new();
        for path in self.files() {
            if self.seen.contains(&path) {
                continue;
            }
            match self.found.remove(&path).map_or_else(|| Attached::open(&path), Ok) {
                Ok(attached) => {
                    self.failures.remove(&path);
                    self.seen.insert(path.clone());
                    if self.is_of_session(&path) || self.is_in_scope(&attached.identity()) {
                        found.push((path, attached));
                    }
                }
                // Its process is still creating it.
                Err(AttachError::Unfinished) => {}
                Err(AttachError::System(error)) if shortage::is_passing(&error) => {
                    self.failures.insert(path, shortage::explain(&error));
                }
                Err(error) => {
                    self.notices.say(format_args!("ignoring {}: {error}", path.display()));
                    self.seen.insert(path);
                }
            }
        }
        found.sort_by_key(|(_, attached)| attached.anchor().monotonic_ns);
        found
    }

    /// Forgets a removed file, as its name may be used again.
    pub(crate) fn forget(&mut self, path: &Path) {
        self.seen.remove(path);
    }

    /// Removes the oldest regions of dead processes while their total size is above the limit of a flight recorder.
    pub(super) fn prune_dead(&mut self) {
        if self.pruned.elapsed() < PRUNE_EVERY {
            return;
        }
        self.pruned = Instant::now();
        let mut dead: Vec<(SystemTime, u64, PathBuf)> = self
            .files()
            .into_iter()
            .filter(|path| {
                let name = path.file_name().and_then(RegionName::parse);
                name.is_some_and(|name| !Liveness::follow(name.pid, name.start_time).is_running())
            })
            .filter_map(|path| {
                let metadata = std::fs::metadata(&path).ok()?;
                // `st_blocks` counts units of 512 bytes on every file system (stat(2)).
                Some((metadata.modified().ok()?, metadata.blocks() * 512, path))
            })
            .collect();
        dead.sort();
        let mut total: u64 = dead.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, bytes, path) in dead {
            if total <= DEAD_LIMIT {
                break;
            }
            total -= bytes;
            let _ = std::fs::remove_file(path);
        }
    }

    /// Reports what could not be recorded, and returns whether there was something. An agent that cannot create its region leaves
    /// a note in its place.
    pub(super) fn report_missing(&mut self) -> bool {
        let mut some = !self.failures.is_empty();
        for (path, why) in std::mem::take(&mut self.failures) {
            match path.file_name().and_then(RegionName::parse) {
                Some(name) => self.notices.say(format_args!("process {} is not recorded: {why}", name.pid)),
                None => self.notices.say(format_args!(
                    "{}: {why}; processes whose shared memory is there are not recorded",
                    path.display()
                )),
            }
        }
        if self.scope != Scope::Everything {
            return some;
        }
        for path in self.entries() {
            // Anyone can write notes to such a directory.
            if path.parent().is_some_and(owner::is_open_to_all) {
                continue;
            }
            if path.extension().is_some_and(|extension| extension == "failed")
                && self.seen.insert(path.clone())
            {
                // The note is the target of a dangling symbolic link.
                let reason = std::fs::read_link(&path).map(|text| text.into_os_string().into_encoded_bytes());
                let reason = reason.unwrap_or_default();
                let reason =
                    String::from_utf8_lossy(&reason[..reason.len().min(NOTE_LIMIT)]).trim().to_owned();
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let pid = name.split('-').next().unwrap_or_default();
                self.notices.say(format_args!("process {pid} is not recorded: {reason}"));
                some = true;
            }
        }
        some
    }
}

/// The process that has this pid now.
fn choose_living(pid: u32) -> Option<Chosen> {
    Some(Chosen { boot_id: liveness::boot_id()?, start_time: proc::start_time(pid)? })
}
