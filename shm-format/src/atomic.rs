//! The only file that names atomic types, so that loom can replace all of them at once.
//!
//! Besides the standard types there are two *local* operations: read-modify-writes that are atomic only against signal
//! handlers of the same thread. On x86-64 a signal cannot split an instruction, so they need neither a `lock` prefix
//! nor a fence; elsewhere they are ordinary atomics. They must never be used on a word that two threads modify: a
//! failing `cmpxchg` without `lock` still writes the old value back.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
mod x86_64;

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
pub(crate) use x86_64::{if_equal, local_add, local_compare_exchange, prefetch, store_bytes, store_words};

#[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
pub(crate) use portable::{if_equal, local_add, local_compare_exchange, store_bytes, store_words};

// Only the table of live blocks uses it, which loom does not model.
#[cfg(all(any(not(target_arch = "x86_64"), miri), not(loom)))]
pub(crate) use portable::prefetch;

/// Orders accesses to private words against handlers of the same thread. Emits no instruction.
#[inline(always)]
pub(crate) fn signal_fence() {
    // Loom does not model signal handlers.
    #[cfg(not(loom))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
}

#[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
mod portable {
    use super::{AtomicU64, Ordering};

    /// Replaces `old` by `new` if the word holds `old`; returns whether it did.
    pub(crate) fn local_compare_exchange(word: &AtomicU64, old: u64, new: u64) -> bool {
        word.compare_exchange(old, new, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Adds to the word (wrapping) and returns what it holds then.
    pub(crate) fn local_add(word: &AtomicU64, value: u64) -> u64 {
        word.fetch_add(value, Ordering::Release).wrapping_add(value)
    }

    /// Loads the word's cache line for a later access.
    #[cfg(not(loom))]
    pub(crate) fn prefetch(word: &AtomicU64) {
        core::hint::black_box(word.load(Ordering::Relaxed));
    }

    /// `then` if both words are the same, else `other`.
    pub(crate) fn if_equal(one: u64, two: u64, then: u8, other: u8) -> u8 {
        core::hint::select_unpredictable(one == two, then, other)
    }

    /// Stores values into words, in any order. Stops at the end of the shorter slice.
    pub(crate) fn store_words(words: &[AtomicU64], values: &[u64]) {
        for (word, value) in words.iter().zip(values) {
            word.store(*value, Ordering::Relaxed);
        }
    }

    /// Stores bytes into all words, eight bytes per little-endian word, in any order.
    ///
    /// # Safety
    /// `from` must point to eight readable bytes per word.
    pub(crate) unsafe fn store_bytes(words: &[AtomicU64], from: *const u8) {
        for (at, word) in words.iter().enumerate() {
            // SAFETY: the caller promises eight readable bytes per word, and `at` is a word's index.
            let bytes = unsafe { from.add(8 * at).cast::<[u8; 8]>().read() };
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
    }
}
