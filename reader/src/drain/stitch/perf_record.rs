//! Parses the kernel's records in a perf ring (perf_event_open(2)), as laid out for the events that the agent opens.
//!
//! The bytes passed through the target's memory, so each length is checked, and a record that does not have the kernel's
//! format is rejected.

use selfwind_profile::profile_file::KERNEL_FRAMES_MAX;

/// PERF_RECORD_ types.
const LOST: u32 = 2;
const THROTTLE: u32 = 5;
const UNTHROTTLE: u32 = 6;
const SAMPLE: u32 = 9;
const SWITCH: u32 = 14;
const CALLCHAIN_DEFERRED: u32 = 22;
/// PERF_RECORD_MISC_SWITCH_OUT and .._OUT_PREEMPT.
const SWITCH_OUT: u16 = 1 << 13;
const PREEMPTED: u16 = 1 << 14;
/// From here on, entries of a call chain are context markers (PERF_CONTEXT_MAX), not addresses.
const FIRST_MARK: u64 = -4095i64 as u64;
/// PERF_CONTEXT_USER_DEFERRED: the next word is the cookie of the deferred user stack.
const DEFERRED: u64 = -640i64 as u64;

/// A record of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PerfRecord {
    /// An event happened.
    Sample(PerfSample),
    /// How many records were lost because the ring was full.
    Lost(u64),
    /// A context switch of the thread.
    Switch {
        /// CLOCK_MONOTONIC.
        ns: u64,
        /// The thread left the CPU; otherwise it came back.
        out: bool,
        /// It was preempted while runnable.
        preempted: bool,
    },
    /// The kernel throttled the event (true) or lifted that (false).
    Throttled(bool),
    /// The user stack of earlier samples, walked by the kernel on return to user mode.
    Deferred {
        /// The cookie of those samples.
        cookie: u64,
        /// The stack, leaf first.
        frames: Vec<u64>,
    },
    /// Any other record.
    Other,
}

/// An event, and where the thread was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PerfSample {
    /// CLOCK_MONOTONIC.
    pub(crate) ns: u64,
    /// The kernel's stack, leaf first; empty if the thread was in user mode.
    pub(crate) frames: Vec<u64>,
    /// Instruction and stack pointer in user mode, if there are any.
    pub(crate) user: Option<(u64, u64)>,
    /// The cookie of the deferred user stack.
    pub(crate) cookie: Option<u64>,
}

/// Splits the first record off `bytes`; `None` if it is incomplete or malformed.
pub(crate) fn split(bytes: &[u8]) -> Option<(PerfRecord, &[u8])> {
    let head = u64::from_le_bytes(*bytes.first_chunk()?);
    let (kind, misc, size) = (head as u32, (head >> 32) as u16, (head >> 48) as usize);
    if size < 8 || !size.is_multiple_of(8) {
        return None;
    }
    let (record, rest) = bytes.split_at_checked(size)?;
    let mut words = Words(&record[8..]);
    let record = match kind {
        SAMPLE => PerfRecord::Sample(sample(&mut words)?),
        LOST => {
            words.next()?;
            PerfRecord::Lost(words.next()?)
        }
        SWITCH => PerfRecord::Switch {
            ns: words.next()?,
            out: misc & SWITCH_OUT != 0,
            preempted: misc & PREEMPTED != 0,
        },
        CALLCHAIN_DEFERRED => deferred(&mut words)?,
        THROTTLE => PerfRecord::Throttled(true),
        UNTHROTTLE => PerfRecord::Throttled(false),
        _ => PerfRecord::Other,
    };
    Some((record, rest))
}

/// Parses IP, TIME, CALLCHAIN, REGS_USER (sp, ip): the fields that the agent requests.
fn sample(words: &mut Words<'_>) -> Option<PerfSample> {
    let _ip = words.next()?;
    let ns = words.next()?;
    let count = words.next()?;
    if count > KERNEL_FRAMES_MAX as u64 {
        return None;
    }
    let (mut frames, mut cookie) = (Vec::new(), None);
    let mut left = count;
    while left > 0 {
        left -= 1;
        match words.next()? {
            DEFERRED if left > 0 => {
                left -= 1;
                cookie = Some(words.next()?);
            }
            address if address < FIRST_MARK => frames.push(address),
            _ => {}
        }
    }
    const NO_REGISTERS: u64 = 0;
    let user = match words.next()? {
        NO_REGISTERS => None,
        _ => {
            let sp = words.next()?;
            Some((words.next()?, sp))
        }
    };
    Some(PerfSample { ns, frames, user, cookie })
}

/// Parses the cookie, and the call chain with its context markers.
fn deferred(words: &mut Words<'_>) -> Option<PerfRecord> {
    let (cookie, count) = (words.next()?, words.next()?);
    if count > KERNEL_FRAMES_MAX as u64 {
        return None;
    }
    let mut frames = Vec::new();
    for _ in 0..count {
        frames.push(words.next()?);
    }
    frames.retain(|&address| address < FIRST_MARK);
    Some(PerfRecord::Deferred { cookie, frames })
}

struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn next(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn record(kind: u32, misc: u16, words: &[u64]) -> Vec<u8> {
        let size = (words.len() as u64 + 1) * 8;
        let head = u64::from(kind) | u64::from(misc) << 32 | size << 48;
        std::iter::once(&head).chain(words).flat_map(|word| word.to_le_bytes()).collect()
    }

    pub(crate) fn sample_bytes(ns: u64, kernel: &[u64], ip: u64, sp: u64) -> Vec<u8> {
        let chain = [&[FIRST_MARK + 3967], kernel].concat();
        record(SAMPLE, 1, &[&[1, ns, chain.len() as u64], &chain[..], &[2, sp, ip]].concat())
    }

    pub(crate) fn lost_bytes(count: u64) -> Vec<u8> {
        record(LOST, 0, &[7, count])
    }

    pub(crate) fn switch_bytes(ns: u64, out: bool, preempted: bool) -> Vec<u8> {
        let misc = if out { SWITCH_OUT } else { 0 } | if preempted { PREEMPTED } else { 0 };
        record(SWITCH, misc, &[ns])
    }

    /// PERF_CONTEXT_USER_DEFERRED and the cookie in place of the user stack.
    pub(crate) fn promising_bytes(ns: u64, kernel: &[u64], cookie: u64, ip: u64, sp: u64) -> Vec<u8> {
        let chain = [&[FIRST_MARK + 3967], kernel, &[DEFERRED, cookie]].concat();
        record(SAMPLE, 1, &[&[1, ns, chain.len() as u64], &chain[..], &[2, sp, ip]].concat())
    }

    /// PERF_RECORD_CALLCHAIN_DEFERRED; PERF_CONTEXT_USER comes first.
    pub(crate) fn deferred_bytes(cookie: u64, frames: &[u64]) -> Vec<u8> {
        let chain = [&[-512i64 as u64], frames].concat();
        record(CALLCHAIN_DEFERRED, 2, &[&[cookie, chain.len() as u64], &chain[..]].concat())
    }

    #[test]
    fn records_come_one_after_the_other() {
        let bytes = [sample_bytes(5, &[0xffff_ffff_8100_0000], 0x40_1000, 0x7ff0), lost_bytes(3)].concat();
        let (first, rest) = split(&bytes).unwrap();
        let expected = PerfSample {
            ns: 5,
            frames: vec![0xffff_ffff_8100_0000],
            user: Some((0x40_1000, 0x7ff0)),
            cookie: None,
        };
        assert_eq!(first, PerfRecord::Sample(expected));
        assert_eq!(split(rest), Some((PerfRecord::Lost(3), &[][..])));
        let bytes = switch_bytes(9, true, false);
        assert_eq!(split(&bytes).unwrap().0, PerfRecord::Switch { ns: 9, out: true, preempted: false });
    }

    #[test]
    fn a_deferred_user_stack_has_a_cookie() {
        let bytes = record(SAMPLE, 1, &[0, 5, 4, FIRST_MARK + 3967, 0xffff_8000, DEFERRED, 77, 0]);
        let (PerfRecord::Sample(sample), _) = split(&bytes).unwrap() else { panic!() };
        assert_eq!((sample.cookie, sample.frames, sample.user), (Some(77), vec![0xffff_8000], None));
    }

    #[test]
    fn the_deferred_stack_comes_later() {
        let bytes = [deferred_bytes(77, &[0x40_1000, 0x40_2000]), lost_bytes(1)].concat();
        let (first, rest) = split(&bytes).unwrap();
        assert_eq!(first, PerfRecord::Deferred { cookie: 77, frames: vec![0x40_1000, 0x40_2000] });
        assert_eq!(split(rest), Some((PerfRecord::Lost(1), &[][..])));
        // With the trailer that the kernel appends under sample_id_all.
        let bytes = record(CALLCHAIN_DEFERRED, 2, &[77, 1, 0x40_1000, 5]);
        let expected = PerfRecord::Deferred { cookie: 77, frames: vec![0x40_1000] };
        assert_eq!(split(&bytes).unwrap().0, expected);
    }

    #[test]
    fn what_the_kernel_does_not_write_is_refused() {
        let whole = sample_bytes(5, &[1, 2, 3], 4, 5);
        for len in 0..whole.len() {
            assert_eq!(split(&whole[..len]), None);
        }
        let mut lying = whole.clone();
        lying[6] = 16;
        assert_eq!(split(&lying), None, "a sample of one word");
        assert_eq!(split(&record(SAMPLE, 0, &[0, 0, u64::MAX, 0, 0])), None);
        assert_eq!(split(&record(CALLCHAIN_DEFERRED, 0, &[7, 3, 1, 2])), None);
        assert_eq!(split(&record(CALLCHAIN_DEFERRED, 0, &[7, u64::MAX, 1, 2])), None);
        assert_eq!(split(&[0; 64]), None);
    }
}
