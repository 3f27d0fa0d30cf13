//! The process-wide cache from program counter to packed rule.
//!
//! Lock-free and shared by all threads and handlers: an entry is one word that holds its own tag, so a torn or stale
//! entry cannot exist. Relaxed order is enough because an entry refers to no other memory.
//!
//! | bits | |
//! |---|---|
//! | 0..=32 | the address above the index bits |
//! | 33..=56 | the rule, shortened |
//! | 57..=63 | the snapshot's generation, never 0 |

use core::sync::atomic::{AtomicU64, Ordering};

use crate::rule::{Kind, Rule, SavedFp};
use crate::x86_64::ADDRESS_BITS;

const INDEX_BITS: u32 = 14;
const TAG_BITS: u32 = ADDRESS_BITS - INDEX_BITS;
const RULE_BITS: u32 = 24;
const GENERATIONS: u32 = 127;

const _: () = assert!(TAG_BITS + RULE_BITS + 7 == 64);

/// A direct-mapped cache of rules: 128 KiB, all zero when empty.
pub struct RuleCache {
    entries: [AtomicU64; 1 << INDEX_BITS],
}

impl Default for RuleCache {
    fn default() -> Self {
        Self::new()
    }
}

impl RuleCache {
    /// An empty cache, for a `static`.
    pub const fn new() -> Self {
        Self { entries: [const { AtomicU64::new(0) }; 1 << INDEX_BITS] }
    }

    /// Empties the cache. Call it, outside the handler, whenever snapshots get a new generation: entries tell 127
    /// generations apart, which covers every walk that still uses an older snapshot.
    pub fn clear(&self) {
        for entry in &self.entries {
            entry.store(0, Ordering::Relaxed);
        }
    }

    /// The rule cached for `address` under `generation`.
    #[inline]
    pub(crate) fn get(&self, address: u64, generation: u32) -> Option<Rule> {
        let entry = self.entry(address)?.load(Ordering::Relaxed);
        let expected = tag(address) | generation_bits(generation);
        let rule_mask = ((1 << RULE_BITS) - 1) << TAG_BITS;
        (entry & !rule_mask == expected).then(|| lengthen((entry & rule_mask) >> TAG_BITS))
    }

    /// Caches `rule`, if it is short enough.
    pub(crate) fn insert(&self, address: u64, generation: u32, rule: Rule) {
        if let (Some(entry), Some(short)) = (self.entry(address), shorten(rule)) {
            entry.store(tag(address) | short << TAG_BITS | generation_bits(generation), Ordering::Relaxed);
        }
    }

    /// The slot of an address. Neighbouring addresses get neighbouring slots.
    #[inline]
    fn entry(&self, address: u64) -> Option<&AtomicU64> {
        let mixed = address ^ address >> INDEX_BITS ^ address >> (2 * INDEX_BITS);
        let entry = self.entries.get(mixed as usize & ((1 << INDEX_BITS) - 1));
        entry.filter(|_| address >> ADDRESS_BITS == 0)
    }
}

fn tag(address: u64) -> u64 {
    address >> INDEX_BITS
}

fn generation_bits(generation: u32) -> u64 {
    u64::from(generation % GENERATIONS + 1) << (TAG_BITS + RULE_BITS)
}

const OFFSET_BITS: u32 = 14;
const FP_BITS: u32 = 6;

/// Bits 0..=13 the offset in words (the threshold of a PLT rule), 14..=20 one plus the words from the saved frame
/// pointer to the CFA or 0, 21..=23 the kind.
fn shorten(rule: Rule) -> Option<u64> {
    let words = match rule.kind() {
        Kind::Sp | Kind::Fp if rule.addend() == 0 => words(i64::from(rule.offset()), OFFSET_BITS)?,
        Kind::Plt if rule.offset() == 8 => u64::try_from(rule.addend()).ok()?,
        Kind::Complex | Kind::Root if !rule.is_signal_frame() => 0,
        _ => return None,
    };
    let fp = match rule.fp() {
        SavedFp::Same => 0,
        SavedFp::AtCfa(offset) => 1 + words_below(offset)?,
        SavedFp::AtFp(_) => return None,
    };
    (words < 1 << OFFSET_BITS)
        .then_some(words | fp << OFFSET_BITS | (rule.kind() as u64) << (OFFSET_BITS + FP_BITS + 1))
}

