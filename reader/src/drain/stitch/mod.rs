//! Brings together what the kernel recorded of a thread and the stack by which the thread answered.
//!
//! The pool brings, thread by thread and in order, a stack and then the part of the kernel's ring that it answers.
//! Each event of that part gets the stack if it was taken where the event happened, which the rules of its
//! [`Requester`] say; every event is counted, whatever becomes of it.

mod deferred;
mod order;
mod perf_record;
mod requester;
mod waits;

use std::collections::BTreeMap;

use selfwind_profile::profile_file::{Cause, KernelSample, NO_ANSWER, Sample, WAKE_LATENCY};
use shm_format::record::KernelRing as RingRecord;
use shm_format::{KernelAnswer, KernelAnswerHead};
use unwind::{End, Frame};

use self::deferred::Deferred;
use self::order::Order;
use self::perf_record::{PerfRecord, PerfSample, split};
use self::requester::{Claim, KernelRing, Requester};
use self::waits::Waits;

/// Turns for which a stack waits for what the kernel recorded. Its thread may have been stopped in between.
const PATIENCE: u64 = 32;
/// No ring is longer, and no unfinished part of one.
const STREAM_LIMIT: usize = 1 << 20;

/// What became of events, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StitchCounts {
    /// Events that the kernel recorded and the reader got.
    pub(crate) events: u64,
    /// Their stack was taken exactly where they happened.
    exact: u64,
    /// The same, with the system call about to be made again.
    restarted: u64,
    /// The same, one instruction behind the breakpoint that was the event.
    stepped: u64,
    /// The same but for the innermost instruction: signals were blocked meanwhile.
    same_frame: u64,
    /// Their stack is a part of one that was taken further in.
    pub(crate) deeper: u64,
    /// The thread had been elsewhere, and the kernel had walked its stack there.
    pub(crate) deferred: u64,
    /// From the agent's own doing: no sample of the program.
    pub(crate) overhead: u64,
    /// The thread had been elsewhere, its signal being blocked meanwhile.
    pub(crate) blocked: u64,
    /// The thread had been elsewhere, for whatever other cause.
    unmatched: u64,
    /// The thread ended before it could answer.
    unanswered: u64,
    /// The kernel's ring was full: user stacks without kernel stacks.
    pub(crate) lost: u64,
    /// Bytes of rings that the pool had no room for, or of ticks that were left out.
    missing_bytes: u64,
    /// Records that are not what the kernel writes.
    pub(super) malformed: u64,
    /// Times the kernel held an event back.
    throttled: u64,
    /// Microseconds off the processor of threads that could have gone on: not in the samples.
    preempted_us: u64,
    /// Microseconds from being woken to running, in the samples under a mark of their own.
    wake_latency_us: u64,
    /// Events at which the thread did not wait: it could have gone on, or came back at once. Not in the samples.
    not_waiting: u64,
    /// Rings opened.
    pub(crate) rings: u64,
    /// Rings that see user mode only.
    user_only_rings: u64,
}

impl StitchCounts {
    /// The counts with their names, those that are not zero.
    pub(crate) fn named(&self) -> Vec<Cause> {
        [
            ("events", self.events),
            ("exact", self.exact),
            ("restarted", self.restarted),
            ("stepped", self.stepped),
            ("same_frame", self.same_frame),
            ("deeper", self.deeper),
            ("deferred", self.deferred),
            ("overhead", self.overhead),
            ("blocked", self.blocked),
            ("unmatched", self.unmatched),
            ("unanswered", self.unanswered),
            ("lost", self.lost),
            ("missing_bytes", self.missing_bytes),
            ("malformed", self.malformed),
            ("throttled", self.throttled),
            ("preempted_us", self.preempted_us),
            ("wake_latency_us", self.wake_latency_us),
            ("not_waiting", self.not_waiting),
            ("rings", self.rings),
            ("user_only_rings", self.user_only_rings),
        ]
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| Cause { name: name.into(), count, weight: count })
        .collect()
    }
}

