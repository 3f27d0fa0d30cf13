//! Requests from outside: one answer per request, from the thread that was asked, in its own memory; late and forged
//! signals are distinguished; hostile words cost answers and nothing else.

mod rig;

use std::sync::atomic::Ordering;

use rig::{Mapping, geometry};
use shm_format::{
    ANSWERS_LEN, AnswerHead, Mode, Nonce, Progress, REQUEST_SLOTS, Region, RegionReader, Trigger,
};

const TID: u32 = 4711;

fn mapping() -> Mapping {
    Mapping::new(geometry(8).total_len() + ANSWERS_LEN)
}

fn pair(mapping: &Mapping) -> (Region, RegionReader) {
    (mapping.format(&geometry(8), Mode::Discard), mapping.open())
}

fn head(tid: u32) -> AnswerHead {
    AnswerHead { tid, thread_seq: 3, depth: 0, end: 2, trigger: Trigger::Tick, entered: 77, walked: 99 }
}

fn frames() -> Box<[u64; AnswerHead::MAX_FRAMES]> {
    vec![0; AnswerHead::MAX_FRAMES].try_into().unwrap()
}

#[test]
fn a_request_is_answered_once() {
    let mapping = mapping();
    let (region, reader) = pair(&mapping);
    let requests = reader.requests().unwrap();
    assert!(!region.has_requests());
    let nonce = requests.ask(5, TID).unwrap();
    assert!(region.has_requests() && region.was_requested(nonce));
    assert_eq!(requests.progress(nonce), Progress::Waiting);
    assert_eq!(region.answer(&head(TID + 1), &[1, 2]), 0, "another thread");
    assert_eq!(region.answer(&head(TID), &[1, 2, 3]), 1);
    assert_eq!(region.answer(&head(TID), &[4]), 0, "nobody asks any more");
    assert!(!region.has_requests());
    assert_eq!(requests.progress(nonce), Progress::Answered);
    let mut frames = frames();
    assert_eq!(requests.take(nonce, &mut frames), Some(AnswerHead { depth: 3, ..head(TID) }));
    assert_eq!(frames[..4], [1, 2, 3, 0]);
    assert_eq!(requests.counts(), (1, 0));
}

#[test]
fn one_walk_answers_all_open_requests() {
    let mapping = mapping();
    let (region, reader) = pair(&mapping);
    let requests = reader.requests().unwrap();
    let nonces: Vec<Nonce> = (0..REQUEST_SLOTS).map(|slot| requests.ask(slot, TID).unwrap()).collect();
    assert_eq!(region.answer(&head(TID), &[7; 2000]), REQUEST_SLOTS as u32);
    for nonce in nonces {
        let mut frames = frames();
        let head = requests.take(nonce, &mut frames).unwrap();
        assert_eq!(usize::from(head.depth), AnswerHead::MAX_FRAMES, "what does not fit is left out");
        assert!(frames.iter().all(|frame| *frame == 7));
    }
}

#[test]
fn late_signals_are_recognised_and_forged_ones_are_not() {
    let mapping = mapping();
    let (region, reader) = pair(&mapping);
    let requests = reader.requests().unwrap();
    for value in [0, 1, 0x10, u64::MAX, 1 << 63] {
        assert!(!region.was_requested(Nonce(value)), "{value:#x}");
    }
    let first = requests.ask(0, TID).unwrap();
    assert!(requests.withdraw(first) && !requests.withdraw(first));
    assert!(!region.has_requests() && region.answer(&head(TID), &[1]) == 0);
    assert_eq!(requests.progress(first), Progress::Lost);
    let second = requests.ask(0, TID).unwrap();
    assert_ne!(first, second);
    assert!(region.was_requested(first) && region.was_requested(second), "however late");
    // The next one of this slot, any of another slot, another region's.
    for forged in [second.0 + 16, second.0 + 1, second.0 ^ 1 << 40] {
        assert!(!region.was_requested(Nonce(forged)), "{forged:#x}");
    }
}

#[test]
fn a_slot_is_not_reused_while_a_handler_writes() {
    let mapping = mapping();
    let (_region, reader) = pair(&mapping);
    let requests = reader.requests().unwrap();
    let nonce = requests.ask(2, TID).unwrap();
    // The handler has begun and does not continue.
    let word = mapping.words()[(4096 + 2432) / 8 + 2 * 2].swap(nonce.0 & !15 | 2, Ordering::Relaxed);
    assert_eq!(word, nonce.0 & !15 | 1);
    assert_eq!(requests.progress(nonce), Progress::Writing);
    assert!(!requests.withdraw(nonce) && requests.ask(2, TID).is_none());
    assert!(requests.ask(3, TID).is_some());
}

#[test]
fn no_signal_is_sent_once_requests_are_closed() {
    let mapping = mapping();
    let (region, reader) = pair(&mapping);
    let requests = reader.requests().unwrap();
    let nonce = requests.ask(0, TID).unwrap();
    assert!(!region.is_being_asked());
    let sent = requests.send(nonce, || {
        region.close_requests(true);
        region.is_being_asked()
    });
    assert_eq!(sent, Some(true), "the one who closes sees who is sending");
    assert!(!region.is_being_asked() && requests.is_closed());
    assert_eq!(requests.send(nonce, || ()), None);
    region.close_requests(false);
    assert_eq!(requests.send(nonce, || ()), Some(()));
    assert_eq!(region.answer(&head(TID), &[1]), 1);
}

#[test]
fn regions_without_memory_for_answers_take_no_requests() {
    let mapping = Mapping::new(geometry(8).total_len());
    let (region, reader) = pair(&mapping);
    assert!(reader.requests().is_none());
    assert_eq!(region.answer(&head(TID), &[1]), 0);
}

/// Whatever the words say, the writer stays within its answers and the reader within its buffer.
#[test]
fn hostile_words_hurt_neither_side() {
    let mapping = Mapping::new(geometry(8).total_len() + ANSWERS_LEN + 8192);
    let (region, reader) = pair(&mapping);
    let requests = reader.requests().unwrap();
    let (inside, guard) = mapping.words().split_at((geometry(8).total_len() + ANSWERS_LEN) / 8);
    let control = 4096 / 8;
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut answered = 0;
    for _ in 0..20_000 {
        let slot = (random() % REQUEST_SLOTS as u64) as usize;
        let nonce = requests.ask(slot, TID).unwrap_or(Nonce(random()));
        for _ in 0..3 {
            let at = control + (2304 + (random() % 384) as usize) / 8;
            inside[at].store(inside[at].load(Ordering::Relaxed) ^ random() & random(), Ordering::Relaxed);
        }
        answered += region.answer(&head(TID), &[9; 1500]);
        let word = (geometry(8).total_len() / 8) + slot * 1024 + (random() % 5) as usize;
        inside[word].store(random(), Ordering::Relaxed);
        let _ = (requests.progress(nonce), requests.take(nonce, &mut frames()), requests.withdraw(nonce));
        let _ = (region.was_requested(nonce), region.has_requests(), requests.is_closed());
    }
    assert!(answered > 100, "{answered}");
    assert!(guard.iter().all(|word| word.load(Ordering::Relaxed) == 0), "written out of bounds");
}
