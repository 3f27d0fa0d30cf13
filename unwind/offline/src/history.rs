//! The mappings of one process over time.
//!
//! Changes and queries may arrive in any order: a query for time T applies every change up to T. Queries in time order
//! are cheap. Settled changes are folded into the base layout and take no further memory.

use std::rc::Rc;

use crate::layout::{Layout, Mapping};

/// A change of a process's mappings.
#[derive(Clone, Debug)]
pub(crate) enum Change<'a> {
    Map(Mapping<'a>),
    Unmap {
        start: u64,
        end: u64,
    },
    /// exec: all mappings are gone.
    Clear,
    /// fork: the mappings become those of the parent.
    Replace(Rc<Layout<'a>>),
}

/// The mappings under one pid, over time. The pid may be reused by a later process.
#[derive(Debug, Default)]
pub(crate) struct History<'a> {
    /// The layout after all settled changes.
    base: Rc<Layout<'a>>,
    /// Sorted by time; changes with equal times stay in arrival order.
    changes: Vec<(u64, Change<'a>)>,
    /// Number of leading changes that `current` includes.
    applied: usize,
    current: Rc<Layout<'a>>,
    /// Incremented whenever `current` changes.
    edition: u64,
}

impl<'a> History<'a> {
    pub(crate) fn tell(&mut self, ns: u64, change: Change<'a>) {
        let at = self.changes.partition_point(|&(other, _)| other <= ns);
        self.changes.insert(at, (ns, change));
        if at < self.applied {
            self.start_over();
        }
    }

    fn start_over(&mut self) {
        self.current = Rc::clone(&self.base);
        self.applied = 0;
        self.edition += 1;
    }

    /// The layout at a time, and its edition: equal editions mean equal mappings.
    pub(crate) fn at(&mut self, ns: u64) -> (Rc<Layout<'a>>, u64) {
        let wanted = self.changes.partition_point(|&(other, _)| other <= ns);
        if wanted < self.applied {
            self.start_over();
        }
        if let Some(news) = self.changes.get(self.applied..wanted).filter(|news| !news.is_empty()) {
            // A Clear or Replace overrides everything before it, so start from the last one.
            let whole =
                news.iter().rposition(|(_, change)| matches!(change, Change::Clear | Change::Replace(_)));
            for (_, change) in news.get(whole.unwrap_or(0)..).unwrap_or_default() {
                apply(&mut self.current, change);
            }
            self.applied = wanted;
            self.edition += 1;
        }
        (Rc::clone(&self.current), self.edition)
    }

    /// Folds changes up to `ns` into the base. No change or query with an earlier time may follow.
    pub(crate) fn settle(&mut self, ns: u64) {
        let settled = self.changes.partition_point(|&(other, _)| other < ns);
        if settled == 0 {
            return;
        }
        if settled > self.applied {
            self.at(ns.saturating_sub(1));
        }
        for (_, change) in self.changes.drain(..settled) {
            apply(&mut self.base, &change);
        }
        // `current` already includes the settled changes.
        self.applied -= settled;
    }
}

fn apply<'a>(layout: &mut Rc<Layout<'a>>, change: &Change<'a>) {
    match change {
        Change::Map(mapping) => Rc::make_mut(layout).map(*mapping),
        Change::Unmap { start, end } => Rc::make_mut(layout).unmap(*start, *end),
        Change::Clear => Rc::make_mut(layout).clear(),
        Change::Replace(other) => *layout = Rc::clone(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(start: u64, end: u64, id: u64) -> Change<'static> {
        Change::Map(Mapping { start, end, offset: 0, binary: None, since_ns: 0, id })
    }

    fn at(history: &mut History<'static>, ns: u64, address: u64) -> Option<u64> {
        history.at(ns).0.find(address).map(|mapping| mapping.id)
    }

    #[test]
    fn mappings_depend_on_the_time() {
        let mut history = History::default();
        history.tell(30, map(0x1000, 0x2000, 3));
        history.tell(10, map(0x1000, 0x2000, 1));
        assert_eq!(at(&mut history, 40, 0x1000), Some(3));
        // Arrives late.
        history.tell(20, Change::Unmap { start: 0x1000, end: 0x1800 });
        for (ns, address, id) in [
            (9, 0x1000, None),
            (10, 0x1000, Some(1)),
            (20, 0x1000, None),
            (20, 0x1800, Some(1)),
            (30, 0x1000, Some(3)),
        ] {
            assert_eq!(at(&mut history, ns, address), id, "at {ns}");
        }
        history.tell(50, Change::Clear);
        assert_eq!((at(&mut history, 50, 0x1000), at(&mut history, 49, 0x1000)), (None, Some(3)));
    }

    #[test]
    fn a_forked_process_has_the_mappings_of_its_parent() {
        let mut parent = History::default();
        parent.tell(10, map(0x1000, 0x2000, 1));
        let mut child = History::default();
        child.tell(5, map(0x1000, 0x9000, 7));
        child.tell(20, Change::Replace(parent.at(20).0));
        parent.tell(30, Change::Unmap { start: 0, end: u64::MAX });
        assert_eq!((at(&mut child, 40, 0x1000), at(&mut child, 40, 0x8000)), (Some(1), None));
        assert_eq!(at(&mut child, 19, 0x8000), Some(7));
        assert_eq!(at(&mut parent, 40, 0x1000), None);
    }

    #[test]
    fn settled_changes_still_apply() {
        let mut history = History::default();
        for id in 1..100u64 {
            history.tell(id * 10, map(id << 12, (id + 1) << 12, id));
        }
        assert_eq!(at(&mut history, 300, 30 << 12), Some(30));
        history.settle(500);
        assert_eq!(history.changes.len(), 50);
        let edition = history.at(500).1;
        assert_eq!(history.at(500).1, edition);
        for id in [1, 49, 50] {
            assert_eq!(at(&mut history, 500, id << 12), Some(id));
        }
        assert_eq!(at(&mut history, 500, 51 << 12), None);
        history.tell(505, Change::Unmap { start: 0, end: 10 << 12 });
        assert_eq!((at(&mut history, 2000, 5 << 12), at(&mut history, 2000, 99 << 12)), (None, Some(99)));
        history.settle(u64::MAX);
        assert_eq!(at(&mut history, 2000, 99 << 12), Some(99));
    }
}
