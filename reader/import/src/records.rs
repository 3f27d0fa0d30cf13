//! Reads the records of a file in timestamp order.
//!
//! perf writes the contents of one CPU's ring after another, and marks rounds: records after two marks are not older than those before
//! both (`FINISHED_ROUND`). If marks are far apart or missing, the older half of the waiting records is passed on when [`HELD_MAX`] is
//! reached; timestamps may then go back a little, which readers of profiles accept.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read};

use linux_perf_event_reader::{RawData, RawEventRecord, RecordParseInfo, RecordType};

use crate::compressed::Unpacker;

/// Bytes of `struct perf_event_header`.
const HEADER: usize = 8;
/// Maximum bytes of records that wait to be sorted.
const HELD_MAX: usize = 64 << 20;
/// Types from here on are perf's own, not the kernel's.
const USER_TYPES: u32 = 64;
const FINISHED_ROUND: u32 = 68;
const AUXTRACE: u32 = 71;
const COMPRESSED: u32 = 81;
const COMPRESSED2: u32 = 83;
/// Maximum number of record bodies kept for reuse.
const SPARE: usize = 1024;

/// How a file ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Completely.
    Whole,
    /// Truncated, or not finished by its recorder; the number of bytes that were read.
    Cut(u64),
    /// Damaged after this many bytes, with the reason.
    Damaged(u64, &'static str),
}

/// A record of the kernel.
pub(crate) struct Record {
    pub(crate) kind: RecordType,
    pub(crate) misc: u16,
    /// Index of its event in the header.
    pub(crate) attribute: usize,
    pub(crate) ns: u64,
    pub(crate) body: Vec<u8>,
}

impl Record {
    pub(crate) fn raw(&self, layout: RecordParseInfo) -> RawEventRecord<'_> {
        RawEventRecord::new(self.kind, self.misc, RawData::Single(&self.body), layout)
    }
}

/// Reads records.
pub(crate) struct Records<R> {
    file: R,
    /// Number of bytes of records not yet read.
    left: u64,
    read: u64,
    layouts: Vec<RecordParseInfo>,
    by_id: HashMap<u64, usize>,
    unpacker: Option<Unpacker>,
    /// The round marks, each by the number of decompressed bytes before it.
    marks: VecDeque<u64>,
    tail: Option<Tail>,
    is_cut: bool,
    pending: Vec<Record>,
    ready: VecDeque<Record>,
    held: usize,
    /// Time of the newest record of all rounds, and of all but the last one.
    newest: u64,
    settled: u64,
    spare: Vec<Vec<u8>>,
}

impl<R: Read> Records<R> {
    /// Reads from `file`, whose next `left` bytes are records. `is_cut` says that the file is truncated.
    pub(crate) fn new(
        file: R,
        left: u64,
        is_cut: bool,
        layouts: Vec<RecordParseInfo>,
        by_id: HashMap<u64, usize>,
    ) -> Self {
        Self {
            file,
            left,
            read: 0,
            layouts,
            by_id,
            unpacker: None,
            marks: VecDeque::new(),
            tail: None,
            is_cut,
            pending: Vec::new(),
            ready: VecDeque::new(),
            held: 0,
            newest: 0,
            settled: 0,
            spare: Vec::new(),
        }
    }

    /// The next record; `None` at the end.
    pub(crate) fn next(&mut self) -> Option<Record> {
        loop {
            if let Some(record) = self.ready.pop_front() {
                return Some(record);
            }
            if self.tail.is_some() {
                if self.pending.is_empty() {
                    return None;
                }
                self.release(u64::MAX);
            } else if let Err(tail) = self.read_one() {
                self.tail = Some(self.unpack_rest().err().unwrap_or(tail));
            }
        }
    }

    /// Takes back the body of a record, for reuse.
    pub(crate) fn recycle(&mut self, record: Record) {
        if self.spare.len() < SPARE {
            self.spare.push(record.body);
        }
    }

    /// How the file ended, once there are no more records.
    pub(crate) fn tail(&self) -> Tail {
        self.tail.unwrap_or(Tail::Whole)
    }

    fn read_one(&mut self) -> Result<(), Tail> {
        if self.left == 0 {
            return Err(if self.is_cut { Tail::Cut(self.read) } else { Tail::Whole });
        }
        let mut header = [0; HEADER];
        self.fill(&mut header)?;
        let (kind, misc, size) = header_fields(header);
        let body_len =
            usize::from(size).checked_sub(HEADER).ok_or(self.damaged("a record without length"))?;
        let mut body = self.spare.pop().unwrap_or_default();
        body.resize(body_len, 0);
        self.fill(&mut body)?;
        match kind {
            FINISHED_ROUND => match &self.unpacker {
                Some(unpacker) => self.marks.push_back(unpacker.behind()),
                None => self.finish_round(),
            },
            // The data it describes follow it.
            AUXTRACE => self.skip(body.first_chunk().map_or(0, |len| u64::from_le_bytes(*len)))?,
            COMPRESSED => self.unpack(&body)?,
            COMPRESSED2 => {
                let packed = body
                    .split_first_chunk()
                    .and_then(|(len, packed)| packed.get(..usize::try_from(u64::from_le_bytes(*len)).ok()?));
                let packed = packed.ok_or(self.damaged("a compressed record of no length"))?;
                self.unpack(packed)?;
            }
            USER_TYPES.. => self.spare.push(body),
            _ => self.hold(kind, misc, body),
        }
        Ok(())
    }

