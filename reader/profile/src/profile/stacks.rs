//! Interns stacks and counts samples in a stream.
//!
//! The stacks of a program share most of their outer frames, so they are stored as paths of a tree, where a stack takes memory only for
//! what it does not share. A recently seen stack is found by its digest alone.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};

use super::bucket::Bucket;

/// Stands for the parent of the outermost nodes.
pub(super) const ROOT: u32 = u32::MAX;

/// Numbers by digest.
type Known<const WORDS: usize> = HashMap<Digest<WORDS>, u32, BuildHasherDefault<Ready>>;

/// A tree of paths: each node is an item on top of the path of its parent.
#[derive(Debug)]
pub(super) struct Paths<T> {
    nodes: Vec<(u32, T)>,
    /// The innermost node of each path. Short digests suffice, as the item is compared too.
    known: Known<2>,
    secret: Secret,
    /// The digests of all prefixes of the last path.
    digests: Vec<Digest<2>>,
}

impl<T> Default for Paths<T> {
    fn default() -> Self {
        Paths { nodes: Vec::new(), known: Known::default(), secret: Secret::default(), digests: Vec::new() }
    }
}

impl<T: Copy + Eq + Into<u64>> Paths<T> {
    /// Adds a path, given from the root, whose first `shared` items are those of an earlier path. Returns the number of its innermost
    /// node.
    pub(super) fn push(&mut self, path: &[T], shared: usize) -> u32 {
        let mut digester = Digester::new(&self.secret);
        self.digests.clear();
        self.digests.extend(path.iter().map(|&item| {
            digester.add(item.into());
            digester.short()
        }));
        let known = |at: usize| {
            let number = self.known.get(&self.digests[at]).copied();
            number.filter(|&number| self.nodes[number as usize].1 == path[at])
        };
        // All nodes below a known one are known.
        let (mut start, mut unknown) = (shared.min(path.len()), path.len());
        let mut innermost = ROOT;
        while start < unknown {
            let middle = start + (unknown - start) / 2;
            match known(middle) {
                Some(number) => (start, innermost) = (middle + 1, number),
                None => unknown = middle,
            }
        }
        if innermost == ROOT && start > 0 {
            innermost = known(start - 1).unwrap_or(ROOT);
        }
        for (&item, &digest) in path.iter().zip(&self.digests).skip(start) {
            let below = std::mem::replace(&mut innermost, self.nodes.len() as u32);
            self.known.insert(digest, innermost);
            self.nodes.push((below, item));
        }
        innermost
    }

    /// Ends the building. Renumbers the nodes in pre-order, so that consecutive paths are close in memory, and returns the new numbers.
    pub(super) fn seal(&mut self) -> Vec<u32> {
        self.known = Known::default();
        let nodes = std::mem::take(&mut self.nodes);
        // The first child and next sibling of each node; the last entry of `first` is that of the root.
        let mut first = vec![ROOT; nodes.len() + 1];
        let mut next = vec![ROOT; nodes.len()];
        for (number, &(below, _)) in nodes.iter().enumerate().rev() {
            let below = (below as usize).min(nodes.len());
            next[number] = std::mem::replace(&mut first[below], number as u32);
        }
        let mut numbers = vec![ROOT; nodes.len()];
        self.nodes.reserve_exact(nodes.len());
        let mut at = first[nodes.len()];
        while at != ROOT {
            let (below, item) = nodes[at as usize];
            numbers[at as usize] = self.nodes.len() as u32;
            self.nodes.push((numbers.get(below as usize).copied().unwrap_or(ROOT), item));
            if first[at as usize] != ROOT {
                at = first[at as usize];
                continue;
            }
            while at != ROOT && next[at as usize] == ROOT {
                at = nodes[at as usize].0;
            }
            at = next.get(at as usize).copied().unwrap_or(ROOT);
        }
        numbers
    }

    /// The parent of a node, and its item.
    pub(super) fn node(&self, number: u32) -> (u32, T) {
        self.nodes[number as usize]
    }

