//! Hostile bytes: whatever the region contains, the reader terminates, does not panic, and stays in bounds; so does the
//! writer, whatever happens to the words it uses.
//!
//! `SHM_HOSTILE_ROUNDS` sets the length.
#![cfg(not(loom))]

mod rig;

use std::sync::atomic::{AtomicBool, Ordering};

use rig::{Mapping, Random, setting, tick};
use shm_format::record::{Module, Process, Segment, Segments, Thread};
use shm_format::{
    DurableRecord, EncodedStack, Geometry, LayoutError, MAX_DEPTH, Mode, Pass, RecordKind, Region,
    RegionReader, StackChain, StackDecoder, StackHead, ThreadCursor,
};

const SMALL: Geometry = Geometry {
    chunk_size: 4096,
    chunk_capacity: 3,
    chunks_backed: 3,
    durable_capacity: 4096,
    durable_backed: 4096,
};

/// Puts some of everything into a region.
fn populate(region: &Region) {
    let cursor = ThreadCursor::new();
    cursor.begin(1, 1);
    let mut chain = StackChain::new();
    for number in 0..70u64 {
        let head = StackHead { weight: 1, end: 0, source: 1, nonce: number };
        let frames: [u64; 10] = std::array::from_fn(|at| number.wrapping_mul(0x9e37_79b9 << at) >> 8);
        let _ = chain.write(&cursor, region, head, &frames, tick);
    }
    std::mem::forget(cursor.reserve(region, RecordKind::Stack, 7, tick));
    let segments = [Segment { address: 1, len: 2, page_offset: 3, flags: 5, reserved: 0 }];
    let records = [
        DurableRecord::Process(Process { exe: b"/bin/true", argv: b"true\0", ..Process::default() }),
        DurableRecord::Module(Module {
            path: b"/lib",
            segments: Segments::new(&segments),
            ..Module::default()
        }),
        DurableRecord::Thread(Thread { name: b"name", ..Thread::default() }),
    ];
    for record in records {
        region.append(&record).unwrap();
    }
}

/// Everything that a reader does, with the bounds that hold for any content.
fn read_all(reader: &mut RegionReader) {
    let geometry = *reader.geometry();
    let mut scratch = vec![0; geometry.chunk_size as usize];
    let (mut decoder, mut frames) = (StackDecoder::new(), vec![0; MAX_DEPTH]);
    for pass in [Pass::Live, Pass::Live, Pass::Final] {
        let most = u64::from(geometry.chunk_capacity) * geometry.chunk_words() as u64;
        let stats = reader.drain(pass, &mut scratch, &mut |_, record| {
            assert!(record.payload.len() < geometry.chunk_size as usize);
            if let Some(stack) = EncodedStack::parse(record.payload) {
                assert!(stack.depth() <= MAX_DEPTH);
                let _ = decoder.decode(&stack, record.sequence, &mut frames);
                let _ = stack.decode_standalone(&mut frames);
            }
        });
        assert!(stats.records + stats.torn + stats.void + stats.unknown <= most + 3, "{stats:?}");
        let mut records = 0;
        let stats = reader.durable(&mut |record| {
            records += 1;
            if let DurableRecord::Module(module) = record {
                assert!(module.segments.iter().count() < 1000);
            }
        });
        assert!(stats.records == records && records <= geometry.durable_capacity / 8, "{stats:?}");
    }
    reader.retire(1, 1);
    let counters = reader.counters();
    let _ = (counters.cut_short(), counters.lost_total(), counters.skipped_total(), reader.has_complete());
}

fn open(mapping: &Mapping) -> Result<RegionReader, LayoutError> {
    // SAFETY: the mapping has the claimed length and outlives the reader.
    unsafe { RegionReader::open(mapping.base, mapping.len) }
}

/// A value that is likely to do damage.
fn poison(random: &mut Random, old: u64) -> u64 {
    match random.below(8) {
        0 => random.next(),
        1 => old ^ 1 << random.below(64),
        2 => old.wrapping_add(1),
        3 => old.wrapping_sub(1),
        4 => u64::MAX,
        5 => 0,
        6 => old.rotate_left(random.below(64) as u32),
        _ => old & random.next(),
    }
}

