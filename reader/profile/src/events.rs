//! The events of a recording: what its samples count, and to which events a sample belongs.
//!
//! A recording has the events of its clock (one, or those of a list `perf:...`), and those of its other sources: allocations and
//! mappings have four values, waits for locks three. Weights of different events have different units and are never added up.
//! What a source counts is defined here, in `Events::add` and `Events::counts`, and nowhere else.

use crate::heap::{self, ALLOCATION, Heap, HeapValue};
use crate::locks::{self, LOCK, LockValue};
use crate::mapped_memory::{self, MAPPING, MappedMemory};
use crate::measure::{Measure, Unit};
use crate::profile_file::{Event, Sample, SamplePart, SessionInfo};
use crate::source_list::{self, EVENTS, MMAP, WALL, WALL_SOURCE};
use crate::tracepoint::TRACEPOINT;

/// The highest source number of a clock in samples: process timer, thread timers, kernel events; 0 means unspecified.
pub const LAST_CLOCK: u8 = 3;

/// The events of a recording.
#[derive(Clone, Debug, Default)]
pub struct Events {
    measures: Vec<Measure>,
    /// How many of them belong to the clock. They come first.
    of_clock: usize,
    /// The others: source number in samples, and index of the source's first event.
    probes: Vec<(u8, usize)>,
    heap: Heap,
    mapped: MappedMemory,
    /// Index of the wall-clock event, and the period of CPU time in nanoseconds, which counts there too.
    wall: Option<usize>,
    period_ns: u64,
    /// Nanoseconds of waiting for locks between samples on average.
    mean_wait_ns: u64,
}

/// What a sample counts for one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventCount<'a> {
    /// When it happened.
    pub ns: u64,
    /// Index of the event.
    pub event: u8,
    /// How many samples it counts as: more than one for allocations of one stack and size.
    pub samples: u64,
    /// Its weight, in units of the event.
    pub weight: u64,
    /// Addresses in the kernel on top of the sample's stack, leaf first.
    pub kernel: &'a [u64],
}

impl Events {
    /// The events of a session. `processes` has source and period of each process, which the recorder does not choose for running
    /// processes.
    pub fn new(session: &SessionInfo, mut processes: impl Iterator<Item = (impl AsRef<str>, u64)>) -> Events {
        let mut events = Events::default();
        let process = processes.next();
        let own = process.as_ref().map_or("", |(source, _)| source.as_ref());
        let text = match session.source.as_str() {
            "" | "auto" if source_list::is_probe(own) => own,
            text => text,
        };
        let pieces = source_list::pieces(text);
        let (probes, clocks): (Vec<&str>, Vec<&str>) =
            pieces.into_iter().partition(|piece| source_list::is_probe(piece));
        for clock in clocks {
            match clock.strip_prefix(EVENTS) {
                Some(list) => {
                    let named = |event| Measure::of_event(event, session.frequency);
                    events.measures.extend(list.split(',').map(named));
                }
                None => events.measures.push(Measure::of_clock(clock, own, process.as_ref().map(|it| it.1))),
            }
        }
        events.of_clock = events.measures.len();
        let told = process.as_ref().map(|(_, period)| *period).filter(|period| *period > 0);
        events.period_ns = told.unwrap_or(1_000_000_000 / u64::from(session.frequency.max(1)));
        probes.into_iter().for_each(|probe| events.add(probe));
        events
    }

    /// Adds the events of a source other than the clock.
    fn add(&mut self, source: &str) {
        let first = self.measures.len();
        if let Ok(Some(mean)) = heap::mean_of(source) {
            self.heap.mean = mean;
            self.probes.push((ALLOCATION, first));
            self.measures.extend(HeapValue::ALL.map(Measure::of_heap));
        }
        if source == MMAP {
            self.probes.push((MAPPING, first));
            self.measures.extend(HeapValue::ALL.map(Measure::of_mappings));
        }
        if source == WALL {
            self.wall = Some(first);
            self.probes.push((WALL_SOURCE, first));
            self.measures.push(Measure::of_wall());
        }
        if source.starts_with("tp") && self.first_of(TRACEPOINT).is_none() {
            self.probes.push((TRACEPOINT, first));
            self.measures.push(Measure::of_tracepoints());
        }
        if let Ok(Some(mean)) = locks::mean_of(source) {
            self.mean_wait_ns = mean;
            self.probes.push((LOCK, first));
            self.measures.extend(LockValue::ALL.map(Measure::of_locks));
        }
    }

