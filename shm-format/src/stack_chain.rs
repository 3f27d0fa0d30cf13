//! The writer's side of the stack record: encodes a stack against the one its thread wrote before.
//!
//! A chain never leaves its chunk: the first stack in a chunk is whole, so a reader needs no other chunk, and what is
//! lost with a chunk is lost with it alone. After anything but a committed record (a loss, an abandoned write) the
//! next stack is whole too. The bytes are put together in private memory and copied into the reserved place, whose
//! length depends on them. What must never happen here: an allocation, a panic, a step whose bound is not the depth,
//! a shared word read back.

use core::num::NonZeroU64;

use crate::atomic::Ordering;
use crate::control::Loss;
use crate::pool::Pool;
use crate::record::RecordKind;
use crate::stack::{Form, MAX_DEPTH, RECENT, StackHead, code, difference, flag, recent_place};
use crate::writer::{Committed, Place, Reservation, ThreadCursor};

/// Where the frames begin in the buffer: the head, whose length is known last, ends here.
const FRAMES_AT: usize = 48;
/// Two bytes, three numbers, a weight, an end, a nonce.
const HEAD_MOST: usize = 2 + 10 + 2 * 2 + 5 + 1 + 8;
/// The frames at their longest, and the overhang of the last one, which is written as 8 bytes.
const BUFFER: usize = FRAMES_AT + MAX_DEPTH * 8 + MAX_DEPTH / 4 + 8;

const _: () = assert!(HEAD_MOST <= FRAMES_AT);

/// What a thread remembers of the stack that it wrote last. Beside its [`ThreadCursor`], in private memory.
///
/// All zero is a chain without a stack. The chain compares the stacks itself: it knows which stack was *recorded*
/// last, a walker only which was walked last, and a comparison costs a fraction of a nanosecond per frame.
pub struct StackChain {
    /// `place` and `previous` are those of a committed record.
    linked: bool,
    place: Place,
    depth: usize,
    /// From the root.
    previous: [u64; MAX_DEPTH],
    recent: [u64; RECENT],
    /// Of the record being written.
    buffer: [u8; BUFFER],
}

impl Default for StackChain {
    fn default() -> Self {
        Self::new()
    }
}

/// What is in the buffer.
#[derive(Clone, Copy)]
struct Encoded {
    form: Form,
    /// Outermost frames that are those of the stack before.
    kept: usize,
    /// Bytes of the other frames, codes included.
    bytes: usize,
}

impl StackChain {
    /// A chain without a stack.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            linked: false,
            place: Place::NOWHERE,
            depth: 0,
            previous: [0; MAX_DEPTH],
            recent: [0; RECENT],
            buffer: [0; BUFFER],
        }
    }

    /// The next stack will be whole. With [`ThreadCursor::begin`], when the chain passes to another thread.
    pub fn reset(&mut self) {
        self.linked = false;
    }

    /// Writes a stack, leaf first.
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
        // Until the commit: a write that is given up or abandoned leaves no chain.
        let linked = core::mem::replace(&mut self.linked, false);
        let mut place = Place::NOWHERE;
        let record = self.put(cursor, pool, head, frames, now, |chain, at| {
            place = at;
            if linked { chain.form_at(at) } else { Form::First }
        })?;
        self.depth = frames.len();
        self.place = place;
        self.linked = true;
        Ok(record.commit())
    }

    /// Writes a whole stack, leaf first, that belongs to no chain: for a handler that interrupted the writing of
    /// another stack of its thread. `self` is a chain of that handler's own; what it remembers is lost.
    ///
    /// Errors as for [`write`](Self::write).
    pub fn write_aside<P: Pool>(
        &mut self,
        cursor: &ThreadCursor,
        pool: &P,
        head: StackHead,
        frames: &[u64],
        now: impl Fn() -> u64,
    ) -> Result<Committed, Loss> {
        self.linked = false;
        let record = self.put(cursor, pool, head, frames, now, |_, _| Form::Aside)?;
        Ok(record.commit())
    }

    /// Reserves a record and fills it. `form_at` is asked at each try.
    #[inline]
    fn put<'a, P: Pool>(
        &mut self,
        cursor: &'a ThreadCursor,
        pool: &'a P,
        head: StackHead,
        frames: &[u64],
        now: impl Fn() -> u64,
        mut form_at: impl FnMut(&Self, Place) -> Form,
    ) -> Result<Reservation<'a, P>, Loss> {
        if frames.len() > MAX_DEPTH {
            return cursor.lose(Loss::TooLarge);
        }
        let mut done: Option<Encoded> = None;
        let record = cursor.reserve_sized(pool, RecordKind::Stack, now, |place| {
            let encoded = match (done, form_at(self, place)) {
                (Some(encoded), _) if encoded.form == Form::First => encoded,
                // Another distance: the frames are written the same way.
                (Some(encoded), form) if form != Form::First => Encoded { form, ..encoded },
                (_, form) => self.encode(form, frames),
            };
            done = Some(encoded);
            (head_len(&head, encoded, frames.len() - encoded.kept) + encoded.bytes).div_ceil(8)
        })?;
        let encoded = done.unwrap_or(Encoded { form: Form::Aside, kept: 0, bytes: 0 });
        self.copy(&record, &head, encoded, frames.len() - encoded.kept);
        Ok(record)
    }

    fn form_at(&self, place: Place) -> Form {
        let distance = place.sequence.wrapping_sub(self.place.sequence);
        match NonZeroU64::new(distance) {
            Some(distance) if place.is_in_chunk_of(self.place) => Form::After(distance),
            _ => Form::First,
        }
    }

    /// Puts the new frames of a stack into the buffer, and remembers them.
    fn encode(&mut self, form: Form, frames: &[u64]) -> Encoded {
        let before = self.previous.get(..self.depth).unwrap_or(&[]);
        let kept = match form {
            Form::After(_) => {
                before.iter().zip(frames.iter().rev()).take_while(|(before, now)| before == now).count()
            }
            Form::First | Form::Aside => 0,
        };
        if form == Form::First {
            self.recent.fill(0);
        }
        let mut base = kept.checked_sub(1).and_then(|last| before.get(last)).copied().unwrap_or(0);
        let mut new = frames.iter().rev().skip(kept).zip(self.previous.iter_mut().skip(kept));
        let mut at = FRAMES_AT;
        let mut left = frames.len() - kept;
        while left > 0 {
            let group = left.min(4);
            let (codes_at, mut codes) = (at, 0);
            at += 1;
            for (shift, (&frame, previous)) in [0, 2, 4, 6].into_iter().zip(new.by_ref().take(group)) {
                *previous = frame;
                let (code, value) = match form {
                    Form::Aside => far(frame, base),
                    _ => look_up(&mut self.recent, frame, base),
                };
                codes |= code << shift;
                put_bytes(&mut self.buffer, at, value);
                at += code::len(code);
                base = frame;
            }
            if let Some(place) = self.buffer.get_mut(codes_at) {
                *place = codes;
            }
            left -= group;
        }
        Encoded { form, kept, bytes: at - FRAMES_AT }
    }

    /// Puts the head before the frames, and copies both into the record.
    fn copy<P: Pool>(&mut self, record: &Reservation<'_, P>, head: &StackHead, encoded: Encoded, new: usize) {
        let start = FRAMES_AT - head_len(head, encoded, new);
        // Zeros fill up the last word.
        put_bytes(&mut self.buffer, FRAMES_AT + encoded.bytes, 0);
        put_head(&mut self.buffer, start, head, encoded, new);
        let bytes = self.buffer.get(start..).unwrap_or(&[]);
        for (word, bytes) in record.words().iter().zip(bytes.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
    }
}

