//! A packed rule: the eight bytes that carry one frame to its caller with no more than the stack and frame pointer.
//!
//! | kind | CFA |
//! |---|---|
//! | `Sp` | sp + offset |
//! | `Fp` | fp + offset |
//! | `SpMemory` | \*(sp + offset) + addend |
//! | `FpMemory` | \*(fp + offset) + addend |
//! | `Plt` | sp + offset + 8 if the low four bits of the pc are at least `addend` |
//!
//! The return address is at CFA - 8 in all of them, and the caller's sp is the CFA. Every other row is `Complex`.

use crate::cursor::Cursor;
use crate::frame_row::{Cfa, CfaColumn, Packed, Recovery};
use crate::program::Row;
use crate::x86_64::{FP, RETURN_ADDRESS, RETURN_ADDRESS_AT_CFA, SP};

/// What a [`Rule`] says about the CFA, or why it says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// No call frame information covers the address.
    Gap = 0,
    /// Relative to the stack pointer.
    Sp = 1,
    /// Relative to the frame pointer.
    Fp = 2,
    /// Loaded from an address relative to the stack pointer.
    SpMemory = 3,
    /// Loaded from an address relative to the frame pointer.
    FpMemory = 4,
    /// The pattern that linkers write for PLT stubs.
    Plt = 5,
    /// Needs the exact evaluation of every register.
    Complex = 6,
    /// The outermost frame: the return address is undefined.
    Root = 7,
}

/// Where the caller's frame pointer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedFp {
    /// Still in the register.
    Same,
    /// At the CFA plus these bytes.
    AtCfa(i16),
    /// At the frame pointer plus these bytes.
    AtFp(i16),
}

/// Bits 0..=2 kind, 4..=5 where the frame pointer is, 6 signal frame, 8..=31 offset, 32..=47 the frame pointer's
/// offset, 48..=63 addend. The value 0 is [`Rule::GAP`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Rule(u64);

impl Rule {
    /// No call frame information.
    pub const GAP: Rule = Rule(Kind::Gap as u64);
    /// Outermost frame.
    pub const ROOT: Rule = Rule(Kind::Root as u64);
    /// A function's first instruction: the return address is on top.
    pub const ENTRY: Rule = Rule(Kind::Sp as u64 | 8 << 8);
    /// Evaluate all registers.
    pub const COMPLEX: Rule = Rule(Kind::Complex as u64);

    const SIGNAL: u64 = 1 << 6;
    const OFFSET_MAX: i32 = (1 << 23) - 1;
    const USED: u64 = !0x88;
    /// A rule of a kind with an offset; `None` when the numbers do not fit.
    pub fn new(kind: Kind, offset: i32, addend: i32, fp: SavedFp) -> Option<Rule> {
        if !(-Self::OFFSET_MAX..=Self::OFFSET_MAX).contains(&offset) {
            return None;
        }
        let addend = i16::try_from(addend).ok()?;
        let (fp_kind, fp_offset) = match fp {
            SavedFp::Same => (0, 0),
            SavedFp::AtCfa(offset) => (1, offset),
            SavedFp::AtFp(offset) => (2, offset),
        };
        let low = kind as u32 | fp_kind << 4 | (offset as u32) << 8;
        Some(Rule(u64::from(low) | u64::from(fp_offset as u16) << 32 | u64::from(addend as u16) << 48))
    }

    /// The rule with these bits, as read from a table; `None` when no rule has them.
    pub fn from_bits(bits: u64) -> Option<Rule> {
        (bits & !Self::USED == 0 && bits >> 4 & 3 != 3).then_some(Rule(bits))
    }

    /// The bits for a table.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// What the rule says about the CFA.
    #[inline]
    pub fn kind(self) -> Kind {
        match self.0 & 7 {
            0 => Kind::Gap,
            1 => Kind::Sp,
            2 => Kind::Fp,
            3 => Kind::SpMemory,
            4 => Kind::FpMemory,
            5 => Kind::Plt,
            6 => Kind::Complex,
            _ => Kind::Root,
        }
    }

