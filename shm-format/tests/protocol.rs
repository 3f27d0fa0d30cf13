//! One writer at a time: every record comes out once, in order, and every loss has its cause.
#![cfg(not(loom))]

mod rig;

use rig::ledger::Ledger;
use rig::{Mapping, geometry, tick, write};
use shm_format::layout::{DURABLE_RECORD_MAX, LayoutError, MAGIC, PAGE, VERSION};
use shm_format::record::{Module, Thread};
use shm_format::{
    Anchor, ClockKind, DurableRecord, Geometry, Loss, Mode, Pass, Pool, RecordKind, Region, RegionReader,
    ThreadCursor,
};

fn made(geometry: &Geometry, mode: Mode) -> (Mapping, Region, RegionReader) {
    let mapping = Mapping::new(geometry.total_len());
    let region = mapping.format(geometry, mode);
    let reader = mapping.open();
    (mapping, region, reader)
}

#[test]
fn live_passes_deliver_each_record_once() {
    let (_mapping, region, mut reader) = made(&geometry(8), Mode::Discard);
    let cursor = ThreadCursor::new();
    cursor.begin(7, 1);
    let mut ledger = Ledger::default();
    for number in 0..1_000 {
        let _ = write(&cursor, &region, 7, number, 2 + number as usize % 40).unwrap();
        if number % 3 == 0 {
            ledger.drain(&mut reader, Pass::Live);
            assert_eq!(ledger.len() as u64, number + 1);
            assert_eq!(ledger.drain(&mut reader, Pass::Live).records, 0);
        }
    }
    let _ = cursor.close(&region);
    ledger.drain(&mut reader, Pass::Live);
    ledger.drain(&mut reader, Pass::Final);
    assert_eq!(ledger.len(), 1_000);
    assert!(ledger.holes(7, 1_000).is_empty());
    assert!(ledger.thread(7).iter().all(|(sequence, entry)| *sequence == entry.number));
    ledger.assert_ordered();
}

#[test]
fn a_full_pool_discards_until_the_reader_comes() {
    let (_mapping, region, mut reader) = made(&geometry(4), Mode::Discard);
    let cursor = ThreadCursor::new();
    cursor.begin(7, 1);
    let mut written = 0;
    let mut lost = 0;
    let mut woken = false;
    let mut ledger = Ledger::default();
    for number in 0..600 {
        match write(&cursor, &region, 7, number, 30) {
            Ok(committed) => {
                woken |= committed.wake;
                written += 1;
            }
            Err(loss) => {
                assert_eq!(loss, Loss::PoolFull);
                lost += 1;
            }
        }
        if number % 100 == 99 {
            ledger.drain(&mut reader, Pass::Live);
        }
    }
    assert!(woken && written > 300 && lost > 0, "written {written}, lost {lost}");
    ledger.drain(&mut reader, Pass::Final);
    assert_eq!((cursor.sequence(), cursor.lost()), (written, lost));
    assert_eq!(ledger.len() as u64, written);
    assert!(ledger.holes(7, written).is_empty());
    assert!(ledger.lost[&(7, 1)] <= lost && ledger.lost[&(7, 1)] > 0);
}

#[test]
fn overwrite_keeps_the_newest() {
    let (_mapping, region, mut reader) = made(&geometry(4), Mode::Overwrite);
    let cursor = ThreadCursor::new();
    cursor.begin(7, 1);
    for number in 0..1_000 {
        let _ = write(&cursor, &region, 7, number, 30).unwrap();
    }
    let mut ledger = Ledger::default();
    ledger.drain(&mut reader, Pass::Final);
    let overwritten = reader.counters().chunks_overwritten;
    let holes = ledger.holes(7, 1_000);
    assert_eq!(holes.len(), 1, "only the oldest are missing");
    assert_eq!(holes[0].0, 0);
    let per_chunk = (geometry(4).chunk_words() / 31) as u64;
    assert_eq!(holes[0].1, overwritten * per_chunk);
    assert!(ledger.len() as u64 > 3 * per_chunk - 1);
}

#[test]
fn records_of_every_size_fit_and_larger_ones_are_refused() {
    let (_mapping, region, mut reader) = made(&geometry(8), Mode::Discard);
    let cursor = ThreadCursor::new();
    cursor.begin(7, 1);
    let mut ledger = Ledger::default();
    let max = region.max_payload_words();
    for words in 2..=max {
        let _ = write(&cursor, &region, 7, words as u64, words).unwrap();
        ledger.drain(&mut reader, Pass::Live);
    }
    assert_eq!(ledger.len(), max - 1);
    for words in [max + 1, 4095, 4096, 1 << 20, usize::MAX] {
        let refused = cursor.reserve(&region, RecordKind::Stack, words, tick).err();
        assert_eq!(refused, Some(Loss::TooLarge), "{words} words");
        let fresh = ThreadCursor::new();
        assert_eq!(fresh.reserve(&region, RecordKind::Stack, words, tick).err(), Some(Loss::TooLarge));
        let _ = fresh.close(&region);
    }
    assert_eq!(cursor.lost(), 5);
}

