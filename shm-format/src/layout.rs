//! The layout of a region: the one definition of its bytes, shared by both sides.
//!
//! `FORMAT.md` describes this file in prose. The assertions below pin sizes and offsets, so that neither changes
//! unnoticed. Nothing here reads or writes shared memory.

use crate::atomic::{AtomicU32, AtomicU64};
use crate::clock::{Anchor, ClockKind};
use crate::exec_times::ExecTimes;

/// First eight bytes of a region, written last: `"SWREGION"` as a little-endian number.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SWREGION");
/// First eight bytes of a doorbell page: `"SWBELL\0\0"`.
pub(crate) const DOORBELL_MAGIC: u64 = u64::from_le_bytes(*b"SWBELL\0\0");
/// Version of the whole format. A reader accepts its own version only.
pub const VERSION: u32 = 9;
/// Alignment of the parts of a region, in bytes. Fixed by the format, not by the machine.
pub const PAGE: usize = 4096;
/// Address space for the chunks of a region, in bytes; only the backed part takes memory. Enough for one chunk for each of
/// 10,000 threads.
pub const CHUNK_SPACE: usize = 256 << 20;
/// Size of a chunk header, in bytes.
pub(crate) const CHUNK_HEADER: usize = 64;
/// Number of loss causes, and of skip causes, for which the control page has counters.
pub(crate) const CAUSES: usize = 8;
/// Buckets of the handler-time histogram: four per power of two.
pub(crate) const HISTOGRAM: usize = 160;
/// Largest payload of one durable record, in bytes.
pub const DURABLE_RECORD_MAX: usize = 16 * 1024;

const CONTROL_OFFSET: usize = PAGE;
const BITMAP_OFFSET: usize = 2 * PAGE;

/// What happens when every chunk is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// New records are dropped and counted until the reader has freed a chunk.
    Discard = 1,
    /// The oldest complete chunk is overwritten: a flight recorder.
    Overwrite = 2,
}

impl Mode {
    /// The mode with this number, if there is one.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            1 => Some(Self::Discard),
            2 => Some(Self::Overwrite),
            _ => None,
        }
    }
}

/// The process image that wrote a region. The pid alone does not identify it: pids are reused and survive exec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Process id in the writer's pid namespace.
    pub pid: u32,
    /// Real user id.
    pub uid: u32,
    /// Field 22 of `/proc/self/stat`: clock ticks after boot.
    pub start_time: u64,
    /// `/proc/sys/kernel/random/boot_id` as 16 bytes.
    pub boot_id: [u8; 16],
    /// The same in all regions of a recording session.
    pub session_nonce: u64,
    /// Unique to a region: exec and fork start a new one.
    pub region_nonce: u64,
}

/// Why a region cannot be created or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayoutError {
    /// The mapping is smaller than its own header or than the geometry says (bytes wanted, bytes mapped).
    TooShort(u64, u64),
    /// The base address is not on a page boundary.
    Unaligned,
    /// The magic is that of neither a region nor a doorbell: something else, or still being initialized.
    BadMagic(u64),
    /// A different version of the format.
    BadVersion(u32),
    /// A geometry field is out of range; the string names it.
    BadGeometry(&'static str),
    /// A header constant is invalid; the string names it.
    BadHeader(&'static str),
}

impl core::fmt::Display for LayoutError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::TooShort(wanted, have) => write!(f, "region needs {wanted} bytes but has {have}"),
            Self::Unaligned => f.write_str("region is not mapped at a page boundary"),
            Self::BadMagic(magic) => write!(f, "not a region: magic is {magic:#018x}"),
            Self::BadVersion(version) => write!(f, "region format version {version}, expected {VERSION}"),
            Self::BadGeometry(field) => write!(f, "region geometry: {field} is out of range"),
            Self::BadHeader(field) => write!(f, "region header: {field} has no known value"),
        }
    }
}

impl core::error::Error for LayoutError {}

/// Sizes of a region. Capacities are address space (the file is sparse); backed parts have memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size of a chunk in bytes, header included: a power of two from 4 KiB to 32 KiB.
    pub chunk_size: u32,
    /// Number of chunks in the address space: 1 to 65,535.
    pub chunk_capacity: u32,
    /// Number of chunks that have memory at the start.
    pub chunks_backed: u32,
    /// Address space for durable records in bytes: whole pages, at most 1 GiB.
    pub durable_capacity: u64,
    /// Memory for durable records at the start, in bytes: whole pages.
    pub durable_backed: u64,
}

