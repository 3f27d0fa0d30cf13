//! The sources of a recording: the value of `-e`, which is a clock, probes, or both.

use std::path::Path;
use std::str::FromStr;

use selfwind_profile::heap;
use selfwind_profile::locks;
use selfwind_profile::source_list::{self, MMAP, WALL};

use crate::sampling::clock::Clock;
use crate::sampling::tracepoints::Tracepoints;

/// The sources of a recording: at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sources {
    /// The clock, if there is one.
    pub(crate) clock: Option<Clock>,
    /// Other sources, each kind at most once.
    pub(crate) probes: Vec<Probe>,
}

/// A source other than a clock: records what the program does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// Allocations: one sample per this many bytes on average; 1 records all.
    Allocations(u64),
    /// Memory mappings.
    Mappings,
    /// Waiting threads. The recorder samples these; running threads are sampled by a clock.
    Wall,
    /// The program's own tracepoints.
    Tracepoints(Tracepoints),
    /// Waits for locks: one sample per this many nanoseconds of waiting on average; 1 records all.
    Locks(u64),
}

/// The functions that a probe interposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Interposed {
    /// Those of the allocator.
    Allocator,
    /// Those of locks.
    Locks,
    /// Those that map memory.
    Mappings,
}

impl Interposed {
    /// The name of the source that needs them.
    pub(crate) const fn source(self) -> &'static str {
        match self {
            Self::Allocator => "alloc",
            Self::Locks => "lock",
            Self::Mappings => MMAP,
        }
    }
}

impl Probe {
    fn name(&self) -> String {
        match self {
            Self::Allocations(mean) => heap::source_name(*mean),
            Self::Mappings => MMAP.into(),
            Self::Wall => WALL.into(),
            Self::Tracepoints(tracepoints) => tracepoints.name(),
            Self::Locks(mean) => locks::source_name(*mean),
        }
    }

    /// True if the recorder takes these samples, not the agent.
    fn is_by_recorder(&self) -> bool {
        matches!(self, Self::Wall)
    }

    /// The functions of the program that the agent has to interpose.
    fn interposed(&self) -> Option<Interposed> {
        match self {
            Self::Allocations(_) => Some(Interposed::Allocator),
            Self::Locks(_) => Some(Interposed::Locks),
            Self::Mappings => Some(Interposed::Mappings),
            Self::Wall | Self::Tracepoints(_) => None,
        }
    }

    /// Parses one; `None` if it is another kind of source.
    fn parse(text: &str) -> Result<Option<Self>, String> {
        match text {
            WALL => return Ok(Some(Self::Wall)),
            MMAP => return Ok(Some(Self::Mappings)),
            _ => {}
        }
        if let Some((name @ (WALL | MMAP), _)) = text.split_once(':') {
            return Err(format!("`{text}`: {name} takes no value; write {name}"));
        }
        if let Some(tracepoints) = Tracepoints::parse(text)? {
            return Ok(Some(Self::Tracepoints(tracepoints)));
        }
        let allocations = heap::mean_of(text)?.map(Self::Allocations);
        Ok(allocations.or(locks::mean_of(text)?.map(Self::Locks)))
    }
}

impl Default for Sources {
    fn default() -> Self {
        Self { clock: Some(Clock::default()), probes: Vec::new() }
    }
}

impl Sources {
    /// The name in flags, environment and profile.
    pub(crate) fn name(&self) -> String {
        let clock = self.clock.iter().map(Clock::name);
        clock.chain(self.probes.iter().map(Probe::name)).collect::<Vec<_>>().join(",")
    }

    /// No source.
    pub(crate) const NONE: Self = Self { clock: None, probes: Vec::new() };

    /// The sources that a process reports: `clock` is the name of its clock, `probes` a list of its other sources. Unknown ones are
    /// ignored.
    pub(crate) fn of_process(clock: &str, probes: &str) -> Self {
        let own = Self { clock: clock.parse().ok(), ..Self::NONE };
        let probes = probes.parse::<Self>().map_or(Vec::new(), |sources| sources.probes);
        Self { probes, ..own }
    }