    /// The items from this node down to the root.
    pub(super) fn down(&self, from: u32) -> impl Iterator<Item = T> + '_ {
        let mut at = from;
        std::iter::from_fn(move || {
            let &(below, item) = self.nodes.get(at as usize)?;
            at = below;
            Some(item)
        })
    }
}

/// The key by which samples are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) thread: u32,
    pub(super) event: u8,
    pub(super) stack: u32,
    pub(super) fields: u32,
}

impl Key {
    fn of(bucket: &Bucket) -> Self {
        let &Bucket { thread, event, stack, fields, .. } = bucket;
        Key { thread, event, stack, fields }
    }
}

/// Samples of one key, to be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Counted {
    pub(super) key: Key,
    pub(super) samples: u64,
    pub(super) weight: u64,
}

/// Minimum number of samples to sort at once.
const FEW: usize = 1 << 16;

/// Samples and weights by thread, event and stack. Sorting many samples is faster than looking each up in a table that is larger than
/// the CPU's caches.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// By key, each once.
    sums: Vec<Bucket>,
    /// Not added to the sums yet.
    fresh: Vec<Counted>,
}

impl Counts {
    /// Counts samples.
    pub(super) fn add(&mut self, samples: &[Counted]) {
        self.fresh.extend_from_slice(samples);
        if self.fresh.len() >= FEW.max(self.sums.len() / 2) {
            self.settle();
        }
    }

    /// Merges `fresh` into the sums.
    fn settle(&mut self) {
        let Counts { sums, fresh } = self;
        fresh.sort_unstable();
        let mut known = 0;
        let mut new: Vec<Bucket> = Vec::new();
        for &Counted { key, samples: more, weight } in &*fresh {
            while sums.get(known).is_some_and(|bucket| Key::of(bucket) < key) {
                known += 1;
            }
            let sum = sums.get_mut(known).filter(|bucket| Key::of(bucket) == key);
            let bucket = match sum {
                Some(sum) => sum,
                None => {
                    if new.last().is_none_or(|last| Key::of(last) != key) {
                        let Key { thread, event, stack, fields } = key;
                        let (samples, weight, squares) = (0, 0, 0.0);
                        new.push(Bucket { thread, event, stack, fields, samples, weight, squares });
                    }
                    let Some(last) = new.last_mut() else { continue };
                    last
                }
            };
            bucket.samples += more;
            bucket.weight += weight;
            bucket.squares += (weight as f64).powi(2) / more.max(1) as f64;
        }
        fresh.clear();
        merge(sums, &new);
    }

    /// Renumbers stacks. Counts of stacks that become equal are added up.
    pub(super) fn renumber(&mut self, numbers: &[u32]) {
        self.settle();
        for bucket in &mut self.sums {
            bucket.stack = numbers.get(bucket.stack as usize).copied().unwrap_or(bucket.stack);
        }
        self.sums.sort_by_key(Key::of);
        self.sums.dedup_by(|next, kept| {
            let same = Key::of(next) == Key::of(kept);
            if same {
                kept.samples += next.samples;
                kept.weight += next.weight;
                kept.squares += next.squares;
            }
            same
        });
    }

    /// Everything that was counted, by key.
    pub(super) fn into_buckets(mut self) -> Vec<Bucket> {
        self.settle();
        self.sums
    }
}

/// Merges `new` into `sums`; both are sorted and have no key in common.
fn merge(sums: &mut Vec<Bucket>, new: &[Bucket]) {
    let Some(filler) = new.first() else { return };
    // From the end, in place.
    let mut left = sums.len();
    sums.reserve_exact(new.len());
    sums.resize(left + new.len(), filler.clone());
    let mut to = sums.len();
    for bucket in new.iter().rev() {
        while left > 0 && Key::of(&sums[left - 1]) > Key::of(bucket) {
            (left, to) = (left - 1, to - 1);
            sums.swap(left, to);
        }
        to -= 1;
        sums[to] = bucket.clone();
    }
}

/// A stack as it was recorded.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawStack<'a> {
    /// Index in the profile's threads. Stacks of several threads may be the same.
    pub(super) thread: u32,
    /// Index in the profile's processes.
    pub(super) process: u32,
    /// Epoch of the process's mapping history.
    pub(super) epoch: u32,
    /// Number of its mapping layout, which several processes may share.
    pub(super) layout: u32,
    /// Why the walk ended.
    pub(super) end: u8,
    /// Addresses in the kernel, leaf first.
    pub(super) kernel: &'a [u64],
    /// Frame words, root first.
    pub(super) frames: &'a [u64],
}

