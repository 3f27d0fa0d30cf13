//! Stacks that a thread's earlier walks have found, and which words of memory each depends on.
//!
//! A program allocates at some thousand places, most of which recur. The stack cache knows one walk; this table knows many.
//! Stacks recur in the same order for the most part, so those that have followed the last one are tried first. Otherwise a
//! stack is looked up by its innermost frames. It is valid if all words that its steps depend on are unchanged. The
//! table keeps a hash of these words rather than the words: it is larger than the caches near a core. Only stacks that
//! fast steps walked to the root are kept. What must never happen here: accepting a stack of which one word was not
//! compared. If one word differs, so does the hash; that several differences cancel out has a probability of 2^-64.

mod parts;

use core::ptr::NonNull;

use self::parts::Parts;
use crate::arch::{WORD, native};
use crate::frame_distances;
use crate::leaf::Leaf;
use crate::memory::Memory;
use crate::stack_cache::StackCache;

/// log2 of the number of stacks that are kept.
const STACK_BITS: u32 = 16;
const COUNT: usize = 1 << STACK_BITS;
/// Number of stacks in a part of the table.
const PART: usize = 1 << 14;
/// Stacks that hash alike.
const WAYS: usize = 8;
/// log2 of the number of buckets: half of their places are used.
const BUCKET_BITS: u32 = STACK_BITS + 1 - WAYS.ilog2();
/// Maximum number of words that a stack may depend on: return addresses, and saved frame pointers that a step uses.
const WORDS: usize = 120;
/// Words that are hashed side by side.
const LANES: usize = 4;
/// Number of stacks remembered that have followed one.
const FOLLOWERS: usize = 4;
/// Innermost frames that a stack is looked up by.
const FRAMES: usize = 8;

const _: () = assert!(WORDS.is_multiple_of(LANES) && WORDS <= u8::MAX as usize);

/// Stacks of one thread, with a note of the caller's about each. All zero when empty, if that is a valid note.
#[repr(C)]
pub struct KnownStacks<N: 'static> {
    /// Number of stacks kept so far. 0 until the table is used: then its memory is not touched.
    learned: u32,
    /// Generation of the modules.
    generation: u32,
    /// The stack found or learned last.
    last: u32,
    buckets: [[Place; WAYS]; 1 << BUCKET_BITS],
    /// In the order in which they were learned; the oldest is replaced. One that is in no bucket and follows none that is, is
    /// not used, except for the first.
    stacks: Parts<KnownStack<N>, PART, { COUNT / PART - 1 }>,
}

/// A place among stacks that hash alike: `tag:16 | index:16`. 0 if it is free, or the first stack.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place(u32);

impl Place {
    const FREE: Self = Self(0);

    fn new(hash: u64, index: usize) -> Self {
        Self((hash as u32) << STACK_BITS | index as u32)
    }

    #[inline]
    fn has_tag_of(self, hash: u64) -> bool {
        self.0 >> STACK_BITS == (hash as u32) << STACK_BITS >> STACK_BITS
    }

    #[inline]
    fn index(self) -> usize {
        self.0 as usize % COUNT
    }
}

/// A stack, and the words that it depends on.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct KnownStack<N> {
    /// Stack pointer at which the walk began; 0 if this entry is empty.
    sp: u64,
    pc: u64,
    fp: u64,
    /// Hash of the words.
    words: u64,
    /// Its bucket.
    bucket: u16,
    /// Highest of the offsets.
    reach: u16,
    /// Number of frames after the first one. Their return addresses are the first words.
    depth: u8,
    /// Number of words, a multiple of `LANES`.
    count: u8,
    /// Some step uses the frame pointer at which the walk began.
    by_fp: bool,
    note: N,
    /// Stacks that have followed this one, by the hashes of their starts, the latest first.
    followers: [Place; FOLLOWERS],
    /// Where the words are, in words from the stack pointer.
    offsets: [u16; WORDS],
}

impl<N> KnownStack<N> {
    /// Adds the word at this offset in bytes; false if there is no room.
    fn add(&mut self, offset: u64) -> bool {
        let words = u16::try_from(offset / WORD).ok().filter(|_| offset.is_multiple_of(WORD));
        let (Some(to), Some(words)) = (self.offsets.get_mut(usize::from(self.count)), words) else {
            return false;
        };
        *to = words;
        self.count += 1;
        self.reach = self.reach.max(words);
        true
    }