    /// Offset of the CFA, or of the word that holds it, in bytes.
    #[inline]
    pub fn offset(self) -> i32 {
        self.0 as i32 >> 8
    }

    /// Bytes added to the loaded word; the threshold of [`Kind::Plt`].
    #[inline]
    pub fn addend(self) -> i16 {
        (self.0 >> 48) as i16
    }

    /// Where the caller's frame pointer is.
    #[inline]
    pub fn fp(self) -> SavedFp {
        let offset = (self.0 >> 32) as i16;
        match self.0 >> 4 & 3 {
            1 => SavedFp::AtCfa(offset),
            2 => SavedFp::AtFp(offset),
            _ => SavedFp::Same,
        }
    }

    /// Whether the row is that of a signal trampoline: its caller was interrupted and did not call.
    pub fn is_signal_frame(self) -> bool {
        self.0 & Self::SIGNAL != 0
    }

    fn with_signal(self, signal: bool) -> Rule {
        Rule(self.0 | if signal { Self::SIGNAL } else { 0 })
    }
}

/// Changes of one part, for the builder of tables.
#[cfg(feature = "compile")]
impl Rule {
    /// The bits about the frame pointer.
    const FP: u64 = 0x30 | 0xffff << 32;

    /// The rule with another kind, of those with an offset and no addend.
    #[inline]
    pub(crate) fn with_kind(self, kind: Kind) -> Rule {
        Rule(self.0 & !7 | kind as u64)
    }

    /// The rule with another offset; `None` when it does not fit.
    #[inline]
    pub(crate) fn with_offset(self, offset: u32) -> Option<Rule> {
        let fits = offset <= Self::OFFSET_MAX as u32;
        fits.then_some(Rule(self.0 & !0xffff_ff00 | u64::from(offset << 8)))
    }

    /// The rule with the frame pointer saved at this offset from the CFA.
    #[inline]
    pub(crate) fn with_fp_at_cfa(self, offset: i16) -> Rule {
        Rule(self.0 & !Self::FP | 1 << 4 | u64::from(offset as u16) << 32)
    }

    /// The rule with the frame pointer where `other` has it.
    #[inline]
    pub(crate) fn with_fp_of(self, other: Rule) -> Rule {
        Rule(self.0 & !Self::FP | other.0 & Self::FP)
    }
}

/// The row of the fast path: the CFA and the three columns that decide whether a rule can be packed.
#[derive(Clone, Copy)]
pub(crate) struct NarrowRow {
    cfa: CfaColumn,
    fp: Packed,
    sp: Packed,
    return_address: Packed,
}

impl Row for NarrowRow {
    const EMPTY: Self =
        NarrowRow { cfa: CfaColumn::EMPTY, fp: Packed::SAME, sp: Packed::SAME, return_address: Packed::SAME };

    fn cfa_mut(&mut self) -> &mut CfaColumn {
        &mut self.cfa
    }

    fn get(&self, register: u64) -> Packed {
        match register as usize {
            FP => self.fp,
            SP => self.sp,
            RETURN_ADDRESS => self.return_address,
            _ => Packed::SAME,
        }
    }

    fn set(&mut self, register: u64, recovery: Packed) {
        match register as usize {
            FP => self.fp = recovery,
            SP => self.sp = recovery,
            RETURN_ADDRESS => self.return_address = recovery,
            _ => {}
        }
    }
}

impl NarrowRow {
    /// The packed rule; `section` holds the row's expressions.
    pub(crate) fn rule(&self, section: &[u8], signal: bool) -> Rule {
        match self.return_address.unpack() {
            Recovery::Undefined | Recovery::Same => return Rule::ROOT.with_signal(signal),
            Recovery::AtCfa(RETURN_ADDRESS_AT_CFA) if !signal && self.sp == Packed::SAME => {}
            _ => return Rule::COMPLEX.with_signal(signal),
        }
        self.packed(section).unwrap_or(Rule::COMPLEX)
    }