#[test]
fn held_records_come_once_and_again_to_a_successor_until_acknowledged() {
    let (mapping, region, mut reader) = made(&geometry(4), Mode::Discard);
    let cursor = ThreadCursor::new();
    cursor.begin(7, 1);
    let mut scratch = vec![0; 4096];
    let (mut positions, mut number) = (vec![0; reader.chunks()], 0);
    // More than a chunk at a time, so that some are claimed and one is being written.
    for round in 1..=2 {
        for _ in 0..30 {
            let _ = write(&cursor, &region, 7, number, 20).unwrap();
            number += 1;
        }
        let mut drain =
            || reader.drain_holding(Pass::Live, &mut scratch, &mut positions, &mut |_, _| {}).records;
        assert_eq!((drain(), drain()), (30, 0), "round {round}");
    }
    // No chunk was released: the pool fills up.
    let refused = (0..200).find(|_| write(&cursor, &region, 7, 0, 20).is_err());
    assert!(refused.is_some_and(|written| written < 60), "{refused:?}");
    let all = cursor.sequence();
    let seen = |pass| {
        let (mut scratch, mut seen) = (vec![0; 4096], 0);
        mapping.open().drain(pass, &mut scratch, &mut |_, _| seen += 1);
        seen
    };
    assert_eq!(seen(Pass::Look), all);
    reader.drain_holding(Pass::Live, &mut scratch, &mut positions, &mut |_, _| {});
    let released =
        (0..).zip(&positions).filter(|(index, position)| reader.acknowledge(*index, **position)).count();
    assert_eq!(released, 4, "whole chunks go back to the writers");
    assert_eq!(seen(Pass::Live), 0);
    let _ = write(&cursor, &region, 7, 0, 20).unwrap();
}

#[test]
fn a_record_long_after_its_chunk_began_keeps_its_time() {
    let (_mapping, region, mut reader) = made(&geometry(8), Mode::Discard);
    let cursor = ThreadCursor::new();
    cursor.begin(7, 1);
    let times = [5, 6, 5 + (1 << 32) - 1, 5 + (1 << 32), u64::MAX, 3];
    for time in times {
        let mut record = cursor.reserve(&region, RecordKind::Stack, 1, || time).unwrap();
        assert_eq!(record.len(), 1);
        record.set(0, time);
        let _ = record.commit();
    }
    let mut seen = Vec::new();
    let mut scratch = [0; 4096];
    reader.drain(Pass::Live, &mut scratch, &mut |_, record| {
        assert_eq!(record.payload, record.ticks.to_le_bytes());
        seen.push(record.ticks);
    });
    assert_eq!(seen, times);
}

#[test]
fn a_dropped_reservation_is_void_and_affects_no_other_record() {
    let (_mapping, region, mut reader) = made(&geometry(2), Mode::Discard);
    let cursor = ThreadCursor::new();
    cursor.begin(7, 1);
    for number in 0..2_000 {
        drop(cursor.reserve(&region, RecordKind::Stack, 5, tick).unwrap());
        let _ = write(&cursor, &region, 7, number, 5).unwrap();
        if number % 20 == 0 {
            let mut scratch = [0; 4096];
            reader.drain(Pass::Live, &mut scratch, &mut |_, _| {});
        }
    }
}

#[test]
fn the_pool_grows() {
    let wanted = Geometry { chunks_backed: 1, ..geometry(200) };
    let (_mapping, region, mut reader) = made(&wanted, Mode::Discard);
    let cursors: Vec<ThreadCursor> = (0..150).map(|_| ThreadCursor::new()).collect();
    for (tid, cursor) in cursors.iter().enumerate() {
        cursor.begin(tid as u32, tid as u32);
        if write(cursor, &region, tid as u64, 0, 4).is_err() {
            region.set_chunks_backed(region.chunks_backed() + 2);
            let _ = write(cursor, &region, tid as u64, 1, 4).unwrap();
        }
    }
    let mut ledger = Ledger::default();
    ledger.drain(&mut reader, Pass::Live);
    assert_eq!(ledger.len(), 150);
    region.set_chunks_backed(100_000);
    assert_eq!(region.chunks_backed(), 200);
    assert_eq!(region.backed(), 200);
}

