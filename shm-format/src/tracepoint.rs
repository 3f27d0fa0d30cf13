//! The tracepoint record: the fields of one event, followed by the stack if one was requested.
//!
//! The record itself contains the type of each field, so it can be read before its description arrives
//! ([`Tracepoint`](crate::record::Tracepoint) in the durable log, which has the names). [`Fields`] writes it, in calls
//! and signal handlers of the program; [`TracepointRecord`] reads it. What must never happen when writing: an unbounded
//! loop, or more words than were measured.

use crate::record::RecordKind;

/// Maximum number of fields of an event.
pub const FIELDS_MOST: usize = 12;
/// Maximum length of a string in bytes; longer ones are truncated.
pub(crate) const STRING_MOST: usize = 256;

/// Bits of the first word: `0:3 | stack:1 | count:4 | types:24 | id:32`.
const TYPES_AT: u32 = 32;
const COUNT_AT: u32 = 56;
const STACK: u64 = 1 << 60;
const NOTHING: u64 = 7 << 61;
/// Bits of the word before a string's bytes: its length, and whether it was truncated or null.
const CUT: u64 = 1 << 32;
const NULL: u64 = 1 << 33;

/// Type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FieldType {
    /// A signed integer.
    I64 = 0,
    /// An unsigned integer.
    U64 = 1,
    /// A floating-point number.
    F64 = 2,
    /// Bytes.
    Str = 3,
}

impl FieldType {
    /// The type with this letter: `i`, `u`, `f` or `s`.
    #[must_use]
    pub(crate) const fn from_letter(letter: u8) -> Option<Self> {
        match letter {
            b'i' => Some(Self::I64),
            b'u' => Some(Self::U64),
            b'f' => Some(Self::F64),
            b's' => Some(Self::Str),
            _ => None,
        }
    }

    const fn from_bits(bits: u64) -> Self {
        match bits & 3 {
            0 => Self::I64,
            1 => Self::U64,
            2 => Self::F64,
            _ => Self::Str,
        }
    }
}

/// The types of an event's fields, as in the first word of its record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FieldTypes(u64);

impl FieldTypes {
    /// From letters (`i`, `u`, `f` or `s`, in the order of [`FieldType`]); `None` if one is invalid or there are too many.
    #[must_use]
    pub fn of_letters(letters: &[u8]) -> Option<Self> {
        if letters.len() > FIELDS_MOST {
            return None;
        }
        let mut bits = (letters.len() as u64) << COUNT_AT;
        for (at, letter) in letters.iter().enumerate() {
            bits |= (FieldType::from_letter(*letter)? as u64) << (TYPES_AT + 2 * at as u32);
        }
        Some(Self(bits))
    }

    /// From the first word of a record; its other bits are ignored.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits & 0x0fff_ffff << TYPES_AT)
    }

    /// The bits for the first word.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Number of fields, at most [`FIELDS_MOST`].
    #[must_use]
    pub const fn count(self) -> usize {
        let count = (self.0 >> COUNT_AT) as usize & 0xf;
        if count < FIELDS_MOST { count } else { FIELDS_MOST }
    }

    /// Type of a field.
    #[must_use]
    pub const fn get(self, at: usize) -> FieldType {
        FieldType::from_bits(self.0 >> (TYPES_AT + 2 * at as u32))
    }

    /// Whether any field is a string.
    #[must_use]
    pub const fn has_strings(self) -> bool {
        // A string has both bits of its type set.
        self.0 & self.0 >> 1 & 0x55_5555 << TYPES_AT != 0
    }
}

/// The fields of an event to be written.
pub struct Fields<'a> {
    first: u64,
    types: FieldTypes,
    values: &'a [u64],
    /// Lengths of the strings as measured; their bytes may change meanwhile.
    lengths: [u16; FIELDS_MOST],
    words: usize,
}

impl<'a> Fields<'a> {
    /// Measures the fields of an event of tracepoint `id`: one word per field, for strings their address.
    ///
    /// # Safety
    /// The address of each string must be 0 or point to bytes that are readable up to a NUL or for 256 bytes,
    /// until the event has been written.
    #[inline]
    #[must_use]
    pub unsafe fn measure(id: u32, types: FieldTypes, values: &'a [u64], has_stack: bool) -> Self {
        let first = types.bits() | u64::from(id) | if has_stack { STACK } else { 0 };
        let words = 1 + types.count();
        let mut fields = Self { first, types, values, lengths: [0; FIELDS_MOST], words };
        if types.has_strings() {
            // SAFETY: the caller promises readable strings.
            unsafe { fields.measure_strings() };
        }
        fields
    }

    /// # Safety
    /// As for [`measure`](Self::measure).
    unsafe fn measure_strings(&mut self) {
        for (at, (length, value)) in self.lengths.iter_mut().zip(self.values).enumerate() {
            if at < self.types.count() && self.types.get(at) == FieldType::Str && *value != 0 {
                let text = *value as usize as *const u8;
                // SAFETY: the caller promises that the bytes are readable up to the NUL or for STRING_MOST bytes;
                // neither is exceeded.
                while usize::from(*length) < STRING_MOST && unsafe { *text.add((*length).into()) } != 0 {
                    *length += 1;
                }
                self.words += usize::from(*length).div_ceil(8);
            }
        }
    }

