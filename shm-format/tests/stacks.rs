//! The stack codec round-trips, whatever interrupts the writer, whoever reads, whatever is lost; and no input makes the
//! decoder panic or return frames that were not written.
#![cfg(not(loom))]

mod rig;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;

use rig::interrupted::{Interrupted, STEPS};
use rig::stacks::{Decoders, Writer, grown};
use rig::{Mapping, Random, geometry, setting, tick};
use shm_format::{
    EncodedStack, Geometry, Loss, MAX_DEPTH, Mode, Pass, RecordKind, Repeat, StackChain, StackDecoder,
    StackHead, Step, ThreadCursor, Undecodable,
};

fn big() -> Geometry {
    Geometry { chunk_size: 16 * 1024, ..geometry(16) }
}

#[test]
fn stacks_survive_readers_that_come_and_go() {
    for seed in 1..=setting("SHM_STACK_SEEDS", 12) {
        let mapping = Mapping::new(big().total_len());
        let region = mapping.format(&big(), Mode::Discard);
        let mut random = Random(seed);
        let mut writers = [Writer::new(1), Writer::new(2), Writer::new(3)];
        let (mut reader, mut decoders) = (mapping.open(), Decoders::default());
        let mut seen = BTreeMap::new();
        for _ in 0..2_000 {
            writers[random.below(3) as usize].step(&region, &mut random);
            if random.below(40) == 0 {
                decoders.drain(&mut reader, Pass::Live, &mut seen);
            }
            if random.below(200) == 0 {
                // A successor has nothing but the region.
                (reader, decoders) = (mapping.open(), Decoders::default());
            }
        }
        decoders.drain(&mut reader, Pass::Final, &mut seen);
        assert_eq!(decoders.stats.torn + decoders.stats.violations, 0);
        assert_eq!((decoders.unlinked, decoders.malformed), (0, 0), "seed {seed}");
        let written: BTreeMap<_, _> = writers.iter().flat_map(Writer::written).collect();
        assert!(written.values().any(|(head, _)| head.source == Repeat::SOURCE));
        assert_eq!(seen.len(), written.len());
        assert_eq!(seen, written, "seed {seed}");
    }
}

#[test]
fn similar_stacks_are_short() {
    let mapping = Mapping::new(big().total_len());
    let region = mapping.format(&big(), Mode::Discard);
    let (mut random, mut writer) = (Random(7), Writer::new(1));
    for _ in 0..2_000 {
        writer.grow(&region, &mut random);
    }
    let (mut decoders, mut seen) = (Decoders::default(), BTreeMap::new());
    decoders.drain(&mut mapping.open(), Pass::Final, &mut seen);
    let frames: usize = seen.values().map(|(_, frames)| frames.len()).sum();
    let (raw, ours) =
        (8 * frames as u64 + 24 * seen.len() as u64, decoders.stats.bytes + 8 * seen.len() as u64);
    assert!(ours * 3 < raw, "{ours} bytes, {raw} as plain words");
}

#[test]
fn every_field_has_its_extremes() {
    let mapping = Mapping::new(big().total_len());
    let region = mapping.format(&big(), Mode::Discard);
    let mut writer = Writer::new(1);
    let flagged = [u64::MAX, 0, 1, 1 << 63, 7 << 61 | 0x7fff_ffff_ffff, 1 << 61, 0xff_ffff_ffff_ffff];
    let deepest: Vec<u64> = (0..MAX_DEPTH as u64).map(|at| at.wrapping_mul(0x9e37_79b9)).collect();
    let stacks: [&[u64]; 6] = [&[], &flagged, &[0; 9], &deepest[1..], &deepest, &deepest[500..]];
    for (weight, end, source, nonce) in [(1, 0, 0, 0), (0, 255, 255, u64::MAX), (u32::MAX, 1, 2, 1)] {
        for frames in stacks {
            let head = StackHead { weight, end, source, nonce };
            writer.write(&region, head, frames).unwrap();
        }
    }
    let mut seen = BTreeMap::new();
    let mut decoders = Decoders::default();
    decoders.drain(&mut mapping.open(), Pass::Final, &mut seen);
    assert_eq!(seen, writer.written().collect());
    let too_deep = vec![1; MAX_DEPTH + 1];
    let head = StackHead { weight: 1, end: 0, source: 0, nonce: 0 };
    assert_eq!(writer.write(&region, head, &too_deep), Err(Loss::TooLarge));
    assert_eq!(writer.cursor.lost(), 1);
}

