//! Off-CPU time: turns context switches into weights, and separates wake-up latency from each wait.
//!
//! The kernel's switch records say when a thread left the CPU and came back, but not how long it was runnable in between.
//! The thread's run delay (`/proc/PID/schedstat`), which the handler reads for each answer, adds that up. It includes the
//! time for which the thread was preempted, which the switch records do give.

use shm_format::KernelAnswerHead;

use super::answer_events::AnswerEvents;
use super::counts::StitchCounts;

/// Nanoseconds in a unit of weight: off-CPU time is weighed in microseconds.
const UNIT: u64 = 1000;

/// State of an off-CPU ring from one answer to the next.
#[derive(Default)]
pub(super) struct Waits {
    /// When the thread left the CPU, if it is not back yet, and whether it was preempted.
    left: Option<(u64, bool)>,
    /// Nanoseconds left over below one unit.
    carry: u64,
    /// The thread's run delay at the last answer.
    delay: Option<u64>,
    /// Earlier run delay that exceeded the waits (positive), or was reported ahead of time (negative).
    delay_carry: i64,
}

impl Waits {
    /// Resets after a gap in the stream.
    pub(super) fn interrupt(&mut self) {
        self.left = None;
    }

    /// Handles a switch: the thread left the CPU, right after the event that says where, or came back.
    pub(super) fn on_switch(
        &mut self,
        events: &mut AnswerEvents,
        counts: &mut StitchCounts,
        ns: u64,
        out: bool,
        preempted: bool,
    ) {
        if out {
            self.left = Some((ns, preempted));
            if let Some(event) = events.samples.last_mut() {
                event.weight = 0;
            }
            return;
        }
        let Some((left, preempted)) = self.left.take() else { return };
        let away = ns.saturating_sub(left);
        if preempted {
            counts.preempted_us += away / UNIT;
            events.preempted_ns = events.preempted_ns.saturating_add(away);
            return;
        }
        if let Some(event) = events.samples.last_mut() {
            let whole = away.saturating_add(self.carry);
            self.carry = whole % UNIT;
            event.weight = whole / UNIT;
        }
    }

    /// Sets how long the thread was runnable during each wait. The run delay is known for the whole answer only; its waits share
    /// it.
    pub(super) fn assign_delays(&mut self, events: &mut AnswerEvents, head: &KernelAnswerHead) {
        if head.flags & KernelAnswerHead::DELAY == 0 {
            self.delay = None;
            return;
        }
        let before = self.delay.replace(head.delay_ns);
        // The first answer has nothing to subtract from; after losses, the preempted time is unknown.
        let Some(before) = before.filter(|_| events.lost == 0 && events.lost_before == 0) else {
            self.delay_carry = 0;
            return;
        };
        let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let grown = signed(head.delay_ns.saturating_sub(before));
        let mut left = grown.saturating_sub(signed(events.preempted_ns)).saturating_add(self.delay_carry);
        let mut sharers = events.samples.len() as u64;
        for event in &mut events.samples {
            let share = left.max(0).unsigned_abs() / sharers / UNIT;
            event.delay = share.min(event.weight);
            left = left.saturating_sub(signed(event.delay.saturating_mul(UNIT)));
            sharers -= 1;
        }
        self.delay_carry = left;
    }
}