    /// Takes in live blocks and mappings. Must be called before the samples are read, or their values in use are 0.
    pub(crate) fn learn(&mut self, event: &Event) {
        match event {
            Event::LiveBlocks(live) => self.heap.learn(live),
            Event::LiveMappings(live) => self.mapped.learn(live),
            _ => {}
        }
    }

    /// The same events, with the live blocks and mappings of `other`.
    pub(crate) fn with_learnt_of(mut self, other: &mut Events) -> Events {
        self.heap.live = std::mem::take(&mut other.heap.live);
        self.mapped = std::mem::take(&mut other.mapped);
        self
    }

    /// What the weights of each event count.
    pub fn measures(&self) -> &[Measure] {
        &self.measures
    }

    /// The events of the clock.
    pub(crate) fn of_clock(&self) -> &[Measure] {
        &self.measures[..self.of_clock]
    }

    /// Index of the default event: the clock's first, else allocated bytes, else the first.
    pub fn main(&self) -> usize {
        match self.probes.first() {
            Some(&(ALLOCATION | MAPPING, first)) if self.of_clock == 0 => {
                first + HeapValue::default() as usize
            }
            Some(&(LOCK, first)) if self.of_clock == 0 => first + LockValue::default() as usize,
            _ => 0,
        }
    }

    /// True if this event of the clock counts CPU time.
    fn counts_time(&self, event: u8) -> bool {
        let of_clock = self.of_clock();
        of_clock.is_empty() || of_clock.get(usize::from(event)).is_some_and(Measure::is_cpu_time)
    }

    /// Index of the first event of a source other than a clock, by its number in samples.
    fn first_of(&self, source: u8) -> Option<usize> {
        self.probes.iter().find(|(number, _)| *number == source).map(|&(_, first)| first)
    }

    /// The allocated block or mapping of a sample, as numbered in [`Event::LiveBlocks`] and [`Event::LiveMappings`]; `None` for other
    /// samples.
    pub fn block(&self, sample: &Sample) -> Option<(u32, u64)> {
        self.first_of(sample.source)?;
        match sample.source {
            ALLOCATION => Heap::block(sample),
            MAPPING => Some(MappedMemory::block(sample)),
            _ => None,
        }
    }

    /// The in-use event that corresponds to an allocation event.
    pub fn in_use(event: u8) -> u8 {
        event + (HeapValue::InuseObjects as u8 - HeapValue::AllocObjects as u8)
    }

    /// True if the sample was triggered by the clock.
    pub(crate) fn is_of_clock(&self, sample: &Sample) -> bool {
        (self.of_clock > 0 || self.wall.is_some()) && sample.source <= LAST_CLOCK
    }

    /// The weight of a sampled wait for a lock in nanoseconds, and the event that counts it for the holder; `None` for the end of a
    /// wait.
    pub fn wait(&self, sample: &Sample) -> Option<(u64, u8)> {
        let first = self.first_of(LOCK).filter(|_| sample.source == LOCK)?;
        let [_, delay] = locks::values(sample, self.mean_wait_ns)?;
        Some((delay, (first + LockValue::HeldDelay as usize) as u8))
    }

    /// True for a sample of locks, a wait or the end of one.
    pub fn is_of_locks(&self, sample: &Sample) -> bool {
        sample.source == LOCK && self.first_of(LOCK).is_some()
    }