/// The interesting words: headers, control, bitmap, log, chunk headers, record headers.
fn target(random: &mut Random, words: usize) -> usize {
    let chunk = SMALL.chunk_offset(random.below(3) as u32) / 8;
    let at = match random.below(8) {
        0 => random.below(20),
        1 => 512 + random.below(288),
        2 => 1024 + random.below(2),
        3 => SMALL.durable_offset() as u64 / 8 + random.below(60),
        4 | 5 => chunk as u64 + random.below(8),
        6 => chunk as u64 + 8 + 13 * random.below(38),
        _ => random.below(words as u64),
    };
    at as usize
}

#[test]
fn changed_regions_never_hurt_the_reader() {
    let mut random = Random(setting("SHM_SEED", 0xbad));
    let mapping = Mapping::new(SMALL.total_len());
    populate(&mapping.format(&SMALL, Mode::Discard));
    let good = mapping.bytes().to_vec();
    let mut opened = 0;
    for _ in 0..setting("SHM_HOSTILE_ROUNDS", 3_000) {
        for (word, bytes) in mapping.words().iter().zip(good.chunks_exact(8)) {
            word.store(u64::from_le_bytes(bytes.try_into().unwrap()), Ordering::Relaxed);
        }
        for _ in 0..1 + random.below(6) {
            let word = &mapping.words()[target(&mut random, mapping.len / 8)];
            word.store(poison(&mut random, word.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
        if let Ok(mut reader) = open(&mapping) {
            opened += 1;
            read_all(&mut reader);
        }
    }
    assert!(opened > 500);
}

#[test]
fn random_bytes_behind_a_good_header_never_hurt_the_reader() {
    let mut random = Random(setting("SHM_SEED", 0xdead));
    let mapping = Mapping::new(SMALL.total_len());
    let _region = mapping.format(&SMALL, Mode::Overwrite);
    for _ in 0..setting("SHM_HOSTILE_ROUNDS", 3_000) / 10 {
        for word in &mapping.words()[512..] {
            word.store(random.next() & random.next(), Ordering::Relaxed);
        }
        read_all(&mut open(&mapping).unwrap());
    }
}

/// Another process may change anything at any time: reader and writers continue within their bounds.
#[test]
fn a_live_mutator_hurts_neither_side() {
    let mapping = Mapping::new(SMALL.total_len() + 8192);
    let region = mapping.format(&SMALL, Mode::Overwrite);
    let (inside, guard) = mapping.words().split_at(SMALL.total_len() / 8);
    for word in guard {
        word.store(0x5a5a_5a5a, Ordering::Relaxed);
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(setting("SHM_SEED", 0xf00d));
            while !stop.load(Ordering::Relaxed) {
                // Not page 0, which is checked once, when the region is opened.
                let at = target(&mut random, inside.len()).max(512);
                inside[at].store(poison(&mut random, inside[at].load(Ordering::Relaxed)), Ordering::Relaxed);
            }
        });
        let writers: Vec<_> = (0..2u32)
            .map(|thread| {
                let region = &region;
                scope.spawn(move || {
                    let mut random = Random(u64::from(thread) + 1);
                    for round in 0..setting("SHM_HOSTILE_ROUNDS", 3_000) * 2 {
                        let cursor = ThreadCursor::new();
                        cursor.begin(thread, round as u32);
                        for _ in 0..random.below(40) {
                            if let Ok(mut record) =
                                cursor.reserve(region, RecordKind::Stack, random.below(500) as usize, tick)
                            {
                                record.copy_from(0, &[1; 600]);
                                record.set(700, 1);
                                let _ = record.commit();
                            }
                        }
                        let _ = cursor.close(region);
                        let _ = region.append(&DurableRecord::Thread(Thread::default()));
                    }
                })
            })
            .collect();
        let mut reader = open(&mapping).unwrap();
        while writers.iter().any(|writer| !writer.is_finished()) {
            read_all(&mut reader);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(guard.iter().all(|word| word.load(Ordering::Relaxed) == 0x5a5a_5a5a), "written out of bounds");
}
