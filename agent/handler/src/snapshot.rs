//! The snapshot of the loaded modules that walks use: published by the agent, protected by hazard pointers.
//!
//! A snapshot is immutable. The agent frees a replaced one when no thread's [`Pin`] holds it any more.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use unwind::Modules;

use crate::generated::Run;
use crate::interpreter::python::Python;
use crate::interpreter::regions::Region;

/// The modules at one time. Immutable once published.
pub struct Snapshot {
    /// The modules, for the walker.
    pub modules: Modules<'static>,
    /// The interpreter, if one is loaded.
    pub python: Option<Python>,
    /// Regions with unwinders of their own, by address.
    pub regions: &'static [Region],
    /// Generated code with registered call frame information, by address.
    pub generated: &'static [Run],
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
    let native = unsafe { snapshot.as_ref() }.filter(|new| new.python.is_none() && new.regions.is_empty());
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
    /// Attempts to pin a snapshot while it is being replaced.
    const ATTEMPTS: usize = 8;

    /// Pins the published snapshot with the thread's `pin`.
    pub(crate) fn new(pin: &'a Pin) -> Option<Self> {
        for _ in 0..Self::ATTEMPTS {
            let snapshot = PUBLISHED.load(Ordering::SeqCst);
            pin.snapshot.store(snapshot, Ordering::SeqCst);
            if ptr::eq(PUBLISHED.load(Ordering::SeqCst), snapshot) {
                return (!snapshot.is_null()).then_some(Self { pin, snapshot });
            }
        }
        pin.snapshot.store(ptr::null_mut(), Ordering::Release);
        None
    }

    /// The pinned modules.
    pub(crate) fn modules(&self) -> &Modules<'static> {
        // SAFETY: published when it was pinned, and not freed while it is.
        unsafe { &(*self.snapshot).modules }
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
