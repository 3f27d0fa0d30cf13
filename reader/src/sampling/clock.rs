//! The clock of a recording: what triggers samples, which is either CPU time or kernel events.
//!
//! Names of kernel events are converted to numbers here, so that errors are reported before anything is started. The agent gets
//! the numbers.

use crate::proc::{self, Status};
use std::fmt::Write;
use std::io;
use std::path::Path;
use std::str::FromStr;

use selfwind_profile::kernel_event::{HARDWARE_EVENTS, OFF_PROCESSOR_UNIT_NS, SOFTWARE_EVENTS};
use selfwind_profile::source_list::EVENTS;

use crate::sampling::probes::{Pattern, Site};

/// PERF_TYPE_ numbers of perf_event_open(2).
const HARDWARE: u32 = 0;
const SOFTWARE: u32 = 1;
const TRACEPOINT: u32 = 2;
/// Flags of SELFWIND_PERF.
const BY_FREQUENCY: u32 = 1;
const WITH_SWITCHES: u32 = 2;
const AT_OFFSET: u32 = 4;
/// From this bit on: index of the event's name.
const NAME_AT: u32 = 8;
/// Maximum number of events in a session: each needs a ring in every thread.
const EVENTS_LIMIT: usize = 16;
/// The kernel's event source for breakpoints in programs.
const UPROBE_TYPE: &str = "/sys/bus/event_source/devices/uprobe/type";
/// CAP_SYS_ADMIN.
const SYS_ADMIN: u64 = 1 << 21;
/// Where the tracing file system is mounted.
const TRACING: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// What triggers samples. A recording has at most one clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The best available.
    #[default]
    Auto,
    /// A timer on each thread's CPU clock.
    Cpu,
    /// One ITIMER_PROF for the process, with SIGPROF.
    Itimer,
    /// The kernel's clock of each thread, with kernel stacks where permitted.
    Perf,
    /// Events of the kernel.
    Events(Vec<PerfEvent>),
    /// Leaving the CPU; the weight is the time off the CPU.
    OffCpu,
}

/// An event of perf_event_open(2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PerfEvent {
    name: String,
    kind: u32,
    config: u64,
    period: Option<u64>,
    /// It occurs in user mode, so it needs no permission to observe the kernel.
    in_user_mode: bool,
    filter: &'static str,
    /// For breakpoints: their names, and their sites once resolved.
    probe: Option<(Pattern, Vec<Site>)>,
}

