//! The process-wide cache from program counter to packed rule.
//!
//! Lock-free and shared by all threads and handlers: an entry is one word that holds its own tag, so a torn or stale
//! entry cannot exist. Relaxed order is enough because an entry refers to no other memory.
//!
//! | bits on x86-64 | on aarch64 | |
//! |---|---|---|
//! | 0..=32 | 0..=33 | the address but for the index bits |
//! | 33..=38 | 34..=39 | the snapshot's generation, never 0 |
//! | 39..=40 | 40..=41 | if not fast, the [`Other`] kind |
//! | 41 | 42 | fast: the word below the CFA is at sp or fp plus words |
//! | 42 | 43 | it is fp |
//! | 43..=48 | 44 | words from the saved frame pointer to the return address; 0 if it is not saved |
//! | | 45..=53 | words from the return address to the word below the CFA, which it is on x86-64 |
//! | 49..=63 | 54..=63 | words to the word below the CFA; the threshold of a PLT rule |
//!
//! The rule is in the top bits, and on x86-64 the distance to the return address in the topmost: one shift leads from a
//! loaded entry to the address of the next frame. Addresses within 16 bytes share a set of two entries: few calls are that
//! close, and the rules of neighbouring calls share cache lines. There are many more sets than a program has busy calls,
//! because a hit in the second entry of a set costs a mispredicted branch. The second entries of all sets are stored
//! apart, because they are rarely read. Pages without entries take no memory.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::arch::native::{self, ABOVE_BITS, ADDRESS_BITS, BELOW_BITS};
use crate::arch::{Abi, Native};
use crate::rule::{Kind, ReturnAddress, Rule, SavedFp};

/// log2 of the number of sets.
const SET_BITS: u32 = 14;
/// log2 of the bytes of code that share a set.
const NEAR_BITS: u32 = 4;
const TAG_BITS: u32 = ADDRESS_BITS - SET_BITS;
const GENERATIONS: u32 = 63;
const RULE_AT: u32 = TAG_BITS + 6;
/// The bits of an entry that identify its address and generation.
const TAG_MASK: u64 = (1 << RULE_AT) - 1;
const FAST: u64 = 1 << (RULE_AT + 2);
const ON_FP: u64 = 1 << (RULE_AT + 3);
const BELOW_AT: u32 = RULE_AT + 4;
const ABOVE_AT: u32 = BELOW_AT + BELOW_BITS;
const WORDS_AT: u32 = ABOVE_AT + ABOVE_BITS;
const WORDS_BITS: u32 = 64 - WORDS_AT;

const _: () = assert!(WORDS_BITS >= 10);

/// Kinds that are cached, but that the fast path does not take.
#[derive(Clone, Copy)]
#[repr(u64)]
enum Other {
    Plt = 0,
    Complex = 1,
    Root = 2,
    /// CFA from the stack pointer, with the return address in the link register.
    Linked = 3,
}

/// With fewer rules than this, a walk is unlikely to hit.
const NEARLY_EMPTY: u32 = 32;

/// One entry of each set.
type Way = [AtomicU64; 1 << SET_BITS];

/// A two-way cache of rules: 256 KiB and a counter, all zero when empty.
#[repr(align(64))]
pub struct RuleCache {
    ways: [Way; 2],
    /// Rules inserted since it was empty, up to [`NEARLY_EMPTY`]; concurrent insertions may be missed.
    count: AtomicU32,
}

impl Default for RuleCache {
    fn default() -> Self {
        Self::new()
    }
}

/// The bits that all entries of one generation of the modules share.
#[derive(Clone, Copy)]
pub(crate) struct Key(u64);

impl Key {
    pub(crate) fn new(generation: u32) -> Self {
        Self(u64::from(generation % GENERATIONS + 1) << TAG_BITS)
    }
}

/// An entry with a rule of any kind.
#[derive(Clone, Copy)]
struct CachedRule(u64);

impl CachedRule {
    /// The rule, if it is a fast one.
    #[inline]
    fn fast(self) -> Option<FastRule> {
        (self.0 & FAST != 0).then_some(FastRule(self.0))
    }
}

/// An entry with a fast rule: one that the fast path takes (CFA from sp or fp, the frame pointer saved below the return
/// address or not at all).
#[derive(Clone, Copy)]
pub(crate) struct FastRule(u64);

