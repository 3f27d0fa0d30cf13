//! One recorded process image: drains its region, and notices when the process ends.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use selfwind_profile::profile_file::{Counters, CountersAt, Event, ProcessEnd, ProcessFate, Sample, Setting};
use shm_format::{
    AlikeAllocations, ChunkInfo, CountersSnapshot, CountsView, DurableRecord, Identity, Mode, Pass,
    RecordRef, Repeat, Scale, StackHead,
};

use crate::drain::chains::Chains;
use crate::drain::copies::Copies;
use crate::drain::counted_allocations::{CountedAllocations, More};
use crate::drain::in_use;
use crate::drain::merge::Merge;
use crate::drain::namespaces::Located;
use crate::drain::pool_size::{PoolSizer, Shortfall};
use crate::drain::record_decoder::{Allocation, DrainCounts, PassState, RecordDecoder};
use crate::drain::recurring_stacks::{Found, RecurringStacks};
use crate::drain::sequences::Sequences;
use crate::drain::stitch::Stitcher;
use crate::drain::unwinder::Unwinder;
use crate::sampling::buffer::Buffer;
use crate::target::attach::{Attached, RegionMemory};
use crate::target::clock::TraceClock;
use crate::target::liveness::Liveness;
use crate::target::translate::{self, Translator};

/// Key of the setting that says how the process's stacks are unwound.
const UNWIND: &[u8] = b"unwind";
/// What is said of threads whose perf events a timer has replaced.
const SWITCHING: (&str, &str) = (
    "threads that switch often",
    "cpu timers instead of perf, without kernel stacks, because each switch would pay for the timer of an event (-e perf keeps the events)",
);
/// How often thread names are read again. A stack's wait for its kernel records is counted in units of this.
const REFRESH_INTERVAL: Duration = Duration::from_millis(250);
/// Size of a record's header in the pool, in bytes.
const RECORD_HEADER: u64 = 8;

/// Read positions: chunk index, and how far the chunk was read.
pub(crate) type Positions = Vec<(u32, u64)>;

/// What draining a process needs besides its region.
pub(crate) struct DrainContext<'a> {
    /// Turns ticks into nanoseconds.
    pub(crate) clock: &'a TraceClock,
    /// Profile-local numbers of regions by their nonce.
    pub(crate) numbers: &'a BTreeMap<u64, u32>,
    /// Buffer for one chunk.
    pub(crate) scratch: &'a mut Vec<u8>,
    /// Receives the samples, which are in order per thread only.
    pub(crate) merge: &'a mut Merge,
    /// Samples that own their frames and have not been pushed to `merge` yet.
    pub(crate) samples: &'a mut Vec<Sample>,
    /// Unwinds copies of stacks.
    pub(crate) unwinder: &'a mut Unwinder,
    /// When the recording began (CLOCK_MONOTONIC, ns).
    pub(crate) begins_ns: u64,
    /// This is the last pass, even if the process is still running.
    pub(crate) last: bool,
    /// Copy records and leave them in the pool.
    pub(crate) peek: bool,
}

/// A process image and its region.
pub(crate) struct Process {
    id: u32,
    path: PathBuf,
    attached: Attached,
    located: Located,
    liveness: Liveness,
    superseded: bool,
    /// It may have recorded samples before this recording began.
    preexisting: bool,
    /// Its sampling began for this recording, so all that it has counted belongs to that.
    began_for_us: bool,
    translator: Translator,
    chains: Chains,
    stacks: RecurringStacks,
    counted: CountedAllocations,
    /// Allocations with stacks that are not known yet; empty between passes.
    deferred: Vec<Allocation>,
    stitcher: Stitcher,
    copies: Copies,
    drained: DrainCounts,
    /// How far each chunk was read.
    positions: Vec<u64>,
    /// The positions that [`new_positions`](Self::new_positions) has returned.
    reported_positions: Vec<u64>,
    /// Chunks not acknowledged because a stack in them was still waiting for its kernel records.
    withheld: BTreeSet<u32>,
    pool_sizer: PoolSizer,
    /// Free chunks are running out, and the last pass has read some that are not acknowledged yet.
    is_urgent: bool,
    refreshed: Instant,
    last_counters: CountersSnapshot,
    /// Sequence numbers seen, by thread number.
    threads: BTreeMap<u32, Sequences>,
    /// Its blocks are told from those allocated before the recording began.
    has_begun: bool,
    /// `fired` when the counters were last reported.
    reported_fired: Option<u64>,
    /// Number of unwind tables that it has been told of.
    told_tables: u64,
}

