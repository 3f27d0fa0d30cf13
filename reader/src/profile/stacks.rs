//! Stacks kept once, counted while samples stream past.
//!
//! A program's stacks share most of their outer frames, so they are kept as paths of a tree: a stack costs
//! what it does not share. One that was met lately is known by its digest alone, without a walk.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};

use hashbrown::HashTable;

use super::Bucket;
use crate::word_map::{WordHasher, folded};

/// Stands for the node below the outermost one.
pub(super) const ROOT: u32 = u32::MAX;

/// Numbers of what has a digest.
type Known = HashMap<Digest, u32, BuildHasherDefault<Ready>>;

/// Items on top of each other: every node is one on top of the path to its parent.
#[derive(Debug)]
pub(super) struct Paths<T> {
    nodes: Vec<(u32, T)>,
    /// The innermost node of each path.
    known: Known,
    secret: Secret,
    /// The digests of a path's outermost part, of one item and more.
    digests: Vec<Digest>,
}

impl<T> Default for Paths<T> {
    fn default() -> Self {
        Paths { nodes: Vec::new(), known: Known::default(), secret: Secret::default(), digests: Vec::new() }
    }
}

impl<T: Copy + Into<u64>> Paths<T> {
    /// The number of the innermost node of a path, told from the root.
    pub(super) fn push(&mut self, path: &[T]) -> u32 {
        let mut digester = Digester::new(&self.secret);
        self.digests.clear();
        self.digests.extend(path.iter().map(|&item| digester.add(item.into())));
        // Most of it is known: what is new are few innermost items.
        let known = |digest: &Digest| self.known.get(digest).copied();
        let start = self.digests.iter().enumerate().rev().find_map(|(at, d)| Some((at + 1, known(d)?)));
        let (start, mut innermost) = start.unwrap_or((0, ROOT));
        for (&item, &digest) in path.iter().zip(&self.digests).skip(start) {
            let below = std::mem::replace(&mut innermost, self.nodes.len() as u32);
            self.known.insert(digest, innermost);
            self.nodes.push((below, item));
        }
        innermost
    }

