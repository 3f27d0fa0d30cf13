//! Requests from outside: another process asks a thread of this one for its stack, without stopping any thread.
//!
//! The requester fills a slot, sends the thread the sampling signal with the slot's nonce, and waits. The thread's
//! handler, whatever made it run, looks for slots that ask its thread, walks once, and writes the stack next to each of
//! them. Answers have memory of their own, so they do not compete with the readers of the pool.
//!
//! A nonce is `tag:32 | serial:28 | slot:4`; a slot's word is the same with the phase in place of the slot. Serials
//! only increase, so a signal that arrives late is still recognised as that of a past request, and is not mistaken for
//! a signal of the program.
//!
//! Neither side trusts a word here: the writer takes positions from its private geometry, the requester copies and
//! checks.

use crate::atomic::{AtomicU64, Ordering};
use crate::layout::{ANSWER_BYTES, REQUEST_SLOTS, RequestLine, RequestSlot};
use crate::region::Region;

const ANSWER_WORDS: usize = ANSWER_BYTES / 8;
const SLOT_BITS: u64 = 4;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
const SERIAL_MASK: u64 = (1 << 28) - 1;
const ALL: u64 = (1 << REQUEST_SLOTS) - 1;

const _: () = assert!(REQUEST_SLOTS == 1 << SLOT_BITS);

/// The slot is unused.
const FREE: u64 = 0;
/// The requester waits for an answer.
const ASKED: u64 = 1;
/// A handler is writing the answer.
const ANSWERING: u64 = 2;
/// The answer is complete.
const ANSWERED: u64 = 3;

const SENDING: u64 = 1 << 32;

/// The upper half of every nonce of a region: random, with the top bit set, unlike pointers and small numbers.
const fn tag_of(region_nonce: u64) -> u64 {
    (region_nonce >> 32 ^ region_nonce) << 32 | 1 << 63
}

/// Identifies one request of a region, uniquely. Sent as the value of the signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Nonce(pub u64);

impl Nonce {
    const fn slot(self) -> usize {
        (self.0 & SLOT_MASK) as usize
    }

    const fn word(self, phase: u64) -> u64 {
        self.0 & !SLOT_MASK | phase
    }

    const fn serial(self) -> u64 {
        self.0 >> SLOT_BITS & SERIAL_MASK
    }
}

/// Why the handler ran that gave an answer: the trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Trigger {
    /// The request's own signal.
    Request = 0,
    /// A tick of the recording, due anyway.
    Tick = 1,
    /// A signal sent by the program.
    Foreign = 2,
}

impl Trigger {
    /// The trigger with this number, if there is one.
    #[must_use]
    pub const fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            0 => Some(Self::Request),
            1 => Some(Self::Tick),
            2 => Some(Self::Foreign),
            _ => None,
        }
    }
}

/// The fixed part of an answer, before its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerHead {
    /// The thread that answered.
    pub tid: u32,
    /// Its number in the region.
    pub thread_seq: u32,
    /// Number of frames.
    pub depth: u16,
    /// Why the walk ended, as in a stack record.
    pub end: u8,
    /// Why the handler ran.
    pub trigger: Trigger,
    /// Ticks at the handler's entry.
    pub entered: u64,
    /// Ticks at the end of the walk.
    pub walked: u64,
}

impl AnswerHead {
    /// The nonce and the head.
    const WORDS: usize = 5;
    /// Maximum number of frames in an answer.
    pub const MAX_FRAMES: usize = ANSWER_WORDS - Self::WORDS;

    fn words(&self, nonce: Nonce) -> [u64; Self::WORDS] {
        let thread = u64::from(self.tid) | u64::from(self.thread_seq) << 32;
        let walk = u64::from(self.depth) | u64::from(self.end) << 16 | u64::from(self.trigger as u8) << 24;
        [nonce.0, thread, walk, self.entered, self.walked]
    }

    fn from_words(words: [u64; Self::WORDS]) -> Option<Self> {
        let [_, thread, walk, entered, walked] = words;
        Some(Self {
            tid: thread as u32,
            thread_seq: (thread >> 32) as u32,
            depth: walk as u16,
            end: (walk >> 16) as u8,
            trigger: Trigger::from_raw((walk >> 24) as u8).filter(|_| walk >> 32 == 0)?,
            entered,
            walked,
        })
    }
}