impl Process {
    /// Starts with an attached region, which is of the process `located`. `previous` is the image that executed this one; `preexisting` says that it may have recorded
    /// samples before this recording began; `buffer` is the minimum size of its pool.
    pub(crate) fn new(
        id: u32,
        path: PathBuf,
        attached: Attached,
        located: Located,
        previous: Option<u32>,
        preexisting: bool,
        buffer: Buffer,
    ) -> Self {
        let identity = located.identity;
        Self {
            id,
            path,
            located,
            liveness: Liveness::follow(identity.pid, identity.start_time),
            superseded: false,
            preexisting,
            began_for_us: false,
            translator: Translator::new(id, identity, previous),
            chains: Chains::default(),
            stacks: RecurringStacks::default(),
            counted: CountedAllocations::default(),
            deferred: Vec::new(),
            stitcher: Stitcher::default(),
            copies: Copies::default(),
            drained: DrainCounts::default(),
            positions: Vec::new(),
            reported_positions: Vec::new(),
            withheld: BTreeSet::new(),
            pool_sizer: PoolSizer::new(buffer, &attached.counters()),
            is_urgent: false,
            refreshed: Instant::now(),
            last_counters: attached.counters(),
            threads: BTreeMap::new(),
            has_begun: false,
            reported_fired: None,
            told_tables: 0,
            attached,
        }
    }

    /// True if `identity` is an image of the same process.
    pub(super) fn is_same_process(&self, identity: &Identity) -> bool {
        self.located.identity.pid == identity.pid
            && self.located.identity.start_time == identity.start_time
            && self.located.identity.boot_id == identity.boot_id
    }

    /// When its region was created (CLOCK_MONOTONIC, ns).
    pub(crate) fn began(&self) -> u64 {
        self.attached.anchor().monotonic_ns
    }

    /// Notes that the process has executed another program, which ends this image.
    pub(super) fn supersede(&mut self) {
        self.superseded = true;
    }

    /// The file of its region.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The process that it is an image of.
    pub(super) fn located(&self) -> Located {
        self.located
    }

    /// Checks whether it is running.
    pub(super) fn is_running(&mut self) -> bool {
        !self.superseded && self.liveness.is_running()
    }

    /// True if it was running when last checked.
    pub(super) fn is_live(&self) -> bool {
        !self.superseded && !matches!(self.liveness, Liveness::Ended)
    }

    /// True if the file of its region was truncated. That ends its recording even if it is still running.
    pub(crate) fn is_truncated(&self) -> bool {
        self.attached.is_truncated()
    }

    /// The nonce of its region.
    pub(crate) fn nonce(&self) -> u64 {
        self.located.identity.region_nonce
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.located.identity.pid
    }

    /// Acknowledges everything that was read, and detaches. Removes the region of a process that has ended, unless `keep`,
    /// and returns its path and its memory.
    pub(super) fn detach(mut self, keep: bool) -> Option<(PathBuf, RegionMemory)> {
        let remove = !keep && !self.is_live();
        if !remove {
            let positions: Positions =
                (0..).zip(self.positions.iter().copied()).filter(|(_, position)| *position != 0).collect();
            self.attached.acknowledge(&positions);
        }
        (remove && std::fs::remove_file(&self.path).is_ok()).then(|| (self.path, self.attached.into_memory()))
    }