impl Default for Geometry {
    /// 4,096 chunks of 16 KiB, 64 of them backed; 8 MiB of durable records, 64 KiB backed.
    fn default() -> Self {
        Self {
            chunk_size: 16 * 1024,
            chunk_capacity: 4096,
            chunks_backed: 64,
            durable_capacity: 8 << 20,
            durable_backed: 64 << 10,
        }
    }
}

impl Geometry {
    /// Checks every field against its range.
    pub const fn validate(&self) -> Result<(), LayoutError> {
        if !self.chunk_size.is_power_of_two() || self.chunk_size < 4096 || self.chunk_size > 32 * 1024 {
            return Err(LayoutError::BadGeometry("chunk size"));
        }
        if self.chunk_capacity == 0 || self.chunk_capacity > 65_535 {
            return Err(LayoutError::BadGeometry("chunk capacity"));
        }
        if self.chunks_backed > self.chunk_capacity {
            return Err(LayoutError::BadGeometry("backed chunks"));
        }
        if !self.durable_capacity.is_multiple_of(PAGE as u64) || self.durable_capacity > 1 << 30 {
            return Err(LayoutError::BadGeometry("durable capacity"));
        }
        if !self.durable_backed.is_multiple_of(PAGE as u64) || self.durable_backed > self.durable_capacity {
            return Err(LayoutError::BadGeometry("backed durable bytes"));
        }
        Ok(())
    }

    /// Number of 64-bit words in a chunk after its header.
    #[must_use]
    pub const fn chunk_words(&self) -> usize {
        (self.chunk_size as usize - CHUNK_HEADER) / 8
    }

    /// Number of 64-bit words of the free bitmap: one bit per chunk.
    #[must_use]
    pub(crate) const fn bitmap_words(&self) -> usize {
        (self.chunk_capacity as usize).div_ceil(64)
    }

    /// Offset of the free bitmap in the region.
    #[must_use]
    pub(crate) const fn bitmap_offset(&self) -> usize {
        BITMAP_OFFSET
    }

    /// Offset of the durable log in the region; everything before it must have memory from the start.
    #[must_use]
    pub const fn durable_offset(&self) -> usize {
        BITMAP_OFFSET + (self.bitmap_words() * 8).next_multiple_of(PAGE)
    }

    /// Offset of a chunk; `chunk_offset(chunk_capacity)` is the end of the region.
    #[must_use]
    pub const fn chunk_offset(&self, index: u32) -> usize {
        self.durable_offset() + self.durable_capacity as usize + index as usize * self.chunk_size as usize
    }

    /// Length of the whole region in bytes, sparse parts included.
    #[must_use]
    pub const fn total_len(&self) -> usize {
        self.chunk_offset(self.chunk_capacity)
    }
}

/// Page 0: constants, written once before the magic and never again.
#[repr(C)]
pub struct HeaderPage {
    pub(crate) magic: AtomicU64,
    pub(crate) words: [AtomicU64; HeaderConstants::WORDS],
}

/// The constants of page 0 after the magic, as 64-bit words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct HeaderConstants {
    pub(crate) version: u32,
    pub(crate) header_len: u32,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) start_time: u64,
    pub(crate) boot_id: [u8; 16],
    pub(crate) session_nonce: u64,
    pub(crate) region_nonce: u64,
    pub(crate) mode: u32,
    pub(crate) clock: u32,
    pub(crate) anchor: [u64; 3],
    pub(crate) total_len: u64,
    pub(crate) durable_offset: u64,
    pub(crate) durable_capacity: u64,
    pub(crate) chunks_offset: u64,
    pub(crate) chunk_size: u32,
    pub(crate) chunk_capacity: u32,
}

impl HeaderConstants {
    /// Number of 64-bit words.
    pub const WORDS: usize = size_of::<Self>() / 8;

    pub(crate) fn new(geometry: &Geometry, id: &Identity, mode: Mode, clock: ClockKind, at: Anchor) -> Self {
        Self {
            version: VERSION,
            header_len: (8 + size_of::<Self>()) as u32,
            pid: id.pid,
            uid: id.uid,
            start_time: id.start_time,
            boot_id: id.boot_id,
            session_nonce: id.session_nonce,
            region_nonce: id.region_nonce,
            mode: mode as u32,
            clock: clock as u32,
            anchor: [at.ticks, at.monotonic_ns, at.realtime_ns],
            total_len: geometry.total_len() as u64,
            durable_offset: geometry.durable_offset() as u64,
            durable_capacity: geometry.durable_capacity,
            chunks_offset: geometry.chunk_offset(0) as u64,
            chunk_size: geometry.chunk_size,
            chunk_capacity: geometry.chunk_capacity,
        }
    }

