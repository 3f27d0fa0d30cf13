//! Feeds the events of a recording into the window and the numbers of the header.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use selfwind_profile::call_tree::Step;
use selfwind_profile::events::Events;
use selfwind_profile::heap::HeapValue;
use selfwind_profile::locks::Joiner;
use selfwind_profile::mapped_memory;
use selfwind_profile::measure::{Measure, SECOND_NS};
use selfwind_profile::profile::truncation_mark;
use selfwind_profile::profile_file::{Event, Sample, SessionInfo};
use selfwind_profile::stats::Tally;
use unwind::End;

use super::draw::Facts;
use super::window::{Block, Left, Name, Window};
use crate::drain::listener::Listener;
use crate::live::{Live, LiveSample, Located};
use crate::target::clock;
use crate::wall::Wall;

/// The time over which the sample rate is averaged.
const RATE_OVER: Duration = Duration::from_secs(2);

/// One end of a wait for a lock.
#[derive(Clone)]
struct AtLock {
    second: u64,
    /// The weight of a wait in nanoseconds, and the event that counts it for the holder; `None` for the end of a wait.
    wait: Option<(u64, u8)>,
    steps: Rc<[Step]>,
}

/// Takes in samples, one pass at a time.
pub(super) struct Feed {
    pub(super) window: Window,
    live: Live,
    /// Samples waiting threads.
    wall: Option<Wall>,
    /// The requested sampling.
    session: SessionInfo,
    /// What samples count; known once the first process is.
    events: Option<Events>,
    pending: Vec<Sample>,
    /// Waits for locks, and the stacks of who ended them.
    at_locks: Joiner<AtLock>,
    tally: Tally,
    /// Recent times, each with the number of samples up to it.
    rate: VecDeque<(Instant, u64)>,
    samples: u64,
    began: Instant,
    /// When the program ended: no more samples will arrive.
    ended: Option<Instant>,
    /// Something arrived since the last redraw.
    changed: bool,
}

impl Feed {
    /// Keeps the last `seconds` of samples from `source`, at `frequency` samples per second, and from `wall`.
    pub(super) fn new(seconds: u64, source: String, frequency: u32, wall: Option<Wall>) -> Self {
        Self {
            window: Window::new(seconds),
            live: Live::default(),
            wall,
            session: SessionInfo { source, frequency, ..SessionInfo::default() },
            events: None,
            pending: Vec::new(),
            at_locks: Joiner::default(),
            tally: Tally::default(),
            rate: VecDeque::new(),
            samples: 0,
            began: Instant::now(),
            ended: None,
            changed: true,
        }
    }