    /// True if all probes of agents are among those of an agent with the sources `own`.
    pub(crate) fn probes_are_among(&self, own: &Self) -> bool {
        self.probes.iter().filter(|probe| !probe.is_by_recorder()).all(|probe| own.probes.contains(probe))
    }

    /// Replaces the agent's sources by `own`, those of a process that is already sampled: they cannot be changed. Those of the
    /// recorder stay.
    pub(crate) fn take_over(&mut self, own: Self) {
        if own.probes.is_empty() {
            return;
        }
        if own.clock.is_none() {
            self.clock = None;
        }
        self.probes.retain(Probe::is_by_recorder);
        self.probes.extend(own.probes);
    }

    /// The sources as passed to the agent.
    pub(crate) fn of_agent(&self) -> String {
        let clock = self.clock.clone().or_else(|| self.have_wall().then(Clock::default));
        let probes = self.probes.iter().filter(|probe| !probe.is_by_recorder()).cloned().collect();
        Self { clock, probes }.name()
    }

    /// Resolves the breakpoints of events to sites in `program` and its libraries.
    pub(crate) fn resolve_sites(&mut self, program: &Path) -> anyhow::Result<()> {
        self.clock.as_mut().map_or(Ok(()), |clock| clock.resolve_sites(program))
    }

    /// The requested samples per second; 0 if no source has a rate.
    pub(crate) fn frequency(&self, asked: u32) -> u32 {
        let of_clock = self.clock.as_ref().map_or(0, |clock| clock.frequency(asked));
        if self.have_wall() { asked } else { of_clock }
    }

    /// The events for the agent (SELFWIND_PERF), if the clock has any.
    pub(crate) fn events(&self, frequency: u32) -> Option<String> {
        self.clock.as_ref()?.events(frequency)
    }

    /// Whether the agent takes the best clock that a process is permitted.
    pub(crate) fn are_automatic(&self) -> bool {
        self.clock == Some(Clock::Auto)
    }

    /// True if the agent samples by a clock.
    pub(crate) fn have_clock(&self) -> bool {
        self.clock.is_some() || self.have_wall()
    }

    /// What the agent has to interpose, which needs its second build; in a fixed order.
    pub(crate) fn interposed(&self) -> Vec<Interposed> {
        let mut interposed: Vec<_> = self.probes.iter().filter_map(Probe::interposed).collect();
        interposed.sort_unstable();
        interposed
    }

    /// True if allocations are recorded.
    pub(crate) fn have_allocations(&self) -> bool {
        self.probes.iter().any(|probe| matches!(probe, Probe::Allocations(_)))
    }

    /// True if the recorder samples waiting threads (`wall`).
    pub(crate) fn have_wall(&self) -> bool {
        self.probes.contains(&Probe::Wall)
    }

    /// True if these sources need an agent from the start of the process: an injected agent cannot provide them.
    pub(crate) fn need_start(&self) -> bool {
        self.probes.iter().any(|probe| !probe.is_by_recorder() && !matches!(probe, Probe::Allocations(_)))
    }

    /// True if an injected agent can provide the clock: it has CPU timers only.
    pub(crate) fn can_be_injected(&self) -> bool {
        self.have_clock() && matches!(self.clock, None | Some(Clock::Auto | Clock::Cpu | Clock::Itimer))
    }

    /// These without what the agent records beside a clock.
    pub(crate) fn without_probes(&self) -> Self {
        let by_recorder = self.probes.iter().filter(|probe| probe.is_by_recorder());
        Self { clock: self.clock.clone(), probes: by_recorder.cloned().collect() }
    }