impl FastRule {
    /// `rule`, if the fast path can take it.
    #[inline]
    pub(crate) fn new(rule: Rule) -> Option<Self> {
        CachedRule(shorten(rule)?).fast()
    }

    /// The rule with these bits.
    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits of the rule.
    #[inline]
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// Upper bound of [`reach`](Self::reach).
    pub(crate) const MOST_REACH: u64 = (8 << BELOW_BITS) + (8 << ABOVE_BITS) - 8;

    /// Bytes from the base to the word below the CFA.
    #[inline]
    pub(crate) fn offset(self) -> u64 {
        (self.0 >> WORDS_AT) * 8
    }

    /// Whether the base is the frame pointer and not the stack pointer.
    #[inline]
    pub(crate) fn on_fp(self) -> bool {
        self.0 & ON_FP != 0
    }

    /// Bytes from the return address to the word below the CFA.
    #[inline]
    #[allow(clippy::modulo_one)] // There are no such bits on x86-64.
    pub(crate) fn above(self) -> u64 {
        (self.0 >> ABOVE_AT) % (1 << ABOVE_BITS) * 8
    }

    /// Bytes from the saved frame pointer, or from the return address if it was not saved, to the word below the CFA.
    #[inline]
    pub(crate) fn reach(self) -> u64 {
        self.above() + self.below()
    }

    /// Whether the frame pointer was saved.
    #[inline]
    pub(crate) fn saves_fp(self) -> bool {
        self.below() != 0
    }

    /// Bytes from the saved frame pointer to the return address; 0 if it was not saved.
    #[inline]
    fn below(self) -> u64 {
        (self.0 >> BELOW_AT) % (1 << BELOW_BITS) * 8
    }
}

impl RuleCache {
    /// An empty cache, for a `static`.
    pub const fn new() -> Self {
        Self { ways: [const { [const { AtomicU64::new(0) }; 1 << SET_BITS] }; 2], count: AtomicU32::new(0) }
    }

    /// Highest return address whose rule is cached.
    pub(crate) const MOST: u64 = (1 << ADDRESS_BITS) - 1;

    /// The return address of a call at `lookup`.
    #[inline]
    fn address(lookup: u64) -> Option<u64> {
        (lookup < Self::MOST).then(|| lookup + 1)
    }

    /// Empties the cache. Must be called, outside the handler, whenever snapshots get a new generation. Entries distinguish
    /// 63 generations, which covers every walk that still uses an older snapshot.
    pub fn clear(&self) {
        self.count.store(0, Ordering::Relaxed);
        for entry in self.ways.as_flattened() {
            // Writing zeros to an untouched page would allocate it.
            if entry.load(Ordering::Relaxed) != 0 {
                entry.store(0, Ordering::Relaxed);
            }
        }
    }

    /// The rule cached for the call before the return address `address`, if it is a fast one. `address` must not be greater than
    /// [`MOST`](Self::MOST), because higher ones are mistaken for another.
    #[inline]
    pub(crate) fn fast(&self, address: u64, key: Key) -> Option<FastRule> {
        self.matching(address, FAST | TAG_MASK, tag(address) | key.0 | FAST).map(FastRule)
    }

    /// The entry for the call before the return address `address`, which must not be greater than [`MOST`](Self::MOST).
    #[inline]
    fn entry(&self, address: u64, key: Key) -> Option<CachedRule> {
        self.matching(address, TAG_MASK, tag(address) | key.0).map(CachedRule)
    }

    /// The rule cached for `lookup`.
    #[inline]
    pub(crate) fn get(&self, lookup: u64, key: Key) -> Option<Rule> {
        let address = Self::address(lookup)?;
        lengthen(self.entry(address, key)?.0)
    }

    /// Caches `rule`, if it is short enough.
    #[inline]
    pub(crate) fn insert(&self, lookup: u64, key: Key, rule: Rule) {
        if let (Some(address), Some(short)) = (Self::address(lookup), shorten(rule)) {
            self.put(address, key, short);
        }
    }

