//! One expiry of a timer of ours, or one request of the kernel: how much it stands for, and whose it is.

use core::ptr;

use shm_format::{Loss, Skip};

use crate::Missed;
use crate::answer;
use crate::clock;
use crate::context::Context;
use crate::kernel_ring::Request;
use crate::newcomers;
use crate::process::{self, Recording, Source};
use crate::slot::{self, Slot};
use crate::sys;

/// The head of the kernel's `siginfo`, as timers fill it.
#[repr(C)]
struct TimerInfo {
    signal: i32,
    errno: i32,
    code: i32,
    padding: i32,
    timer: i32,
    overrun: i32,
    value: usize,
}

/// The head of the kernel's `siginfo`, as events of perf_event_open(2) fill it.
#[repr(C)]
struct PerfInfo {
    signal: i32,
    errno: i32,
    code: i32,
    padding: i32,
    address: u64,
    data: u64,
    kind: u32,
    flags: u32,
}

/// The signal came from an event of perf_event_open(2).
const TRAP_PERF: i32 = 6;
/// It was blocked when the event happened.
const TRAP_PERF_FLAG_ASYNC: u32 = 1;
const SI_TIMER: i32 = -2;
const SI_KERNEL: i32 = 0x80;
/// Time in the kernel that no sample stands for and that waits no longer for the thread to come from a call. A timer's
/// tick at most kernels' HZ.
const OVERDUE_NS: u64 = 4_000_000;

/// Makes the signal of a timer that carries `stand_in` look like that of ITIMER_PROF.
///
/// # Safety
/// `info` is the second argument of a running SA_SIGINFO handler.
pub(crate) unsafe fn disguise(info: *mut libc::siginfo_t, stand_in: usize) {
    // SAFETY: the kernel's `siginfo` has 128 bytes, in memory of the handler's own frame.
    let info = unsafe { &mut *info.cast::<TimerInfo>() };
    if info.code == SI_TIMER && info.value == stand_in {
        *info = TimerInfo {
            signal: info.signal,
            errno: 0,
            code: SI_KERNEL,
            padding: 0,
            timer: 0,
            overrun: 0,
            value: 0,
        };
    }
}

/// True for a trap of the processor: a breakpoint, a single step. Neither blocked nor ignored, it ends the process
/// (kernel/signal.c, `force_sig_info_to_task`).
///
/// # Safety
/// `info` is the second argument of a running SA_SIGINFO handler of `signal`.
pub(crate) unsafe fn is_forced(signal: i32, info: *const libc::siginfo_t) -> bool {
    // SAFETY: the kernel's `siginfo` has 128 bytes.
    let code = unsafe { (*info.cast::<TimerInfo>()).code };
    signal == libc::SIGTRAP && (code == SI_KERNEL || (1..TRAP_PERF).contains(&code))
}

/// Counts a signal as skipped if it came from a timer of ours but was not handled; says whether it did.
///
/// # Safety
/// `info` is a `siginfo` that the kernel has filled.
pub unsafe fn discard(info: *const libc::siginfo_t, recording: &'static Recording) -> bool {
    // SAFETY: the caller's promise.
    let tick = unsafe { Tick::read(info, Some(recording)) };
    if let Some((_, tick)) = &tick {
        recording.region.control().fire(tick.weight.into());
        recording.region.control().skip(Skip::DisabledThread, tick.weight.into());
    }
    tick.is_some()
}

/// An expiry or a request.
pub struct Tick {
    /// Timer periods or events that this signal stands for; of the kernel's, none before the kernel was asked.
    pub weight: u32,
    /// What the kernel asks for, if it was the kernel.
    pub request: Option<Request>,
    /// The thread's CPU time when its clock was asked, in nanoseconds; 0 if it was not.
    pub(crate) cpu_ns: u64,
    owner: Owner,
}

