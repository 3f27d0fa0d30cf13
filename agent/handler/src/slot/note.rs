//! How a thread, or a signal, says which slot is its own: by a token, the slot's number under a mark.
//!
//! A token is no address: whatever stands in the memory of a thread that the C library did not make, or in a signal
//! that somebody else has sent, leads to a slot or to nothing.

use core::arch::{asm, global_asm};

/// Upper half of every token: no address of user space begins like this.
const MARK: u64 = 0x5357_534c << 32;
const MARK_BITS: u64 = 0xffff_ffff << 32;
/// Of a thread that has given its slot back and is about to end.
const ENDED: u64 = MARK | 0xffff_ffff;

/// The token of slot `number`.
pub(super) fn token(number: u32) -> u64 {
    MARK | u64::from(number)
}

/// The number in a token.
pub(super) fn number(token: u64) -> Option<usize> {
    (token & MARK_BITS == MARK && token != ENDED).then_some((token & !MARK_BITS) as usize)
}

// The token of the calling thread's slot. Initial-exec: eight bytes of the static block, found without a call. A
// general-dynamic variable would reach `__tls_get_addr`, which may allocate inside the handler.
global_asm!(
    ".section .tbss,\"awT\",@nobits",
    ".globl selfwind_slot",
    ".hidden selfwind_slot",
    ".type selfwind_slot,@object",
    ".size selfwind_slot,8",
    ".p2align 3",
    "selfwind_slot:",
    ".zero 8",
    ".text",
);

/// What is noted for the calling thread, or 0.
///
/// Where no loader has placed the library there is no such variable, and its offset is 0: which is where every
/// thread's own control block begins (x86-64 TLS ABI), so no variable's.
#[inline]
pub(super) fn read() -> u64 {
    let token;
    // SAFETY: reads eight bytes of the thread's static block, at an offset the loader fixed.
    unsafe {
        asm!(
            "mov {0}, [rip + selfwind_slot@GOTTPOFF]",
            "test {0}, {0}",
            "jz 2f",
            "mov {0}, fs:[{0}]",
            "2:",
            out(reg) token,
            options(nostack, readonly),
        );
    }
    token
}

/// Notes `token` for the calling thread.
pub(super) fn write(token: u64) {
    // SAFETY: writes eight bytes of the thread's static block that nothing else uses.
    unsafe {
        asm!(
            "mov {0}, [rip + selfwind_slot@GOTTPOFF]",
            "test {0}, {0}",
            "jz 2f",
            "mov fs:[{0}], {1}",
            "2:",
            out(reg) _,
            in(reg) token,
            options(nostack),
        );
    }
}

/// Notes that the calling thread has given its slot back and is about to end.
pub fn note_end() {
    write(ENDED);
}

/// True after [`note_end`].
pub(crate) fn has_ended() -> bool {
    read() == ENDED
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn tokens_are_told_from_everything_else() {
        for slot in [0, 1, 4711, u32::MAX - 1] {
            assert_eq!(number(token(slot)), Some(slot as usize));
        }
        for other in [0, 1, 0x7fff_1234_5678, u64::MAX, ENDED, MARK << 1] {
            assert_eq!(number(other), None, "{other:x}");
        }
    }

    #[test]
    fn each_thread_has_its_own_note() {
        assert_eq!(read(), 0);
        write(token(7));
        std::thread::spawn(|| assert_eq!(read(), 0)).join().unwrap();
        assert_eq!(number(read()), Some(7));
        note_end();
        assert!(has_ended());
        write(0);
    }
}
