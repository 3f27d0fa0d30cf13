//! What a handler says of the kernel's requests that one of its stacks answers: which part of which kernel ring, and
//! the bytes of that part.
//!
//! A kernel ring is a stream of bytes; `data_head` counts them. All that lies below the head at the entry of the
//! handler was asked for before it, so it belongs to the stack that this handler takes.

/// Fixed part of an answer: everything but the bytes of the kernel ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelAnswerHead {
    /// Name of the stack that answers: the ring and its head at the entry of the handler.
    pub nonce: u64,
    /// The kernel ring, by its number in the region.
    pub ring: u32,
    /// [`KernelAnswerHead::BLOCKED`] and the others.
    pub flags: u32,
    /// Place in the ring's stream of the first byte carried here.
    pub offset: u64,
    /// The ring's head at the entry of the handler.
    pub head_in: u64,
    /// The ring's head when this was written: what lies between came from the handler itself.
    pub head_out: u64,
    /// With [`KernelAnswerHead::DELAY`]: nanoseconds for which the thread has been ready to run and had no processor, all
    /// together.
    pub delay_ns: u64,
    /// The interrupted instruction.
    pub ip: u64,
    /// The interrupted stack pointer.
    pub sp: u64,
}

impl KernelAnswerHead {
    /// Payload words before the bytes.
    pub const WORDS: usize = 8;
    /// The signal was blocked when the kernel asked: the thread has moved on since.
    pub const BLOCKED: u32 = 1;
    /// The first bytes begin a record of the kernel.
    pub const FIRST: u32 = 2;
    /// Nothing of this handler's run follows in this ring.
    pub const LAST: u32 = 4;
    /// No stack answers: the thread is ending.
    pub const UNANSWERED: u32 = 8;
    /// The stack is that of an earlier handler, which had the same nonce.
    pub const REPEATED: u32 = 16;
    /// `delay_ns` is known.
    pub const DELAY: u32 = 32;

    /// The payload words before the bytes.
    #[must_use]
    pub const fn words(&self) -> [u64; Self::WORDS] {
        [
            self.nonce,
            self.ring as u64 | (self.flags as u64) << 32,
            self.offset,
            self.head_in,
            self.head_out,
            self.delay_ns,
            self.ip,
            self.sp,
        ]
    }
}

/// An answer, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelAnswer<'a> {
    /// Everything but the bytes.
    pub head: KernelAnswerHead,
    /// The part of the kernel ring, in whole words. The kernel wrote it; the target may have changed it.
    pub bytes: &'a [u8],
}

impl<'a> KernelAnswer<'a> {
    /// Parses a payload. `None` unless it is a head and whole words of a stream that the head describes.
    #[must_use]
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let (fixed, bytes) = payload.split_at_checked(KernelAnswerHead::WORDS * 8)?;
        let mut words = [0u64; KernelAnswerHead::WORDS];
        for (word, part) in words.iter_mut().zip(fixed.chunks_exact(8)) {
            *word = u64::from_le_bytes(part.try_into().ok()?);
        }
        let [nonce, ring, offset, head_in, head_out, delay_ns, ip, sp] = words;
        let head = KernelAnswerHead {
            nonce,
            ring: ring as u32,
            flags: (ring >> 32) as u32,
            offset,
            head_in,
            head_out,
            delay_ns,
            ip,
            sp,
        };
        let end = offset.checked_add(bytes.len() as u64)?;
        (bytes.len().is_multiple_of(8) && end <= head_in && head_in <= head_out)
            .then_some(Self { head, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn payload(head: &KernelAnswerHead, words: usize) -> Vec<u8> {
        let body = core::iter::repeat_n(7u64, words);
        head.words().into_iter().chain(body).flat_map(u64::to_le_bytes).collect()
    }

    #[test]
    fn an_answer_comes_back() {
        let head = KernelAnswerHead {
            nonce: 1 << 40 | 64,
            ring: 1,
            flags: KernelAnswerHead::FIRST | KernelAnswerHead::LAST,
            offset: 48,
            head_in: 64,
            head_out: 96,
            delay_ns: 5,
            ip: 0x40_1000,
            sp: 0x7fff_0000,
        };
        let bytes = payload(&head, 2);
        let answer = KernelAnswer::parse(&bytes).unwrap();
        assert_eq!((answer.head, answer.bytes.len()), (head, 16));
    }

    #[test]
    fn what_no_handler_writes_is_refused() {
        let head = KernelAnswerHead { offset: 48, head_in: 64, head_out: 64, ..KernelAnswerHead::default() };
        assert!(KernelAnswer::parse(&payload(&head, 2)).is_some());
        assert!(KernelAnswer::parse(&payload(&head, 3)).is_none(), "beyond the head");
        assert!(KernelAnswer::parse(&payload(&head, 2)[..79]).is_none(), "no whole words");
        assert!(KernelAnswer::parse(&payload(&head, 0)[..63]).is_none(), "short");
        assert!(KernelAnswer::parse(&payload(&KernelAnswerHead { head_out: 63, ..head }, 2)).is_none());
        assert!(KernelAnswer::parse(&payload(&KernelAnswerHead { offset: u64::MAX, ..head }, 1)).is_none());
    }
}
