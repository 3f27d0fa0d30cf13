//! The walker's only view of the memory it walks.

/// Reads the memory of the walked thread.
///
/// The walker hands over addresses computed from corrupt stacks: an implementation must check before it loads.
pub trait Memory {
    /// The eight bytes at `address` (of any alignment), or `None` when they cannot be read. Never faults.
    fn read(&mut self, address: u64) -> Option<u64>;

    /// The end of the memory known to be readable from `address` on; `address` itself if nothing is known.
    fn known_until(&mut self, address: u64) -> u64 {
        address
    }

    /// From now on reads follow a guess: what is known to be readable may end before the thread's stack does, as where a
    /// program has carved smaller stacks out of it, with guard pages between them.
    fn distrust(&mut self) {}

    /// The eight bytes at `address`, unchecked.
    ///
    /// # Safety
    /// They lie between an address and what [`known_until`](Self::known_until) has answered for it.
    unsafe fn load(&mut self, address: u64) -> u64 {
        self.read(address).unwrap_or(0)
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
        // SAFETY: the caller's promise.
        unsafe { (**self).load(address) }
    }
}