/// Writes stacks; at the `skip + 1`st occurrence of `step`, a handler writes `nested` standalone stacks and then
/// returns, or leaves by a jump. Everything committed must be decoded.
fn interrupted(step: Step, skip: u32, nested: u64, jumps: bool) -> bool {
    interrupted_among(0, 32, step, skip, nested, jumps)
}

/// The same in a pool of `chunks` chunks, of which `idle` other threads keep some.
fn interrupted_among(idle: u32, chunks: u32, step: Step, skip: u32, nested: u64, jumps: bool) -> bool {
    let mapping = Mapping::new(geometry(chunks).total_len());
    let region = mapping.format(&geometry(chunks), Mode::Discard);
    for thread in 0..idle {
        let other = ThreadCursor::new();
        other.begin(100 + thread, 100 + thread);
        let _ = other.reserve(&region, RecordKind::Void, 1, tick).unwrap().commit();
    }
    let standalone = RefCell::new(BTreeMap::new());
    let cursor = ThreadCursor::new();
    cursor.begin(1, 1);
    let handler = |_: &Interrupted<'_>| {
        for number in 0..nested {
            let head = StackHead { weight: 1, end: 0, source: 9, nonce: 1 + number };
            let frames = grown(&mut Random(number + 77), &[1, 2, 3]);
            let _ = StackChain::new().write_standalone(&cursor, &region, head, &frames, tick).unwrap();
            standalone.borrow_mut().insert((1, head.nonce), (head, frames));
        }
        if jumps {
            resume_unwind(Box::new(()));
        }
    };
    let pool = Interrupted::new(&region, &handler);
    let (mut chain, mut random) = (StackChain::new(), Random(u64::from(skip) + 5));
    let (mut frames, mut written) = (vec![], BTreeMap::new());
    let mut doubtful = None;
    for number in 0..400u64 {
        if number == 70 {
            pool.plan(step, skip);
        }
        frames = grown(&mut random, &frames);
        let head = StackHead { weight: 1, end: 0, source: 1, nonce: 1000 + number };
        let write = || chain.write(&cursor, &pool, head, &frames, tick).map(drop);
        match catch_unwind(AssertUnwindSafe(write)) {
            Ok(result) => result.unwrap(),
            Err(_) => {
                doubtful = Some(head.nonce);
                continue;
            }
        }
        written.insert((1, head.nonce), (head, frames.clone()));
    }
    written.append(&mut standalone.borrow_mut());
    let (mut seen, mut decoders) = (BTreeMap::new(), Decoders::by_nonce());
    decoders.drain(&mut mapping.open(), Pass::Final, &mut seen);
    // A write abandoned by a jump is complete if it got that far, and otherwise missing.
    doubtful.map(|nonce| seen.remove(&(1, nonce)));
    assert_eq!((decoders.unlinked, decoders.malformed), (0, 0), "{step:?} {skip} {nested} {jumps}");
    assert_eq!(seen, written, "{step:?} {skip} {nested} {jumps}");
    pool.ran.get() > 0
}

#[test]
fn standalone_stacks_leave_the_chain_alone() {
    for step in STEPS {
        // At least three changes of chunk follow the seventieth stack.
        for skip in 0..3 {
            for nested in [1, 2, 60] {
                assert!(interrupted(step, skip, nested, false), "{step:?} never came");
            }
        }
    }
}

/// As many threads as chunks may be owned: each record takes a chunk and leaves it.
#[test]
fn records_in_lent_chunks_are_whole_wherever_they_are_interrupted() {
    for step in STEPS {
        for (skip, nested, jumps) in [(0, 1, false), (1, 2, false), (0, 1, true), (1, 60, true)] {
            assert!(interrupted_among(3584, 4096, step, skip, nested, jumps), "{step:?} never came");
        }
    }
}

