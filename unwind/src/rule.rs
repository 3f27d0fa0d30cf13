//! The packed rule: eight bytes that lead from a frame to its caller with the stack and frame pointer alone.
//!
//! | kind | CFA |
//! |---|---|
//! | `Sp` | sp + offset |
//! | `Fp` | fp + offset |
//! | `SpMemory` | \*(sp + offset) + addend |
//! | `FpMemory` | \*(fp + offset) + addend |
//! | `Plt` | sp + offset + 8 if the low four bits of the pc are at least `addend` |
//! | `Register` | the register with the DWARF number `addend`, plus offset |
//!
//! The caller's sp is the CFA. On x86-64 the return address is always at CFA - 8; on aarch64, which uses the first two
//! kinds only, the rule says where it is. Every other row is `Complex`.

/// How a [`Rule`] computes the CFA, or why it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// No call frame information covers the address.
    Uncovered = 0,
    /// Relative to the stack pointer.
    Sp = 1,
    /// Relative to the frame pointer.
    Fp = 2,
    /// Loaded from an address relative to the stack pointer.
    SpMemory = 3,
    /// Loaded from an address relative to the frame pointer.
    FpMemory = 4,
    /// The expression that linkers emit for PLT stubs.
    Plt = 5,
    /// Needs the evaluation of all registers.
    Complex = 6,
    /// The outermost frame: the return address is undefined.
    Root = 7,
    /// Relative to another register; inferred from the code, not from call frame information.
    Register = 8,
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

/// Where the return address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnAddress {
    /// At the CFA plus these bytes.
    AtCfa(i16),
    /// Still in the link register.
    InRegister,
}

/// Bits 0..=3: kind; 4..=5: where the frame pointer is; 6: signal frame; 7: the return address is in its register;
/// 8..=31: offset; 32..=47: offset of the frame pointer; 48..=63: addend or, on aarch64, offset of the return address.
/// The value 0 is [`Rule::UNCOVERED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Rule(u64);

impl Rule {
    /// No call frame information.
    pub const UNCOVERED: Rule = Rule(Kind::Uncovered as u64);
    /// Outermost frame.
    pub const ROOT: Rule = Rule(Kind::Root as u64);
    /// A function's first instruction, where calls push the return address.
    pub(crate) const ENTRY_PUSHED: Rule = Rule(Kind::Sp as u64 | 8 << 8);
    /// A function's first instruction, where calls leave the return address in the link register.
    pub const ENTRY_LINKED: Rule = Rule(Kind::Sp as u64 | Self::IN_REGISTER);
    /// All registers must be evaluated.
    pub const COMPLEX: Rule = Rule(Kind::Complex as u64);

    const SIGNAL: u64 = 1 << 6;
    const IN_REGISTER: u64 = 1 << 7;
    const OFFSET_MAX: i32 = (1 << 23) - 1;
    const KIND: u64 = 0xf;

    /// A rule of a kind that has an offset; `None` if the numbers do not fit.
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

    /// The rule with these bits, as read from a table; `None` if they are not valid.
    pub fn from_bits(bits: u64) -> Option<Rule> {
        (bits & Self::KIND <= Kind::Register as u64 && bits >> 4 & 3 != 3).then_some(Rule(bits))
    }

    /// The bits for a table.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// How the CFA is computed.
    #[inline]
    pub fn kind(self) -> Kind {
        match self.0 & Self::KIND {
            0 => Kind::Uncovered,
            1 => Kind::Sp,
            2 => Kind::Fp,
            3 => Kind::SpMemory,
            4 => Kind::FpMemory,
            5 => Kind::Plt,
            6 => Kind::Complex,
            7 => Kind::Root,
            _ => Kind::Register,
        }
    }

    /// Offset in bytes of the CFA, or of the word that holds it.
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

    /// Where the return address is, if calls leave it in a register.
    #[inline]
    pub fn return_address(self) -> ReturnAddress {
        if self.0 & Self::IN_REGISTER != 0 {
            ReturnAddress::InRegister
        } else {
            ReturnAddress::AtCfa(self.addend())
        }
    }

