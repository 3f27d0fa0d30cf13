//! What the handler knows of its process: where records go, which modules are loaded, what is forbidden.
//!
//! The agent writes it outside the handler. One page of it is wiped by the kernel in a forked child, so a child
//! that nobody has prepared (a bare `clone`) finds nothing here, and never touches its parent's records.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use shm_format::{Bell, Region};
use unwind::{Modules, RuleCache};

use crate::clock;
use crate::governor::Governor;
use crate::newcomers::Newcomers;
use crate::slot::Slot;
use crate::sys;

/// The modules at one time, immutable once published.
pub struct Snapshot {
    /// What the walker looks up.
    pub modules: Modules<'static>,
}

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
}

impl Source {
    /// The number of the source in records: 1 for the process's timer, 2 for the threads' timers, 3 for the kernel's
    /// events.
    pub const fn number(self) -> u8 {
        match self {
            Source::ProcessTimer => 1,
            Source::ThreadTimer => 2,
            Source::Perf => 3,
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
    /// Most frames per sample.
    pub max_frames: usize,
    /// Rules met before.
    pub cache: &'static RuleCache,
    /// Answers tell how long their thread had to wait for a processor.
    pub tells_delay: bool,
    /// What ITIMER_PROF's ticks stand for.
    pub process_time: ProcessTime,
    /// What sampling may cost.
    pub governor: Governor,
    /// Threads that nobody announces.
    pub newcomers: Newcomers,
}

/// How much of the process's CPU time its ticks have stood for so far. The kernel merges expiries of ITIMER_PROF and
/// does not say how many (setitimer(2) has no overrun count), so the clock is asked.
pub struct ProcessTime {
    period_ns: u64,
    counted_ns: AtomicU64,
    given_up: AtomicBool,
}

impl ProcessTime {
    /// Ticks of this period, from now on.
    pub fn starting_now(period_ns: u64) -> Self {
        Self {
            period_ns: period_ns.max(1),
            counted_ns: AtomicU64::new(clock::process_cpu_ns()),
            given_up: AtomicBool::new(false),
        }
    }

    /// Leaves ITIMER_PROF to the program: its signals are not ours any more.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    /// True if the timer is the program's.
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// The periods, rounded, that have passed since the last tick of any thread; at least one. One where system calls
    /// are filtered, since the clock is one.
    pub(crate) fn periods(&self) -> u32 {
        if is_filtered() {
            return 1;
        }
        let counted = self.counted_ns.load(Ordering::Relaxed);
        let passed = clock::process_cpu_ns().saturating_sub(counted);
        let periods = (passed.saturating_add(self.period_ns / 2) / self.period_ns).clamp(1, u32::MAX.into());
        let next = counted.wrapping_add(periods.wrapping_mul(self.period_ns));
        // Of two threads with a tick at once, one stands for all that has passed.
        match self.counted_ns.compare_exchange(counted, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => periods as u32,
            Err(_) => 1,
        }
    }
}

impl Recording {
    /// True if no more samples are wanted: the process is ending, or the reader has finished.
    pub fn is_over(&self) -> bool {
        is_stopped() || self.bell.is_some_and(|bell| bell.is_stopped())
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
static MODULES: AtomicPtr<Snapshot> = AtomicPtr::new(ptr::null_mut());
/// A thread ran code that no module of the snapshot holds.
static STALE: AtomicBool = AtomicBool::new(false);
/// One ever did.
static MET_UNKNOWN_CODE: AtomicBool = AtomicBool::new(false);
/// The program has restricted its system calls.
static FILTERED: AtomicBool = AtomicBool::new(false);
static STOPPED: AtomicBool = AtomicBool::new(false);
static NEXT_SEQUENCE: AtomicU32 = AtomicU32::new(1);

/// The recording of this very process, or none before the start, and in a child that was not prepared.
#[inline]
pub fn recording() -> Option<&'static Recording> {
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

/// Replaces the snapshot and returns the one before, which may still be pinned.
pub fn replace_modules(snapshot: *mut Snapshot) -> *mut Snapshot {
    // Sequentially consistent with the store and load in `Pinned::new`: either the handler sees the new
    // snapshot, or `is_pinned` sees the handler's pin.
    MODULES.swap(snapshot, Ordering::SeqCst)
}

/// The published snapshot.
pub fn modules() -> *mut Snapshot {
    MODULES.load(Ordering::Acquire)
}

/// True if some thread may be walking with `snapshot`, which is no longer published.
pub fn is_pinned(snapshot: *mut Snapshot) -> bool {
    crate::slot::all().any(|slot| ptr::eq(slot.pin().load(Ordering::SeqCst), snapshot))
}

/// Notes that the loaded modules are not those of the snapshot.
pub fn set_stale() {
    STALE.store(true, Ordering::Relaxed);
}

/// Notes that a sample met code of no known module, which may be in one that is not known yet.
pub fn note_unknown_code() {
    MET_UNKNOWN_CODE.store(true, Ordering::Relaxed);
    set_stale();
}

/// True if a sample met code of no known module.
pub fn met_unknown_code() -> bool {
    MET_UNKNOWN_CODE.load(Ordering::Relaxed)
}

/// True if the modules must be looked at again.
#[inline]
pub fn is_stale() -> bool {
    STALE.load(Ordering::Relaxed)
}

/// True if the modules must be looked at again; the caller does.
pub fn take_stale() -> bool {
    is_stale() && STALE.swap(false, Ordering::Relaxed)
}

/// Notes whether a system call may kill.
pub fn set_filtered(filtered: bool) {
    FILTERED.store(filtered, Ordering::Relaxed);
}

/// True if a system call that the program would not make itself may kill.
pub fn is_filtered() -> bool {
    FILTERED.load(Ordering::Relaxed)
}

/// Notes that no more samples are wanted.
pub fn set_stopped(stopped: bool) {
    STOPPED.store(stopped, Ordering::Relaxed);
}

/// True if no more samples are wanted.
pub fn is_stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}

/// A new thread's number.
pub fn next_sequence() -> u32 {
    NEXT_SEQUENCE.fetch_add(1, Ordering::Relaxed)
}

/// A snapshot that is not freed while this lives.
pub struct Pinned<'a> {
    slot: &'a Slot,
    snapshot: *mut Snapshot,
}

impl<'a> Pinned<'a> {
    /// Times a handler tries to pin while snapshots are being replaced under it.
    const ATTEMPTS: usize = 8;

    /// Pins the published snapshot in `slot`.
    pub fn new(slot: &'a Slot) -> Option<Self> {
        for _ in 0..Self::ATTEMPTS {
            let snapshot = MODULES.load(Ordering::SeqCst);
            slot.pin().store(snapshot, Ordering::SeqCst);
            if ptr::eq(MODULES.load(Ordering::SeqCst), snapshot) {
                return (!snapshot.is_null()).then_some(Self { slot, snapshot });
            }
        }
        slot.pin().store(ptr::null_mut(), Ordering::Release);
        None
    }

    /// The pinned modules.
    pub fn modules(&self) -> &Modules<'static> {
        // SAFETY: published when pinned, and not freed before the pin is gone.
        unsafe { &(*self.snapshot).modules }
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        // Pairs with the load in `is_pinned`: the walk's reads come before the release of the snapshot.
        self.slot.pin().store(ptr::null_mut(), Ordering::Release);
    }
}
