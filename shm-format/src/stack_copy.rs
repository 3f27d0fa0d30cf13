//! The stack copy: registers and words of the stack, with the words that unwinding cannot need set to zero.
//!
//! See "The copied stack" in `FORMAT.md`. [`CopyWriter`] writes it piece by piece from a buffer of one piece, however
//! long it is; [`CopyReader`] reads the concatenation of the [`CopyPiece`]s. What must never happen in the writer: an
//! allocation, a panic, a shared word read back.

use crate::control::Loss;
use crate::record::RecordKind;

/// Payload words of a piece: two pieces fit into the smallest chunk, eight into the usual one.
const PIECE_WORDS: usize = 240;
/// Bytes of a copy in one piece.
const PIECE: usize = (PIECE_WORDS - 1) * 8;
/// Maximum number of pieces of one copy: the longest copy at 18 bytes per word.
const PIECES: u32 = (1 << 20) / PIECE as u32 * 18 / 8 + 2;
/// In the first word of a piece: it is the last one.
const LAST: u64 = 1 << 32;
/// Maximum number of bytes copied of a stack.
pub const COPY_MOST: u64 = 1 << 20;
/// Maximum number of words of one copy: the requested bytes, and those below the stack pointer.
const WORDS_MOST: u64 = COPY_MOST / 8 + 64;
/// Maximum number of registers in a copy.
const REGISTERS_MOST: u8 = 64;

/// Flags of the head.
mod flag {
    pub(super) const CODE_ONLY: u8 = 1;
    pub(super) const BESIDE: u8 = 2;
    pub(super) const GENERATED: u8 = 4;
    pub(super) const ALL: u8 = CODE_ONLY | BESIDE | GENERATED;
}

/// How a word is encoded: the low two bits of a number.
mod token {
    /// A run of zero words of this length; length 0 ends the copy.
    pub(super) const ZEROS: u64 = 0;
    /// A stack address, as the distance in words from its own position.
    pub(super) const STACK: u64 = 1;
    /// A code address, as the distance in bytes from the previous one.
    pub(super) const CODE: u64 = 2;
    /// 0: a literal word, whose eight bytes follow. Otherwise, as [`FAR_CODE`](super::FAR_CODE) says, generated code,
    /// or a stack address whose distance is no multiple of a word, such as those of arguments and environment
    /// variables.
    pub(super) const OTHER: u64 = 3;
}

/// In a number of kind [`token::OTHER`], minus 1: a generated-code address as the distance in bytes from the previous
/// one, followed by the eight code bytes before it. Otherwise a stack address as the distance in bytes from the
/// previous such one.
const FAR_CODE: u64 = 1;

/// A copied word, classified by what it points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopiedWord {
    /// A stack address.
    Stack(u64),
    /// A code address.
    Code(u64),
    /// An address of generated code, and the eight bytes before it.
    Generated(u64, u64),
    /// Any other value.
    Other(u64),
}

impl CopiedWord {
    /// The word.
    #[must_use]
    pub const fn value(self) -> u64 {
        match self {
            Self::Stack(value) | Self::Code(value) | Self::Generated(value, _) | Self::Other(value) => value,
        }
    }
}

/// Why a copy ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum CopyEnd {
    /// At the base of the stack.
    #[default]
    Base = 0,
    /// At the requested limit.
    Limit = 1,
    /// At unreadable memory, on a stack whose base is unknown.
    Unreadable = 2,
}

/// The fixed part of a copy, before its words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyHead {
    /// Whether only code addresses are copied from the stack.
    pub code_only: bool,
    /// Whether the thread's next record is the walked stack of the same sample, which is the one that counts.
    pub beside: bool,
    /// The source that triggered the sample: a `Source` number of the session.
    pub source: u8,
    /// Number of events that the sample stands for.
    pub weight: u32,
    /// The request that it answers; 0 for none.
    pub nonce: u64,
    /// The address of the first word of the stack, a multiple of 8.
    pub start: u64,
    /// The interrupted program counter.
    pub pc: u64,
    /// If `pc` is in no module: the eight code bytes before it, and the eight at it.
    pub code: Option<[u64; 2]>,
}

