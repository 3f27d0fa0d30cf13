//! A tick: one expiry of a timer of the agent, or one request of the kernel. Which thread it belongs to, and its
//! weight.

use shm_format::{Loss, Skip};

use crate::activity::is_filtered;
use crate::clock;
use crate::context::Context;
use crate::kernel_answer;
use crate::kernel_ring::Request;
use crate::nesting::Entered;
use crate::outcome::{Missed, Outcome};
use crate::owner::Owner;
use crate::recording::{Clock, Recording};
use crate::siginfo::{Sender, SignalInfo};
use crate::slot::{self, Slot};

/// Counts a signal that was not handled as skipped if it came from a timer or perf event of the agent. Returns whether
/// it did.
pub fn discard(info: &SignalInfo, recording: &Recording) -> bool {
    let arrival = Arrival::read(info, recording);
    if let Some(arrival) = &arrival {
        arrival.skip(recording, Skip::DisabledThread);
    }
    arrival.is_some()
}

/// What the signal information says about a tick.
pub(crate) struct Arrival {
    /// Timer periods that it stands for. 0 for a perf event: the ring is read later.
    weight: u32,
    owner: Owner,
}

impl Arrival {
    /// Reads `info`; `None` if the signal did not come from a timer or perf event of the agent.
    #[inline]
    pub(crate) fn read(info: &SignalInfo, recording: &Recording) -> Option<Arrival> {
        let (weight, owner) = match (recording.sources.clock?, info.sender()) {
            (Clock::Perf, Sender::Event { data, blocked }) => {
                (0, Owner::Kernel { slot: slot::at(data)?, blocked })
            }
            (Clock::ThreadTimer | Clock::Perf, Sender::Timer { id, overrun, value }) => {
                let owner = Owner::Thread { slot: slot::at(value)?, timer: id };
                (overrun.max(0).unsigned_abs().saturating_add(1), owner)
            }
            (Clock::ProcessTimer, Sender::Kernel) if !recording.process_time.is_given_up() => {
                (recording.process_time.periods(), Owner::Process)
            }
            _ => return None,
        };
        Some(Arrival { weight, owner })
    }

    /// Counts the tick as skipped.
    pub(crate) fn skip(&self, recording: &Recording, cause: Skip) {
        let control = recording.region.control();
        control.fire(self.weight.into());
        control.skip(cause, self.weight.into());
    }
}

/// A tick that is being served.
pub(crate) struct Tick {
    /// Timer periods or events that it stands for. 0 for a perf event until [`begin`](Self::begin) has read the ring.
    pub(crate) weight: u32,
    /// The kernel's request, if a perf event triggered the tick.
    pub(crate) request: Option<Request>,
    /// The thread's CPU time in nanoseconds when `weigh` read it; 0 if it did not.
    pub(crate) cpu_ns: u64,
    owner: Owner,
}

impl Tick {
    /// The nonce of a sample that answers no request of the kernel.
    pub(crate) const NO_NONCE: u64 = 0;

    /// Begins to serve what has arrived.
    #[inline]
    pub(crate) fn new(arrival: Arrival) -> Tick {
        Tick { weight: arrival.weight, request: None, cpu_ns: 0, owner: arrival.owner }
    }

    /// The clock that triggered the sample.
    pub(crate) fn clock(&self) -> Clock {
        match self.owner {
            Owner::Thread { .. } => Clock::ThreadTimer,
            Owner::Process => Clock::ProcessTimer,
            Owner::Kernel { .. } => Clock::Perf,
        }
    }

    /// The nonce of the kernel's request that the stack answers; [`NO_NONCE`](Self::NO_NONCE) if there is none.
    pub(crate) fn nonce(&self) -> u64 {
        self.request.map_or(Self::NO_NONCE, |request| request.nonce)
    }

