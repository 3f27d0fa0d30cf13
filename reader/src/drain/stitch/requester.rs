//! Who asks for user stacks, and how its own record of the moment is told to belong to an answer.
//!
//! Today the kernel's ring says where the thread was, and the answer says which part of the ring it covers. A kernel
//! that hands out cookies, or another process that sends a number along, says it outright.

use shm_format::KernelAnswerHead;
use unwind::Frame;

use super::perf_record::PerfSample;

/// What an event is to an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The answer's stack is the event's.
    Exact,
    /// It is, and the kernel has set the thread back to make its system call again.
    Restarted,
    /// The event was at a breakpoint, and the thread has executed the instruction there since.
    Stepped,
    /// The event happened in the innermost frame of the answer's stack, at another instruction.
    SameFrame,
    /// The event's stack begins at this frame of the answer's.
    Deeper(usize),
    /// The event came from the agent's own doing.
    Overhead,
    /// The thread was elsewhere.
    Unmatched,
}

/// Somebody who asks.
pub(crate) trait Requester {
    /// What an event at `place`, its offset in the requester's stream, is to an answer with these frames.
    fn claim(&self, sample: &PerfSample, place: u64, answer: &KernelAnswerHead, frames: &[u64]) -> Claim;
}

/// The ring of perf_event_open(2), by the rules in `docs/perf-source.md`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelRing {
    /// The agent's code: first address, and the one after the last.
    pub(crate) code: (u64, u64),
    /// The range of the stream that the answer before this one was written in.
    pub(crate) handler: (u64, u64),
}

/// Code this far apart, with the same stack pointer, is most likely of one function.
const NEAR: u64 = 1024;
/// Bytes of the longest instruction, and of the most room that the first one of a function makes on the stack.
const LONGEST_INSTRUCTION: u64 = 15;
const LARGEST_FRAME: u64 = 1 << 20;
/// Bytes of the `syscall` instruction.
const SYSCALL: u64 = 2;

impl Requester for KernelRing {
    fn claim(&self, sample: &PerfSample, place: u64, answer: &KernelAnswerHead, frames: &[u64]) -> Claim {
        let in_handler = self.handler.0 <= place && place < self.handler.1;
        let Some((ip, sp)) = sample.user else { return Claim::Unmatched };
        if in_handler || (self.code.0 <= ip && ip < self.code.1) {
            return Claim::Overhead;
        }
        if sp == answer.sp && ip == answer.ip {
            return Claim::Exact;
        }
        if sp == answer.sp && ip == answer.ip.wrapping_add(SYSCALL) {
            return Claim::Restarted;
        }
        // What the kernel had executed in the place of a breakpoint: at most it has made room on the stack.
        let blocked = answer.flags & KernelAnswerHead::BLOCKED != 0;
        let has_stepped = (1..=LONGEST_INSTRUCTION).contains(&answer.ip.wrapping_sub(ip));
        if !blocked && has_stepped && sp.wrapping_sub(answer.sp) <= LARGEST_FRAME {
            return Claim::Stepped;
        }
        // All signals were blocked, as the C library has them around a fork, and the frame is still there.
        if blocked && sp == answer.sp && ip.abs_diff(answer.ip) < NEAR {
            return Claim::SameFrame;
        }
        // An interrupted instruction further out: a handler of the program's lies on top.
        let interrupted = |&word: &u64| {
            let frame = Frame::from_bits(word);
            let at = frame.address();
            frame.is_exact() && (at == ip || at.wrapping_add(SYSCALL) == ip)
        };
        match frames.iter().skip(1).position(interrupted) {
            Some(at) => Claim::Deeper(at + 1),
            None => Claim::Unmatched,
        }
    }
}

/// A requester that names its request, and an answer that repeats the name: another process that sends it along with
/// a signal, or a kernel that writes a cookie in place of the user stack (PERF_CONTEXT_USER_DEFERRED).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Named;

impl Requester for Named {
    fn claim(&self, sample: &PerfSample, _place: u64, answer: &KernelAnswerHead, _frames: &[u64]) -> Claim {
        if sample.cookie == Some(answer.nonce) { Claim::Exact } else { Claim::Unmatched }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IP: u64 = 0x40_1000;
    const SP: u64 = 0x7fff_0000;
    const EXACT: u64 = 1 << 61;

    fn claim(ip: u64, sp: u64, place: u64) -> Claim {
        let ring = KernelRing { code: (0x1000, 0x2000), handler: (64, 128) };
        let answer = KernelAnswerHead { ip: IP, sp: SP, ..KernelAnswerHead::default() };
        let frames = [IP | EXACT, 0x40_2000, 0x40_3000 | EXACT, 0x40_4000];
        ring.claim(&PerfSample { user: Some((ip, sp)), ..PerfSample::default() }, place, &answer, &frames)
    }

    #[test]
    fn the_rules_of_the_ring() {
        assert_eq!(claim(IP, SP, 0), Claim::Exact);
        assert_eq!(claim(IP + 2, SP, 0), Claim::Restarted);
        assert_eq!(claim(IP, SP, 64), Claim::Overhead);
        assert_eq!(claim(IP, SP, 128), Claim::Exact);
        assert_eq!(claim(0x1fff, 5, 0), Claim::Overhead);
        assert_eq!(claim(0x40_3000, SP + 800, 0), Claim::Deeper(2));
        assert_eq!(claim(0x40_3002, SP + 800, 0), Claim::Deeper(2), "restarted");
        assert_eq!(claim(0x40_4000, SP + 800, 0), Claim::Unmatched, "a return address is no interruption");
        assert_eq!(claim(IP, SP + 8, 0), Claim::Unmatched);
        assert_eq!(claim(IP + 2, SP + 8, 0), Claim::Unmatched);
        assert_eq!(claim(IP - 1, SP + 8, 0), Claim::Stepped, "a push");
        assert_eq!(claim(IP - 4, SP, 0), Claim::Stepped, "a nop");
        assert_eq!(claim(IP - 1, SP - 8, 0), Claim::Unmatched, "no first instruction gives room back");
        assert_eq!(claim(IP - 16, SP, 0), Claim::Unmatched);
    }

    #[test]
    fn behind_blocked_signals_the_frame_may_still_be_there() {
        let ring = KernelRing::default();
        let claim = |ip, sp, flags| {
            let answer = KernelAnswerHead { ip: IP, sp: SP, flags, ..KernelAnswerHead::default() };
            ring.claim(
                &PerfSample { user: Some((ip, sp)), ..PerfSample::default() },
                0,
                &answer,
                &[IP | EXACT],
            )
        };
        assert_eq!(claim(IP - 40, SP, KernelAnswerHead::BLOCKED), Claim::SameFrame);
        assert_eq!(claim(IP - 40, SP, 0), Claim::Unmatched);
        assert_eq!(claim(IP - 40, SP + 8, KernelAnswerHead::BLOCKED), Claim::Unmatched);
        assert_eq!(claim(IP - 4000, SP, KernelAnswerHead::BLOCKED), Claim::Unmatched);
    }

    #[test]
    fn names_are_equal_or_not() {
        let answer = KernelAnswerHead { nonce: 5, ..KernelAnswerHead::default() };
        for (cookie, expected) in
            [(Some(5), Claim::Exact), (Some(6), Claim::Unmatched), (None, Claim::Unmatched)]
        {
            let sample = PerfSample { cookie, ..PerfSample::default() };
            assert_eq!(Named.claim(&sample, 0, &answer, &[]), expected);
        }
    }
}
