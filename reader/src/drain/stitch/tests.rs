//! Joins hand-made answers and checks the samples.

use super::perf_record::tests::{deferred_bytes, lost_bytes, promising_bytes, sample_bytes, switch_bytes};
use super::*;
use selfwind_profile::profile_file::WAKE_LATENCY;

const IP: u64 = 0x40_1000;
const SP: u64 = 0x7fff_0000;
const KERNEL: u64 = 0xffff_ffff_8100_0000;

/// A ring and its stream position.
struct Rig {
    stitcher: Stitcher,
    head: u64,
    delay_ns: u64,
    out: Vec<Sample>,
}

impl Rig {
    fn new() -> Self {
        let mut stitcher = Stitcher::default();
        let code = (0x1000, 0x2000);
        stitcher.ring(&RingRecord {
            ring: 1,
            seq: 4,
            code_start: code.0,
            code_end: code.1,
            ..RingRecord::default()
        });
        Self { stitcher, head: 0, delay_ns: 0, out: Vec::new() }
    }

    fn stack(&mut self, nonce: u64) {
        let frames = vec![IP | 1 << 61, 0x40_2000, 0x40_3000 | 1 << 61];
        let sample = Sample { thread_seq: 4, nonce, weight: 1, frames, ..Sample::default() };
        self.stitcher.stack(sample, 3, &mut self.out);
    }

    fn answer(&mut self, nonce: u64, bytes: &[u8], flags: u32, in_handler: u64) {
        let head_in = self.head + bytes.len() as u64;
        let head = KernelAnswerHead {
            nonce,
            ring: 1,
            flags,
            offset: self.head,
            head_in,
            head_out: head_in + in_handler,
            delay_ns: self.delay_ns,
            ip: IP,
            sp: SP,
        };
        self.head = head_in;
        let writer = Writer { thread_seq: 4, ns: 99 };
        self.stitcher.answer(&KernelAnswer { head, bytes }, writer, &mut self.out);
    }
}

const WHOLE: u32 = KernelAnswerHead::FIRST | KernelAnswerHead::LAST;

#[test]
fn many_events_share_one_stack() {
    let mut rig = Rig::new();
    rig.stack(7);
    let events: Vec<u8> =
        (0..64).flat_map(|ns| sample_bytes(ns, &[KERNEL + ns, KERNEL + 4096], IP, SP)).collect();
    rig.answer(7, &events, WHOLE, 0);
    let [sample] = &rig.out[..] else { panic!("{:?}", rig.out) };
    assert_eq!((sample.kernel.len(), sample.weight, sample.repeated), (64, 64, false));
    assert_eq!((sample.kernel[3].ns, &sample.kernel[3].frames[..]), (3, &[KERNEL + 3, KERNEL + 4096][..]));
    assert_eq!((rig.stitcher.counts.events, rig.stitcher.counts.exact), (64, 64));
}

#[test]
fn a_stack_that_waits_is_told_by_its_chunk_and_does_not_wait_for_ever() {
    let mut rig = Rig::new();
    rig.stack(7);
    assert!(rig.stitcher.has_pending_in(3) && !rig.stitcher.has_pending_in(2));
    rig.answer(7, &sample_bytes(1, &[KERNEL], IP, SP), WHOLE, 0);
    assert!(!rig.stitcher.has_pending_in(3) && rig.out.len() == 1);
    // The thread is stopped before it writes the answer.
    rig.stack(8);
    for _ in 0..PENDING_MAX {
        rig.stitcher.end_interval(&mut rig.out);
        assert!(rig.stitcher.has_pending_in(3));
    }
    rig.stitcher.end_interval(&mut rig.out);
    assert!(!rig.stitcher.has_pending_in(3));
    let weight = |rig: &Rig| rig.out.iter().map(|sample| sample.weight).sum::<u32>();
    assert_eq!((rig.out.len(), weight(&rig), rig.out[1].nonce), (2, 2, 8));
    // Its weight was already reported when the answer arrives.
    rig.answer(8, &sample_bytes(2, &[KERNEL], IP, SP), WHOLE, 0);
    assert_eq!((weight(&rig), rig.stitcher.counts.unanswered), (2, 1));
}

