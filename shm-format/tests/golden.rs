//! A region of each format version, byte for byte: the writer still produces it, and the reader still reads it.
//!
//! A change of the format gets a new version and a new file; the old files stay, and show which versions are refused.
//! The file of the current version is made by `cargo test -p selfwind-shm-format --test golden -- --ignored` after the
//! version number has been raised.
#![cfg(not(loom))]

mod rig;

use std::collections::BTreeMap;
use std::path::PathBuf;

use rig::stacks::Decoders;
use rig::{Mapping, identity};
use shm_format::layout::VERSION;
use shm_format::record::{
    Anchor, Exec, Exit, FrameWords, Function, Module, ModuleGone, Process, RecurringStack, Segment, Segments,
    Setting, Thread,
};
use shm_format::{
    AlikeAllocations, ClockKind, DurableRecord, Geometry, LayoutError, Loss, Mode, Pass, RecordKind, Region,
    RegionReader, Repeat, Skip, StackChain, StackHead, ThreadCursor,
};

const GEOMETRY: Geometry = Geometry {
    chunk_size: 4096,
    chunk_capacity: 3,
    chunks_backed: 3,
    durable_capacity: 4096,
    durable_backed: 4096,
};

/// Fills more than a chunk.
const STACKS: u64 = 150;

/// Causes that version 1 had at first; the file counts each once.
const GOLDEN_SKIPS: usize = 4;

const FRAMES: [u64; 3] = [1 << 61 | 0x5555_0000_1234, 0x5555_0000_2000, 1 << 62 | 0x7fff_f7a0_0042];

const SEGMENTS: [Segment; 2] = [
    Segment { address: 0x5555_0000_0000, len: 0x3000, page_offset: 0, flags: 5, reserved: 0 },
    Segment { address: 0x5555_0000_3000, len: 0x1000, page_offset: 0x2000, flags: 6, reserved: 0 },
];

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/region-v{VERSION}.bin"))
}

fn durable() -> Vec<DurableRecord<'static>> {
    let thread = Thread { ticks: 1_010, tid: 4242, seq: 1, name: b"main" };
    vec![
        DurableRecord::Process(Process {
            ticks: 1_000,
            pid: 4242,
            ppid: 1,
            parent_nonce: 0xfeed,
            uid: 1000,
            signal: 27,
            period_ns: 10_101_010,
            source: 1,
            exe: b"/usr/bin/prog",
            argv: b"prog\0-x\0",
            cwd: b"/tmp",
            note: b"SELFWIND_FREQ=abc ignored",
        }),
        DurableRecord::Module(Module {
            ticks: 1_001,
            id: 1,
            start: 0x5555_0000_0000,
            end: 0x5555_0000_4000,
            bias: 0x5555_0000_0000,
            build_id: &[0xde, 0xad, 0xbe, 0xef, 1, 2, 3],
            path: b"/usr/bin/prog",
            segments: Segments::new(&SEGMENTS),
        }),
        DurableRecord::Thread(thread),
        DurableRecord::ThreadName(Thread { ticks: 1_020, name: b"worker", ..thread }),
        DurableRecord::Anchor(Anchor {
            ticks: 9_000,
            monotonic_ns: 9_000,
            realtime_ns: 1_700_000_000_000_008_000,
        }),
        DurableRecord::Setting(Setting { ticks: 1_000, key: b"freq", value: b"99" }),
        DurableRecord::ModuleGone(ModuleGone { ticks: 5_000, id: 1 }),
        DurableRecord::ThreadEnd(Thread { ticks: 6_000, ..thread }),
        DurableRecord::Function(Function {
            ticks: 6_500,
            id: 1,
            language: 1,
            lines_form: 3,
            first_line: 7,
            name_width: 1,
            file_width: 2,
            name: b"Caf\xe9.open",
            file: b"\x42\x04.\0p\0y\0",
            lines: &[0x80, 0x00, 0x8b],
        }),
        DurableRecord::RecurringStack(RecurringStack {
            id: 1,
            tid: 4243,
            seq: 2,
            base: 0,
            shared: 0,
            frames: FrameWords::new(&FRAMES),
        }),
        DurableRecord::RecurringStack(RecurringStack {
            id: 2,
            tid: 4243,
            seq: 2,
            base: 1,
            shared: 1,
            frames: FrameWords::new(&FRAMES[..1]),
        }),
        DurableRecord::Exec(Exec { ticks: 7_000, path: b"/bin/next" }),
        DurableRecord::Exit(Exit { ticks: 8_000, status: Some(3) }),
        DurableRecord::Exit(Exit { ticks: 8_001, status: None }),
    ]
}