/// Code and value of a frame by its distance.
fn far(frame: u64, base: u64) -> (u8, u64) {
    let difference = difference(frame, base);
    (code::of(difference), difference)
}

/// Code and value of a frame, which is in the table from now on.
#[inline]
fn look_up(recent: &mut [u64; RECENT], frame: u64, base: u64) -> (u8, u64) {
    let index = recent_place(frame);
    match recent.get_mut(index) {
        Some(place) if *place == frame => (code::RECENT, index as u64),
        Some(place) => {
            *place = frame;
            far(frame, base)
        }
        None => far(frame, base),
    }
}

/// Eight bytes, little-endian; what comes next overwrites those that are not needed.
#[inline]
fn put_bytes(buffer: &mut [u8; BUFFER], at: usize, value: u64) {
    if let Some(place) = buffer.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *place = value.to_le_bytes();
    }
}

const fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Bytes before the frames.
fn head_len(head: &StackHead, encoded: Encoded, new: usize) -> usize {
    let kept = varint_len(encoded.kept as u64);
    let reference = match encoded.form {
        Form::Aside | Form::First => 0,
        Form::After(distance) if distance.get() == 1 => kept,
        Form::After(distance) => varint_len(distance.get()) + kept,
    };
    let weight = if head.weight == 1 { 0 } else { varint_len(head.weight.into()) };
    let (end, nonce) = (usize::from(head.end != 0), if head.nonce == 0 { 0 } else { 8 });
    2 + reference + varint_len(new as u64) + weight + end + nonce
}

/// Puts the head at `at`.
fn put_head(buffer: &mut [u8; BUFFER], at: usize, head: &StackHead, encoded: Encoded, new: usize) {
    let mut bytes = Bytes { buffer, at };
    let mut first = encoded.form.bits();
    first |= if head.weight == 1 { 0 } else { flag::WEIGHT };
    first |= if head.end == 0 { 0 } else { flag::END };
    first |= if head.nonce == 0 { 0 } else { flag::NONCE };
    bytes.put(first);
    bytes.put(head.source);
    if let Form::After(distance) = encoded.form {
        if distance.get() != 1 {
            bytes.put_varint(distance.get());
        }
        bytes.put_varint(encoded.kept as u64);
    }
    bytes.put_varint(new as u64);
    if head.weight != 1 {
        bytes.put_varint(head.weight.into());
    }
    if head.end != 0 {
        bytes.put(head.end);
    }
    if head.nonce != 0 {
        head.nonce.to_le_bytes().into_iter().for_each(|byte| bytes.put(byte));
    }
}

/// A place in the buffer that moves on byte by byte.
struct Bytes<'a> {
    buffer: &'a mut [u8; BUFFER],
    at: usize,
}

impl Bytes<'_> {
    #[inline]
    fn put(&mut self, byte: u8) {
        if let Some(place) = self.buffer.get_mut(self.at) {
            *place = byte;
        }
        self.at += 1;
    }

    #[inline]
    fn put_varint(&mut self, mut value: u64) {
        while value > 0x7f {
            self.put(value as u8 | 0x80);
            value >>= 7;
        }
        self.put(value as u8);
    }
}
