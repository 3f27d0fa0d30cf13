//! The snapshot of the loaded modules that walks use: published by the agent, protected by hazard pointers.
//!
//! A snapshot is immutable. The agent frees a replaced one when no thread's [`Pin`] holds it any more.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use interpreter::python::Python;
use interpreter::regions::Region;
use unwind::Modules;

use crate::generated::Run;

/// The modules at one time. Immutable once published. What every walk needs is in one cache line.
#[repr(C, align(64))]
pub struct Snapshot {
    modules: Modules<'static>,
    regions: &'static [Region],
    generated: &'static [Run],
    is_native: bool,
    python: Option<Python>,
}

impl Snapshot {
    /// The modules, the interpreter if one is loaded, regions with unwinders of their own, and generated code with registered
    /// call frame information, both by address.
    pub fn new(
        modules: Modules<'static>,
        python: Option<Python>,
        regions: &'static [Region],
        generated: &'static [Run],
    ) -> Self {
        let is_native = python.is_none() && regions.is_empty();
        Self { modules, regions, generated, is_native, python }
    }
}

static PUBLISHED: AtomicPtr<Snapshot> = AtomicPtr::new(ptr::null_mut());
/// [`NATIVE`] and the generation of the modules, if all frames are native. Never newer than the snapshot.
static GENERATION: AtomicU64 = AtomicU64::new(0);
const NATIVE: u64 = 1 << 32;
/// A sample hit code outside all modules of the snapshot since the last rescan.
static STALE: AtomicBool = AtomicBool::new(false);
/// A sample has ever hit such code.
static SAW_UNKNOWN_CODE: AtomicBool = AtomicBool::new(false);

/// Replaces the snapshot and returns the previous one, which may still be pinned.
///
/// # Safety
/// `snapshot` must be null or point to one that lives until it is replaced and no longer pinned. One caller at a time.
pub unsafe fn replace(snapshot: *mut Snapshot) -> *mut Snapshot {
    // Sequentially consistent with the store and load in `Pinned::new`: either the handler sees the new snapshot, or
    // `Pin::holds` sees the handler's pin.
    let before = PUBLISHED.swap(snapshot, Ordering::SeqCst);
    // SAFETY: the caller promises null or a live snapshot.
    let native = unsafe { snapshot.as_ref() }.filter(|new| new.is_native);
    let generation = native.map_or(0, |new| NATIVE | u64::from(new.modules.generation()));
    GENERATION.store(generation, Ordering::Release);
    before
}

/// The generation of the published modules, or of the previous ones; `None` if walks may find other frames than native ones.
#[inline]
pub(crate) fn native_generation() -> Option<u32> {
    let generation = GENERATION.load(Ordering::Acquire);
    (generation & NATIVE != 0).then_some(generation as u32)
}

/// The published snapshot.
pub fn published() -> *mut Snapshot {
    PUBLISHED.load(Ordering::Acquire)
}

/// Requests a rescan of the loaded modules.
pub fn set_stale() {
    STALE.store(true, Ordering::Relaxed);
}

/// Notes that a sample hit code outside all known modules, which may be in a new one.
#[cold]
pub fn note_unknown_code() {
    SAW_UNKNOWN_CODE.store(true, Ordering::Relaxed);
    set_stale();
}

/// Whether a sample has hit code outside all known modules.
pub fn saw_unknown_code() -> bool {
    SAW_UNKNOWN_CODE.load(Ordering::Relaxed)
}

/// Whether a rescan is needed.
#[inline]
pub fn is_stale() -> bool {
    STALE.load(Ordering::Relaxed)
}

/// Whether a rescan is needed; if so, the caller must do it.
pub fn take_stale() -> bool {
    is_stale() && STALE.swap(false, Ordering::Relaxed)
}

/// A thread's hazard pointer, which keeps the snapshot of its walk alive.
#[derive(Debug, Default)]
pub struct Pin {
    snapshot: AtomicPtr<Snapshot>,
}

impl Pin {
    /// Whether the thread may be walking with `snapshot`, which is no longer published.
    pub fn holds(&self, snapshot: *mut Snapshot) -> bool {
        ptr::eq(self.snapshot.load(Ordering::SeqCst), snapshot)
    }

    /// Forgets the pin of an abandoned walk.
    pub(crate) fn reset(&self) {
        self.snapshot.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

/// A pinned snapshot.
pub(crate) struct Pinned<'a> {
    pin: &'a Pin,
    snapshot: *mut Snapshot,
}

impl<'a> Pinned<'a> {
    /// Further attempts to pin a snapshot while it is being replaced.
    const ATTEMPTS: usize = 7;

    /// Pins the published snapshot with the thread's `pin`.
    #[inline]
    pub(crate) fn new(pin: &'a Pin) -> Option<Self> {
        Self::attempt(pin).or_else(|| Self::again(pin))
    }

    #[inline]
    fn attempt(pin: &'a Pin) -> Option<Self> {
        let snapshot = PUBLISHED.load(Ordering::SeqCst);
        pin.snapshot.store(snapshot, Ordering::SeqCst);
        let is_pinned = ptr::eq(PUBLISHED.load(Ordering::SeqCst), snapshot) && !snapshot.is_null();
        is_pinned.then_some(snapshot).map(|snapshot| Self { pin, snapshot })
    }

    #[cold]
    #[inline(never)]
    fn again(pin: &'a Pin) -> Option<Self> {
        let pinned = (0..Self::ATTEMPTS).find_map(|_| Self::attempt(pin));
        if pinned.is_none() {
            pin.snapshot.store(ptr::null_mut(), Ordering::Release);
        }
        pinned
    }

    /// The pinned modules.
    pub(crate) fn modules(&self) -> &Modules<'static> {
        // SAFETY: published when it was pinned, and not freed while it is.
        unsafe { &(*self.snapshot).modules }
    }

    /// Whether walks find native frames only.
    #[inline]
    pub(crate) fn is_native(&self) -> bool {
        // SAFETY: published when it was pinned, and not freed while it is.
        unsafe { (*self.snapshot).is_native }
    }

    /// The loaded interpreter, if there is one.
    #[inline]
    pub(crate) fn python(&self) -> Option<&Python> {
        // SAFETY: published when it was pinned, and not freed while it is.
        unsafe { (*self.snapshot).python.as_ref() }
    }

    /// The regions with unwinders of their own.
    #[inline]
    pub(crate) fn regions(&self) -> &[Region] {
        // SAFETY: published when it was pinned, and not freed while it is.
        unsafe { (*self.snapshot).regions }
    }

    /// Generated code with registered call frame information.
    #[inline]
    pub(crate) fn generated(&self) -> &[Run] {
        // SAFETY: published when it was pinned, and not freed while it is.
        unsafe { (*self.snapshot).generated }
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        // Release: the walk's reads come before; pairs with the load in `Pin::holds`.
        self.pin.snapshot.store(ptr::null_mut(), Ordering::Release);
    }
}