    /// The read positions that changed since the last call. The caller [acknowledges](Self::acknowledge) them once the records
    /// are in the profile.
    pub(crate) fn new_positions(&mut self) -> Positions {
        self.reported_positions.resize(self.positions.len(), 0);
        for chunk in std::mem::take(&mut self.withheld) {
            if self.stitcher.has_pending_in(chunk) {
                self.withheld.insert(chunk);
            } else if let Some(reported) = self.reported_positions.get_mut(chunk as usize) {
                *reported = 0;
            }
        }
        let changed = self.positions.iter().zip(&self.reported_positions).enumerate();
        let changed = changed
            .filter(|(_, (now, told))| now != told)
            .map(|(index, (now, _))| (index as u32, *now))
            .collect();
        self.reported_positions.copy_from_slice(&self.positions);
        changed
    }

    /// True if free chunks are running out while some that were read wait for acknowledgement.
    pub(super) fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    /// True while there is a complete chunk that the next pass would drain.
    pub(crate) fn has_complete(&mut self) -> bool {
        self.translator.is_introduced() && !self.never_fired() && self.attached.has_complete()
    }

    /// How soon to drain its pool if the process cannot ring the doorbell.
    pub(crate) fn poll_interval(&self) -> Duration {
        self.pool_sizer.poll_interval()
    }

    /// Samples it lost because its pool was full.
    pub(super) fn shortfall(&self) -> Option<Shortfall> {
        self.pool_sizer.shortfall()
    }

    /// True if its stacks are joined with kernel records, so that they become samples some passes after they were read.
    pub(super) fn has_rings(&self) -> bool {
        self.stitcher.has_rings()
    }

    /// True if no sample was ever triggered in it.
    pub(crate) fn never_fired(&mut self) -> bool {
        self.known_counters().fired.count == 0
    }

    /// Acknowledges the records before these positions. Chunks with a stack that still waits for its kernel records are left
    /// out; `new_positions` returns them again when the stack has become a sample.
    pub(crate) fn acknowledge(&mut self, positions: &[(u32, u64)]) {
        let (waiting, safe): (Positions, Positions) =
            positions.iter().partition(|(chunk, _)| self.stitcher.has_pending_in(*chunk));
        self.withheld.extend(waiting.iter().map(|(chunk, _)| chunk));
        self.attached.acknowledge(&safe);
    }

    /// Tells it that so many unwind tables were made, unless it knows.
    pub(crate) fn tell_tables(&mut self, made: u64) {
        if std::mem::replace(&mut self.told_tables, made) != made {
            self.attached.tell_tables();
        }
    }

    /// Notes that its sampling began for this recording.
    pub(crate) fn begin_for_us(&mut self) {
        self.began_for_us = true;
    }