/// Maximum number of remembered raw stacks. A forgotten one is only found more slowly.
const REMEMBERED: usize = 3_500_000;

/// The numbers of recently seen raw stacks, by the digest of layout, addresses and end.
#[derive(Debug, Default)]
pub(super) struct RecentStacks {
    numbers: Known<3>,
}

impl RecentStacks {
    /// The number of a stack, if it is remembered.
    pub(super) fn get(&self, digest: &Digest<3>) -> Option<u32> {
        self.numbers.get(digest).copied()
    }

    /// The number of a stack; if it is not remembered, the result of `find`.
    pub(super) fn number(&mut self, digest: Digest<3>, find: impl FnOnce() -> u32) -> u32 {
        if let Some(number) = self.get(&digest) {
            return number;
        }
        if self.numbers.len() >= REMEMBERED {
            self.numbers.clear();
        }
        let number = find();
        self.numbers.insert(digest, number);
        number
    }
}

/// Computes digests of stacks, each of which shares its beginning with the one before.
#[derive(Debug)]
pub(super) struct RunningDigest {
    /// State after each frame of the last stack.
    at: Vec<Digester>,
}

impl RunningDigest {
    pub(super) fn new(secret: Secret) -> Self {
        Self { at: vec![Digester::new(&secret)] }
    }

    /// Continues with the next stack's frames, root first, of which `shared` are those of the last one.
    pub(super) fn go_on(&mut self, frames: &[u64], shared: usize) {
        self.at.truncate(shared + 1);
        let mut digester = self.at[self.at.len() - 1];
        for &word in &frames[self.at.len() - 1..] {
            digester.add(word);
            self.at.push(digester);
        }
    }

    /// The digest of a stack with these frames.
    pub(super) fn of(&self, stack: &RawStack<'_>) -> Digest<3> {
        let mut digester = self.at[stack.frames.len()];
        digester.add(u64::from(stack.layout) << 32 | u64::from(stack.end));
        digester.add(stack.kernel.len() as u64);
        stack.kernel.iter().for_each(|&word| digester.add(word));
        digester.long()
    }
}

/// A digest of a stack. A collision of 96 bits within a profile is less likely than a hardware error, and cannot be provoked, as the
/// digest depends on a random secret of this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Digest<const WORDS: usize>([u32; WORDS]);

impl<const WORDS: usize> Hash for Digest<WORDS> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from(self.0[1]) << 32 | u64::from(self.0[0]));
    }
}

/// The random key of digests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Secret([u64; 4]);

impl Default for Secret {
    fn default() -> Self {
        let random = RandomState::new();
        Secret([0, 1, 2, 3].map(|number: u64| random.hash_one(number) | 1))
    }
}

/// Computes a digest of a sequence of words.
#[derive(Debug, Clone, Copy)]
struct Digester {
    at: [u64; 2],
    factors: [u64; 2],
}

impl Digester {
    fn new(&Secret([a, b, left, right]): &Secret) -> Self {
        Digester { at: [a, b], factors: [left, right] }
    }

    #[inline]
    fn add(&mut self, word: u64) {
        let ([a, b], [left, right]) = (&mut self.at, self.factors);
        *a = folded(*a ^ word, left);
        *b = folded(b.rotate_left(23) ^ word, right);
    }

    /// The digests of all words so far.
    fn long(&self) -> Digest<3> {
        let Digest([low, high]) = self.short();
        Digest([low, high, self.at[1] as u32])
    }

    fn short(&self) -> Digest<2> {
        Digest([self.at[0] as u32, (self.at[0] >> 32) as u32])
    }
}

/// A hasher for values that are digests already.
#[derive(Debug, Default, Clone, Copy)]
struct Ready(u64);

