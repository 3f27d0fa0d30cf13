//! The walker's only view of the memory it walks.

/// Reads the memory of the walked thread.
///
/// The walker hands over addresses computed from corrupt stacks: an implementation must check before it loads.
pub trait Memory {
    /// The eight bytes at `address` (of any alignment), or `None` when they cannot be read. Never faults.
    fn read(&mut self, address: u64) -> Option<u64>;
}

impl<M: Memory + ?Sized> Memory for &mut M {
    fn read(&mut self, address: u64) -> Option<u64> {
        (**self).read(address)
    }
}
