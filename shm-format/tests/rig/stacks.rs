//! Threads that write stacks which grow, shrink and repeat, and readers that decode them.

use std::collections::{BTreeMap, HashMap};

use shm_format::record::{FrameWords, RecurringStack};
use shm_format::{
    AlikeAllocations, DrainStats, DurableRecord, EncodedStack, Loss, MAX_DEPTH, Pass, RecordKind, Region,
    RegionReader, Repeat, StackChain, StackDecoder, StackHead, ThreadCursor, Undecodable,
};

use super::{Random, tick};

/// A stack, leaf first.
pub type Written = (StackHead, Vec<u64>);
/// By thread and sequence (or nonce).
pub type Stacks = BTreeMap<(u32, u64), Written>;

/// A stack, leaf first, derived from another one by returning from some functions and calling others.
pub fn grown(random: &mut Random, before: &[u64]) -> Vec<u64> {
    let mut stack: Vec<u64> = before.iter().rev().copied().collect();
    let left = random.below(12) as usize;
    stack.truncate(stack.len().saturating_sub(left));
    for _ in 0..random.below(14) {
        // Few functions, in three modules; occasionally a frame of another kind.
        let module = [0x5555_5555_0000, 0x7f12_3400_0000, 0x7f12_5600_0000][random.below(3) as usize];
        let flags = if random.below(20) == 0 { random.below(8) << 61 } else { 0 };
        stack.push(flags | module | (random.below(60) * 0x1337));
    }
    stack.truncate(60);
    stack.reverse();
    stack
}

/// A thread and what it wrote.
pub struct Writer {
    tid: u32,
    pub cursor: ThreadCursor,
    chain: StackChain,
    frames: Vec<u64>,
    /// Whether the chain is told how many frames two walks share.
    tells: bool,
    written: Vec<(u64, Written)>,
    /// Stacks in the log, by their numbers.
    recurring: Vec<(u32, Vec<u64>)>,
}

/// Length of the common suffix of two stacks, leaf first.
fn common(one: &[u64], other: &[u64]) -> usize {
    one.iter().rev().zip(other.iter().rev()).take_while(|(one, other)| one == other).count()
}

impl Writer {
    pub fn new(tid: u32) -> Self {
        let cursor = ThreadCursor::new();
        cursor.begin(tid, tid);
        let tells = tid.is_multiple_of(2);
        let (frames, written, recurring) = (Vec::new(), Vec::new(), Vec::new());
        Self { tid, cursor, chain: StackChain::new(), frames, tells, written, recurring }
    }

    pub fn write(&mut self, region: &Region, head: StackHead, frames: &[u64]) -> Result<(), Loss> {
        let sequence = self.cursor.sequence();
        self.chain.write(&self.cursor, region, head, frames, tick).map(drop)?;
        self.written.push((sequence, (head, frames.to_vec())));
        Ok(())
    }

    /// Writes that one of the stacks in the log has come again, after appending the current one to it, if there is room.
    fn repeat(&mut self, region: &Region, random: &mut Random) {
        let number = self.tid << 16 | (self.recurring.len() as u32 + 1);
        let base = self.recurring.last().map(|(id, base)| (*id, common(base, &self.frames)));
        let (base, shared) = base.unwrap_or_default();
        let stack = RecurringStack {
            id: number,
            tid: self.tid,
            seq: self.tid,
            base,
            shared: shared as u16,
            frames: FrameWords::new(&self.frames[..self.frames.len() - shared]),
        };
        let appends = self.recurring.len() < 8 && random.below(2) == 0;
        if appends && region.append(&DurableRecord::RecurringStack(stack)).is_ok() {
            self.recurring.push((number, self.frames.clone()));
        }
        let Some(at) = (random.next() as usize).checked_rem(self.recurring.len()) else { return };
        let (stack, frames) = self.recurring[at].clone();
        let (sequence, nonce) = (self.cursor.sequence(), random.next());
        if self.cursor.repeat(region, Repeat::Single { stack, nonce }, tick).is_ok() {
            let head = StackHead { weight: 1, end: 0, source: Repeat::SOURCE, nonce };
            self.written.push((sequence, (head, frames)));
        }
    }

    /// Writes the next stack.
    pub fn grow(&mut self, region: &Region, random: &mut Random) {
        self.walk(random);
        if random.below(8) == 0 {
            // That walk was not recorded.
            self.walk(random);
        }
        let rare = |random: &mut Random| if random.below(10) == 0 { random.next() } else { 0 };
        let head = StackHead {
            weight: 1 + (rare(random) as u32 >> 8),
            end: rare(random) as u8,
            source: 2,
            nonce: rare(random),
        };
        let frames = self.frames.clone();
        // A full pool is a loss like any other.
        let _ = self.write(region, head, &frames);
    }

