//! The reader's side of the stack record.
//!
//! Strict: a number not in its shortest form, an excess or missing byte, or a meaningless bit makes the record
//! malformed. A record that refers to one that was not decoded is distinguished from that: it is lost, not malformed.
//! What must never happen here: a panic, frames of a stack other than the one referred to, a loop or a size beyond
//! [`MAX_DEPTH`].

use crate::stack::{
    Form, LITERAL, MAX_DEPTH, RECENT, StackHead, distance, flag, frame_at, is_near, recent_index,
};

/// Why a stack record cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecodable {
    /// No writer produces such bytes.
    Malformed,
    /// It refers to a record of its chunk that is missing: torn, void, overwritten, or undecodable itself.
    Unlinked,
}

/// A stack record whose head has been parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedStack<'a> {
    /// The fixed part, without the frames.
    pub head: StackHead,
    form: Form,
    shared: usize,
    new: usize,
    wide: bool,
    frames: &'a [u8],
}

impl<'a> EncodedStack<'a> {
    /// Parses the head of a payload; `None` if no writer produces it.
    #[must_use]
    #[inline]
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let f = &mut Bytes(payload);
        let (first, source) = (f.byte()?, f.byte()?);
        if first & !flag::ALL != 0 {
            return None;
        }
        let form = Form::from_bits(first, || f.varint())?;
        let shared = if form.distance() != 0 { f.varint()? } else { 0 };
        let new = f.varint()?;
        let weight = if first & flag::WEIGHT == 0 { 1 } else { u32::try_from(f.varint()?).ok()? };
        let end = if first & flag::END == 0 { 0 } else { f.byte()? };
        let nonce = if first & flag::NONCE == 0 { 0 } else { u64::from_le_bytes(f.array()?) };
        let head = StackHead { weight, end, source, nonce };
        let says_default = (first & flag::WEIGHT != 0 && weight == 1)
            || (first & flag::END != 0 && end == 0)
            || (first & flag::NONCE != 0 && nonce == 0);
        let wide = first & flag::WIDE != 0;
        if says_default || (wide && form == Form::Standalone) || shared.checked_add(new)? > MAX_DEPTH as u64 {
            return None;
        }
        Some(Self { head, form, shared: shared as usize, new: new as usize, wide, frames: f.0 })
    }

    /// Number of frames, at most [`MAX_DEPTH`].
    #[must_use]
    #[inline]
    pub fn depth(&self) -> usize {
        self.shared + self.new
    }

    /// Length in frames of the suffix shared with the stack [`before`](Self::before).
    #[must_use]
    #[inline]
    pub fn shared(&self) -> usize {
        self.shared
    }

    /// Sequence number in its thread of the stack that it refers to, if it does; `sequence` is its own.
    #[must_use]
    #[inline]
    pub fn before(&self, sequence: u64) -> Option<u64> {
        match self.form.distance() {
            0 => None,
            distance => Some(sequence.wrapping_sub(distance)),
        }
    }

    /// Whether it is a standalone record, to be read by [`decode_standalone`](Self::decode_standalone).
    #[must_use]
    #[inline]
    pub fn is_standalone(&self) -> bool {
        self.form == Form::Standalone
    }

    /// Stores the frames of a standalone record, root first, in the first [`depth`](Self::depth) elements of `frames`.
    pub fn decode_standalone(&self, frames: &mut [u64]) -> Result<(), Undecodable> {
        if !self.is_standalone() {
            return Err(Undecodable::Unlinked);
        }
        let frames = frames.get_mut(..self.new).ok_or(Undecodable::Malformed)?;
        let words = self.frames.get(..8 * self.new).ok_or(Undecodable::Malformed)?;
        for (frame, word) in frames.iter_mut().rev().zip(words.as_chunks().0) {
            *frame = u64::from_le_bytes(*word);
        }
        self.ends_at(8 * self.new)
    }

    /// Stores the frames before the shared suffix, root first, in `out`. Returns the last literal frame.
    #[inline]
    fn new_frames(
        &self,
        mut literal: u64,
        recent: &mut [u64; RECENT],
        out: &mut [u64],
    ) -> Result<u64, Undecodable> {
        let out = out.get_mut(..self.new).ok_or(Undecodable::Malformed)?;
        let (codes, words) = self.frames.split_at_checked(self.new).ok_or(Undecodable::Malformed)?;
        let mut words = Bytes(words);
        let mut near = true;
        for (frame, &code) in out.iter_mut().rev().zip(codes) {
            *frame = match code {
                LITERAL => {
                    let frame = self.literal(&mut words, literal).ok_or(Undecodable::Malformed)?;
                    near &= is_near(distance(frame, literal));
                    literal = frame;
                    frame
                }
                _ => recent[usize::from(code)],
            };
            // A frame in the table must be encoded by its index, never as a literal.
            let at = recent_index(*frame);
            let entry = &mut recent[usize::from(at)];
            if code != if *entry == *frame { at } else { LITERAL } {
                return Err(Undecodable::Malformed);
            }
            *entry = *frame;
        }
        if near == self.wide {
            return Err(Undecodable::Malformed);
        }
        self.ends_at(self.frames.len() - words.0.len())?;
        Ok(literal)
    }

    /// The next literal frame.
    #[inline]
    fn literal(&self, words: &mut Bytes<'_>, base: u64) -> Option<u64> {
        if self.wide {
            return words.array().map(u64::from_le_bytes);
        }
        Some(frame_at(i32::from_le_bytes(words.array()?).into(), base))
    }

    /// Checks that only padding follows.
    #[inline]
    fn ends_at(&self, end: usize) -> Result<(), Undecodable> {
        let rest = self.frames.get(end..).unwrap_or(&[]);
        let padded = rest.len() < 8 && rest.iter().all(|byte| *byte == 0);
        if padded { Ok(()) } else { Err(Undecodable::Malformed) }
    }
}