    fn damaged(&self, what: &'static str) -> Tail {
        Tail::Damaged(self.read, what)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Tail> {
        let cut = Tail::Cut(self.read);
        let len = bytes.len() as u64;
        if len > self.left {
            return Err(if self.is_cut {
                cut
            } else {
                self.damaged("a record longer than the rest of the file")
            });
        }
        self.file.read_exact(bytes).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => cut,
            _ => Tail::Damaged(self.read, "it cannot be read any further"),
        })?;
        (self.left, self.read) = (self.left - len, self.read + len);
        Ok(())
    }

    fn skip(&mut self, len: u64) -> Result<(), Tail> {
        let len = len.min(self.left);
        let skipped = std::io::copy(&mut self.file.by_ref().take(len), &mut std::io::sink()).unwrap_or(0);
        (self.left, self.read) = (self.left - skipped, self.read + skipped);
        if skipped < len { Err(Tail::Cut(self.read)) } else { Ok(()) }
    }

    fn finish_round(&mut self) {
        self.release(self.settled);
        self.settled = self.newest;
    }

    fn unpack(&mut self, packed: &[u8]) -> Result<(), Tail> {
        let mut unpacker = self.unpacker.take().unwrap_or_default();
        let fed = unpacker.feed(packed).map_err(|what| self.damaged(what));
        let held = fed.and_then(|()| self.hold_all(&mut unpacker));
        self.unpacker = Some(unpacker);
        held
    }

    /// Handles what the decompressor held back until the end.
    fn unpack_rest(&mut self) -> Result<(), Tail> {
        let Some(mut unpacker) = self.unpacker.take() else { return Ok(()) };
        unpacker.finish().map_err(|what| self.damaged(what))?;
        self.hold_all(&mut unpacker)
    }

    /// Stores the decompressed records.
    fn hold_all(&mut self, unpacker: &mut Unpacker) -> Result<(), Tail> {
        while let Some(header) = unpacker.peek(HEADER).and_then(<[u8]>::first_chunk) {
            let (kind, misc, size) = header_fields(*header);
            if usize::from(size) < HEADER {
                return Err(self.damaged("a record without length"));
            }
            let Some(record) = unpacker.peek(usize::from(size)) else { break };
            let mut body = self.spare.pop().unwrap_or_default();
            body.clear();
            body.extend_from_slice(&record[HEADER..]);
            unpacker.take(usize::from(size));
            while self.marks.front().is_some_and(|&mark| mark < unpacker.position()) {
                self.marks.pop_front();
                self.finish_round();
            }
            if kind < USER_TYPES {
                self.hold(kind, misc, body);
            }
        }
        Ok(())
    }

    /// Stores a record until it can be sorted.
    fn hold(&mut self, kind: u32, misc: u16, body: Vec<u8>) {
        let kind = RecordType(kind);
        let Some(&first) = self.layouts.first() else { return };
        let mut record = Record { kind, misc, attribute: 0, ns: 0, body };
        if self.layouts.len() > 1 {
            let id = record.raw(first).id();
            record.attribute = id.and_then(|id| self.by_id.get(&id).copied()).unwrap_or(0);
        }
        let layout = self.layouts.get(record.attribute).copied().unwrap_or(first);
        // What perf found at its start has no time: it precedes everything.
        record.ns = record.raw(layout).timestamp().unwrap_or(0);
        self.newest = self.newest.max(record.ns);
        self.held += record.body.len();
        self.pending.push(record);
        if self.held > HELD_MAX {
            self.pending.sort_by_key(|record| record.ns);
            let median = self.pending.get(self.pending.len() / 2).map_or(0, |record| record.ns);
            self.release(median);
        }
    }

    /// Passes on what is not newer than `ns`.
    fn release(&mut self, ns: u64) {
        // Stable: records of the same time stay in the order of the file.
        self.pending.sort_by_key(|record| record.ns);
        let count = self.pending.partition_point(|record| record.ns <= ns);
        for record in self.pending.drain(..count) {
            self.held -= record.body.len();
            self.ready.push_back(record);
        }
    }
}

fn header_fields(bytes: [u8; HEADER]) -> (u32, u16, u16) {
    let [a, b, c, d, e, f, g, h] = bytes;
    (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([e, f]), u16::from_le_bytes([g, h]))
}