/// The writer's side. Nothing here waits, and no position comes from a shared word.
impl Region {
    /// Whether any request may be open. A single load.
    #[inline]
    #[must_use]
    pub fn has_requests(&self) -> bool {
        self.control().request.asked.load(Ordering::Relaxed) & ALL != 0
    }

    /// Whether a request to thread `tid` may be open.
    #[must_use]
    pub fn asks(&self, tid: u32) -> bool {
        let asked = |slot: &RequestSlot| {
            slot.word.load(Ordering::Acquire) & SLOT_MASK == ASKED
                && slot.thread.load(Ordering::Relaxed) as u32 == tid
        };
        self.has_requests() && self.control().requests.iter().any(asked)
    }

    /// Whether a request with this nonce was ever made.
    #[must_use]
    pub fn was_requested(&self, nonce: Nonce) -> bool {
        let tag = tag_of(self.nonce());
        let Some(slot) = self.control().requests.get(nonce.slot()) else { return false };
        let word = slot.word.load(Ordering::Acquire);
        let issued = Nonce(word).serial();
        nonce.0 >> 32 == tag >> 32 && word >> 32 == tag >> 32 && (1..=issued).contains(&nonce.serial())
    }

    /// Answers every request to thread `head.tid` with this stack; returns their number. Frames that do not fit are
    /// dropped.
    pub fn answer(&self, head: &AnswerHead, frames: &[u64]) -> u32 {
        let control = self.control();
        let Some(answers) = self.answers() else { return 0 };
        let asked = control.request.asked.load(Ordering::Acquire) & ALL;
        let mut answered = 0;
        for (index, (slot, space)) in
            control.requests.iter().zip(answers.chunks_exact(ANSWER_WORDS)).enumerate()
        {
            if asked & 1 << index == 0 {
                continue;
            }
            let word = slot.word.load(Ordering::Acquire);
            let nonce = Nonce(word & !SLOT_MASK | index as u64);
            let is_ours = word >> 32 == tag_of(self.nonce()) >> 32;
            if word & SLOT_MASK != ASKED || !is_ours || slot.thread.load(Ordering::Relaxed) as u32 != head.tid
            {
                continue;
            }
            // Acquire: the requester has stopped using the answer's memory.
            if !slot.exchange(word, nonce.word(ANSWERING)) {
                continue;
            }
            control.request.asked.fetch_and(!(1 << index), Ordering::Relaxed);
            write(space, nonce, head, frames);
            // Release: the answer before the phase. Fails if the requester has been replaced; then nobody waits.
            if slot.exchange(nonce.word(ANSWERING), nonce.word(ANSWERED)) {
                control.request.answered.fetch_add(1, Ordering::Relaxed);
                answered += 1;
            }
        }
        answered
    }

    /// Counts a signal whose request is no longer open.
    pub fn count_late_request(&self) {
        self.control().request.late.fetch_add(1, Ordering::Relaxed);
    }

    /// Says whether signals must not be sent, because the program about to be executed has no handler for them. After
    /// closing, wait for a limited time until [`is_being_asked`](Self::is_being_asked) is false.
    pub fn close_requests(&self, closed: bool) {
        self.control().request.closed.store(closed.into(), Ordering::SeqCst);
    }

    /// Whether a requester that passed the check before it was closed may still send a signal.
    #[must_use]
    pub fn is_being_asked(&self) -> bool {
        // Sequentially consistent with `close_requests` here and `send` there: either the requester sees that requests
        // are closed, or this sees the requester.
        self.control().requests.iter().any(|slot| slot.thread.load(Ordering::SeqCst) & SENDING != 0)
    }
}

impl RequestSlot {
    fn exchange(&self, old: u64, new: u64) -> bool {
        self.word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

fn write(space: &[AtomicU64], nonce: Nonce, head: &AnswerHead, frames: &[u64]) {
    let frames = frames.get(..AnswerHead::MAX_FRAMES).unwrap_or(frames);
    let head = AnswerHead { depth: frames.len() as u16, ..*head };
    let words = head.words(nonce);
    for (word, value) in space.iter().zip(words.iter().chain(frames)) {
        word.store(*value, Ordering::Relaxed);
    }
}

/// Progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The thread has not responded yet.
    Waiting,
    /// The thread is writing the answer, or died while doing so.
    Writing,
    /// The answer is complete.
    Answered,
    /// Another process has changed the slot.
    Lost,
}

/// The requester's view: request slots and answers of a region.
///
/// A slot is used by one requester at a time, which file locks ensure.
pub struct Requests<'a> {
    pub(crate) line: &'a RequestLine,
    pub(crate) slots: &'a [RequestSlot; REQUEST_SLOTS],
    pub(crate) answers: &'a [AtomicU64],
    pub(crate) region_nonce: u64,
}

