//! One recorded process image: its region, whether it lives, and the draining of one into the profile.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use selfwind_profile::profile_file::{Counters, CountersAt, Event, ProcessEnd, ProcessFate, Sample};
use shm_format::{ChunkInfo, CountersSnapshot, DurableRecord, Identity, Pass, RecordRef, Scale};

use crate::drain::chains::Chains;
use crate::drain::copies::Copies;
use crate::drain::demand::{Demand, Shortfall};
use crate::drain::in_use;
use crate::drain::intake::{Found, Intake, State};
use crate::drain::merge::Merge;
use crate::drain::sequences::Sequences;
use crate::drain::stitch::Stitcher;
use crate::drain::unwinder::Unwinder;
use crate::sampling::buffer::Buffer;
use crate::target::attach::Attached;
use crate::target::clock::TraceClock;
use crate::target::liveness::Liveness;
use crate::target::translate::{self, Translator};

/// The setting by which a process says who unwinds its stacks.
const UNWIND: &[u8] = b"unwind";
/// How often names are looked at; and what a stack that waits for the kernel's half counts.
const TURN: Duration = Duration::from_millis(250);
/// Bytes of a record in the ring beside its payload.
const RECORD_HEADER: u64 = 8;

/// Places in the chunks of a process.
pub(crate) type Places = Vec<(u32, u64)>;

/// What a drain needs beside the region.
pub(crate) struct Surroundings<'a> {
    /// Turns ticks into nanoseconds.
    pub(crate) clock: &'a TraceClock,
    /// Profile-local numbers of regions by their nonce.
    pub(crate) numbers: &'a BTreeMap<u64, u32>,
    /// Room for one chunk.
    pub(crate) scratch: &'a mut Vec<u8>,
    /// Takes the samples, which come in the order of their threads only.
    pub(crate) merge: &'a mut Merge,
    /// Those that still have to go there, with frames of their own.
    pub(crate) samples: &'a mut Vec<Sample>,
    /// Unwinds copies of stacks.
    pub(crate) unwinder: &'a mut Unwinder,
    /// This pass is the last one, whether the process lives or not.
    pub(crate) last: bool,
    /// Copies records and leaves them where they are.
    pub(crate) look: bool,
}

/// A process image and its region.
pub(crate) struct Process {
    id: u32,
    path: PathBuf,
    attached: Attached,
    identity: Identity,
    liveness: Liveness,
    superseded: bool,
    /// It recorded before this recording began.
    late: bool,
    translator: Translator,
    chains: Chains,
    stitcher: Stitcher,
    copies: Copies,
    found: Found,
    /// How far each chunk was read.
    places: Vec<u64>,
    /// Those of them that were handed out.
    told_places: Vec<u64>,
    /// Chunks that were to be acknowledged when a stack in them still waited for the kernel's half.
    withheld: BTreeSet<u32>,
    demand: Demand,
    /// Writers may soon wait for chunks that the last pass has taken.
    is_urgent: bool,
    turned: Instant,
    known: CountersSnapshot,
    /// By thread number.
    threads: BTreeMap<u32, Sequences>,
    /// `fired` when the counters were last told.
    told: Option<u64>,
}

impl Process {
    /// Starts with an attached region. `previous` is the image that executed this one; `late` says that it may
    /// have recorded before this recording began. Its pool is to have `buffer` bytes at least.
    pub(crate) fn new(
        id: u32,
        path: PathBuf,
        attached: Attached,
        previous: Option<u32>,
        late: bool,
        buffer: Buffer,
    ) -> Self {
        let identity = attached.identity();
        Self {
            id,
            path,
            identity,
            liveness: Liveness::follow(identity.pid, identity.start_time),
            superseded: false,
            late,
            translator: Translator::new(id, identity, previous),
            chains: Chains::default(),
            stitcher: Stitcher::default(),
            copies: Copies::default(),
            found: Found::default(),
            places: Vec::new(),
            told_places: Vec::new(),
            withheld: BTreeSet::new(),
            demand: Demand::new(buffer, &attached.counters()),
            is_urgent: false,
            turned: Instant::now(),
            known: attached.counters(),
            threads: BTreeMap::new(),
            told: None,
            attached,
        }
    }

