//! The walker's access to the memory of the thread it walks.

/// Reads memory of the walked thread.
///
/// Addresses come from possibly corrupt stacks: an implementation must check them before it loads.
pub trait Memory {
    /// The eight bytes at `address` (any alignment), or `None` if they cannot be read. Never faults.
    fn read(&mut self, address: u64) -> Option<u64>;

    /// End of the range from `address` on that is known to be readable; `address` itself if nothing is known.
    fn known_until(&mut self, address: u64) -> u64 {
        address
    }

    /// From now on addresses are guesses. What is known to be readable may end before the thread's stack does, for
    /// example where a program has divided it into smaller stacks with guard pages between them.
    fn distrust(&mut self) {}

    /// The eight bytes at `address`, unchecked.
    ///
    /// # Safety
    /// They must lie between an address and the result of [`known_until`](Self::known_until) for it.
    unsafe fn load(&mut self, address: u64) -> u64 {
        self.read(address).unwrap_or(0)
    }

    /// `other` with the bits flipped that are set in the word at number `index` from `base` on, unchecked.
    ///
    /// # Safety
    /// As for [`load`](Self::load).
    #[inline(always)]
    unsafe fn load_xor(&mut self, base: u64, index: u64, other: u64) -> u64 {
        // SAFETY: the caller's promise is the same.
        other ^ unsafe { self.load(base.wrapping_add(index * size_of::<u64>() as u64)) }
    }
}

impl<M: Memory + ?Sized> Memory for &mut M {
    fn read(&mut self, address: u64) -> Option<u64> {
        (**self).read(address)
    }

    fn known_until(&mut self, address: u64) -> u64 {
        (**self).known_until(address)
    }

    fn distrust(&mut self) {
        (**self).distrust();
    }

    unsafe fn load(&mut self, address: u64) -> u64 {
        // SAFETY: the caller's promise is the same.
        unsafe { (**self).load(address) }
    }
}