impl Requests<'_> {
    /// Asks thread `tid` through `slot`, whose lock the caller holds. `None` if a handler is still writing there, or
    /// the slot has no serials left. Call [`send`](Self::send) next.
    #[must_use]
    pub fn ask(&self, slot: usize, tid: u32) -> Option<Nonce> {
        let line = self.slots.get(slot)?;
        let before = line.word.load(Ordering::Acquire);
        let tag = tag_of(self.region_nonce);
        // Zero, or left by an earlier requester; any other value is invalid and restarts the serials.
        let serial = if before >> 32 == tag >> 32 { Nonce(before).serial() + 1 } else { 1 };
        if serial > SERIAL_MASK || before & SLOT_MASK == ANSWERING {
            return None;
        }
        let nonce = Nonce(tag | serial << SLOT_BITS | slot as u64);
        line.thread.store(tid.into(), Ordering::Relaxed);
        // Release: the thread before the phase.
        if !line.exchange(before, nonce.word(ASKED)) {
            return None;
        }
        self.line.asked.fetch_or(1 << slot, Ordering::SeqCst);
        Some(nonce)
    }

    /// Calls `send` to send the signal of a request, unless the process is closed to signals; then `None`. `send` must
    /// do nothing else.
    pub fn send<R>(&self, nonce: Nonce, send: impl FnOnce() -> R) -> Option<R> {
        let slot = self.slots.get(nonce.slot())?;
        slot.thread.fetch_or(SENDING, Ordering::SeqCst);
        let sent = (!self.is_closed()).then(send);
        slot.thread.fetch_and(!SENDING, Ordering::SeqCst);
        sent
    }

    /// Progress of the request.
    #[must_use]
    pub fn progress(&self, nonce: Nonce) -> Progress {
        let word = self.slots.get(nonce.slot()).map_or(0, |slot| slot.word.load(Ordering::Acquire));
        match word & SLOT_MASK {
            _ if word & !SLOT_MASK != nonce.word(0) => Progress::Lost,
            ASKED => Progress::Waiting,
            ANSWERING => Progress::Writing,
            ANSWERED => Progress::Answered,
            _ => Progress::Lost,
        }
    }

    /// Copies a complete answer into `frames`; `None` if it is not an answer to `nonce`.
    #[must_use]
    pub fn take(&self, nonce: Nonce, frames: &mut [u64; AnswerHead::MAX_FRAMES]) -> Option<AnswerHead> {
        let space = self.answers.chunks_exact(ANSWER_WORDS).nth(nonce.slot())?;
        let (head_words, frame_words) = space.split_at_checked(AnswerHead::WORDS)?;
        let mut words = [0; AnswerHead::WORDS];
        for (copy, word) in words.iter_mut().zip(head_words) {
            *copy = word.load(Ordering::Relaxed);
        }
        let head = AnswerHead::from_words(words).filter(|_| words[0] == nonce.0)?;
        for (copy, word) in frames.get_mut(..head.depth.into())?.iter_mut().zip(frame_words) {
            *copy = word.load(Ordering::Relaxed);
        }
        Some(head)
    }

    /// Withdraws the request; false if it has been answered meanwhile, or is just being answered.
    pub fn withdraw(&self, nonce: Nonce) -> bool {
        let Some(slot) = self.slots.get(nonce.slot()) else { return false };
        let withdrawn = slot.exchange(nonce.word(ASKED), nonce.word(FREE));
        if withdrawn {
            self.line.asked.fetch_and(!(1 << nonce.slot()), Ordering::Relaxed);
        }
        withdrawn
    }

    /// Whether no signal must be sent now.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.line.closed.load(Ordering::SeqCst) != 0
    }

    /// Counters of the process: requests answered since the region was made, and signals that arrived too late.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.line.answered.load(Ordering::Relaxed), self.line.late.load(Ordering::Relaxed))
    }
}
