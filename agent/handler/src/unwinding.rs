//! What samples contain of a stack: walked frames, a copy, or both.

/// What a sample contains of its thread's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwind {
    /// Frames, walked in the handler.
    Own,
    /// A copy of registers and stack, reduced to code addresses and stack addresses.
    Copy,
    /// A copy reduced to code addresses.
    CopyCode,
    /// A scan: every word that points after a call.
    Guess,
    /// Both frames and a copy.
    Both,
}

impl Unwind {
    /// The variant with this name in settings.
    pub fn from_name(name: &[u8]) -> Option<Unwind> {
        [Unwind::Own, Unwind::Copy, Unwind::CopyCode, Unwind::Guess, Unwind::Both]
            .into_iter()
            .find(|unwind| unwind.name().as_bytes() == name)
    }

    /// Its name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Unwind::Own => "self",
            Unwind::Copy => "copy",
            Unwind::CopyCode => "copy-code",
            Unwind::Guess => "guess",
            Unwind::Both => "both",
        }
    }

    /// Whether records contain copies.
    pub const fn copies(self) -> bool {
        matches!(self, Unwind::Copy | Unwind::CopyCode | Unwind::Both)
    }
}