impl Hasher for Ready {
    fn write(&mut self, _: &[u8]) {
        unreachable!("digests are words");
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The product's two halves, xored.
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_raw_stacks_have_equal_digests() {
        let stack = |end, kernel, frames| RawStack {
            thread: 0,
            process: 1,
            epoch: 2,
            layout: 3,
            end,
            kernel,
            frames,
        };
        let secret = Secret::default();
        let mut running = RunningDigest::new(secret);
        let mut digest = |stack: &RawStack<'_>, shared| {
            running.go_on(stack.frames, shared);
            running.of(stack)
        };
        let deep = stack(0, &[][..], &[1, 2, 3][..]);
        let known = digest(&deep, 0);
        // Of other threads, processes and times with the same layout, and however much is taken over.
        for shared in [0, 2, 3] {
            assert_eq!(digest(&RawStack { thread: 7, process: 8, epoch: 9, ..deep }, shared), known);
        }
        // The same words in the kernel, and above or below the border, are something else.
        let others = [
            (stack(0, &[], &[1, 2]), 2),
            (stack(3, &[], &[1, 2, 3]), 2),
            (stack(0, &[3], &[1, 2]), 2),
            (stack(0, &[3, 2], &[1]), 1),
            (stack(0, &[], &[]), 0),
            (RawStack { layout: 2, ..deep }, 0),
        ];
        let different = others.map(|(other, shared)| digest(&other, shared));
        for (number, other) in different.iter().enumerate() {
            assert_ne!(*other, known);
            assert!(!different[..number].contains(other), "{number}");
        }
        assert_eq!(digest(&deep, 0), known);
    }

    #[test]
    fn counts_add_up_in_order() {
        let mut counts = Counts::default();
        let mut expected = std::collections::BTreeMap::new();
        let mut state = 1_u32;
        for _ in 0..200 {
            let samples: Vec<Counted> = (0..1500)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let word = state >> 8;
                    let key = Key {
                        thread: word % 7,
                        event: (word / 7 % 2) as u8,
                        stack: word / 14 % 30_000,
                        fields: 0,
                    };
                    Counted { key, samples: u64::from(1 + word % 3), weight: u64::from(word % 5) }
                })
                .collect();
            for &Counted { key, samples, weight } in &samples {
                let sum = expected.entry(key).or_insert((0, 0));
                *sum = (sum.0 + samples, sum.1 + weight);
            }
            counts.add(&samples);
        }
        let buckets = counts.into_buckets();
        let found = buckets.iter().map(|bucket| (Key::of(bucket), (bucket.samples, bucket.weight)));
        assert!(found.eq(expected), "{} buckets", buckets.len());
    }

    #[test]
    fn a_stack_is_found_once() {
        let mut recent = RecentStacks::default();
        let digest = Digest([1, 2, 3]);
        assert_eq!((recent.get(&digest), recent.number(digest, || 7)), (None, 7));
        assert_eq!(
            (recent.get(&digest), recent.number(digest, || unreachable!("it is known"))),
            (Some(7), 7)
        );
        assert_eq!(recent.number(Digest([1, 2, 4]), || 8), 8);
    }

    #[test]
    fn paths_are_shared_and_end_up_in_the_order_of_the_tree() {
        let mut paths = Paths::default();
        assert_eq!(paths.push(&[], 0), ROOT);
        let all = [(&['a', 'b'][..], 0), (&['x', 'b'], 0), (&['a', 'c', 'd'], 1), (&['a', 'b', 'e'], 1)];
        let ends = all.map(|(path, shared)| paths.push(path, shared));
        for shared in 0..=3 {
            assert_eq!(paths.push(&['a', 'b', 'e'], shared), ends[3]);
        }
        assert_eq!(paths.push(&['a'], 1), paths.node(ends[0]).0);
        let numbers = paths.seal();
        assert_eq!(numbers.len(), 7);
        let order: String = (0..7).map(|number| paths.node(number).1).collect();
        assert_eq!(order, "abecdxb");
        let texts = ends.map(|end| paths.down(numbers[end as usize]).collect::<String>());
        assert_eq!(texts, ["ba", "bx", "dca", "eba"]);
        assert!(
            (0..7).all(|number| matches!(paths.node(number).0, below if below == ROOT || below < number))
        );
    }
}
