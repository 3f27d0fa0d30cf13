//! A tick: one expiry of a timer of the agent, or one request of the kernel. Which thread it belongs to, and its
//! weight.

use core::ptr;

use platform::activity::is_filtered;
use platform::clock;
use shm_format::{Loss, Skip};

use crate::context::Context;
use crate::kernel_answer;
use crate::kernel_ring::{Cause, Request};
use crate::nesting::Entered;
use crate::outcome::{Missed, Outcome};
use crate::owner::Owner;
use crate::recording::{Clock, Recording};
use crate::siginfo::SignalInfo;
use crate::slot::{self, Slot};

/// Counts a signal that was not handled as skipped if it came from a timer or perf event of the agent. Returns whether
/// it did.
pub fn discard(info: &SignalInfo, recording: &Recording) -> bool {
    let arrival = Arrival::read(info, recording, None);
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
    /// Reads `info`; `None` if the signal did not come from a timer or perf event of the agent. `noted` is the slot that the
    /// thread has noted, which the signal mostly names.
    #[inline(never)]
    pub(crate) fn read(
        info: &SignalInfo,
        recording: &Recording,
        noted: Option<&'static Slot>,
    ) -> Option<Arrival> {
        let named = |token| noted.filter(|slot| slot.token() == token).or_else(|| slot::at(token));
        let clock = recording.sources.clock?;
        if clock == Clock::ProcessTimer {
            return Self::of_process(info, recording);
        }
        if let Some(timer) = info.timer() {
            let weight = timer.overrun.max(0).unsigned_abs().saturating_add(1);
            return Some(Arrival {
                weight,
                owner: Owner::Thread { slot: named(timer.value)?, timer: timer.id },
            });
        }
        let (data, blocked) = info.event().filter(|_| clock == Clock::Perf)?;
        Some(Arrival { weight: 0, owner: Owner::Kernel { slot: named(data)?, blocked } })
    }

    #[inline(never)]
    fn of_process(info: &SignalInfo, recording: &Recording) -> Option<Arrival> {
        let time = &recording.process_time;
        let is_tick = info.is_kernels() && !time.is_given_up();
        is_tick.then(|| Arrival { weight: time.periods(), owner: Owner::Process })
    }

    /// Counts the tick as skipped.
    #[cold]
    #[inline(never)]
    pub(crate) fn skip(&self, recording: &Recording, cause: Skip) {
        let control = recording.region.control();
        control.fire(self.weight.into());
        control.skip(cause, self.weight.into());
    }
}

/// A tick that is being served. The request is long, and therefore last.
#[repr(C)]
pub(crate) struct Tick {
    /// Timer periods or events that it stands for. 0 for a perf event until [`begin`](Self::begin) has read the ring.
    pub(crate) weight: u32,
    owner: Owner,
    /// The thread's CPU time in nanoseconds when `weigh` read it; 0 if it did not.
    pub(crate) cpu_ns: u64,
    /// The kernel's request, if a perf event triggered the tick.
    pub(crate) request: Option<Request>,
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
    #[inline(always)]
    pub(crate) fn begin(
        &mut self,
        recording: &Recording,
        noted: Option<&'static Slot>,
        context: Context<'_>,
    ) -> Result<(&'static Slot, Entered<'static>), Missed> {
        let sp = context.stack_pointer();
        if recording.is_over() {
            self.owner.silence(sp);
            return Err(Missed::Skipped(Skip::Stopped));
        }
        let slot = self.owner.slot(sp, noted)?;
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
        self.take_over_events(slot, noted);
        if let Owner::Kernel { blocked, .. } = self.owner {
            self.read_request(recording, slot, context, blocked)?;
        }
        let cause = match self.owner {
            Owner::Kernel { .. } => Cause::Events(self.weight),
            _ if slot.kernel_rings.period_ns() != 0 && context.is_behind_a_call() => Cause::TimerInCall,
            _ => Cause::Timer,
        };
        match is_filtered() || self.weigh(recording, slot, cause) {
            true => Ok((slot, entered)),
            false => Err(Missed::Skipped(Skip::Answered)),
        }
    }

    /// The timer's signal stands for events, too, if the kernel has recorded any that have no stack yet: both have the same number,
    /// and of two that wait for a thread the kernel delivers only the first.
    #[inline]
    fn take_over_events(&mut self, slot: &'static Slot, noted: Option<&Slot>) {
        // Only its own thread may read a ring.
        let is_own = || !is_filtered() || noted.is_some_and(|noted| ptr::eq(noted, slot));
        if matches!(self.owner, Owner::Thread { .. }) && slot.kernel_rings.have_unanswered() && is_own() {
            self.owner = Owner::Kernel { slot, blocked: true };
        }
    }

    /// Reads what the kernel requests.
    #[inline(never)]
    fn read_request(
        &mut self,
        recording: &Recording,
        slot: &Slot,
        context: Context<'_>,
        blocked: bool,
    ) -> Outcome {
        let at = (context.instruction_pointer(), context.stack_pointer());
        let request = slot.kernel_rings.request(blocked, at, context.alternate_stack());
        let request = self.request.insert(request);
        self.weight = request.events;
        kernel_answer::refuse_known(recording, slot, request)
    }

    /// The signal interrupted another event of this thread: the next sample takes up the weight.
    #[cold]
    #[inline(never)]
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
    #[inline]
    fn weigh(&mut self, recording: &Recording, slot: &Slot, cause: Cause) -> bool {
        let rings = &slot.kernel_rings;
        let period_ns = rings.period_ns();
        if period_ns == 0 && matches!(self.owner, Owner::Thread { .. }) {
            rings.count(self.weight, rings.counted_period_ns());
        }
        let needs_clock = period_ns != 0 || recording.rate_limit.is_set();
        !needs_clock || self.weigh_by_clock(slot, period_ns, cause)
    }

    #[inline(never)]
    fn weigh_by_clock(&mut self, slot: &Slot, period_ns: u64, cause: Cause) -> bool {
        self.cpu_ns = clock::thread_cpu_ns();
        if period_ns == 0 {
            return true;
        }
        self.weight = slot.kernel_rings.weigh(self.cpu_ns, period_ns, cause);
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
    #[inline(never)]
    fn carry_over(&mut self, slot: &Slot) -> Missed {
        slot.carry(core::mem::take(&mut self.weight));
        if let Some(request) = &self.request {
            kernel_answer::discard(&slot.kernel_rings, request);
        }
        Missed::Skipped(Skip::OverLimit)
    }
}
