//! Joins the events that the kernel recorded for a thread with the user stack that the thread walked in response.
//!
//! A thread writes a stack and then the part of its perf ring that the stack answers. Each event in that part gets the stack
//! if it was taken where the event happened, as decided by its [`Requester`]. Every event is counted, whatever becomes of it.

mod answer_events;
mod counts;
mod deferred;
mod order;
mod perf_record;
mod requester;
mod waits;

use std::collections::BTreeMap;

use selfwind_profile::profile_file::{KernelSample, NO_ANSWER, Sample};
use shm_format::record::KernelRing as RingRecord;
use shm_format::{KernelAnswer, KernelAnswerHead, event_nonce, is_event_nonce};
use unwind::{End, Frame};

use self::answer_events::{AnswerEvents, PendingEvent};
pub(crate) use self::counts::StitchCounts;
use self::order::Order;
use self::perf_record::{PerfRecord, PerfSample, split};
use self::requester::{KernelRing, Match, Requester};
use self::waits::Waits;

/// How many calls of `end_interval` a stack waits for its kernel records. Its thread may have been stopped in between.
const PENDING_MAX: u64 = 32;
/// Maximum size of an incomplete part of a ring, in bytes: no ring is larger.
const STREAM_LIMIT: usize = 1 << 20;
/// More stacks of single events for one answer are none of the agent's.
const OF_EVENTS_MAX: usize = 64;

/// One perf ring, as far as its stream has arrived.
#[derive(Default)]
struct Ring {
    thread_seq: u32,
    event: u32,
    code: (u64, u64),
    /// Stream offset of the next piece.
    next: Option<u64>,
    bytes: Vec<u8>,
    /// Stream offset of the first of `bytes`.
    base: u64,
    /// The part of the stream written while the handler ran for the last answer.
    handler: (u64, u64),
    waits: Waits,
    weighs_time: bool,
}

/// The latest stacks of a thread.
#[derive(Default)]
struct Thread {
    /// Waits for its kernel records.
    pending: Option<Sample>,
    /// The chunk of `pending`, and the interval in which it arrived.
    chunk: u32,
    since: u64,
    /// The last stack that was joined, and the one before it.
    last: Option<Sample>,
    previous: Option<Sample>,
    /// Stacks of single events that `pending`, or else `last`, does not answer.
    of_events: Vec<Sample>,
}

/// A record of a thread.
#[derive(Debug)]
pub(crate) enum Written {
    /// A stack that belongs to kernel records, and its chunk.
    Stack(Sample, u32),
    /// A piece of a perf ring.
    Answer(KernelAnswerHead, Vec<u8>, Writer),
    /// Any other record: only its sequence number matters.
    Other,
}

/// Joins the stacks and perf rings of one process.
#[derive(Default)]
pub(crate) struct Stitcher {
    orders: BTreeMap<u32, Order<Written>>,
    pass: u64,
    interval: u64,
    rings: BTreeMap<u32, Ring>,
    threads: BTreeMap<u32, Thread>,
    /// How the events so far ended.
    pub(crate) counts: StitchCounts,
    ended: Vec<u32>,
}

/// The thread that wrote a record, and when.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Writer {
    /// Number of the thread in its process image.
    pub(crate) thread_seq: u32,
    /// CLOCK_MONOTONIC.
    pub(crate) ns: u64,
}

impl Stitcher {
    /// Adds a ring that a thread opened.
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

    /// True if the process has rings; otherwise its records need no ordering.
    pub(super) fn has_rings(&self) -> bool {
        !self.rings.is_empty() || !self.orders.is_empty()
    }

    /// Notes that a thread has ended; some of its records may not be drained yet.
    pub(super) fn thread_ended(&mut self, seq: u32) {
        self.ended.push(seq);
    }

    /// Adds a drained record of thread number `seq`.
    pub(crate) fn written(&mut self, seq: u32, sequence: u64, written: Written) {
        self.orders.entry(seq).or_default().push(sequence, self.pass, written);
    }

    /// Ends a pass; `last` if it was the last one.
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

    /// Advances the time by which pending stacks expire. Called at a fixed interval, unlike `end_pass`.
    pub(super) fn end_interval(&mut self, out: &mut Vec<Sample>) {
        self.interval += 1;
        for thread in self.threads.values_mut() {
            if self.interval - thread.since > PENDING_MAX {
                out.extend(thread.pending.take());
            }
        }
    }

    /// True while a stack in that chunk waits for its kernel records, and so is not in the profile yet.
    pub(super) fn has_pending_in(&self, chunk: u32) -> bool {
        self.threads.values().any(|thread| thread.pending.is_some() && thread.chunk == chunk)
    }