    /// Drains everything new. Samples go to `context`, everything else to `events`. Returns the end event once the process
    /// has ended and is drained.
    pub(crate) fn drain(
        &mut self,
        context: &mut DrainContext<'_>,
        events: &mut Vec<Event>,
    ) -> Option<ProcessEnd> {
        self.pool_sizer.begin_pass();
        // Check that it is running before draining, so that nothing it commits in between is missed.
        let live = self.is_running();
        let over = context.last || !live || self.attached.is_truncated();
        let scale = self.scale(context.clock);
        if !self.has_begun && !context.peek && context.clock.now_ns() >= context.begins_ns {
            self.has_begun = true;
            if !self.began_for_us && (self.preexisting || self.began() < context.begins_ns) {
                self.attached.begin_recording();
            }
        }
        self.drain_durable(&scale, context, events);
        if over && !self.translator.is_introduced() {
            self.translator.introduce_unknown(scale.monotonic_ns(self.attached.anchor().ticks), events);
        }
        if !self.translator.is_introduced() {
            // Samples cannot be interpreted without modules and threads; they stay in the pool.
            return None;
        }
        let pass = match live {
            _ if context.peek => Pass::Look,
            true => Pass::Live,
            false => Pass::Final,
        };
        // Most short processes have no samples, so their pool is not read. While one runs, its threads may not have told of
        // their last events.
        if live || self.known_counters().fired.count > 0 {
            self.drain_pool(pass, &scale, context, events);
            if self.translator.take_missing() || !self.deferred.is_empty() {
                self.drain_durable(&scale, context, events);
                self.decode(&scale, context, events, |_, _, _, decoder| decoder.decode_deferred());
            }
            if self.attached.mode() == Mode::Discard {
                self.drain_counts(&scale, context, events);
            }
        }
        self.stitcher.end_pass(over, context.samples);
        let refresh = self.refreshed.elapsed() >= REFRESH_INTERVAL;
        if refresh {
            self.refreshed = Instant::now();
            self.stitcher.end_interval(context.samples);
        }
        if live && (refresh || over) {
            let pid = self.located.identity.pid;
            self.translator.refresh_names(context.clock.now_ns(), |tid| thread_name(pid, tid), events);
        }
        if !over {
            return None;
        }
        let fate = match (live, self.superseded) {
            (true, _) => ProcessFate::Running,
            (_, true) => ProcessFate::Executed,
            _ => self.translator.exit().unwrap_or_default(),
        };
        if self.copies.are_expected() {
            context.unwinder.end(self.id, context.clock.now_ns());
        }
        Some(self.end(fate, &scale, context.clock, events))
    }

    /// Adds the events that would end this process if the recording ended now.
    pub(super) fn end_events(&mut self, clock: &TraceClock, events: &mut Vec<Event>) {
        if self.translator.is_introduced() {
            let scale = self.scale(clock);
            let end = self.end(ProcessFate::Running, &scale, clock, events);
            events.push(Event::ProcessEnd(end));
        }
    }

    fn end(
        &mut self,
        fate: ProcessFate,
        scale: &Scale,
        clock: &TraceClock,
        events: &mut Vec<Event>,
    ) -> ProcessEnd {
        let counters = self.counters(scale);
        if self.known_counters().threads_switching > 0 {
            let (key, value) = SWITCHING;
            events.push(Event::Setting(Setting { process: self.id, key: key.into(), value: value.into() }));
        }
        self.attached.tables(|tables| in_use::report(self.id, tables, &self.counted, events));
        ProcessEnd { process: self.id, ns: clock.now_ns(), fate, counters }
    }

    /// The counters, if any sample was triggered since they were last reported.
    pub(super) fn changed_counters(&mut self, clock: &TraceClock) -> Option<CountersAt> {
        let fired = self.known_counters().fired.count;
        if !self.translator.is_introduced() || self.reported_fired == Some(fired) {
            return None;
        }
        self.reported_fired = Some(fired);
        let scale = self.scale(clock);
        let counters = self.counters(&scale);
        Some(CountersAt { process: self.id, ns: clock.now_ns(), counters })
    }

    fn scale(&self, clock: &TraceClock) -> Scale {
        let anchor = self.attached.anchor();
        let anchors = self.translator.anchors().iter().copied().chain([anchor]);
        // Two clock readings always give a scale. Should they not, timestamps near the start are at least in order.
        clock.scale(self.attached.clock(), anchors).unwrap_or(Scale::nanoseconds(anchor))
    }

