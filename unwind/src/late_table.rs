//! The table of a module that had none when it was published. The first walk that needs it has it made, in the handler; from
//! then on all walks use it.

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::table::Table;

/// There is no table.
const NONE: u32 = 0;
/// A thread is making it, or the process forked while one was.
const IN_WORK: u32 = 1;
/// It is there for good.
const MADE: u32 = 2;

/// A place for one table.
#[derive(Debug)]
pub struct LateTable {
    path: &'static CStr,
    key: &'static [u8],
    state: AtomicU32,
    /// The number of the last try.
    tried: AtomicU64,
    table: UnsafeCell<Option<Table<'static>>>,
}

// SAFETY: the cell is written by the one thread that has set IN_WORK, and read only after MADE.
unsafe impl Sync for LateTable {}

impl LateTable {
    /// A place for the table of build-id or file key `key`, whose file will be at `path`.
    pub const fn new(path: &'static CStr, key: &'static [u8]) -> Self {
        let (state, tried) = (AtomicU32::new(NONE), AtomicU64::new(0));
        Self { path, key, state, tried, table: UnsafeCell::new(None) }
    }

    /// The table, if it has been made.
    #[inline]
    pub fn get(&self) -> Option<&Table<'static>> {
        if self.state.load(Ordering::Acquire) != MADE {
            return None;
        }
        // SAFETY: nobody writes to it after MADE.
        unsafe { (*self.table.get()).as_ref() }
    }

    /// Whether [`try_once`](Self::try_once) would do anything.
    pub fn is_due(&self, number: u64) -> bool {
        self.tried.load(Ordering::Relaxed) != number && self.state.load(Ordering::Relaxed) == NONE
    }

    /// Has `make` make the table from path and key; its bytes must stay where they are. Does so once for each `number`, beginning
    /// with 1, and not while another thread does. Returns whether the table was made now.
    pub fn try_once(&self, number: u64, make: impl FnOnce(&CStr, &[u8]) -> Option<Table<'static>>) -> bool {
        if !self.is_due(number)
            || self.state.compare_exchange(NONE, IN_WORK, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return false;
        }
        self.tried.store(number, Ordering::Relaxed);
        let table = make(self.path, self.key);
        let is_made = table.is_some();
        // SAFETY: only the thread that has set IN_WORK gets here, and nobody reads before MADE.
        unsafe { *self.table.get() = table };
        self.state.store(if is_made { MADE } else { NONE }, Ordering::Release);
        is_made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_tried_once_for_each_number() {
        let late = LateTable::new(c"/table", b"key");
        let mut tries = 0;
        for (number, expected) in [(0, 0), (1, 1), (1, 1), (2, 2), (0, 3), (0, 3)] {
            let made = late.try_once(number, |path, key| {
                assert_eq!((path, key), (c"/table", &b"key"[..]));
                assert!(!late.try_once(number + 1, |_, _| unreachable!()), "not while it is in work");
                tries += 1;
                None
            });
            assert!(!made && late.get().is_none());
            assert_eq!(tries, expected, "{number}");
        }
    }
}