#[test]
fn a_write_abandoned_by_longjmp_ends_its_chain() {
    for step in STEPS {
        for skip in 0..3 {
            for nested in [0, 1, 60] {
                assert!(interrupted(step, skip, nested, true), "{step:?} never came");
            }
        }
    }
}

/// Makes each record of a chunk void in turn: what refers to it is unlinked, and nothing is decoded wrongly.
#[test]
fn stacks_after_a_missing_one_are_unlinked_and_never_wrong() {
    let mut unlinked = 0;
    for victim in 0..40 {
        let mapping = Mapping::new(geometry(8).total_len());
        let region = mapping.format(&geometry(8), Mode::Discard);
        let (mut random, mut writer) = (Random(11), Writer::new(1));
        for _ in 0..60 {
            writer.grow(&region, &mut random);
        }
        let chunk = &mapping.words()[geometry(8).chunk_offset(0) / 8 + 8..][..geometry(8).chunk_words()];
        let mut at = 0;
        for _ in 0..victim {
            at += (chunk[at].load(Ordering::Relaxed) >> 50 & 0xfff) as usize;
        }
        if chunk[at].load(Ordering::Relaxed) == 0 {
            break;
        }
        chunk[at].fetch_and(!(0x1f << 44), Ordering::Relaxed);
        let (mut seen, mut decoders) = (BTreeMap::new(), Decoders::default());
        decoders.drain(&mut mapping.open(), Pass::Final, &mut seen);
        assert_eq!(decoders.malformed, 0);
        let written: BTreeMap<_, _> = writer.written().collect();
        assert_eq!(seen.len() as u64 + 1 + decoders.unlinked, written.len() as u64);
        assert!(seen.iter().all(|(key, stack)| written.get(key) == Some(stack)), "wrong frames: {victim}");
        unlinked += decoders.unlinked;
    }
    assert!(unlinked > 0, "the test had nothing to look at");
}

/// Payloads of a chain, in order.
fn payloads() -> Vec<(u64, Vec<u8>)> {
    let mapping = Mapping::new(big().total_len());
    let region = mapping.format(&big(), Mode::Discard);
    let (mut random, mut writer) = (Random(3), Writer::new(1));
    for _ in 0..60 {
        writer.grow(&region, &mut random);
    }
    let mut payloads = Vec::new();
    mapping.open().drain(Pass::Final, &mut [0; 16384], &mut |_, record| {
        payloads.push((record.sequence, record.payload.to_vec()));
    });
    payloads
}

/// Decodes one payload after the preceding chain; returns the frames if it is accepted.
fn decode_after(before: &[(u64, Vec<u8>)], sequence: u64, payload: &[u8]) -> Result<Vec<u64>, Undecodable> {
    let (mut decoder, mut frames) = (StackDecoder::new(), vec![0; MAX_DEPTH]);
    for (sequence, payload) in before {
        decoder.decode(&EncodedStack::parse(payload).unwrap(), *sequence, &mut frames).unwrap();
    }
    let stack = EncodedStack::parse(payload).ok_or(Undecodable::Malformed)?;
    assert!(stack.depth() <= MAX_DEPTH);
    if stack.is_standalone() {
        stack.decode_standalone(&mut frames)?;
    } else {
        decoder.decode(&stack, sequence, &mut frames)?;
    }
    Ok(frames[..stack.depth()].to_vec())
}

#[test]
fn no_other_length_is_accepted() {
    let payloads = payloads();
    for (at, (sequence, payload)) in payloads.iter().enumerate() {
        let before = &payloads[..at];
        assert!(decode_after(before, *sequence, payload).is_ok());
        for len in 0..payload.len() {
            // If less than a word is missing, that may be padding, which the ring cannot express.
            let cut = decode_after(before, *sequence, &payload[..len]);
            assert!(cut.is_err() || payload[len..].iter().all(|byte| *byte == 0), "{at} cut to {len}");
        }
        for more in [[0; 8], [1; 8], [0, 0, 0, 0, 0, 0, 0, 1]] {
            assert!(decode_after(before, *sequence, &[&payload[..], &more].concat()).is_err());
        }
        if at > 0 {
            let elsewhere = decode_after(before, *sequence + 1, payload);
            assert_eq!(elsewhere, Err(Undecodable::Unlinked));
        }
    }
}

