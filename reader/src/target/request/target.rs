//! A process to send requests to, found by the region that it has mapped: namespaces, the environment or an earlier exec cannot
//! confuse that.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use selfwind_profile::profile_file::Event;
use shm_format::{ClockKind, DurableRecord, Identity, Scale};

use super::thread::ThreadState;
use crate::proc::{self, Mapping};
use crate::process_files;
use crate::target::attach::request::RequestChannel;
use crate::target::attach::{AttachError, read_tsc};
use crate::target::clock::{TraceClock, monotonic_ns};
use crate::target::region_name::RegionName;
use crate::target::shortage;
use crate::target::translate::Translator;

/// Why no request can be sent to a process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    /// No such process.
    #[error("process {0} does not exist; `selfwind list` shows what runs with the agent")]
    NoProcess(u32),
    /// Its mappings cannot be read.
    #[error("process {pid}: cannot inspect it: {error}{}", shortage::of_permission())]
    Denied {
        /// The process.
        pid: u32,
        /// The kernel's answer.
        error: io::Error,
    },
    /// It runs without the agent.
    #[error(
        "process {0} runs without the agent; inject it with `selfwind attach -p {0}`, or start the program with LD_PRELOAD=$(selfwind agent-path)"
    )]
    NoAgent(u32),
    /// Its recording has ended.
    #[error(
        "process {0} has the agent, but sampling has stopped: its recording has ended; start it again with `selfwind attach -p {0}`"
    )]
    Over(u32),
    /// Its region cannot be used.
    #[error("process {0}: {1}")]
    Attach(u32, AttachError),
    /// No room for answers, or no file locks.
    #[error("process {pid}: cannot place a request in {region}: {error}")]
    Place {
        /// The process.
        pid: u32,
        /// The region's file.
        region: String,
        /// The system's answer.
        error: io::Error,
    },
    /// All slots are in use by other requesters.
    #[error("process {0}: it is busy with other requests; try again later")]
    Busy(u32),
}

/// A process with an agent.
pub(crate) struct Target {
    /// Process id as we see it.
    pub(crate) pid: u32,
    /// Its region.
    pub(crate) channel: RequestChannel,
    /// The region's file.
    pub(crate) region: PathBuf,
    /// The signal of its agent.
    pub(crate) signal: i32,
    /// The agent's records of process, modules and threads.
    pub(crate) events: Vec<Event>,
    kind: ClockKind,
    translator: Translator,
    clock: TraceClock,
}

impl Target {
    /// Finds the agent of process `pid`.
    ///
    /// # Errors
    /// See [`TargetError`].
    pub(crate) fn find(pid: u32) -> Result<Self, TargetError> {
        let denied = |error| TargetError::Denied { pid, error };
        let state = match ThreadState::read(pid, pid) {
            Ok(state) if proc::start_time(pid).is_some() => state,
            _ => return Err(TargetError::NoProcess(pid)),
        };
        let mappings = proc::mappings(pid).map_err(denied)?;
        let mut refused = None;
        for (name, mapping) in regions(mappings) {
            // Named by the pid in its own namespace, or in the recorder's if that handed the region over.
            if name.pid != state.inner_tid && name.pid != pid {
                continue;
            }
            if mapping.is_deleted {
                refused = Some(TargetError::Over(pid));
                continue;
            }
            match RequestChannel::open(&within(pid, &mapping.path)) {
                Ok(channel) if is_of(&channel.identity(), &name, pid) => {
                    return Ok(Self::describe(pid, channel, mapping.path));
                }
                Ok(_) => {}
                Err(error) => refused = Some(TargetError::Attach(pid, error)),
            }
        }
        Err(refused.unwrap_or(TargetError::NoAgent(pid)))
    }

    fn describe(pid: u32, mut channel: RequestChannel, region: PathBuf) -> Self {
        let translator = Translator::new(0, channel.identity(), None);
        let kind = channel.region().clock();
        let (signal, events, clock) = (nix::libc::SIGPROF, Vec::new(), TraceClock::start());
        let mut target = Self { pid, channel, region, signal, events, kind, translator, clock };
        target.learn();
        target
    }

    /// Reads the agent's new records.
    pub(crate) fn learn(&mut self) {
        self.clock.refresh();
        let scale = self.scale();
        let Self { channel, signal, events, translator, .. } = self;
        channel.region().durable(&mut |record| {
            if let DurableRecord::Process(process) = &record {
                *signal = process.signal as i32;
            }
            translator.durable(&record, &scale, &BTreeMap::new(), events);
        });
    }

    /// The conversion from the agent's ticks to nanoseconds.
    pub(crate) fn scale(&mut self) -> Scale {
        let region = self.channel.region();
        let (kind, anchor) = (region.clock(), region.anchor());
        self.clock.scale(kind, [anchor]).unwrap_or(Scale::nanoseconds(anchor))
    }

    /// Ticks of the agent's clock, now.
    pub(crate) fn ticks(&self) -> u64 {
        match self.kind {
            ClockKind::Tsc => read_tsc(),
            ClockKind::Monotonic => monotonic_ns(),
        }
    }
}

/// True if the region belongs to this process, and is not one that it merely reads.
fn is_of(identity: &Identity, name: &RegionName, pid: u32) -> bool {
    identity.pid == name.pid
        && identity.region_nonce == name.nonce
        && proc::start_time(pid) == Some(identity.start_time)
}

/// The path by which to open a file of the process, which may have another root directory.
fn within(pid: u32, path: &Path) -> PathBuf {
    let through = process_files::within_root(pid, path);
    if through.exists() { through } else { path.to_owned() }
}

/// The regions among mappings, each once.
fn regions(mappings: Vec<Mapping>) -> Vec<(RegionName, Mapping)> {
    let mut found: Vec<(RegionName, Mapping)> = Vec::new();
    for mapping in mappings.into_iter().filter(Mapping::is_of_file) {
        let Some(name) = mapping.path.file_name().and_then(RegionName::parse) else { continue };
        if found.iter().all(|(_, other)| other.path != mapping.path) {
            found.push((name, mapping));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_found_among_the_mappings() {
        let maps = b"7f00-7f01 r--p 00000000 00:01 3    /usr/lib/libc.so.6\n\
            7f02-7f03 rw-s 00000000 00:02 4    /dev/shm/a b/12-34-00ff.region\n\
            7f03-7f04 ---s 00001000 00:02 4    /dev/shm/a b/12-34-00ff.region\n\
            7f05-7f06 rw-s 00000000 00:02 5    /x/13-34-00fe.region (deleted)\n\
            7f07-7f08 rw-p 00000000 00:00 0\n";
        let lines = maps.split(|&byte| byte == b'\n').filter_map(Mapping::parse);
        let found = regions(lines.collect());
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].1.path, Path::new("/dev/shm/a b/12-34-00ff.region"));
        assert_eq!((found[0].0.nonce, found[0].1.is_deleted), (0xff, false));
        assert_eq!((found[1].0.pid, found[1].1.is_deleted), (13, true));
    }

    #[test]
    fn what_has_no_agent_is_named() {
        let text = |pid| Target::find(pid).err().unwrap().to_string();
        assert!(text(std::process::id()).contains("runs without the agent"));
        assert!(text(u32::MAX).contains("does not exist"));
    }
}