    /// Payload words of the record before the stack.
    #[inline]
    pub(crate) fn words(&self) -> usize {
        self.words
    }

    /// Passes the words on, one after the other.
    #[inline]
    pub(crate) fn put(&self, mut put: impl FnMut(usize, u64)) {
        put(0, self.first);
        if !self.types.has_strings() {
            for (at, value) in self.values.iter().take(self.types.count()).enumerate() {
                put(1 + at, *value);
            }
            return;
        }
        let mut index = 1;
        for (at, (value, length)) in self.values.iter().zip(self.lengths).take(self.types.count()).enumerate()
        {
            if self.types.get(at) != FieldType::Str {
                put(index, *value);
                index += 1;
                continue;
            }
            let cut = if usize::from(length) == STRING_MOST { CUT } else { 0 };
            put(index, u64::from(length) | if *value == 0 { NULL } else { cut });
            index += 1;
            for from in (0..usize::from(length)).step_by(8) {
                let count = (usize::from(length) - from).min(8);
                let mut bytes = [0; 8];
                for (number, byte) in bytes.iter_mut().take(count).enumerate() {
                    // SAFETY: the caller of `measure` promised the bytes up to the measured length.
                    *byte = unsafe { (*value as usize as *const u8).add(from + number).read_volatile() };
                }
                put(index, u64::from_le_bytes(bytes));
                index += 1;
            }
        }
    }
}

/// What precedes a stack in its record.
pub(crate) trait Preface {
    /// The kind of the record.
    const KIND: RecordKind;
    /// Number of its words.
    fn words(&self) -> usize;
    /// Passes its words on, each with its index.
    fn put(&self, put: impl FnMut(usize, u64));
}

/// Nothing precedes the stack.
pub(crate) struct NoPreface;

impl Preface for NoPreface {
    const KIND: RecordKind = RecordKind::Stack;

    #[inline(always)]
    fn words(&self) -> usize {
        0
    }

    #[inline(always)]
    fn put(&self, _put: impl FnMut(usize, u64)) {}
}

impl Preface for &Fields<'_> {
    const KIND: RecordKind = RecordKind::Tracepoint;

    #[inline]
    fn words(&self) -> usize {
        Fields::words(self)
    }

    #[inline]
    fn put(&self, put: impl FnMut(usize, u64)) {
        Fields::put(self, put);
    }
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FieldValue<'a> {
    /// A signed integer.
    I64(i64),
    /// An unsigned integer.
    U64(u64),
    /// A floating-point number.
    F64(f64),
    /// Bytes, and whether they were truncated.
    Str(&'a [u8], bool),
    /// A null pointer in place of a string.
    Null,
}

/// A parsed tracepoint record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracepointRecord<'a> {
    /// Number of the tracepoint, see [`Tracepoint`](crate::record::Tracepoint).
    pub id: u32,
    types: FieldTypes,
    fields: &'a [u8],
    /// The stack record after the fields, if there is one.
    pub stack: Option<&'a [u8]>,
}

impl<'a> TracepointRecord<'a> {
    /// Parses a payload; `None` if no writer produces it. The stack is not examined.
    #[must_use]
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let (first, rest) = payload.split_first_chunk::<8>()?;
        let first = u64::from_le_bytes(*first);
        let types = FieldTypes::from_bits(first);
        let count = (first >> COUNT_AT) as usize & 0xf;
        // The types of absent fields must be 0.
        let beyond = (types.bits() >> TYPES_AT & 0xff_ffff) >> (2 * types.count());
        if first & NOTHING != 0 || count > FIELDS_MOST || beyond != 0 {
            return None;
        }
        let mut record = Self { id: first as u32, types, fields: rest, stack: None };
        let mut values = record.values();
        values.by_ref().take(count).try_for_each(|value| value.map(drop))?;
        let left = values.left;
        record.fields = rest.get(..rest.len() - left.len())?;
        match first & STACK != 0 {
            true => record.stack = Some(left),
            false if !left.is_empty() => return None,
            false => {}
        }
        Some(record)
    }

    /// The values of the fields, in order; ends early if no writer produces the bytes.
    fn values(&self) -> Values<'a> {
        Values { types: self.types, at: 0, left: self.fields }
    }

    /// The values of the fields, in order.
    pub fn fields(&self) -> impl Iterator<Item = FieldValue<'a>> + use<'a> {
        self.values().map_while(|value| value)
    }
}

struct Values<'a> {
    types: FieldTypes,
    at: usize,
    left: &'a [u8],
}

impl<'a> Values<'a> {
    fn word(&mut self) -> Option<u64> {
        let (word, left) = self.left.split_first_chunk::<8>()?;
        self.left = left;
        Some(u64::from_le_bytes(*word))
    }

