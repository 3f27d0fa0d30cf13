//! Drains the regions of a recording, and tells their story as events in the order of time.
//!
//! One pass: look for new regions, note which processes ended, drain every ring, let go of the samples that
//! are older than the last pass. Memory is bounded by the merge and by the number of living processes.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use selfwind_profile::profile_file::{Event, ProcessEnd, Setting};
use shm_format::Loss;

use crate::drain::demand::Shortfall;
use crate::drain::held::{Held, Taken};
use crate::drain::listener::Listener;
use crate::drain::merge::Merge;
use crate::drain::process::{Process, Surroundings};
use crate::drain::regions::Regions;
pub(crate) use crate::drain::regions::{FindError, Scope};
use crate::drain::unwinder::Unwinder;
use crate::sampling::buffer::Buffer;
use crate::target::attach::Attached;
use crate::target::clock::TraceClock;
use crate::target::thread_search::{Blocking, NOT_SAMPLED, ThreadSearch};
use crate::terminal::notices::Notices;

/// How often the counters of living processes go into the profile.
const COUNTERS_EVERY: Duration = Duration::from_millis(250);

/// How often new regions are looked for while writers may soon wait.
const SEARCH_EVERY: Duration = Duration::from_millis(20);
/// How often rings are told what is safe, if no writer waits for it.
const ACKNOWLEDGE_EVERY: Duration = Duration::from_millis(250);
/// Passes until a stack that answers the kernel is a sample.
const STITCHED: u32 = 2;

/// Processes whose last image is remembered, and regions whose number is; enough for all that run at a time.
const LINEAGE_KEPT: usize = 1 << 16;