    /// The sources of an injected agent, for the agent.
    pub(crate) fn of_injected(&self) -> String {
        let clock = self.have_clock().then_some(Clock::Cpu);
        let is_possible = |probe: &&Probe| matches!(probe, Probe::Allocations(_));
        Self { clock, probes: self.probes.iter().filter(is_possible).cloned().collect() }.name()
    }

    /// True if tracepoints are recorded.
    pub(crate) fn have_tracepoints(&self) -> bool {
        self.probes.iter().any(|probe| matches!(probe, Probe::Tracepoints(_)))
    }

    /// Why there may be no samples, if only allocations or waits for locks are recorded.
    pub(crate) fn why_empty(&self) -> Option<&'static str> {
        let probe = |probe: &Probe| match probe {
            Probe::Allocations(1) => Some(
                "nothing was allocated, or only by programs that do not load the agent (static and setuid ones) or contain an allocator of their own",
            ),
            Probe::Allocations(_) => Some(
                "too little was allocated for one sample (`-e alloc:all` records every allocation), or only by programs that do not load the agent (static and setuid ones) or contain an allocator of their own",
            ),
            Probe::Locks(1) => Some(
                "no thread waited for a lock, or only for locks that make system calls of their own (Go, GCC's OpenMP), or in programs that do not load the agent: static and setuid ones",
            ),
            Probe::Locks(_) => Some(
                "no thread waited long for a lock (`-e lock:all` records every wait), or only for locks that make system calls of their own (Go, GCC's OpenMP), or in programs that do not load the agent: static and setuid ones",
            ),
            _ => None,
        };
        self.probes.iter().find_map(probe).filter(|_| self.clock.is_none())
    }

    /// Fails for what this user has no permission for, unless there is a fallback.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.clock.as_ref().map_or(Ok(()), Clock::check)
    }
}

impl Sources {
    /// Merges tracepoints; returns any other probe.
    fn add_tracepoints(&mut self, probe: Probe) -> Option<Probe> {
        let known = self.probes.iter_mut().find_map(|known| match known {
            Probe::Tracepoints(known) => Some(known),
            _ => None,
        });
        match (known, probe) {
            (Some(known), Probe::Tracepoints(more)) => {
                known.extend(more);
                None
            }
            (_, probe) => Some(probe),
        }
    }
}

