//! The perf events of a session, as the settings specify them.

use alloc::vec::Vec;

use handler::decimal::number;
use handler::kernel_ring::RINGS;

use crate::perf_attributes::{CONTEXT_SWITCHES, Event, SOFTWARE, TASK_CLOCK};

/// The perf events of a session. The first one defines what a sample stands for.
#[derive(Clone, Default)]
pub(crate) struct Events(Vec<Event>);

impl Events {
    /// Each thread's CPU clock, every `period_ns`.
    pub(crate) fn task_clock(period_ns: u64) -> Events {
        Events(alloc::vec![Event {
            kind: SOFTWARE,
            config: TASK_CLOCK,
            period: period_ns,
            ..Event::default()
        }])
    }

    /// Context switches: each time a thread leaves its CPU, and when it returns.
    pub(crate) fn off_processor() -> Events {
        Events(alloc::vec![Event {
            kind: SOFTWARE,
            config: CONTEXT_SWITCHES,
            period: 1,
            with_switches: true,
            ..Event::default()
        }])
    }

    /// Parses SELFWIND_PERF: events separated by `;`, each `TYPE:CONFIG:PERIOD:FLAGS:FILTER` with decimal numbers.
    /// Flags: 1 the period is a frequency; 2 also record context switches; 4 the filter is `OFFSET:FILE` of a uprobe;
    /// bits from 8 on: index of the session's event that it counts as. `None` if malformed.
    pub(crate) fn parse(text: &[u8]) -> Option<Events> {
        let events: Vec<Event> = text.split(|byte| *byte == b';').map(event).collect::<Option<_>>()?;
        (events.len() <= RINGS).then_some(Events(events))
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[Event] {
        &self.0
    }

    /// Whether a sample stands for CPU time.
    pub(crate) fn are_time(&self) -> bool {
        self.0.first().is_some_and(|event| event.kind == SOFTWARE && event.config <= TASK_CLOCK)
    }

    /// Whether a sample stands for CPU time and the clock is the only event.
    pub(crate) fn are_one_clock(&self) -> bool {
        self.0.len() == 1 && self.are_time()
    }

    /// Whether a sample stands for off-CPU time.
    pub(crate) fn are_waits(&self) -> bool {
        self.0.first().is_some_and(|event| event.with_switches)
    }

    /// Nanoseconds that a unit of weight stands for, of CPU time or off-CPU time; 0 if it is not time.
    pub(crate) fn unit_ns(&self) -> u64 {
        /// Off-CPU time is counted in microseconds.
        const OFF_PROCESSOR_UNIT: u64 = 1000;
        match self.0.first() {
            Some(event) if event.with_switches => OFF_PROCESSOR_UNIT,
            Some(event) if self.are_time() => event.period,
            _ => 0,
        }
    }
}

fn event(text: &[u8]) -> Option<Event> {
    let mut fields = text.splitn(5, |byte| *byte == b':');
    let mut next = || number(fields.next()?);
    let (kind, config, period, flags) = (next()?, next()?, next()?, next()?);
    let rest = fields.next()?;
    let (mut filter, mut file, mut offset) = (Vec::new(), Vec::new(), 0);
    if flags & 4 == 0 {
        filter.extend_from_slice(rest);
    } else {
        let colon = rest.iter().position(|byte| *byte == b':')?;
        offset = number(&rest[..colon])?;
        file.extend_from_slice(&rest[colon + 1..]);
        file.push(0);
    }
    if !filter.is_empty() {
        filter.push(0);
    }
    Some(Event {
        kind: u32::try_from(kind).ok()?,
        config,
        period,
        by_frequency: flags & 1 != 0,
        with_switches: flags & 2 != 0,
        filter,
        file,
        offset,
        number: u32::try_from(flags >> 8).ok()?,
    })
}
