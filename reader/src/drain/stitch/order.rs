//! Puts a thread's records back into the order in which it wrote them.
//!
//! If a thread changes chunks during a pass, later records may be drained before earlier ones; sequence numbers tell. A
//! record that is missing for a whole pass was lost, and counted as lost.

use std::collections::BTreeMap;

/// Records of one thread, some of which wait for earlier ones.
#[derive(Debug)]
pub(super) struct Order<T> {
    next: u64,
    waiting: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for Order<T> {
    fn default() -> Self {
        Self { next: 0, waiting: BTreeMap::new() }
    }
}

impl<T> Order<T> {
    /// Adds a record drained in pass number `pass`.
    pub(super) fn push(&mut self, sequence: u64, pass: u64, record: T) {
        self.waiting.insert(sequence, (pass, record));
    }

    /// Removes and returns the next record, unless an earlier one may still arrive. A record from before `pass` waits no longer.
    pub(super) fn pop(&mut self, pass: u64) -> Option<T> {
        let entry = self.waiting.first_entry()?;
        // Below `next`: long overdue, or read again after an earlier reader died.
        if *entry.key() > self.next && entry.get().0 >= pass {
            return None;
        }
        self.next = self.next.max(entry.key() + 1);
        Some(entry.remove().1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(order: &mut Order<char>, pass: u64) -> String {
        std::iter::from_fn(|| order.pop(pass)).collect()
    }

    #[test]
    fn records_wait_for_earlier_ones_for_one_pass() {
        let mut order = Order::default();
        for (sequence, record) in [(2, 'c'), (0, 'a'), (3, 'd')] {
            order.push(sequence, 1, record);
        }
        assert_eq!(drain(&mut order, 1), "a");
        order.push(1, 2, 'b');
        order.push(9, 2, 'j');
        assert_eq!(drain(&mut order, 2), "bcd");
        assert_eq!(drain(&mut order, 3), "j", "4 to 8 are lost");
        order.push(8, 3, 'i');
        assert_eq!(drain(&mut order, 3), "i", "late, but not dropped");
        order.push(10, 3, 'k');
        assert_eq!(drain(&mut order, 3), "k");
    }
}
