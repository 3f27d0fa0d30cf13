//! One frame of a walked stack, in the eight bytes that records hold.

/// How a frame's address was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FoundBy {
    /// Not guessed: from the interrupted registers, by call frame information, by what the code does to the stack pointer,
    /// or from code whose layout is fixed (a PLT stub, a signal restorer).
    Cfi = 0,
    /// Through the frame pointer, in code without call frame information.
    FramePointer = 1,
    /// By scanning the stack for a plausible return address.
    Guess = 2,
    /// By the unwinder of a registered region: generated code, or the code that an interpreter runs.
    Region = 3,
}

/// A frame. Bits 0..=55: address; bit 61: `exact`; bits 62..=63: [`FoundBy`]. With bit 60 set it is not a native frame
/// but an [`Interpreted`] one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Frame(u64);

impl Frame {
    /// Number of address bits.
    pub(crate) const ADDRESS_BITS: u32 = 56;
    const ADDRESS: u64 = (1 << Self::ADDRESS_BITS) - 1;
    const INTERPRETED: u64 = 1 << 60;
    const EXACT: u64 = 1 << 61;

    /// A frame at `address`. `exact` says that this is the next instruction to run (the leaf, or code that a signal
    /// interrupted) rather than a return address.
    pub const fn new(address: u64, found_by: FoundBy, exact: bool) -> Self {
        Self(address & Self::ADDRESS | if exact { Self::EXACT } else { 0 } | (found_by as u64) << 62)
    }

    /// The frame with these bits, as read from a record. Every bit pattern is a valid frame.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits for a record.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The bits of a slice of frames.
    pub(crate) const fn all_bits(frames: &[Self]) -> &[u64] {
        // SAFETY: `Frame` is `repr(transparent)` over u64.
        unsafe { core::slice::from_raw_parts(frames.as_ptr().cast(), frames.len()) }
    }

    /// A frame of an interpreted function.
    pub const fn interpreted(frame: Interpreted) -> Self {
        let function =
            (frame.function as u64 & Interpreted::MOST_FUNCTIONS as u64) << Interpreted::OFFSET_BITS;
        let offset = frame.offset as u64 & Interpreted::LAST_OFFSET as u64;
        Self(function | offset | Self::INTERPRETED | (FoundBy::Region as u64) << 62)
    }

    /// The interpreted frame; `None` for a native one.
    pub const fn as_interpreted(self) -> Option<Interpreted> {
        if self.0 & Self::INTERPRETED == 0 {
            return None;
        }
        let function = (self.0 >> Interpreted::OFFSET_BITS) as u32 & Interpreted::MOST_FUNCTIONS;
        Some(Interpreted { function, offset: self.0 as u32 & Interpreted::LAST_OFFSET })
    }

    /// The program counter or return address.
    pub const fn address(self) -> u64 {
        self.0 & Self::ADDRESS
    }

    /// How the address was found.
    pub const fn found_by(self) -> FoundBy {
        match self.0 >> 62 {
            0 => FoundBy::Cfi,
            1 => FoundBy::FramePointer,
            2 => FoundBy::Guess,
            _ => FoundBy::Region,
        }
    }

    /// Whether the address is that of an instruction about to run rather than a return address.
    pub const fn is_exact(self) -> bool {
        self.0 & Self::EXACT != 0
    }

    /// The address for looking up symbols and rows: inside the call instruction for a return address.
    pub const fn lookup_address(self) -> u64 {
        if self.is_exact() { self.address() } else { self.address().saturating_sub(1) }
    }
}

/// A position in an interpreted function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Interpreted {
    /// Number of the function in the region, 28 bits; [`Interpreted::NOTHING`] marks missing frames.
    pub function: u32,
    /// Instruction, in units of the interpreter's smallest one, 24 bits. For missing frames, the reason.
    pub offset: u32,
}

impl Interpreted {
    const OFFSET_BITS: u32 = 24;
    /// Largest function number.
    pub const MOST_FUNCTIONS: u32 = (1 << 28) - 1;
    /// Largest instruction offset.
    pub const LAST_OFFSET: u32 = (1 << Self::OFFSET_BITS) - 1;
    /// Function number that marks missing frames.
    pub const NOTHING: u32 = 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_round_trip() {
        for found_by in [FoundBy::Cfi, FoundBy::FramePointer, FoundBy::Guess, FoundBy::Region] {
            for exact in [false, true] {
                let frame = Frame::from_bits(Frame::new(0x7fff_1234_5678, found_by, exact).bits());
                assert_eq!(frame.address(), 0x7fff_1234_5678);
                assert_eq!(frame.found_by(), found_by);
                assert_eq!(frame.is_exact(), exact);
                assert_eq!(frame.lookup_address(), 0x7fff_1234_5678 - u64::from(!exact));
            }
        }
    }

    #[test]
    fn interpreted_frames_have_no_address() {
        for (function, offset) in
            [(0, 0), (1, 7), (Interpreted::MOST_FUNCTIONS, Interpreted::LAST_OFFSET), (0x123_4567, 0x89_abcd)]
        {
            let frame = Frame::interpreted(Interpreted { function, offset });
            assert_eq!(frame.as_interpreted(), Some(Interpreted { function, offset }));
            assert_eq!((frame.found_by(), frame.is_exact()), (FoundBy::Region, false));
        }
        assert_eq!(Frame::new(u64::MAX, FoundBy::Region, true).as_interpreted(), None);
    }
}