    /// This rule with another location of the return address. For kinds without addend.
    #[inline]
    pub fn with_return_address(self, return_address: ReturnAddress) -> Rule {
        let bits = match return_address {
            ReturnAddress::AtCfa(offset) => u64::from(offset as u16) << 48,
            ReturnAddress::InRegister => Self::IN_REGISTER,
        };
        Rule(self.0 & !Self::RETURN_ADDRESS | bits)
    }

    /// Bits of the return address.
    const RETURN_ADDRESS: u64 = Self::IN_REGISTER | 0xffff << 48;

    /// Bits of the frame pointer.
    const FP: u64 = 0x30 | 0xffff << 32;

    /// This rule with the stack pointer as the CFA.
    pub(crate) fn at_sp(self) -> Rule {
        Rule(self.0 & Self::FP | Kind::Sp as u64)
    }

    /// Whether the row is that of a signal trampoline, whose caller was interrupted and did not call.
    pub fn is_signal_frame(self) -> bool {
        self.0 & Self::SIGNAL != 0
    }

    pub(crate) fn with_signal(self, signal: bool) -> Rule {
        Rule(self.0 | if signal { Self::SIGNAL } else { 0 })
    }
}

/// Changes of single fields, as the instructions of a CFA program make them.
impl Rule {
    /// This rule with another kind, for kinds with an offset and no addend.
    #[inline]
    pub fn with_kind(self, kind: Kind) -> Rule {
        Rule(self.0 & !Self::KIND | kind as u64)
    }

    /// This rule with another offset, in bytes; `None` if it does not fit.
    #[inline]
    pub fn with_offset(self, offset: u32) -> Option<Rule> {
        let fits = offset <= Self::OFFSET_MAX as u32;
        fits.then_some(Rule(self.0 & !0xffff_ff00 | u64::from(offset << 8)))
    }

    /// This rule with the frame pointer saved at this offset from the CFA, in bytes.
    #[inline]
    pub fn with_fp_at_cfa(self, offset: i16) -> Rule {
        Rule(self.0 & !Self::FP | 1 << 4 | u64::from(offset as u16) << 32)
    }

    /// This rule with the frame pointer's location from `other`.
    #[inline]
    pub fn with_fp_of(self, other: Rule) -> Rule {
        Rule(self.0 & !Self::FP | other.0 & Self::FP)
    }

    /// This rule with the return address's location from `other`.
    #[inline]
    pub fn with_return_address_of(self, other: Rule) -> Rule {
        Rule(self.0 & !Self::RETURN_ADDRESS | other.0 & Self::RETURN_ADDRESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_round_trip() {
        for kind in [Kind::Sp, Kind::Fp, Kind::SpMemory, Kind::FpMemory, Kind::Plt, Kind::Register] {
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
        assert_eq!(Rule::from_bits(0x09), None);
    }

    #[test]
    fn the_return_address_round_trips() {
        let rule = Rule::new(Kind::Fp, 96, 0, SavedFp::AtCfa(-96)).unwrap();
        for return_address in [ReturnAddress::AtCfa(-88), ReturnAddress::AtCfa(8), ReturnAddress::InRegister]
        {
            let placed = rule.with_return_address(return_address);
            assert_eq!(placed.return_address(), return_address);
            assert_eq!(placed.with_return_address(ReturnAddress::AtCfa(0)), rule);
            assert_eq!(Rule::from_bits(placed.bits()), Some(placed));
        }
        let entry = Rule::new(Kind::Sp, 0, 0, SavedFp::Same).unwrap();
        assert_eq!(entry.with_return_address(ReturnAddress::InRegister), Rule::ENTRY_LINKED);
        assert_eq!(Rule::new(Kind::Sp, 8, 0, SavedFp::Same), Some(Rule::ENTRY_PUSHED));
    }
}
