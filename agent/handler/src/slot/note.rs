//! Tokens: how a thread, or a signal, refers to its slot. A token is the slot's number below a mark.
//!
//! A token is no address: whatever the memory of a thread without a C library contains, or a signal from another
//! sender, it refers to a slot or to nothing.

use platform::arch::{set_thread_word, thread_word};
use platform::thread_pointer;

/// Upper half of every token: no user-space address begins like this.
const MARK: u64 = 0x5357_534c << 32;
const MARK_BITS: u64 = 0xffff_ffff << 32;
/// The token of a thread that has released its slot and is about to end.
const ENDED: u64 = MARK | 0xffff_ffff;

/// The token of slot `number`.
pub(super) fn token(number: u32) -> u64 {
    MARK | u64::from(number)
}

/// The number in a token. That of a thread about to end is above every slot's.
pub(super) fn number(token: u64) -> Option<usize> {
    (token & MARK_BITS == MARK).then_some((token & !MARK_BITS) as usize)
}

/// The calling thread's token, or 0.
#[inline]
pub(super) fn read() -> u64 {
    if thread_pointer::is_usable() { thread_word() } else { 0 }
}

/// The calling thread's token, or 0. The thread must have used its thread-local storage just now.
#[inline(always)]
pub(super) fn read_unchecked() -> u64 {
    thread_word()
}

/// Sets the calling thread's token.
pub(super) fn write(token: u64) {
    if thread_pointer::is_usable() {
        set_thread_word(token);
    }
}

/// Marks the calling thread as about to end, with its slot released.
pub fn note_end() {
    write(ENDED);
}

/// Whether [`note_end`] was called.
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
        for other in [0, 1, 0x7fff_1234_5678, u64::MAX, MARK << 1] {
            assert_eq!(number(other), None, "{other:x}");
        }
        assert_eq!(number(ENDED), Some(u32::MAX as usize));
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
