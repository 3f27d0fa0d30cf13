//! One expiry of a timer of ours, or one request of the kernel: whose it is, and how much it stands for.

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

/// Counts a signal as skipped if it came from a timer of ours but was not handled; says whether it did.
pub fn discard(info: &SignalInfo, recording: &Recording) -> bool {
    let arrival = Arrival::read(info, recording);
    if let Some(arrival) = &arrival {
        arrival.skip(recording, Skip::DisabledThread);
    }
    arrival.is_some()
}

/// What a signal says that came from a timer or an event of ours.
pub(crate) struct Arrival {
    /// Timer periods that it stands for; of the kernel's events none, before the kernel was asked.
    weight: u32,
    owner: Owner,
}

impl Arrival {
    /// Reads `info`; none if the signal did not come from us.
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

    /// Counts it as skipped.
    pub(crate) fn skip(&self, recording: &Recording, cause: Skip) {
        let control = recording.region.control();
        control.fire(self.weight.into());
        control.skip(cause, self.weight.into());
    }
}

/// An expiry or a request that is being served.
pub(crate) struct Tick {
    /// Timer periods or events that it stands for; of the kernel, none before the kernel was asked.
    pub(crate) weight: u32,
    /// What the kernel asks for, if it was the kernel.
    pub(crate) request: Option<Request>,
    /// The thread's CPU time when its clock was asked, in nanoseconds; 0 if it was not.
    pub(crate) cpu_ns: u64,
    owner: Owner,
}

impl Tick {
    /// The nonce of a sample that nobody requested.
    pub(crate) const NO_NONCE: u64 = 0;

    /// Begins to serve what has arrived.
    #[inline]
    pub(crate) fn new(arrival: Arrival) -> Tick {
        Tick { weight: arrival.weight, request: None, cpu_ns: 0, owner: arrival.owner }
    }

    /// The clock that asked for the sample.
    pub(crate) fn clock(&self) -> Clock {
        match self.owner {
            Owner::Thread { .. } => Clock::ThreadTimer,
            Owner::Process => Clock::ProcessTimer,
            Owner::Kernel { .. } => Clock::Perf,
        }
    }

    /// The nonce of the stack that answers; 0 if nobody gave one.
    pub(crate) fn nonce(&self) -> u64 {
        self.request.map_or(Self::NO_NONCE, |request| request.nonce)
    }

    /// Finds out whose tick it is, what it stands for, and whether there is time for a sample; nothing else samples the
    /// thread meanwhile. A signal can outlive its thread: nothing of a slot is read before it is known to be the caller's.
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
            // The thread is at work on an event of its own: its next sample stands for this, too.
            slot.carry(core::mem::take(&mut self.weight));
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
            kernel_answer::refuse_known(recording, slot, request)?;
        }
        match self.weigh(recording, slot, context.is_behind_a_call()) {
            true => Ok((slot, entered)),
            false => Err(Missed::Skipped(Skip::Answered)),
        }
    }

    /// Takes the weight from the thread's CPU clock, where it is the time that counts: events come late, or not at all
    /// from a mode that is not permitted. False if no period has passed that a sample would stand for.
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

    /// Has the tick stand for what was carried over to it, too; or leaves it out where sampling takes too much, and
    /// carries what it stands for over to the thread's next sample. Somebody who asks for the stack gets it.
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
