//! Decides whether an event belongs to the user stack that a thread walked in response.
//!
//! With perf rings, an event says where the thread was, and the answer says which part of the ring it covers; the two have
//! to be matched by rules. A kernel with cookies for deferred stacks makes it explicit.

use shm_format::KernelAnswerHead;
use unwind::Frame;

use super::perf_record::PerfSample;

/// How an event relates to an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// The answer's stack is the event's.
    Exact,
    /// The same, but the kernel has set the thread back to restart its system call.
    Restarted,
    /// The event was at a breakpoint, and the thread has since executed the instruction there.
    Stepped,
    /// The event's stack begins at this frame of the answer's stack.
    Deeper(usize),
    /// The agent itself caused the event.
    Overhead,
    /// The thread had moved on.
    Unmatched,
}

/// A requester of user stacks.
pub(crate) trait Requester {
    /// How an event, at `offset` in the requester's stream, relates to an answer with these frames.
    fn match_event(
        &self,
        sample: &PerfSample,
        offset: u64,
        answer: &KernelAnswerHead,
        frames: &[u64],
    ) -> Match;
}

/// A ring of perf_event_open(2), matched by the rules in `docs/perf-source.md`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelRing {
    /// Address range of the agent's code, end exclusive.
    pub(crate) code: (u64, u64),
    /// The range of the stream that was written while the handler ran for the previous answer.
    pub(crate) handler: (u64, u64),
}

/// Size of the longest instruction, and the most that the first instruction of a function extends the stack, in bytes.
const LONGEST_INSTRUCTION: u64 = 15;
const LARGEST_FRAME: u64 = 1 << 20;
/// Size of the `syscall` instruction in bytes.
const SYSCALL: u64 = 2;

impl Requester for KernelRing {
    fn match_event(
        &self,
        sample: &PerfSample,
        offset: u64,
        answer: &KernelAnswerHead,
        frames: &[u64],
    ) -> Match {
        let in_handler = self.handler.0 <= offset && offset < self.handler.1;
        let Some((ip, sp)) = sample.user else { return Match::Unmatched };
        if in_handler || (self.code.0 <= ip && ip < self.code.1) {
            return Match::Overhead;
        }
        if sp == answer.sp && ip == answer.ip {
            return Match::Exact;
        }
        if sp == answer.sp && ip == answer.ip.wrapping_add(SYSCALL) {
            return Match::Restarted;
        }
        // The instruction that the kernel executed in place of the breakpoint can at most have extended the stack.
        let blocked = answer.flags & KernelAnswerHead::BLOCKED != 0;
        let has_stepped = (1..=LONGEST_INSTRUCTION).contains(&answer.ip.wrapping_sub(ip));
        if !blocked && has_stepped && sp.wrapping_sub(answer.sp) <= LARGEST_FRAME {
            return Match::Stepped;
        }
        // An interrupted instruction further out: a signal handler of the program is on top of it.
        let interrupted = |&word: &u64| {
            let frame = Frame::from_bits(word);
            let at = frame.address();
            frame.is_exact() && (at == ip || at.wrapping_add(SYSCALL) == ip)
        };
        match frames.iter().skip(1).position(interrupted) {
            Some(at) => Match::Deeper(at + 1),
            None => Match::Unmatched,
        }
    }
}

/// A requester that numbers its requests, with answers that repeat the number: a kernel that writes a cookie in place of the
/// user stack (PERF_CONTEXT_USER_DEFERRED).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Named;

impl Requester for Named {
    fn match_event(
        &self,
        sample: &PerfSample,
        _offset: u64,
        answer: &KernelAnswerHead,
        _frames: &[u64],
    ) -> Match {
        if sample.cookie == Some(answer.nonce) { Match::Exact } else { Match::Unmatched }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IP: u64 = 0x40_1000;
    const SP: u64 = 0x7fff_0000;
    const EXACT: u64 = 1 << 61;

    fn match_event(ip: u64, sp: u64, offset: u64) -> Match {
        let ring = KernelRing { code: (0x1000, 0x2000), handler: (64, 128) };
        let answer = KernelAnswerHead { ip: IP, sp: SP, ..KernelAnswerHead::default() };
        let frames = [IP | EXACT, 0x40_2000, 0x40_3000 | EXACT, 0x40_4000];
        ring.match_event(
            &PerfSample { user: Some((ip, sp)), ..PerfSample::default() },
            offset,
            &answer,
            &frames,
        )
    }

    #[test]
    fn the_rules_of_the_ring() {
        assert_eq!(match_event(IP, SP, 0), Match::Exact);
        assert_eq!(match_event(IP + 2, SP, 0), Match::Restarted);
        assert_eq!(match_event(IP, SP, 64), Match::Overhead);
        assert_eq!(match_event(IP, SP, 128), Match::Exact);
        assert_eq!(match_event(0x1fff, 5, 0), Match::Overhead);
        assert_eq!(match_event(0x40_3000, SP + 800, 0), Match::Deeper(2));
        assert_eq!(match_event(0x40_3002, SP + 800, 0), Match::Deeper(2), "restarted");
        assert_eq!(
            match_event(0x40_4000, SP + 800, 0),
            Match::Unmatched,
            "a return address is no interruption"
        );
        assert_eq!(match_event(IP, SP + 8, 0), Match::Unmatched);
        assert_eq!(match_event(IP + 2, SP + 8, 0), Match::Unmatched);
        assert_eq!(match_event(IP - 1, SP + 8, 0), Match::Stepped, "a push");
        assert_eq!(match_event(IP - 4, SP, 0), Match::Stepped, "a nop");
        assert_eq!(match_event(IP - 1, SP - 8, 0), Match::Unmatched, "no first instruction gives room back");
        assert_eq!(match_event(IP - 16, SP, 0), Match::Unmatched);
    }

    #[test]
    fn names_are_equal_or_not() {
        let answer = KernelAnswerHead { nonce: 5, ..KernelAnswerHead::default() };
        for (cookie, expected) in
            [(Some(5), Match::Exact), (Some(6), Match::Unmatched), (None, Match::Unmatched)]
        {
            let sample = PerfSample { cookie, ..PerfSample::default() };
            assert_eq!(Named.match_event(&sample, 0, &answer, &[]), expected);
        }
    }
}
