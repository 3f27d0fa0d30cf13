//! What an x86-64 instruction does to the control flow, as far as a shadow stack has to know it.

/// The kinds of instruction the shadow stack tells apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// Near call, direct or indirect: pushes a return address.
    Call,
    /// Near return, with or without popped bytes.
    Return,
    /// Jump through a register or memory: tail calls, `longjmp`, procedure linkage.
    IndirectJump,
    /// `syscall`.
    Syscall,
    /// Everything else.
    Other,
}

/// Classifies the instruction at the start of `code`, which holds up to 15 bytes.
///
/// Prefixes and opcodes are those of the Intel SDM volume 2, chapter 2 and appendix A. A call whose target
/// is the next instruction is how position-independent code reads its own address; it is no call to unwind
/// from, and its relative offset of zero is classified as [`Flow::Other`].
pub fn classify(code: &[u8]) -> Flow {
    let mut rest = code;
    while let [0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf2 | 0xf3, tail @ ..] = rest {
        rest = tail;
    }
    if let [0x40..=0x4f, tail @ ..] = rest {
        rest = tail;
    }
    match rest {
        [0xe8, 0, 0, 0, 0, ..] => Flow::Other,
        [0xe8, ..] => Flow::Call,
        [0xff, modrm, ..] => match modrm >> 3 & 7 {
            2 => Flow::Call,
            4 => Flow::IndirectJump,
            _ => Flow::Other,
        },
        [0xc3 | 0xc2, ..] => Flow::Return,
        [0x0f, 0x05, ..] => Flow::Syscall,
        _ => Flow::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::{Flow, classify};

    #[test]
    fn calls_and_returns_with_every_prefix_the_compilers_emit() {
        assert_eq!(classify(&[0xe8, 1, 0, 0, 0]), Flow::Call);
        assert_eq!(classify(&[0xff, 0x15, 0, 0, 0, 0]), Flow::Call);
        assert_eq!(classify(&[0x41, 0xff, 0xd4]), Flow::Call);
        assert_eq!(classify(&[0x3e, 0xff, 0xd0]), Flow::Call, "notrack");
        assert_eq!(classify(&[0x66, 0x48, 0xe8, 9, 0, 0, 0]), Flow::Call, "__tls_get_addr padding");
        assert_eq!(classify(&[0xc3]), Flow::Return);
        assert_eq!(classify(&[0xf3, 0xc3]), Flow::Return);
        assert_eq!(classify(&[0xf2, 0xc3]), Flow::Return, "bnd");
        assert_eq!(classify(&[0xc2, 8, 0]), Flow::Return);
        assert_eq!(classify(&[0x0f, 0x05]), Flow::Syscall);
        assert_eq!(classify(&[0xff, 0xe2]), Flow::IndirectJump);
        assert_eq!(classify(&[0xf2, 0xff, 0x25, 0, 0, 0, 0]), Flow::IndirectJump, "bnd plt");
    }

    #[test]
    fn lookalikes_are_not_calls() {
        assert_eq!(classify(&[0xe8, 0, 0, 0, 0]), Flow::Other, "reads its own address");
        assert_eq!(classify(&[0xff, 0x35, 0, 0, 0, 0]), Flow::Other, "push");
        assert_eq!(classify(&[0xff, 0xc0]), Flow::Other, "inc");
        assert_eq!(classify(&[0x0f, 0x0b]), Flow::Other, "ud2");
        assert_eq!(classify(&[]), Flow::Other);
    }
}
