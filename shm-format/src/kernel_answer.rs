//! The answer of a handler to requests of the kernel: which bytes of which perf ring its stack answers, and a copy of
//! those bytes.
//!
//! A perf ring is a stream of bytes, counted by `data_head`. Everything below the head at the handler's entry was
//! written before it, so it is answered by the stack that this handler takes.

/// The fixed part of an answer, before the bytes of the perf ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelAnswerHead {
    /// Identifies the stack that answers: the ring, and its head at the handler's entry.
    pub nonce: u64,
    /// Number of the perf ring in the region.
    pub ring: u32,
    /// A combination of [`KernelAnswerHead::BLOCKED`] and the other flags.
    pub flags: u32,
    /// Position in the ring's stream of the first byte copied here.
    pub offset: u64,
    /// The ring's head at the handler's entry.
    pub head_in: u64,
    /// The ring's head when this was written. What lies between the two was caused by the handler itself.
    pub head_out: u64,
    /// With [`KernelAnswerHead::DELAY`]: total nanoseconds during which the thread was runnable without a CPU
    /// (run-queue delay).
    pub delay_ns: u64,
    /// The interrupted program counter.
    pub ip: u64,
    /// The interrupted stack pointer.
    pub sp: u64,
}

/// Bits of a nonce that hold a position in a ring's stream; the ring's number is above them.
const POSITION_BITS: u32 = 40;

/// Nonce of the stack that answers what is in ring number `ring` below `head`.
#[must_use]
pub const fn answer_nonce(ring: u32, head: u64) -> u64 {
    (ring as u64) << POSITION_BITS | head & ((1 << POSITION_BITS) - 1)
}

/// Nonce of the stack of one event, at `offset` in the stream: of one that happened before the thread came to the place of the
/// answer. Positions are multiples of eight, so it is nobody else's.
#[must_use]
pub const fn event_nonce(ring: u32, offset: u64) -> u64 {
    answer_nonce(ring, offset) | 1
}

/// Whether this is an [`event_nonce`].
#[must_use]
pub const fn is_event_nonce(nonce: u64) -> bool {
    nonce % 8 == 1
}

impl KernelAnswerHead {
    /// Payload words before the bytes.
    pub const WORDS: usize = 8;
    /// The signal was blocked when the kernel made the request: the thread has moved on since.
    pub const BLOCKED: u32 = 1;
    /// The bytes begin at a record boundary.
    pub const FIRST: u32 = 2;
    /// The last part for this run of the handler in this ring.
    pub const LAST: u32 = 4;
    /// No stack answers: the thread is exiting.
    pub const UNANSWERED: u32 = 8;
    /// The stack is that of an earlier handler run with the same nonce.
    pub const REPEATED: u32 = 16;
    /// `delay_ns` is valid.
    pub const DELAY: u32 = 32;

    /// The fixed part as payload words.
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

/// A parsed answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelAnswer<'a> {
    /// The fixed part.
    pub head: KernelAnswerHead,
    /// The copied part of the perf ring, in whole words. Written by the kernel; the target may have modified it.
    pub bytes: &'a [u8],
}

impl<'a> KernelAnswer<'a> {
    /// Parses a payload. `None` unless it consists of a valid fixed part and as many whole words as that describes.
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
    fn an_answer_round_trips() {
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
    fn an_event_s_nonce_is_no_answer_s() {
        for position in [0, 8, 4096, (1 << 40) - 8, 1 << 41 | 64] {
            assert!(!is_event_nonce(answer_nonce(3, position)));
            assert!(is_event_nonce(event_nonce(3, position)));
            assert_ne!(event_nonce(3, position), event_nonce(4, position));
        }
        assert_ne!(event_nonce(3, 8), event_nonce(3, 16));
    }

    #[test]
    fn malformed_answers_are_refused() {
        let head = KernelAnswerHead { offset: 48, head_in: 64, head_out: 64, ..KernelAnswerHead::default() };
        assert!(KernelAnswer::parse(&payload(&head, 2)).is_some());
        assert!(KernelAnswer::parse(&payload(&head, 3)).is_none(), "beyond the head");
        assert!(KernelAnswer::parse(&payload(&head, 2)[..79]).is_none(), "no whole words");
        assert!(KernelAnswer::parse(&payload(&head, 0)[..63]).is_none(), "short");
        assert!(KernelAnswer::parse(&payload(&KernelAnswerHead { head_out: 63, ..head }, 2)).is_none());
        assert!(KernelAnswer::parse(&payload(&KernelAnswerHead { offset: u64::MAX, ..head }, 1)).is_none());
    }
}