#[test]
fn the_chunk_of_an_ended_thread_is_retired() {
    let (_mapping, region, mut reader) = made(&geometry(1), Mode::Discard);
    let gone = ThreadCursor::new();
    gone.begin(7, 1);
    let _ = write(&gone, &region, 7, 0, 4).unwrap();
    let next = ThreadCursor::new();
    next.begin(8, 2);
    assert_eq!(write(&next, &region, 8, 0, 4).err(), Some(Loss::PoolFull));
    let mut ledger = Ledger::default();
    assert_eq!(reader.retire(7, 2), 0);
    assert_eq!(reader.retire(7, 1), 1);
    ledger.drain(&mut reader, Pass::Live);
    let _ = write(&next, &region, 8, 1, 4).unwrap();
    ledger.drain(&mut reader, Pass::Live);
    assert_eq!((ledger.thread(7).len(), ledger.thread(8).len()), (1, 1));
}

#[test]
fn a_successor_reader_continues_where_the_last_one_stopped() {
    let (mapping, region, mut reader) = made(&geometry(8), Mode::Discard);
    let cursor = ThreadCursor::new();
    cursor.begin(7, 1);
    let mut ledger = Ledger::default();
    for number in 0..300 {
        let _ = write(&cursor, &region, 7, number, 20).unwrap();
        if number % 17 == 0 {
            reader = mapping.open();
        }
        ledger.drain(&mut reader, Pass::Live);
    }
    assert!(ledger.holes(7, 300).is_empty());
}

#[test]
fn durable_records_come_once_and_in_order() {
    let (_mapping, region, mut reader) = made(&geometry(1), Mode::Discard);
    let mut names = Vec::new();
    for round in 0..50u32 {
        for part in 0..3 {
            let name = format!("thread {round} {part} {}", "x".repeat(round as usize));
            let thread = Thread { ticks: 1, tid: round, seq: part, name: name.as_bytes() };
            region.append(&DurableRecord::Thread(thread)).unwrap();
            names.push(name);
        }
        let mut seen = Vec::new();
        let stats = reader.durable(&mut |record| match record {
            DurableRecord::Thread(thread) => seen.push(String::from_utf8(thread.name.to_vec()).unwrap()),
            other => panic!("{other:?}"),
        });
        assert_eq!((stats.records, stats.violations, stats.pending), (3, 0, 0));
        assert_eq!(seen, names[names.len() - 3..]);
    }
    assert!(region.durable_used() > 0);
}

#[test]
fn the_durable_log_says_when_it_is_full() {
    let wanted = Geometry { durable_backed: 4096, durable_capacity: 32768, ..geometry(1) };
    let (_mapping, region, mut reader) = made(&wanted, Mode::Discard);
    let path = [b'p'; 2000];
    let module = DurableRecord::Module(Module { path: &path, ..Module::default() });
    assert_eq!(region.append(&module), Ok(()));
    assert_eq!(region.append(&module), Err(Loss::DurableFull).or(region.append(&module)));
    while region.append(&module).is_ok() {}
    assert_eq!(region.append(&module), Err(Loss::DurableFull));
    region.set_durable_backed(8192);
    assert_eq!(region.append(&module), Ok(()));
    let big = vec![0; DURABLE_RECORD_MAX];
    assert_eq!(
        region.append(&DurableRecord::Module(Module { path: &big, ..Module::default() })),
        Err(Loss::TooLarge)
    );
    let stats = reader.durable(&mut |_| {});
    assert_eq!((stats.violations, stats.pending), (0, 0));
    assert!(stats.records >= 2);
}

#[test]
fn concurrent_appenders_lose_nothing() {
    let wanted = Geometry { durable_backed: 1 << 20, durable_capacity: 1 << 20, ..geometry(1) };
    let (_mapping, region, mut reader) = made(&wanted, Mode::Discard);
    let mut seen = vec![vec![]; 4];
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4u32)
            .map(|tid| {
                let region = &region;
                scope.spawn(move || {
                    for seq in 0..2_000 {
                        let thread = Thread { ticks: 0, tid, seq, name: b"name" };
                        region.append(&DurableRecord::Thread(thread)).unwrap();
                    }
                })
            })
            .collect();
        let mut read = || {
            reader.durable(&mut |record| {
                if let DurableRecord::Thread(thread) = record {
                    seen[thread.tid as usize].push(thread.seq);
                }
            })
        };
        while writers.iter().any(|writer| !writer.is_finished()) {
            assert_eq!(read().violations, 0);
        }
        assert_eq!(read().pending, 0);
    });
    for mut seqs in seen {
        seqs.sort_unstable();
        assert_eq!(seqs, (0..2_000).collect::<Vec<_>>());
    }
}

