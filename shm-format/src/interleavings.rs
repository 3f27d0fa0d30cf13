//! Every interleaving of two or three threads over the real protocol code, explored by loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p selfwind-shm-format --lib`. Loom does not model signal handlers:
//! nesting within a thread is covered by `tests/nested.rs` and `tests/single_step.rs`.
//!
//! The reader is always the thread spawned last. Loom's partial-order reduction remembers only the last access of each
//! atomic, so a writer that loads a word and then swaps it hides an earlier load by the reader. With the writers
//! running first and the reader moving forward, every order is explored.

use std::vec::Vec;

use loom::sync::Arc;
use loom::thread;

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::chunk::Chunk;
use crate::chunk_reading::ChunkPass;
use crate::control::Loss;
use crate::delivery::{DrainStats, Pass};
use crate::durable::{Log, LogPosition};
use crate::exec_times::ExecTimes;
use crate::layout::{ChunkHeader, DoorbellPage, DoorbellWord, FillLine, Mode, SearchLine};
use crate::pool::Pool;
use crate::record::RecordKind;
use crate::word::State;
use crate::writer::ThreadCursor;

/// Words of a chunk here: space for two records of one payload word.
const WORDS: usize = 4;

fn zero() -> AtomicU64 {
    AtomicU64::new(0)
}

/// A pool in ordinary memory.
struct SmallPool {
    chunks: Vec<(ChunkHeader, Vec<AtomicU64>)>,
    bitmap: Vec<AtomicU64>,
    search: SearchLine,
    fill: FillLine,
    mode: Mode,
}

impl SmallPool {
    fn new(chunks: usize, mode: Mode) -> Self {
        let header = || ChunkHeader {
            state: zero(),
            committed: zero(),
            sealed: zero(),
            ts_base: zero(),
            owner: zero(),
            first: zero(),
            lost: zero(),
            consumed: zero(),
        };
        Self {
            chunks: (0..chunks).map(|_| (header(), (0..WORDS).map(|_| zero()).collect())).collect(),
            bitmap: Vec::from([AtomicU64::new((1 << chunks) - 1)]),
            search: SearchLine { word: zero(), hand: zero() },
            fill: FillLine { complete: zero(), overwritten: zero(), writing: zero() },
            mode,
        }
    }

    /// One pass of the reader. The payload of each record is its time, so a torn or stale one is detected.
    fn drain(&self, pass: Pass, seen: &mut Vec<(u32, u64)>) -> DrainStats {
        let mut stats = DrainStats::default();
        let mut scratch = [0; WORDS * 8];
        for (index, chunk) in (0..self.chunks.len()).filter_map(|index| Some((index, self.chunk(index)?))) {
            let walk = ChunkPass {
                chunk,
                index: index as u32,
                generation: 0,
                pass,
                owned: true,
                replay: false,
                outside: None,
                stats: &mut stats,
            };
            walk.visit(&self.fill, &self.bitmap, &mut scratch, &mut |chunk, record| {
                assert_eq!(record.payload, record.ticks.to_le_bytes(), "torn");
                seen.push((chunk.tid, record.sequence));
            });
        }
        assert_eq!((stats.violations, stats.torn, stats.unknown), (0, 0, 0), "{stats:?}");
        stats
    }
}

impl Pool for SmallPool {
    fn backed(&self) -> usize {
        self.chunks.len()
    }
    fn chunk(&self, index: usize) -> Option<Chunk<'_>> {
        let (header, words) = self.chunks.get(index)?;
        Some(Chunk { header, words, nonce: 5 })
    }
    fn bitmap(&self) -> &[AtomicU64] {
        &self.bitmap
    }
    fn search(&self) -> &SearchLine {
        &self.search
    }
    fn fill(&self) -> &FillLine {
        &self.fill
    }
    fn mode(&self) -> Mode {
        self.mode
    }
}

/// Writes records with the given times.
fn write(cursor: &ThreadCursor, pool: &SmallPool, times: &[u64]) -> Vec<Result<(), Loss>> {
    let write_one = |time: &u64| {
        let mut record = cursor.reserve(pool, RecordKind::Stack, 1, || *time)?;
        record.set(0, *time);
        let _ = record.commit();
        Ok(())
    };
    times.iter().map(write_one).collect()
}