/// Buffer for one piece of a copy. In private memory, one per thread.
pub struct CopyBuffer {
    bytes: [u8; PIECE],
}

impl Default for CopyBuffer {
    fn default() -> Self {
        Self { bytes: [0; PIECE] }
    }
}

/// Writes a copy piece by piece: `put` receives the kind and the words of each record.
pub struct CopyWriter<'b, F> {
    buffer: &'b mut CopyBuffer,
    at: usize,
    number: u32,
    zeros: u64,
    position: u64,
    code: u64,
    unaligned: u64,
    generated: u64,
    put: F,
}

impl<'b, F: FnMut(RecordKind, u64, &[u8]) -> Result<(), Loss>> CopyWriter<'b, F> {
    /// Begins a copy with this number of registers, which must be written next.
    ///
    /// Errors here and below are those of `put`; the copy is then incomplete and must be dropped.
    pub fn begin(
        buffer: &'b mut CopyBuffer,
        head: &CopyHead,
        registers: usize,
        put: F,
    ) -> Result<Self, Loss> {
        let (start, pc) = (head.start, head.pc);
        let (position, code, unaligned, generated) = (start, pc, start, pc);
        let mut writer =
            Self { buffer, at: 0, number: 0, zeros: 0, position, code, unaligned, generated, put };
        let flags = [
            (head.code_only, flag::CODE_ONLY),
            (head.beside, flag::BESIDE),
            (head.code.is_some(), flag::GENERATED),
        ];
        writer.byte(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum())?;
        writer.byte(head.source)?;
        writer.varint(head.weight.into())?;
        for word in [head.nonce, head.start, head.pc] {
            writer.word(word)?;
        }
        for word in head.code.iter().flatten() {
            writer.word(*word)?;
        }
        writer.byte(registers as u8)?;
        Ok(writer)
    }

    /// Writes the next register as not needed.
    pub fn no_register(&mut self) -> Result<(), Loss> {
        self.zeros += 1;
        Ok(())
    }

    /// Writes the next register.
    pub fn register(&mut self, word: CopiedWord) -> Result<(), Loss> {
        self.token(word)
    }

    /// Ends the registers; the words of the stack follow.
    pub fn end_registers(&mut self) -> Result<(), Loss> {
        self.flush_zeros()
    }

    /// Writes a word that is not copied.
    #[inline(always)]
    pub fn skip(&mut self) {
        self.zeros += 1;
    }

    /// Writes a word that is copied.
    pub fn keep(&mut self, word: CopiedWord) -> Result<(), Loss> {
        self.position = self.position.wrapping_add(self.zeros * 8);
        self.token(word)?;
        self.position = self.position.wrapping_add(8);
        Ok(())
    }

    /// Ends the copy, for this reason. `covers` says that it contains everything that the walk of the same sample read.
    pub fn end(mut self, end: CopyEnd, covers: bool) -> Result<(), Loss> {
        self.flush_zeros()?;
        self.varint(token::ZEROS)?;
        self.byte(end as u8 | u8::from(covers) << 2)?;
        self.flush(true)
    }