#[test]
fn every_event_is_counted_once() {
    let mut rig = Rig::new();
    rig.stack(7);
    // One event comes while the handler runs; the next answer finds it.
    let inside = sample_bytes(9, &[KERNEL], IP, SP);
    rig.answer(7, &sample_bytes(1, &[KERNEL], IP, SP), WHOLE, inside.len() as u64);
    rig.stack(8);
    let rest = [
        inside,
        sample_bytes(2, &[KERNEL], 0x1800, 1),
        sample_bytes(3, &[KERNEL], IP + 2, SP),
        sample_bytes(4, &[KERNEL], 0x40_3000, SP + 64),
        sample_bytes(5, &[KERNEL], 0x99, SP),
        lost_bytes(3),
    ];
    rig.answer(8, &rest.concat(), WHOLE, 0);
    let counts = rig.stitcher.counts;
    assert_eq!((counts.events, counts.exact, counts.restarted, counts.deeper), (6, 1, 1, 1));
    assert_eq!((counts.overhead, counts.unmatched, counts.lost), (2, 1, 3));
    let [_, main, deeper, nowhere] = &rig.out[..] else { panic!("{:?}", rig.out) };
    // One restarted event, and three that the kernel lost.
    assert_eq!((main.kernel.len(), main.kernel[1].weight, main.weight), (2, 3, 4));
    assert_eq!((&deeper.frames[..], deeper.weight, deeper.repeated), (&[0x40_3000 | 1 << 61][..], 1, true));
    assert_eq!((nowhere.end, nowhere.frames.len(), nowhere.kernel.len()), (NO_ANSWER, 1, 1));
    let total: u32 = rig.out.iter().map(|sample| sample.weight).sum();
    assert_eq!(u64::from(total), counts.events - counts.overhead + counts.lost);
}

#[test]
fn what_a_full_ring_lost_is_the_stack_s_that_filled_it() {
    let mut rig = Rig::new();
    rig.stack(7);
    rig.answer(7, &sample_bytes(1, &[KERNEL], IP, SP), WHOLE, 0);
    rig.stack(8);
    rig.answer(8, &[lost_bytes(30), sample_bytes(2, &[KERNEL], IP, SP)].concat(), WHOLE, 0);
    let told: Vec<_> = rig.out.iter().map(|sample| (sample.nonce, sample.weight, sample.repeated)).collect();
    assert_eq!(told, [(7, 1, false), (8, 1, false), (7, 30, true)]);
    assert_eq!((rig.out[2].frames.len(), rig.stitcher.counts.lost), (3, 30));
    // Before the first answer there is no earlier stack.
    let mut rig = Rig::new();
    rig.stack(7);
    rig.answer(7, &[lost_bytes(5), sample_bytes(2, &[KERNEL], IP, SP)].concat(), WHOLE, 0);
    assert_eq!((rig.out.len(), rig.out[0].weight), (1, 6));
}

#[test]
fn ticks_that_were_left_out_are_weight_of_the_next_stack() {
    let mut rig = Rig::new();
    let frames = vec![IP | 1 << 61];
    let sample = Sample { thread_seq: 4, nonce: 7, weight: 5, frames, ..Sample::default() };
    rig.stitcher.stack(sample, 3, &mut rig.out);
    rig.answer(7, &sample_bytes(1, &[KERNEL], IP, SP), WHOLE, 0);
    let [sample] = &rig.out[..] else { panic!("{:?}", rig.out) };
    // CPU time without an event is most likely that of the last event.
    assert_eq!((sample.weight, sample.kernel.len()), (5, 1));
    assert_eq!(sample.parts().map(|event| event.weight).collect::<Vec<_>>(), [5]);
}

#[test]
fn an_answer_may_come_in_pieces() {
    let mut rig = Rig::new();
    rig.stack(7);
    let bytes = [sample_bytes(1, &[KERNEL; 9], IP, SP), sample_bytes(2, &[KERNEL; 9], IP, SP)].concat();
    rig.answer(7, &bytes[..80], KernelAnswerHead::FIRST, 0);
    assert!(rig.out.is_empty());
    rig.answer(7, &bytes[80..], KernelAnswerHead::LAST, 0);
    assert_eq!((rig.out.len(), rig.out[0].kernel.len()), (1, 2));
    assert_eq!(rig.stitcher.counts.missing_bytes + rig.stitcher.counts.malformed, 0);
}

#[test]
fn a_lost_piece_costs_its_events_and_no_others() {
    let mut rig = Rig::new();
    rig.stack(7);
    let bytes = sample_bytes(1, &[KERNEL; 9], IP, SP);
    rig.answer(7, &bytes[..80], KernelAnswerHead::FIRST, 0);
    rig.head += 64;
    rig.answer(7, &bytes[80..], KernelAnswerHead::LAST, 0);
    assert_eq!((rig.out.len(), rig.out[0].kernel.len()), (1, 0));
    assert!(rig.stitcher.counts.missing_bytes >= 64);
    rig.stack(8);
    rig.answer(8, &bytes, WHOLE, 0);
    assert_eq!((rig.out[1].kernel.len(), rig.stitcher.counts.exact), (1, 1));
}