    pub(crate) const fn to_words(self) -> [u64; Self::WORDS] {
        // SAFETY: both types have the same size, the struct has no padding (asserted below by its offsets), and every
        // bit pattern is a valid u64.
        unsafe { core::mem::transmute(self) }
    }

    pub(crate) const fn from_words(words: [u64; Self::WORDS]) -> Self {
        // SAFETY: both types have the same size, and every field is an integer, for which every bit pattern is valid.
        unsafe { core::mem::transmute(words) }
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity {
            pid: self.pid,
            uid: self.uid,
            start_time: self.start_time,
            boot_id: self.boot_id,
            session_nonce: self.session_nonce,
            region_nonce: self.region_nonce,
        }
    }

    pub(crate) const fn anchor(&self) -> Anchor {
        Anchor { ticks: self.anchor[0], monotonic_ns: self.anchor[1], realtime_ns: self.anchor[2] }
    }

    /// Checks the copied constants for consistency and against the mapping's length. The returned geometry has nothing
    /// backed.
    pub(crate) fn validate(&self, mapped: usize) -> Result<(Geometry, Mode, ClockKind), LayoutError> {
        if self.version != VERSION {
            return Err(LayoutError::BadVersion(self.version));
        }
        if self.header_len as usize != 8 + size_of::<Self>() {
            return Err(LayoutError::BadHeader("header length"));
        }
        let mode = Mode::from_raw(self.mode).ok_or(LayoutError::BadHeader("mode"))?;
        let clock = ClockKind::from_raw(self.clock).ok_or(LayoutError::BadHeader("clock"))?;
        let geometry = Geometry {
            chunk_size: self.chunk_size,
            chunk_capacity: self.chunk_capacity,
            chunks_backed: 0,
            durable_capacity: self.durable_capacity,
            durable_backed: 0,
        };
        geometry.validate()?;
        if self.durable_offset != geometry.durable_offset() as u64 {
            return Err(LayoutError::BadGeometry("durable offset"));
        }
        if self.chunks_offset != geometry.chunk_offset(0) as u64 {
            return Err(LayoutError::BadGeometry("chunks offset"));
        }
        if self.total_len != geometry.total_len() as u64 {
            return Err(LayoutError::BadGeometry("total length"));
        }
        if mapped < geometry.total_len() {
            return Err(LayoutError::TooShort(self.total_len, mapped as u64));
        }
        Ok((geometry, mode, clock))
    }
}

/// A number of events and the sum of their weights.
#[repr(C)]
pub struct Tally {
    pub(crate) count: AtomicU64,
    pub(crate) weight: AtomicU64,
}

/// Where writers continue the search for a free chunk.
#[repr(C, align(128))]
pub struct SearchLine {
    /// Bitmap word at which the next search begins.
    pub(crate) word: AtomicU64,
    /// Next chunk to consider for overwriting.
    pub(crate) hand: AtomicU64,
}

/// How full the pool is.
#[repr(C, align(128))]
pub struct FillLine {
    /// Number of chunks in phase Complete: incremented at each completion, decremented when one is taken. A hint.
    pub(crate) complete: AtomicU64,
    /// Complete chunks that were overwritten unread.
    pub(crate) overwritten: AtomicU64,
    /// Number of chunks in phase Writing: incremented when one is taken, decremented when its owner leaves it. A hint.
    pub(crate) writing: AtomicU64,
}

/// The end of the durable log.
#[repr(C, align(128))]
pub struct DurableLine {
    /// `last:32 | end:32` in words: the length of the newest record and the end of the log.
    pub(crate) reserve: AtomicU64,
}

/// How much of the region has memory. The agent keeps a private copy of what it writes here.
#[repr(C, align(128))]
pub struct BackedLine {
    pub(crate) chunks: AtomicU64,
    pub(crate) durable: AtomicU64,
    /// Number of chunks that the agent has mapped, with or without memory.
    pub(crate) mapped: AtomicU64,
    /// Number of chunks to which the reader has given memory. A writer that finds none free starts to use them.
    pub(crate) offered: AtomicU64,
    /// Number of recordings that have begun after the first one.
    pub(crate) recordings: AtomicU64,
}