    fn token(&mut self, word: CopiedWord) -> Result<(), Loss> {
        self.flush_zeros()?;
        let value = word.value();
        let distance = |from: u64| value.wrapping_sub(from) as i64;
        let from_position = distance(self.position);
        let (kind, distance) = match word {
            CopiedWord::Stack(_) if from_position % 8 == 0 => (token::STACK, from_position / 8),
            CopiedWord::Stack(_) => (token::OTHER, distance(self.unaligned)),
            CopiedWord::Code(_) => (token::CODE, distance(self.code)),
            CopiedWord::Generated(..) => (token::OTHER, distance(self.generated)),
            CopiedWord::Other(_) => return self.other(value),
        };
        // No two user-space addresses are that far apart.
        if distance.unsigned_abs() >> 58 != 0 {
            return self.other(value);
        }
        let number = zigzag(distance);
        match word {
            CopiedWord::Code(_) => self.code = value,
            CopiedWord::Generated(_, before) => {
                self.generated = value;
                self.varint(((number << 1 | FAR_CODE) + 1) << 2 | kind)?;
                return self.word(before);
            }
            _ if kind == token::OTHER => {
                self.unaligned = value;
                return self.varint(((number << 1) + 1) << 2 | kind);
            }
            _ => {}
        }
        self.varint(number << 2 | kind)
    }

    fn other(&mut self, value: u64) -> Result<(), Loss> {
        self.varint(token::OTHER)?;
        self.word(value)
    }

    fn flush_zeros(&mut self) -> Result<(), Loss> {
        match core::mem::take(&mut self.zeros) {
            0 => Ok(()),
            zeros => self.varint(zeros << 2 | token::ZEROS),
        }
    }

    fn varint(&mut self, mut value: u64) -> Result<(), Loss> {
        while value >= 0x80 {
            self.byte(value as u8 | 0x80)?;
            value >>= 7;
        }
        self.byte(value as u8)
    }

    fn word(&mut self, value: u64) -> Result<(), Loss> {
        value.to_le_bytes().into_iter().try_for_each(|byte| self.byte(byte))
    }

    #[inline]
    fn byte(&mut self, byte: u8) -> Result<(), Loss> {
        if self.at == PIECE {
            self.flush(false)?;
        }
        if let Some(to) = self.buffer.bytes.get_mut(self.at) {
            *to = byte;
        }
        self.at += 1;
        Ok(())
    }

    #[inline(never)]
    fn flush(&mut self, is_last: bool) -> Result<(), Loss> {
        let whole = self.at.next_multiple_of(8);
        self.buffer.bytes.get_mut(self.at..whole).unwrap_or(&mut []).fill(0);
        let first = u64::from(self.number) | if is_last { LAST } else { 0 };
        (self.put)(RecordKind::Copy, first, self.buffer.bytes.get(..whole).unwrap_or(&[]))?;
        self.number += 1;
        self.at = 0;
        Ok(())
    }
}

/// Zigzag encoding: small numbers of either sign become small unsigned ones.
const fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}

const fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// A record with one piece of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPiece<'a> {
    /// Index of the piece, from 0 on. The records of one copy are consecutive in their thread.
    pub number: u32,
    /// Whether it is the last piece.
    pub is_last: bool,
    /// The contents; the last piece may have up to seven bytes of padding.
    pub bytes: &'a [u8],
}

impl<'a> CopyPiece<'a> {
    /// Parses a payload. `None` if no writer produces it.
    #[must_use]
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let (first, bytes) = payload.split_first_chunk()?;
        let first = u64::from_le_bytes(*first);
        let (number, is_last) = (first as u32, first & LAST != 0);
        let fits = bytes.len() == PIECE || is_last && bytes.len() < PIECE && bytes.len().is_multiple_of(8);
        (first < 2 * LAST && number < PIECES && fits && !bytes.is_empty()).then_some(Self {
            number,
            is_last,
            bytes,
        })
    }
}

/// Reads a copy that has been reassembled from its pieces.
pub struct CopyReader<'a> {
    /// The fixed part.
    pub head: CopyHead,
    rest: Bytes<'a>,
    registers: u8,
    position: u64,
    code: u64,
    unaligned: u64,
    generated: u64,
}

/// Element of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// This many words that were not copied.
    Zeros(u64),
    /// A copied word.
    Word(CopiedWord),
}