impl FromStr for Sources {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut sources = Self { clock: None, probes: Vec::new() };
        for piece in source_list::pieces(text) {
            if let Some(probe) = Probe::parse(piece)? {
                let probe = match sources.add_tracepoints(probe) {
                    Some(probe) => probe,
                    None => continue,
                };
                let kind = std::mem::discriminant(&probe);
                if sources.probes.iter().any(|other| std::mem::discriminant(other) == kind) {
                    return Err(format!("`{piece}` is given twice"));
                }
                sources.probes.push(probe);
                continue;
            }
            let mut clock = piece.parse::<Clock>()?;
            if let Some(known) = &mut sources.clock {
                match known.extend(clock) {
                    Ok(()) => continue,
                    Err(other) => clock = other,
                }
            }
            if let Some(other) = sources.clock.replace(clock) {
                return Err(format!(
                    "`{}` and `{piece}` are two clocks, but a recording has only one; several kernel events are one list, perf:EVENT,EVENT",
                    other.name()
                ));
            }
        }
        Ok(sources)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_and_what_is_beside_it() {
        for (text, name) in [
            ("alloc", "alloc:524288"),
            ("alloc:all", "alloc:all"),
            ("alloc:64K,cpu", "cpu,alloc:65536"),
            ("auto,alloc:1", "auto,alloc:all"),
            ("wall,alloc", "wall,alloc:524288"),
            ("lock:2us,cpu,alloc", "cpu,lock:2000,alloc:524288"),
            ("perf:faults,cs@10,alloc:all", "perf:faults,cs@10,alloc:all"),
            ("mmap,cpu,alloc:all", "cpu,mmap,alloc:all"),
            ("tp:app:*", "tp:app:*"),
            ("fn:main:work,usdt:a:b*,perf:cs", "perf:fn:main:work,usdt:a:b*,cs"),
            ("perf:faults,fn:libc.so.6:malloc,alloc", "perf:faults,fn:libc.so.6:malloc,alloc:524288"),
            ("tp:a:b,tp:c:d?,nostack,cpu,tp:e:f", "cpu,tp:a:b,tp:c:d?,nostack,tp:e:f"),
        ] {
            let sources: Sources = text.parse().unwrap();
            assert_eq!(sources.name(), name, "{text}");
            assert_eq!(sources.name().parse(), Ok(sources));
        }
        let sources: Sources = "alloc".parse().unwrap();
        assert_eq!((sources.clock.clone(), sources.frequency(99), sources.events(99)), (None, 0, None));
        let sources: Sources = "wall,alloc:all".parse().unwrap();
        assert_eq!((sources.of_agent().as_str(), sources.frequency(99)), ("auto,alloc:all", 99));
        let (allocator, locks, mappings) = (Interposed::Allocator, Interposed::Locks, Interposed::Mappings);
        for (text, interposes) in [
            ("wall", vec![]),
            ("cpu,tp:a:b", vec![]),
            ("alloc:all", vec![allocator]),
            ("cpu,mmap", vec![mappings]),
            ("mmap,lock,wall,alloc", vec![allocator, locks, mappings]),
        ] {
            let sources: Sources = text.parse().unwrap();
            assert_eq!(sources.interposed(), interposes, "{text}");
        }
        let sources: Sources = "perf,alloc".parse().unwrap();
        assert_eq!(sources.frequency(99), 99);
        assert!(sources.events(99).is_some() && sources.have_allocations());
    }

    #[test]
    fn a_process_has_its_own() {
        let sources = |text: &str| text.parse::<Sources>().unwrap();
        let own = Sources::of_process("alloc", "alloc:all,tp:a:*");
        assert_eq!((own.name().as_str(), own.clock.is_none()), ("alloc:all,tp:a:*", true));
        assert_eq!(Sources::of_process("cpu", "no,such"), sources("cpu"));
        for (asked, is_there) in [("alloc:all", true), ("cpu,wall", true), ("alloc", false), ("lock", false)]
        {
            assert_eq!(sources(asked).probes_are_among(&own), is_there, "{asked}");
        }
        for (asked, clock, probes, gets) in [
            ("auto", "alloc", "alloc:4096", "alloc:4096"),
            ("auto,wall", "cpu", "lock:all", "auto,wall,lock:all"),
            ("cpu", "cpu", "", "cpu"),
        ] {
            let mut asked = sources(asked);
            asked.take_over(Sources::of_process(clock, probes));
            assert_eq!(asked.name(), gets);
        }
    }

    #[test]
    fn wrong_lists_are_explained() {
        for (text, part) in [
            ("alloc:0", "a number of bytes above 0"),
            ("alloc:often", "a number of bytes above 0"),
            ("lock:never", "a time above 0"),
            ("lock,lock:all", "twice"),
            ("cpu,itimer", "two clocks"),
            ("perf:cs,offcpu", "two clocks"),
            ("cpu,fn:main:work", "two clocks"),
            ("alloc,alloc:all", "twice"),
            ("mmap,mmap", "twice"),
            ("mmap:all", "mmap takes no value"),
            ("wall:10ms", "wall takes no value"),
            ("cpu,", "auto, cpu, itimer"),
            ("tp:app", "give tp:PROVIDER:NAME"),
            ("tp::x", "give tp:PROVIDER:NAME"),
            ("tp:app:x,y", "unknown source `y`"),
            ("tp:app:a b", "give tp:PROVIDER:NAME"),
            ("", "auto, cpu, itimer"),
            ("cpu,nonsense", "auto, cpu, itimer"),
        ] {
            let error = text.parse::<Sources>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