    /// Calls `each` with everything that a sample counts.
    #[inline]
    pub fn counts<'a>(&self, sample: &'a Sample, mut each: impl FnMut(EventCount<'a>)) {
        let first = self.first_of(sample.source);
        if let (Some(first), ALLOCATION) = (first, sample.source) {
            let [objects, bytes, live_objects, live_bytes] = self.heap.values(sample);
            let live = if self.heap.mean <= 1 { live_objects } else { 1 };
            let counts = [
                (objects, sample.events()),
                (bytes, sample.events()),
                (live_objects, live),
                (live_bytes, live),
            ];
            for (event, (weight, samples)) in (first..).zip(counts) {
                if weight != 0 {
                    each(EventCount { ns: sample.ns, event: event as u8, samples, weight, kernel: &[] });
                }
            }
            return;
        }
        if let (Some(first), MAPPING) = (first, sample.source) {
            let kernel = mapped_memory::mark(sample);
            for (event, weight) in
                (first..).zip(self.mapped.values(sample)).filter(|(_, weight)| *weight != 0)
            {
                each(EventCount { ns: sample.ns, event: event as u8, samples: 1, weight, kernel });
            }
            return;
        }
        if let (Some(first), LOCK) = (first, sample.source) {
            // The thread that ended the wait counts its duration once the two are joined.
            let values = locks::values(sample, self.mean_wait_ns);
            for (event, weight) in (first..).zip(values.into_iter().flatten()) {
                each(EventCount { ns: sample.ns, event: event as u8, samples: 1, weight, kernel: &[] });
            }
            return;
        }
        let is_of_clock = self.is_of_clock(sample);
        for SamplePart { ns, weight, event, kernel } in sample.parts() {
            if let (Some(wall), true) = (self.wall.filter(|_| self.counts_time(event)), is_of_clock) {
                let weight = u64::from(weight) * self.period_ns / 1000;
                each(EventCount { ns, event: wall as u8, samples: 1, weight, kernel });
                if self.of_clock == 0 {
                    continue;
                }
            }
            let index = match first {
                Some(first) => first + usize::from(event),
                None if is_of_clock && usize::from(event) < self.of_clock => event.into(),
                // Samples of unknown sources are kept apart.
                None => self.measures.len(),
            };
            let event = index.min(self.measures.len()).min(u8::MAX.into()) as u8;
            each(EventCount { ns, event, samples: 1, weight: weight.into(), kernel });
        }
    }
}

/// What samples of unknown sources count.
pub(crate) static UNCLAIMED: Measure =
    Measure { name: std::borrow::Cow::Borrowed("unclaimed"), unit: Unit::Sample };

/// Stands for the event of memory in use: blocks, or else mappings.
pub const LEAKS: &str = "leaks";

/// Index of the event of this name; the name of a source means its default event.
///
/// # Errors
/// If there is none; the error lists the available ones.
pub(crate) fn index_of(measures: &[Measure], name: &str) -> Result<u8, NoSuchEvent> {
    let (name, otherwise) = match name {
        "alloc" => (HeapValue::default().name(), None),
        MMAP => (mapped_memory::name(HeapValue::default()), None),
        "lock" => (LockValue::default().name(), None),
        LEAKS => (HeapValue::InuseSpace.name(), Some(mapped_memory::name(HeapValue::InuseSpace))),
        name => (name, None),
    };
    let find = |name| measures.iter().position(|measure| measure.name == name);
    let index = find(name).or_else(|| find(otherwise?));
    let names = || measures.iter().map(|measure| measure.name.to_string()).collect();
    index.map(|index| index as u8).ok_or_else(|| NoSuchEvent { asked: name.into(), names: names() })
}

/// A profile has no event of a name.
#[derive(Debug, thiserror::Error)]
#[error("the profile has no event {asked}: it has {}{}", names.join(", "), advice(asked))]
pub struct NoSuchEvent {
    asked: String,
    names: Vec<String>,
}