    /// True for another image of the process behind `identity`.
    pub(super) fn is_same_process(&self, identity: &Identity) -> bool {
        self.identity.pid == identity.pid
            && self.identity.start_time == identity.start_time
            && self.identity.boot_id == identity.boot_id
    }

    /// When its region was made, CLOCK_MONOTONIC.
    pub(crate) fn began(&self) -> u64 {
        self.attached.anchor().monotonic_ns
    }

    /// The process has executed another program: this image is gone.
    pub(super) fn supersede(&mut self) {
        self.superseded = true;
    }

    /// True if it was still there when last looked at.
    pub(super) fn is_live(&self) -> bool {
        !self.superseded && !matches!(self.liveness, Liveness::Ended)
    }

    /// True if its region's file was made shorter: its recording is over, whether it lives or not.
    pub(crate) fn is_cut(&self) -> bool {
        self.attached.is_cut()
    }

    /// The nonce of its region.
    pub(crate) fn nonce(&self) -> u64 {
        self.identity.region_nonce
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.identity.pid
    }

    /// Detaches: all that was read is safe. The region of a process that is gone is removed, as it is drained, unless
    /// it is to be kept. Gives the path of a removed region.
    pub(super) fn let_go(mut self, keep: bool) -> Option<PathBuf> {
        let remove = !keep && !self.is_live();
        if !remove {
            let places: Places =
                (0..).zip(self.places.iter().copied()).filter(|(_, place)| *place != 0).collect();
            self.attached.acknowledge(&places);
        }
        (remove && std::fs::remove_file(&self.path).is_ok()).then_some(self.path)
    }

    /// How far its chunks were read in the last pass, where that is news. To be [acknowledged](Self::acknowledge) when
    /// what was read is safe.
    pub(crate) fn news(&mut self) -> Places {
        self.told_places.resize(self.places.len(), 0);
        for chunk in std::mem::take(&mut self.withheld) {
            if self.stitcher.waits_in(chunk) {
                self.withheld.insert(chunk);
            } else if let Some(told) = self.told_places.get_mut(chunk as usize) {
                *told = 0;
            }
        }
        let news = self.places.iter().zip(&self.told_places).enumerate();
        let news = news
            .filter(|(_, (now, told))| now != told)
            .map(|(index, (now, _))| (index as u32, *now))
            .collect();
        self.told_places.copy_from_slice(&self.places);
        news
    }

    /// True if writers may soon wait for chunks that the last pass has taken.
    pub(super) fn keeps_chunks(&self) -> bool {
        self.is_urgent
    }

    /// True while a chunk waits that the next pass would take.
    pub(crate) fn has_complete(&mut self) -> bool {
        self.translator.is_introduced() && !self.is_empty() && self.attached.has_complete()
    }

    /// How soon to look at its pool if it cannot wake us.
    pub(crate) fn turn(&self) -> Duration {
        self.demand.turn()
    }

    /// What it lost for want of room in its pool.
    pub(super) fn shortfall(&self) -> Option<Shortfall> {
        self.demand.shortfall()
    }

    /// True if records become samples passes after they were read.
    pub(super) fn is_stitched(&self) -> bool {
        self.stitcher.expects()
    }

