//! What stands before and behind the records: the header, the one event, and facts about the recording.

use crate::profile_file::SessionInfo;

/// Number of the one event, which samples and losses are of.
pub(super) const EVENT_ID: u64 = 1;

const MAGIC: &[u8; 8] = b"PERFILE2";
/// Bytes of the header.
const HEADER: u64 = 104;
/// Bytes of `struct perf_event_attr` as of Linux 4.1; every later perf reads it.
const ATTRIBUTE: u64 = 112;
/// An offset and a size.
const SECTION: u64 = 16;
/// Where the number of the event lies, behind the event.
const IDS: u64 = HEADER + ATTRIBUTE + SECTION;
/// Where records begin.
const RECORDS: u64 = IDS + 8;
/// Texts of features take a multiple of this.
const TEXT: usize = 64;

/// PERF_TYPE_SOFTWARE, and of these PERF_COUNT_SW_CPU_CLOCK.
const SOFTWARE: u32 = 1;
const CPU_CLOCK: u64 = 0;
/// PERF_SAMPLE_IP, _TID, _TIME, _CALLCHAIN, _PERIOD: what a sample holds, in the order IP, TID, TIME, PERIOD, CALLCHAIN.
const SAMPLE: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 5 | 1 << 8;
/// exclude_kernel, exclude_hv, mmap, comm, task, sample_id_all, mmap2, comm_exec.
const FLAGS: u64 = 1 << 5 | 1 << 6 | 1 << 8 | 1 << 9 | 1 << 13 | 1 << 18 | 1 << 23 | 1 << 24;
/// The name of the event: what periods of samples count.
const EVENT: &str = "timer-periods";

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

/// Its length in a multiple of [`TEXT`], then the text, with at least one zero behind.
fn put_text(out: &mut Vec<u8>, text: &str) {
    let text = text.split('\0').next().unwrap_or_default().as_bytes();
    let len = (text.len() + 1).next_multiple_of(TEXT);
    put_u32(out, len as u32);
    let end = out.len() + len;
    out.extend_from_slice(text);
    out.resize(end, 0);
}

/// The event.
fn attribute() -> Vec<u8> {
    let mut out = Vec::new();
    put_u32(&mut out, SOFTWARE);
    put_u32(&mut out, ATTRIBUTE as u32);
    for value in [CPU_CLOCK, 1, SAMPLE, 0, FLAGS] {
        put_u64(&mut out, value);
    }
    out.resize(ATTRIBUTE as usize, 0);
    out
}

/// Everything before `len` bytes of records.
pub(super) fn before_records(len: u64) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    put_u64(&mut out, HEADER);
    put_u64(&mut out, ATTRIBUTE + SECTION);
    for section in [[HEADER, ATTRIBUTE + SECTION], [RECORDS, len], [0, 0]] {
        section.iter().for_each(|&value| put_u64(&mut out, value));
    }
    put_u64(&mut out, FEATURES.iter().fold(0, |bits, feature| bits | 1 << feature));
    out.resize(HEADER as usize, 0);
    out.extend(attribute());
    [IDS, 8, EVENT_ID].iter().for_each(|&value| put_u64(&mut out, value));
    out
}

/// Everything behind `len` bytes of records: where each feature is, then the features.
pub(super) fn behind_records(session: &SessionInfo, len: u64) -> Vec<u8> {
    let contents = FEATURES.map(|number| feature(number, session));
    let mut at = RECORDS + len + SECTION * contents.len() as u64;
    let mut out = Vec::new();
    for content in &contents {
        put_u64(&mut out, at);
        put_u64(&mut out, content.len() as u64);
        at += content.len() as u64;
    }
    out.extend(contents.into_iter().flatten());
    out
}

fn feature(number: u32, session: &SessionInfo) -> Vec<u8> {
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
            put_u32(&mut out, 1);
            put_u32(&mut out, ATTRIBUTE as u32);
            out.extend(attribute());
            put_u32(&mut out, 1);
            put_text(&mut out, EVENT);
            put_u64(&mut out, EVENT_ID);
        }
    }
    out
}
