//! The recording of this process: where records go, what asks for samples, what they may cost.
//!
//! The agent writes it outside the handler. One page that leads to it is wiped by the kernel in a forked child, so a
//! child that nobody has prepared (a bare `clone`) finds nothing here, and never touches its parent's records.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use shm_format::{Doorbell, LiveBlocks, LiveMappings, Region};
use unwind::RuleCache;

use crate::activity::is_filtered;
use crate::late_start::LateStart;
use crate::process_time::ProcessTime;
use crate::rate_limit::RateLimit;
use crate::sys;
use crate::unwinding::Unwind;

/// Which clock asks for samples: a recording has one or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// One timer per thread, on the thread's own CPU clock; its signals carry the slot.
    ThreadTimer,
    /// One timer for the whole process, ITIMER_PROF; the kernel picks a thread.
    ProcessTimer,
    /// Events of perf_event_open(2) on each thread, with a synchronous SIGTRAP that carries the slot. A thread that
    /// cannot have them has a timer on its CPU clock instead, with the same signal.
    Perf,
}

impl Clock {
    /// The number of the source in records: 1 for the process's timer, 2 for the threads' timers, 3 for the kernel's
    /// events.
    pub const fn number(self) -> u8 {
        match self {
            Clock::ProcessTimer => 1,
            Clock::ThreadTimer => 2,
            Clock::Perf => 3,
        }
    }
}

/// What else is recorded, beside a clock or alone: things that the program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The bytes that it allocates.
    Allocations,
    /// Tracepoints of its own.
    Tracepoints,
    /// The time that its threads wait for locks.
    Locks,
    /// The memory that it maps.
    Mappings,
}

impl Probe {
    /// The number of the source in records: 4 for allocations, 5 for tracepoints, 7 for waits for locks, 8 for
    /// mappings.
    pub const fn number(self) -> u8 {
        match self {
            Probe::Allocations => 4,
            Probe::Tracepoints => 5,
            Probe::Locks => 7,
            Probe::Mappings => 8,
        }
    }
}

/// Everything that asks for samples in a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// The clock, if there is one.
    pub clock: Option<Clock>,
    /// A bit for each number of a [`Probe`].
    probes: u32,
}

impl Sources {
    /// This clock, or none, and nothing else.
    pub const fn of_clock(clock: Option<Clock>) -> Sources {
        Sources { clock, probes: 0 }
    }

    /// The same with `probe`.
    #[must_use]
    pub const fn with(self, probe: Probe) -> Sources {
        Sources { probes: self.probes | 1 << probe.number(), ..self }
    }

    /// True if `probe` is recorded.
    pub const fn have(self, probe: Probe) -> bool {
        self.probes & 1 << probe.number() != 0
    }

    /// The same with another clock.
    #[must_use]
    pub const fn clocked_by(self, clock: Option<Clock>) -> Sources {
        Sources { clock, ..self }
    }

    /// The number by which the process is told of: the clock's; without one that of the first of the others; 0 for none.
    pub fn number(self) -> u8 {
        let first = || if self.probes == 0 { 0 } else { self.probes.trailing_zeros() as u8 };
        self.clock.map_or_else(first, Clock::number)
    }
}

/// Everything fixed from the start of recording to the end of the process.
pub struct Recording {
    /// Where records go.
    pub region: Region,
    /// How the reader is woken; none when nobody waits.
    pub doorbell: Option<Doorbell>,
    /// What asks for samples.
    pub sources: Sources,
    /// What a clock's samples hold of a stack. All others are walked.
    pub unwind: Unwind,
    /// Bytes of a stack that are copied at most.
    pub copy_limit: u64,
    /// Most frames per sample.
    pub max_frames: usize,
    /// Rules met before.
    pub cache: &'static RuleCache,
    /// Answers tell how long their thread had to wait for a processor.
    pub tells_delay: bool,
    /// What ITIMER_PROF's ticks stand for.
    pub process_time: ProcessTime,
    /// What sampling may cost.
    pub rate_limit: RateLimit,
    /// How threads start that nobody has registered.
    pub late_start: LateStart,
    /// Sampled blocks that nobody has freed; none if allocations are not sampled.
    pub live_blocks: Option<LiveBlocks>,
    /// Memory that is mapped; none if mappings are not recorded.
    pub live_mappings: Option<LiveMappings>,
}

impl Recording {
    /// True if no more samples are wanted: the process is ending, or the reader has finished.
    pub fn is_over(&self) -> bool {
        is_stopped() || self.doorbell.is_some_and(|doorbell| doorbell.is_stopped())
    }

    /// True if this clock asks for samples.
    pub fn is_clocked_by(&self, clock: Clock) -> bool {
        self.sources.clock == Some(clock)
    }

    /// True unless another recording has taken the place of this one.
    pub(crate) fn is_current(&self) -> bool {
        current().is_some_and(|current| ptr::eq(current, self))
    }

    /// Wakes the reader if it sleeps.
    pub fn ring(&self) {
        if let Some(doorbell) = self.doorbell
            && !is_filtered()
            && doorbell.ring()
        {
            sys::futex_wake_one(doorbell.futex_word());
        }
    }
}

/// The page that a fork wipes.
#[repr(C, align(4096))]
pub struct Page {
    recording: AtomicPtr<Recording>,
}

static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());
static STOPPED: AtomicBool = AtomicBool::new(false);

/// The recording of this very process, or none before the start, and in a child that was not prepared.
#[inline]
pub fn current() -> Option<&'static Recording> {
    // SAFETY: a published page stays mapped for ever.
    let page = unsafe { PAGE.load(Ordering::Acquire).as_ref() }?;
    // SAFETY: a published recording is never freed. Pairs with the release in `publish`.
    unsafe { page.recording.load(Ordering::Acquire).as_ref() }
}

/// Makes `recording` this process's.
///
/// # Safety
/// `page` is a zeroed page that stays mapped for ever, and that a fork wipes or the agent clears.
pub unsafe fn publish(page: *mut Page, recording: &'static Recording) {
    PAGE.store(page, Ordering::Release);
    // SAFETY: the caller's promise.
    let page = unsafe { &*page };
    page.recording.store(ptr::from_ref(recording).cast_mut(), Ordering::Release);
}

/// Forgets the recording, in a child to which it does not belong.
pub fn forget() {
    // SAFETY: a published page stays mapped for ever.
    if let Some(page) = unsafe { PAGE.load(Ordering::Acquire).as_ref() } {
        page.recording.store(ptr::null_mut(), Ordering::Release);
    }
}

/// Notes that no more samples are wanted.
pub fn set_stopped(stopped: bool) {
    STOPPED.store(stopped, Ordering::Relaxed);
}

/// True if no more samples are wanted.
pub fn is_stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}
