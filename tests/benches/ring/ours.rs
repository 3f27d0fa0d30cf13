//! selfwind's ring: writer and reader of a region in overwrite mode, in this process.

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

/// A region in shared memory, and the cursor of one thread.
pub(crate) struct Ours {
    base: NonNull<u8>,
    len: usize,
    region: Region,
    cursor: ThreadCursor,
    chain: StackChain,
    /// By row.
    stacks: [Stacks; ROWS],
}

/// How stacks are written: as plain words, or by the codec with different inputs.
pub(crate) const NAMES: [&str; ROWS] = [
    "selfwind, plain words",
    "selfwind, codec, 1 frame new",
    "selfwind, codec, 12 frames new",
    "selfwind, codec, all new: the worst",
    "selfwind, codec, as many new as in CPython",
    "selfwind, codec, as many new as in cc1plus",
];
const ROWS: usize = 6;
const PLAIN: usize = 0;
const TWELVE: usize = 2;

/// Number of leaf frames in which consecutive stacks of `lttng.c` differ.
const NEW: usize = 12;

/// Numbers of new frames per sample, equally frequent, in ascending order: samples of CPython (`work.py`) and of
/// cc1plus every 4 ms, at most [`DEEPEST`]. `shm-format/FORMAT.md` explains them.
const CPYTHON: [usize; 20] = [1, 1, 1, 1, 2, 2, 3, 4, 5, 6, 9, 12, 14, 16, 20, 22, 25, 30, 37, 40];
const CC1PLUS: [usize; 20] = [1, 2, 4, 4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 13, 15, 17, 20, 26, 38, 40];

/// Stacks, and the length of the suffix that each shares with the previous one.
struct Stacks {
    frames: Vec<[u64; DEEPEST]>,
    kept: Vec<usize>,
}

impl Stacks {
    /// The stacks of `lttng.c`: `new` leaf frames change, each among eight values.
    fn regular(new: usize) -> Self {
        let address =
            |s: usize, f: usize| 0x7f00_0000_0000 + 4099 * (f * 7 + if f < new { s % 8 } else { 0 });
        let frames = (0..STACKS).map(|s| std::array::from_fn(|f| address(s, f) as u64)).collect();
        Self { frames, kept: vec![DEEPEST - new; STACKS] }
    }

    /// As many new frames as a program's, in random order. `unknown` in a hundred were not seen shortly before.
    fn mixed(news: [usize; 20], unknown: u64) -> Self {
        let mut state = 0x5e1f_317d_u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mut stack, mut frames, mut kept) = ([0x7f00_0000_0000; DEEPEST], Vec::new(), Vec::new());
        for _ in 0..32 * STACKS {
            let new = news[random(20) as usize];
            for frame in &mut stack[..new] {
                let function = if random(100) < unknown { random(1 << 16) } else { random(64) };
                *frame = 0x7f00_0000_0000 + 0x107 * function;
            }
            frames.push(stack);
            kept.push(DEEPEST - new);
        }
        Self { frames, kept }
    }
}

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
        let stacks = [
            Stacks::regular(NEW),
            Stacks::regular(1),
            Stacks::regular(NEW),
            Stacks::regular(DEEPEST),
            Stacks::mixed(CPYTHON, 15),
            Stacks::mixed(CC1PLUS, 30),
        ];
        let (chain, region) = (StackChain::new(), region.expect("a region"));
        Self { base, len, region, cursor, chain, stacks }
    }

    /// Thread CPU ns per record: of a number; and in each row, of 16 and of 40 frames.
    pub(crate) fn write(&mut self, events: u64) -> (f64, [[f64; 2]; ROWS]) {
        let per = |spent: f64| spent * 1e9 / events as f64;
        let number = per(spent(|| self.numbers(events)));
        let rows = std::array::from_fn(|row| {
            [16, 40].map(|depth| {
                per(spent(|| match row {
                    PLAIN => self.plain(events, depth),
                    _ => self.coded(events, depth, row),
                }))
            })
        });
        (number, rows)
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
            record.copy_from(0, &self.stacks[PLAIN].frames[number % STACKS][..depth]);
            let _ = black_box(record.commit());
        }
    }

    /// The chain is told what the walker knows.
    fn coded(&mut self, events: u64, depth: usize, row: usize) {
        let stacks = &self.stacks[row];
        self.chain.reset();
        let every = stacks.frames.iter().zip(&stacks.kept).cycle();
        for (frames, kept) in every.take(events as usize) {
            self.chain.walked((kept + depth).saturating_sub(DEEPEST));
            let written = self.chain.write(&self.cursor, &self.region, HEAD, &frames[..depth], ticks);
            let _ = black_box(written.expect("room"));
        }
    }

    /// Fills the pool with records of each kind in turn and drains it.
    pub(crate) fn drain(&mut self) -> Drained {
        let (records, _) = self.fill_and_drain(|ours| ours.numbers(1000), false);
        let (stacks, _) = self.fill_and_drain(|ours| ours.coded(1000, 40, TWELVE), true);
        Drained { numbers: records, stacks }
    }

    /// Bytes in the ring of one stack of 40 frames, by row; those of plain words need no looking.
    pub(crate) fn bytes(&mut self) -> [f64; ROWS] {
        std::array::from_fn(|row| match row {
            PLAIN => 8.0 * (1 + DEEPEST) as f64,
            _ => self.fill_and_drain(|ours| ours.coded(1000, 40, row), true).1,
        })
    }

    fn fill_and_drain(&mut self, fill: impl Fn(&mut Self), decode: bool) -> (f64, f64) {
        // SAFETY: the mapping of that length outlives the reader.
        let mut reader = unsafe { RegionReader::open(self.base, self.len) }.expect("our region");
        let mut scratch = vec![0; 16 << 10];
        // Left from earlier rounds.
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