fn stack(number: u64) -> StackHead {
    StackHead { weight: 1 + number as u32, end: (number % 3) as u8, source: 1, nonce: number % 2 * number }
}

/// An interpreted frame, of function 1.
const INTERPRETED: u64 = 3 << 62 | 1 << 60 | 1 << 24;

/// An allocation with the stack in the log.
const REPEAT: Repeat = Repeat::Single { stack: 1, nonce: 64 << 28 | 5 };

/// Stacks of one to six frames that differ in the outer and in the inner ones.
fn frames(number: u64) -> Vec<u64> {
    let mut frames = vec![FRAMES[2] + number / 30];
    frames.extend((0..number % 4).map(|at| FRAMES[1] + at * (number % 7) * 0x1_0001));
    if number.is_multiple_of(5) {
        frames.push(INTERPRETED | (number % 3));
    }
    frames.push(FRAMES[0]);
    frames.reverse();
    frames
}

/// A thread that writes to the pool.
struct Writer {
    cursor: ThreadCursor,
    chain: StackChain,
}

impl Writer {
    fn new(tid: u32, thread_seq: u32) -> Self {
        let cursor = ThreadCursor::new();
        cursor.begin(tid, thread_seq);
        Self { cursor, chain: StackChain::new() }
    }

    fn write(&mut self, region: &Region, number: u64, time: u64) {
        let _ = self.chain.write(&self.cursor, region, stack(number), &frames(number), || time).unwrap();
    }
}

/// The region of the file, made by the writer: two chunks complete or writing, one of each kind of record, an
/// abandoned one, a void one, a far one, and every counter.
fn write(mapping: &Mapping) {
    let region = mapping.format(&GEOMETRY, Mode::Discard);
    for record in durable() {
        region.append(&record).unwrap();
    }
    let mut first = Writer::new(4242, 1);
    for number in 0..STACKS {
        first.write(&region, number, 2_010 + 10 * number);
    }
    let mut second = Writer::new(4243, 2);
    second.write(&region, 1000, 3_000);
    drop(second.cursor.reserve(&region, RecordKind::Stack, 1, || 3_001).unwrap());
    let mut nested = StackChain::new();
    let _ = nested.write_standalone(&second.cursor, &region, stack(1001), &frames(1001), || 3_002).unwrap();
    second.write(&region, 1002, 3_003 + (1 << 33));
    for repeat in [REPEAT, Repeat::Alike(AlikeAllocations::new(0, 64, 1))] {
        let _ = second.cursor.repeat(&region, repeat, || 3_004 + (1 << 33)).unwrap();
    }
    std::mem::forget(second.cursor.reserve(&region, RecordKind::Stack, 2, || 4_000 + (1 << 33)).unwrap());
    let control = region.control();
    for number in 0..STACKS + 3 {
        control.fire(1 + number);
        control.record(1 + number);
        control.handler_time(100 * (number + 1));
    }
    for (number, cause) in Loss::ALL.into_iter().enumerate() {
        control.fire(number as u64);
        control.lose(cause, number as u64);
    }
    for (number, cause) in Skip::ALL.into_iter().take(GOLDEN_SKIPS).enumerate() {
        control.fire(number as u64);
        control.skip(cause, number as u64);
    }
    control.truncate();
    control.thread_started();
    control.thread_started();
    control.thread_ended();
}

#[test]
#[ignore = "makes the golden file of this version"]
fn make() {
    let mapping = Mapping::new(GEOMETRY.total_len());
    write(&mapping);
    std::fs::create_dir_all(file().parent().unwrap()).unwrap();
    std::fs::write(file(), mapping.bytes()).unwrap();
}