impl Clock {
    /// The name in flags, environment and profile.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Auto => "auto".into(),
            Self::Cpu => "cpu".into(),
            Self::Itimer => "itimer".into(),
            Self::Perf => "perf".into(),
            Self::OffCpu => "offcpu".into(),
            Self::Events(events) => {
                let name = |event: &PerfEvent| match event.period.filter(|_| event.probe.is_none()) {
                    Some(period) => format!("{}@{period}", event.name),
                    None => event.name.clone(),
                };
                format!("perf:{}", events.iter().map(name).collect::<Vec<_>>().join(","))
            }
        }
    }

    /// The requested samples per second; 0 if the source has no rate.
    pub(crate) fn frequency(&self, asked: u32) -> u32 {
        match self {
            Self::OffCpu => 0,
            Self::Events(events) if !events.iter().any(PerfEvent::has_rate) => 0,
            _ => asked,
        }
    }

    /// The events for the agent (SELFWIND_PERF): `TYPE:CONFIG:PERIOD:FLAGS:FILTER`, separated by `;`.
    pub(crate) fn events(&self, frequency: u32) -> Option<String> {
        let own;
        let (events, flags) = match self {
            Self::Events(events) => (&events[..], 0),
            Self::Perf => {
                own = [software("task-clock", 1, true, None)];
                (&own[..], 0)
            }
            Self::OffCpu => {
                own = [software("context-switches", 3, false, None)];
                (&own[..], WITH_SWITCHES)
            }
            Self::Auto | Self::Cpu | Self::Itimer => return None,
        };
        let mut text = String::new();
        for (number, event) in events.iter().enumerate() {
            let by_frequency = event.kind == HARDWARE && event.period.is_none();
            let flags = flags | if by_frequency { BY_FREQUENCY } else { 0 };
            let period = event.period.unwrap_or_else(|| match event.kind {
                HARDWARE => frequency.into(),
                _ if event.has_rate() => 1_000_000_000 / u64::from(frequency.max(1)),
                _ => 1,
            });
            let separator = if text.is_empty() { "" } else { ";" };
            let PerfEvent { kind, config, filter, .. } = event;
            let flags = flags | (number as u32) << NAME_AT;
            let Some((_, sites)) = &event.probe else {
                let _ = write!(text, "{separator}{kind}:{config}:{period}:{flags}:{filter}");
                continue;
            };
            for Site { file, offset, semaphore, .. } in sites {
                let separator = if text.is_empty() { "" } else { ";" };
                let flags = flags | AT_OFFSET;
                // The kernel expects the semaphore's offset in the upper half (`ref_ctr_offset`).
                let config = semaphore << 32;
                let _ = write!(text, "{separator}{kind}:{config}:{period}:{flags}:{offset}:{file}");
            }
        }
        Some(text)
    }

    /// True if this is how a process is sampled whose agent names its source `own`, with `unit_ns` nanoseconds per unit of weight.
    pub(crate) fn is_sampled_as(&self, own: &str, unit_ns: u64) -> bool {
        match self {
            Self::Auto => true,
            Self::Cpu => own == "cpu",
            Self::Itimer => own == "itimer",
            Self::OffCpu => own == "perf" && unit_ns == OFF_PROCESSOR_UNIT_NS,
            Self::Perf => own == "perf" && unit_ns > OFF_PROCESSOR_UNIT_NS,
            // The events that the agent was given are not known here.
            Self::Events(_) => own == "perf" && unit_ns == 0,
        }
    }

    /// Adds the events of another list. Returns `other` if one of the two is not a list.
    pub(super) fn extend(&mut self, other: Self) -> Result<(), Self> {
        match (self, other) {
            (Self::Events(events), Self::Events(more)) => {
                events.extend(more);
                Ok(())
            }
            (_, other) => Err(other),
        }
    }

    /// Resolves breakpoints to sites in `program` and its libraries, with one event for each name.
    pub(super) fn resolve_sites(&mut self, program: &Path) -> anyhow::Result<()> {
        let Self::Events(events) = self else { return Ok(()) };
        let mut found: Vec<PerfEvent> = Vec::new();
        let mut count = 0;
        for event in events.drain(..) {
            let Some((pattern, _)) = &event.probe else {
                count += 1;
                found.push(event);
                continue;
            };
            let sites = pattern.find(program)?;
            count += sites.len();
            if count > EVENTS_LIMIT {
                anyhow::bail!(
                    "{}: {} sites match, and at most {EVENTS_LIMIT} can be watched at a time; name fewer",
                    event.name,
                    sites.len()
                );
            }
            for site in sites {
                let index = found.iter().position(|other| other.name == site.name);
                match index.and_then(|index| found[index].probe.as_mut()) {
                    Some((_, known)) if known.contains(&site) => {}
                    Some((_, known)) => known.push(site),
                    None => {
                        let name = site.name.clone();
                        found.push(PerfEvent {
                            name,
                            probe: Some((pattern.clone(), vec![site])),
                            ..event.clone()
                        });
                    }
                }
            }
        }
        *events = found;
        Ok(())
    }

    /// Fails for what this user has no permission for, unless there is a fallback.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let blind = match self {
            Self::OffCpu => Some("offcpu".to_owned()),
            Self::Events(events) => {
                events.iter().find(|event| !event.in_user_mode).map(|event| event.name.clone())
            }
            _ => None,
        };
        self.check_probes()?;
        let Some(name) = blind else { return Ok(()) };
        let level = paranoid().unwrap_or(2);
        if level > 1 && !may_see_kernel() {
            anyhow::bail!(
                "{name} occurs in the kernel, which this user may not observe (kernel.perf_event_paranoid is {level}); run as root, give selfwind CAP_PERFMON, or set kernel.perf_event_paranoid to 1"
            );
        }
        Ok(())
    }
}

impl Clock {
    /// Fails for breakpoints that the kernel would refuse.
    fn check_probes(&self) -> anyhow::Result<()> {
        let Self::Events(events) = self else { return Ok(()) };
        let Some(event) = events.iter().find(|event| event.probe.is_some()) else { return Ok(()) };
        let name = &event.name;
        if proc::number(UPROBE_TYPE).is_none() {
            anyhow::bail!(
                "{name}: this kernel has no uprobes ({UPROBE_TYPE} is missing; CONFIG_UPROBE_EVENTS)"
            );
        }
        if !has_one_of(SYS_ADMIN) {
            anyhow::bail!(
                "{name}: only root may set uprobes (CAP_SYS_ADMIN); run as root; a tracepoint of selfwind.h (-e tp:PROVIDER:NAME) needs no privilege"
            );
        }
        Ok(())
    }
}

