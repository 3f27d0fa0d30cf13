//! Requests from outside: another process asks a thread of this one for its stack, and gets it without stopping
//! anybody.
//!
//! The requester fills a slot, sends the sampling signal with the slot's nonce, and waits. The handler of the asked
//! thread, for whatever reason it runs, looks for slots that ask its thread, walks once, and writes the stack beside
//! each of them. Answers have memory of their own, so no reader of the pool competes for them.
//!
//! A nonce is `tag:32 | serial:28 | slot:4`; a slot's word is the same with the phase in place of the slot. Serials
//! only rise, so a signal that comes late is still known as a request that once was, and is not taken for a signal
//! of the program's.
//!
//! Neither side trusts a word here: the writer takes places from its private geometry, the requester copies and
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

/// Nobody asks.
const FREE: u64 = 0;
/// The requester waits.
const ASKED: u64 = 1;
/// A handler writes the answer.
const ANSWERING: u64 = 2;
/// The answer is there.
const ANSWERED: u64 = 3;

const SENDING: u64 = 1 << 32;

/// The first half of every nonce of a region: random, with the top bit set, as no pointer or small number has it.
const fn tag_of(region_nonce: u64) -> u64 {
    (region_nonce >> 32 ^ region_nonce) << 32 | 1 << 63
}

/// Names one request, ever, of one region. Travels as the signal's value.
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

/// What made the handler run that gave an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Occasion {
    /// The request's own signal.
    Request = 0,
    /// An event of the recording that was due anyway.
    Tick = 1,
    /// A signal of the program's.
    Foreign = 2,
}

impl Occasion {
    /// The occasion of that number, if there is one.
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

/// Everything of an answer but its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerHead {
    /// The thread that answered.
    pub tid: u32,
    /// Its number in the region.
    pub thread_seq: u32,
    /// Number of frames.
    pub depth: u16,
    /// Why the walk stopped, as in a stack record.
    pub end: u8,
    /// What made the handler run.
    pub occasion: Occasion,
    /// Ticks at the handler's entry.
    pub entered: u64,
    /// Ticks when the walk was over.
    pub walked: u64,
}

impl AnswerHead {
    /// The nonce, then the head.
    const WORDS: usize = 5;
    /// Most frames of an answer.
    pub const MAX_FRAMES: usize = ANSWER_WORDS - Self::WORDS;

    fn words(&self, nonce: Nonce) -> [u64; Self::WORDS] {
        let thread = u64::from(self.tid) | u64::from(self.thread_seq) << 32;
        let walk = u64::from(self.depth) | u64::from(self.end) << 16 | u64::from(self.occasion as u8) << 24;
        [nonce.0, thread, walk, self.entered, self.walked]
    }

    fn from_words(words: [u64; Self::WORDS]) -> Option<Self> {
        let [_, thread, walk, entered, walked] = words;
        Some(Self {
            tid: thread as u32,
            thread_seq: (thread >> 32) as u32,
            depth: walk as u16,
            end: (walk >> 16) as u8,
            occasion: Occasion::from_raw((walk >> 24) as u8).filter(|_| walk >> 32 == 0)?,
            entered,
            walked,
        })
    }
}

/// The writer's part. Nothing here waits or depends on a shared word for a place.
impl Region {
    /// True if somebody may be asking some thread: one load.
    #[inline]
    #[must_use]
    pub fn has_requests(&self) -> bool {
        self.control().request.asked.load(Ordering::Relaxed) & ALL != 0
    }

    /// True if somebody may be asking thread `tid`.
    #[must_use]
    pub fn asks(&self, tid: u32) -> bool {
        let asked = |slot: &RequestSlot| {
            slot.word.load(Ordering::Acquire) & SLOT_MASK == ASKED
                && slot.thread.load(Ordering::Relaxed) as u32 == tid
        };
        self.has_requests() && self.control().requests.iter().any(asked)
    }

    /// True if a request with this nonce has been made, however long ago.
    #[must_use]
    pub fn was_requested(&self, nonce: Nonce) -> bool {
        let tag = tag_of(self.nonce());
        let Some(slot) = self.control().requests.get(nonce.slot()) else { return false };
        let word = slot.word.load(Ordering::Acquire);
        let issued = Nonce(word).serial();
        nonce.0 >> 32 == tag >> 32 && word >> 32 == tag >> 32 && (1..=issued).contains(&nonce.serial())
    }