    /// True if nothing ever fired in it: its end loses nothing.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.known_counters().fired.count == 0
    }

    /// What was read up to these places is safe, but for stacks that wait for the kernel's half: those chunks are told
    /// of once more when the stacks are samples.
    pub(crate) fn acknowledge(&mut self, places: &[(u32, u64)]) {
        let (wait, safe): (Places, Places) =
            places.iter().partition(|(chunk, _)| self.stitcher.waits_in(*chunk));
        self.withheld.extend(wait.iter().map(|(chunk, _)| chunk));
        self.attached.acknowledge(&safe);
    }

    /// Takes everything that is new; samples go to `around`, all else to `events`. Gives the end of the
    /// process when this was the last of it.
    pub(crate) fn drain(
        &mut self,
        around: &mut Surroundings<'_>,
        events: &mut Vec<Event>,
    ) -> Option<ProcessEnd> {
        self.demand.look();
        // First look whether it lives, then drain: what it commits in between is not missed.
        let live = !self.superseded && self.liveness.is_running();
        let over = around.last || !live || self.attached.is_cut();
        let scale = self.scale(around.clock);
        self.drain_durable(&scale, around, events);
        if over && !self.translator.is_introduced() {
            self.translator.introduce_unknown(scale.monotonic_ns(self.attached.anchor().ticks), events);
        }
        if !self.translator.is_introduced() {
            // Without its modules and threads a sample means nothing yet; the ring can wait.
            return None;
        }
        let pass = match live {
            _ if around.look => Pass::Look,
            true => Pass::Live,
            false => Pass::Final,
        };
        // Most short processes have no sample: their pool need not be looked at.
        if self.known_counters().fired.count > 0 {
            self.drain_pool(pass, &scale, around, events);
            if self.translator.take_missing() {
                self.drain_durable(&scale, around, events);
            }
        }
        self.stitcher.end_pass(over, around.samples);
        let turned = self.turned.elapsed() >= TURN;
        if turned {
            self.turned = Instant::now();
            self.stitcher.end_turn(around.samples);
        }
        if live && (turned || over) {
            let pid = self.identity.pid;
            self.translator.refresh_names(around.clock.now_ns(), |tid| thread_name(pid, tid), events);
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
            around.unwinder.end(self.id, around.clock.now_ns());
        }
        Some(self.end(fate, &scale, around.clock, events))
    }

    /// What would be told of it if the recording ended here.
    pub(super) fn so_far(&mut self, clock: &TraceClock, events: &mut Vec<Event>) {
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
        if let Some(tables) = self.attached.live_tables() {
            in_use::tell(self.id, &tables, events);
        }
        ProcessEnd { process: self.id, ns: clock.now_ns(), fate, counters }
    }

    /// The counters, if anything fired since they were last told.
    pub(super) fn changed_counters(&mut self, clock: &TraceClock) -> Option<CountersAt> {
        let fired = self.known_counters().fired.count;
        if !self.translator.is_introduced() || self.told == Some(fired) {
            return None;
        }
        self.told = Some(fired);
        let scale = self.scale(clock);
        let counters = self.counters(&scale);
        Some(CountersAt { process: self.id, ns: clock.now_ns(), counters })
    }

    fn scale(&self, clock: &TraceClock) -> Scale {
        let anchor = self.attached.anchor();
        let anchors = self.translator.anchors().iter().copied().chain([anchor]);
        // Two readings of ours always give a line; should they not, ticks near the start are at least in order.
        clock.scale(self.attached.clock(), anchors).unwrap_or(Scale::nanoseconds(anchor))
    }

    fn drain_durable(&mut self, scale: &Scale, around: &mut Surroundings<'_>, events: &mut Vec<Event>) {
        let mut gone = Vec::new();
        let (translator, stitcher) = (&mut self.translator, &mut self.stitcher);
        let (copies, first) = (&mut self.copies, events.len());
        stitcher.forget_ended(around.samples);
        let stats = self.attached.durable(&mut |record| {
            match &record {
                DurableRecord::ThreadEnd(thread) => {
                    gone.push((thread.tid, thread.seq));
                    stitcher.thread_ended(thread.seq);
                }
                DurableRecord::KernelRing(ring) => stitcher.ring(ring),
                DurableRecord::Setting(setting) if setting.key == UNWIND => copies.choose(setting.value),
                _ => {}
            }
            translator.durable(&record, scale, around.numbers, events);
        });
        self.found.violations += stats.violations;
        if self.copies.are_expected() {
            for event in events.iter().skip(first) {
                around.unwinder.observe(event, self.identity.pid);
            }
        }
        for (tid, seq) in gone.into_iter().filter(|_| !around.look) {
            self.attached.retire(tid, seq);
        }
    }

    fn drain_pool(
        &mut self,
        pass: Pass,
        scale: &Scale,
        around: &mut Surroundings<'_>,
        events: &mut Vec<Event>,
    ) {
        around.samples.drain(..).for_each(|sample| around.merge.push_whole(sample));
        let chunk_size = self.attached.geometry().chunk_size as usize;
        if around.scratch.len() < chunk_size {
            around.scratch.resize(chunk_size, 0);
        }
        let mut intake = Intake {
            scale,
            translator: &mut self.translator,
            stitcher: &mut self.stitcher,
            chains: &mut self.chains,
            threads: &mut self.threads,
            found: &mut self.found,
            copies: &mut self.copies,
            merge: around.merge,
            state: State::default(),
        };
        let mut sink = |chunk: ChunkInfo, record: RecordRef<'_>| intake.take(&chunk, &record);
        let stats = match pass {
            Pass::Look => self.attached.drain(pass, around.scratch, &mut sink),
            _ => self.attached.drain_holding(pass, around.scratch, &mut self.places, &mut sink),
        };
        intake.end(self.id, around.unwinder, events);
        if pass == Pass::Final {
            self.demand.after_last_pass(&self.attached);
        } else if pass == Pass::Live {
            self.demand.after_pass(&mut self.attached, stats.claimed);
            let (backed, free) = self.attached.fill();
            self.is_urgent = stats.claimed + self.withheld.len() as u64 > 0 && free <= backed - backed / 8;
        }
        let found = &mut self.found;
        found.records += stats.records;
        found.bytes += stats.bytes + stats.records * RECORD_HEADER;
        found.void += stats.void;
        found.torn += stats.torn;
        found.violations += stats.violations;
    }

    /// The region's counters, or the last ones of a region that was cut.
    fn known_counters(&mut self) -> &CountersSnapshot {
        let now = self.attached.counters();
        if !self.attached.is_cut() {
            self.known = now;
        }
        &self.known
    }

    fn counters(&mut self, scale: &Scale) -> Counters {
        let known = translate::counters(self.known_counters(), scale);
        let found = &self.found;
        let holes: u64 = self.threads.values().map(Sequences::holes).sum();
        let mut counters = Counters {
            drained: found.records,
            ring_bytes: found.bytes,
            gaps: holes.saturating_sub(found.void),
            torn: found.torn,
            violations: found.violations + self.copies.malformed,
            truncated: known.truncated + self.copies.truncated,
            undecodable: found.undecodable,
            kernel: self.stitcher.counts.named(),
            ..known
        };
        // Threads tell of their events many at a time; one that was killed has not told of the last ones.
        let untold = found.samples.saturating_sub(counters.recorded).min(found.tracepoints);
        for count in [
            &mut counters.fired,
            &mut counters.fired_weight,
            &mut counters.recorded,
            &mut counters.recorded_weight,
        ] {
            *count += untold;
        }
        if self.late {
            // What is missing since we began shows as a gap; what else is missing was gone before.
            let missing = counters.recorded.saturating_sub(found.samples);
            counters.earlier = missing.saturating_sub(counters.gaps + counters.undecodable);
            let weight = counters.recorded_weight.saturating_sub(found.weight);
            counters.earlier_weight = if counters.gaps == 0 { weight } else { weight.min(counters.earlier) };
        }
        counters
    }
}

/// The name a living thread has now.
fn thread_name(pid: u32, tid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    Some(String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name)).into_owned())
}