/// One ring of the kernel, as far as its stream has come.
#[derive(Default)]
struct Ring {
    thread_seq: u32,
    event: u32,
    code: (u64, u64),
    /// Where the stream goes on.
    next: Option<u64>,
    bytes: Vec<u8>,
    /// Offset of the first of them.
    base: u64,
    /// The part of the stream written during the last answer.
    handler: (u64, u64),
    waits: Waits,
    weighs_time: bool,
}

/// The stack that a thread wrote last, and what belongs to it.
#[derive(Default)]
struct Thread {
    /// Not yet answered for.
    pending: Option<Sample>,
    /// The chunk it is in, and the turn that brought it.
    chunk: u32,
    since: u64,
    /// The last one that was, and the one before it.
    last: Option<Sample>,
    previous: Option<Sample>,
}

/// What a thread wrote.
#[derive(Debug)]
pub(crate) enum Written {
    /// A stack, with the number of its request; and the chunk it is in.
    Stack(Sample, u32),
    /// A part of a kernel ring.
    Answer(KernelAnswerHead, Vec<u8>, Writer),
    /// Something that only has its place in the order.
    Other,
}

/// Stacks and rings of one process.
#[derive(Default)]
pub(crate) struct Stitcher {
    orders: BTreeMap<u32, Order<Written>>,
    pass: u64,
    turn: u64,
    rings: BTreeMap<u32, Ring>,
    threads: BTreeMap<u32, Thread>,
    /// What became of the events so far.
    pub(crate) counts: StitchCounts,
    ended: Vec<u32>,
}

/// The thread that wrote a record, and when.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Writer {
    /// Number of the thread in its process.
    pub(crate) thread_seq: u32,
    /// CLOCK_MONOTONIC.
    pub(crate) ns: u64,
}

/// An event on its way to a sample.
struct Part {
    sample: PerfSample,
    place: u64,
    weight: u64,
    /// The part of the weight for which the thread was ready to run.
    delay: u64,
}

impl Part {
    /// The event as it goes into a profile; apart from it, the time from being woken to running.
    fn told(&self, event: u32) -> impl Iterator<Item = KernelSample> + use<> {
        const MOST: u64 = u32::MAX as u64;
        let ns = self.sample.ns;
        // A wait of more than 71 minutes is more than one sample can weigh.
        let samples = move |weight: u64, frames: Vec<u64>| {
            let sample = move |part: u64| {
                let weight = (weight - part * MOST).min(MOST) as u32;
                KernelSample { ns, weight, event: event as u8, frames: frames.clone() }
            };
            (0..weight.div_ceil(MOST)).map(sample)
        };
        let frames = &self.sample.frames;
        let woken = [&[WAKE_LATENCY], &frames[..]].concat();
        samples(self.weight - self.delay, frames.clone()).chain(samples(self.delay, woken))
    }
}

impl Stitcher {
    /// A ring was opened.
    pub(crate) fn ring(&mut self, record: &RingRecord) {
        self.counts.rings += 1;
        self.counts.user_only_rings += u64::from(record.user_only != 0);
        let ring = Ring {
            thread_seq: record.seq,
            event: record.event,
            code: (record.code_start, record.code_end),
            ..Ring::default()
        };
        self.rings.insert(record.ring, ring);
    }

    /// True if the process has rings; without them nothing needs an order.
    pub(super) fn expects(&self) -> bool {
        !self.rings.is_empty() || !self.orders.is_empty()
    }

    /// A thread has ended; what it has written is still to be drained.
    pub(super) fn thread_ended(&mut self, seq: u32) {
        self.ended.push(seq);
    }

    /// A record of thread number `seq` was drained.
    pub(crate) fn written(&mut self, seq: u32, sequence: u64, written: Written) {
        self.orders.entry(seq).or_default().push(sequence, self.pass, written);
    }

    /// All that could be drained in a pass has been; `last` if nothing will come any more.
    pub(super) fn end_pass(&mut self, last: bool, out: &mut Vec<Sample>) {
        let mut orders = std::mem::take(&mut self.orders);
        for order in orders.values_mut() {
            self.take(order, if last { u64::MAX } else { self.pass }, out);
        }
        self.orders = orders;
        self.pass += 1;
        if last {
            out.extend(self.threads.values_mut().filter_map(|thread| thread.pending.take()));
        }
    }