    /// Ends the pushing. Gives the nodes new numbers, the returned ones: each is followed by all that is on top of
    /// it, so that whoever looks at one path after the other finds the next one close by.
    pub(super) fn seal(&mut self) -> Vec<u32> {
        self.known = Known::default();
        let nodes = std::mem::take(&mut self.nodes);
        // The first node on top of each, and the next one on top of the same; the last `first` is that of the root.
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

    /// The node below this one and the item on top.
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

/// Samples and weights by thread, event and stack.
#[derive(Debug, Default)]
pub(super) struct Counts {
    buckets: Vec<Bucket>,
    /// Places of the buckets, which hold the keys.
    places: HashTable<u32>,
}

impl Counts {
    /// Counts one sample.
    pub(super) fn add(&mut self, thread: u32, event: u8, stack: u32, weight: u64) {
        let Counts { buckets, places } = self;
        let key = |bucket: &Bucket| (bucket.thread, bucket.event, bucket.stack);
        let hash = |key: (u32, u8, u32)| BuildHasherDefault::<WordHasher>::default().hash_one(key);
        let wanted = (thread, event, stack);
        let same = |&place: &u32| key(&buckets[place as usize]) == wanted;
        let next = buckets.len() as u32;
        let place = *places
            .entry(hash(wanted), same, |&place| hash(key(&buckets[place as usize])))
            .or_insert(next)
            .get();
        if place == next {
            buckets.push(Bucket { thread, event, stack, samples: 0, weight: 0 });
        }
        let bucket = &mut buckets[place as usize];
        bucket.samples += 1;
        bucket.weight += weight;
    }

    /// Everything that was counted, in the order in which it was met.
    pub(super) fn into_buckets(self) -> Vec<Bucket> {
        self.buckets
    }
}

/// A stack as it was recorded.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawStack<'a> {
    /// Place in the profile's processes.
    pub(super) process: u32,
    /// Epoch of the process's mapping history.
    pub(super) epoch: u32,
    /// Why the walk ended.
    pub(super) end: u8,
    /// Addresses in the kernel, leaf first.
    pub(super) kernel: &'a [u64],
    /// Frame words, leaf first.
    pub(super) frames: &'a [u64],
}

/// Most raw stacks that are remembered. One that is forgotten is only found again more slowly.
const REMEMBERED: usize = 3_500_000;

/// The numbers of raw stacks that were met lately: of equal processes, epochs, addresses and ends.
#[derive(Debug, Default)]
pub(super) struct Lately {
    numbers: Known,
    secret: Secret,
}

impl Lately {
    /// The number of a stack; if it is not remembered, that which `find` finds.
    pub(super) fn number(&mut self, stack: &RawStack<'_>, find: impl FnOnce() -> u32) -> u32 {
        let digest = self.secret.digest(stack);
        if let Some(&number) = self.numbers.get(&digest) {
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

/// 96 bits that stand for a stack. That two stacks of a profile have the same ones is less likely than a
/// broken memory chip, and cannot be arranged, as they depend on a secret of this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Digest([u32; 3]);

impl Hash for Digest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Digest([low, high, _]) = *self;
        state.write_u64(u64::from(high) << 32 | u64::from(low));
    }
}

/// What digests depend on.
#[derive(Debug, Clone, Copy)]
struct Secret([u64; 4]);

impl Default for Secret {
    fn default() -> Self {
        let random = RandomState::new();
        Secret([0, 1, 2, 3].map(|number: u64| random.hash_one(number) | 1))
    }
}

impl Secret {
    fn digest(&self, stack: &RawStack<'_>) -> Digest {
        let mut digester = Digester::new(self);
        digester.add(u64::from(stack.process) << 32 | u64::from(stack.epoch));
        let mut digest = digester.add(u64::from(stack.end) | (stack.kernel.len() as u64) << 8);
        stack.kernel.iter().chain(stack.frames).for_each(|&word| digest = digester.add(word));
        digest
    }
}

/// A digest of words, one after the other.
struct Digester {
    at: [u64; 2],
    factors: [u64; 2],
}

impl Digester {
    fn new(&Secret([a, b, left, right]): &Secret) -> Self {
        Digester { at: [a, b], factors: [left, right] }
    }

    /// The digest of all words so far.
    #[inline]
    fn add(&mut self, word: u64) -> Digest {
        let ([a, b], [left, right]) = (&mut self.at, self.factors);
        *a = folded(*a ^ word, left);
        *b = folded(b.rotate_left(23) ^ word, right);
        Digest([*a as u32, (*a >> 32) as u32, *b as u32])
    }
}

/// The hash of what is a hash already.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_raw_stacks_are_found_once() {
        let mut lately = Lately::default();
        let stack = |end, kernel, frames| RawStack { process: 1, epoch: 2, end, kernel, frames };
        let deep = stack(0, &[][..], &[3, 2, 1][..]);
        assert_eq!(lately.number(&deep, || 7), 7);
        assert_eq!(lately.number(&deep, || unreachable!("it is known")), 7);
        // The same words in the kernel, and above or below the border, are something else.
        let others = [
            stack(0, &[], &[2, 1]),
            stack(3, &[], &[3, 2, 1]),
            stack(0, &[3], &[2, 1]),
            stack(0, &[3, 2], &[1]),
            RawStack { process: 2, ..deep },
            RawStack { epoch: 3, ..deep },
        ];
        for (number, other) in others.iter().enumerate() {
            assert_eq!(lately.number(other, || 100 + number as u32), 100 + number as u32);
        }
    }

    #[test]
    fn paths_are_shared_and_end_up_in_the_order_of_the_tree() {
        let mut paths = Paths::default();
        assert_eq!(paths.push(&[]), ROOT);
        let ends = [&['a', 'b'][..], &['x', 'b'], &['a', 'c', 'd'], &['a', 'b', 'e']].map(|p| paths.push(p));
        assert_eq!(paths.push(&['a', 'b', 'e']), ends[3]);
        assert_eq!(paths.push(&['a']), paths.node(ends[0]).0);
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