    fn packed(&self, section: &[u8]) -> Option<Rule> {
        let fp = match self.fp.unpack() {
            Recovery::Same => SavedFp::Same,
            Recovery::AtCfa(offset) => SavedFp::AtCfa(i16::try_from(offset).ok()?),
            Recovery::AtExpression(position) => match block(section, position)? {
                [0x76, rest @ ..] => match sleb_16(rest)? {
                    (offset, []) => SavedFp::AtFp(offset),
                    _ => return None,
                },
                _ => return None,
            },
            _ => return None,
        };
        match self.cfa.rule() {
            Cfa::Register { register, offset } => match usize::from(register) {
                SP => Rule::new(Kind::Sp, offset, 0, fp),
                FP => Rule::new(Kind::Fp, offset, 0, fp),
                _ => None,
            },
            Cfa::Expression(position) => cfa_pattern(block(section, position)?, fp),
            Cfa::Unset => None,
        }
    }
}

/// The bytes of the block whose length stands at `position`.
pub(crate) fn block(section: &[u8], position: u32) -> Option<&[u8]> {
    let mut cursor = Cursor::at(section, position as usize);
    let length = usize::try_from(cursor.uleb()?).ok()?;
    cursor.take(length)
}

fn cfa_pattern(expression: &[u8], fp: SavedFp) -> Option<Rule> {
    match expression {
        // breg7 8, breg16 0, lit15, and, lit N, ge, lit3, shl, plus
        [0x77, 8, 0x80, 0, 0x3f, 0x1a, threshold @ 0x30..=0x3f, 0x2a, 0x33, 0x24, 0x22] => {
            Rule::new(Kind::Plt, 8, i32::from(threshold - 0x30), fp)
        }
        // breg7 or breg6, deref, and possibly plus_uconst
        [base @ (0x76 | 0x77), rest @ ..] => {
            let kind = if *base == 0x77 { Kind::SpMemory } else { Kind::FpMemory };
            let (offset, rest) = sleb_16(rest)?;
            let addend = match rest {
                [0x06] => 0,
                [0x06, 0x23, number @ ..] => {
                    // Assemblers may pad the number.
                    let mut cursor = Cursor::new(number);
                    let addend = i32::try_from(cursor.uleb()?).ok()?;
                    cursor.is_at_end().then_some(addend)?
                }
                _ => return None,
            };
            Rule::new(kind, i32::from(offset), addend, fp)
        }
        _ => None,
    }
}

