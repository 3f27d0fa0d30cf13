//! Brings together what the kernel recorded of a thread and the stack by which the thread answered.
//!
//! The pool brings, thread by thread and in order, a stack and then the part of the kernel's ring that it answers.
//! Each event of that part gets the stack if it was taken where the event happened, which the rules of its
//! [`Requester`] say; every event is counted, whatever becomes of it.

mod order;
pub mod perf_record;
pub mod requester;

use std::collections::BTreeMap;

use shm_format::record::KernelRing as RingRecord;
use shm_format::{KernelAnswer, KernelAnswerHead};
use unwind::Frame;

use self::order::Order;
use self::perf_record::{PerfRecord, PerfSample, split};
use self::requester::{Claim, KernelRing, Requester};
use crate::profile_file::{Cause, KernelSample, NO_ANSWER, Sample};

/// No ring is longer, and no unfinished part of one.
const STREAM_LIMIT: usize = 1 << 20;
/// Time off the processor is weighed in microseconds.
const OFF_PROCESSOR_UNIT: u64 = 1000;

/// What became of events, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StitchCounts {
    /// Events that the kernel recorded and the reader got.
    pub events: u64,
    /// Their stack was taken exactly where they happened.
    pub exact: u64,
    /// The same, with the system call about to be made again.
    pub restarted: u64,
    /// Their stack is a part of one that was taken further in.
    pub deeper: u64,
    /// From the agent's own doing: no sample of the program.
    pub overhead: u64,
    /// The thread had been elsewhere, its signal being blocked meanwhile.
    pub blocked: u64,
    /// The thread had been elsewhere, for whatever other cause.
    pub unmatched: u64,
    /// The thread ended before it could answer.
    pub unanswered: u64,
    /// The kernel's ring was full: user stacks without kernel stacks.
    pub lost: u64,
    /// Bytes of rings that the pool had no room for, or of ticks that were left out.
    pub missing_bytes: u64,
    /// Records that are not what the kernel writes.
    pub malformed: u64,
    /// Times the kernel held an event back.
    pub throttled: u64,
    /// Microseconds off the processor of threads that could have gone on: not in the samples.
    pub preempted_us: u64,
    /// Events at which the thread did not wait: it could have gone on, or came back at once. Not in the samples.
    pub not_waiting: u64,
    /// Rings opened.
    pub rings: u64,
    /// Rings that see user mode only.
    pub user_only_rings: u64,
}