/// How to record the event.
fn advice(asked: &str) -> &'static str {
    match asked.parse::<HeapValue>() {
        Ok(_) => "; `record -e alloc` records allocations, `-e cpu,alloc` both",
        Err(_) if LockValue::ALL.iter().any(|value| value.name() == asked) => {
            "; `record -e lock` records waits for locks, `-e cpu,lock` both"
        }
        Err(_) if mapped_memory::value(asked).is_some() => {
            "; `record -e mmap` records mappings of memory, `-e cpu,mmap` both"
        }
        Err(_) => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm_format::{AllocationNonce, LockNonce};

    fn events(source: &str) -> Events {
        let session = SessionInfo { source: source.into(), frequency: 99, ..SessionInfo::default() };
        Events::new(&session, [("cpu", 10_000_000)].into_iter())
    }

    fn counts(events: &Events, sample: &Sample) -> Vec<(u8, u64)> {
        let mut counts = Vec::new();
        events.counts(sample, |count| counts.push((count.event, count.weight)));
        counts
    }

    #[test]
    fn each_source_has_its_events() {
        let names = |source| events(source).measures().iter().map(|m| m.name.to_string()).collect::<Vec<_>>();
        let heap = ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"];
        assert_eq!(names("cpu"), ["cpu"]);
        assert_eq!(names("alloc:all"), heap);
        assert_eq!(names("alloc:all,cpu"), [&["cpu"][..], &heap].concat());
        let mapped = ["mmap_objects", "mmap_space", "mmap_inuse_objects", "mmap_inuse_space"];
        assert_eq!(names("mmap,alloc"), [mapped, heap].concat());
        assert_eq!(names("tp:a:*,nostack,tp:b:c,cpu"), ["cpu", "tracepoints"]);
        assert_eq!(names("lock:10us"), ["contentions", "delay", "held_delay"]);
        assert_eq!(names("perf:faults,cs,alloc"), [&["faults", "cs"][..], &heap].concat());
        assert_eq!((events("alloc").main(), events("lock").main(), events("alloc,cpu").main()), (1, 1, 0));
        let both = events("cpu,mmap,lock,alloc");
        let index = |name| index_of(both.measures(), name).unwrap();
        assert_eq!(index_of(events("mmap").measures(), LEAKS).unwrap(), 3);
        assert_eq!(index(LEAKS), 11);
        assert_eq!(["cpu", "mmap", "mmap_inuse_space", "lock", "alloc"].map(index), [0, 2, 4, 6, 9]);
    }

    #[test]
    fn samples_count_at_the_events_of_their_source() {
        let both = events("cpu,alloc:all");
        let tick = Sample { source: 2, weight: 3, ..Sample::default() };
        assert_eq!(counts(&both, &tick), [(0, 3)]);
        let nonce = AllocationNonce::new(64, 9).0;
        let block = Sample { source: ALLOCATION, weight: 1, nonce, ..Sample::default() };
        assert_eq!(counts(&both, &block), [(1, 1), (2, 64)]);
        assert!(both.is_of_clock(&tick) && !both.is_of_clock(&block));
        let mapped = events("cpu,mmap");
        let nonce = shm_format::MappingNonce::new(5000, shm_format::MappingKind::Anonymous, 9).0;
        let mapping = Sample { source: MAPPING, weight: 1, nonce, ..Sample::default() };
        assert_eq!(counts(&mapped, &mapping), [(1, 1), (2, 8192)]);
        assert_eq!(counts(&both, &mapping), [(5, 1)]);
        let locks = events("cpu,lock:all");
        let wait = Sample { source: LOCK, weight: 1, nonce: LockNonce::wait(1600, 3).0, ..Sample::default() };
        assert_eq!(counts(&locks, &wait), [(1, 1), (2, 1600)]);
        assert_eq!(counts(&locks, &Sample { nonce: LockNonce::holder(3).0, ..wait }), []);
        // Samples of unknown sources are added to no other event.
        assert_eq!(counts(&events("alloc:all"), &tick), [(4, 3)]);
        assert_eq!(counts(&events("cpu"), &block), [(1, 1)]);
    }

    #[test]
    fn running_is_a_part_of_the_wall_clock() {
        let tick = Sample { source: 2, weight: 3, ..Sample::default() };
        let wait = Sample { source: WALL_SOURCE, weight: 70, ..Sample::default() };
        // Periods of 10 ms, in microseconds.
        assert_eq!(counts(&events("wall"), &tick), [(0, 30_000)]);
        assert_eq!(counts(&events("wall"), &wait), [(0, 70)]);
        assert_eq!(counts(&events("cpu,wall"), &tick), [(1, 30_000), (0, 3)]);
        assert_eq!(counts(&events("cpu,wall"), &wait), [(1, 70)]);
        // Faults are no time.
        assert_eq!(counts(&events("perf:faults,wall"), &tick), [(0, 3)]);
    }

    #[test]
    fn a_running_process_says_what_it_is_sampled_by() {
        let events = Events::new(&SessionInfo::default(), [("alloc", 0)].into_iter());
        assert_eq!(events.main(), 1);
    }
}