impl PerfEvent {
    /// True if samples come at a rate instead of at each event.
    fn has_rate(&self) -> bool {
        self.period.is_none() && (self.kind == HARDWARE || (self.kind == SOFTWARE && self.config <= 1))
    }

    /// `NAME` or `NAME@PERIOD`.
    fn parse(text: &str) -> Result<Self, String> {
        if let Some(pattern) = Pattern::parse(text)? {
            let kind = proc::number(UPROBE_TYPE).and_then(|kind| u32::try_from(kind).ok()).unwrap_or(0);
            let (name, probe) = (pattern.name(), Some((pattern, Vec::new())));
            return Ok(Self {
                name,
                kind,
                config: 0,
                period: Some(1),
                in_user_mode: true,
                filter: "",
                probe,
            });
        }
        let (name, period) = match text.split_once('@') {
            None => (text, None),
            Some((name, period)) => {
                let wrong =
                    || format!("`{text}`: invalid period `{period}`: expected a number of events above 0");
                (name, Some(period.parse().ok().filter(|&n: &u64| n > 0 && n < 1 << 62).ok_or_else(wrong)?))
            }
        };
        if let Some(&(_, config, in_user_mode)) = SOFTWARE_EVENTS.iter().find(|(known, ..)| *known == name) {
            return Ok(software(name, config, in_user_mode, period));
        }
        if let Some(&(_, config)) = HARDWARE_EVENTS.iter().find(|(known, _)| *known == name) {
            return hardware(name, config, period);
        }
        match name.split_once(':') {
            Some((group, event)) => tracepoint(name, group, event, period),
            None => {
                let names: Vec<&str> = SOFTWARE_EVENTS.iter().map(|(name, ..)| *name).collect();
                Err(format!(
                    "unknown event `{name}`: expected one of {}, a hardware event such as cycles, or a tracepoint as GROUP:NAME",
                    names.join(", ")
                ))
            }
        }
    }
}

fn software(name: &str, config: u64, in_user_mode: bool, period: Option<u64>) -> PerfEvent {
    PerfEvent { name: name.into(), kind: SOFTWARE, config, period, in_user_mode, filter: "", probe: None }
}

fn hardware(name: &str, config: u64, period: Option<u64>) -> Result<PerfEvent, String> {
    let devices = "/sys/bus/event_source/devices";
    let counters = std::fs::read_dir(devices).into_iter().flatten().flatten();
    let has_counters = counters.into_iter().any(|device| {
        device.file_name().to_str().is_some_and(|device| device == "cpu" || device.starts_with("cpu_"))
    });
    if !has_counters {
        return Err(format!(
            "this machine has no hardware counters ({devices}/cpu is missing, as in most virtual machines), so no `{name}`; `perf` samples by time"
        ));
    }
    Ok(PerfEvent {
        name: name.into(),
        kind: HARDWARE,
        config,
        period,
        in_user_mode: true,
        filter: "",
        probe: None,
    })
}