    fn drain_durable(&mut self, scale: &Scale, context: &mut DrainContext<'_>, events: &mut Vec<Event>) {
        let mut ended = Vec::new();
        let (translator, stitcher) = (&mut self.translator, &mut self.stitcher);
        let (copies, stacks, first) = (&mut self.copies, &mut self.stacks, events.len());
        let mut unusable = 0;
        stitcher.forget_ended(context.samples);
        let stats = self.attached.durable(&mut |record| {
            match &record {
                DurableRecord::Module(module) => stacks.module_loaded(scale.monotonic_ns(module.ticks)),
                DurableRecord::ModuleGone(module) => {
                    stacks.module_unloaded(scale.monotonic_ns(module.ticks));
                }
                DurableRecord::ThreadEnd(thread) => {
                    ended.push((thread.tid, thread.seq));
                    stacks.thread_ended(thread.seq, scale.monotonic_ns(thread.ticks));
                    stitcher.thread_ended(thread.seq);
                }
                DurableRecord::KernelRing(ring) => stitcher.ring(ring),
                DurableRecord::RecurringStack(stack) => unusable += u64::from(!stacks.add(stack)),
                DurableRecord::Setting(setting) if setting.key == UNWIND => copies.set_mode(setting.value),
                _ => {}
            }
            translator.durable(&record, scale, context.numbers, events);
        });
        self.drained.violations += stats.violations + unusable;
        let introduced = events.iter().enumerate().skip(first).find_map(|(index, event)| match event {
            Event::Process(info) => Some((index, self.located.setting(info.id, info.pid)?)),
            _ => None,
        });
        if let Some((index, setting)) = introduced {
            events.insert(index + 1, Event::Setting(setting));
        }
        if self.copies.are_expected() {
            for event in events.iter().skip(first) {
                context.unwinder.observe(event, self.located.identity.pid);
            }
        }
        for (tid, seq) in ended.into_iter().filter(|_| !context.peek) {
            self.attached.retire(tid, seq);
        }
    }

    fn drain_pool(
        &mut self,
        pass: Pass,
        scale: &Scale,
        context: &mut DrainContext<'_>,
        events: &mut Vec<Event>,
    ) {
        context.samples.drain(..).for_each(|sample| context.merge.push_owned(sample));
        let chunk_size = self.attached.geometry().chunk_size as usize;
        if context.scratch.len() < chunk_size {
            context.scratch.resize(chunk_size, 0);
        }
        self.counted.begin_pass();
        let stats = self.decode(scale, context, events, |attached, positions, scratch, decoder| {
            let mut sink = |chunk: ChunkInfo, record: RecordRef<'_>| decoder.decode(&chunk, &record);
            match pass {
                Pass::Look => attached.drain(pass, scratch, &mut sink),
                _ => attached.drain_holding(pass, scratch, positions, &mut sink),
            }
        });
        if pass == Pass::Final {
            self.pool_sizer.after_last_pass(&self.attached);
        } else if pass == Pass::Live {
            self.pool_sizer.after_pass(&mut self.attached, stats.claimed);
            let (backed, free) = self.attached.fill();
            self.is_urgent = stats.claimed + self.withheld.len() as u64 > 0 && free <= backed - backed / 8;
        }
        let drained = &mut self.drained;
        drained.records += stats.records;
        drained.bytes += stats.bytes + stats.records * RECORD_HEADER;
        drained.void += stats.void;
        drained.torn += stats.torn;
        drained.violations += stats.violations;
    }

