//! Threads that wrote once and then idle: there may be more of them than chunks, and the others must be able to write.
#![cfg(not(loom))]

mod rig;

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rig::ledger::Ledger;
use rig::{Mapping, geometry, write};
use shm_format::{Loss, Mode, Pass, Region, ThreadCursor};

const CHUNKS: u32 = 16;
const IDLE: u64 = 60;
const ACTIVE: u64 = 3;
const RECORDS: u64 = 300;
/// Far beyond what a slow machine needs.
const PATIENCE: Duration = Duration::from_secs(30);

fn cursor(thread: u64) -> ThreadCursor {
    let cursor = ThreadCursor::new();
    cursor.begin(thread as u32, thread as u32);
    cursor
}

#[test]
fn idle_threads_leave_chunks_to_others() {
    let mapping = Mapping::new(geometry(CHUNKS).total_len());
    let region = mapping.format(&geometry(CHUNKS), Mode::Discard);
    let (mut reader, mut ledger) = (mapping.open(), Ledger::default());
    let cursors: Vec<_> = (0..IDLE).map(cursor).collect();
    // All write once, then a few, then all once more.
    for (thread, cursor) in cursors.iter().enumerate() {
        let _ = write(cursor, &region, thread as u64, 0, 8).unwrap();
        ledger.drain(&mut reader, Pass::Live);
    }
    let active = IDLE - ACTIVE..IDLE;
    for number in 1..RECORDS {
        for thread in active.clone() {
            let _ = write(&cursors[thread as usize], &region, thread, number, 8).unwrap();
            ledger.drain(&mut reader, Pass::Live);
        }
    }
    for (thread, cursor) in cursors.iter().enumerate() {
        let _ = write(cursor, &region, thread as u64, RECORDS, 8).unwrap();
        ledger.drain(&mut reader, Pass::Live);
        assert_eq!(cursor.lost(), 0);
        assert!(ledger.holes(thread as u32, cursor.sequence()).is_empty());
    }
    assert_eq!(ledger.len() as u64, 2 * IDLE + ACTIVE * (RECORDS - 1));
    ledger.assert_ordered();
}

/// A flight recorder: chunks that idle threads own cannot be overwritten.
#[test]
fn idle_threads_leave_space_in_a_flight_recorder() {
    let mapping = Mapping::new(geometry(CHUNKS).total_len());
    let region = mapping.format(&geometry(CHUNKS), Mode::Overwrite);
    let cursors: Vec<_> = (0..IDLE).map(cursor).collect();
    for number in 0..3 {
        for (thread, cursor) in cursors.iter().enumerate() {
            let _ = write(cursor, &region, thread as u64, number, 8).unwrap();
        }
    }
    assert!(cursors.iter().all(|cursor| cursor.lost() == 0));
}

/// A single thread fills its chunks, however small the pool is.
#[test]
fn a_lone_thread_wastes_no_space() {
    for mode in [Mode::Discard, Mode::Overwrite] {
        for chunks in [1, 2, 8, 9] {
            let mapping = Mapping::new(geometry(chunks).total_len());
            let region = mapping.format(&geometry(chunks), mode);
            let cursor = cursor(7);
            let room = u64::from(chunks) * geometry(chunks).chunk_words() as u64 / 9;
            for number in 0..room - u64::from(chunks) {
                let _ = write(&cursor, &region, 7, number, 8).unwrap();
            }
            let snapshot = region.control().snapshot();
            assert_eq!((cursor.lost(), snapshot.chunks_overwritten), (0, 0), "{mode:?} {chunks}");
        }
    }
}

/// Retries until there is space, which there is eventually: no thread may end before the others, which wait for it.
fn insist(cursor: &ThreadCursor, region: &Region, thread: u64, number: u64, since: Instant) {
    while write(cursor, region, thread, number, 8).map(drop) == Err(Loss::PoolFull)
        && since.elapsed() < PATIENCE
    {
        std::thread::yield_now();
    }
}

#[test]
fn sleeping_threads_leave_chunks_to_others() {
    let mapping = Mapping::new(geometry(CHUNKS).total_len());
    let region = &mapping.format(&geometry(CHUNKS), Mode::Discard);
    let (mut reader, mut ledger) = (mapping.open(), Ledger::default());
    let (idle, over) = (&Barrier::new((IDLE + ACTIVE) as usize), &Barrier::new((IDLE + ACTIVE) as usize));
    let (ended, since) = (&AtomicUsize::new(0), Instant::now());
    std::thread::scope(|scope| {
        for thread in 0..IDLE + ACTIVE {
            scope.spawn(move || {
                let cursor = cursor(thread);
                insist(&cursor, region, thread, 0, since);
                idle.wait();
                if thread >= IDLE {
                    (1..RECORDS).for_each(|number| insist(&cursor, region, thread, number, since));
                }
                over.wait();
                // All wake up at once.
                insist(&cursor, region, thread, RECORDS, since);
                let _ = cursor.close(region);
                ended.fetch_add(1, Ordering::Release);
            });
        }
        while ended.load(Ordering::Acquire) < (IDLE + ACTIVE) as usize {
            ledger.drain(&mut reader, Pass::Live);
            std::thread::yield_now();
        }
    });
    ledger.drain(&mut reader, Pass::Live);
    assert_eq!(ledger.stats.torn, 0);
    for thread in 0..IDLE + ACTIVE {
        let written = if thread < IDLE { 2 } else { RECORDS + 1 };
        assert_eq!(ledger.thread(thread as u32).len() as u64, written, "thread {thread}");
        assert!(ledger.holes(thread as u32, written).is_empty());
    }
    ledger.assert_ordered();
}