enum Owner {
    /// A thread's own timer.
    Thread { slot: &'static Slot, timer: i32 },
    /// The process's timer; the kernel picked the thread.
    Process,
    /// A thread's own events. The signal may have been blocked when they happened.
    Kernel { slot: &'static Slot, blocked: bool },
}

impl Tick {
    /// The nonce of a sample that nobody requested.
    pub(crate) const NO_NONCE: u64 = 0;

    /// Reads `info`; none if the signal did not come from a timer of ours.
    ///
    /// # Safety
    /// `info` is the second argument of a running SA_SIGINFO handler.
    #[inline]
    pub unsafe fn read(
        info: *const libc::siginfo_t,
        recording: Option<&'static Recording>,
    ) -> Option<(&'static Recording, Tick)> {
        let recording = recording?;
        // SAFETY: the kernel's `siginfo` has 128 bytes; which of them mean something depends on the code.
        let (perf, info) = unsafe { (&*info.cast::<PerfInfo>(), &*info.cast::<TimerInfo>()) };
        let (weight, owner) = match (recording.source, info.code) {
            (Source::Perf, TRAP_PERF) => {
                let blocked = perf.flags & TRAP_PERF_FLAG_ASYNC != 0;
                (0, Owner::Kernel { slot: slot::at(perf.data)?, blocked })
            }
            (Source::ThreadTimer | Source::Perf, SI_TIMER) => {
                let owner = Owner::Thread { slot: slot::at(info.value as u64)?, timer: info.timer };
                (info.overrun.max(0).unsigned_abs().saturating_add(1), owner)
            }
            (Source::ProcessTimer, SI_KERNEL) if !recording.process_time.is_given_up() => {
                (recording.process_time.periods(), Owner::Process)
            }
            _ => return None,
        };
        Some((recording, Tick { weight, request: None, cpu_ns: 0, owner }))
    }

    /// What asked for the sample.
    pub(crate) fn source(&self) -> Source {
        match self.owner {
            Owner::Thread { .. } => Source::ThreadTimer,
            Owner::Process => Source::ProcessTimer,
            Owner::Kernel { .. } => Source::Perf,
        }
    }

    /// The nonce of the stack that answers; 0 if nobody gave one.
    pub(crate) fn nonce(&self) -> u64 {
        self.request.map_or(Self::NO_NONCE, |request| request.nonce)
    }

    /// The slot of the calling thread.
    #[inline]
    pub(crate) fn slot(&self, context: Context<'_>) -> Result<&'static Slot, Missed> {
        if let Owner::Thread { slot, .. } = &self.owner
            && slot.is_strange()
        {
            return verify_strange(slot);
        }
        let noted = slot::noted();
        match (&self.owner, noted) {
            (Owner::Thread { slot, .. } | Owner::Kernel { slot, .. }, Some(noted))
                if ptr::eq(*slot, noted) =>
            {
                Ok(slot)
            }
            // A ring may be read by its own thread alone, and where the kernel cannot be asked whose it is, by none.
            (Owner::Kernel { .. }, _) if process::is_filtered() => Err(Missed::Skipped(Skip::DisabledThread)),
            (Owner::Thread { slot, .. } | Owner::Kernel { slot, .. }, _) => verify(slot, noted),
            (Owner::Process, _) => own_slot(context),
        }
    }

    /// Reads what the kernel asks for. `slot` is the caller's own.
    pub(crate) fn ask(&mut self, slot: &Slot) {
        if let Owner::Kernel { blocked, .. } = self.owner {
            self.weight = self.request.insert(Request::read(&slot.kernel_rings, blocked)).events;
        }
    }

    /// Takes the weight from the thread's CPU clock, where it is the time that counts: events come late, or not at all
    /// from a mode that is not permitted. False if no period has passed that a sample would stand for.
    pub(crate) fn weigh(&mut self, recording: &Recording, slot: &Slot, context: Context<'_>) -> bool {
        if process::is_filtered() {
            return true;
        }
        let (rings, period_ns) = (&slot.kernel_rings, slot.kernel_rings.period_ns());
        if period_ns == 0 && !recording.governor.is_limited() {
            return true;
        }
        self.cpu_ns = clock::thread_cpu_ns();
        if period_ns == 0 {
            return true;
        }
        let due = rings.due(self.cpu_ns, period_ns);
        let left_ns = u64::from(due) * period_ns;
        self.weight = match self.owner {
            // Events in user mode are right in number; what they leave is time in the kernel, which waits for its timer, but
            // not if that does not come.
            Owner::Kernel { .. } if rings.are_user_only() && left_ns < 4 * OVERDUE_NS => self.weight.max(1),
            Owner::Kernel { .. } => self.weight.max(due),
            // This timer is for time in the kernel, which goes to whoever has just been there; in time, to anybody.
            _ if context.is_behind_a_call() || left_ns >= OVERDUE_NS => due,
            _ => 0,
        };
        rings.count(self.weight, period_ns);
        self.weight > 0 || self.request.is_some()
    }

    /// Leaves the tick out, and what it stands for to the thread's next sample.
    #[cold]
    pub(crate) fn put_off(&mut self, slot: &Slot) -> Missed {
        slot.put_off(core::mem::take(&mut self.weight));
        if let Some(request) = &self.request {
            answer::discard(&slot.kernel_rings, request);
        }
        Missed::Skipped(Skip::OverLimit)
    }

    /// Stands for what was left out before, too.
    pub(crate) fn take_over(&mut self, recording: &Recording, slot: &Slot) {
        let left = slot.take_put_off().saturating_add(recording.governor.take_orphaned());
        self.weight = self.weight.saturating_add(left);
    }

    /// Stops the timer, when nobody wants its ticks any more.
    #[cold]
    pub(crate) fn silence(&self, context: Context<'_>) {
        if process::is_filtered() {
            return;
        }
        if let Owner::Kernel { .. } = self.owner {
            return self.slot(context).into_iter().for_each(|slot| slot.kernel_rings.close());
        }
        // Both `itimerspec` and `itimerval` are four words; zero stops the timer.
        let never = [0usize; 4];
        let never = (&raw const never) as usize;
        let (number, timer) = match self.owner {
            Owner::Thread { timer, .. } => (libc::SYS_timer_settime, [timer as usize, 0, never, 0, 0, 0]),
            _ => (libc::SYS_setitimer, [libc::ITIMER_PROF as usize, never, 0, 0, 0, 0]),
        };
        // SAFETY: the kernel reads four words; the timer is ours.
        unsafe { sys::call(number, timer) };
    }
}

/// The slot of the calling thread, when the signal does not say which.
pub(crate) fn own_slot(context: Context<'_>) -> Result<&'static Slot, Missed> {
    match slot::noted() {
        Some(noted) if noted.stack().hold(context.stack_pointer()) => Ok(noted),
        noted => find(noted),
    }
}

/// Checks that `slot` is the calling thread's, although the thread does not know it: it was running before the
/// library came, or it is a bare thread on another's thread-local storage, or the timer outlived its thread.
#[cold]
fn verify(slot: &'static Slot, noted: Option<&Slot>) -> Result<&'static Slot, Missed> {
    if !process::is_filtered() {
        if slot.tid() != sys::thread_id() {
            return Err(Missed::Skipped(Skip::DisabledThread));
        }
        if noted.is_none() {
            slot::set_current(slot);
        }
    }
    Ok(slot)
}

/// The same for a slot that its thread does not know; thread-local storage is left alone.
fn verify_strange(slot: &'static Slot) -> Result<&'static Slot, Missed> {
    match process::is_filtered() || slot.tid() == sys::thread_id() {
        true => Ok(slot),
        false => Err(Missed::Skipped(Skip::DisabledThread)),
    }
}

/// Finds or makes the slot of a thread that has none, or is not on its own stack.
#[cold]
fn find(noted: Option<&'static Slot>) -> Result<&'static Slot, Missed> {
    if process::is_filtered() {
        return noted.ok_or(Missed::Lost(Loss::NoSlot));
    }
    let tid = sys::thread_id();
    if let Some(noted) = noted
        && noted.tid() == tid
    {
        return Ok(noted);
    }
    // Not noted with the thread: its thread-local storage may not be the C library's.
    newcomers::adopt(tid).ok_or(Missed::Lost(Loss::NoSlot))
}
