//! Time off the processor: switches become weights, and of each wait the time from being woken to running is told apart.
//!
//! The kernel's switches say when a thread left and came back. How long it was ready in between they do not say; that
//! is what the thread's run delay (`/proc/PID/schedstat`) adds up, which the handler reads at each answer. It also holds
//! the times when the thread was preempted, and those are known.

use shm_format::KernelAnswerHead;

use super::{Parts, Ring, StitchCounts};

/// Time off the processor is weighed in microseconds.
const UNIT: u64 = 1000;

/// What a ring that weighs time remembers from one answer to the next.
#[derive(Default)]
pub(super) struct Waits {
    /// Left its processor, not yet back: when, and whether it could have gone on.
    left: Option<(u64, bool)>,
    /// Nanoseconds that did not make a whole unit.
    carry: u64,
    /// The thread's run delay at the last answer.
    delay: Option<u64>,
    /// Run delay of before that no wait could hold, or that was told too early.
    delay_carry: i64,
}

impl Waits {
    /// The stream has a hole.
    pub(super) fn interrupt(&mut self) {
        self.left = None;
    }
}

/// The thread left its processor, right after the event that says where; or it came back.
pub(super) fn switched(
    ring: &mut Ring,
    parts: &mut Parts,
    counts: &mut StitchCounts,
    ns: u64,
    out: bool,
    preempted: bool,
) {
    ring.weighs_time = true;
    let waits = &mut ring.waits;
    if out {
        waits.left = Some((ns, preempted));
        if let Some(part) = parts.samples.last_mut() {
            part.weight = 0;
        }
        return;
    }
    let Some((left, preempted)) = waits.left.take() else { return };
    let away = ns.saturating_sub(left);
    if preempted {
        counts.preempted_us += away / UNIT;
        parts.preempted_ns = parts.preempted_ns.saturating_add(away);
        return;
    }
    if let Some(part) = parts.samples.last_mut() {
        let whole = away.saturating_add(waits.carry);
        waits.carry = whole % UNIT;
        part.weight = whole / UNIT;
    }
}

/// Tells how much of each wait the thread was ready for. The delay is that of the whole answer: several waits in one
/// share it.
pub(super) fn tell_delays(ring: &mut Ring, parts: &mut Parts, head: &KernelAnswerHead) {
    let waits = &mut ring.waits;
    if head.flags & KernelAnswerHead::DELAY == 0 {
        waits.delay = None;
        return;
    }
    let before = waits.delay.replace(head.delay_ns);
    // Of the first answer it is not known what came before; of one with losses, how often the thread was preempted.
    let Some(before) = before.filter(|_| parts.lost == 0 && parts.lost_before == 0) else {
        waits.delay_carry = 0;
        return;
    };
    let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
    let grown = signed(head.delay_ns.saturating_sub(before));
    let mut left = grown.saturating_sub(signed(parts.preempted_ns)).saturating_add(waits.delay_carry);
    let mut sharers = parts.samples.len() as u64;
    for part in &mut parts.samples {
        let share = left.max(0).unsigned_abs() / sharers / UNIT;
        part.delay = share.min(part.weight);
        left = left.saturating_sub(signed(part.delay.saturating_mul(UNIT)));
        sharers -= 1;
    }
    waits.delay_carry = left;
}
