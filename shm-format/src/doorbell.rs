//! The doorbell: how a writer wakes the one sleeping reader, and how the reader tells all writers to stop.
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
//! With both barriers either the reader sees the chunk or the writer sees the sleeper; the swap makes exactly one of
//! many writers pay for the wake. A wake that is lost all the same (a process killed before its syscall) costs the
//! reader's timeout and nothing else.

use core::ptr::NonNull;

use crate::atomic::{AtomicU32, Ordering, fence};
use crate::layout::{DOORBELL_MAGIC, DoorbellPage, LayoutError, PAGE, VERSION};

impl DoorbellPage {
    /// Writer, after a completion: true if the caller must now wake one waiter on the futex word.
    pub fn ring(&self) -> bool {
        fence(Ordering::SeqCst);
        // The load keeps the line shared while the reader is awake; the swap decides.
        self.sleeping.0.load(Ordering::Relaxed) != 0 && self.sleeping.0.swap(0, Ordering::AcqRel) != 0
    }

    /// Reader: announces sleep. It must look for work once more before it waits on the futex word for 1.
    pub fn prepare_sleep(&self) {
        self.sleeping.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Reader: is awake again, for whatever reason.
    pub fn awake(&self) {
        self.sleeping.0.store(0, Ordering::Relaxed);
    }

    /// Whether the reader has announced sleep and nobody has rung since.
    #[must_use]
    pub fn is_sleeping(&self) -> bool {
        self.sleeping.0.load(Ordering::Relaxed) != 0
    }

    /// Reader: the recording has ended; agents stop sampling.
    pub fn stop(&self) {
        self.stop.0.store(1, Ordering::Release);
    }

    /// Whether the recording has ended.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stop.0.load(Ordering::Acquire) != 0
    }
}

/// A mapped doorbell page.
#[derive(Clone, Copy)]
pub struct Doorbell {
    page: NonNull<DoorbellPage>,
}

// SAFETY: the page is only accessed through atomics and stays mapped by the promise of `format` and `open`.
unsafe impl Send for Doorbell {}
// SAFETY: as for Send.
unsafe impl Sync for Doorbell {}

impl Doorbell {
    /// Makes a doorbell in a zeroed page (the reader's part).
    ///
    /// # Safety
    /// `base..base + len` must be mapped readable and writable, shared, and stay so while the `Doorbell` is used.
    pub unsafe fn format(base: NonNull<u8>, len: usize) -> Result<Self, LayoutError> {
        // SAFETY: the caller's promise is the one that `attach` needs.
        let doorbell = unsafe { Self::attach(base, len) }?;
        doorbell.version.store(VERSION, Ordering::Relaxed);
        doorbell.magic.store(DOORBELL_MAGIC, Ordering::Release);
        Ok(doorbell)
    }

    /// Opens a doorbell that the reader has made.
    ///
    /// # Safety
    /// As for [`format`](Self::format).
    pub unsafe fn open(base: NonNull<u8>, len: usize) -> Result<Self, LayoutError> {
        // SAFETY: the caller's promise is the one that `attach` needs.
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

    /// The word to wait on (value 1) and to wake: a shared, that is not `FUTEX_PRIVATE`, futex.
    #[must_use]
    pub fn futex_word(&self) -> *mut u32 {
        (&raw const self.sleeping.0).cast_mut().cast()
    }
}

impl core::ops::Deref for Doorbell {
    type Target = DoorbellPage;

    fn deref(&self) -> &DoorbellPage {
        // SAFETY: the page is mapped, aligned, long enough (checked in `attach`) and made of atomics.
        unsafe { self.page.as_ref() }
    }
}

const _: () = assert!(align_of::<AtomicU32>() >= 4);