    /// Forgets threads that ended before the last pass.
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

    /// Keeps a stack until its kernel records arrive.
    fn stack(&mut self, sample: Sample, chunk: u32, out: &mut Vec<Sample>) {
        let thread = self.threads.entry(sample.thread_seq).or_default();
        if is_event_nonce(sample.nonce) {
            if thread.of_events.len() < OF_EVENTS_MAX {
                thread.of_events.push(sample);
            }
            return;
        }
        thread.of_events.clear();
        (thread.chunk, thread.since) = (chunk, self.interval);
        out.extend(thread.pending.replace(sample));
    }

    /// Adds a piece of a perf ring; the last piece of an answer joins its events with the stack.
    fn answer(&mut self, answer: &KernelAnswer<'_>, writer: Writer, out: &mut Vec<Sample>) {
        let head = &answer.head;
        let ring = self.rings.entry(head.ring).or_default();
        ring.thread_seq = writer.thread_seq;
        let counts = &mut self.counts;
        append(ring, answer, counts);
        if head.flags & KernelAnswerHead::LAST == 0 {
            return;
        }
        let mut events = parse(ring, counts);
        ring.waits.assign_delays(&mut events, head);
        let requester = KernelRing { code: ring.code, handler: ring.handler };
        ring.handler = (head.head_in, head.head_out);
        let (event, weighs_time) = (ring.event, ring.weighs_time);
        let thread = self.threads.entry(writer.thread_seq).or_default();
        if head.flags & KernelAnswerHead::UNANSWERED != 0 {
            counts.unanswered += events.samples.len() as u64;
            return;
        }
        let fresh = thread.pending.take_if(|sample| sample.nonce == head.nonce);
        let repeated = fresh.is_none();
        let Some(mut stack) = fresh.or_else(|| thread.last.clone().filter(|last| last.nonce == head.nonce))
        else {
            // The stack was lost, and counted as lost.
            counts.unanswered += events.samples.len() as u64;
            return;
        };
        if repeated {
            (stack.weight, stack.repeated, stack.ns) = (0, true, writer.ns);
            stack.kernel.clear();
        } else {
            thread.previous = thread.last.replace(stack.clone());
        }
        // If a clock is the thread's only event, its weight is the thread's CPU time, including ticks that were skipped.
        let alone =
            !weighs_time && self.rings.values().filter(|r| r.thread_seq == writer.thread_seq).count() == 1;
        let mut carried = if alone { u64::from(stack.weight) } else { 0 };
        let mut others = Vec::new();
        // These events were lost before the previous answer made room in the ring. That answer is `stack` itself if it is repeated.
        let before = thread.previous.as_ref().filter(|_| head.flags & KernelAnswerHead::REPEATED == 0);
        match before {
            Some(before) if events.lost_before > 0 && !weighs_time => {
                carried = carried.saturating_sub(events.lost_before);
                let lost = vec![lost(events.lost_before, event, before.ns)];
                others.extend(elsewhere(before, before.frames.clone(), before.end, lost));
            }
            _ => events.lost = events.lost.saturating_add(events.lost_before),
        }
        for pending in events.samples {
            let matched = requester.match_event(&pending.sample, pending.offset, head, &stack.frames);
            let is_unmatched = matched == Match::Unmatched;
            let nonce = event_nonce(head.ring, pending.offset);
            let own = thread.of_events.iter().find(|of| is_unmatched && of.nonce == nonce);
            let deferred = if is_unmatched { events.deferred.answer_to(&pending.sample) } else { None };
            match (own, &deferred) {
                (Some(_), _) => counts.returned += 1,
                (None, Some(_)) => counts.deferred += 1,
                (None, None) => count(counts, matched, head),
            }
            if matched == Match::Overhead {
                continue;
            }
            carried = carried.saturating_sub(1);
            counts.wake_latency_us += pending.delay;
            let kernel = pending.to_kernel_samples(event);
            let (frames, end) = match (matched, deferred) {
                (Match::Deeper(at), _) => (stack.frames.get(at..).unwrap_or(&[]).to_vec(), stack.end),
                (_, deferred) if own.is_some() || deferred.is_some() => {
                    let (mut frames, end) = own.map_or_else(
                        || (deferred.unwrap_or_default(), End::Root as u8),
                        |own| (own.frames.clone(), own.end),
                    );
                    // The walk may have begun at the instruction before it.
                    if let (Some(leaf), Some(at)) = (frames.first_mut(), interrupted(&pending.sample).next())
                    {
                        *leaf = at;
                    }
                    (frames, end)
                }
                (Match::Unmatched, None) => (interrupted(&pending.sample).collect(), NO_ANSWER),
                _ => {
                    // All breakpoints of one answer are at the same instruction.
                    if let (Match::Stepped, Some(leaf)) = (matched, stack.frames.first_mut()) {
                        interrupted(&pending.sample).for_each(|frame| *leaf = frame);
                    }
                    stack.kernel.extend(kernel);
                    continue;
                }
            };
            others.extend(elsewhere(&stack, frames, end, kernel.collect()));
        }
        if events.lost > 0 && !weighs_time {
            carried = carried.saturating_sub(events.lost);
            stack.kernel.push(lost(events.lost, event, stack.ns));
        }
        // CPU time without an event is most likely that of the last event.
        if let Some(last) = stack.kernel.last_mut() {
            last.weight = u64::from(last.weight).saturating_add(carried).min(u32::MAX.into()) as u32;
            carried = 0;
        }
        if !(repeated && stack.kernel.is_empty()) {
            out.extend(weigh(stack, carried));
        }
        out.append(&mut others);
    }
}