fn assert_once(mut seen: Vec<(u32, u64)>) {
    let len = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), len, "a record came twice");
}

/// A reader thread that makes `passes` live passes while writers run; returns what it saw.
fn read_beside(pool: &Arc<SmallPool>, passes: usize) -> thread::JoinHandle<Vec<(u32, u64)>> {
    let pool = Arc::clone(pool);
    thread::spawn(move || {
        let mut seen = Vec::new();
        for _ in 0..passes {
            pool.drain(Pass::Live, &mut seen);
        }
        seen
    })
}

#[test]
fn a_live_reader_sees_whole_records_once() {
    loom::model(|| {
        let pool = Arc::new(SmallPool::new(1, Mode::Discard));
        let cursor = ThreadCursor::new();
        cursor.begin(1, 1);
        assert!(write(&cursor, &pool, &[10])[0].is_ok());
        let reader = read_beside(&pool, 2);
        assert!(write(&cursor, &pool, &[11])[0].is_ok());
        let _ = cursor.close(&*pool);
        let mut seen = reader.join().unwrap();
        pool.drain(Pass::Live, &mut seen);
        assert_eq!(seen, [(1, 0), (1, 1)]);
    });
}

#[test]
fn an_overwritten_chunk_is_read_whole_or_not_at_all() {
    let mut model = loom::model::Builder::new();
    // Unbounded (LOOM_MAX_PREEMPTIONS=100) it takes minutes.
    model.preemption_bound = model.preemption_bound.or(Some(3));
    model.check(|| {
        let pool = Arc::new(SmallPool::new(1, Mode::Overwrite));
        let first = ThreadCursor::new();
        first.begin(1, 1);
        assert!(write(&first, &pool, &[10])[0].is_ok());
        let reader = read_beside(&pool, 1);
        let _ = first.close(&*pool);
        let second = ThreadCursor::new();
        second.begin(2, 2);
        // Fails as long as the reader holds the only chunk.
        write(&second, &pool, &[20]);
        let mut seen = reader.join().unwrap();
        pool.drain(Pass::Final, &mut seen);
        assert_once(seen);
    });
}

/// A nested record is committed before the outer one that it interrupted.
#[test]
fn a_record_below_a_committed_one_is_seen_whole_or_waited_for() {
    loom::model(|| {
        let pool = Arc::new(SmallPool::new(1, Mode::Discard));
        let reader = read_beside(&pool, 1);
        let cursor = ThreadCursor::new();
        cursor.begin(1, 1);
        let mut outer = cursor.reserve(&*pool, RecordKind::Stack, 1, || 10).unwrap();
        assert!(write(&cursor, &pool, &[11])[0].is_ok());
        outer.set(0, 10);
        let _ = outer.commit();
        let mut seen = reader.join().unwrap();
        pool.drain(Pass::Live, &mut seen);
        assert_eq!(seen, [(1, 0), (1, 1)]);
    });
}

#[test]
fn a_free_chunk_has_one_taker() {
    loom::model(|| {
        let pool = Arc::new(SmallPool::new(1, Mode::Discard));
        let run = |tid: u32| {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                let cursor = ThreadCursor::new();
                cursor.begin(tid, tid);
                write(&cursor, &pool, &[u64::from(tid)])[0].is_ok()
            })
        };
        let writers = [run(1), run(2)];
        let written =
            writers.into_iter().filter(|_| true).map(|w| w.join().unwrap()).filter(|ok| *ok).count();
        assert_eq!(written, 1);
        let mut seen = Vec::new();
        pool.drain(Pass::Final, &mut seen);
        assert_eq!(seen.len(), 1);
    });
}

