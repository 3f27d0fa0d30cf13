//! Our part: the writer and the reader of a region in overwrite mode, in this process.

use std::hint::black_box;
use std::ptr::NonNull;

use shm_format::{
    Anchor, ClockKind, EncodedStack, Geometry, Identity, MAX_DEPTH, Mode, Pass, RecordKind, Region,
    RegionReader, StackChain, StackDecoder, StackHead, ThreadCursor,
};

/// Different stacks; `lttng.c` has the same ones.
const STACKS: usize = 64;
const DEEPEST: usize = 40;

const HEAD: StackHead = StackHead { weight: 1, end: 0, source: 1, nonce: 0 };

/// A region in shared memory, and one thread's place in it.
pub(crate) struct Ours {
    base: NonNull<u8>,
    len: usize,
    region: Region,
    cursor: ThreadCursor,
    chain: StackChain,
    stacks: Box<Stacks>,
    /// Others only in their leaf.
    similar: Box<Stacks>,
}

type Stacks = [[u64; DEEPEST]; STACKS];

/// How stacks are written.
pub(crate) enum Manner {
    Plain,
    /// By the codec: so many leaf frames change, and the walk says so or not.
    Coded {
        new: usize,
        told: bool,
    },
}

/// The rows for 16 and 40 frames, in order.
pub(crate) const MANNERS: [Manner; 4] = [
    Manner::Plain,
    Manner::Coded { new: NEW, told: false },
    Manner::Coded { new: NEW, told: true },
    Manner::Coded { new: 1, told: true },
];
pub(crate) const ROWS: usize = 1 + 2 * MANNERS.len();
/// Leaf frames in which neighbouring stacks differ; `lttng.c` has the same number.
pub(crate) const NEW: usize = 12;

/// What one round of draining gave: records (or stacks) per second of CPU time.
pub(crate) struct Drained {
    pub(crate) numbers: f64,
    pub(crate) stacks: f64,
}