#[test]
fn a_stack_answers_again_what_came_from_its_own_handler() {
    let mut rig = Rig::new();
    rig.stack(7);
    let inside = sample_bytes(9, &[KERNEL], 0x1800, 1);
    rig.answer(7, &sample_bytes(1, &[KERNEL], IP, SP), WHOLE, inside.len() as u64);
    rig.answer(7, &inside, WHOLE | KernelAnswerHead::REPEATED, 0);
    assert_eq!((rig.out.len(), rig.stitcher.counts.overhead), (1, 1));
    rig.answer(7, &sample_bytes(1, &[KERNEL], IP, SP), WHOLE | KernelAnswerHead::REPEATED, 0);
    assert_eq!((rig.out.len(), rig.out[1].repeated, rig.out[1].weight), (2, true, 1));
}

#[test]
fn the_time_off_the_processor_is_the_weight() {
    let mut rig = Rig::new();
    rig.stack(7);
    let bytes = [
        sample_bytes(1000, &[KERNEL], IP, SP),
        switch_bytes(1100, true, false),
        switch_bytes(2_001_500, false, false),
        sample_bytes(3_000_000, &[KERNEL + 1], IP, SP),
        switch_bytes(3_000_000, true, true),
        switch_bytes(9_000_000, false, false),
        sample_bytes(9_100_000, &[KERNEL + 2], IP, SP),
        switch_bytes(9_100_000, true, false),
        switch_bytes(9_101_600, false, false),
    ];
    rig.answer(7, &bytes.concat(), WHOLE, 0);
    let [sample] = &rig.out[..] else { panic!("{:?}", rig.out) };
    // 2000.4 us and 1.6 us: the fraction is carried over. Preempted for 6000 us.
    let weights: Vec<u32> = sample.kernel.iter().map(|kernel| kernel.weight).collect();
    assert_eq!((weights, sample.weight), (vec![2000, 2], 2002));
    assert_eq!(rig.stitcher.counts.preempted_us, 6000);
}