    /// Bytes from the stack pointer to the end of the highest word.
    #[inline]
    fn extent(&self) -> u64 {
        (u64::from(self.reach) + 1) * WORD
    }

    /// Hash of the words as they are in memory now.
    ///
    /// # Safety
    /// All memory from the stack pointer up to [`extent`](Self::extent) must be known to be readable.
    #[inline(always)]
    unsafe fn hash_now<M: Memory>(&self, memory: &mut M) -> u64 {
        let offsets = self.offsets.get(..usize::from(self.count)).unwrap_or(&[]);
        let mut lanes = [0u64, 1, 2, 3];
        for offsets in offsets.as_chunks::<LANES>().0 {
            for (lane, offset) in lanes.iter_mut().zip(offsets) {
                // SAFETY: the caller guarantees it, and no offset exceeds `reach`.
                *lane = stir(unsafe { memory.load_xor(self.sp, u64::from(*offset), *lane) });
            }
        }
        let [first, second, third, fourth] = lanes;
        // Rotated by different amounts, so that the same difference in two lanes does not cancel out.
        first ^ second.rotate_left(16) ^ third.rotate_left(32) ^ fourth.rotate_left(48)
    }

    #[inline]
    fn at(&self, offset: u16) -> u64 {
        self.sp.wrapping_add(u64::from(offset) * WORD)
    }
}

/// Adds a word to a hash: for a given hash, different words give different results, and the other way round.
#[inline(always)]
pub fn mix(hash: u64, word: u64) -> u64 {
    stir(hash ^ word)
}

