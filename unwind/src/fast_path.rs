//! The hot loop: steps from frame to frame by fast rules from the cache.
//!
//! The dependency chain from one return address to the next is the whole cost: load, index, load, shift, add. Everything
//! else runs beside it, and what differs from frame to frame is selected without a branch. The loop calls no function, so
//! that the chain's values stay in registers: a variable in memory costs as much as a load of the chain. A second form of
//! the loop takes rules that are not in the cache from tables.

use core::hint::select_unpredictable;

use crate::arch::WORD;
use crate::arch::native;
use crate::memory::Memory;
use crate::rule_cache::{FastRule, RuleCache};
use crate::rules::Rules;
use crate::stack_cache::{CachedFrame, Previous};

/// Maximum number of rules taken from tables without a cache lookup while the cache is nearly empty: the depth of most
/// stacks.
const UNASKED: usize = 64;

/// A run of fast steps.
pub(crate) struct FastPath<'w> {
    rules: Rules<'w>,
    /// The return address of the current frame.
    address: u64,
    /// The address is not a return address but one more than the instruction's.
    is_exact: bool,
    sp: u64,
    fp: u64,
    steps: usize,
}

impl<'w> FastPath<'w> {
    /// Starts at the frame with this return address, or, if `is_exact`, one more than the address of its next instruction.
    pub(crate) fn new(rules: Rules<'w>, address: u64, is_exact: bool, sp: u64, fp: u64) -> Self {
        Self { rules, address, is_exact, sp, fp, steps: 0 }
    }

    /// Steps through known memory and notes the frames, until there is no room, no fast rule, or a frame that the previous
    /// walk visited. Returns that frame's index in the previous walk.
    #[inline(never)]
    pub(crate) fn go<M: Memory>(
        &mut self,
        previous: &Previous,
        noted: &mut [CachedFrame],
        memory: &mut M,
    ) -> Option<usize> {
        let rules = self.rules;
        let hit = self.advance(previous, noted, memory, |address, _| rules.fast(address));
        if hit.is_some() || self.rules.knows(self.address) {
            return hit;
        }
        self.by_tables(previous, noted.get_mut(self.steps..)?, memory)
    }

    /// The number of frames noted.
    pub(crate) fn steps(&self) -> usize {
        self.steps
    }

    /// The current frame: return address, stack pointer and frame pointer.
    pub(crate) fn registers(&self) -> (u64, u64, u64) {
        (self.address, self.sp, self.fp)
    }

    /// Like [`go`](Self::go), but also takes rules from tables, and inserts them into the cache.
    #[cold]
    #[inline(never)]
    fn by_tables<M: Memory>(
        &mut self,
        previous: &Previous,
        noted: &mut [CachedFrame],
        memory: &mut M,
    ) -> Option<usize> {
        let (rules, mut last) = (self.rules, None);
        let mut unasked = 0;
        if rules.knows_little() {
            unasked = UNASKED;
            // A first walk is bound by memory latency.
            rules.modules.prefetch();
            previous.prefetch(UNASKED);
            native::prefetch(noted.get(..UNASKED).unwrap_or(&[]));
        }
        let (steps, mut address, mut left) = (self.steps, self.address, unasked);
        let hit = self.advance(previous, noted, memory, |address, is_exact| {
            if left > 0 {
                left -= 1;
                return rules.in_table(address, is_exact, &mut last);
            }
            if rules.knows(address) {
                return rules.fast(address);
            }
            let rule = rules.in_table(address, is_exact, &mut last)?;
            rules.learn(address, rule);
            Some(rule)
        });
        // All at once, so that no load waits for another.
        for entry in noted.iter().take(unasked.min(self.steps - steps)) {
            rules.learn(address, entry.rule());
            address = entry.address();
        }
        hit
    }

    #[inline(always)]
    fn advance<M: Memory>(
        &mut self,
        previous: &Previous,
        noted: &mut [CachedFrame],
        memory: &mut M,
        mut fast_rule: impl FnMut(u64, bool) -> Option<FastRule>,
    ) -> Option<usize> {
        let Self { rules, mut address, mut is_exact, mut sp, mut fp, .. } = *self;
        let until = memory.known_until(sp).saturating_sub(WORD - 1).min(1 << 63);
        if address.wrapping_sub(1) >= RuleCache::MOST || sp < FastRule::MOST_REACH {
            return None;
        }
        let room = noted.len();
        let mut free = noted.iter_mut();
        let hit = loop {
            let Some(rule) = fast_rule(address, is_exact) else { break None };
            let base = select_unpredictable(rule.on_fp(), fp, sp);
            let slot = base.wrapping_add(rule.offset());
            let (word_slot, saved_slot) = (slot.wrapping_sub(rule.above()), slot.wrapping_sub(rule.reach()));
            if slot < sp || slot >= until || saved_slot < sp {
                break None;
            }
            // SAFETY: both words lie from `sp` on, which is known memory, and seven bytes before its end: `sp` is too high
            // for `saved_slot` to wrap, so it is not above `word_slot`, nor that above `slot`.
            let (word, saved) = unsafe { (memory.load(word_slot), memory.load(saved_slot)) };
            let word = native::strip(word);
            // Zero, the root, is handled elsewhere, as are addresses beyond the cache's range.
            if word.wrapping_sub(1) >= RuleCache::MOST {
                break None;
            }
            let Some(entry) = free.next() else { break None };
            // SAFETY: both words are in known memory, as in `go`; `slot` is less than `until`, which is at most 2^63.
            *entry = unsafe { CachedFrame::fast_unchecked(slot, word, rule, saved) };
            (address, is_exact) = (word, false);
            fp = select_unpredictable(saved_slot == word_slot, fp, saved);
            sp = slot.wrapping_add(WORD);
            let hit = previous.find(slot, word, fp);
            if hit.is_some() {
                break hit;
            }
        };
        let steps = room - free.len();
        *self = Self { rules, address, is_exact, sp, fp, steps: self.steps + steps };
        hit
    }
}
