//! The words of memory that the last walk depended on, for callers that remember several walks.

use super::{CAPACITY, StackCache, sp};

impl StackCache {
    /// The stack pointers of the frames of the last walk, leaf first; 0 for an unknown one.
    pub fn stack_pointers(&self) -> impl Iterator<Item = u64> + '_ {
        let slots = self.previous.slots.get(self.previous.start..).unwrap_or(&[]);
        slots.iter().map(|&slot| if slot == u64::MAX { 0 } else { sp(slot) })
    }

    /// Passes to `tell` every word that the last walk depended on, with its address: first the return addresses, from
    /// the leaf's on, then those saved frame pointers that a later step uses. Returns the number of return addresses,
    /// and whether a step uses the leaf's own frame pointer. `None` if a step was not fast, if the walk did not end
    /// at the root, if its modules were of another generation, or if `tell` returns false.
    pub(crate) fn words(
        &self,
        generation: u32,
        mut tell: impl FnMut(u64, u64) -> bool,
    ) -> Option<(usize, bool)> {
        let previous = &self.previous;
        let first = previous.start + 1;
        let is_of = previous.generation == generation;
        if !is_of || !previous.has_root || previous.fast_from > first || first > CAPACITY {
            return None;
        }
        for entry in previous.entries(first..CAPACITY) {
            if !tell(entry.slot.wrapping_sub(entry.rule().above()), entry.address()) {
                return None;
            }
        }
        // The frame pointer before a step was set by the last step that restored one.
        let (mut saved, mut is_told, mut by_leaf) = (None, false, false);
        for entry in previous.entries(first..CAPACITY.min(previous.fp_until.max(previous.start) + 1)) {
            if entry.rule().on_fp() && !core::mem::replace(&mut is_told, true) {
                match saved {
                    Some((slot, word)) if !tell(slot, word) => return None,
                    Some(_) => {}
                    None => by_leaf = true,
                }
            }
            if entry.rule().saves_fp() {
                (saved, is_told) = (Some((entry.saved_slot(), entry.fp)), false);
            }
        }
        Some((CAPACITY - first, by_leaf))
    }
}
