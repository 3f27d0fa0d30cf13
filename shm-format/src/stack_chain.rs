//! The writer's side of the stack record: encodes a stack against the one its thread wrote before.
//!
//! A chain never leaves its chunk: the first stack in a chunk is whole, so a reader needs no other chunk, and what is
//! lost with a chunk is lost with it alone. After anything but a committed record (a loss, an abandoned write) the
//! next stack is whole too. The bytes are put together in private memory and copied into the reserved place, whose
//! length depends on them. What must never happen here: an allocation, a panic, a step whose bound is not the depth,
//! a shared word read back.

use core::hint::select_unpredictable;
use core::num::NonZeroU64;

use crate::atomic::store_bytes;
use crate::control::Loss;
use crate::pool::Pool;
use crate::record::RecordKind;
use crate::stack::{Form, MAX_DEPTH, RECENT, StackHead, code, difference, flag, recent_place};
use crate::writer::{Committed, Place, Reservation, ThreadCursor};

/// Where the frames begin in the buffer: the head, which is written last and backwards, ends here.
const FRAMES_AT: usize = 48;
/// Two bytes, three numbers, a weight, an end, a nonce.
const HEAD_MOST: usize = 2 + 10 + 2 * 2 + 5 + 1 + 8;
/// The frames at their longest, and the overhang of the last one, which is written as 8 bytes.
const BUFFER: usize = FRAMES_AT + MAX_DEPTH * 8 + MAX_DEPTH / 4 + 8;
/// Frames compared at once.
const BLOCK: usize = 4;

const _: () = assert!(HEAD_MOST <= FRAMES_AT);

/// What a thread remembers of the stack that it wrote last. Beside its [`ThreadCursor`], in private memory.
///
/// All zero is a chain without a stack. The chain knows which stack was *recorded* last, a walker only which was walked
/// last: what a walker says ([`walked`](Self::walked)) holds from record to record if every walk says it.
pub struct StackChain {
    /// `place` and `previous` are those of a committed record.
    linked: bool,
    /// There was a walk since.
    walked: bool,
    /// So many outermost frames are in all walks since: nothing need be compared.
    unchanged: usize,
    place: Place,
    depth: usize,
    /// Leaf first, at the end of the array.
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
    /// Where the head begins.
    start: usize,
    /// Where the other frames end, codes included.
    end: usize,
}

impl StackChain {
    /// A chain without a stack.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            linked: false,
            walked: false,
            unchanged: 0,
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
        self.walked = false;
    }

    /// The thread's stack was walked, to be written or not: its `unchanged` outermost frames are those of the walk
    /// before. Without this, [`write`](Self::write) compares all frames.
    #[inline]
    pub fn walked(&mut self, unchanged: usize) {
        self.unchanged = if self.walked { self.unchanged.min(unchanged) } else { unchanged };
        self.walked = true;
    }

    /// Writes a stack, leaf first: that of the last walk, if walks are told of.
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
        self.walked = false;
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
        self.reset();
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
            let form = form_at(self, place);
            let encoded = match done {
                None => self.encode(form, &head, frames),
                Some(before) => self.encode_again(before, form, &head, frames),
            };
            done = Some(encoded);
            (encoded.end - encoded.start).div_ceil(8)
        })?;
        let start = done.map_or(FRAMES_AT, |encoded| encoded.start);
        store_bytes(record.words(), self.buffer.get(start..).unwrap_or(&[]));
        Ok(record)
    }

    /// After another record got in between.
    #[cold]
    #[inline(never)]
    fn encode_again(&mut self, before: Encoded, form: Form, head: &StackHead, frames: &[u64]) -> Encoded {
        match (before.form, form) {
            (Form::First, _) => before,
            (_, Form::First) => self.encode(form, head, frames),
            // Another distance: the frames are written the same way.
            _ => self.finish(Encoded { form, ..before }, head, frames),
        }
    }

    fn form_at(&self, place: Place) -> Form {
        let distance = place.sequence.wrapping_sub(self.place.sequence);
        match NonZeroU64::new(distance) {
            Some(distance) if place.is_in_chunk_of(self.place) => Form::After(distance),
            _ => Form::First,
        }
    }

    /// How many outermost frames of a stack are those of the one before.
    fn kept(&self, frames: &[u64]) -> usize {
        let most = self.depth.min(frames.len());
        let known = if self.walked { self.unchanged.min(most) } else { 0 };
        let (before, now) = (outermost(&self.previous, most), outermost(frames, most));
        debug_assert!(
            before.ends_with(now.get(most - known..).unwrap_or(&[])),
            "a walk told of other frames"
        );
        let mut kept = known;
        // From outside, in blocks and then one by one.
        while kept + BLOCK <= most && block_before(before, kept) == block_before(now, kept) {
            kept += BLOCK;
        }
        while kept < most && before.get(most - 1 - kept) == now.get(most - 1 - kept) {
            kept += 1;
        }
        kept
    }

    /// Puts a stack into the buffer, and remembers it.
    #[inline]
    fn encode(&mut self, form: Form, head: &StackHead, frames: &[u64]) -> Encoded {
        let kept = match form {
            Form::After(_) => self.kept(frames),
            Form::First => {
                self.recent.fill(0);
                0
            }
            Form::Aside => return self.encode_aside(head, frames),
        };
        let (new, old) = frames.split_at_checked(frames.len() - kept).unwrap_or((frames, &[]));
        let until = self.previous.len() - kept;
        if let Some(places) = self.previous.get_mut(until - new.len().min(until)..until) {
            places.copy_from_slice(new);
        }
        let base = old.first().copied().unwrap_or(0);
        let end = encode(new, base, &mut self.buffer, |frame, base| look_up(&mut self.recent, frame, base));
        self.finish(Encoded { form, kept, start: FRAMES_AT, end }, head, frames)
    }

    #[cold]
    #[inline(never)]
    fn encode_aside(&mut self, head: &StackHead, frames: &[u64]) -> Encoded {
        let end = encode(frames, 0, &mut self.buffer, far);
        self.finish(Encoded { form: Form::Aside, kept: 0, start: FRAMES_AT, end }, head, frames)
    }

    /// Puts the head before the frames.
    #[inline]
    fn finish(&mut self, encoded: Encoded, head: &StackHead, frames: &[u64]) -> Encoded {
        let new = frames.len() - encoded.kept;
        let plain = head.nonce == 0 && head.end == 0 && head.weight == 1;
        if plain && (encoded.kept | new) < 0x80 && encoded.form.bits() == Form::NEXT {
            // Nearly all.
            let bytes = [Form::NEXT, head.source, encoded.kept as u8, new as u8];
            let mut before = Backwards { buffer: &mut self.buffer, at: FRAMES_AT };
            before.put(&bytes);
            return Encoded { start: before.at, ..encoded };
        }
        self.finish_rare(encoded, head, new)
    }

    #[cold]
    fn finish_rare(&mut self, encoded: Encoded, head: &StackHead, new: usize) -> Encoded {
        let mut before = Backwards { buffer: &mut self.buffer, at: FRAMES_AT };
        let mut first = encoded.form.bits();
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
        if let Form::After(distance) = encoded.form {
            before.put_varint(encoded.kept as u64);
            if distance.get() != 1 {
                before.put_varint(distance.get());
            }
        }
        before.put(&[first, head.source]);
        Encoded { start: before.at, ..encoded }
    }
}