#[test]
fn bytes_that_are_no_region_are_refused() {
    let geometry = geometry(4);
    let (mapping, _region, _reader) = made(&geometry, Mode::Discard);
    // SAFETY: the mapping is at least as long as what is claimed, so nothing outside it is touched.
    let open = |len| unsafe { RegionReader::open(mapping.base, len) }.err();
    assert_eq!(open(mapping.len), None);
    assert_eq!(open(4096), Some(LayoutError::TooShort(2 * PAGE as u64, 4096)));
    assert!(matches!(open(mapping.len - 4096), Some(LayoutError::TooShort(..))));
    let word = |offset: usize| &mapping.words()[offset / 8];
    let order = std::sync::atomic::Ordering::Relaxed;
    for (offset, value, error) in [
        (0, MAGIC + 1, LayoutError::BadMagic(MAGIC + 1)),
        (8, 136 << 32 | u64::from(VERSION + 1), LayoutError::BadVersion(VERSION + 1)),
        (8, 137 << 32 | u64::from(VERSION), LayoutError::BadHeader("header length")),
        (64, 2 << 32 | 9, LayoutError::BadHeader("mode")),
        (64, 9 << 32 | 1, LayoutError::BadHeader("clock")),
        (96, u64::MAX, LayoutError::BadGeometry("total length")),
        (104, 0, LayoutError::BadGeometry("durable offset")),
        (112, 1 << 62, LayoutError::BadGeometry("durable capacity")),
        (120, 64, LayoutError::BadGeometry("chunks offset")),
        (128, 4 << 32 | 4097, LayoutError::BadGeometry("chunk size")),
        (128, 4096, LayoutError::BadGeometry("chunk capacity")),
    ] {
        let good = word(offset).swap(value, order);
        assert_eq!(open(mapping.len), Some(error), "word {offset}");
        word(offset).store(good, order);
    }
    assert_eq!(open(mapping.len), None);
}

#[test]
fn a_geometry_out_of_range_is_refused() {
    let mapping = Mapping::new(1 << 20);
    let good = geometry(4);
    let format = |geometry: &Geometry, len: usize, skew: usize| {
        let (mode, clock) = (Mode::Discard, ClockKind::Tsc);
        // SAFETY: the claimed range is inside the mapping.
        unsafe {
            let base = mapping.base.add(skew);
            Region::format(base, len, geometry, &rig::identity(), mode, clock, Anchor::default())
        }
        .err()
    };
    for bad in [
        Geometry { chunk_size: 2048, ..good },
        Geometry { chunk_size: 65536, ..good },
        Geometry { chunk_size: 5000, ..good },
        Geometry { chunk_capacity: 0, ..good },
        Geometry { chunk_capacity: 65536, ..good },
        Geometry { chunks_backed: 5, ..good },
        Geometry { durable_capacity: 100, ..good },
        Geometry { durable_capacity: u64::MAX - 4095, ..good },
        Geometry { durable_backed: 1 << 20, ..good },
        Geometry { durable_backed: 1, ..good },
    ] {
        assert!(matches!(format(&bad, mapping.len, 0), Some(LayoutError::BadGeometry(_))), "{bad:?}");
    }
    assert!(matches!(format(&good, good.total_len() - 1, 0), Some(LayoutError::TooShort(..))));
    assert_eq!(format(&good, good.total_len(), 8), Some(LayoutError::Unaligned));
    assert_eq!(format(&good, good.total_len(), 0), None);
}

/// A snapshot copies the records, and leaves them for the next snapshot and for a reader that takes them.
#[test]
fn a_look_takes_nothing() {
    let mapping = Mapping::new(geometry(4).total_len());
    let region = mapping.format(&geometry(4), Mode::Overwrite);
    let cursor = ThreadCursor::new();
    cursor.begin(1, 1);
    for number in 0..60 {
        let _ = write(&cursor, &region, 1, number, 20).unwrap();
    }
    for _ in 0..2 {
        let mut ledger = Ledger::default();
        ledger.drain(&mut mapping.open(), Pass::Look);
        assert_eq!((ledger.len(), ledger.stats.chunks), (60, 0));
    }
    let mut ledger = Ledger::default();
    ledger.drain(&mut mapping.open(), Pass::Live);
    assert_eq!(ledger.len(), 60);
    // What a reader has taken is gone, except from the chunk that is still being written.
    let mut rest = Ledger::default();
    rest.drain(&mut mapping.open(), Pass::Look);
    assert!(rest.len() < 24, "{}", rest.len());
}