    /// Whether the cache has so few rules that lookups rarely hit.
    #[inline]
    pub(crate) fn is_nearly_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) < NEARLY_EMPTY
    }

    /// Caches a rule for the call before the return address `address`, which must not be greater than [`MOST`](Self::MOST).
    #[inline]
    pub(crate) fn insert_fast(&self, address: u64, key: Key, rule: FastRule) {
        self.put(address, key, rule.0 & !TAG_MASK);
    }

    #[inline]
    fn put(&self, address: u64, key: Key, rule: u64) {
        let [first, second] = self.set(address);
        let (entry, former) = (tag(address) | key.0 | rule, first.load(Ordering::Relaxed));
        if former != 0 && former != entry {
            // If two threads do so at once, one entry is lost.
            second.store(former, Ordering::Relaxed);
        }
        first.store(entry, Ordering::Relaxed);
        let count = self.count.load(Ordering::Relaxed);
        if count < NEARLY_EMPTY {
            self.count.store(count + 1, Ordering::Relaxed);
        }
    }

    /// Prefetches the first entry for the call before the return address `address`.
    #[inline]
    pub(crate) fn prefetch(&self, address: u64) {
        let [first, _] = self.set(address);
        native::prefetch(first);
    }

    #[inline]
    fn matching(&self, address: u64, mask: u64, wanted: u64) -> Option<u64> {
        // A branch, because it is nearly always predicted, and the next frame then does not wait for it.
        let [first, second] = self.set(address);
        let entry = first.load(Ordering::Relaxed);
        if (entry ^ wanted) & mask == 0 {
            return Some(entry);
        }
        let entry = second.load(Ordering::Relaxed);
        ((entry ^ wanted) & mask == 0).then_some(entry)
    }

    #[inline]
    fn set(&self, address: u64) -> [&AtomicU64; 2] {
        let [first, second] = &self.ways;
        let set = (address >> NEAR_BITS) as usize % (1 << SET_BITS);
        [&first[set], &second[set]]
    }
}

/// The bits of an address that its set does not determine: those above the set's bits, and those below, mixed with the
/// set's highest bits.
#[inline]
fn tag(address: u64) -> u64 {
    (address >> SET_BITS) ^ (address % (1 << NEAR_BITS))
}

/// The bits of an entry that encode the rule.
#[inline]
fn shorten(rule: Rule) -> Option<u64> {
    let kind = match rule.kind() {
        Kind::Sp => FAST,
        Kind::Fp => FAST | ON_FP,
        _ => return shorten_other(rule),
    };
    let ReturnAddress::AtCfa(at) = native::return_address(rule) else { return shorten_other(rule) };
    let words = in_words(i64::from(rule.offset()) - 8, WORDS_BITS)?;
    let above = in_words(-8 - i64::from(at), ABOVE_BITS)? << ABOVE_AT;
    // On x86-64 such a rule has no addend.
    let is_known = Native::PUSHED_AT.is_none() || rule.addend() == 0;
    is_known.then_some(words << WORDS_AT | above | below(rule, at)? << BELOW_AT | kind)
}

#[inline(never)]
fn shorten_other(rule: Rule) -> Option<u64> {
    let (words, kind) = match rule.kind() {
        Kind::Plt if rule.offset() == 8 => (in_words(8 * i64::from(rule.addend()), WORDS_BITS)?, Other::Plt),
        Kind::Complex if rule == Rule::COMPLEX => (0, Other::Complex),
        Kind::Root if rule == Rule::ROOT => (0, Other::Root),
        Kind::Sp if rule.fp() == SavedFp::Same => {
            (in_words(i64::from(rule.offset()), WORDS_BITS)?, Other::Linked)
        }
        _ => return None,
    };
    Some(words << WORDS_AT | below(rule, -8)? << BELOW_AT | (kind as u64) << RULE_AT)
}

/// Words from the saved frame pointer to the return address, which is at the CFA plus `at`; 0 if it is not saved.
#[inline]
fn below(rule: Rule, at: i16) -> Option<u64> {
    match rule.fp() {
        SavedFp::Same => Some(0),
        SavedFp::AtCfa(offset) => {
            in_words(i64::from(at) - i64::from(offset), BELOW_BITS).filter(|&below| below > 0)
        }
        SavedFp::AtFp(_) => None,
    }
}

/// `bytes` as a number of words, if that fits into `bits` bits.
#[inline]
fn in_words(bytes: i64, bits: u32) -> Option<u64> {
    // A negative number becomes too large.
    let bytes = bytes as u64;
    (bytes.is_multiple_of(8) && bytes < 8 << bits).then_some(bytes / 8)
}