    /// So much time has passed as between two passes when nothing happens.
    pub(super) fn end_turn(&mut self, out: &mut Vec<Sample>) {
        self.turn += 1;
        for thread in self.threads.values_mut() {
            if self.turn - thread.since > PATIENCE {
                out.extend(thread.pending.take());
            }
        }
    }

    /// True while a stack in that chunk waits for what the kernel recorded: it is in no profile yet.
    pub(super) fn waits_in(&self, chunk: u32) -> bool {
        self.threads.values().any(|thread| thread.pending.is_some() && thread.chunk == chunk)
    }

    /// Forgets threads that had ended before the last pass.
    pub(super) fn forget_ended(&mut self, out: &mut Vec<Sample>) {
        for seq in std::mem::take(&mut self.ended) {
            if let Some(mut order) = self.orders.remove(&seq) {
                self.take(&mut order, u64::MAX, out);
            }
            let thread = self.threads.remove(&seq);
            out.extend(thread.and_then(|thread| thread.pending));
            self.rings.retain(|_, ring| ring.thread_seq != seq);
        }
    }

    fn take(&mut self, order: &mut Order<Written>, pass: u64, out: &mut Vec<Sample>) {
        while let Some(written) = order.pop(pass) {
            match written {
                Written::Stack(sample, chunk) => self.stack(sample, chunk, out),
                Written::Answer(head, bytes, writer) => {
                    self.answer(&KernelAnswer { head, bytes: &bytes }, writer, out);
                }
                Written::Other => {}
            }
        }
    }

    /// A stack that answers requests, which follow.
    fn stack(&mut self, sample: Sample, chunk: u32, out: &mut Vec<Sample>) {
        let thread = self.threads.entry(sample.thread_seq).or_default();
        (thread.chunk, thread.since) = (chunk, self.turn);
        out.extend(thread.pending.replace(sample));
    }

