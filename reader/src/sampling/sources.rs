//! Everything that a recording samples by: the value of `-e`, a clock and what is recorded beside it.

use std::path::Path;
use std::str::FromStr;

use selfwind_profile::heap;
use selfwind_profile::locks;
use selfwind_profile::source_list::{self, MMAP, WALL};

use crate::sampling::clock::Clock;
use crate::sampling::tracepoints::Tracepoints;

/// What a recording samples by: something at least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sources {
    /// The clock, if there is one.
    pub(crate) clock: Option<Clock>,
    /// What is recorded beside it, each kind once.
    pub(crate) probes: Vec<Probe>,
}

/// What is recorded whenever the program does it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// What it allocates: one allocation in so many bytes on average; all of them, if that is 1.
    Allocations(u64),
    /// The memory that it maps.
    Mappings,
    /// Where its threads are when they wait. The recorder looks; running threads are sampled by a clock.
    Wall,
    /// Tracepoints of its own.
    Tracepoints(Tracepoints),
    /// How long it waits for locks: one wait in so many nanoseconds of waiting; all of them, if that is 1.
    Locks(u64),
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

    /// True if it is the recorder that sees to it, not the agent.
    fn is_the_recorders(&self) -> bool {
        matches!(self, Self::Wall)
    }

    /// True if the agent interposes functions of the program for it.
    fn is_interposed(&self) -> bool {
        match self {
            Self::Allocations(_) | Self::Mappings | Self::Locks(_) => true,
            Self::Wall | Self::Tracepoints(_) => false,
        }
    }

    /// Reads one.
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

    /// None at all.
    pub(crate) const NONE: Self = Self { clock: None, probes: Vec::new() };

    /// Those that a process says it has: `clock` is the name of what triggers its samples, if that is one, `probes` a list
    /// of what is recorded beside it. What cannot be read is left out.
    pub(crate) fn of_process(clock: &str, probes: &str) -> Self {
        let own = Self { clock: clock.parse().ok(), ..Self::NONE };
        let probes = probes.parse::<Self>().map_or(Vec::new(), |sources| sources.probes);
        Self { probes, ..own }
    }

    /// True if what agents record beside a clock is what an agent with the sources `own` does, or part of it.
    pub(crate) fn probes_are_among(&self, own: &Self) -> bool {
        self.probes.iter().filter(|probe| !probe.is_the_recorders()).all(|probe| own.probes.contains(probe))
    }

    /// Takes over what an agent with the sources `own` records, which has been there from the start: that is what there
    /// will be, whatever was asked for. What the recorder sees to stays.
    pub(crate) fn take_over(&mut self, own: Self) {
        if own.probes.is_empty() {
            return;
        }
        if own.clock.is_none() {
            self.clock = None;
        }
        self.probes.retain(Probe::is_the_recorders);
        self.probes.extend(own.probes);
    }

    /// What the agent is told.
    pub(crate) fn of_agent(&self) -> String {
        let clock = self.clock.clone().or_else(|| self.have_wall().then(Clock::default));
        let probes = self.probes.iter().filter(|probe| !probe.is_the_recorders()).cloned().collect();
        Self { clock, probes }.name()
    }

    /// Finds out where the breakpoints are that events ask for, when `program` runs.
    pub(crate) fn find_places(&mut self, program: &Path) -> anyhow::Result<()> {
        self.clock.as_mut().map_or(Ok(()), |clock| clock.find_places(program))
    }

    /// Samples per second asked for; 0 if nothing has a rate.
    pub(crate) fn frequency(&self, asked: u32) -> u32 {
        let of_clock = self.clock.as_ref().map_or(0, |clock| clock.frequency(asked));
        if self.have_wall() { asked } else { of_clock }
    }

    /// The events for the agent (SELFWIND_PERF), if the clock has any.
    pub(crate) fn events(&self, frequency: u32) -> Option<String> {
        self.clock.as_ref()?.events(frequency)
    }

    /// True if the agent samples by a clock.
    pub(crate) fn have_clock(&self) -> bool {
        self.clock.is_some() || self.have_wall()
    }

    /// True if the agent interposes the program's allocator, locks or mappings: that is its second build.
    pub(crate) fn need_probes_agent(&self) -> bool {
        self.probes.iter().any(Probe::is_interposed)
    }

    /// True if allocations are recorded.
    pub(crate) fn have_allocations(&self) -> bool {
        self.probes.iter().any(|probe| matches!(probe, Probe::Allocations(_)))
    }

    /// True if the recorder looks at threads by the wall clock.
    pub(crate) fn have_wall(&self) -> bool {
        self.probes.contains(&Probe::Wall)
    }

    /// What the agent of a process does that has been there from the start: none is put into a running process for it.
    pub(crate) fn of_the_start(&self) -> bool {
        self.probes.iter().any(|probe| !probe.is_the_recorders())
    }

    /// True if tracepoints are recorded.
    pub(crate) fn have_tracepoints(&self) -> bool {
        self.probes.iter().any(|probe| matches!(probe, Probe::Tracepoints(_)))
    }

    /// True if waits for locks are recorded.
    pub(crate) fn have_locks(&self) -> bool {
        self.probes.iter().any(|probe| matches!(probe, Probe::Locks(_)))
    }

    /// Refuses what this user may not have, where nothing else could take its place.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.clock.as_ref().map_or(Ok(()), Clock::check)
    }
}

impl Sources {
    /// Takes further tracepoints in; gives anything else back.
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
                    return Err(format!("`{piece}`: it is there twice"));
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
                    "`{}` and `{piece}` are two clocks, of which a recording has one; events of the kernel are one list, perf:EVENT,EVENT",
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
        for (text, interposes) in
            [("wall", false), ("cpu,tp:a:b", false), ("alloc", true), ("cpu,mmap", true), ("wall,lock", true)]
        {
            let sources: Sources = text.parse().unwrap();
            assert_eq!(sources.need_probes_agent(), interposes, "{text}");
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
