//! Who unwinds stacks: what samples hold of them.

/// What a sample holds of its thread's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwind {
    /// Its frames, walked here.
    Own,
    /// A copy, of which addresses of code and of the stack itself are kept.
    Copy,
    /// A copy, of which addresses of code are kept.
    CopyCode,
    /// Every word that leads behind a call.
    Guess,
    /// Its frames, and the copy.
    Both,
}

impl Unwind {
    /// By its name in settings.
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

    /// True if readers get copies.
    pub const fn copies(self) -> bool {
        matches!(self, Unwind::Copy | Unwind::CopyCode | Unwind::Both)
    }
}