#[test]
fn a_freed_chunk_goes_to_another_thread() {
    loom::model(|| {
        let pool = Arc::new(SmallPool::new(1, Mode::Discard));
        let first = ThreadCursor::new();
        first.begin(1, 1);
        assert!(write(&first, &pool, &[10])[0].is_ok());
        let _ = first.close(&*pool);
        let reader = read_beside(&pool, 1);
        let second = ThreadCursor::new();
        second.begin(2, 2);
        let written = write(&second, &pool, &[20])[0].is_ok();
        let _ = second.close(&*pool);
        let mut seen = reader.join().unwrap();
        pool.drain(Pass::Live, &mut seen);
        assert_eq!(seen.len(), 1 + usize::from(written));
        assert_once(seen);
    });
}

fn doorbell() -> DoorbellPage {
    let word = || DoorbellWord(AtomicU32::new(0));
    DoorbellPage {
        magic: zero(),
        version: AtomicU32::new(0),
        changes: AtomicU32::new(0),
        sleeping: word(),
        stop: word(),
        exec_times: ExecTimes::empty(),
    }
}

#[test]
fn work_is_seen_or_the_sleeper_is_woken_by_exactly_one() {
    loom::model(|| {
        let doorbell = Arc::new(doorbell());
        let work = Arc::new(AtomicU64::new(0));
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let (doorbell, work) = (Arc::clone(&doorbell), Arc::clone(&work));
                thread::spawn(move || {
                    work.fetch_add(1, Ordering::Release);
                    doorbell.ring()
                })
            })
            .collect();
        doorbell.prepare_sleep();
        let seen = work.load(Ordering::Acquire);
        let woken = writers.into_iter().map(|writer| writer.join().unwrap()).filter(|rang| *rang).count();
        assert!(woken <= 1, "two writers woke one reader");
        assert!(seen == 2 || woken == 1, "asleep with work left: saw {seen}");
        assert_eq!(doorbell.is_sleeping(), woken == 0);
    });
}

#[test]
fn a_change_is_seen_or_the_sleeper_is_woken() {
    loom::model(|| {
        let doorbell = Arc::new(doorbell());
        doorbell.ask_for_changes();
        let record = Arc::new(AtomicU64::new(0));
        let writer = thread::spawn({
            let (doorbell, record) = (Arc::clone(&doorbell), Arc::clone(&record));
            move || {
                record.store(1, Ordering::Release);
                doorbell.announce_change()
            }
        });
        let changes = doorbell.changes();
        let seen = record.load(Ordering::Acquire);
        doorbell.prepare_sleep();
        let is_awake = doorbell.changes() != changes;
        let woken = writer.join().unwrap();
        assert!(seen == 1 || is_awake || woken, "asleep without the change");
    });
}

#[test]
fn durable_records_are_whole_and_none_is_lost() {
    loom::model(|| {
        let log = Arc::new((zero(), (0..8).map(|_| zero()).collect::<Vec<_>>()));
        fn view(log: &(AtomicU64, Vec<AtomicU64>)) -> Log<'_> {
            Log { reserve: &log.0, words: &log.1 }
        }
        fn append(log: &(AtomicU64, Vec<AtomicU64>), kind: u16) {
            view(log).append(kind, &[&u64::from(kind).to_le_bytes()]).unwrap();
        }
        fn read(log: &(AtomicU64, Vec<AtomicU64>), position: &mut LogPosition, seen: &mut Vec<u16>) {
            let sound = position.advance(view(log), &mut |header, at| {
                assert_eq!(log.1[at + 1].load(Ordering::Relaxed), u64::from(header.kind()));
                seen.push(header.kind());
            });
            assert!(sound);
        }
        let second = thread::spawn({
            let log = Arc::clone(&log);
            move || append(&log, 2)
        });
        let reader = thread::spawn({
            let log = Arc::clone(&log);
            move || {
                let (mut position, mut seen) = (LogPosition::default(), Vec::new());
                read(&log, &mut position, &mut seen);
                (position, seen)
            }
        });
        append(&log, 1);
        second.join().unwrap();
        let (mut position, mut seen) = reader.join().unwrap();
        read(&log, &mut position, &mut seen);
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
    });
}

#[test]
fn states_print() {
    assert_eq!(std::format!("{}", State(4 * 7 + 3)), "Complete 7");
}
