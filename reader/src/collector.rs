//! Finds the regions of a recording, drains them, and tells their story as events in the order of time.
//!
//! One pass: look for new regions, note which processes ended, drain every ring, let go of the samples that
//! are older than the last pass. Memory is bounded by the merge and by the number of living processes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use crate::attach::{AttachError, Attached};
use crate::clock::TraceClock;
use crate::follow::Listener;
use crate::held::{Held, Taken};
use crate::liveness::{self, Liveness};
use crate::merge::Merge;
use crate::notices::Notices;
use crate::process::{Process, RegionName, Surroundings};
use crate::profile_file::{Event, ProcessEnd};

/// How often the counters of living processes go into the profile.
const COUNTERS_EVERY: Duration = Duration::from_millis(250);

/// How often rings are told what is safe, if no writer waits for it.
const ACKNOWLEDGE_EVERY: Duration = Duration::from_millis(250);
/// Passes until a stack that answers the kernel is a sample.
const STITCHED: u32 = 2;

/// How often a flight recorder looks for regions that it can forget.
const FORGET_EVERY: Duration = Duration::from_secs(1);
/// Bytes that the regions of dead processes may hold in a flight recorder.
const DEAD_LIMIT: u64 = 256 << 20;

/// Bytes shown of a note that an agent left.
const NOTE_LIMIT: usize = 200;
/// Processes whose last image is remembered; enough for all that run at a time.
const LINEAGE_KEPT: usize = 1 << 16;

/// Which processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All that appear, also those that are gone by then.
    Everything,
    /// All that live.
    Living,
    /// One process, and the images it executes.
    Process(u32),
}

/// Nothing to record at that process id.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// There is no such process and no region of one.
    #[error("process {0} does not exist and left no recording; `selfwind list` shows what there is")]
    NoProcess(u32),
    /// It runs without the agent.
    #[error(
        "process {0} runs without the agent; `selfwind attach -p {0}` puts it in, or start the program with LD_PRELOAD=$(selfwind agent-path)"
    )]
    NoAgent(u32),
    /// There is a region, and it cannot be attached.
    #[error("process {0}: {1}")]
    Attach(u32, AttachError),
}

/// The regions of a recording.
pub struct Collector {
    directories: Vec<PathBuf>,
    scope: Scope,
    notices: Notices,
    clock: TraceClock,
    merge: Merge,
    held: Held,
    acknowledged: Instant,
    processes: BTreeMap<u32, Process>,
    next_id: u32,
    /// Files that need no second look.
    seen: BTreeSet<PathBuf>,
    /// Profile-local numbers of regions, for the parents of later ones.
    numbers: BTreeMap<u64, u32>,
    /// The last image of processes that may have another one to come.
    lineage: BTreeMap<(u32, u64), u32>,
    /// Ends that wait until their process's samples are out.
    ends: VecDeque<ProcessEnd>,
    /// When the last pass began.
    watermark: u64,
    counted: Instant,
    scratch: Vec<u8>,
    keep: bool,
    /// A region was made shorter under us.
    cut: bool,
    /// Copy what is there, take nothing.
    look: bool,
    /// Leave everything in the rings until the end.
    rest: bool,
}

impl Collector {
    /// Looks for regions in `directories`.
    pub fn new(directories: Vec<PathBuf>, scope: Scope, notices: Notices) -> Self {
        Self {
            directories,
            scope,
            notices,
            clock: TraceClock::start(),
            merge: Merge::default(),
            held: Held::default(),
            acknowledged: Instant::now(),
            processes: BTreeMap::new(),
            next_id: 0,
            seen: BTreeSet::new(),
            numbers: BTreeMap::new(),
            lineage: BTreeMap::new(),
            ends: VecDeque::new(),
            watermark: 0,
            counted: Instant::now(),
            scratch: Vec::new(),
            keep: false,
            cut: false,
            look: false,
            rest: false,
        }
    }