/// The regions of a recording.
pub(crate) struct Collector {
    regions: Regions,
    notices: Notices,
    clock: TraceClock,
    merge: Merge,
    held: Held,
    acknowledged: Instant,
    searched: Instant,
    processes: BTreeMap<u32, Process>,
    next_id: u32,
    /// Profile-local numbers of regions, for the parents of later ones.
    numbers: BTreeMap<u64, u32>,
    /// Regions let go of, whose numbers are still known.
    former: VecDeque<u64>,
    /// The last image of processes that may have another one to come.
    lineage: BTreeMap<([u8; 16], u32, u64), u32>,
    /// Ends that wait until their process's samples are out.
    ends: VecDeque<ProcessEnd>,
    /// When the last pass began.
    watermark: u64,
    counted: Instant,
    scratch: Vec<u8>,
    unwinder: Unwinder,
    keep: bool,
    /// A region was made shorter under us.
    cut: bool,
    /// Copy what is there, take nothing.
    look: bool,
    /// Leave everything in the rings until the end.
    rest: bool,
    /// What each pool is to have at least.
    buffer: Buffer,
    /// What was lost for want of room, and a process that lost it.
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
            held: Held::default(),
            acknowledged: Instant::now(),
            searched: Instant::now(),
            processes: BTreeMap::new(),
            next_id: 0,
            numbers: BTreeMap::new(),
            former: VecDeque::new(),
            lineage: BTreeMap::new(),
            ends: VecDeque::new(),
            watermark: 0,
            counted: Instant::now(),
            scratch: Vec::new(),
            unwinder: Unwinder::new(),
            keep: false,
            cut: false,
            look: false,
            rest: false,
            buffer: Buffer::default(),
            shortfall: None,
        }
    }

    /// Gives each pool this much room at least, where that can be had.
    pub(crate) fn with_buffer(mut self, buffer: Buffer) -> Self {
        self.buffer = buffer;
        self
    }

    /// Leaves the regions of dead processes where they are, instead of removing them once they are drained.
    pub(crate) fn keep_regions(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Copies records instead of taking them: only [`finish`](Self::finish) makes sense then.
    pub(crate) fn looking(mut self) -> Self {
        (self.keep, self.look) = (true, true);
        self
    }

    /// Leaves all records in their rings until the end, and removes the oldest regions of dead processes when they get
    /// too large together.
    pub(crate) fn at_rest(mut self) -> Self {
        self.rest = true;
        self
    }

    /// Checks that there is a region of `pid`, or says why not. When the process began it, CLOCK_MONOTONIC.
    pub(crate) fn find_process(&mut self, pid: u32) -> Result<u64, FindError> {
        self.regions.find_process(pid)
    }

    /// Begins to look for threads that no agent knows of.
    ///
    /// # Errors
    /// When there can be no thread for it.
    pub(super) fn search_threads(&self) -> io::Result<ThreadSearch> {
        let only = match self.regions.scope() {
            Scope::Everything | Scope::Living => None,
            Scope::Process(pid) => Some(pid),
        };
        ThreadSearch::start(self.regions.directories().to_vec(), only)
    }

    /// Tells of the threads that a search found and that cannot be sampled.
    pub(super) fn tell_blocking(&self, search: &ThreadSearch, listener: &mut dyn Listener) -> io::Result<()> {
        for Blocking { region_nonce, text } in search.blocking() {
            if let Some(&process) = self.numbers.get(&region_nonce) {
                listener.event(Event::Setting(Setting { process, key: NOT_SAMPLED.into(), value: text }))?;
            }
        }
        Ok(())
    }

    /// True when the processes in scope have ended and are drained.
    pub(crate) fn nobody_left(&self) -> bool {
        let is_one = matches!(self.regions.scope(), Scope::Process(_));
        is_one && self.processes.is_empty() && (self.cut || self.regions.is_over())
    }

    /// True while a process may still be sampling.
    pub(crate) fn somebody_left(&self) -> bool {
        self.processes.values().any(|process| process.is_live())
    }

    /// True while writers wait for chunks that have been read.
    pub(super) fn is_urgent(&self) -> bool {
        self.held.is_urgent()
    }

    /// True while a chunk waits that the next pass would take.
    pub(crate) fn has_complete(&mut self) -> bool {
        !self.rest && self.processes.values_mut().any(Process::has_complete)
    }

    /// How soon to look again, if nobody rings. The processes of our own session ring.
    pub(crate) fn turn(&self) -> Duration {
        let turns =
            self.processes.values().filter(|_| self.regions.scope() != Scope::Everything).map(Process::turn);
        turns.min().unwrap_or(Duration::MAX)
    }

    /// Drains everything that is there now.
    pub(crate) fn pass(&mut self, listener: &mut dyn Listener) -> io::Result<()> {
        let began = self.clock.refresh();
        if self.rest {
            self.regions.forget_oldest();
            return Ok(());
        }
        if !self.is_urgent() || self.searched.elapsed() >= SEARCH_EVERY {
            self.attach_new();
        }
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

    /// Reads everything that was committed before. Returns the events by which the recording of the
    /// living processes would end here.
    pub(crate) fn so_far(&mut self, listener: &mut dyn Listener) -> io::Result<Vec<Event>> {
        self.pass(listener)?;
        self.release(u64::MAX, listener)?;
        let mut ends = Vec::new();
        for process in self.processes.values_mut() {
            process.so_far(&self.clock, &mut ends);
        }
        Ok(ends)
    }

    /// The last pass: what living processes have committed is taken, and everything is let go of.
    pub(crate) fn finish(&mut self, listener: &mut dyn Listener) -> io::Result<()> {
        self.clock.refresh();
        self.attach_new();
        self.regions.tell_missing();
        self.drain(true, listener)?;
        self.release(u64::MAX, listener)?;
        if let Some((process, shortfall)) = self.shortfall.take() {
            let (key, value) = (Loss::PoolFull.name().into(), shortfall.to_string());
            listener.event(Event::Setting(Setting { process, key, value }))?;
        }
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
                self.regions.forget(&removed);
            }
        }
    }

    fn attach_new(&mut self) {
        self.searched = Instant::now();
        for (path, attached) in self.regions.news() {
            self.adopt(path, attached);
        }
    }

    fn adopt(&mut self, path: PathBuf, attached: Attached) {
        let identity = attached.identity();
        // A process with a second region has executed another program: the older image is gone.
        let began = attached.anchor().monotonic_ns;
        let line = (identity.boot_id, identity.pid, identity.start_time);
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
        let late = self.regions.scope() != Scope::Everything;
        let mut process = Process::new(id, path, attached, previous, late, self.buffer);
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
                merge: &mut self.merge,
                samples: &mut samples,
                unwinder: &mut self.unwinder,
                last,
                look: self.look,
            };
            if let Some(end) = process.drain(&mut around, &mut events) {
                ended.push(id);
                self.ends.push_back(end);
                if let Some(shortfall) = process.shortfall() {
                    let others = self.shortfall.map(|(_, others)| others);
                    self.shortfall = Some((id, shortfall.and(others)));
                }
            }
            for event in events.drain(..) {
                listener.event(event)?;
            }
            samples.drain(..).for_each(|sample| self.merge.push_whole(sample));
            while self.merge.is_full()
                && let Some(oldest) = self.merge.pop(u64::MAX)
            {
                listener.sample(oldest)?;
            }
            taken.urgent |= process.keeps_chunks();
            taken.patience = taken.patience.max(if process.is_stitched() { STITCHED } else { 0 });
            taken.places.push((id, process.news()));
        }
        taken.places.retain(|(_, places)| !places.is_empty());
        for id in ended {
            let Some(mut process) = self.processes.remove(&id) else { continue };
            self.former.push_back(process.nonce());
            if self.former.len() > LINEAGE_KEPT
                && let Some(oldest) = self.former.pop_front()
            {
                self.numbers.remove(&oldest);
            }
            if process.is_cut() {
                self.cut = true;
                let pid = process.pid();
                self.notices.say(format_args!(
                    "process {pid}: its shared memory file was truncated during the recording; its samples end there"
                ));
            }
            if !process.is_empty() {
                taken.gone.push(process);
            } else if let Some(removed) = process.let_go(self.keep) {
                self.regions.forget(&removed);
            }
        }
        self.held.take(taken);
        Ok(())
    }

    /// Lets go of what is older than `watermark`.
    fn release(&mut self, watermark: u64, listener: &mut dyn Listener) -> io::Result<()> {
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