    /// A part of a kernel ring.
    fn answer(&mut self, answer: &KernelAnswer<'_>, writer: Writer, out: &mut Vec<Sample>) {
        let head = &answer.head;
        let ring = self.rings.entry(head.ring).or_default();
        ring.thread_seq = writer.thread_seq;
        let counts = &mut self.counts;
        take_in(ring, answer, counts);
        if head.flags & KernelAnswerHead::LAST == 0 {
            return;
        }
        let mut parts = parse(ring, counts);
        waits::tell_delays(ring, &mut parts, head);
        let requester = KernelRing { code: ring.code, handler: ring.handler };
        ring.handler = (head.head_in, head.head_out);
        let (event, weighs_time) = (ring.event, ring.weighs_time);
        let thread = self.threads.entry(writer.thread_seq).or_default();
        if head.flags & KernelAnswerHead::UNANSWERED != 0 {
            counts.unanswered += parts.samples.len() as u64;
            return;
        }
        let fresh = thread.pending.take_if(|sample| sample.nonce == head.nonce);
        let repeated = fresh.is_none();
        let Some(mut stack) = fresh.or_else(|| thread.last.clone().filter(|last| last.nonce == head.nonce))
        else {
            // The stack itself was lost, and counted as such.
            counts.unanswered += parts.samples.len() as u64;
            return;
        };
        if repeated {
            (stack.weight, stack.repeated, stack.ns) = (0, true, writer.ns);
            stack.kernel.clear();
        } else {
            thread.previous = thread.last.replace(stack.clone());
        }
        // The weight of a clock that is alone is what the thread's CPU time says, and what ticks that were left out gave.
        let alone =
            !weighs_time && self.rings.values().filter(|r| r.thread_seq == writer.thread_seq).count() == 1;
        let mut carried = if alone { u64::from(stack.weight) } else { 0 };
        let mut others = Vec::new();
        // The ring was full until the answer before made room, which is the stack's own if it answers again.
        let before = thread.previous.as_ref().filter(|_| head.flags & KernelAnswerHead::REPEATED == 0);
        match before {
            Some(before) if parts.lost_before > 0 && !weighs_time => {
                carried = carried.saturating_sub(parts.lost_before);
                let lost = vec![lost(parts.lost_before, event, before.ns)];
                others.extend(elsewhere(before, before.frames.clone(), before.end, lost));
            }
            _ => parts.lost = parts.lost.saturating_add(parts.lost_before),
        }
        for part in parts.samples {
            let claim = requester.claim(&part.sample, part.place, head, &stack.frames);
            let walked =
                (claim == Claim::Unmatched).then(|| parts.deferred.answer_to(&part.sample)).flatten();
            match walked {
                Some(_) => counts.deferred += 1,
                None => count(counts, claim, head),
            }
            if claim == Claim::Overhead {
                continue;
            }
            carried = carried.saturating_sub(1);
            counts.wake_latency_us += part.delay;
            let kernel = part.told(event);
            let (frames, end) = match (claim, walked) {
                (Claim::Deeper(at), _) => (stack.frames.get(at..).unwrap_or(&[]).to_vec(), stack.end),
                (_, Some(frames)) => (frames, End::Root as u8),
                (Claim::SameFrame, _) => {
                    let outer = stack.frames.get(1..).unwrap_or(&[]);
                    (interrupted(&part.sample).chain(outer.iter().copied()).collect(), stack.end)
                }
                (Claim::Unmatched, None) => (interrupted(&part.sample).collect(), NO_ANSWER),
                _ => {
                    // All breakpoints that one answer is for are at one instruction.
                    if let (Claim::Stepped, Some(leaf)) = (claim, stack.frames.first_mut()) {
                        interrupted(&part.sample).for_each(|frame| *leaf = frame);
                    }
                    stack.kernel.extend(kernel);
                    continue;
                }
            };
            others.extend(elsewhere(&stack, frames, end, kernel.collect()));
        }
        if parts.lost > 0 && !weighs_time {
            carried = carried.saturating_sub(parts.lost);
            stack.kernel.push(lost(parts.lost, event, stack.ns));
        }
        // Time for which there was no event is most likely the last event's.
        if let Some(last) = stack.kernel.last_mut() {
            last.weight = u64::from(last.weight).saturating_add(carried).min(u32::MAX.into()) as u32;
            carried = 0;
        }
        if !(repeated && stack.kernel.is_empty()) {
            out.extend(weighed(stack, carried));
        }
        out.append(&mut others);
    }
}

/// Events for which the ring had no room: where they were in the kernel is not known.
fn lost(count: u64, event: u32, ns: u64) -> KernelSample {
    KernelSample { ns, weight: count.min(u32::MAX.into()) as u32, event: event as u8, frames: Vec::new() }
}

/// The frame of the instruction at which an event happened.
fn interrupted(sample: &PerfSample) -> impl Iterator<Item = u64> + use<> {
    sample.user.map(|(ip, _)| Frame::new(ip, unwind::FoundBy::Cfi, true).bits()).into_iter()
}

/// What happened at another place than the stack that was to answer it.
fn elsewhere(answer: &Sample, frames: Vec<u64>, end: u8, kernel: Vec<KernelSample>) -> Vec<Sample> {
    let sample = Sample {
        process: answer.process,
        tid: answer.tid,
        thread_seq: answer.thread_seq,
        source: answer.source,
        nonce: answer.nonce,
        ns: kernel.first().map_or(answer.ns, |kernel| kernel.ns),
        weight: 0,
        repeated: true,
        frames,
        end,
        kernel,
        fields: None,
    };
    weighed(sample, 0)
}

/// A sample with the weight of its events and `carried`; several where that is more than one can hold.
fn weighed(mut sample: Sample, carried: u64) -> Vec<Sample> {
    let mut weight = carried;
    let mut samples = Vec::new();
    for event in std::mem::take(&mut sample.kernel) {
        if weight + u64::from(event.weight) > u32::MAX.into() {
            let rest = Sample {
                repeated: true,
                frames: sample.frames.clone(),
                fields: None,
                kernel: Vec::new(),
                ..sample
            };
            let mut full = std::mem::replace(&mut sample, rest);
            full.weight = weight as u32;
            samples.push(full);
            weight = 0;
        }
        weight += u64::from(event.weight);
        sample.kernel.push(event);
    }
    sample.weight = weight as u32;
    samples.push(sample);
    samples
}