    /// Gives the stack to everyone who asks thread `head.tid`; how many that were. Frames that do not fit are left
    /// out.
    pub fn answer(&self, head: &AnswerHead, frames: &[u64]) -> u32 {
        let control = self.control();
        let Some(answers) = self.answers() else { return 0 };
        let asked = control.request.asked.load(Ordering::Acquire) & ALL;
        let mut answered = 0;
        for (index, (slot, place)) in
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
            // Acquire: what was there before belongs to the requester until now.
            if !slot.exchange(word, nonce.word(ANSWERING)) {
                continue;
            }
            control.request.asked.fetch_and(!(1 << index), Ordering::Relaxed);
            write(place, nonce, head, frames);
            // Release: the answer before the phase. Fails if the requester has been taken over: then nobody waits.
            if slot.exchange(nonce.word(ANSWERING), nonce.word(ANSWERED)) {
                control.request.answered.fetch_add(1, Ordering::Relaxed);
                answered += 1;
            }
        }
        answered
    }

    /// Counts a signal whose request is over.
    pub fn count_late_request(&self) {
        self.control().request.late.fetch_add(1, Ordering::Relaxed);
    }

    /// Says whether signals are unwelcome: the next program would meet them without a handler. Afterwards wait, for a
    /// while, until [`is_being_asked`](Self::is_being_asked) is false.
    pub fn close_requests(&self, closed: bool) {
        self.control().request.closed.store(closed.into(), Ordering::SeqCst);
    }

    /// True while a requester may send a signal although it was told not to.
    #[must_use]
    pub fn is_being_asked(&self) -> bool {
        // Sequentially consistent with `close_requests` here, `send` there: the requester sees the
        // door closed, or this sees the requester.
        self.control().requests.iter().any(|slot| slot.thread.load(Ordering::SeqCst) & SENDING != 0)
    }
}

impl RequestSlot {
    fn exchange(&self, old: u64, new: u64) -> bool {
        self.word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

fn write(place: &[AtomicU64], nonce: Nonce, head: &AnswerHead, frames: &[u64]) {
    let frames = frames.get(..AnswerHead::MAX_FRAMES).unwrap_or(frames);
    let head = AnswerHead { depth: frames.len() as u16, ..*head };
    let words = head.words(nonce);
    for (word, value) in place.iter().zip(words.iter().chain(frames)) {
        word.store(*value, Ordering::Relaxed);
    }
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The thread has not come to it.
    Waiting,
    /// The thread is writing, or died writing.
    Writing,
    /// The answer is there.
    Answered,
    /// Somebody else has changed the slot.
    Lost,
}

/// The requester's view: slots and answers of one region.
///
/// A slot is used by one requester at a time; file locks see to it.
pub struct Requests<'a> {
    pub(crate) line: &'a RequestLine,
    pub(crate) slots: &'a [RequestSlot; REQUEST_SLOTS],
    pub(crate) answers: &'a [AtomicU64],
    pub(crate) region_nonce: u64,
}

impl Requests<'_> {
    /// Asks thread `tid` through `slot`, whose lock the caller holds; none if a handler still writes there or the
    /// slot has no serials left. Next: [`send`](Self::send).
    #[must_use]
    pub fn ask(&self, slot: usize, tid: u32) -> Option<Nonce> {
        let place = self.slots.get(slot)?;
        let before = place.word.load(Ordering::Acquire);
        let tag = tag_of(self.region_nonce);
        // Zero, or left by a requester before; anything else is a lie and begins anew.
        let serial = if before >> 32 == tag >> 32 { Nonce(before).serial() + 1 } else { 1 };
        if serial > SERIAL_MASK || before & SLOT_MASK == ANSWERING {
            return None;
        }
        let nonce = Nonce(tag | serial << SLOT_BITS | slot as u64);
        place.thread.store(tid.into(), Ordering::Relaxed);
        // Release: the thread before the phase.
        if !place.exchange(before, nonce.word(ASKED)) {
            return None;
        }
        self.line.asked.fetch_or(1 << slot, Ordering::SeqCst);
        Some(nonce)
    }

    /// Sends the signal of a request by `send`, unless the process is closed to signals: then none. Nothing may happen
    /// in `send` but this.
    pub fn send<R>(&self, nonce: Nonce, send: impl FnOnce() -> R) -> Option<R> {
        let slot = self.slots.get(nonce.slot())?;
        slot.thread.fetch_or(SENDING, Ordering::SeqCst);
        let sent = (!self.is_closed()).then(send);
        slot.thread.fetch_and(!SENDING, Ordering::SeqCst);
        sent
    }

    /// How far the request is.
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

    /// Copies an answer that is there into `frames`; none if it is not an answer to `nonce`.
    #[must_use]
    pub fn take(&self, nonce: Nonce, frames: &mut [u64; AnswerHead::MAX_FRAMES]) -> Option<AnswerHead> {
        let place = self.answers.chunks_exact(ANSWER_WORDS).nth(nonce.slot())?;
        let (head_words, frame_words) = place.split_at_checked(AnswerHead::WORDS)?;
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

    /// Gives up; false if the answer came, or is coming, all the same.
    pub fn withdraw(&self, nonce: Nonce) -> bool {
        let Some(slot) = self.slots.get(nonce.slot()) else { return false };
        let withdrawn = slot.exchange(nonce.word(ASKED), nonce.word(FREE));
        if withdrawn {
            self.line.asked.fetch_and(!(1 << nonce.slot()), Ordering::Relaxed);
        }
        withdrawn
    }

    /// True if no signal must be sent now.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.line.closed.load(Ordering::SeqCst) != 0
    }

    /// Requests answered since the region was made, and signals that came too late, as the process counts them.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.line.answered.load(Ordering::Relaxed), self.line.late.load(Ordering::Relaxed))
    }
}