    /// What the weights of each event count, and the index of the event shown first; `None` before the first process.
    pub(super) fn measures(&self) -> Option<(&[Measure], usize)> {
        let events = self.events.as_ref()?;
        let measures = events.measures();
        // For allocations alone, show first what is in use now.
        let of_main = |name: fn(HeapValue) -> &'static str| {
            measures.get(events.main()).filter(|main| main.name == name(HeapValue::default()))?;
            measures.iter().position(|measure| measure.name == name(HeapValue::InuseSpace))
        };
        let held = of_main(HeapValue::name).or_else(|| of_main(mapped_memory::name));
        Some((measures, held.unwrap_or(events.main())))
    }

    /// True if allocations or mappings are sampled.
    pub(super) fn has_blocks(&self) -> bool {
        self.events.as_ref().is_some_and(|events| events.measures().iter().any(Measure::is_level))
    }

    /// Forgets the blocks and mappings that are no longer in use. `so_far` contains those that are.
    pub(super) fn retain_blocks(&mut self, so_far: &[Event]) {
        let mut in_use: HashMap<Block, Left> = HashMap::new();
        for event in so_far {
            match event {
                Event::LiveBlocks(live) => {
                    for block in &live.blocks {
                        let left = in_use.entry((live.process, *block)).or_insert(Left::Blocks(0));
                        if let Left::Blocks(blocks) = left {
                            *blocks += 1;
                        }
                    }
                }
                Event::LiveMappings(live) => {
                    let left = live.mappings.iter().map(|(id, bytes)| (*id, Left::Bytes(*bytes)));
                    in_use.extend(left.map(|(id, left)| ((live.process, id), left)));
                }
                _ => {}
            }
        }
        self.window.keep(|block| in_use.get(block).copied());
        self.changed = true;
    }

    /// True if anything arrived since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// True if no process is followed.
    pub(super) fn is_alone(&self) -> bool {
        self.live.processes().next().is_none()
    }

    /// The numbers so far.
    pub(super) fn facts(&mut self) -> Facts {
        let stats = self.tally.finish(0);
        let mut hertz: Vec<u64> = self.live.processes().filter_map(|image| image.hertz()).collect();
        hertz.sort_unstable();
        hertz.dedup();
        Facts {
            seconds: (self.ended.unwrap_or_else(Instant::now) - self.began).as_secs_f64(),
            hertz,
            rate: self.rate(),
            samples: stats.samples,
            // Unread records will still arrive; gaps will not.
            lost: stats.lost - stats.detail.lost.get("unread").unwrap_or(&0) + stats.detail.gaps,
            truncated: stats.truncated,
            threads: stats.threads,
            processes: stats.processes,
            ..Facts::default()
        }
    }

    /// The recent number of samples per second.
    fn rate(&mut self) -> u64 {
        let now = Instant::now();
        self.rate.push_back((now, self.samples));
        while self.rate.len() > 2 && now - self.rate[1].0 >= RATE_OVER {
            self.rate.pop_front();
        }
        let (since, before) = self.rate[0];
        let seconds = (now - since).as_secs_f64();
        if seconds < 0.1 { 0 } else { ((self.samples - before) as f64 / seconds).round() as u64 }
    }

    /// Forgets what has left the window.
    pub(super) fn forget(&mut self) {
        self.window.forget(clock::monotonic_ns() / SECOND_NS);
    }

    /// Stops the clock: the program has ended.
    pub(super) fn end(&mut self) {
        self.ended.get_or_insert_with(Instant::now);
    }

    fn take_in(&mut self) {
        let samples = std::mem::take(&mut self.pending);
        if samples.is_empty() {
            return;
        }
        self.changed = true;
        let images = self.live.processes().map(|image| (image.info.source.clone(), image.info.period_ns));
        let events = self.events.take().unwrap_or_else(|| Events::new(&self.session, images));
        let counted = |sample: &Sample| match events.is_of_locks(sample) && events.wait(sample).is_none() {
            // The end of a wait counts nothing by itself, and its stack is needed.
            true => self.live.parts(sample),
            false => self.live.counted(sample, &events),
        };
        let parts: Vec<Vec<LiveSample>> = samples.iter().map(counted).collect();
        self.samples +=
            samples.iter().map(|sample| sample.parts().count() as u64 * sample.events()).sum::<u64>();
        self.live.name(parts.iter().flatten().flat_map(|part| &part.stack));
        let mut steps = Vec::new();
        for (sample, parts) in samples.iter().zip(&parts) {
            if events.is_of_locks(sample)
                && let Some(part) = parts.first()
            {
                steps.clear();
                self.label(sample, &part.stack, &mut steps);
                self.at_lock(sample, &events, &steps);
                if events.wait(sample).is_none() {
                    continue;
                }
            }
            for part in parts {
                steps.clear();
                self.label(sample, &part.stack, &mut steps);
                self.window.add(part.ns / SECOND_NS, &steps, part.event, part.weight);
                if let Some(block) = events.block(sample) {
                    self.window.hold(block, &steps, part.event, part.weight / sample.events().max(1));
                }
            }
        }
        self.events = Some(events);
    }

    /// Adds a wait's weight to the stack that ended it, once both are known.
    fn at_lock(&mut self, sample: &Sample, events: &Events, steps: &[Step]) {
        let Self { at_locks, window, .. } = self;
        let keep =
            || AtLock { second: sample.ns / SECOND_NS, wait: events.wait(sample), steps: steps.into() };
        at_locks.take(sample, keep, |wait, end| {
            if let Some((delay, event)) = wait.wait {
                window.add(wait.second, &end.steps, event, delay);
            }
        });
    }

    /// Converts the stack of a sample to labels, from its program to its leaf.
    fn label(&mut self, sample: &Sample, stack: &[Located], steps: &mut Vec<Step>) {
        let program = self.live.process(sample.process).map(|image| image.program());
        let program = program.filter(|name| !name.is_empty()).unwrap_or_else(|| "?".into());
        let program = Name { text: program, module: String::new(), program: true };
        steps.push(Step::certain(self.window.label(program)));
        if sample.end != End::Root as u8
            && let Some(text) = truncation_mark(sample.end)
        {
            let mark = Name { text, module: String::new(), program: false };
            steps.push(Step::certain(self.window.label(mark)));
        }
        for located in self.live.shown(stack).rev() {
            for function in self.live.functions(located).rev() {
                let name = Name { text: function.to_owned(), module: located.module(), program: false };
                let label = self.window.label(name);
                steps.push(Step { label, found_by: located.found_by });
            }
        }
    }
}

impl Listener for Feed {
    fn event(&mut self, mut event: Event) -> io::Result<()> {
        if let Some(wall) = &mut self.wall {
            wall.observe(&mut event);
        }
        self.tally.add(&event);
        match event {
            Event::Sample(sample) => self.pending.push(sample),
            // Name the samples before what they need is removed.
            gone @ (Event::ThreadEnd(_) | Event::ProcessEnd(_)) => {
                self.take_in();
                self.live.learn(gone);
                self.changed = true;
            }
            event => self.live.learn(event),
        }
        Ok(())
    }

    fn end_pass(&mut self) -> io::Result<()> {
        let seen: Vec<Event> = self.wall.iter().flat_map(Wall::take).collect();
        seen.into_iter().try_for_each(|event| self.event(event))?;
        self.take_in();
        Ok(())
    }
}