#[test]
fn a_wait_of_hours_keeps_its_weight() {
    let mut rig = Rig::new();
    rig.stack(7);
    // Two hours in microseconds do not fit 32 bits.
    let (from, to) = (1_000_000, 7_200_001_000_000);
    let bytes = [
        sample_bytes(from, &[KERNEL], IP, SP),
        switch_bytes(from, true, false),
        switch_bytes(to, false, false),
    ];
    rig.answer(7, &bytes.concat(), WHOLE, 0);
    let weight: u64 = rig.out.iter().map(|sample| u64::from(sample.weight)).sum();
    let told: u64 =
        rig.out.iter().flat_map(|sample| &sample.kernel).map(|event| u64::from(event.weight)).sum();
    assert_eq!((weight, told), (7_200_000_000, 7_200_000_000), "{:?}", rig.out);
    assert_eq!(rig.out.iter().map(|sample| sample.repeated).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn the_time_from_being_woken_to_running_is_told_apart() {
    let mut rig = Rig::new();
    let flags = WHOLE | KernelAnswerHead::DELAY;
    let wait = |from: u64, to: u64| {
        [
            sample_bytes(from, &[KERNEL], IP, SP),
            switch_bytes(from, true, false),
            switch_bytes(to, false, false),
        ]
        .concat()
    };
    // The run delay before the first answer belongs to no wait.
    rig.stack(7);
    rig.delay_ns = 90_000_000;
    rig.answer(7, &wait(0, 1_000_000), flags, 0);
    assert_eq!((rig.out.len(), rig.out[0].kernel.len()), (1, 1));
    // Preempted for 3 ms; 40 us of wake-up latency after a wait of 2 ms.
    rig.stack(8);
    rig.delay_ns += 3_040_000;
    let preempted = [switch_bytes(6_000_000, true, true), switch_bytes(9_000_000, false, false)].concat();
    let bytes = [wait(2_000_000, 4_000_000), sample_bytes(6_000_000, &[KERNEL], IP, SP), preempted].concat();
    rig.answer(8, &bytes, flags, 0);
    let told = |sample: &Sample| -> Vec<_> {
        sample.kernel.iter().map(|kernel| (kernel.weight, kernel.frames.clone())).collect()
    };
    assert_eq!(told(&rig.out[1]), [(1960, vec![KERNEL]), (40, vec![WAKE_LATENCY, KERNEL])]);
    // Two waits share one answer, and neither was runnable for longer than it was off the CPU.
    rig.stack(16);
    rig.delay_ns += 500_000;
    rig.answer(16, &[wait(10_000_000, 10_100_000), wait(11_000_000, 12_000_000)].concat(), flags, 0);
    let expected =
        [(100, vec![WAKE_LATENCY, KERNEL]), (600, vec![KERNEL]), (400, vec![WAKE_LATENCY, KERNEL])];
    assert_eq!((told(&rig.out[2]), rig.out[2].weight), (expected.to_vec(), 1100));
    assert_eq!(rig.stitcher.counts.wake_latency_us, 540);
    // A program that forbids system calls reports no run delays.
    rig.stack(10);
    rig.answer(10, &wait(20_000_000, 21_000_000), WHOLE, 0);
    assert_eq!(told(&rig.out[3]), [(1000, vec![KERNEL])]);
}

#[test]
fn an_event_may_have_a_stack_of_its_own() {
    let mut rig = Rig::new();
    rig.stack(8);
    let first = sample_bytes(1, &[KERNEL], 0x40_9002, SP - 64);
    let of_second = event_nonce(1, first.len() as u64);
    let frames = vec![0x40_9000 | 1 << 61, 0x40_a000, 0x40_2000, 0x40_3000 | 1 << 61];
    let own = Sample { thread_seq: 4, nonce: of_second, frames, ..Sample::default() };
    rig.stitcher.stack(own, 3, &mut rig.out);
    let second = sample_bytes(2, &[KERNEL], 0x40_9002, SP - 64);
    let third = sample_bytes(3, &[KERNEL], IP, SP);
    rig.answer(8, &[first, second, third].concat(), WHOLE | KernelAnswerHead::BLOCKED, 0);
    let counts = rig.stitcher.counts;
    assert_eq!((counts.events, counts.exact, counts.returned, counts.blocked), (3, 1, 1, 1));
    let [answer, unanswered, returned] = &rig.out[..] else { panic!("{:?}", rig.out) };
    assert_eq!((answer.nonce, answer.kernel.len(), unanswered.end), (8, 1, NO_ANSWER));
    // Its leaf is where the event happened, not where the walk began.
    let leaf = Frame::new(0x40_9002, unwind::FoundBy::Cfi, true).bits();
    assert_eq!(returned.frames, [leaf, 0x40_a000, 0x40_2000, 0x40_3000 | 1 << 61]);
    assert_eq!((returned.weight, returned.ns, returned.end), (1, 2, End::Root as u8));
    // It belongs to that answer alone.
    rig.stack(16);
    assert!(rig.stitcher.threads.values().all(|thread| thread.of_events.is_empty()));
}

#[test]
fn what_the_kernel_walked_itself_answers_what_no_stack_of_ours_does() {
    let mut rig = Rig::new();
    rig.stack(7);
    let bytes = [
        promising_bytes(1, &[KERNEL], 70, 0x40_9000, SP),
        promising_bytes(2, &[KERNEL + 1], 70, 0x40_9000, SP),
        deferred_bytes(70, &[0x40_9000, 0x40_a000]),
        promising_bytes(3, &[KERNEL], 71, IP, SP),
        deferred_bytes(71, &[IP, 0x40_2000]),
        promising_bytes(4, &[KERNEL], 72, 0x40_b000, SP),
    ];
    rig.answer(7, &bytes.concat(), WHOLE | KernelAnswerHead::BLOCKED, 0);
    let counts = rig.stitcher.counts;
    assert_eq!((counts.events, counts.exact, counts.deferred, counts.blocked), (4, 1, 2, 1));
    let [own, first, second, nowhere] = &rig.out[..] else { panic!("{:?}", rig.out) };
    assert_eq!((own.kernel.len(), own.weight), (1, 1));
    for (walked, ns) in [(first, 1), (second, 2)] {
        let found: Vec<Frame> = walked.frames.iter().map(|&word| Frame::from_bits(word)).collect();
        assert_eq!(
            (found[0].address(), found[0].is_exact(), found[1].address()),
            (0x40_9000, true, 0x40_a000)
        );
        assert_eq!((walked.end, walked.weight, walked.ns), (End::Root as u8, 1, ns));
    }
    assert_eq!(nowhere.end, NO_ANSWER);
}

#[test]
fn without_an_answer_a_stack_is_a_sample_all_the_same() {
    let mut rig = Rig::new();
    rig.stack(7);
    rig.stack(8);
    assert_eq!((rig.out.len(), rig.out[0].nonce), (1, 7));
    rig.stitcher.thread_ended(4);
    rig.stitcher.forget_ended(&mut rig.out);
    assert_eq!((rig.out.len(), rig.out[1].nonce, rig.stitcher.rings.len()), (2, 8, 0));
    rig.answer(9, &sample_bytes(1, &[], IP, SP), WHOLE | KernelAnswerHead::UNANSWERED, 0);
    assert_eq!((rig.out.len(), rig.stitcher.counts.unanswered), (2, 1));
}

#[test]
fn garbage_is_counted_and_goes_no_further() {
    let mut rig = Rig::new();
    rig.stack(7);
    rig.answer(7, &[0xff; 64], WHOLE, 0);
    assert_eq!((rig.out.len(), rig.stitcher.counts.malformed), (1, 1));
}
