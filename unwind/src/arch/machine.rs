//! Architectures, identified by their ELF machine numbers.

/// Architecture of an ELF file, of those that this crate supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Machine {
    /// `EM_X86_64`.
    X86_64 = 62,
    /// `EM_AARCH64`.
    Aarch64 = 183,
}

impl Machine {
    /// The machine with this `e_machine`; `None` if it is not supported.
    pub const fn from_elf(e_machine: u16) -> Option<Self> {
        match e_machine {
            62 => Some(Self::X86_64),
            183 => Some(Self::Aarch64),
            _ => None,
        }
    }

    /// Whether calls leave the return address in a link register.
    pub(crate) const fn links(self) -> bool {
        matches!(self, Self::Aarch64)
    }

    /// Its `e_machine`.
    pub const fn to_elf(self) -> u16 {
        self as u16
    }
}

impl core::fmt::Display for Machine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Machine::X86_64 => "x86-64",
            Machine::Aarch64 => "aarch64",
        })
    }
}
