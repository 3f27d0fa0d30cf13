//! The state of one thread, and who owns it.

use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use interpreter::{SampledThread, Scratch, Signals};
use platform::bounds::Bounds;
use shm_format::{Control, CopyBuffer, Region, StackChain, ThreadCursor};
use unwind::StackCache;

use super::note;
use super::workspace::{self, Workbench, Workspace};
use crate::kernel_ring::KernelRings;
use crate::nesting::{Entered, Nesting};
use crate::probed_pages::ProbedPages;
use crate::recent_stacks::RecentStacks;
use crate::signal_stack::SignalStack;
use crate::snapshot::Pin;

/// Who owns a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Phase {
    /// Nobody.
    Free = 0,
    /// The caller that is assigning it to a thread or taking it back.
    Between = 1,
    /// A registered thread: it has a note of its slot, and reports its end.
    Registered = 2,
    /// A thread that was discovered while running: it has no note of its slot.
    Discovered = 3,
    /// Left forever to a handler that may still be using it.
    Abandoned = 4,
}

/// The state of one thread. Aligned so that no two threads share a cache line (or a prefetched pair of lines). What every
/// sample needs is in the first two lines, up to the first of the rings, and in that of the cursor.
#[repr(C, align(128))]
pub struct Slot {
    /// `sequence:32 | phase:32`.
    life: AtomicU64,
    /// The guard against two samples at once.
    pub nesting: Nesting,
    /// The same for an event nested in another event.
    pub(super) nested: Nesting,
    /// Keeps the snapshot that the thread's walk uses from being freed.
    pub pin: Pin,
    /// The alternate signal stacks of the agent and of the program.
    pub signal_stack: SignalStack,
    workspace: AtomicPtr<Workspace>,
    stack_low: AtomicU64,
    stack_high: AtomicU64,
    pub(super) number: AtomicU32,
    carried: AtomicU32,
    /// The perf rings through which the kernel requests stacks.
    pub kernel_rings: KernelRings,
    /// That of an event nested in another event.
    pub(super) nested_pin: Pin,
    tid: AtomicU32,
    /// Number of the next slot in the arena's chain, plus one.
    pub(super) next: AtomicU32,
    hidden: AtomicU32,
    started: AtomicU32,
    owed: AtomicU32,
    timer: AtomicI32,
    /// Whether the bounds of the stack are learned ones.
    learned: AtomicU32,
    /// Where the thread writes in the pool.
    pub cursor: ThreadCursor,
}

// SAFETY: `cursor` and the workspace are used by the owning thread inside `nesting` alone (or by the agent while no such
// thread exists); all else is atomic.
unsafe impl Sync for Slot {}

/// Approximate number of slots that belong to a thread.
pub(super) static TAKEN: AtomicU32 = AtomicU32::new(0);
/// Number of slots of discovered threads.
pub(super) static DISCOVERED: AtomicU32 = AtomicU32::new(0);

/// Approximate number of slots that belong to a thread.
pub fn count() -> usize {
    TAKEN.load(Ordering::Relaxed) as usize
}

impl Slot {
    /// No timer belongs to the slot.
    pub const NO_TIMER: i32 = -1;

    fn life(sequence: u32, phase: Phase) -> u64 {
        u64::from(sequence) << 32 | u64::from(phase as u32)
    }

    fn is_in(&self, phase: Phase) -> bool {
        // Acquire: pairs with the release in `begin`, for the fields of the slot.
        self.life.load(Ordering::Acquire) as u32 == phase as u32
    }

    /// Takes the slot away from its owner if it is in `phase`. From then on only the caller may assign it to a thread or
    /// free it.
    pub(super) fn seize(&self, phase: Phase) -> bool {
        let life = self.life.load(Ordering::Relaxed);
        life as u32 == phase as u32 && self.seize_life(life)
    }