impl Ours {
    /// With `chunks` chunks of 16 KiB.
    pub(crate) fn new(chunks: u32) -> Self {
        let geometry = Geometry { chunk_capacity: chunks, chunks_backed: chunks, ..Geometry::default() };
        let len = geometry.total_len();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
            libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0)
        };
        assert_ne!(base, libc::MAP_FAILED, "{len} bytes");
        let base = NonNull::new(base.cast()).expect("a mapping");
        let identity = Identity {
            pid: 1,
            uid: 0,
            start_time: 1,
            boot_id: [0; 16],
            session_nonce: 1,
            region_nonce: 0x5e1f,
        };
        let anchor = Anchor { ticks: 0, monotonic_ns: 0, realtime_ns: 0 };
        // SAFETY: the mapping is zeroed, of that length, and outlives the region.
        let region = unsafe {
            Region::format(base, len, &geometry, &identity, Mode::Overwrite, ClockKind::Tsc, anchor)
        };
        let cursor = ThreadCursor::new();
        cursor.begin(1, 1);
        let stacks = |new: usize| -> Box<Stacks> {
            let address =
                |s: usize, f: usize| 0x7f00_0000_0000 + 4099 * (f * 7 + if f < new { s % 8 } else { 0 });
            Box::new(std::array::from_fn(|s| std::array::from_fn(|f| address(s, f) as u64)))
        };
        let (chain, region) = (StackChain::new(), region.expect("a region"));
        Self { base, len, region, cursor, chain, stacks: stacks(NEW), similar: stacks(1) }
    }

    /// Thread CPU ns per record: a number; then, for 16 and 40 frames: as they are, and by the codec in each manner.
    pub(crate) fn write(&mut self, events: u64) -> [f64; ROWS] {
        let per = |spent: f64| spent * 1e9 / events as f64;
        let mut row = [per(spent(|| self.numbers(events))); ROWS];
        for (place, (depth, manner)) in
            row[1..].iter_mut().zip(MANNERS.iter().flat_map(|m| [(16, m), (40, m)]))
        {
            *place = per(spent(|| match manner {
                Manner::Plain => self.plain(events, depth),
                Manner::Coded { new, told } => self.coded(events, depth, *new, *told),
            }));
        }
        row
    }

    fn numbers(&mut self, events: u64) {
        for number in 0..events {
            let record = self.cursor.reserve(&self.region, RecordKind::Stack, 1, ticks);
            let mut record = record.expect("room");
            record.set(0, number);
            let _ = black_box(record.commit());
        }
    }

    fn plain(&mut self, events: u64, depth: usize) {
        for number in 0..events as usize {
            let record = self.cursor.reserve(&self.region, RecordKind::Stack, depth, ticks);
            let mut record = record.expect("room");
            record.copy_from(0, &self.stacks[number % STACKS][..depth]);
            let _ = black_box(record.commit());
        }
    }

    /// With `new` leaf frames other than those of the stack before, of which the chain is told or not.
    fn coded(&mut self, events: u64, depth: usize, new: usize, told: bool) {
        let stacks = if new < NEW { &self.similar } else { &self.stacks };
        for number in 0..events as usize {
            let frames = &stacks[number % STACKS][..depth];
            if told {
                self.chain.walked(if number == 0 { 0 } else { depth - new });
            }
            let written = self.chain.write(&self.cursor, &self.region, HEAD, frames, ticks);
            let _ = black_box(written.expect("room"));
        }
    }

    /// Fills the pool with records of each kind in turn and drains it.
    pub(crate) fn drain(&mut self) -> Drained {
        let (records, _) = self.fill_and_drain(|ours| ours.numbers(1000), false);
        let (stacks, _) = self.fill_and_drain(|ours| ours.coded(1000, 40, NEW, false), true);
        Drained { numbers: records, stacks }
    }

    /// Bytes in the ring of one stack of 40 frames.
    pub(crate) fn bytes(&mut self) -> f64 {
        let (_, bytes) = self.fill_and_drain(|ours| ours.coded(1000, 40, NEW, false), true);
        bytes
    }

    fn fill_and_drain(&mut self, fill: impl Fn(&mut Self), decode: bool) -> (f64, f64) {
        // SAFETY: the mapping of that length outlives the reader.
        let mut reader = unsafe { RegionReader::open(self.base, self.len) }.expect("our region");
        let mut scratch = vec![0; 16 << 10];
        // What earlier rounds left.
        reader.drain(Pass::Final, &mut scratch, &mut |_, _| {});
        let before = self.region.control().snapshot().chunks_overwritten;
        while self.region.control().snapshot().chunks_overwritten == before {
            fill(self);
        }
        let (mut sum, mut decoder, mut frames) = (0u64, StackDecoder::new(), vec![0; MAX_DEPTH]);
        let mut stats = None;
        let seconds = spent(|| {
            stats = Some(reader.drain(Pass::Live, &mut scratch, &mut |_, record| {
                if decode {
                    let stack = EncodedStack::parse(record.payload).expect("a stack");
                    decoder.decode(&stack, record.sequence, &mut frames).expect("in order");
                    sum = sum.wrapping_add(frames[stack.depth() - 1]);
                } else {
                    sum = sum.wrapping_add(record.ticks);
                }
            }));
        });
        black_box(sum);
        let stats = stats.expect("drained");
        let records = stats.records as f64;
        (records / seconds, (stats.bytes as f64 + 8.0 * records) / records)
    }
}

/// Thread CPU ns of one reading of the clock, which every record needs.
pub(crate) fn clock(events: u64) -> f64 {
    spent(|| {
        for _ in 0..events {
            black_box(ticks());
        }
    }) * 1e9
        / events as f64
}

fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; it only reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Seconds of this thread's CPU time that `work` takes.
fn spent(work: impl FnOnce()) -> f64 {
    let now = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a valid place for the result.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let begin = now();
    work();
    now() - begin
}