fn words_below(offset: i16) -> Option<u64> {
    words(-i64::from(offset), FP_BITS)
}

fn words(bytes: i64, bits: u32) -> Option<u64> {
    let bytes = u64::try_from(bytes).ok()?;
    (bytes % 8 == 0 && bytes / 8 < 1 << bits).then_some(bytes / 8)
}

/// The rule that [`shorten`] got, straight into its bits: this is on the path of every frame.
#[inline]
fn lengthen(short: u64) -> Rule {
    let kind = short >> (OFFSET_BITS + FP_BITS + 1);
    let words = short & ((1 << OFFSET_BITS) - 1);
    let below = short >> OFFSET_BITS & ((1 << (FP_BITS + 1)) - 1);
    if kind == Kind::Plt as u64 {
        return Rule::plt(words, below.checked_sub(1));
    }
    Rule::in_words(kind, words, below.checked_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;

    #[test]
    fn rules_come_back_or_are_not_kept() {
        let cache = Box::new(RuleCache::new());
        for kind in [Kind::Sp, Kind::Fp, Kind::SpMemory, Kind::FpMemory, Kind::Plt] {
            for offset in [-8, 0, 4, 8, 16, 131_064, 131_072, 8_000_000] {
                for addend in [0, 11, -1] {
                    for fp in [
                        SavedFp::Same,
                        SavedFp::AtCfa(-16),
                        SavedFp::AtCfa(-504),
                        SavedFp::AtCfa(-512),
                        SavedFp::AtCfa(0),
                        SavedFp::AtCfa(8),
                        SavedFp::AtCfa(-12),
                        SavedFp::AtFp(0),
                    ] {
                        cache.clear();
                        let rule = Rule::new(kind, offset, addend, fp).unwrap();
                        cache.insert(0x5555_1234_5678, 3, rule);
                        if let Some(cached) = cache.get(0x5555_1234_5678, 3) {
                            assert_eq!(cached, rule);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn common_rules_are_kept() {
        let cache = Box::new(RuleCache::new());
        let common = [
            Rule::new(Kind::Sp, 8, 0, SavedFp::Same).unwrap(),
            Rule::new(Kind::Sp, 131_064, 0, SavedFp::AtCfa(-504)).unwrap(),
            Rule::new(Kind::Fp, 16, 0, SavedFp::AtCfa(-16)).unwrap(),
            Rule::new(Kind::Plt, 8, 11, SavedFp::Same).unwrap(),
            Rule::COMPLEX,
            Rule::ROOT,
        ];
        for (i, rule) in common.into_iter().enumerate() {
            let address = 0x7fff_ffff_0000 + i as u64;
            cache.insert(address, 0, rule);
            assert_eq!(cache.get(address, 0), Some(rule));
        }
    }

    #[test]
    fn only_the_same_address_and_generation_match() {
        let cache = Box::new(RuleCache::new());
        let rule = Rule::new(Kind::Sp, 8, 0, SavedFp::Same).unwrap();
        assert_eq!(cache.get(0, 0), None);
        cache.insert(0x5555_1234_5678, 0, rule);
        for bit in 0..64 {
            assert_eq!(cache.get(0x5555_1234_5678 ^ 1 << bit, 0), None, "{bit}");
        }
        for generation in 1..127 {
            assert_eq!(cache.get(0x5555_1234_5678, generation), None);
        }
        cache.clear();
        assert_eq!(cache.get(0x5555_1234_5678, 0), None);
        cache.insert(1 << 47, 0, rule);
        assert_eq!(cache.get(1 << 47, 0), None);
    }
}
