//! Why a walk ended. Every walk has exactly one reason.

/// Why a walk ended. Only [`End::Root`] means that the stack is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum End {
    /// The outermost frame: its return address is undefined or (unless a frame was guessed) zero, or it is the module's entry stub.
    Root = 0,
    /// The caller's array of frames is full.
    DepthLimit = 1,
    /// The address is in no known module, and no plausible caller was found on the stack.
    NoModule = 2,
    /// The module has no CFI for the address, and no plausible caller was found on the stack.
    NoCfi = 3,
    /// The call frame information is malformed or unsupported.
    BadCfi = 4,
    /// A word of the stack could not be read.
    Unreadable = 5,
    /// The caller's frame is not further out: the stack or the rules are corrupt.
    NoProgress = 6,
    /// A rule needs a register that an earlier frame did not preserve.
    LostRegister = 7,
    /// A region's unwinder returned an invalid caller: no program counter, no stack pointer, or no code there.
    BadUnwinder = 8,
    /// The word that the rule gives as the return address does not point after a call. Seen where a program has
    /// switched stacks.
    NoCode = 9,
}

impl End {
    /// All reasons, by number.
    pub const ALL: [End; 10] = [
        End::Root,
        End::DepthLimit,
        End::NoModule,
        End::NoCfi,
        End::BadCfi,
        End::Unreadable,
        End::NoProgress,
        End::LostRegister,
        End::BadUnwinder,
        End::NoCode,
    ];

    /// The reason with this number from a record.
    pub const fn from_number(number: u8) -> Option<End> {
        let mut i = 0;
        while i < Self::ALL.len() {
            if Self::ALL[i] as u8 == number {
                return Some(Self::ALL[i]);
            }
            i += 1;
        }
        None
    }

    /// Whether the stack reaches its outermost frame.
    pub const fn is_complete(self) -> bool {
        matches!(self, End::Root)
    }

    /// The name that outputs use.
    pub const fn name(self) -> &'static str {
        match self {
            End::Root => "root",
            End::DepthLimit => "depth-limit",
            End::NoModule => "no-module",
            End::NoCfi => "no-cfi",
            End::BadCfi => "bad-cfi",
            End::Unreadable => "unreadable",
            End::NoProgress => "no-progress",
            End::LostRegister => "lost-register",
            End::BadUnwinder => "bad-unwinder",
            End::NoCode => "no-code",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for (number, end) in End::ALL.into_iter().enumerate() {
            assert_eq!(End::from_number(number as u8), Some(end));
        }
        assert_eq!(End::from_number(10), None);
    }
}
