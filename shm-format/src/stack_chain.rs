//! The writer's side of the stack record: encodes a stack relative to the previous one of its thread.
//!
//! A chain never leaves its chunk: the first stack in a chunk is complete, so a reader needs no other chunk, and a lost
//! chunk affects no other. After anything but a committed record (a loss, an abandoned write) the next stack is
//! complete as well. The bytes are assembled in private memory, because the length to reserve depends on them, and then
//! copied into the reservation. What must never happen here: an allocation, a panic, a step not bounded by the depth, a
//! shared word read back.

use crate::atomic::{Ordering, if_equal, store_bytes};
use crate::control::Loss;
use crate::pool::Pool;
use crate::stack::{Form, LITERAL, MAX_DEPTH, RECENT, StackHead, distance, flag, is_near, recent_index};
use crate::tracepoint::{Fields, NoPreface, Preface};
use crate::writer::{Committed, Position, RETRIES, Reservation, ThreadCursor};

/// Offset of the frames in the buffer. The head, written last and backwards, ends here.
const FRAMES_AT: usize = 48;
/// Two bytes, three numbers, a weight, an end, a nonce.
const HEAD_MOST: usize = 2 + 10 + 2 * 2 + 5 + 1 + 8;
/// One byte per frame, every frame literal, and trailing zeros.
const BUFFER: usize = FRAMES_AT + MAX_DEPTH + MAX_DEPTH * 8 + 8;

const _: () = assert!(HEAD_MOST <= FRAMES_AT);

/// The stack that a thread has recorded last. Next to its [`ThreadCursor`], in private memory.
///
/// All zero is a chain without a stack. The chain knows which stack was *recorded* last, the walker only which was
/// *walked* last: the walker's reports ([`walked`](Self::walked)) are only usable if every walk is reported.
#[repr(C, align(64))]
pub struct StackChain {
    /// Whether `position` and `previous` belong to a committed record.
    linked: bool,
    /// Whether a walk has been reported since.
    walked: bool,
    /// Number of outermost frames shared by all walks since: these need no comparison.
    unchanged: usize,
    position: Position,
    depth: usize,
    /// The last literal frame.
    literal: u64,
    /// Leaf first, at the end of the array.
    previous: [u64; MAX_DEPTH],
    recent: [u64; RECENT],
    /// The record being assembled.
    buffer: [u8; BUFFER],
}

impl Default for StackChain {
    fn default() -> Self {
        Self::new()
    }
}

/// The part of the buffer that a record consists of.
#[derive(Clone, Copy)]
struct Encoded {
    start: usize,
    end: usize,
}

impl Encoded {
    #[inline(always)]
    fn words(self) -> usize {
        (self.end - self.start).div_ceil(8)
    }
}