/// In one small module no record is wide, not even a chunk's first stack.
#[test]
fn each_chunk_begins_at_zero() {
    let mapping = Mapping::new(geometry(32).total_len());
    let region = mapping.format(&geometry(32), Mode::Discard);
    let (mut random, mut writer) = (Random(5), Writer::new(1));
    for _ in 0..300 {
        let frames: Vec<u64> = (0..20).map(|_| 0x1000 + random.below(1 << 20)).collect();
        writer.write(&region, StackHead { weight: 1, end: 0, source: 2, nonce: 0 }, &frames).unwrap();
    }
    let (mut seen, mut decoders) = (BTreeMap::new(), Decoders::default());
    decoders.drain(&mut mapping.open(), Pass::Final, &mut seen);
    assert_eq!(decoders.malformed, 0);
    assert_eq!(seen, writer.written().collect());
}

/// There is exactly one encoding of a stack.
#[test]
fn only_the_canonical_encoding_is_accepted() {
    const FIRST: u8 = 1;
    const WIDE: u8 = 1 << 5;
    let frame = 0x1234_u64;
    let index = ((frame as u32).wrapping_mul(0x9e37_79b9) >> 24) as u8;
    let near = 8 * frame as u32;
    let decode = |parts: &[&[u8]]| {
        let mut payload = parts.concat();
        payload.resize(payload.len().next_multiple_of(8), 0);
        decode_after(&[], 0, &payload)
    };
    let malformed = Err(Undecodable::Malformed);
    assert_eq!(decode(&[&[FIRST, 0, 1, 0], &near.to_le_bytes()]), Ok(vec![frame]));
    // Eight bytes where four would do.
    assert_eq!(decode(&[&[FIRST | WIDE, 0, 1, 0], &frame.to_le_bytes()]), malformed);
    let far = 1_u64 << 40;
    assert_eq!(decode(&[&[FIRST | WIDE, 0, 1, 0], &far.to_le_bytes()]), Ok(vec![far]));
    // A literal for a frame in the table; an index of an empty entry, or of another frame.
    assert_eq!(decode(&[&[FIRST, 0, 2, 0, index], &near.to_le_bytes()]), Ok(vec![frame, frame]));
    assert_eq!(decode(&[&[FIRST, 0, 2, 0, 0], &near.to_le_bytes(), &[0; 4]]), malformed);
    assert_eq!(decode(&[&[FIRST, 0, 1, index]]), malformed);
    assert_eq!(decode(&[&[FIRST, 0, 2, 0, index ^ 1], &near.to_le_bytes()]), malformed);
    // Frame 0 hashes to index 0, which means "literal".
    assert_eq!(decode(&[&[FIRST, 0, 2, 0, 0], &[0; 8]]), Ok(vec![0, 0]));
    // Wide without a literal frame, or in a standalone record.
    assert_eq!(decode(&[&[FIRST, 0, 0]]), Ok(vec![]));
    assert_eq!(decode(&[&[FIRST | WIDE, 0, 0]]), malformed);
    assert_eq!(decode(&[&[0, 0, 1], &far.to_le_bytes()]), Ok(vec![far]));
    assert_eq!(decode(&[&[WIDE, 0, 1], &far.to_le_bytes()]), malformed);
}

#[test]
fn hostile_bytes_cause_neither_panics_nor_endless_loops() {
    let payloads = payloads();
    let mut random = Random(99);
    for _ in 0..setting("SHM_HOSTILE_ROUNDS", 20_000) {
        let at = random.below(payloads.len() as u64) as usize;
        let mut payload = payloads[at].1.clone();
        for _ in 0..=random.below(4) {
            let at = random.below(payload.len() as u64) as usize;
            payload[at] = match random.below(4) {
                0 => payload[at] ^ 1 << random.below(8),
                1 => 0xff,
                2 => 0,
                _ => random.next() as u8,
            };
        }
        let from = at.saturating_sub(random.below(6) as usize);
        let before = if from == 0 { &payloads[..at] } else { &[] };
        let _ = decode_after(before, payloads[at].0, &payload);
        let noise: Vec<u8> = (0..random.below(64)).map(|_| random.next() as u8).collect();
        let _ = decode_after(&[], 0, &noise);
    }
}