/// Puts frames into the buffer, the last one first, by the code and value of each and the one outside it. Where they
/// end; zeros follow, which fill up the last word.
#[inline(always)]
fn encode(
    frames: &[u64],
    mut base: u64,
    buffer: &mut [u8; BUFFER],
    mut of: impl FnMut(u64, u64) -> (u8, u64),
) -> usize {
    let frames = outermost(frames, frames.len().min(MAX_DEPTH));
    let buffer = buffer.as_mut_ptr();
    let mut at = FRAMES_AT;
    for group in frames.rchunks(4) {
        let (codes_at, mut codes, mut shift) = (at, 0, 0);
        at += 1;
        for &frame in group.iter().rev() {
            let (code, value) = of(frame, base);
            codes |= code << shift;
            shift += 2;
            // SAFETY: no frame takes more than 8 bytes, nor four of them more than one beside, and there are at most
            // MAX_DEPTH: `at` is at least 8 bytes before the buffer's end.
            unsafe { put_bytes(buffer, at, value) };
            at += code::len(code);
            base = frame;
        }
        // SAFETY: less than `at`.
        unsafe { buffer.add(codes_at).write(codes) };
    }
    // SAFETY: as above.
    unsafe { put_bytes(buffer, at, 0) };
    at
}

/// Eight bytes, little-endian; what comes next overwrites those that are not needed.
///
/// # Safety
/// Eight bytes from `at` on are the caller's.
#[inline(always)]
unsafe fn put_bytes(buffer: *mut u8, at: usize, value: u64) {
    // SAFETY: the caller's promise.
    unsafe { buffer.add(at).cast::<[u8; 8]>().write(value.to_le_bytes()) };
}

/// The block of frames within the `outer` outermost ones.
#[inline]
fn block_before(frames: &[u64], outer: usize) -> Option<&[u64; BLOCK]> {
    frames.len().checked_sub(outer).and_then(|until| frames.get(..until)).and_then(<[u64]>::last_chunk)
}

fn outermost(frames: &[u64], count: usize) -> &[u64] {
    frames.len().checked_sub(count).and_then(|at| frames.get(at..)).unwrap_or(&[])
}

/// Code and value of a frame by its distance.
#[inline]
fn far(frame: u64, base: u64) -> (u8, u64) {
    let difference = difference(frame, base);
    (code::of(difference), difference)
}

/// Code and value of a frame, which is in the table from now on. Whether it was is as good as random: no branch.
#[inline]
fn look_up(recent: &mut [u64; RECENT], frame: u64, base: u64) -> (u8, u64) {
    let (code, difference) = far(frame, base);
    let index = recent_place(frame);
    let Some(place) = recent.get_mut(index) else { return (code, difference) };
    let seen = core::mem::replace(place, frame) == frame;
    (select_unpredictable(seen, code::RECENT, code), select_unpredictable(seen, index as u64, difference))
}

/// A place in the buffer that moves towards its start.
struct Backwards<'a> {
    buffer: &'a mut [u8; BUFFER],
    at: usize,
}

impl Backwards<'_> {
    #[inline]
    fn put<const N: usize>(&mut self, bytes: &[u8; N]) {
        self.at = self.at.saturating_sub(N);
        if let Some(place) = self.buffer.get_mut(self.at..).and_then(|rest| rest.first_chunk_mut()) {
            *place = *bytes;
        }
    }

    /// An unsigned LEB128 number, whose last byte comes first here.
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
