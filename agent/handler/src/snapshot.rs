//! The loaded modules at one time, as walks use them: published by the agent, kept by hazard pointers.
//!
//! A snapshot is immutable. The agent frees one that it has replaced when no thread's [`Pin`] holds it any more.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use unwind::Modules;

use crate::generated::Run;
use crate::interpreter::python::Python;
use crate::interpreter::regions::Region;

/// The modules at one time, immutable once published.
pub struct Snapshot {
    /// What the walker looks up.
    pub modules: Modules<'static>,
    /// The interpreter among them.
    pub python: Option<Python>,
    /// Regions with unwinders of their own, by address.
    pub regions: &'static [Region],
    /// Generated code with rules, by address.
    pub generated: &'static [Run],
}

static PUBLISHED: AtomicPtr<Snapshot> = AtomicPtr::new(ptr::null_mut());
/// A thread ran code that no module of the snapshot holds.
static STALE: AtomicBool = AtomicBool::new(false);
/// One ever did.
static MET_UNKNOWN_CODE: AtomicBool = AtomicBool::new(false);

/// Replaces the snapshot and returns the one before, which may still be pinned.
pub fn replace(snapshot: *mut Snapshot) -> *mut Snapshot {
    // Sequentially consistent with the store and load in `Pinned::new`: either the handler sees the new
    // snapshot, or `Pin::holds` sees the handler's pin.
    PUBLISHED.swap(snapshot, Ordering::SeqCst)
}

/// The published snapshot.
pub fn published() -> *mut Snapshot {
    PUBLISHED.load(Ordering::Acquire)
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

/// A thread's hazard pointer: the snapshot that its walk uses is not freed.
#[derive(Debug, Default)]
pub struct Pin {
    snapshot: AtomicPtr<Snapshot>,
}

impl Pin {
    /// True if the thread may be walking with `snapshot`, which is no longer published.
    pub fn holds(&self, snapshot: *mut Snapshot) -> bool {
        ptr::eq(self.snapshot.load(Ordering::SeqCst), snapshot)
    }

    /// Forgets a walk that was cut off.
    pub(crate) fn reset(&self) {
        self.snapshot.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

/// A snapshot that is not freed while this lives.
pub(crate) struct Pinned<'a> {
    pin: &'a Pin,
    snapshot: *mut Snapshot,
}

impl<'a> Pinned<'a> {
    /// Times a handler tries to pin while snapshots are being replaced under it.
    const ATTEMPTS: usize = 8;

    /// Pins the published snapshot by the thread's own `pin`.
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
        // SAFETY: published when pinned, and not freed before the pin is gone.
        unsafe { &(*self.snapshot).modules }
    }

    /// The interpreter that is loaded, if there is one.
    #[inline]
    pub(crate) fn python(&self) -> Option<&Python> {
        // SAFETY: as of the modules.
        unsafe { (*self.snapshot).python.as_ref() }
    }

    /// The regions that have unwinders of their own.
    #[inline]
    pub(crate) fn regions(&self) -> &[Region] {
        // SAFETY: as of the modules.
        unsafe { (*self.snapshot).regions }
    }

    /// The generated code that has rules.
    #[inline]
    pub(crate) fn generated(&self) -> &[Run] {
        // SAFETY: as of the modules.
        unsafe { (*self.snapshot).generated }
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        // Pairs with the load in `Pin::holds`: the walk's reads come before the release of the snapshot.
        self.pin.snapshot.store(ptr::null_mut(), Ordering::Release);
    }
}
