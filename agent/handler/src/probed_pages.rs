//! The pages that a walk has found readable, so that it probes each of them once.
//!
//! They are in the thread's workspace, because the thread's stack may be too small for them. Pages found by an earlier walk
//! must never count: another thread may have unmapped them since.

use crate::sys::PAGE;

const ENTRIES: usize = 16;

/// Readable pages, each with the number of the walk that probed it. All zeros is an empty one.
pub(crate) struct ProbedPages {
    /// By page number: the page's address and, in the low bits, the walk.
    seen: [u64; ENTRIES],
    /// 1 to 4095; 0 before the first walk.
    walk: u64,
}

impl ProbedPages {
    /// Forgets the pages of earlier walks.
    #[inline]
    pub(crate) fn begin_walk(&mut self) {
        self.walk += 1;
        if self.walk >= PAGE {
            self.forget_all();
        }
    }

    #[cold]
    fn forget_all(&mut self) {
        self.seen.fill(0);
        self.walk = 1;
    }

    /// Whether this walk has found the page at `page` readable.
    #[inline]
    pub(crate) fn contains(&self, page: u64) -> bool {
        self.seen.get(index(page)) == Some(&(page | self.walk))
    }

    /// Notes that the page at `page` is readable.
    pub(crate) fn insert(&mut self, page: u64) {
        if let Some(seen) = self.seen.get_mut(index(page)) {
            *seen = page | self.walk;
        }
    }

    #[cfg(test)]
    pub(crate) const fn new() -> Self {
        Self { seen: [0; ENTRIES], walk: 0 }
    }
}

fn index(page: u64) -> usize {
    (page / PAGE) as usize % ENTRIES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_counts_for_one_walk() {
        let mut pages = ProbedPages::new();
        for _ in 0..2 * PAGE {
            pages.begin_walk();
            assert!(!pages.contains(5 * PAGE) && !pages.contains(0));
            pages.insert(5 * PAGE);
            assert!(pages.contains(5 * PAGE) && !pages.contains(6 * PAGE));
            pages.insert((5 + ENTRIES as u64) * PAGE);
            assert!(!pages.contains(5 * PAGE), "one page for each entry");
        }
    }
}
