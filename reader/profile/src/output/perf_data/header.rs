//! Everything before and after the records: the header, the events, and facts about the recording.

use std::borrow::Cow;

use crate::measure::{Measure, Unit};
use crate::profile_file::SessionInfo;

/// Id of the first event, to which losses belong; the other events have the following ids.
pub(super) const EVENT_ID: u64 = 1;

const MAGIC: &[u8; 8] = b"PERFILE2";
/// Size of the header.
const HEADER: u64 = 104;
/// Size of `struct perf_event_attr` in Linux 4.1; every later perf reads it.
const ATTRIBUTE: u64 = 112;
/// Size of a section reference: an offset and a size.
const SECTION: u64 = 16;
/// Texts of features are padded to a multiple of this.
const TEXT: usize = 64;

/// PERF_TYPE_SOFTWARE, and of these PERF_COUNT_SW_CPU_CLOCK.
const SOFTWARE: u32 = 1;
const CPU_CLOCK: u64 = 0;
/// PERF_SAMPLE_IP, _TID, _TIME, _CALLCHAIN, _PERIOD, _IDENTIFIER: what a sample holds, in the order IDENTIFIER, IP, TID,
/// TIME, PERIOD, CALLCHAIN.
const SAMPLE: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 5 | 1 << 8 | 1 << 16;
/// exclude_hv, mmap, comm, task, sample_id_all, mmap2, comm_exec.
const FLAGS: u64 = 1 << 6 | 1 << 8 | 1 << 9 | 1 << 13 | 1 << 18 | 1 << 23 | 1 << 24;
/// Without it perf looks up the kernel's names.
const EXCLUDE_KERNEL: u64 = 1 << 5;

/// Features, `HEADER_*` of tools/perf/util/header.h, in ascending order.
const HOSTNAME: u32 = 3;
const OSRELEASE: u32 = 4;
const VERSION: u32 = 5;
const ARCH: u32 = 6;
const CMDLINE: u32 = 11;
const EVENT_DESC: u32 = 12;
const FEATURES: [u32; 6] = [HOSTNAME, OSRELEASE, VERSION, ARCH, CMDLINE, EVENT_DESC];

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// The padded length, a multiple of [`TEXT`], then the text and at least one zero.
fn put_text(out: &mut Vec<u8>, text: &str) {
    let text = text.split('\0').next().unwrap_or_default().as_bytes();
    let len = (text.len() + 1).next_multiple_of(TEXT);
    put_u32(out, len as u32);
    let end = out.len() + len;
    out.extend_from_slice(text);
    out.resize(end, 0);
}

/// The events of a recording.
pub(super) struct Events<'a> {
    /// Their measures; at least one.
    pub(super) measures: &'a [Measure],
    /// Some of them happened in the kernel.
    pub(super) in_kernel: bool,
}

impl Events<'_> {
    /// The attributes of an event. The same for all kinds: its name says what it counts.
    fn attribute(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_u32(&mut out, SOFTWARE);
        put_u32(&mut out, ATTRIBUTE as u32);
        let flags = FLAGS | if self.in_kernel { 0 } else { EXCLUDE_KERNEL };
        for value in [CPU_CLOCK, 1, SAMPLE, 0, flags] {
            put_u64(&mut out, value);
        }
        out.resize(ATTRIBUTE as usize, 0);
        out
    }

    fn count(&self) -> u64 {
        self.measures.len() as u64
    }

    /// The position of the ids, which follow the events.
    fn ids(&self) -> u64 {
        HEADER + (ATTRIBUTE + SECTION) * self.count()
    }

    /// Where records begin.
    fn records(&self) -> u64 {
        self.ids() + 8 * self.count()
    }
}

/// The name of an event, with the unit of its periods.
fn event_name(measure: &Measure) -> Cow<'_, str> {
    match measure.unit {
        Unit::CpuPeriod(_) => "timer-periods".into(),
        Unit::Microsecond => format!("{}-microseconds", measure.name).into(),
        Unit::Events(_) | Unit::Byte | Unit::Nanosecond | Unit::Sample => measure.name.as_ref().into(),
    }
}

/// Everything before `len` bytes of records.
pub(super) fn before_records(events: &Events<'_>, len: u64) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    put_u64(&mut out, HEADER);
    put_u64(&mut out, ATTRIBUTE + SECTION);
    let attributes = (ATTRIBUTE + SECTION) * events.count();
    for section in [[HEADER, attributes], [events.records(), len], [0, 0]] {
        section.iter().for_each(|&value| put_u64(&mut out, value));
    }
    put_u64(&mut out, FEATURES.iter().fold(0, |bits, feature| bits | 1 << feature));
    out.resize(HEADER as usize, 0);
    for event in 0..events.count() {
        out.extend(events.attribute());
        [events.ids() + 8 * event, 8].iter().for_each(|&value| put_u64(&mut out, value));
    }
    (0..events.count()).for_each(|event| put_u64(&mut out, EVENT_ID + event));
    out
}

/// Everything after `len` bytes of records: the positions of the features, then the features.
pub(super) fn behind_records(session: &SessionInfo, events: &Events<'_>, len: u64) -> Vec<u8> {
    let contents = FEATURES.map(|number| feature(number, session, events));
    let mut at = events.records() + len + SECTION * contents.len() as u64;
    let mut out = Vec::new();
    for content in &contents {
        put_u64(&mut out, at);
        put_u64(&mut out, content.len() as u64);
        at += content.len() as u64;
    }
    out.extend(contents.into_iter().flatten());
    out
}

fn feature(number: u32, session: &SessionInfo, events: &Events<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    match number {
        HOSTNAME => put_text(&mut out, &session.host),
        OSRELEASE => put_text(&mut out, &session.kernel),
        VERSION => put_text(&mut out, &format!("selfwind {}", session.version)),
        ARCH => put_text(&mut out, "x86_64"),
        CMDLINE => {
            put_u32(&mut out, session.command.len() as u32);
            session.command.iter().for_each(|argument| put_text(&mut out, argument));
        }
        _ => {
            put_u32(&mut out, events.count() as u32);
            put_u32(&mut out, ATTRIBUTE as u32);
            for (id, measure) in (EVENT_ID..).zip(events.measures) {
                out.extend(events.attribute());
                put_u32(&mut out, 1);
                put_text(&mut out, &event_name(measure));
                put_u64(&mut out, id);
            }
        }
    }
    out
}