    fn seize_life(&self, life: u64) -> bool {
        let between = life & !0xffff_ffff | u64::from(Phase::Between as u32);
        self.life.compare_exchange(life, between, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub(super) fn is_taken(&self) -> bool {
        let phase = self.life.load(Ordering::Acquire) as u32;
        phase == Phase::Registered as u32 || phase == Phase::Discovered as u32
    }

    /// Assigns a seized slot to a thread.
    pub(super) fn begin(&self, tid: u32, sequence: u32, phase: Phase) {
        self.signal_stack.begin();
        self.begin_at(tid, sequence, phase);
    }

    /// Assigns a seized slot to a thread, whose signal stacks it has.
    fn begin_at(&self, tid: u32, sequence: u32, phase: Phase) {
        self.set_stack(Bounds::NONE);
        self.hidden.store(0, Ordering::Relaxed);
        self.started.store(0, Ordering::Relaxed);
        self.owed.store(0, Ordering::Relaxed);
        self.carried.store(0, Ordering::Relaxed);
        self.timer.store(Self::NO_TIMER, Ordering::Relaxed);
        self.pin.reset();
        self.nested_pin.reset();
        self.nesting.reset();
        self.nested.reset();
        self.kernel_rings.forget();
        self.cursor.begin(tid, sequence);
        self.give_workspace_back();
        self.tid.store(tid, Ordering::Relaxed);
        self.life.store(Self::life(sequence, phase), Ordering::Release);
    }

    /// Resets the slot for the thread that owns it, in a forked child or for another region. The thread keeps its stacks
    /// and must not be in a sample.
    pub fn restart(&self, tid: u32, sequence: u32) {
        let (stack, hidden) = (self.stack(), self.is_hidden());
        let phase = if self.is_discovered() { Phase::Discovered } else { Phase::Registered };
        self.begin_at(tid, sequence, phase);
        self.set_stack(stack);
        self.set_hidden(hidden);
    }

    /// True if a handler or another thread claimed this slot: its thread has no note of it, and may have thread-local
    /// storage that is not the C library's.
    pub fn is_discovered(&self) -> bool {
        self.is_in(Phase::Discovered)
    }

    /// True once for the discovered thread with this number; that caller alone then releases the slot.
    pub fn end_discovered(&self, sequence: u32) -> bool {
        let ended = self.seize_life(Self::life(sequence, Phase::Discovered));
        if ended {
            DISCOVERED.fetch_sub(1, Ordering::Relaxed);
        }
        ended
    }

    /// Takes the slot back from a stopped thread, which gets another one for another region. If the thread is using the
    /// slot, it is abandoned: nobody finds or claims it any more.
    pub fn leave_region(&self) {
        match self.nesting.enter() {
            // A handler that gets this far later finds another recording. But it may already be reading rings.
            Some(_entered) if !self.kernel_rings.are_attached() => self.release(),
            _ => self.abandon(),
        }
    }

    fn abandon(&self) {
        if self.is_discovered() {
            DISCOVERED.fetch_sub(1, Ordering::Relaxed);
        }
        TAKEN.fetch_sub(1, Ordering::Relaxed);
        self.life.store(Self::life(self.sequence(), Phase::Abandoned), Ordering::Relaxed);
    }

    /// Frees the slot. The cursor must be closed and the timer deleted before.
    pub fn release(&self) {
        if self.is_discovered() {
            DISCOVERED.fetch_sub(1, Ordering::Relaxed);
        }
        self.pin.reset();
        self.nested_pin.reset();
        self.give_workspace_back();
        TAKEN.fetch_sub(1, Ordering::Relaxed);
        // Pairs with the exchange in `seize_life`.
        self.life.store(Self::life(self.sequence(), Phase::Free), Ordering::Release);
    }

    fn give_workspace_back(&self) {
        let workspace = self.workspace.swap(workspace::NONE, Ordering::Relaxed);
        if !workspace.is_null() {
            workspace::give(workspace);
        }
    }

    /// Identifies the slot in signals.
    pub fn token(&self) -> u64 {
        note::token(self.number.load(Ordering::Relaxed))
    }

    /// The kernel's id of the thread.
    pub fn tid(&self) -> u32 {
        self.tid.load(Ordering::Relaxed)
    }

    /// The thread's number within the process, never used twice.
    pub fn sequence(&self) -> u32 {
        (self.life.load(Ordering::Relaxed) >> 32) as u32
    }

    /// True if the program believes that the thread blocks the sampling signal although it does not.
    pub fn is_hidden(&self) -> bool {
        self.hidden.load(Ordering::Relaxed) != 0
    }

    /// Sets whether the program believes so.
    pub fn set_hidden(&self, hidden: bool) {
        self.hidden.store(hidden.into(), Ordering::Relaxed);
    }

    /// True once, when the CPU time from before the thread was known is to be counted.
    pub(crate) fn start_once(&self) -> bool {
        self.started.swap(1, Ordering::Relaxed) == 0
    }

    /// Notes that a request was answered before its signal arrived, or that the signal was merged with another.
    pub fn set_owed(&self) {
        self.owed.store(1, Ordering::Relaxed);
    }

    /// True once after [`set_owed`](Self::set_owed).
    pub fn take_owed(&self) -> bool {
        self.owed.swap(0, Ordering::Relaxed) != 0
    }

    /// Adds `periods` to the weight of the thread's next sample.
    pub(crate) fn carry(&self, periods: u32) {
        let sum = self.carried.load(Ordering::Relaxed).saturating_add(periods);
        self.carried.store(sum, Ordering::Relaxed);
    }

    /// Takes the periods carried over from ticks without a sample.
    pub fn take_carried(&self) -> u32 {
        self.carried.swap(0, Ordering::Relaxed)
    }

    /// The kernel's timer of the thread, or [`Slot::NO_TIMER`].
    pub fn timer(&self) -> i32 {
        self.timer.load(Ordering::Relaxed)
    }

    /// Sets the kernel's timer of the thread.
    pub fn set_timer(&self, timer: i32) {
        self.timer.store(timer, Ordering::Relaxed);
    }

    /// The bounds of the thread's stack, if known.
    pub fn stack(&self) -> Bounds {
        Bounds { low: self.stack_low.load(Ordering::Relaxed), high: self.stack_high.load(Ordering::Relaxed) }
    }

    /// What interpreters' frames are looked for in; their functions are announced in `region`.
    pub(crate) fn sampled<'r>(&self, region: &'r Region, signals: Signals) -> SampledThread<'r> {
        SampledThread { region, signals, stack: self.stack(), is_only: count() <= 1 }
    }