fn count(counts: &mut StitchCounts, claim: Claim, head: &KernelAnswerHead) {
    let count = match claim {
        Claim::Exact => &mut counts.exact,
        Claim::Restarted => &mut counts.restarted,
        Claim::Stepped => &mut counts.stepped,
        Claim::SameFrame => &mut counts.same_frame,
        Claim::Deeper(_) => &mut counts.deeper,
        Claim::Overhead => &mut counts.overhead,
        Claim::Unmatched if head.flags & KernelAnswerHead::BLOCKED != 0 => &mut counts.blocked,
        Claim::Unmatched => &mut counts.unmatched,
    };
    *count += 1;
}

/// Appends a piece to its ring's stream. After a jump only a piece that begins with a record is of use.
fn take_in(ring: &mut Ring, answer: &KernelAnswer<'_>, counts: &mut StitchCounts) {
    let head = &answer.head;
    let continues = ring.next == Some(head.offset);
    if let Some(next) = ring.next.filter(|_| !continues) {
        counts.missing_bytes += head.offset.saturating_sub(next) + ring.bytes.len() as u64;
        ring.bytes.clear();
        ring.waits.interrupt();
    }
    ring.next = Some(head.offset + answer.bytes.len() as u64);
    let begins = head.flags & KernelAnswerHead::FIRST != 0;
    if begins {
        // What an answer before left over was no whole record.
        counts.malformed += u64::from(!ring.bytes.is_empty());
        ring.bytes.clear();
        ring.base = head.offset;
    }
    let follows = begins || (continues && ring.base + ring.bytes.len() as u64 == head.offset);
    if follows && ring.bytes.len() + answer.bytes.len() <= STREAM_LIMIT {
        ring.bytes.extend_from_slice(answer.bytes);
    } else {
        counts.missing_bytes += answer.bytes.len() as u64;
        ring.bytes.clear();
        // Nothing follows until a piece begins with a record.
        ring.base = u64::MAX;
    }
}

/// The events of one answer, and how many more had no room.
#[derive(Default)]
struct Parts {
    samples: Vec<Part>,
    /// Events for which there was no room.
    lost: u64,
    /// The same, before any of `samples`.
    lost_before: u64,
    /// Time for which the thread was preempted.
    preempted_ns: u64,
    /// What the kernel walked itself.
    deferred: Deferred,
}

/// Takes the whole records out of the stream.
fn parse(ring: &mut Ring, counts: &mut StitchCounts) -> Parts {
    let mut parts = Parts::default();
    let bytes = std::mem::take(&mut ring.bytes);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let at = bytes.len() - rest.len();
        let place = ring.base.wrapping_add(at as u64);
        let Some((record, after)) = split(rest) else {
            counts.malformed += 1;
            break;
        };
        rest = after;
        match record {
            PerfRecord::Sample(sample) => {
                counts.events += 1;
                parts.samples.push(Part { sample, place, weight: 1, delay: 0 });
            }
            PerfRecord::Lost(lost) => {
                counts.lost += lost;
                // The kernel tells it with the next record that has room.
                let sum = if at == 0 { &mut parts.lost_before } else { &mut parts.lost };
                *sum = sum.saturating_add(lost);
            }
            PerfRecord::Switch { ns, out, preempted } => {
                waits::switched(ring, &mut parts, counts, ns, out, preempted)
            }
            PerfRecord::Deferred { cookie, frames } => parts.deferred.add(cookie, frames),
            PerfRecord::Throttled(held) => counts.throttled += u64::from(held),
            PerfRecord::Other => {}
        }
    }
    ring.base = ring.base.wrapping_add(bytes.len() as u64);
    if ring.weighs_time {
        // Preempted, or not yet back: no time of waiting.
        let all = parts.samples.len();
        parts.samples.retain(|part| part.weight > 0);
        counts.not_waiting += (all - parts.samples.len()) as u64;
    }
    parts
}

#[cfg(test)]
mod tests;