    fn string(&mut self) -> Option<FieldValue<'a>> {
        let head = self.word()?;
        let length = (head & 0xffff_ffff) as usize;
        if head & !(CUT | NULL | 0xffff_ffff) != 0 || length > STRING_MOST {
            return None;
        }
        if head & NULL != 0 {
            return (head == NULL).then_some(FieldValue::Null);
        }
        let (bytes, left) = self.left.split_at_checked(length.next_multiple_of(8))?;
        self.left = left;
        let (text, padding) = bytes.split_at_checked(length)?;
        let is_cut = head & CUT != 0;
        let padded = padding.iter().all(|byte| *byte == 0);
        (padded && (!is_cut || length == STRING_MOST)).then_some(FieldValue::Str(text, is_cut))
    }
}

impl<'a> Iterator for Values<'a> {
    type Item = Option<FieldValue<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.types.count() {
            return None;
        }
        let field = self.types.get(self.at);
        self.at += 1;
        Some(match field {
            FieldType::I64 => self.word().map(|word| FieldValue::I64(word as i64)),
            FieldType::U64 => self.word().map(FieldValue::U64),
            FieldType::F64 => self.word().map(|word| FieldValue::F64(f64::from_bits(word))),
            FieldType::Str => self.string(),
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use super::*;

    fn written(fields: &Fields<'_>) -> Vec<u8> {
        let mut words = vec![0u64; fields.words()];
        fields.put(|at, word| words[at] = word);
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn records_round_trip() {
        let long = vec![b'x'; 2 * STRING_MOST];
        let texts = [&b"GET\0"[..], b"\0", b"12345678\0", &long];
        let address = |text: &[u8]| text.as_ptr() as usize as u64;
        let types = FieldTypes::of_letters(b"iufsssss").unwrap();
        let mut values = vec![-7i64 as u64, u64::MAX, 1.5f64.to_bits(), 0];
        values.extend(texts.iter().map(|text| address(text)));
        // SAFETY: the strings end with NUL or are long enough, and outlive the fields.
        let fields = unsafe { Fields::measure(77, types, &values, false) };
        let bytes = written(&fields);
        let record = TracepointRecord::parse(&bytes).unwrap();
        assert_eq!((record.id, record.stack), (77, None));
        let expected = [
            FieldValue::I64(-7),
            FieldValue::U64(u64::MAX),
            FieldValue::F64(1.5),
            FieldValue::Null,
            FieldValue::Str(b"GET", false),
            FieldValue::Str(b"", false),
            FieldValue::Str(b"12345678", false),
            FieldValue::Str(&long[..STRING_MOST], true),
        ];
        assert_eq!(record.fields().collect::<Vec<_>>(), expected);
        for len in 0..bytes.len() {
            assert_eq!(TracepointRecord::parse(&bytes[..len]), None, "{len}");
        }
        let longer = [&bytes[..], &[0; 8]].concat();
        assert_eq!(TracepointRecord::parse(&longer), None);
    }

    #[test]
    fn a_stack_follows_the_fields() {
        let types = FieldTypes::of_letters(b"u").unwrap();
        // SAFETY: there is no string.
        let fields = unsafe { Fields::measure(u32::MAX, types, &[5], true) };
        let bytes = [&written(&fields)[..], b"stack"].concat();
        let record = TracepointRecord::parse(&bytes).unwrap();
        assert_eq!((record.id, record.stack), (u32::MAX, Some(&b"stack"[..])));
        assert_eq!(record.fields().collect::<Vec<_>>(), [FieldValue::U64(5)]);
    }

    #[test]
    fn meaningless_bits_are_refused() {
        for first in [1u64 << 61, 1 << 63, 13 << COUNT_AT, 1 << TYPES_AT, 1 << COUNT_AT | 3 << (TYPES_AT + 2)]
        {
            let bytes = [first.to_le_bytes(), [0; 8]].concat();
            assert_eq!(TracepointRecord::parse(&bytes), None, "{first:x}");
        }
        let string = |head: u64| {
            let types = FieldTypes::of_letters(b"s").unwrap().bits();
            [types.to_le_bytes(), head.to_le_bytes(), [b'a', 0, 0, 0, 0, 0, 0, 1]].concat()
        };
        for head in [1, NULL | 1, CUT | 8, 1 << 40 | 8, 9] {
            assert_eq!(TracepointRecord::parse(&string(head)), None, "{head:x}");
        }
        assert!(TracepointRecord::parse(&string(8)).is_some());
    }

    #[test]
    fn letters_give_types() {
        let types = FieldTypes::of_letters(b"iufs").unwrap();
        assert_eq!((types.count(), types.has_strings()), (4, true));
        assert_eq!(FieldTypes::from_bits(types.bits() | u64::MAX << 60 | 99), types);
        assert!(!FieldTypes::of_letters(b"iufu").unwrap().has_strings());
        assert_eq!(FieldTypes::of_letters(b"x"), None);
        assert_eq!(FieldTypes::of_letters(&[b'i'; FIELDS_MOST + 1]), None);
        assert_eq!(FieldTypes::of_letters(&[b's'; FIELDS_MOST]).unwrap().count(), FIELDS_MOST);
    }
}