    /// Makes samples of what the process has counted. They are from between the last pass and now.
    fn drain_counts(&mut self, scale: &Scale, context: &mut DrainContext<'_>, events: &mut Vec<Event>) {
        let counted = &mut self.counted;
        let mut more = self
            .attached
            .tables(|tables| CountsView::find(tables).map(|counts| counted.read(counts)).unwrap_or_default());
        let recording = self.attached.recordings();
        let own = |alike: AlikeAllocations| alike.is_of_recording(recording);
        // What was counted for earlier recordings is in their profiles.
        more.retain(|more| !self.preexisting || own(more.alike));
        // Counts refer to stacks that are in the log by now, but may not have been when it was last read.
        if more.iter().any(|more| !self.stacks.has(more.alike.stack())) {
            self.drain_durable(scale, context, events);
        }
        let now = context.clock.now_ns();
        let mut buffer = Vec::new();
        for more @ More { alike, count } in more {
            self.drained.count_events(count.into());
            let is_early = !(self.has_begun || context.peek) || !own(alike);
            let latest = if is_early { now.min(context.begins_ns.saturating_sub(1)) } else { now };
            let found = self.stacks.get(alike.stack());
            let frames = self.stacks.frames(alike.stack(), &mut buffer);
            let nonce = found.as_ref().and_then(|Found { seq, .. }| match is_early {
                true => self.counted.earlier_nonce(alike, *seq),
                false => self.counted.nonce(more, *seq),
            });
            let (Some(found), Some(frames), Some(nonce)) = (found, frames, nonce) else {
                self.drained.violations += 1;
                continue;
            };
            self.translator.ran(found.tid, found.seq);
            let head = StackHead { weight: count, end: 0, source: Repeat::SOURCE, nonce };
            // The process may have loaded its modules after the clock was read.
            let earliest = if is_early { 0 } else { found.since };
            let ns = latest.max(earliest).min(found.until);
            let sample = self.translator.sample(found.tid, found.seq, ns, head);
            context.merge.push(sample, frames, 0);
        }
    }

    /// Decodes the records that `feed` passes to the decoder. It also gets the region, how far each chunk was read, and the
    /// buffer for one chunk.
    fn decode<R>(
        &mut self,
        scale: &Scale,
        context: &mut DrainContext<'_>,
        events: &mut Vec<Event>,
        feed: impl FnOnce(&mut Attached, &mut Vec<u64>, &mut [u8], &mut RecordDecoder<'_>) -> R,
    ) -> R {
        let mut decoder = RecordDecoder {
            scale,
            translator: &mut self.translator,
            stitcher: &mut self.stitcher,
            chains: &mut self.chains,
            stacks: &self.stacks,
            counted: &mut self.counted,
            deferred: &mut self.deferred,
            begins_ns: context.begins_ns,
            threads: &mut self.threads,
            counts: &mut self.drained,
            copies: &mut self.copies,
            merge: context.merge,
            state: PassState::default(),
        };
        let fed = feed(&mut self.attached, &mut self.positions, context.scratch, &mut decoder);
        decoder.end(self.id, context.unwinder, events);
        fed
    }

    /// The region's counters; of a truncated region, the last ones read.
    fn known_counters(&mut self) -> &CountersSnapshot {
        let now = self.attached.counters();
        if !self.attached.is_truncated() {
            self.last_counters = now;
        }
        &self.last_counters
    }

    fn counters(&mut self, scale: &Scale) -> Counters {
        let known = translate::counters(self.known_counters(), scale);
        let drained = &self.drained;
        let gaps: u64 = self.threads.values().map(Sequences::gaps).sum();
        let mut counters = Counters {
            drained: drained.records,
            ring_bytes: drained.bytes,
            gaps: gaps.saturating_sub(drained.void),
            torn: drained.torn,
            violations: drained.violations + self.copies.malformed,
            truncated: known.truncated + self.copies.truncated,
            undecodable: drained.undecodable,
            kernel: self.stitcher.counts.named(),
            ..known
        };
        // Threads count events of their own in batches; a killed thread has not counted its last batch.
        let uncounted = drained.samples.saturating_sub(counters.recorded).min(drained.counted_late);
        for count in [
            &mut counters.fired,
            &mut counters.fired_weight,
            &mut counters.recorded,
            &mut counters.recorded_weight,
        ] {
            *count += uncounted;
        }
        if self.preexisting {
            // Records missing since the recording began show up as gaps; others were overwritten before it.
            let missing = counters.recorded.saturating_sub(drained.samples);
            counters.earlier = missing.saturating_sub(counters.gaps + counters.undecodable);
            let weight = counters.recorded_weight.saturating_sub(drained.weight);
            counters.earlier_weight = if counters.gaps == 0 { weight } else { weight.min(counters.earlier) };
        }
        counters
    }
}

/// The current name of a running thread.
fn thread_name(pid: u32, tid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    Some(String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name)).into_owned())
}