fn sleb_16(bytes: &[u8]) -> Option<(i16, &[u8])> {
    let mut cursor = Cursor::new(bytes);
    let value = i16::try_from(cursor.sleb()?).ok()?;
    Some((value, bytes.get(cursor.position()..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cfa: Cfa) -> NarrowRow {
        let cfa = match cfa {
            Cfa::Register { register, offset } => CfaColumn { register, offset, expression: 0 },
            Cfa::Expression(position) => CfaColumn { expression: position, ..CfaColumn::EMPTY },
            Cfa::Unset => CfaColumn::EMPTY,
        };
        NarrowRow { cfa, return_address: Packed::at_cfa(-8).unwrap(), ..NarrowRow::EMPTY }
    }

    fn by_expression(expression: &[u8]) -> Rule {
        let mut section = [0; 32];
        section[1] = expression.len() as u8;
        section[2..expression.len() + 2].copy_from_slice(expression);
        row(Cfa::Expression(1)).rule(&section, false)
    }

    #[test]
    fn the_parts_come_back() {
        for kind in [Kind::Sp, Kind::Fp, Kind::SpMemory, Kind::FpMemory, Kind::Plt] {
            for offset in [-8_388_607, -8, 0, 16, 8_388_607] {
                for addend in [-32768, -1, 0, 8, 32767] {
                    for fp in [SavedFp::Same, SavedFp::AtCfa(-16), SavedFp::AtFp(i16::MIN)] {
                        let rule = Rule::new(kind, offset, addend, fp).unwrap();
                        assert_eq!(Rule::from_bits(rule.bits()), Some(rule));
                        assert_eq!((rule.kind(), rule.offset(), rule.fp()), (kind, offset, fp));
                        assert_eq!(i32::from(rule.addend()), addend);
                        assert!(!rule.is_signal_frame());
                    }
                }
            }
        }
        assert_eq!(Rule::new(Kind::Sp, 1 << 23, 0, SavedFp::Same), None);
        assert_eq!(Rule::new(Kind::SpMemory, 8, 32768, SavedFp::Same), None);
        assert_eq!(Rule::from_bits(0x30), None);
        assert_eq!(Rule::from_bits(0x80), None);
    }

    #[test]
    fn simple_rows_are_packed() {
        let rule = row(Cfa::Register { register: 7, offset: 24 }).rule(&[], false);
        assert_eq!((rule.kind(), rule.offset(), rule.fp()), (Kind::Sp, 24, SavedFp::Same));
        let mut saved = row(Cfa::Register { register: 6, offset: 16 });
        saved.fp = Packed::at_cfa(-16).unwrap();
        let rule = saved.rule(&[], false);
        assert_eq!((rule.kind(), rule.offset(), rule.fp()), (Kind::Fp, 16, SavedFp::AtCfa(-16)));
    }

    #[test]
    fn known_expressions_are_packed() {
        let plt = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        assert_eq!(by_expression(&plt), Rule::new(Kind::Plt, 8, 11, SavedFp::Same).unwrap());
        let loaded = [0x77, 0xc0, 0, 0x06, 0x23, 8];
        assert_eq!(by_expression(&loaded), Rule::new(Kind::SpMemory, 64, 8, SavedFp::Same).unwrap());
        let padded = [0x77, 0xc0, 0x80, 0x00, 0x06, 0x23, 0x88, 0x80, 0x00];
        assert_eq!(by_expression(&padded), by_expression(&loaded));
        let realigned = [0x76, 0x78, 0x06];
        assert_eq!(by_expression(&realigned), Rule::new(Kind::FpMemory, -8, 0, SavedFp::Same).unwrap());
    }

    #[test]
    fn everything_else_is_complex() {
        assert_eq!(row(Cfa::Register { register: 3, offset: 16 }).rule(&[], false), Rule::COMPLEX);
        assert_eq!(row(Cfa::Unset).rule(&[], false), Rule::COMPLEX);
        assert_eq!(by_expression(&[0x77, 8, 0x06, 0x06]), Rule::COMPLEX);
        assert_eq!(by_expression(&[]), Rule::COMPLEX);
        let simple = Cfa::Register { register: 7, offset: 8 };
        let signal = row(simple).rule(&[], true);
        assert_eq!((signal.kind(), signal.is_signal_frame()), (Kind::Complex, true));
        for change in [
            |row: &mut NarrowRow| row.sp = Packed::cfa_plus(-8).unwrap(),
            |row: &mut NarrowRow| row.fp = Packed::UNDEFINED,
            |row: &mut NarrowRow| row.fp = Packed::at_cfa(-65536).unwrap(),
            |row: &mut NarrowRow| row.return_address = Packed::at_cfa(-16).unwrap(),
            |row: &mut NarrowRow| row.return_address = Packed::register(0).unwrap(),
        ] {
            let mut changed = row(simple);
            change(&mut changed);
            assert_eq!(changed.rule(&[], false), Rule::COMPLEX);
        }
    }

    #[test]
    fn an_undefined_return_address_is_the_root() {
        let mut outermost = row(Cfa::Register { register: 7, offset: 8 });
        outermost.return_address = Packed::UNDEFINED;
        assert_eq!(outermost.rule(&[], false), Rule::ROOT);
    }
}
