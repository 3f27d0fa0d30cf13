//! The recording of this process: where records go, what asks for samples, what they may cost.
//!
//! The agent writes it outside the handler. One page that leads to it is wiped by the kernel in a forked child, so a
//! child that nobody has prepared (a bare `clone`) finds nothing here, and never touches its parent's records.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use shm_format::{Bell, LiveBlocks, Region};
use unwind::RuleCache;

use crate::activity::is_filtered;
use crate::late_start::LateStart;
use crate::process_time::ProcessTime;
use crate::rate_limit::RateLimit;
use crate::sys;
use crate::unwinding::Unwind;

/// Which clock asks for samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// One timer per thread, on the thread's own CPU clock; its signals carry the slot.
    ThreadTimer,
    /// One timer for the whole process, ITIMER_PROF; the kernel picks a thread.
    ProcessTimer,
    /// Events of perf_event_open(2) on each thread, with a synchronous SIGTRAP that carries the slot. A thread that
    /// cannot have them has a timer on its CPU clock instead, with the same signal.
    Perf,
    /// No clock: the bytes that the program allocates.
    Allocations,
}

impl Source {
    /// The number of the source in records: 1 for the process's timer, 2 for the threads' timers, 3 for the kernel's
    /// events, 4 for allocations.
    pub const fn number(self) -> u8 {
        match self {
            Source::ProcessTimer => 1,
            Source::ThreadTimer => 2,
            Source::Perf => 3,
            Source::Allocations => 4,
        }
    }
}

/// Everything fixed from the start of recording to the end of the process.
pub struct Recording {
    /// Where records go.
    pub region: Region,
    /// How the reader is woken; none when nobody waits.
    pub bell: Option<Bell>,
    /// What asks for samples.
    pub source: Source,
    /// What samples hold of a stack. Those of allocations are always walked.
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
}

impl Recording {
    /// True if no more samples are wanted: the process is ending, or the reader has finished.
    pub fn is_over(&self) -> bool {
        is_stopped() || self.bell.is_some_and(|bell| bell.is_stopped())
    }

    /// True unless another recording has taken the place of this one.
    pub(crate) fn is_current(&self) -> bool {
        current().is_some_and(|current| ptr::eq(current, self))
    }

    /// Wakes the reader if it sleeps.
    pub fn ring(&self) {
        if let Some(bell) = self.bell
            && !is_filtered()
            && bell.ring()
        {
            sys::futex_wake_one(bell.futex_word());
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