    fn walk(&mut self, random: &mut Random) {
        let now = grown(random, &self.frames);
        if self.tells {
            // A walker knows of at most this many.
            let unchanged = common(&self.frames, &now) as u64;
            let known = if random.below(4) == 0 { random.below(unchanged + 1) } else { unchanged };
            self.chain.walked(known as usize);
        }
        self.frames = now;
    }

    /// Writes the next stack, or something else, or ends and starts again as a new thread.
    pub fn step(&mut self, region: &Region, random: &mut Random) {
        match random.below(60) {
            // Something else between two stacks of the chain.
            0 => drop(self.cursor.reserve(region, RecordKind::Void, 3, tick)),
            1 => {
                let _ = self.cursor.close(region);
            }
            2..12 => self.repeat(region, random),
            _ => self.grow(region, random),
        }
    }

    pub fn written(&self) -> impl Iterator<Item = ((u32, u64), Written)> {
        self.written.iter().map(|(sequence, stack)| ((self.tid, *sequence), stack.clone()))
    }
}

/// A reader's state: a decoder per chunk.
#[derive(Default)]
pub struct Decoders {
    chunks: HashMap<u32, (u64, StackDecoder, Vec<u64>)>,
    /// The stacks in the log, leaf first, by their numbers.
    recurring: HashMap<u32, Vec<u64>>,
    /// Allocations that are not told apart.
    pub alike: Vec<AlikeAllocations>,
    by_nonce: bool,
    pub unlinked: u64,
    pub malformed: u64,
    pub stats: DrainStats,
}

impl Decoders {
    /// Identifies stacks by their nonce.
    pub fn by_nonce() -> Self {
        Self { by_nonce: true, ..Self::default() }
    }

    /// Takes in a stack of the log.
    pub fn learn(&mut self, record: &DurableRecord<'_>) {
        if let DurableRecord::RecurringStack(stack) = record {
            let base = self.recurring.get(&stack.base).map_or(&[][..], Vec::as_slice);
            let shared = &base[base.len() - usize::from(stack.shared)..];
            let frames = stack.frames.iter().chain(shared.iter().copied()).collect();
            self.recurring.insert(stack.id, frames);
        }
    }

    pub fn drain(&mut self, reader: &mut RegionReader, pass: Pass, seen: &mut Stacks) {
        let mut scratch = vec![0; 32 * 1024];
        let (chunks, alike, by_nonce) = (&mut self.chunks, &mut self.alike, self.by_nonce);
        let mut repeats = Vec::new();
        let (unlinked, malformed) = (&mut self.unlinked, &mut self.malformed);
        let stats = reader.drain(pass, &mut scratch, &mut |chunk, record| {
            if record.kind == RecordKind::Repeat {
                match Repeat::parse(record.payload) {
                    Some(Repeat::Single { stack, nonce }) if !record.again => {
                        let key = if by_nonce { nonce } else { record.sequence };
                        repeats.push(((chunk.tid, key), stack, nonce));
                    }
                    Some(Repeat::Alike(which)) if !record.again => alike.push(which),
                    Some(_) => {}
                    None => *malformed += 1,
                }
                return;
            }
            if record.kind != RecordKind::Stack {
                return;
            }
            let fresh = || (chunk.generation, StackDecoder::new(), vec![0; MAX_DEPTH]);
            let entry = chunks.entry(chunk.index).or_insert_with(fresh);
            if entry.0 != chunk.generation {
                *entry = fresh();
            }
            let Some(stack) = EncodedStack::parse(record.payload) else {
                *malformed += 1;
                return;
            };
            let mut standalone = vec![0; MAX_DEPTH];
            let frames = if stack.is_standalone() { &mut standalone } else { &mut entry.2 };
            let result = if stack.is_standalone() {
                stack.decode_standalone(frames)
            } else {
                entry.1.decode(&stack, record.sequence, frames)
            };
            match result {
                Ok(()) if record.again => {}
                Ok(()) => {
                    let key = if by_nonce { stack.head.nonce } else { record.sequence };
                    let frames = frames[..stack.depth()].iter().rev().copied().collect();
                    let before = seen.insert((chunk.tid, key), (stack.head, frames));
                    assert!(before.is_none(), "record {key} of {} came twice", chunk.tid);
                }
                Err(Undecodable::Unlinked) => *unlinked += u64::from(!record.again),
                Err(Undecodable::Malformed) => *malformed += u64::from(!record.again),
            }
        });
        // The log has the stacks of all records that were drained.
        reader.durable(&mut |record| self.learn(&record));
        for (key, stack, nonce) in repeats {
            let Some(frames) = self.recurring.get(&stack) else {
                self.unlinked += 1;
                continue;
            };
            let head = StackHead { weight: 1, end: 0, source: Repeat::SOURCE, nonce };
            let before = seen.insert(key, (head, frames.clone()));
            assert!(before.is_none(), "record {key:?} came twice");
        }
        self.stats.torn += stats.torn;
        self.stats.void += stats.void;
        self.stats.violations += stats.violations;
        self.stats.bytes += stats.bytes;
    }
}
