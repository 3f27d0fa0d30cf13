//! The one place that names atomic types, so that loom can replace all of them at once.
//!
//! Beside the standard types there are two *local* operations: read-modify-writes that are atomic only against
//! signal handlers of the same thread. On x86-64 one instruction cannot be split by a signal, so they need no bus
//! lock and no fence; everywhere else they are ordinary atomics. They must never be used on a word that two
//! threads modify: a failing `cmpxchg` without `lock` still writes the old value back.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
mod x86_64;

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
pub(crate) use x86_64::{if_equal, local_add, local_compare_exchange, store_bytes, store_words};

#[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
pub(crate) use portable::{if_equal, local_add, local_compare_exchange, store_bytes, store_words};

/// Keeps accesses of private words in their order, for handlers of the same thread. No instruction.
#[inline(always)]
pub(crate) fn signal_fence() {
    // Loom knows no handlers.
    #[cfg(not(loom))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
}

#[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
mod portable {
    use super::{AtomicU64, Ordering};

    /// Replaces `old` by `new` if the word still holds `old`; says whether it did.
    pub(crate) fn local_compare_exchange(word: &AtomicU64, old: u64, new: u64) -> bool {
        word.compare_exchange(old, new, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Adds to the word (wrapping) and returns the value before.
    pub(crate) fn local_add(word: &AtomicU64, value: u64) -> u64 {
        word.fetch_add(value, Ordering::Release)
    }

    /// `then` if both words are the same, else `other`.
    pub(crate) fn if_equal(one: u64, two: u64, then: u8, other: u8) -> u8 {
        core::hint::select_unpredictable(one == two, then, other)
    }

    /// Stores values into words, in any order; as many as both sides have.
    pub(crate) fn store_words(words: &[AtomicU64], values: &[u64]) {
        for (word, value) in words.iter().zip(values) {
            word.store(*value, Ordering::Relaxed);
        }
    }

    /// Stores bytes into all words, eight to a little-endian word, in any order.
    ///
    /// # Safety
    /// `from` points to eight readable bytes for each word.
    pub(crate) unsafe fn store_bytes(words: &[AtomicU64], from: *const u8) {
        for (at, word) in words.iter().enumerate() {
            // SAFETY: the caller's promise.
            let bytes = unsafe { from.add(8 * at).cast::<[u8; 8]>().read() };
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
    }
}