impl<'a> CopyReader<'a> {
    /// Parses the head. Here and below, `None` means that no writer produces such bytes.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = Bytes(bytes);
        let flags = rest.byte()?;
        let source = rest.byte()?;
        let weight = u32::try_from(rest.varint()?).ok()?;
        let [nonce, start, pc] = [rest.word()?, rest.word()?, rest.word()?];
        let is_generated = flags & flag::GENERATED != 0;
        let code = if is_generated { Some([rest.word()?, rest.word()?]) } else { None };
        let registers = rest.byte()?;
        let is_sound = flags & !flag::ALL == 0 && registers <= REGISTERS_MOST && start.is_multiple_of(8);
        let head = CopyHead {
            code_only: flags & flag::CODE_ONLY != 0,
            beside: flags & flag::BESIDE != 0,
            source,
            weight,
            nonce,
            start,
            pc,
            code,
        };
        is_sound.then_some(Self {
            head,
            rest,
            registers,
            position: start,
            code: pc,
            unaligned: start,
            generated: pc,
        })
    }

    /// Reads the registers, exactly as many as the slice has, then passes the words to `take` in address order. Returns
    /// why the copy ends, and whether it covers what the walk of the same sample read.
    pub fn read(mut self, registers: &mut [u64], take: &mut dyn FnMut(Copied)) -> Option<(CopyEnd, bool)> {
        if usize::from(self.registers) != registers.len() {
            return None;
        }
        let mut at = 0;
        while at < registers.len() {
            match self.next()?? {
                Copied::Zeros(count) => at = at.checked_add(usize::try_from(count).ok()?)?,
                Copied::Word(word) => {
                    *registers.get_mut(at)? = word.value();
                    at += 1;
                }
            }
        }
        if at > registers.len() {
            return None;
        }
        let mut words = 0u64;
        while let Some(copied) = self.next()? {
            let count = match copied {
                Copied::Zeros(count) => count,
                Copied::Word(_) => 1,
            };
            words = words.checked_add(count).filter(|words| *words <= WORDS_MOST)?;
            self.position = self.position.wrapping_add(count * 8);
            take(copied);
        }
        let last = self.rest.byte()?;
        let end = match last & 3 {
            0 => CopyEnd::Base,
            1 => CopyEnd::Limit,
            2 => CopyEnd::Unreadable,
            _ => return None,
        };
        let is_whole = last < 8 && self.rest.0.len() < 8 && self.rest.0.iter().all(|byte| *byte == 0);
        is_whole.then_some((end, last & 4 != 0))
    }

    /// The next token; `Some(None)` at the end.
    fn next(&mut self) -> Option<Option<Copied>> {
        let number = self.rest.varint()?;
        let value = number >> 2;
        let word = match number & 3 {
            token::ZEROS if value == 0 => return Some(None),
            token::ZEROS => return Some(Some(Copied::Zeros(value))),
            token::STACK => {
                CopiedWord::Stack(self.position.wrapping_add((unzigzag(value) as u64).wrapping_mul(8)))
            }
            token::CODE => {
                self.code = self.code.wrapping_add(unzigzag(value) as u64);
                CopiedWord::Code(self.code)
            }
            _ => match value.checked_sub(1) {
                None => CopiedWord::Other(self.rest.word()?),
                Some(far) if far & FAR_CODE != 0 => {
                    self.generated = self.generated.wrapping_add(unzigzag(far >> 1) as u64);
                    CopiedWord::Generated(self.generated, self.rest.word()?)
                }
                Some(far) => {
                    self.unaligned = self.unaligned.wrapping_add(unzigzag(far >> 1) as u64);
                    CopiedWord::Stack(self.unaligned)
                }
            },
        };
        Some(Some(Copied::Word(word)))
    }
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn word(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*first))
    }

    /// A LEB128 number, which must be in its shortest form.
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits || byte == 0 && shift > 0 {
                return None;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
#[path = "stack_copy_tests.rs"]
mod tests;