#[test]
fn the_writer_makes_the_golden_file() {
    let mapping = Mapping::new(GEOMETRY.total_len());
    write(&mapping);
    let golden = std::fs::read(file()).unwrap();
    assert_eq!(golden.len(), mapping.len);
    for (at, (ours, theirs)) in mapping.bytes().chunks(8).zip(golden.chunks(8)).enumerate() {
        assert_eq!(ours, theirs, "at byte {:#x}", at * 8);
    }
}

#[test]
fn the_reader_reads_the_golden_file() {
    let golden = std::fs::read(file()).unwrap();
    let mapping = Mapping::new(golden.len());
    for (word, bytes) in mapping.words().iter().zip(golden.chunks_exact(8)) {
        word.store(u64::from_le_bytes(bytes.try_into().unwrap()), std::sync::atomic::Ordering::Relaxed);
    }
    let mut reader = mapping.open();
    assert_eq!(reader.identity(), identity());
    assert_eq!((reader.mode(), reader.clock()), (Mode::Discard, ClockKind::Monotonic));
    assert_eq!(reader.anchor(), rig::anchor());
    let mut expected = durable().into_iter();
    let (mut seen, mut decoders) = (BTreeMap::new(), Decoders::default());
    let stats = reader.durable(&mut |record| {
        decoders.learn(&record);
        assert_eq!(Some(record), expected.next());
    });
    assert_eq!((stats.records, stats.unknown, stats.pending, stats.violations), (14, 0, 0, 0));

    decoders.drain(&mut reader, Pass::Final, &mut seen);
    let stats = decoders.stats;
    assert_eq!((stats.void, stats.torn, stats.violations), (1, 1, 0));
    assert_eq!((decoders.malformed, decoders.unlinked), (0, 0));
    let first = (0..STACKS).map(|number| ((4242, number), number));
    let second = [((4243, 0), 1000), ((4243, 2), 1001), ((4243, 3), 1002)];
    let mut expected: BTreeMap<_, _> =
        first.chain(second).map(|(key, number)| (key, (stack(number), frames(number)))).collect();
    let head = StackHead { weight: 1, end: 0, source: Repeat::SOURCE, nonce: 64 << 28 | 5 };
    expected.insert((4243, 4), (head, FRAMES.to_vec()));
    assert_eq!((seen, decoders.alike), (expected, [AlikeAllocations::new(0, 64, 1)].into()));
    counters(&reader.counters());
}

fn counters(counters: &shm_format::CountersSnapshot) {
    assert_eq!((counters.fired.count, counters.recorded.count), (STACKS + 12, STACKS + 3));
    assert_eq!(counters.cut_short(), shm_format::TallySnapshot::default());
    for (number, cause) in Loss::ALL.into_iter().enumerate() {
        assert_eq!((counters.lost(cause).count, counters.lost(cause).weight), (1, number as u64));
    }
    for (number, cause) in Skip::ALL.into_iter().take(GOLDEN_SKIPS).enumerate() {
        assert_eq!((counters.skipped(cause).count, counters.skipped(cause).weight), (1, number as u64));
    }
    assert_eq!((counters.truncated, counters.threads_started, counters.threads_ended), (1, 2, 1));
    assert_eq!(counters.handler_time.iter().sum::<u64>(), STACKS + 3);
}

#[test]
fn older_versions_are_refused_by_name() {
    for version in 1..VERSION {
        let golden = std::fs::read(file().with_file_name(format!("region-v{version}.bin"))).unwrap();
        let mapping = Mapping::new(golden.len());
        for (word, bytes) in mapping.words().iter().zip(golden.chunks_exact(8)) {
            word.store(u64::from_le_bytes(bytes.try_into().unwrap()), std::sync::atomic::Ordering::Relaxed);
        }
        // SAFETY: the mapping has the claimed length; nothing outlives it.
        let refused = unsafe { RegionReader::open(mapping.base, mapping.len) }.err().unwrap();
        assert_eq!(refused, LayoutError::BadVersion(version));
        assert_eq!(refused.to_string(), format!("region format version {version}, expected {VERSION}"));
    }
}