/// Decodes the stacks of one chunk, in order.
pub struct StackDecoder {
    linked: bool,
    sequence: u64,
    depth: usize,
    /// The last literal frame.
    literal: u64,
    recent: [u64; RECENT],
}

impl Default for StackDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl StackDecoder {
    /// For the start of a chunk.
    #[must_use]
    pub const fn new() -> Self {
        Self { linked: false, sequence: 0, depth: 0, literal: 0, recent: [0; RECENT] }
    }

    /// Stores the frames of record number `sequence`, root first, in the first [`depth`](EncodedStack::depth) elements
    /// of `frames`, which must still hold the result of the last call. After an error, records that refer to this one
    /// are [`Unlinked`](Undecodable::Unlinked).
    #[inline]
    pub fn decode(
        &mut self,
        stack: &EncodedStack<'_>,
        sequence: u64,
        frames: &mut [u64],
    ) -> Result<(), Undecodable> {
        let linked = core::mem::replace(&mut self.linked, false);
        match stack.form {
            Form::Standalone => return Err(Undecodable::Malformed),
            Form::First => {
                self.recent.fill(0);
                self.literal = 0;
            }
            Form::Next | Form::Later(_) => {
                if !linked || sequence.wrapping_sub(self.sequence) != stack.form.distance() {
                    return Err(Undecodable::Unlinked);
                }
                if stack.shared > self.depth {
                    return Err(Undecodable::Malformed);
                }
            }
        }
        let new = frames.get_mut(stack.shared..).unwrap_or(&mut []);
        self.literal = stack.new_frames(self.literal, &mut self.recent, new)?;
        (self.linked, self.sequence, self.depth) = (true, sequence, stack.depth());
        Ok(())
    }
}

/// The remaining bytes.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    #[inline]
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (&bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(bytes)
    }

    /// An unsigned LEB128 number in its shortest form.
    #[inline]
    fn varint(&mut self) -> Option<u64> {
        // Most fit one byte.
        match self.0.split_first() {
            Some((&first, rest)) if first < 0x80 => {
                self.0 = rest;
                Some(first.into())
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits || (byte == 0 && shift > 0) {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}