    /// Sets the bounds of the thread's stack. Called by the thread itself, or before its first sample.
    pub fn set_stack(&self, bounds: Bounds) {
        self.learned.store(0, Ordering::Relaxed);
        // A handler between the stores sees an empty range.
        self.stack_high.store(0, Ordering::Relaxed);
        self.stack_low.store(bounds.low, Ordering::Relaxed);
        self.stack_high.store(bounds.high, Ordering::Relaxed);
    }

    /// Sets the bounds of the thread's stack as far as the thread itself has learned them, and returns them.
    pub(crate) fn learn_stack(&self, bounds: Bounds) -> Bounds {
        self.set_stack(bounds);
        self.learned.store(1, Ordering::Relaxed);
        bounds
    }

    /// Whether the known bounds are those that the thread has learned.
    pub(crate) fn has_learned_stack(&self) -> bool {
        self.learned.load(Ordering::Relaxed) != 0
    }

    /// Ensures that the thread has a workspace; false if there is no memory. Called inside `nesting`, before any part of
    /// the workspace is used.
    #[inline]
    pub(crate) fn prepare(&self) -> bool {
        !self.workspace.load(Ordering::Relaxed).is_null() || self.take_workspace()
    }

    #[cold]
    fn take_workspace(&self) -> bool {
        let Some(workspace) = workspace::take() else { return false };
        self.workspace.store(ptr::from_ref(workspace).cast_mut(), Ordering::Relaxed);
        true
    }

    /// Gives the thread a workspace while memory may still be mapped, before a system call filter. Does nothing if the
    /// thread is in a sample, which has one.
    pub fn prepare_early(&self) {
        if let Some(_entered) = self.nesting.enter() {
            self.prepare();
        }
    }