/// The counters that every sample updates.
#[repr(C, align(128))]
pub struct SampleLine {
    pub(crate) fired: Tally,
    pub(crate) recorded: Tally,
    pub(crate) truncated: AtomicU64,
}

/// Samples without a record, by cause.
#[repr(C, align(128))]
pub struct CauseLine {
    pub(crate) causes: [Tally; CAUSES],
}

/// Numbers of threads.
#[repr(C, align(128))]
pub struct ThreadLine {
    pub(crate) started: AtomicU64,
    pub(crate) ended: AtomicU64,
    /// Threads whose perf events a timer has replaced, because they switch often.
    pub(crate) switching: AtomicU64,
}

/// Number of requests that can be open at the same time.
pub const REQUEST_SLOTS: usize = 16;
/// Size of one answer in bytes: its head and at most 1,019 frames.
pub const ANSWER_BYTES: usize = 8192;
/// Size of all answers in bytes; they follow the last chunk.
pub const ANSWERS_LEN: usize = REQUEST_SLOTS * ANSWER_BYTES;

/// What every handler checks, on 128 bytes of its own in the control page.
#[repr(C, align(128))]
pub(crate) struct RequestLine {
    /// One bit per slot: probably asked. A hint; the slot's word decides.
    pub(crate) asked: AtomicU64,
    /// 1 if the process is about to exec or exit and must not be sent a signal.
    pub(crate) closed: AtomicU64,
    /// Number of requests answered.
    pub(crate) answered: AtomicU64,
    /// Number of signals that arrived after their request had been answered or withdrawn.
    pub(crate) late: AtomicU64,
    /// Number of times that the reader has told of new unwind tables.
    pub(crate) tables: AtomicU64,
}

/// One request slot.
#[repr(C)]
pub(crate) struct RequestSlot {
    /// `tag:32 | serial:28 | phase:4`.
    pub(crate) word: AtomicU64,
    /// `sending:1 | tid:32`: the thread that is asked, by the thread id that the writer uses, and whether the requester
    /// may be about to send it the signal.
    pub(crate) thread: AtomicU64,
}

/// Page 1: everything that changes outside the durable log and the chunks. Each group has 128 bytes of its own: two
/// cache lines, because processors prefetch them in pairs.
#[repr(C)]
pub struct ControlPage {
    pub(crate) search: SearchLine,
    pub(crate) fill: FillLine,
    pub(crate) durable: DurableLine,
    pub(crate) backed: BackedLine,
    pub(crate) sample: SampleLine,
    pub(crate) lost: CauseLine,
    pub(crate) skipped: CauseLine,
    pub(crate) thread: ThreadLine,
    pub(crate) handler_time: [AtomicU64; HISTOGRAM],
    pub(crate) request: RequestLine,
    pub(crate) requests: [RequestSlot; REQUEST_SLOTS],
}

/// The first 64 bytes of a chunk.
#[repr(C)]
pub struct ChunkHeader {
    /// [`State`](crate::word::State): who owns the chunk.
    pub(crate) state: AtomicU64,
    /// [`Tagged`](crate::word::Tagged): words of all complete records, in any order of completion.
    pub(crate) committed: AtomicU64,
    /// [`Tagged`](crate::word::Tagged): where the records end, once the writer has left the chunk.
    pub(crate) sealed: AtomicU64,
    /// Base of the records' time deltas, in ticks.
    pub(crate) ts_base: AtomicU64,
    /// `thread sequence:32 | tid:32` of the owner.
    pub(crate) owner: AtomicU64,
    /// Sequence number in its thread of the first record.
    pub(crate) first: AtomicU64,
    /// Total of records that the thread had lost when it took the chunk.
    pub(crate) lost: AtomicU64,
    /// The reader's position; writers neither read nor write it.
    pub(crate) consumed: AtomicU64,
}

/// The doorbell: one page per session, shared by the reader and all its writers.
#[repr(C)]
pub struct DoorbellPage {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU32,
    pub(crate) changes: AtomicU32,
    pub(crate) sleeping: DoorbellWord,
    pub(crate) stop: DoorbellWord,
    /// What images leave to the next ones.
    pub exec_times: ExecTimes,
}

/// A word of the doorbell on 128 bytes of its own.
#[repr(C, align(128))]
pub struct DoorbellWord(pub(crate) AtomicU32);

#[cfg(not(loom))]
mod pinned {
    use super::*;
    use core::mem::offset_of;