impl StitchCounts {
    /// The counts with their names, those that are not zero.
    pub fn named(&self) -> Vec<Cause> {
        [
            ("events", self.events),
            ("exact", self.exact),
            ("restarted", self.restarted),
            ("deeper", self.deeper),
            ("overhead", self.overhead),
            ("blocked", self.blocked),
            ("unmatched", self.unmatched),
            ("unanswered", self.unanswered),
            ("lost", self.lost),
            ("missing_bytes", self.missing_bytes),
            ("malformed", self.malformed),
            ("throttled", self.throttled),
            ("preempted_us", self.preempted_us),
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
    /// Left its processor, not yet back: when, and at which event of `parts`.
    left: Option<(u64, bool)>,
    /// Nanoseconds that did not make a whole unit.
    carry: u64,
    weighs_time: bool,
}

/// The stack that a thread wrote last, and what belongs to it.
#[derive(Default)]
struct Thread {
    /// Not yet answered for.
    pending: Option<Sample>,
    /// The last one that was.
    last: Option<Sample>,
}

/// What a thread wrote.
#[derive(Debug)]
pub enum Written {
    /// A stack, with the number of its request.
    Stack(Sample),
    /// A part of a kernel ring.
    Answer(KernelAnswerHead, Vec<u8>, Writer),
    /// Something that only has its place in the order.
    Other,
}

/// Stacks and rings of one process.
#[derive(Default)]
pub struct Stitcher {
    orders: BTreeMap<u32, Order<Written>>,
    pass: u64,
    rings: BTreeMap<u32, Ring>,
    threads: BTreeMap<u32, Thread>,
    /// What became of the events so far.
    pub counts: StitchCounts,
    ended: Vec<u32>,
}

/// The thread that wrote a record, and when.
#[derive(Clone, Copy, Debug, Default)]
pub struct Writer {
    /// Number of the thread in its process.
    pub thread_seq: u32,
    /// CLOCK_MONOTONIC.
    pub ns: u64,
}

/// An event on its way to a sample.
struct Part {
    sample: PerfSample,
    place: u64,
    weight: u64,
}

impl Stitcher {
    /// A ring was opened.
    pub fn ring(&mut self, record: &RingRecord) {
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
    pub fn expects(&self) -> bool {
        !self.rings.is_empty() || !self.orders.is_empty()
    }

    /// A thread has ended; what it has written is still to be drained.
    pub fn thread_ended(&mut self, seq: u32) {
        self.ended.push(seq);
    }

    /// A record of thread number `seq` was drained.
    pub fn written(&mut self, seq: u32, sequence: u64, written: Written) {
        self.orders.entry(seq).or_default().push(sequence, self.pass, written);
    }

    /// All that could be drained in a pass has been; `last` if nothing will come any more.
    pub fn end_pass(&mut self, last: bool, out: &mut Vec<Sample>) {
        let mut orders = std::mem::take(&mut self.orders);
        for order in orders.values_mut() {
            self.take(order, if last { u64::MAX } else { self.pass }, out);
        }
        self.orders = orders;
        self.pass += 1;
        if last {
            for thread in self.threads.values_mut() {
                out.extend(thread.pending.take());
            }
        }
    }

    /// Forgets threads that had ended before the last pass.
    pub fn forget_ended(&mut self, out: &mut Vec<Sample>) {
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
                Written::Stack(sample) => self.stack(sample, out),
                Written::Answer(head, bytes, writer) => {
                    self.answer(&KernelAnswer { head, bytes: &bytes }, writer, out);
                }
                Written::Other => {}
            }
        }
    }

    /// A stack that answers requests, which follow.
    fn stack(&mut self, sample: Sample, out: &mut Vec<Sample>) {
        let thread = self.threads.entry(sample.thread_seq).or_default();
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
        let parts = parse(ring, counts);
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
            thread.last = Some(stack.clone());
        }
        // Ticks that were left out gave their weight to this one; it is the only one of a clock that is alone.
        let told = parts.samples.len() as u64 + parts.lost;
        let carried = u64::from(stack.weight).saturating_sub(told);
        let alone =
            carried > 0 && self.rings.values().filter(|r| r.thread_seq == writer.thread_seq).count() == 1;
        let carried = if alone && !weighs_time { carried } else { 0 };
        let mut others = Vec::new();
        for part in parts.samples {
            let claim = requester.claim(&part.sample, part.place, head, &stack.frames);
            count(counts, claim, head);
            let kernel = KernelSample {
                ns: part.sample.ns,
                weight: part.weight.min(u32::MAX.into()) as u32,
                event: event as u8,
                frames: part.sample.frames,
            };
            let elsewhere = |frames, end| Sample {
                frames,
                end,
                repeated: true,
                ns: kernel.ns,
                weight: kernel.weight,
                kernel: vec![kernel.clone()],
                ..header(&stack)
            };
            match claim {
                Claim::Exact | Claim::Restarted => stack.kernel.push(kernel),
                Claim::Deeper(at) => {
                    let frames = stack.frames.get(at..).unwrap_or(&[]).to_vec();
                    others.push(elsewhere(frames, stack.end));
                }
                Claim::Unmatched => {
                    let ip =
                        part.sample.user.map(|(ip, _)| Frame::new(ip, unwind::FoundBy::Cfi, true).bits());
                    others.push(elsewhere(ip.into_iter().collect(), NO_ANSWER));
                }
                Claim::Overhead => {}
            }
        }
        let matched: u64 = stack.kernel.iter().map(|kernel| u64::from(kernel.weight)).sum();
        stack.weight = matched.saturating_add(parts.lost + carried).min(u32::MAX.into()) as u32;
        let empty = repeated && stack.kernel.is_empty();
        out.extend((!empty).then_some(stack));
        out.append(&mut others);
    }
}

/// A sample without its stack.
fn header(sample: &Sample) -> Sample {
    Sample {
        process: sample.process,
        tid: sample.tid,
        thread_seq: sample.thread_seq,
        source: sample.source,
        nonce: sample.nonce,
        ..Sample::default()
    }
}

fn count(counts: &mut StitchCounts, claim: Claim, head: &KernelAnswerHead) {
    let count = match claim {
        Claim::Exact => &mut counts.exact,
        Claim::Restarted => &mut counts.restarted,
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
        ring.left = None;
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
    lost: u64,
}

/// Takes the whole records out of the stream.
fn parse(ring: &mut Ring, counts: &mut StitchCounts) -> Parts {
    let mut parts = Parts::default();
    let bytes = std::mem::take(&mut ring.bytes);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let place = ring.base.wrapping_add((bytes.len() - rest.len()) as u64);
        let Some((record, after)) = split(rest) else {
            counts.malformed += 1;
            break;
        };
        rest = after;
        match record {
            PerfRecord::Sample(sample) => {
                counts.events += 1;
                parts.samples.push(Part { sample, place, weight: 1 });
            }
            PerfRecord::Lost(lost) => {
                counts.lost += lost;
                parts.lost = parts.lost.saturating_add(lost);
            }
            PerfRecord::Switch { ns, out, preempted } => {
                switched(ring, &mut parts, counts, ns, out, preempted)
            }
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

/// The thread left its processor, right after the event that says where; or it came back.
fn switched(
    ring: &mut Ring,
    parts: &mut Parts,
    counts: &mut StitchCounts,
    ns: u64,
    out: bool,
    preempted: bool,
) {
    ring.weighs_time = true;
    if out {
        ring.left = Some((ns, preempted));
        if let Some(part) = parts.samples.last_mut() {
            part.weight = 0;
        }
        return;
    }
    let Some((left, preempted)) = ring.left.take() else { return };
    let away = ns.saturating_sub(left);
    if preempted {
        counts.preempted_us += away / OFF_PROCESSOR_UNIT;
        return;
    }
    if let Some(part) = parts.samples.last_mut() {
        let whole = away.saturating_add(ring.carry);
        ring.carry = whole % OFF_PROCESSOR_UNIT;
        part.weight = whole / OFF_PROCESSOR_UNIT;
    }
}

#[cfg(test)]
mod tests;