impl StackChain {
    /// A chain without a stack.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            linked: false,
            walked: false,
            unchanged: 0,
            position: Position::NOWHERE,
            depth: 0,
            previous: [0; MAX_DEPTH],
            recent: [0; RECENT],
            literal: 0,
            buffer: [0; BUFFER],
        }
    }

    /// Makes the next stack complete. Used with [`ThreadCursor::begin`] when the chain passes to another thread.
    pub fn reset(&mut self) {
        self.linked = false;
        self.walked = false;
    }

    /// Reports a walk of the thread's stack, whether it will be written or not: `unchanged` of its outermost frames
    /// equal those of the previous walk. Without such reports [`write`](Self::write) compares all frames.
    #[inline]
    pub fn walked(&mut self, unchanged: usize) {
        self.unchanged = if self.walked { self.unchanged.min(unchanged) } else { unchanged };
        self.walked = true;
    }

    /// Writes a stack, leaf first; if walks are reported, that of the last walk.
    ///
    /// Errors as for [`ThreadCursor::reserve`]; more than [`MAX_DEPTH`] frames are `TooLarge`.
    pub fn write<P: Pool>(
        &mut self,
        cursor: &ThreadCursor,
        pool: &P,
        head: StackHead,
        frames: &[u64],
        now: impl Fn() -> u64,
    ) -> Result<Committed, Loss> {
        self.write_behind(cursor, pool, NoPreface, false, (head, frames), now)
    }

    /// Writes an event's fields and its stack into one record: as [`write`](Self::write) does or, with `standalone`, as
    /// [`write_standalone`](Self::write_standalone) does.
    pub fn write_event<P: Pool>(
        &mut self,
        cursor: &ThreadCursor,
        pool: &P,
        fields: &Fields<'_>,
        standalone: bool,
        (head, frames): (StackHead, &[u64]),
        now: impl Fn() -> u64,
    ) -> Result<Committed, Loss> {
        if standalone {
            self.reset();
        }
        self.write_behind(cursor, pool, fields, standalone, (head, frames), now)
    }

    /// Writes a standalone stack, leaf first: for a handler that interrupted the writing of another stack of its
    /// thread. `self` is a chain that belongs to that handler; its contents are lost.
    ///
    /// Errors as for [`write`](Self::write).
    pub fn write_standalone<P: Pool>(
        &mut self,
        cursor: &ThreadCursor,
        pool: &P,
        head: StackHead,
        frames: &[u64],
        now: impl Fn() -> u64,
    ) -> Result<Committed, Loss> {
        self.reset();
        self.write_behind(cursor, pool, NoPreface, true, (head, frames), now)
    }

    #[inline(always)]
    fn write_behind<P: Pool, B: Preface>(
        &mut self,
        cursor: &ThreadCursor,
        pool: &P,
        preface: B,
        standalone: bool,
        (head, frames): (StackHead, &[u64]),
        now: impl Fn() -> u64,
    ) -> Result<Committed, Loss> {
        // Unlinked until the commit, so that a write that fails or is abandoned leaves no chain.
        let linked = core::mem::replace(&mut self.linked, false);
        if frames.len() > MAX_DEPTH {
            return cursor.lose(Loss::TooLarge);
        }
        let mut write = Write { chain: self, preface, head: &head, frames, linked, standalone };
        match write.attempt(cursor, pool, &now)? {
            Some(committed) => Ok(committed),
            None => {
                // A copy, because only that has an address.
                let Write { chain, preface, head, frames, standalone, .. } = write;
                Write { chain, preface, head, frames, linked: false, standalone }
                    .attempt_again(cursor, pool, &now)
            }
        }
    }

    #[inline]
    fn form_at(&self, position: Position) -> Form {
        let distance = position.sequence.wrapping_sub(self.position.sequence);
        match Form::after(distance) {
            Some(after) if position.is_in_chunk_of(self.position) => after,
            _ => Form::First,
        }
    }

    /// Length of the suffix that a stack shares with the previous one, in frames.
    #[inline]
    fn shared(&self, frames: &[u64]) -> usize {
        let most = self.depth.min(frames.len());
        let known = if self.walked { self.unchanged.min(most) } else { 0 };
        let (before, now) = (outermost(&self.previous, most), outermost(frames, most));
        debug_assert!(
            before.ends_with(now.get(most - known..).unwrap_or(&[])),
            "a walk told of other frames"
        );
        let mut shared = known;
        while shared < most && before.get(most - 1 - shared) == now.get(most - 1 - shared) {
            shared += 1;
        }
        shared
    }

    /// Encodes a stack into the buffer, and remembers it. Not inlined, so that writer and encoder each have the registers.
    #[inline(never)]
    fn encode(&mut self, form: Form, head: &StackHead, frames: &[u64]) -> Encoded {
        let shared = match form {
            Form::Next | Form::Later(_) => self.shared(frames),
            Form::First => {
                self.recent.fill(0);
                self.literal = 0;
                0
            }
            Form::Standalone => return self.encode_standalone(head, frames),
        };
        // SAFETY: there are at most MAX_DEPTH frames, and `shared` is at most their number.
        let (wide, end) = unsafe { self.encode_new(frames, shared) };
        let new = frames.len() - shared;
        let is_usual = (form == Form::Next) & !wide & (head.end == 0);
        let start = match is_usual & ((shared | new | head.weight as usize) < 0x80) {
            true => self.put_usual_head(head, shared, new),
            false => self.put_head(form, wide, head, shared, new),
        };
        Encoded { start, end }
    }

    /// Encodes the frames before the shared suffix, and remembers them. Returns whether literal frames are wide, and
    /// where the frames end. Zeros follow, to pad the last word.
    ///
    /// # Safety
    /// `shared` must be at most `frames.len()`, and that at most MAX_DEPTH.
    #[inline(always)]
    unsafe fn encode_new(&mut self, frames: &[u64], shared: usize) -> (bool, usize) {
        let count = frames.len() - shared;
        let new = frames.as_ptr();
        let buffer = self.buffer.as_mut_ptr();
        let mut literal = 0;
        // SAFETY: `count + shared` is at most MAX_DEPTH, which `previous` and `buffer` have space for.
        unsafe {
            let previous = self.previous.as_mut_ptr().add(MAX_DEPTH - shared - count);
            let codes = buffer.add(FRAMES_AT);
            let words = codes.add(count);
            for at in 0..count {
                let frame = *new.add(at);
                previous.add(at).write(frame);
                let index = recent_index(frame);
                let recent = &mut self.recent[usize::from(index)];
                // A hit is as good as random, so avoid a branch.
                let code = if_equal(*recent, frame, index, LITERAL);
                *recent = frame;
                codes.add(at).write(code);
                words.add(8 * literal).cast::<u64>().write_unaligned(frame.to_le());
                literal += usize::from(code == LITERAL);
            }
            let mut base = self.literal;
            let mut near = true;
            for at in 0..literal {
                let frame = u64::from_le(words.add(8 * at).cast::<u64>().read_unaligned());
                let distance = distance(frame, base);
                base = frame;
                near &= is_near(distance);
                words.add(4 * at).cast::<u32>().write_unaligned((distance as u32).to_le());
            }
            self.literal = base;
            let mut end = FRAMES_AT + count + 4 * literal;
            if !near {
                end = self.widen(frames, count);
            }
            self.buffer.as_mut_ptr().add(end).cast::<u64>().write_unaligned(0);
            (!near, end)
        }
    }

    /// Rewrites the literal frames as full words, after the codes. Returns where they end.
    #[cold]
    #[inline(never)]
    fn widen(&mut self, frames: &[u64], count: usize) -> usize {
        let Some((codes, words)) =
            self.buffer.get_mut(FRAMES_AT..).and_then(|rest| rest.split_at_mut_checked(count))
        else {
            return FRAMES_AT;
        };
        let literal = frames.iter().zip(codes).filter(|(_, code)| **code == LITERAL);
        let mut end = FRAMES_AT + count;
        for ((frame, _), to) in literal.zip(words.as_chunks_mut().0) {
            *to = frame.to_le_bytes();
            end += to.len();
        }
        end
    }

    #[cold]
    #[inline(never)]
    fn encode_standalone(&mut self, head: &StackHead, frames: &[u64]) -> Encoded {
        let rest = self.buffer.get_mut(FRAMES_AT..).unwrap_or(&mut []);
        let mut end = FRAMES_AT;
        for (frame, to) in frames.iter().zip(rest.as_chunks_mut().0) {
            *to = frame.to_le_bytes();
            end += to.len();
        }
        if let Some(zeros) = self.buffer.get_mut(end..).and_then(<[u8]>::first_chunk_mut::<8>) {
            *zeros = [0; 8];
        }
        Encoded { start: self.put_head(Form::Standalone, false, head, 0, frames.len()), end }
    }

    /// Writes the head of nearly all records before the frames: every number takes one byte. Returns where it begins.
    #[inline(always)]
    fn put_usual_head(&mut self, head: &StackHead, shared: usize, new: usize) -> usize {
        let mut before = Backwards { buffer: &mut self.buffer, at: FRAMES_AT };
        let mut first = Form::NEXT;
        if head.nonce != 0 {
            first |= flag::NONCE;
            before.put(&head.nonce.to_le_bytes());
        }
        if head.weight != 1 {
            first |= flag::WEIGHT;
            before.put(&[head.weight as u8]);
        }
        before.put(&[first, head.source, shared as u8, new as u8]);
        before.at
    }

    /// Writes any head.
    #[cold]
    #[inline(never)]
    fn put_head(&mut self, form: Form, wide: bool, head: &StackHead, shared: usize, new: usize) -> usize {
        let mut before = Backwards { buffer: &mut self.buffer, at: FRAMES_AT };
        let mut first = form.bits() | if wide { flag::WIDE } else { 0 };
        if head.nonce != 0 {
            first |= flag::NONCE;
            before.put(&head.nonce.to_le_bytes());
        }
        if head.end != 0 {
            first |= flag::END;
            before.put(&[head.end]);
        }
        if head.weight != 1 {
            first |= flag::WEIGHT;
            before.put_varint(head.weight.into());
        }
        before.put_varint(new as u64);
        let distance = form.distance();
        if distance != 0 {
            before.put_varint(shared as u64);
        }
        if distance > 1 {
            before.put_varint(distance);
        }
        before.put(&[first, head.source]);
        before.at
    }
}