    const _: () = {
        assert!(cfg!(target_endian = "little"), "the format is little-endian and read in place");
        assert!(HeaderConstants::WORDS == 16 && size_of::<HeaderConstants>() == 128);
        assert!(size_of::<HeaderPage>() == 136 && offset_of!(HeaderPage, words) == 8);
        assert!(offset_of!(HeaderConstants, version) + 8 == 8);
        assert!(offset_of!(HeaderConstants, header_len) + 8 == 12);
        assert!(offset_of!(HeaderConstants, pid) + 8 == 16);
        assert!(offset_of!(HeaderConstants, uid) + 8 == 20);
        assert!(offset_of!(HeaderConstants, start_time) + 8 == 24);
        assert!(offset_of!(HeaderConstants, boot_id) + 8 == 32);
        assert!(offset_of!(HeaderConstants, session_nonce) + 8 == 48);
        assert!(offset_of!(HeaderConstants, region_nonce) + 8 == 56);
        assert!(offset_of!(HeaderConstants, mode) + 8 == 64);
        assert!(offset_of!(HeaderConstants, clock) + 8 == 68);
        assert!(offset_of!(HeaderConstants, anchor) + 8 == 72);
        assert!(offset_of!(HeaderConstants, total_len) + 8 == 96);
        assert!(offset_of!(HeaderConstants, durable_offset) + 8 == 104);
        assert!(offset_of!(HeaderConstants, durable_capacity) + 8 == 112);
        assert!(offset_of!(HeaderConstants, chunks_offset) + 8 == 120);
        assert!(offset_of!(HeaderConstants, chunk_size) + 8 == 128);
        assert!(offset_of!(HeaderConstants, chunk_capacity) + 8 == 132);
    };
    const _: () = {
        assert!(size_of::<ControlPage>() == 2688 && size_of::<ControlPage>() <= PAGE);
        assert!(offset_of!(ControlPage, search) == 0);
        assert!(offset_of!(ControlPage, fill) == 128);
        assert!(offset_of!(ControlPage, durable) == 256);
        assert!(offset_of!(ControlPage, backed) == 384 && offset_of!(BackedLine, offered) == 24);
        assert!(offset_of!(ControlPage, sample) == 512);
        assert!(offset_of!(ControlPage, lost) == 640);
        assert!(offset_of!(ControlPage, skipped) == 768);
        assert!(offset_of!(ControlPage, thread) == 896);
        assert!(offset_of!(ControlPage, handler_time) == 1024);
        assert!(ANSWERS_LEN.is_multiple_of(PAGE));
        assert!(offset_of!(ControlPage, request) == 2304 && offset_of!(ControlPage, requests) == 2432);
        assert!(size_of::<RequestLine>() == 128 && offset_of!(RequestLine, tables) == 32);
        assert!(size_of::<RequestSlot>() == 16);
        assert!(offset_of!(SampleLine, recorded) == 16 && offset_of!(SampleLine, truncated) == 32);
        assert!(size_of::<Tally>() == 16 && size_of::<CauseLine>() == 128);
    };
    const _: () = {
        assert!(size_of::<ChunkHeader>() == CHUNK_HEADER);
        assert!(offset_of!(ChunkHeader, state) == 0);
        assert!(offset_of!(ChunkHeader, committed) == 8);
        assert!(offset_of!(ChunkHeader, sealed) == 16);
        assert!(offset_of!(ChunkHeader, ts_base) == 24);
        assert!(offset_of!(ChunkHeader, owner) == 32);
        assert!(offset_of!(ChunkHeader, first) == 40);
        assert!(offset_of!(ChunkHeader, lost) == 48);
        assert!(offset_of!(ChunkHeader, consumed) == 56);
    };
    const _: () = {
        assert!(size_of::<DoorbellPage>() == 2432 && size_of::<DoorbellPage>() <= PAGE);
        assert!(offset_of!(DoorbellPage, magic) == 0);
        assert!(offset_of!(DoorbellPage, version) == 8);
        assert!(offset_of!(DoorbellPage, sleeping) == 128);
        assert!(offset_of!(DoorbellPage, stop) == 256);
        assert!(offset_of!(DoorbellPage, exec_times) == 384);
        assert!(CONTROL_OFFSET == 4096 && BITMAP_OFFSET == 8192);
    };
}

/// Offset of the control page in a region.
pub(crate) const fn control_offset() -> usize {
    CONTROL_OFFSET
}