    /// Leaves the regions of dead processes where they are, instead of removing them once they are drained.
    pub fn keep_regions(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Copies records instead of taking them: only [`finish`](Self::finish) makes sense then.
    pub fn looking(mut self) -> Self {
        (self.keep, self.look) = (true, true);
        self
    }

    /// Leaves all records in their rings until the end, and removes the oldest regions of dead processes when they get
    /// too large together.
    pub fn at_rest(mut self) -> Self {
        self.rest = true;
        self
    }

    /// Checks that there is a region of `pid`, or says why not. When the process began it, CLOCK_MONOTONIC.
    pub fn find_process(&mut self, pid: u32) -> Result<u64, FindError> {
        let mut refused = None;
        for path in self.region_files() {
            match Attached::open(&path) {
                Ok(region) => return Ok(region.anchor().monotonic_ns),
                Err(error) => refused = Some(FindError::Attach(pid, error)),
            }
        }
        Err(refused.unwrap_or_else(|| match liveness::start_time(pid) {
            Some(_) => FindError::NoAgent(pid),
            None => FindError::NoProcess(pid),
        }))
    }

    /// True when the processes in scope have ended and are drained.
    pub fn nobody_left(&self) -> bool {
        match self.scope {
            Scope::Everything | Scope::Living => false,
            Scope::Process(pid) => {
                self.processes.is_empty() && (self.cut || liveness::start_time(pid).is_none())
            }
        }
    }

    /// True while a process may still be sampling.
    pub fn somebody_left(&self) -> bool {
        self.processes.values().any(|process| process.is_live())
    }

    /// True while writers wait for chunks that have been read.
    pub fn is_urgent(&self) -> bool {
        self.held.is_urgent()
    }

    /// Drains everything that is there now.
    pub fn pass(&mut self, listener: &mut dyn Listener) -> io::Result<()> {
        let began = self.clock.refresh();
        if self.rest {
            self.forget_oldest();
            return Ok(());
        }
        self.attach_new();
        self.drain(false, listener)?;
        let late = if self.held.is_stuck() { u64::MAX } else { self.watermark };
        self.release(late, listener)?;
        self.watermark = began;
        self.acknowledge(listener)?;
        if self.counted.elapsed() >= COUNTERS_EVERY {
            self.counted = Instant::now();
            for process in self.processes.values_mut() {
                if let Some(counters) = process.changed_counters(&self.clock) {
                    listener.event(Event::Counters(counters))?;
                }
            }
        }
        Ok(())
    }

    /// The last pass: what living processes have committed is taken, and everything is let go of.
    pub fn finish(&mut self, listener: &mut dyn Listener) -> io::Result<()> {
        self.clock.refresh();
        self.attach_new();
        self.read_notes();
        self.drain(true, listener)?;
        self.release(u64::MAX, listener)?;
        listener.save()?;
        for taken in self.held.release_all() {
            self.let_go(taken);
        }
        Ok(())
    }

    /// Tells rings what of theirs is safe.
    fn acknowledge(&mut self, listener: &mut dyn Listener) -> io::Result<()> {
        self.held.end_pass(self.merge.arrivals());
        let oldest = self.merge.oldest();
        let is_time = self.held.is_urgent() || self.acknowledged.elapsed() >= ACKNOWLEDGE_EVERY;
        if is_time && self.held.is_due(oldest) {
            self.acknowledged = Instant::now();
            listener.save()?;
            for taken in self.held.release(oldest) {
                self.let_go(taken);
            }
        }
        Ok(())
    }

    fn let_go(&mut self, taken: Taken) {
        for (id, places) in taken.places {
            if let Some(process) = self.processes.get_mut(&id) {
                process.acknowledge(&places);
            }
        }
        for process in taken.gone {
            if let Some(removed) = process.let_go(self.keep) {
                self.seen.remove(&removed);
            }
        }
    }

    fn region_files(&self) -> Vec<PathBuf> {
        let mut found: Vec<(RegionName, PathBuf)> = self
            .directories
            .iter()
            .flat_map(|directory| std::fs::read_dir(directory).into_iter().flatten().flatten())
            .filter_map(|entry| Some((RegionName::parse(&entry.file_name())?, entry.path())))
            .filter(|(name, path)| match self.scope {
                Scope::Everything => true,
                Scope::Living => {
                    self.seen.contains(path) || Liveness::follow(name.pid, name.start_time).is_running()
                }
                Scope::Process(pid) => pid == name.pid,
            })
            .collect();
        found.sort();
        found.into_iter().map(|(_, path)| path).collect()
    }

    /// Removes the oldest regions of dead processes, as far as they hold more than a flight recorder may.
    fn forget_oldest(&mut self) {
        if self.counted.elapsed() < FORGET_EVERY {
            return;
        }
        self.counted = Instant::now();
        let mut dead: Vec<(SystemTime, u64, PathBuf)> = self
            .region_files()
            .into_iter()
            .filter(|path| {
                let name = path.file_name().and_then(RegionName::parse);
                name.is_some_and(|name| !Liveness::follow(name.pid, name.start_time).is_running())
            })
            .filter_map(|path| {
                let metadata = std::fs::metadata(&path).ok()?;
                // Blocks are counted in units of 512 bytes, whatever the file system's (stat(2)).
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

    /// Tells what agents could not do: they leave a note where their region would have been.
    fn read_notes(&mut self) {
        if self.scope != Scope::Everything {
            return;
        }
        for entry in
            self.directories.iter().flat_map(|path| std::fs::read_dir(path).into_iter().flatten().flatten())
        {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "failed")
                && self.seen.insert(path.clone())
            {
                // A link that leads nowhere holds the text.
                let reason = std::fs::read_link(&path).map(|text| text.into_os_string().into_encoded_bytes());
                let reason = reason.unwrap_or_default();
                let reason =
                    String::from_utf8_lossy(&reason[..reason.len().min(NOTE_LIMIT)]).trim().to_owned();
                let pid =
                    entry.file_name().to_string_lossy().split('-').next().unwrap_or_default().to_owned();
                self.notices.say(format_args!("process {pid} is not recorded: {reason}"));
            }
        }
    }

    fn attach_new(&mut self) {
        let mut found = Vec::new();
        for path in self.region_files() {
            if self.seen.contains(&path) {
                continue;
            }
            match Attached::open(&path) {
                Ok(attached) => found.push((path, attached)),
                // Its process is still making it.
                Err(AttachError::Unfinished) => {}
                Err(error) => {
                    self.notices.say(format_args!("{}: {error}; it is left alone", path.display()));
                    self.seen.insert(path);
                }
            }
        }
        // Parents and previous images have numbers before those who come from them.
        found.sort_by_key(|(_, attached)| attached.anchor().monotonic_ns);
        for (path, attached) in found {
            self.adopt(path, attached);
        }
    }

    fn adopt(&mut self, path: PathBuf, attached: Attached) {
        let identity = attached.identity();
        // A process with a second region has executed another program: the older image is gone.
        let began = attached.anchor().monotonic_ns;
        let line = (identity.pid, identity.start_time);
        // The older image may have been drained and let go of already.
        let (mut previous, mut superseded) = (self.lineage.get(&line).copied(), false);
        for (&id, process) in &mut self.processes {
            if !process.is_same_process(&identity) {
                continue;
            }
            if process.began() <= began {
                process.supersede();
                previous = Some(id);
            } else {
                superseded = true;
            }
        }
        if self.lineage.len() >= LINEAGE_KEPT {
            self.lineage.clear();
        }
        let id = self.next_id;
        if !superseded {
            self.lineage.insert(line, id);
        }
        self.next_id += 1;
        self.notices.detail(format_args!("process {}: region {}", identity.pid, path.display()));
        self.numbers.insert(identity.region_nonce, id);
        self.seen.insert(path.clone());
        let mut process = Process::new(id, path, attached, previous, self.scope != Scope::Everything);
        if superseded {
            process.supersede();
        }
        self.processes.insert(id, process);
    }

    fn drain(&mut self, last: bool, listener: &mut dyn Listener) -> io::Result<()> {
        let (mut ended, mut taken) = (Vec::new(), Taken::default());
        let (mut events, mut samples) = (Vec::new(), Vec::new());
        for (&id, process) in &mut self.processes {
            let mut around = Surroundings {
                clock: &self.clock,
                numbers: &self.numbers,
                scratch: &mut self.scratch,
                samples: &mut samples,
                last,
                look: self.look,
            };
            if let Some(end) = process.drain(&mut around, &mut events) {
                ended.push(id);
                self.ends.push_back(end);
            }
            for event in events.drain(..) {
                listener.event(event)?;
            }
            for sample in samples.drain(..) {
                if let Some(oldest) = self.merge.push(sample) {
                    listener.event(Event::Sample(oldest))?;
                }
            }
            taken.urgent |= process.keeps_chunks();
            taken.patience = taken.patience.max(if process.is_stitched() { STITCHED } else { 0 });
            taken.places.push((id, process.news()));
        }
        taken.places.retain(|(_, places)| !places.is_empty());
        for id in ended {
            let Some(mut process) = self.processes.remove(&id) else { continue };
            if process.is_cut() {
                self.cut = true;
                let pid = process.pid();
                self.notices.say(format_args!(
                    "process {pid}: its region file was made shorter while it was recorded; its profile ends there"
                ));
            }
            if !process.is_empty() {
                taken.gone.push(process);
            } else if let Some(removed) = process.let_go(self.keep) {
                self.seen.remove(&removed);
            }
        }
        self.held.take(taken);
        Ok(())
    }

    /// Lets go of what is older than `watermark`.
    fn release(&mut self, watermark: u64, listener: &mut dyn Listener) -> io::Result<()> {
        while let Some(sample) = self.merge.pop(watermark) {
            listener.event(Event::Sample(sample))?;
        }
        while self.ends.front().is_some_and(|end| end.ns < watermark) {
            if let Some(end) = self.ends.pop_front() {
                listener.event(Event::ProcessEnd(end))?;
            }
        }
        Ok(())
    }
}