/// The state of writing one stack.
struct Write<'a, B> {
    chain: &'a mut StackChain,
    /// What precedes the stack in its record.
    preface: B,
    head: &'a StackHead,
    frames: &'a [u64],
    /// Whether the chain has a stack.
    linked: bool,
    standalone: bool,
}

impl<B: Preface> Write<'_, B> {
    #[inline(always)]
    fn attempt<P: Pool>(
        &mut self,
        cursor: &ThreadCursor,
        pool: &P,
        now: &impl Fn() -> u64,
    ) -> Result<Option<Committed>, Loss> {
        let mut state = (self, Encoded { start: 0, end: 0 }, Position::NOWHERE);
        let size = |(this, encoded, at): &mut (&mut Self, Encoded, Position), position| {
            *at = position;
            *encoded = this.chain.encode(this.form_at(position), this.head, this.frames);
            this.preface.words() + encoded.words()
        };
        let fill = |(this, encoded, at): &mut (&mut Self, Encoded, Position), record| {
            this.fill(record, *encoded, *at)
        };
        cursor.try_write(pool, B::KIND, now, &mut state, size, fill)
    }

    /// A nested record intervened, or the chunk changed.
    #[cold]
    #[inline(never)]
    fn attempt_again<P: Pool>(
        mut self,
        cursor: &ThreadCursor,
        pool: &P,
        now: &impl Fn() -> u64,
    ) -> Result<Committed, Loss> {
        for _ in 1..RETRIES {
            if let Some(committed) = self.attempt(cursor, pool, now)? {
                return Ok(committed);
            }
        }
        cursor.lose(Loss::Retries)
    }

    #[inline(always)]
    fn form_at(&self, position: Position) -> Form {
        match (self.standalone, self.linked) {
            (true, _) => Form::Standalone,
            (_, true) => self.chain.form_at(position),
            _ => Form::First,
        }
    }

    /// Fills the record and publishes it.
    #[inline(always)]
    fn fill<P: Pool>(
        &mut self,
        record: Reservation<'_, P>,
        encoded: Encoded,
        position: Position,
    ) -> Committed {
        let (before, words) = record.words().split_at_checked(self.preface.words()).unwrap_or((&[], &[]));
        debug_assert_eq!(words.len(), encoded.words());
        self.preface.put(|at, value| {
            if let Some(word) = before.get(at) {
                word.store(value, Ordering::Relaxed);
            }
        });
        // SAFETY: the buffer holds that many words from `start` on, including the padding.
        unsafe { store_bytes(words, self.chain.buffer.as_ptr().add(encoded.start)) };
        if !self.standalone {
            self.chain.depth = self.frames.len();
            self.chain.position = position;
            self.chain.walked = false;
            self.chain.linked = true;
        }
        record.commit()
    }
}

fn outermost(frames: &[u64], count: usize) -> &[u64] {
    frames.len().checked_sub(count).and_then(|at| frames.get(at..)).unwrap_or(&[])
}

/// A position in the buffer that moves towards its start.
struct Backwards<'a> {
    buffer: &'a mut [u8; BUFFER],
    at: usize,
}

impl Backwards<'_> {
    #[inline]
    fn put<const N: usize>(&mut self, bytes: &[u8; N]) {
        self.at = self.at.saturating_sub(N);
        if let Some(position) = self.buffer.get_mut(self.at..).and_then(|rest| rest.first_chunk_mut()) {
            *position = *bytes;
        }
    }

    /// An unsigned LEB128 number, written from its last byte.
    #[inline]
    fn put_varint(&mut self, value: u64) {
        let bits = 64 - (value >> 7).leading_zeros();
        let mut shift = 7 * bits.div_ceil(7);
        self.put(&[(value >> shift) as u8]);
        while shift > 0 {
            shift -= 7;
            self.put(&[(value >> shift) as u8 | 0x80]);
        }
    }
}