/// The rule that was passed to [`shorten`].
fn lengthen(entry: u64) -> Option<Rule> {
    let fast = FastRule(entry);
    let fp = match fast.below() {
        0 => SavedFp::Same,
        _ => SavedFp::AtCfa(-8 - fast.reach() as i16),
    };
    let offset = fast.offset() as i32;
    if entry & FAST != 0 {
        let rule = Rule::new(if fast.on_fp() { Kind::Fp } else { Kind::Sp }, offset + 8, 0, fp)?;
        let return_address = ReturnAddress::AtCfa(-8 - fast.above() as i16);
        return Some(if Native::PUSHED_AT.is_none() {
            rule.with_return_address(return_address)
        } else {
            rule
        });
    }
    match entry >> RULE_AT & 3 {
        kind if kind == Other::Plt as u64 => Rule::new(Kind::Plt, 8, offset / 8, fp),
        kind if kind == Other::Complex as u64 => Some(Rule::COMPLEX),
        kind if kind == Other::Linked as u64 => {
            Some(Rule::new(Kind::Sp, offset, 0, fp)?.with_return_address(ReturnAddress::InRegister))
        }
        _ => Some(Rule::ROOT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;

    #[test]
    fn rules_come_back_or_are_not_kept() {
        let cache = Box::new(RuleCache::new());
        for kind in [Kind::Sp, Kind::Fp, Kind::SpMemory, Kind::FpMemory, Kind::Plt] {
            for offset in [-8, 0, 4, 8, 16, 262_136, 262_144, 8_000_000] {
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
                        cache.insert(0x5555_1234_5678, Key::new(3), rule);
                        if let Some(cached) = cache.get(0x5555_1234_5678, Key::new(3)) {
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
            Rule::new(Kind::Sp, 262_136, 0, SavedFp::AtCfa(-504)).unwrap(),
            Rule::new(Kind::Fp, 16, 0, SavedFp::AtCfa(-16)).unwrap(),
            Rule::new(Kind::Plt, 8, 11, SavedFp::Same).unwrap(),
            Rule::COMPLEX,
            Rule::ROOT,
        ];
        for (i, rule) in common.into_iter().enumerate() {
            let address = 0x7fff_ffff_0000 + i as u64;
            cache.insert(address, Key::new(0), rule);
            assert_eq!(cache.get(address, Key::new(0)), Some(rule));
        }
    }

    #[test]
    fn fast_rules() {
        let fast = |kind, offset, addend, fp| FastRule::new(Rule::new(kind, offset, addend, fp).unwrap());
        let parts = |rule: FastRule| (rule.on_fp(), rule.offset(), rule.below());
        assert_eq!(fast(Kind::Sp, 16, 0, SavedFp::Same).map(parts), Some((false, 8, 0)));
        assert_eq!(fast(Kind::Fp, 24, 0, SavedFp::AtCfa(-16)).map(parts), Some((true, 16, 8)));
        assert!(fast(Kind::Sp, 16, 0, SavedFp::AtCfa(-8)).is_none());
        assert!(fast(Kind::Fp, 16, 0, SavedFp::AtFp(-8)).is_none());
        assert!(fast(Kind::SpMemory, 16, 0, SavedFp::Same).is_none());
        assert!(fast(Kind::Plt, 8, 11, SavedFp::Same).is_none());
    }

    #[test]
    fn only_the_same_address_and_generation_match() {
        let cache = Box::new(RuleCache::new());
        let rule = Rule::new(Kind::Sp, 8, 0, SavedFp::Same).unwrap();
        assert_eq!(cache.get(0, Key::new(0)), None);
        cache.insert(0x5555_1234_5678, Key::new(0), rule);
        for bit in 0..64 {
            assert_eq!(cache.get(0x5555_1234_5678 ^ 1 << bit, Key::new(0)), None, "{bit}");
        }
        for generation in 1..63 {
            assert_eq!(cache.get(0x5555_1234_5678, Key::new(generation)), None);
        }
        cache.clear();
        assert_eq!(cache.get(0x5555_1234_5678, Key::new(0)), None);
        cache.insert(1 << 47, Key::new(0), rule);
        assert_eq!(cache.get(1 << 47, Key::new(0)), None);
    }
}