    /// Finds the slot of the calling thread, enters its nesting guard, and determines the tick's weight. Until the
    /// guard is dropped nothing else samples the thread. A signal can outlive the thread that it was meant for, so
    /// nothing in the slot that the signal names is trusted before that slot is known to be the calling thread's.
    #[inline(never)]
    pub(crate) fn begin(
        &mut self,
        recording: &Recording,
        context: Context<'_>,
    ) -> Result<(&'static Slot, Entered<'static>), Missed> {
        let sp = context.stack_pointer();
        if recording.is_over() {
            self.owner.silence(sp);
            return Err(Missed::Skipped(Skip::Stopped));
        }
        let slot = self.owner.slot(sp)?;
        let Some(entered) = slot.enter(sp) else {
            self.leave_to_next(slot);
            return Err(Missed::Skipped(Skip::Nested));
        };
        if !recording.is_current() {
            return Err(Missed::Skipped(Skip::Stopped));
        }
        if !slot.prepare() {
            return Err(Missed::Lost(Loss::NoSlot));
        }
        if let Owner::Kernel { blocked, .. } = self.owner {
            let at = (context.instruction_pointer(), sp);
            let request = self.request.insert(slot.kernel_rings.request(blocked, at));
            self.weight = request.events;
            kernel_answer::refuse_known(recording, slot, context, request)?;
        }
        match self.weigh(recording, slot, context.is_behind_a_call()) {
            true => Ok((slot, entered)),
            false => Err(Missed::Skipped(Skip::Answered)),
        }
    }

    /// The signal interrupted another event of this thread: the next sample takes up the weight.
    #[cold]
    fn leave_to_next(&mut self, slot: &Slot) {
        let (weight, rings) = (core::mem::take(&mut self.weight), &slot.kernel_rings);
        if rings.period_ns() != 0 {
            // The next sample's weight comes from the CPU clock.
            return;
        }
        slot.carry(weight);
        if matches!(self.owner, Owner::Thread { .. }) {
            rings.count(weight, rings.counted_period_ns());
        }
    }

    /// Takes the weight from the thread's CPU clock if the source measures CPU time: perf events arrive late, or not at
    /// all for a mode (user or kernel) that may not be observed. Returns false if no full period is unaccounted for and
    /// no request waits for a stack.
    fn weigh(&mut self, recording: &Recording, slot: &Slot, is_behind_a_call: bool) -> bool {
        if is_filtered() {
            return true;
        }
        let rings = &slot.kernel_rings;
        let period_ns = rings.period_ns();
        if period_ns == 0 && matches!(self.owner, Owner::Thread { .. }) {
            rings.count(self.weight, rings.counted_period_ns());
        }
        if period_ns == 0 && !recording.rate_limit.is_set() {
            return true;
        }
        self.cpu_ns = clock::thread_cpu_ns();
        if period_ns == 0 {
            return true;
        }
        let events = matches!(self.owner, Owner::Kernel { .. }).then_some(self.weight);
        self.weight = rings.weigh(self.cpu_ns, period_ns, events, is_behind_a_call);
        self.weight > 0 || self.request.is_some()
    }

    /// Applies the rate limit. An admitted tick takes up the weight that was carried over to it. Otherwise no sample is
    /// taken, and the weight is carried over to the thread's next sample. A thread whose stack another process has
    /// requested is always admitted.
    #[inline]
    pub(crate) fn admit(&mut self, recording: &Recording, slot: &Slot) -> Outcome {
        if !recording.rate_limit.admits(self.weight) && !recording.region.asks(slot.tid()) {
            return Err(self.carry_over(slot));
        }
        let carried = slot.take_carried().saturating_add(recording.rate_limit.take_orphaned());
        self.weight = self.weight.saturating_add(carried);
        Ok(())
    }

    #[cold]
    fn carry_over(&mut self, slot: &Slot) -> Missed {
        slot.carry(core::mem::take(&mut self.weight));
        if let Some(request) = &self.request {
            kernel_answer::discard(&slot.kernel_rings, request);
        }
        Missed::Skipped(Skip::OverLimit)
    }
}