/// The word with its bits spread.
#[inline(always)]
fn stir(word: u64) -> u64 {
    // Fibonacci hashing; the rotation brings what the product has spread to the low bits.
    word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// Where a walk begins, and how much memory from there on is known to be readable.
#[derive(Clone, Copy)]
struct Start {
    sp: u64,
    /// In bytes, at least a word.
    room: u64,
    /// Hash of the stack pointer and the return address there.
    hash: u64,
}

impl Start {
    #[inline(always)]
    fn of<M: Memory>(leaf: &Leaf<'_>, memory: &mut M) -> Option<Self> {
        let sp = leaf.sp;
        let room = memory.known_until(sp).saturating_sub(sp);
        // SAFETY: the word is in known memory.
        (room >= WORD).then(|| Self { sp, room, hash: mix(sp, unsafe { memory.load(sp) }) })
    }

    /// Hash of the return addresses of the innermost frames, as far as the distances between them are known.
    #[inline(never)]
    fn innermost<M: Memory>(&self, memory: &mut M) -> u64 {
        let (mut offset, mut hash) = (0, self.sp);
        for _ in 0..FRAMES {
            if offset > self.room - WORD {
                break;
            }
            // SAFETY: the word is in known memory.
            let address = unsafe { memory.load(self.sp + offset) };
            hash = mix(hash, address);
            match frame_distances::after(address) {
                Some(words) => offset += words * WORD,
                None => break,
            }
        }
        hash
    }
}

fn bucket_of(hash: u64) -> usize {
    (hash >> (u64::BITS - BUCKET_BITS)) as usize
}

impl<N: Copy> KnownStacks<N> {
    /// Maximum number of stacks.
    pub const COUNT: usize = COUNT;
    /// Bytes of a further part of the table.
    pub const PART_BYTES: usize = size_of::<[KnownStack<N>; PART]>();
    /// Maximum number of frames of a stack.
    pub const DEPTH: usize = WORDS;

    /// Forgets all stacks. A table that was never used is not touched: its memory stays unallocated.
    pub fn forget(&mut self) {
        if core::mem::take(&mut self.learned) != 0 {
            self.buckets.as_flattened_mut().fill(Place::FREE);
        }
    }

    /// Returns the index (less than [`COUNT`](Self::COUNT)) of the stack that a walk from `leaf` with modules of this
    /// generation would find; `None` if that cannot be told without a walk. `memory` is what the walk would read.
    #[inline]
    pub fn find<M: Memory>(&mut self, generation: u32, leaf: &Leaf<'_>, memory: &mut M) -> Option<usize> {
        if self.learned == 0 || self.generation != generation {
            return None;
        }
        let start = Start::of(leaf, memory)?;
        if let Some((order, index)) = self.follower(&start)
            && self.is_at(index, &start, leaf, memory)
        {
            match order {
                0 => self.go_on(index),
                _ => self.follow(&start, index),
            }
            return Some(index);
        }
        self.find_by_frames(&start, leaf, memory)
    }

    /// Looks a stack up by its innermost frames.
    #[inline(never)]
    fn find_by_frames<M: Memory>(&mut self, start: &Start, leaf: &Leaf<'_>, memory: &mut M) -> Option<usize> {
        let hash = start.innermost(memory);
        let places = self.buckets.get(bucket_of(hash))?.iter().filter(|place| place.has_tag_of(hash));
        let found =
            places.map(|place| place.index()).find(|index| self.is_at(*index, start, leaf, memory))?;
        self.follow(start, found);
        Some(found)
    }

    /// The stack with such a start that has followed the last one, and how many others have done so since.
    #[inline]
    fn follower(&self, start: &Start) -> Option<(usize, usize)> {
        let mut followers = self.stacks.get(self.last as usize)?.followers.iter().enumerate();
        let (order, place) = followers.find(|(_, place)| place.has_tag_of(start.hash))?;
        Some((order, place.index()))
    }

    /// Notes that the stack at `index` has followed the last one.
    #[inline]
    fn follow(&mut self, start: &Start, index: usize) {
        let new = Place::new(start.hash, index);
        if let Some(last) = self.stacks.get_mut(self.last as usize) {
            let mut place = new;
            for follower in &mut last.followers {
                place = core::mem::replace(follower, place);
                if place.has_tag_of(start.hash) {
                    break;
                }
            }
        }
        self.go_on(index);
    }

    /// Notes that the stack at `index` is the last one.
    #[inline]
    fn go_on(&mut self, index: usize) {
        self.last = index as u32;
        self.expect_next();
    }

    /// Prefetches the stack that followed this one the last time: the table is larger than the caches near a core.
    #[inline]
    fn expect_next(&self) {
        let Some(last) = self.stacks.get(self.last as usize) else { return };
        let [next, ..] = last.followers;
        let Some(next) = self.stacks.get(next.index()) else { return };
        native::prefetch(&next.sp);
        // The offsets of 64 words.
        native::prefetch(next.offsets.get(..64).unwrap_or(&[]));
    }

    /// Whether a walk would find the stack at `index`.
    #[inline(always)]
    fn is_at<M: Memory>(&self, index: usize, start: &Start, leaf: &Leaf<'_>, memory: &mut M) -> bool {
        self.stacks.get(index).is_some_and(|stack| {
            stack.sp == start.sp
                && stack.pc == leaf.pc
                && (!stack.by_fp || stack.fp == leaf.fp)
                && stack.extent() <= start.room
                // SAFETY: memory is known to be readable from the stack pointer to the end of the highest word.
                && unsafe { stack.hash_now(memory) } == stack.words
        })
    }

    /// The note about the stack at `index`.
    #[inline]
    pub fn note(&mut self, index: usize) -> Option<&mut N> {
        self.stacks.get_mut(index).map(|stack| &mut stack.note)
    }

    /// A hash of all that tells the stack at `index` from others.
    #[inline]
    pub fn identity(&self, index: usize) -> Option<u64> {
        let stack = self.stacks.get(index)?;
        let fp = if stack.by_fp { stack.fp } else { 0 };
        Some([stack.sp, stack.pc, fp, stack.words].into_iter().fold(u64::from(self.generation), mix))
    }

    /// Copies the frames of the stack at `index`, which [`find`](Self::find) has just found in `memory`: leaf first, without
    /// the one at which its walk began.
    pub fn frames<'f, M: Memory>(
        &self,
        index: usize,
        memory: &mut M,
        frames: &'f mut [u64; WORDS],
    ) -> &'f [u64] {
        let Some(stack) = self.stacks.get(index) else { return &[] };
        if stack.extent() > memory.known_until(stack.sp).saturating_sub(stack.sp) {
            return &[];
        }
        let depth = usize::from(stack.depth);
        for (frame, offset) in frames.iter_mut().zip(stack.offsets).take(depth) {
            // SAFETY: memory is known to be readable up to the highest word.
            *frame = unsafe { memory.load(stack.at(offset)) };
        }
        frames.get(..depth).unwrap_or(&[])
    }

    /// Keeps the stack of the last walk, which began at `leaf` and reached the root, with a note about it. Keeps nothing
    /// if it cannot, or if the walk used modules of another generation. `memory` is what the walk has read.
    pub fn learn<M: Memory>(
        &mut self,
        generation: u32,
        leaf: &Leaf<'_>,
        cache: &StackCache,
        memory: &mut M,
        note: N,
    ) -> Option<()> {
        if self.generation != generation {
            self.forget();
            self.generation = generation;
        }
        let index = self.learned as usize % self.stacks.count();
        self.take_out(index);
        let stack = self.stacks.get_mut(index)?;
        (stack.sp, stack.count, stack.reach) = (0, 0, 0);
        stack.followers = [Place::FREE; FOLLOWERS];
        let start = Start::of(leaf, memory)?;
        let Start { sp, room, .. } = start;
        let (depth, by_fp) = cache.words(generation, |slot, word| {
            let offset = slot.wrapping_sub(sp);
            let is_known = offset <= room - WORD;
            // SAFETY: the word is in known memory. It differs if it is a signed address.
            is_known && word == unsafe { memory.load(slot) } && stack.add(offset)
        })?;
        let offsets = stack.offsets.get(..depth.min(FRAMES + 1)).unwrap_or(&[]);
        for (offset, next) in offsets.iter().zip(offsets.iter().skip(1)) {
            // SAFETY: memory is known to be readable up to the highest word.
            let address = unsafe { memory.load(sp.wrapping_add(u64::from(*offset) * WORD)) };
            frame_distances::note(address, next.saturating_sub(*offset));
        }
        while !usize::from(stack.count).is_multiple_of(LANES) && stack.add(0) {}
        (stack.sp, stack.pc, stack.fp, stack.by_fp) = (sp, leaf.pc, leaf.fp, by_fp);
        stack.depth = u8::try_from(depth).ok()?;
        // SAFETY: memory is known to be readable up to the highest word.
        stack.words = unsafe { stack.hash_now(memory) };
        stack.note = note;
        let hash = start.innermost(memory);
        stack.bucket = bucket_of(hash) as u16;
        let places = self.buckets.get_mut(bucket_of(hash))?;
        let free = places.iter().position(|place| *place == Place::FREE);
        *places.get_mut(free.unwrap_or(index % WAYS))? = Place::new(hash, index);
        self.learned = self.learned.wrapping_add(1).max(1);
        self.follow(&start, index);
        Some(())
    }

    /// Number of stacks kept so far, also those that others have replaced.
    #[must_use]
    pub fn learned(&self) -> usize {
        self.learned as usize
    }

    /// Whether the table is full for the first time, and may get another part.
    #[must_use]
    pub fn wants_part(&self) -> bool {
        let count = self.stacks.count();
        self.learned as usize == count && count < COUNT
    }

    /// Adds a part to the table.
    ///
    /// # Safety
    /// `part` is the start of [`PART_BYTES`](Self::PART_BYTES) zeroed bytes, aligned to a page, that stay mapped and that nobody
    /// else uses. All zero must be a valid note.
    pub unsafe fn add_part(&mut self, part: NonNull<u8>) {
        // SAFETY: the caller promises the memory; zeros are empty entries.
        self.stacks.add(unsafe { part.cast().as_mut() });
    }

    /// Frees the place of the stack at `index`.
    fn take_out(&mut self, index: usize) {
        let bucket =
            self.stacks.get(index).filter(|stack| stack.sp != 0).map(|stack| usize::from(stack.bucket));
        let places = bucket.and_then(|bucket| self.buckets.get_mut(bucket));
        for place in places.into_iter().flatten().filter(|place| place.index() == index) {
            *place = Place::FREE;
        }
    }
}