fn tracepoint(name: &str, group: &str, event: &str, period: Option<u64>) -> Result<PerfEvent, String> {
    let word = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !word(group) || !word(event) {
        return Err(format!("`{name}` is not a tracepoint; expected GROUP:NAME, such as sched:sched_switch"));
    }
    if event.ends_with("_rt_sigreturn") {
        return Err(format!("`{name}` cannot be sampled: each sample raises the event itself"));
    }
    let filter = match name {
        // The return from the agent's handler is itself such an event.
        "raw_syscalls:sys_enter" => "id != 15",
        "raw_syscalls:sys_exit" => "id >= 0 && id != 15",
        _ => "",
    };
    let mut refused = None;
    for base in TRACING.iter().map(Path::new) {
        match std::fs::read_to_string(base.join("events").join(group).join(event).join("id")) {
            Ok(id) => {
                let config = id.trim().parse().map_err(|_| format!("`{name}`: its id is `{}`", id.trim()))?;
                let kind = TRACEPOINT;
                return Ok(PerfEvent {
                    name: name.into(),
                    kind,
                    config,
                    period,
                    in_user_mode: false,
                    filter,
                    probe: None,
                });
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => refused = Some(base.display()),
            Err(_) => {}
        }
    }
    if let Some(base) = refused {
        return Err(format!("`{name}`: this user may not read {base}; run as root to use tracepoints"));
    }
    if !TRACING.iter().any(|base| Path::new(base).join("events").exists()) {
        return Err(format!(
            "`{name}`: the tracing file system is not mounted; `mount -t tracefs tracefs {}` as root",
            TRACING[0]
        ));
    }
    Err(format!("unknown tracepoint `{name}`; {}/available_events lists them", TRACING[0]))
}

fn paranoid() -> Option<i64> {
    proc::number("/proc/sys/kernel/perf_event_paranoid")
}

/// True with CAP_PERFMON or CAP_SYS_ADMIN (linux/capability.h).
fn may_see_kernel() -> bool {
    const PERFMON: u64 = 1 << 38;
    has_one_of(SYS_ADMIN | PERFMON)
}

fn has_one_of(capabilities: u64) -> bool {
    Status::of_process("self").map_or(0, |status| status.set("CapEff")) & capabilities != 0
}

impl FromStr for Clock {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_probe = Pattern::parse(text)?.is_some();
        if let Some(list) = text.strip_prefix(EVENTS).or(is_probe.then_some(text)) {
            let events: Vec<PerfEvent> = list.split(',').map(PerfEvent::parse).collect::<Result<_, _>>()?;
            if events.len() > EVENTS_LIMIT {
                return Err(format!("{} events; at most {EVENTS_LIMIT} at a time", events.len()));
            }
            return Ok(Self::Events(events));
        }
        [Self::Auto, Self::Cpu, Self::Itimer, Self::Perf, Self::OffCpu]
            .into_iter()
            .find(|source| source.name() == text)
            .ok_or_else(|| {
                let name = text.split(['@', ',']).next().unwrap_or(text);
                let software = SOFTWARE_EVENTS.iter().any(|(known, ..)| *known == name);
                if software || HARDWARE_EVENTS.iter().any(|(known, _)| *known == name) || name.contains(':') {
                    return format!("kernel events need the prefix perf: here; use -e perf:{text}");
                }
                format!(
                    "unknown source `{text}`: expected one of auto, cpu, itimer, perf, perf:EVENT,..., offcpu, usdt:PROVIDER:NAME, fn:FILE:SYMBOL, alloc, lock, mmap, wall, tp:PROVIDER:NAME"
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(text: &str, frequency: u32) -> Option<String> {
        text.parse::<Clock>().unwrap().events(frequency)
    }

    #[test]
    fn names_become_numbers() {
        assert_eq!(events("cpu", 99), None);
        assert_eq!(events("perf", 1000).as_deref(), Some("1:1:1000000:0:"));
        assert_eq!(events("offcpu", 99).as_deref(), Some("1:3:1:2:"));
        assert_eq!(events("perf:faults,cs@10", 99).as_deref(), Some("1:2:1:0:;1:3:10:256:"));
        assert_eq!(events("perf:task-clock", 1000).as_deref(), Some("1:1:1000000:0:"));
        let source: Clock = "perf:faults,task-clock".parse().unwrap();
        assert_eq!((source.name().as_str(), source.frequency(99)), ("perf:faults,task-clock", 99));
        assert_eq!("perf:faults,cs@10".parse::<Clock>().unwrap().name(), "perf:faults,cs@10");
        assert_eq!("perf:cs".parse::<Clock>().unwrap().frequency(99), 0);
    }

    #[test]
    fn wrong_names_are_explained() {
        for (text, part) in [
            ("nonsense", "auto, cpu, itimer"),
            ("cycles", "use -e perf:cycles"),
            ("page-faults@10", "use -e perf:page-faults@10"),
            ("sched:sched_switch", "use -e perf:sched:sched_switch"),
            ("perf:", "unknown event ``"),
            ("perf:nonsense", "page-faults"),
            ("perf:faults@0", "expected a number of events"),
            ("perf:faults@x", "expected a number of events"),
            ("perf:a:b/../c", "is not a tracepoint"),
            ("perf:syscalls:sys_enter_rt_sigreturn", "cannot be sampled"),
            ("perf:cs,cs,cs,cs,cs,cs,cs,cs,cs,cs,cs,cs,cs,cs,cs,cs,cs", "at most 16"),
            ("fn:work", "give fn:FILE:SYMBOL"),
            ("fn::work", "give fn:FILE:SYMBOL"),
            ("usdt:app", "give usdt:PROVIDER:NAME"),
            ("usdt:app:", "give usdt:PROVIDER:NAME"),
        ] {
            let error = text.parse::<Clock>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
