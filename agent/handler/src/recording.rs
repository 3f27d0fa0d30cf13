//! The recording of this process: its region, its sources of samples, and their limits.
//!
//! The agent creates it outside the handler. The page that refers to it is wiped by the kernel in a forked child, so
//! that a child that was not prepared (a bare `clone`) finds no recording and never touches its parent's records.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use platform::activity::is_filtered;
use platform::sys;
use shm_format::{AllocationCounts, Doorbell, LiveBlocks, LiveMappings, Region};
use unwind::RuleCache;

use crate::late_start::LateStart;
use crate::process_time::ProcessTime;
use crate::rate_limit::RateLimit;
use crate::switch_limit::SwitchLimit;
use crate::unwinding::Unwind;

/// The clock that triggers samples; a recording has at most one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// A timer per thread on the thread's CPU clock; its signals carry the slot.
    ThreadTimer,
    /// One timer for the process, ITIMER_PROF; the kernel picks the thread that is signalled.
    ProcessTimer,
    /// perf events on each thread, with a synchronous SIGTRAP that carries the slot. A thread that cannot have them
    /// gets a timer on its CPU clock instead, with the same signal.
    Perf,
}

impl Clock {
    /// Number of the source in records: 1 for the process timer, 2 for thread timers, 3 for perf events.
    pub const fn number(self) -> u8 {
        match self {
            Clock::ProcessTimer => 1,
            Clock::ThreadTimer => 2,
            Clock::Perf => 3,
        }
    }
}

/// What else is recorded, with or without a clock: activities of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Bytes that it allocates.
    Allocations,
    /// Its tracepoints.
    Tracepoints,
    /// Time that its threads wait for locks.
    Locks,
    /// Memory that it maps.
    Mappings,
}

impl Probe {
    /// Number of the source in records: 4 for allocations, 5 for tracepoints, 7 for lock waits, 8 for mappings.
    pub const fn number(self) -> u8 {
        match self {
            Probe::Allocations => 4,
            Probe::Tracepoints => 5,
            Probe::Locks => 7,
            Probe::Mappings => 8,
        }
    }
}

/// All sources of samples in a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// The clock, if there is one.
    pub clock: Option<Clock>,
    /// One bit per number of a [`Probe`].
    probes: u32,
}

impl Sources {
    /// This clock, or none, without probes.
    pub const fn of_clock(clock: Option<Clock>) -> Sources {
        Sources { clock, probes: 0 }
    }

    /// With `probe` added.
    #[must_use]
    pub const fn with(self, probe: Probe) -> Sources {
        Sources { probes: self.probes | 1 << probe.number(), ..self }
    }

    /// Whether `probe` is recorded.
    pub const fn have(self, probe: Probe) -> bool {
        self.probes & 1 << probe.number() != 0
    }

    /// With another clock.
    #[must_use]
    pub const fn clocked_by(self, clock: Option<Clock>) -> Sources {
        Sources { clock, ..self }
    }

    /// The number in the process's record: the clock's; without a clock that of the first probe; 0 for none.
    pub fn number(self) -> u8 {
        let first = || if self.probes == 0 { 0 } else { self.probes.trailing_zeros() as u8 };
        self.clock.map_or_else(first, Clock::number)
    }
}

/// Everything that is fixed from the start of recording to the end of the process. What every sample needs is in the first
/// cache line, and in that of the region.
#[repr(C, align(64))]
pub struct Recording {
    /// The sources of samples.
    pub sources: Sources,
    /// How the reader is woken; `None` without a reader.
    pub doorbell: Option<Doorbell>,
    /// The rule cache.
    pub cache: &'static RuleCache,
    /// Maximum frames per sample.
    pub max_frames: usize,
    /// What samples of a clock hold of a stack. All other samples are walked.
    pub unwind: Unwind,
    /// Whether answers report the thread's run-queue delay.
    pub tells_delay: bool,
    /// The rate limiter.
    pub rate_limit: RateLimit,
    /// Weights of ITIMER_PROF ticks.
    pub process_time: ProcessTime,
    /// The region that records go to.
    pub region: Region,
    /// Maximum bytes copied of a stack.
    pub copy_limit: u64,
    /// From how many switches on a thread's perf events are replaced.
    pub switch_limit: SwitchLimit,
    /// How discovered threads start.
    pub late_start: LateStart,
    /// The table of live blocks; `None` if allocations are not sampled.
    pub live_blocks: Option<LiveBlocks>,
    /// The table of allocation counts; `None` if not all allocations are recorded.
    pub allocation_counts: Option<AllocationCounts>,
    /// The table of live mappings; `None` if mappings are not recorded.
    pub live_mappings: Option<LiveMappings>,
}

impl Recording {
    /// Whether sampling must stop: the process is ending, or the reader has finished.
    pub fn is_over(&self) -> bool {
        is_stopped() || self.doorbell.is_some_and(|doorbell| doorbell.is_stopped())
    }

    /// Whether this clock is the source.
    pub fn is_clocked_by(&self, clock: Clock) -> bool {
        self.sources.clock == Some(clock)
    }

    /// Whether this recording has not been replaced by another one.
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

    /// Announces that the process has begun or has other modules, if the reader must know at once. Not for handlers.
    pub fn announce_change(&self) {
        if let Some(doorbell) = self.doorbell.filter(|_| !is_filtered())
            && doorbell.announce_change()
        {
            sys::futex_wake_one(doorbell.futex_word());
        }
    }
}

/// The page that is wiped by a fork.
#[repr(C, align(4096))]
pub struct Page {
    recording: AtomicPtr<Recording>,
}

static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());
static STOPPED: AtomicBool = AtomicBool::new(false);

/// The recording of this process; `None` before the start, and in a child that was not prepared.
#[inline]
pub fn current() -> Option<&'static Recording> {
    // SAFETY: a published page stays mapped forever.
    let page = unsafe { PAGE.load(Ordering::Acquire).as_ref() }?;
    // SAFETY: a published recording is never freed. The acquire pairs with the release in `publish`.
    unsafe { page.recording.load(Ordering::Acquire).as_ref() }
}

/// Publishes the recording of this process.
///
/// # Safety
/// `page` must be a zeroed page that stays mapped forever and that a fork wipes, or the agent clears.
pub unsafe fn publish(page: *mut Page, recording: &'static Recording) {
    PAGE.store(page, Ordering::Release);
    // SAFETY: the caller promises a page that stays mapped.
    let page = unsafe { &*page };
    page.recording.store(ptr::from_ref(recording).cast_mut(), Ordering::Release);
}

/// Forgets the recording, in a child to which it does not belong.
pub fn forget() {
    // SAFETY: a published page stays mapped forever.
    if let Some(page) = unsafe { PAGE.load(Ordering::Acquire).as_ref() } {
        page.recording.store(ptr::null_mut(), Ordering::Release);
    }
}

/// Sets whether sampling must stop.
pub fn set_stopped(stopped: bool) {
    STOPPED.store(stopped, Ordering::Relaxed);
}

/// Whether sampling must stop.
pub fn is_stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}
