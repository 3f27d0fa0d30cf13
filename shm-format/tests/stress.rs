//! Writers at full speed against a live reader: no record is torn or delivered twice, and every gap is accounted for.
//!
//! `SHM_STRESS_RECORDS` (records per thread) and `SHM_STRESS_THREADS` set the length.
#![cfg(not(loom))]

mod rig;

use std::sync::atomic::{AtomicU64, Ordering};

use rig::ledger::Ledger;
use rig::{Mapping, Random, check, geometry, setting, write};
use shm_format::{Mode, Pass, Region, ThreadCursor};

fn threads() -> u64 {
    setting("SHM_STRESS_THREADS", 3)
}

fn records() -> u64 {
    setting("SHM_STRESS_RECORDS", 40_000)
}

/// What one writer did: records reserved and lost.
fn run(region: &Region, thread: u64, records: u64) -> (u64, u64) {
    let cursor = ThreadCursor::new();
    cursor.begin(thread as u32, thread as u32);
    let mut random = Random(thread * 7 + 1);
    let mut written = 0;
    for _ in 0..records {
        let most = if random.below(50) == 0 { 480 } else { 40 };
        let words = 2 + random.below(most) as usize;
        if write(&cursor, region, thread, written, words).is_ok() {
            written += 1;
        }
    }
    let _ = cursor.close(region);
    assert_eq!(cursor.sequence(), written);
    assert_eq!(cursor.lost(), records - written);
    (written, cursor.lost())
}

fn run_all(mapping: &Mapping, region: &Region) -> (Ledger, Vec<(u64, u64)>) {
    let mut ledger = Ledger::default();
    let mut reader = mapping.open();
    let done = std::thread::scope(|scope| {
        let writers: Vec<_> =
            (0..threads()).map(|thread| scope.spawn(move || run(region, thread, records()))).collect();
        while writers.iter().any(|writer| !writer.is_finished()) {
            ledger.drain(&mut reader, Pass::Live);
        }
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    ledger.drain(&mut reader, Pass::Live);
    (ledger, done)
}

#[test]
fn discard_mode_delivers_all_that_was_not_refused() {
    let mapping = Mapping::new(geometry(12).total_len());
    let region = mapping.format(&geometry(12), Mode::Discard);
    let (ledger, done) = run_all(&mapping, &region);
    assert_eq!((ledger.stats.torn, ledger.stats.overtaken), (0, 0));
    for (thread, (written, lost)) in done.into_iter().enumerate() {
        assert_eq!(ledger.holes(thread as u32, written), []);
        assert!(ledger.thread(thread as u32).values().all(|entry| entry.writer == thread as u64));
        let noted = ledger.lost.get(&(thread as u32, thread as u32)).copied().unwrap_or(0);
        assert!(noted <= lost, "thread {thread} lost {lost}, its chunks say {noted}");
    }
    ledger.assert_ordered();
}

#[test]
fn overwrite_mode_loses_only_what_was_overwritten() {
    let mapping = Mapping::new(geometry(12).total_len());
    let region = mapping.format(&geometry(12), Mode::Overwrite);
    let (ledger, done) = run_all(&mapping, &region);
    assert_eq!(ledger.stats.torn, 0);
    let mut holes = 0;
    for (thread, (written, _)) in done.into_iter().enumerate() {
        holes += ledger.holes(thread as u32, written).len() as u64;
        assert!(ledger.thread(thread as u32).iter().all(|(sequence, entry)| *sequence == entry.number));
    }
    let overwritten = region.control().snapshot().chunks_overwritten;
    assert!(holes <= overwritten, "{holes} holes, {overwritten} chunks overwritten");
    ledger.assert_ordered();
}

/// The same between two processes that share nothing but the region; the writer is killed in the middle.
#[test]
fn a_killed_process_leaves_whole_records() {
    for round in 0..setting("SHM_STRESS_KILLS", 20) {
        let mode = if round % 2 == 0 { Mode::Discard } else { Mode::Overwrite };
        let mapping = Mapping::new(geometry(12).total_len() + 4096);
        let region = mapping.format(&geometry(12), mode);
        let progress = &mapping.words()[geometry(12).total_len() / 8];
        // SAFETY: the child calls nothing that needs a lock another thread may hold: it only writes records.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            write_for_ever(&region, progress);
        }
        let mut ledger = Ledger::default();
        let mut reader = mapping.open();
        let enough = 200 + round * 37;
        while progress.load(Ordering::Acquire) < enough {
            ledger.drain(&mut reader, Pass::Live);
        }
        // SAFETY: kills and reaps the child made above.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        let committed = progress.load(Ordering::Acquire);
        ledger.drain(&mut reader, Pass::Final);
        assert!(ledger.stats.torn <= 1, "{:?}", ledger.stats);
        let seen = ledger.thread(5);
        let last = *seen.keys().next_back().unwrap();
        assert!(last + 1 >= committed && last <= committed + 1, "last {last}, committed {committed}");
        let holes = ledger.holes(5, last + 1).len() as u64;
        let overwritten = reader.counters().chunks_overwritten;
        assert!(holes <= overwritten, "{holes} holes, {overwritten} overwritten");
        assert_eq!(ledger.drain(&mut reader, Pass::Final).records, 0);
    }
}

fn write_for_ever(region: &Region, progress: &AtomicU64) -> ! {
    let cursor = ThreadCursor::new();
    cursor.begin(5, 5);
    let mut random = Random(99);
    let mut number = 0;
    loop {
        if write(&cursor, region, 5, number, 2 + random.below(60) as usize).is_ok() {
            number += 1;
            progress.store(number, Ordering::Release);
        }
    }
}

/// Many short threads: every chunk is handed over at their end, and the pool does not run out.
#[test]
fn short_threads_leave_nothing_behind() {
    let mapping = Mapping::new(geometry(8).total_len());
    let region = mapping.format(&geometry(8), Mode::Discard);
    let mut reader = mapping.open();
    let mut scratch = vec![0; 4096];
    let mut seen = vec![0u64; 300];
    for thread in 0..300u64 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let cursor = ThreadCursor::new();
                cursor.begin(thread as u32, thread as u32);
                for number in 0..thread % 7 {
                    let _ = write(&cursor, &region, thread, number, 8).unwrap();
                }
                let _ = cursor.close(&region);
            });
        });
        reader.drain(Pass::Live, &mut scratch, &mut |_, record| seen[check(record.payload).0 as usize] += 1);
    }
    assert!(seen.iter().enumerate().all(|(thread, count)| *count == thread as u64 % 7));
}
