//! The durable log: records that must not be overwritten (processes, modules, threads), appended by any thread.
//!
//! One compare-and-swap of `last | end` reserves space. The record's header is PENDING, then DONE (release) once the
//! payload is written. As in chunks, only the newest record can lack its header, and the next appender writes it. The
//! log only grows, so words not yet written are zero. Signal handlers may append too, even while they interrupt an
//! append: they retry a bounded number of times and wait for nobody.

use crate::atomic::{AtomicU64, Ordering};
use crate::control::Loss;
use crate::layout::DURABLE_RECORD_MAX;

/// Attempts to reserve space against other appenders before the record is given up.
const RETRIES: usize = 4096;

/// Header of a durable record: `state:16 | kind:16 | bytes:32` from the top bit down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogHeader(pub(crate) u64);

impl LogHeader {
    const PENDING: u64 = 0x9e4d;
    const DONE: u64 = 0xd07e;

    fn pending(words: usize) -> Self {
        Self(Self::PENDING << 48 | (words.saturating_sub(1) as u64 * 8) & 0xffff_ffff)
    }

    fn done(kind: u16, bytes: u32) -> Self {
        Self(Self::DONE << 48 | u64::from(kind) << 32 | u64::from(bytes))
    }

    pub(crate) fn is_pending(self) -> bool {
        self.0 >> 48 == Self::PENDING
    }

    pub(crate) fn is_done(self) -> bool {
        self.0 >> 48 == Self::DONE
    }

    pub(crate) fn kind(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// Payload bytes.
    pub(crate) fn bytes(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }

    /// Words of the record, header included.
    pub(crate) fn words(self) -> usize {
        1 + self.bytes().div_ceil(8)
    }
}

/// The log in memory: its reserve word, and the backed words.
#[derive(Clone, Copy)]
pub(crate) struct Log<'a> {
    pub(crate) reserve: &'a AtomicU64,
    pub(crate) words: &'a [AtomicU64],
}

impl Log<'_> {
    /// End of the log in words, clamped to the memory whatever the shared word says.
    pub(crate) fn end(&self) -> usize {
        // Acquire: pairs with the compare-and-swap in `append`: all headers but the newest are visible.
        ((self.reserve.load(Ordering::Acquire) & 0xffff_ffff) as usize).min(self.words.len())
    }

    pub(crate) fn used(&self) -> u64 {
        self.end() as u64 * 8
    }

    pub(crate) fn append(&self, kind: u16, parts: &[&[u8]]) -> Result<(), Loss> {
        let bytes = parts.iter().fold(0usize, |sum, part| sum.saturating_add(part.len()));
        if bytes > DURABLE_RECORD_MAX {
            return Err(Loss::TooLarge);
        }
        let words = 1 + bytes.div_ceil(8);
        for _ in 0..RETRIES {
            let seen = self.reserve.load(Ordering::Acquire);
            let (last, end) = ((seen >> 32) as usize, (seen & 0xffff_ffff) as usize);
            self.help(last, end);
            let Some(reserved) = self.words.get(end..end.saturating_add(words)) else {
                return Err(Loss::DurableFull);
            };
            let next = (words as u64) << 32 | (end + words) as u64;
            // Release: whoever sees the new end also sees the header of the record before it.
            if self.reserve.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            let Some((header, payload)) = reserved.split_first() else { return Err(Loss::DurableFull) };
            let pending = LogHeader::pending(words).0;
            // Fails if a later appender has written it already, with the same value.
            let _ = header.compare_exchange(0, pending, Ordering::Relaxed, Ordering::Relaxed);
            fill(payload, parts);
            // Release: the reader acquires the header.
            header.store(LogHeader::done(kind, bytes as u32).0, Ordering::Release);
            return Ok(());
        }
        Err(Loss::Retries)
    }

    fn help(&self, last: usize, end: usize) {
        if last != 0
            && let Some(header) = end.checked_sub(last).and_then(|at| self.words.get(at))
        {
            let pending = LogHeader::pending(last).0;
            let _ = header.compare_exchange(0, pending, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Stores the parts, concatenated, as little-endian words; the last word is padded with zeros.
fn fill(words: &[AtomicU64], parts: &[&[u8]]) {
    let mut words = words.iter();
    let mut store = |word| {
        if let Some(to) = words.next() {
            to.store(word, Ordering::Relaxed);
        }
    };
    // The bytes that do not fill a word yet, and how many bits they are.
    let (mut rest, mut bits) = (0, 0);
    for part in parts {
        let (whole, bytes) = part.as_chunks();
        for chunk in whole {
            let word = u64::from_le_bytes(*chunk);
            store(rest | word << bits);
            rest = word >> 1 >> (63 - bits);
        }
        for byte in bytes {
            rest |= u64::from(*byte) << bits;
            bits += 8;
            if bits == u64::BITS {
                store(rest);
                (rest, bits) = (0, 0);
            }
        }
    }
    if bits != 0 {
        store(rest);
    }
}

/// The reader's position in the log, and the records it skipped because they were incomplete.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogPosition {
    next: usize,
    pending: [u32; Self::PENDING],
    waiting: usize,
}

impl LogPosition {
    const PENDING: usize = 16;

    /// Number of skipped records that are still incomplete.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Calls `sink` with header and position of every record completed since the last call. Bounded by the length of
    /// the log. False if the bytes are not a valid log.
    pub(crate) fn advance(&mut self, log: Log<'_>, sink: &mut dyn FnMut(LogHeader, usize)) -> bool {
        let end = log.end();
        let load = |at: usize| log.words.get(at).map(|word| LogHeader(word.load(Ordering::Acquire)));
        let mut waiting = 0;
        for slot in 0..self.waiting.min(Self::PENDING) {
            let at = self.pending[slot];
            match load(at as usize) {
                Some(header) if header.is_done() => sink(header, at as usize),
                _ => {
                    self.pending[waiting] = at;
                    waiting += 1;
                }
            }
        }
        self.waiting = waiting;
        while self.next < end {
            let Some(header) = load(self.next) else { return false };
            if header.0 == 0 {
                return true;
            }
            let after = self.next.saturating_add(header.words());
            if after > end || header.bytes() > DURABLE_RECORD_MAX + 8 {
                return false;
            }
            if header.is_done() {
                sink(header, self.next);
            } else if header.is_pending() {
                if self.waiting == Self::PENDING {
                    return true;
                }
                self.pending[self.waiting] = self.next as u32;
                self.waiting += 1;
            } else {
                return false;
            }
            self.next = after;
        }
        true
    }
}
