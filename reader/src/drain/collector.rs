//! Drains all regions of a recording and passes their contents to a listener, as events in timestamp order.
//!
//! One pass: look for new regions, note which processes ended, drain every pool, pass on the samples that are older than
//! the start of the previous pass. Memory is bounded by the merge and by the number of living processes.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use selfwind_profile::profile_file::{Event, ProcessEnd, Setting};
use shm_format::Loss;

use crate::drain::listener::Listener;
use crate::drain::merge::Merge;
use crate::drain::namespaces::Finder;
use crate::drain::pool_size::Shortfall;
use crate::drain::process::{DrainContext, Process};
use crate::drain::regions::Regions;
pub(crate) use crate::drain::regions::{FindError, Scope};
use crate::drain::unacknowledged::{Batch, Unacknowledged};
use crate::drain::unwinder::Unwinder;
use crate::sampling::buffer::Buffer;
use crate::target::attach::{Attached, RegionMemory};
use crate::target::clock::TraceClock;
use crate::target::inject;
use crate::target::process_search::{ProcessSearch, Recorded};
use crate::target::thread_search::{Blocking, NOT_SAMPLED, ThreadSearch};
use crate::terminal::notices::Notices;

/// How often the counters of living processes are written to the profile.
const COUNTERS_EVERY: Duration = Duration::from_millis(250);

/// How often to look for new regions while writers are short of chunks.
const SEARCH_EVERY: Duration = Duration::from_millis(20);
/// How often to acknowledge what is in the profile while no writer is short of chunks.
const ACKNOWLEDGE_EVERY: Duration = Duration::from_millis(250);
/// Passes until a stack that belongs to kernel records has become a sample.
const PASSES_TO_STITCH: u32 = 2;

/// How many processes to remember the last image of, and how many regions the number of.
const LINEAGE_MAX: usize = 1 << 16;

/// The regions of a recording.
pub(crate) struct Collector {
    regions: Regions,
    notices: Notices,
    clock: TraceClock,
    merge: Merge,
    unacknowledged: Unacknowledged,
    acknowledged: Instant,
    searched: Instant,
    /// New regions have been announced since the last search.
    expects_regions: bool,
    processes: BTreeMap<u32, Process>,
    next_id: u32,
    /// Profile-local numbers of regions, for the parents of later ones.
    numbers: BTreeMap<u64, u32>,
    /// Detached regions whose numbers are still in `numbers`, oldest first.
    detached: VecDeque<u64>,
    /// The latest image of each process (boot id, pid, start time), which a later exec refers to.
    lineage: BTreeMap<([u8; 16], u32, u64), u32>,
    /// End events that wait until the samples of their process have been passed on.
    ends: VecDeque<ProcessEnd>,
    /// When the last pass began.
    watermark: u64,
    counters_written: Instant,
    scratch: Vec<u8>,
    unwinder: Unwinder,
    keep: bool,
    /// The file of a region was truncated while it was mapped.
    truncated: bool,
    said_why_missing: bool,
    /// Copy records and leave them in the pool.
    peek: bool,
    /// Leave all records in the pools until the end.
    flight_recorder: bool,
    /// The minimum size of each pool.
    buffer: Buffer,
    /// The sampling of the process found at the start began for this recording.
    began_for_us: bool,
    finder: Finder,
    /// Injects the agent into processes that have not loaded it.
    search: Option<ProcessSearch>,
    /// Samples lost because a pool was full, and one process that lost some.
    shortfall: Option<(u32, Shortfall)>,
}

impl Collector {
    /// Looks for regions in `directories`.
    pub(crate) fn new(directories: Vec<PathBuf>, scope: Scope, notices: Notices) -> Self {
        Self {
            regions: Regions::new(directories, scope, notices),
            notices,
            clock: TraceClock::start(),
            merge: Merge::default(),
            unacknowledged: Unacknowledged::default(),
            acknowledged: Instant::now(),
            searched: Instant::now(),
            expects_regions: false,
            processes: BTreeMap::new(),
            next_id: 0,
            numbers: BTreeMap::new(),
            detached: VecDeque::new(),
            lineage: BTreeMap::new(),
            ends: VecDeque::new(),
            watermark: 0,
            counters_written: Instant::now(),
            scratch: Vec::new(),
            unwinder: Unwinder::new(),
            keep: false,
            truncated: false,
            said_why_missing: false,
            peek: false,
            flight_recorder: false,
            buffer: Buffer::default(),
            began_for_us: false,
            finder: Finder::default(),
            search: None,
            shortfall: None,
        }
    }

