//! The events of a session that uses the kernel's, as settings name them.

use alloc::vec::Vec;

use handler::decimal::number;
use handler::kernel_ring::RINGS;

use crate::perf_attributes::{Event, SOFTWARE, TASK_CLOCK};

/// The events of a session: the first decides what a sample stands for.
#[derive(Clone, Default)]
pub(crate) struct Events(Vec<Event>);

impl Events {
    /// The clock of each thread, every `period_ns` of CPU time.
    pub(crate) fn task_clock(period_ns: u64) -> Events {
        Events(alloc::vec![Event {
            kind: SOFTWARE,
            config: TASK_CLOCK,
            period: period_ns,
            ..Event::default()
        }])
    }

    /// Each time a thread leaves its processor, and when it comes back.
    pub(crate) fn off_processor() -> Events {
        const CONTEXT_SWITCHES: u64 = 3;
        Events(alloc::vec![Event {
            kind: SOFTWARE,
            config: CONTEXT_SWITCHES,
            period: 1,
            with_switches: true,
            ..Event::default()
        }])
    }

    /// Reads SELFWIND_PERF: events separated by `;`, each `TYPE:CONFIG:PERIOD:FLAGS:FILTER`, all numbers decimal;
    /// flags: 1 the period is a frequency, 2 also tell context switches, 4 in the place of a filter stands `OFFSET:FILE` of a
    /// breakpoint; from bit 8 on, which of the session's events it counts as. None if it is not that.
    pub(crate) fn parse(text: &[u8]) -> Option<Events> {
        let events: Vec<Event> = text.split(|byte| *byte == b';').map(event).collect::<Option<_>>()?;
        (events.len() <= RINGS).then_some(Events(events))
    }

    /// Each of them.
    pub(crate) fn all(&self) -> &[Event] {
        &self.0
    }

    /// True if a sample stands for CPU time.
    pub(crate) fn are_time(&self) -> bool {
        self.0.first().is_some_and(|event| event.kind == SOFTWARE && event.config <= TASK_CLOCK)
    }

    /// True if a sample stands for CPU time and nothing else asks for samples.
    pub(crate) fn are_one_clock(&self) -> bool {
        self.0.len() == 1 && self.are_time()
    }

    /// True if a sample stands for time off the processor.
    pub(crate) fn are_waits(&self) -> bool {
        self.0.first().is_some_and(|event| event.with_switches)
    }

    /// Nanoseconds that a unit of weight stands for: of CPU time, or off the processor; 0 if it is no time.
    pub(crate) fn unit_ns(&self) -> u64 {
        /// Time off the processor is counted in microseconds.
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