/// Events that the ring had no room for: their kernel stacks are unknown.
fn lost(count: u64, event: u32, ns: u64) -> KernelSample {
    KernelSample { ns, weight: count.min(u32::MAX.into()) as u32, event: event as u8, frames: Vec::new() }
}

/// The frame of the instruction at which an event happened.
fn interrupted(sample: &PerfSample) -> impl Iterator<Item = u64> + use<> {
    sample.user.map(|(ip, _)| Frame::new(ip, unwind::FoundBy::Cfi, true).bits()).into_iter()
}

/// Samples for events that happened elsewhere than at the stack `answer`.
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
    weigh(sample, 0)
}

/// A sample weighted with its events and `carried`; several samples if the weight exceeds that of one.
fn weigh(mut sample: Sample, carried: u64) -> Vec<Sample> {
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

fn count(counts: &mut StitchCounts, matched: Match, head: &KernelAnswerHead) {
    let count = match matched {
        Match::Exact => &mut counts.exact,
        Match::Restarted => &mut counts.restarted,
        Match::Stepped => &mut counts.stepped,
        Match::Deeper(_) => &mut counts.deeper,
        Match::Overhead => &mut counts.overhead,
        Match::Unmatched if head.flags & KernelAnswerHead::BLOCKED != 0 => &mut counts.blocked,
        Match::Unmatched => &mut counts.unmatched,
    };
    *count += 1;
}

/// Appends a piece to its ring's stream. After a gap, pieces are dropped until one begins with a record.
fn append(ring: &mut Ring, answer: &KernelAnswer<'_>, counts: &mut StitchCounts) {
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
        // An earlier answer ended in an incomplete record.
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
        // Drop everything until a piece begins with a record.
        ring.base = u64::MAX;
    }
}

/// Parses the complete records of the stream.
fn parse(ring: &mut Ring, counts: &mut StitchCounts) -> AnswerEvents {
    let mut events = AnswerEvents::default();
    let bytes = std::mem::take(&mut ring.bytes);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let at = bytes.len() - rest.len();
        let offset = ring.base.wrapping_add(at as u64);
        let Some((record, after)) = split(rest) else {
            counts.malformed += 1;
            break;
        };
        rest = after;
        match record {
            PerfRecord::Sample(sample) => {
                counts.events += 1;
                events.samples.push(PendingEvent { sample, offset, weight: 1, delay: 0 });
            }
            PerfRecord::Lost(lost) => {
                counts.lost += lost;
                // The kernel reports losses with the next record that has room.
                let sum = if at == 0 { &mut events.lost_before } else { &mut events.lost };
                *sum = sum.saturating_add(lost);
            }
            PerfRecord::Switch { ns, out, preempted } => {
                ring.weighs_time = true;
                ring.waits.on_switch(&mut events, counts, ns, out, preempted);
            }
            PerfRecord::Deferred { cookie, frames } => events.deferred.add(cookie, frames),
            PerfRecord::Throttled(held) => counts.throttled += u64::from(held),
            PerfRecord::Other => {}
        }
    }
    ring.base = ring.base.wrapping_add(bytes.len() as u64);
    if ring.weighs_time {
        // Preempted, or not back on the CPU yet: no wait to report.
        let all = events.samples.len();
        events.samples.retain(|event| event.weight > 0);
        counts.not_waiting += (all - events.samples.len()) as u64;
    }
    events
}

#[cfg(test)]
mod tests;