    /// Sets the minimum size of each pool. A pool stays smaller if its file system is full.
    pub(crate) fn with_buffer(mut self, buffer: Buffer) -> Self {
        self.buffer = buffer;
        self
    }

    /// The sampling of the processes found began for this recording.
    pub(crate) fn begun_for_us(mut self, began_for_us: bool) -> Self {
        self.began_for_us = began_for_us;
        self
    }

    /// Keeps the regions of dead processes instead of removing them once they are drained.
    pub(crate) fn keep_regions(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Copies records instead of consuming them. Only [`finish`](Self::finish) makes sense after that.
    pub(crate) fn peeking(mut self) -> Self {
        (self.keep, self.peek) = (true, true);
        self
    }

    /// Leaves all records in their pools until the end, and removes the oldest regions of dead processes when they take too
    /// much memory.
    pub(crate) fn into_flight_recorder(mut self) -> Self {
        self.flight_recorder = true;
        self
    }

    /// Records all processes whose regions are in the session's directory, beside the one in scope.
    pub(crate) fn add_session(&mut self, directory: PathBuf) {
        self.regions.add_session(directory);
    }

    /// Finds the region of `pid`, or says why there is none. Returns when the region was created (CLOCK_MONOTONIC, ns).
    pub(crate) fn find_process(&mut self, pid: u32) -> Result<u64, FindError> {
        self.regions.find_process(pid)
    }

    /// Has the agent injected into processes of the recording that do not load it.
    ///
    /// # Errors
    /// If the thread for that cannot be started.
    pub(crate) fn search_processes(
        &mut self,
        recorded: Recorded,
        settings: inject::Settings,
    ) -> io::Result<()> {
        self.search = Some(ProcessSearch::start(recorded, settings)?);
        Ok(())
    }

    /// Ends the sampling of processes into which the agent was injected.
    pub(crate) fn release_processes(&mut self) {
        for reason in self.search.take().map(ProcessSearch::end).into_iter().flatten() {
            self.notices.say(reason);
        }
    }

    /// Starts the search for threads that no agent has registered.
    ///
    /// # Errors
    /// If its thread cannot be started.
    pub(super) fn search_threads(&self) -> io::Result<ThreadSearch> {
        let only = match self.regions.scope() {
            Scope::Everything | Scope::Living => None,
            Scope::Process(pid) => Some(pid),
        };
        ThreadSearch::start(self.regions.directories().to_vec(), only)
    }

    /// Reports threads that the search found and that block the sampling signal.
    pub(super) fn report_blocking(
        &self,
        search: &ThreadSearch,
        listener: &mut dyn Listener,
    ) -> io::Result<()> {
        for Blocking { region_nonce, text } in search.blocking() {
            if let Some(&process) = self.numbers.get(&region_nonce) {
                listener.event(Event::Setting(Setting { process, key: NOT_SAMPLED.into(), value: text }))?;
            }
        }
        Ok(())
    }

    /// True once the process in scope has ended and is drained, even if others of the session are running.
    pub(crate) fn has_ended(&self) -> bool {
        let is_one = matches!(self.regions.scope(), Scope::Process(_));
        let mut others = self.processes.values();
        is_one
            && others.all(|process| self.regions.is_of_session(process.path()))
            && (self.truncated || self.regions.is_over())
    }

    /// True if a notice has said why a process is not recorded.
    pub(crate) fn said_why_missing(&self) -> bool {
        self.said_why_missing
    }

    /// Checks whether some process is still running.
    pub(crate) fn any_running(&mut self) -> bool {
        self.processes.values_mut().any(Process::is_running)
    }

    /// True while writers are short of chunks that have been read but not acknowledged.
    pub(super) fn is_urgent(&self) -> bool {
        self.unacknowledged.is_urgent()
    }

    /// True while there is a complete chunk that the next pass would drain.
    pub(crate) fn has_complete(&mut self) -> bool {
        !self.flight_recorder && self.processes.values_mut().any(Process::has_complete)
    }

    /// Has the next pass look for new regions in any case: processes have announced them.
    pub(crate) fn expect_regions(&mut self) {
        self.expects_regions = true;
    }

    /// How soon to run the next pass if the doorbell does not ring. Only processes of the recorder's own session ring it, unless
    /// they do not reach the session directory.
    pub(crate) fn poll_interval(&self) -> Duration {
        let all_ring = self.regions.scope() == Scope::Everything
            && !self.search.as_ref().is_some_and(ProcessSearch::hands_over);
        let intervals = self.processes.values().filter(|_| !all_ring).map(Process::poll_interval);
        intervals.min().unwrap_or(Duration::MAX)
    }

    /// Drains everything that is there now.
    pub(crate) fn pass(&mut self, listener: &mut dyn Listener) -> io::Result<()> {
        let began = self.clock.refresh();
        if self.flight_recorder {
            self.regions.prune_dead();
            return Ok(());
        }
        let is_expected = std::mem::take(&mut self.expects_regions);
        if is_expected || !self.is_urgent() || self.searched.elapsed() >= SEARCH_EVERY {
            self.attach_new();
        }
        self.drain(false, listener)?;
        let until = if self.unacknowledged.is_stuck() { u64::MAX } else { self.watermark };
        self.pass_on(until, listener)?;
        self.watermark = began;
        self.acknowledge(listener)?;
        if self.counters_written.elapsed() >= COUNTERS_EVERY {
            self.counters_written = Instant::now();
            for process in self.processes.values_mut() {
                if let Some(counters) = process.changed_counters(&self.clock) {
                    listener.event(Event::Counters(counters))?;
                }
            }
        }
        Ok(())
    }

    /// Tells the processes that so many unwind tables were made, unless they know.
    pub(super) fn tell_tables(&mut self, made: u64) {
        self.processes.values_mut().for_each(|process| process.tell_tables(made));
    }

    /// Drains everything committed so far and passes it on. Returns the end events that the living processes would have if
    /// the recording ended now.
    pub(crate) fn drain_for_snapshot(&mut self, listener: &mut dyn Listener) -> io::Result<Vec<Event>> {
        self.pass(listener)?;
        self.pass_on(u64::MAX, listener)?;
        let mut ends = Vec::new();
        for process in self.processes.values_mut() {
            process.end_events(&self.clock, &mut ends);
        }
        Ok(ends)
    }

    /// The last pass: drains what living processes have committed, passes everything on, and detaches from all regions.
    pub(crate) fn finish(&mut self, listener: &mut dyn Listener) -> io::Result<()> {
        self.clock.refresh();
        self.attach_new();
        self.said_why_missing = self.regions.report_missing();
        self.drain(true, listener)?;
        self.pass_on(u64::MAX, listener)?;
        if let Some((process, shortfall)) = self.shortfall.take() {
            let (key, value) = (Loss::PoolFull.name().into(), shortfall.to_string());
            listener.event(Event::Setting(Setting { process, key, value }))?;
        }
        listener.flush()?;
        for batch in self.unacknowledged.release_all() {
            self.release_batch(batch);
        }
        Ok(())
    }

    /// Acknowledges what is in the profile.
    fn acknowledge(&mut self, listener: &mut dyn Listener) -> io::Result<()> {
        self.unacknowledged.end_pass(self.merge.arrivals());
        let oldest = self.merge.oldest_arrival();
        let is_time = self.unacknowledged.is_urgent() || self.acknowledged.elapsed() >= ACKNOWLEDGE_EVERY;
        if is_time && self.unacknowledged.has_left_merge(oldest) {
            self.acknowledged = Instant::now();
            listener.flush()?;
            for batch in self.unacknowledged.release(oldest) {
                self.release_batch(batch);
            }
        }
        Ok(())
    }

    fn release_batch(&mut self, batch: Batch) {
        for (id, positions) in batch.positions {
            if let Some(process) = self.processes.get_mut(&id) {
                process.acknowledge(&positions);
            }
        }
        self.detach(batch.ended);
    }

    /// Detaches from processes that have ended.
    fn detach(&mut self, ended: Vec<Process>) {
        let mut removed = Vec::new();
        for process in ended {
            if let Some((path, memory)) = process.detach(self.keep) {
                self.regions.forget(&path);
                removed.push(memory);
            }
        }
        if !removed.is_empty() {
            free(removed);
        }
    }

    fn attach_new(&mut self) {
        self.searched = Instant::now();
        for (path, attached) in self.regions.new_regions() {
            self.add_process(path, attached);
        }
    }

    fn add_process(&mut self, path: PathBuf, attached: Attached) {
        let known = self.processes.values().filter(|process| process.is_live()).map(Process::located);
        let located = self.finder.find(attached.identity(), known);
        let identity = located.identity;
        // A process has a second region after an exec: the older image is gone.
        let created = attached.anchor().monotonic_ns;
        let line = (identity.boot_id, identity.pid, identity.start_time);
        // The older image may already have been drained and detached.
        let (mut previous, mut superseded) = (self.lineage.get(&line).copied(), false);
        for (&id, process) in &mut self.processes {
            if !process.is_same_process(&identity) {
                continue;
            }
            if process.began() <= created {
                process.supersede();
                previous = Some(id);
            } else {
                superseded = true;
            }
        }
        if self.lineage.len() >= LINEAGE_MAX {
            self.lineage.clear();
        }
        let id = self.next_id;
        if !superseded {
            self.lineage.insert(line, id);
        }
        self.next_id += 1;
        self.notices.detail(format_args!("process {}: region {}", identity.pid, path.display()));
        self.numbers.insert(identity.region_nonce, id);
        let preexisting = self.regions.scope() != Scope::Everything;
        let mut process = Process::new(id, path, attached, located, previous, preexisting, self.buffer);
        if superseded {
            process.supersede();
        }
        if self.began_for_us {
            process.begin_for_us();
        }
        self.processes.insert(id, process);
    }

    fn drain(&mut self, last: bool, listener: &mut dyn Listener) -> io::Result<()> {
        let (mut ended, mut batch) = (Vec::new(), Batch::default());
        let (mut events, mut samples) = (Vec::new(), Vec::new());
        for (&id, process) in &mut self.processes {
            let mut context = DrainContext {
                clock: &self.clock,
                numbers: &self.numbers,
                scratch: &mut self.scratch,
                merge: &mut self.merge,
                samples: &mut samples,
                unwinder: &mut self.unwinder,
                begins_ns: listener.begins_ns(),
                last,
                peek: self.peek,
            };
            if let Some(end) = process.drain(&mut context, &mut events) {
                ended.push(id);
                self.ends.push_back(end);
                if let Some(shortfall) = process.shortfall() {
                    let others = self.shortfall.map(|(_, others)| others);
                    self.shortfall = Some((id, shortfall.combine(others)));
                }
            }
            for event in events.drain(..) {
                listener.event(event)?;
            }
            samples.drain(..).for_each(|sample| self.merge.push_owned(sample));
            while self.merge.is_full()
                && let Some(oldest) = self.merge.pop(u64::MAX)
            {
                listener.sample(oldest)?;
            }
            batch.urgent |= process.is_urgent();
            batch.passes_to_merge =
                batch.passes_to_merge.max(if process.has_rings() { PASSES_TO_STITCH } else { 0 });
            batch.positions.push((id, process.new_positions()));
        }
        batch.positions.retain(|(_, positions)| !positions.is_empty());
        let mut empty = Vec::new();
        for id in ended {
            let Some(mut process) = self.processes.remove(&id) else { continue };
            self.detached.push_back(process.nonce());
            if self.detached.len() > LINEAGE_MAX
                && let Some(oldest) = self.detached.pop_front()
            {
                self.numbers.remove(&oldest);
            }
            if process.is_truncated() {
                self.truncated = true;
                let pid = process.pid();
                self.notices.say(format_args!(
                    "process {pid}: its shared memory file was truncated during the recording; its samples end there"
                ));
            }
            if process.never_fired() { &mut empty } else { &mut batch.ended }.push(process);
        }
        self.detach(empty);
        self.unacknowledged.add(batch);
        Ok(())
    }

    /// Passes on everything older than `watermark`.
    fn pass_on(&mut self, watermark: u64, listener: &mut dyn Listener) -> io::Result<()> {
        while let Some(sample) = self.merge.pop(watermark) {
            listener.sample(sample)?;
        }
        while self.ends.front().is_some_and(|end| end.ns < watermark) {
            if let Some(end) = self.ends.pop_front() {
                listener.event(Event::ProcessEnd(end))?;
            }
        }
        Ok(())
    }
}

/// Frees the memory of removed regions in a thread of its own: the kernel takes a millisecond for 8 MB.
fn free(removed: Vec<RegionMemory>) {
    // Without a thread it is freed here.
    let _ = std::thread::Builder::new().name("selfwind-free".into()).spawn(move || drop(removed));
}
