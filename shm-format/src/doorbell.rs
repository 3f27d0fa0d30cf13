//! The doorbell: how writers wake the sleeping reader, and how the reader tells all writers to stop.
//!
//! ```text
//!   reader                                  writer
//!   sleeping = 1                            a chunk becomes COMPLETE
//!   full barrier                            full barrier
//!   look for complete chunks: none          sleeping != 0 and swap(sleeping, 0) == 1:
//!   futex wait(sleeping, 1, timeout)            futex wake(sleeping, one)
//!   sleeping = 0
//! ```
//!
//! Because of the two barriers either the reader sees the chunk or the writer sees the sleeper. The swap lets exactly
//! one of many writers pay for the wake-up. If the wake-up is lost all the same (a process killed before its system
//! call), the reader wakes at its timeout.

use core::ptr::NonNull;

use crate::atomic::{AtomicU32, Ordering, fence};
use crate::layout::{DOORBELL_MAGIC, DoorbellPage, LayoutError, PAGE, VERSION};

impl DoorbellPage {
    /// Writer, after completing a chunk: true if the caller must now wake one waiter on the futex word.
    #[inline]
    pub fn ring(&self) -> bool {
        fence(Ordering::SeqCst);
        // The load keeps the cache line shared while the reader is awake; the swap decides.
        self.sleeping.0.load(Ordering::Relaxed) != 0 && self.sleeping.0.swap(0, Ordering::AcqRel) != 0
    }

    /// Reader: announces that it will sleep. It must check for work once more before it waits on the futex word for 1.
    pub fn prepare_sleep(&self) {
        self.sleeping.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Reader: is awake again, for any reason.
    pub fn awake(&self) {
        self.sleeping.0.store(0, Ordering::Relaxed);
    }

    /// Reader: processes must announce that they have begun and that their modules have changed, because it walks their stacks
    /// itself.
    pub fn ask_for_changes(&self) {
        self.changes.store(1, Ordering::Relaxed);
    }

    /// Reader: a number that is another one after each announcement. Must be read before the records of changes; if it is another one
    /// after [`prepare_sleep`](Self::prepare_sleep), there are more of them.
    #[must_use]
    pub fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    /// Writer, after recording that it has begun or that its modules have changed: true if the caller must now wake one waiter on
    /// the futex word.
    #[inline]
    pub fn announce_change(&self) -> bool {
        if self.changes.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.changes.fetch_add(1, Ordering::Release);
        self.ring()
    }

    /// Whether the reader has announced sleep and no writer has rung since.
    #[cfg(all(test, loom))]
    pub(crate) fn is_sleeping(&self) -> bool {
        self.sleeping.0.load(Ordering::Relaxed) != 0
    }

    /// Reader: the recording has ended; agents must stop sampling.
    pub fn stop(&self) {
        self.stop.0.store(1, Ordering::Release);
    }

    /// Whether the recording has ended.
    #[must_use]
    #[inline]
    pub fn is_stopped(&self) -> bool {
        self.stop.0.load(Ordering::Acquire) != 0
    }
}

/// A mapped doorbell page.
#[derive(Clone, Copy)]
pub struct Doorbell {
    page: NonNull<DoorbellPage>,
}

// SAFETY: the page is accessed through atomics only, and stays mapped as promised to `format` or `open`.
unsafe impl Send for Doorbell {}
// SAFETY: the page is accessed through atomics only, so sharing a reference between threads is sound.
unsafe impl Sync for Doorbell {}

impl Doorbell {
    /// Initializes a doorbell in a zeroed page (reader's side).
    ///
    /// # Safety
    /// `base..base + len` must be mapped readable, writable and shared, and stay so while the `Doorbell` is used.
    pub unsafe fn format(base: NonNull<u8>, len: usize) -> Result<Self, LayoutError> {
        // SAFETY: the caller's promise is what `attach` requires.
        let doorbell = unsafe { Self::attach(base, len) }?;
        doorbell.version.store(VERSION, Ordering::Relaxed);
        doorbell.magic.store(DOORBELL_MAGIC, Ordering::Release);
        Ok(doorbell)
    }

    /// Opens a doorbell that the reader has initialized.
    ///
    /// # Safety
    /// As for [`format`](Self::format).
    pub unsafe fn open(base: NonNull<u8>, len: usize) -> Result<Self, LayoutError> {
        // SAFETY: the caller's promise is what `attach` requires.
        let doorbell = unsafe { Self::attach(base, len) }?;
        let magic = doorbell.magic.load(Ordering::Acquire);
        if magic != DOORBELL_MAGIC {
            return Err(LayoutError::BadMagic(magic));
        }
        let version = doorbell.version.load(Ordering::Relaxed);
        if version != VERSION {
            return Err(LayoutError::BadVersion(version));
        }
        Ok(doorbell)
    }

    /// # Safety
    /// As for [`format`](Self::format).
    unsafe fn attach(base: NonNull<u8>, len: usize) -> Result<Self, LayoutError> {
        if !base.addr().get().is_multiple_of(PAGE) {
            return Err(LayoutError::Unaligned);
        }
        if len < size_of::<DoorbellPage>() {
            return Err(LayoutError::TooShort(size_of::<DoorbellPage>() as u64, len as u64));
        }
        Ok(Self { page: base.cast() })
    }

    /// The word to wait on (for value 1) and to wake: a shared futex, without `FUTEX_PRIVATE`.
    #[must_use]
    pub fn futex_word(&self) -> *mut u32 {
        (&raw const self.sleeping.0).cast_mut().cast()
    }
}

impl core::ops::Deref for Doorbell {
    type Target = DoorbellPage;

    fn deref(&self) -> &DoorbellPage {
        // SAFETY: the page is mapped, aligned and long enough (checked in `attach`), and made of atomics.
        unsafe { self.page.as_ref() }
    }
}

const _: () = assert!(align_of::<AtomicU32>() >= 4);