    /// Takes the nesting guard for a sample or a recorded call at `stack_pointer`. `None` if another is in progress; one
    /// that a signal handler left by a jump is not.
    #[inline]
    pub(crate) fn enter(&self, stack_pointer: u64) -> Option<Entered<'_>> {
        let Some(entered) = self.nesting.enter_at(stack_pointer) else {
            return self.enter_abandoned(stack_pointer);
        };
        // The guard was free, so a nested event still marked as in progress was left by a jump.
        self.nested.reset();
        Some(entered)
    }

    #[cold]
    fn enter_abandoned(&self, stack_pointer: u64) -> Option<Entered<'_>> {
        let (inside, own) = (self.nesting.owner(), self.stack());
        // A suspended owner on the same stack would be further out, at a higher address.
        let is_left = inside != 0 && inside <= stack_pointer && own.hold(inside) && own.hold(stack_pointer);
        if !is_left {
            return None;
        }
        let entered = self.nesting.replace(inside, stack_pointer)?;
        self.pin.reset();
        // The same jump left any event nested in the abandoned call.
        self.nested.reset();
        if self.prepare() {
            // SAFETY: the previous owner is gone, and the guard keeps everybody else out.
            unsafe {
                (*self.chain()).reset();
                (*self.stack_cache()).forget();
                (*self.workspace.load(Ordering::Relaxed)).forget_recent_stacks();
            }
        }
        Some(entered)
    }

    /// Events that are added to the region's counters at once.
    const AT_ONCE: u64 = 64;

    /// Whether to time the next event: the first of each batch.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        self.cursor.events().is_multiple_of(Self::AT_ONCE)
    }

    /// Counts a recorded event. The first is told at once: readers leave a pool alone in which there never was one.
    #[inline]
    pub(crate) fn count_event(&self, control: &Control) {
        if self.cursor.count_event() % Self::AT_ONCE == 1 {
            self.tell_events(control);
        }
    }

    /// Adds the thread's events to the region's counters. Any thread may do so.
    #[cold]
    pub fn tell_events(&self, control: &Control) {
        let events = self.cursor.take_events();
        if events != 0 {
            control.record_events(events);
        }
    }

    /// The parts of the workspace that a walk needs.
    ///
    /// # Safety
    /// The caller must hold the nesting guard, have called [`prepare`](Self::prepare), and use these parts in no other way.
    pub(crate) unsafe fn bench(&self) -> Workbench<'_> {
        // SAFETY: the caller holds the guard, has called `prepare`, and uses these parts through the result only.
        unsafe {
            Workbench {
                stack_cache: &mut *self.stack_cache(),
                chain: &mut *self.chain(),
                scratch: &mut *self.scratch(),
                pages: &mut *self.probed_pages(),
                pin: &self.pin,
            }
        }
    }

    /// The encoder's state: the stack that the thread recorded last.
    pub(crate) fn chain(&self) -> *mut StackChain {
        // SAFETY: the workspace that `prepare` took stays mapped forever.
        unsafe { (*self.workspace.load(Ordering::Relaxed)).chain.get() }
    }

    /// The pages that the thread's current walk has probed.
    pub(crate) fn probed_pages(&self) -> *mut ProbedPages {
        // SAFETY: the workspace that `prepare` took stays mapped forever.
        unsafe { (*self.workspace.load(Ordering::Relaxed)).probed_pages.get() }
    }

    /// Memory for reading interpreters' frames.
    pub(crate) fn scratch(&self) -> *mut Scratch {
        // SAFETY: the workspace that `prepare` took stays mapped forever.
        unsafe { (*self.workspace.load(Ordering::Relaxed)).scratch.get() }
    }

    /// The buffer in which copies of the thread's stack are assembled.
    pub(crate) fn copy_buffer(&self) -> *mut CopyBuffer {
        // SAFETY: the workspace that `prepare` took stays mapped forever.
        unsafe { (*self.workspace.load(Ordering::Relaxed)).copy_buffer.get() }
    }

    /// The thread's known stacks; null if there is no memory for them.
    ///
    /// # Safety
    /// The caller must hold the nesting guard and have called [`prepare`](Self::prepare).
    pub(crate) unsafe fn recent_stacks(&self) -> *mut RecentStacks {
        // SAFETY: the workspace that `prepare` took stays mapped forever, and the guard keeps everybody else out.
        unsafe { (*self.workspace.load(Ordering::Relaxed)).recent_stacks() }
    }

    /// The thread's previous walk.
    pub(crate) fn stack_cache(&self) -> *mut StackCache {
        // SAFETY: the workspace that `prepare` took stays mapped forever.
        unsafe { (*self.workspace.load(Ordering::Relaxed)).stack_cache.get() }
    }
}
