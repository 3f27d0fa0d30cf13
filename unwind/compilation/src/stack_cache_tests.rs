//! A walk with the previous-walk cache gives the same frames as one without, whatever changed in between.
//!
//! The stacks consist of random words, most of them return addresses: no program has such stacks, but no step is
//! excluded.

use std::alloc::{Layout, alloc_zeroed};
use std::boxed::Box;
use std::vec::Vec;

use unwind::{
    Abi, End, Frame, KnownStacks, Leaf, Memory, Module, Modules, Native, Registers, RuleCache, StackCache,
    Table, Walk, walk,
};

use crate::compile::compile;
use crate::fixture::{EhFrame, Random};

const TEXT: u64 = 0x20_0000;
const FUNCTION: u64 = 0x100;
const FP: usize = Native::FP;
const SP: usize = Native::SP;
const RBX: usize = 3;
/// Two stacks, the second one above the first.
const STACKS: [u64; 2] = [0x7000_0000, 0x7100_0000];
const WORDS: u64 = 256;

/// Stacks to try, and walks with changes in between on each.
const WORLDS: usize = 60;
const WALKS: usize = 400;
/// Frames of most walks.
const MOST: usize = 300;

/// CFA programs of the functions, repeated according to their frequency. `None` has no call frame information.
const FUNCTIONS: [Option<&[u8]>; 20] = [
    Some(&[0x0e, 16]),
    Some(&[0x0e, 24]),
    Some(&[0x0e, 32]),
    Some(&[0x0e, 48]),
    Some(&[0x0e, 16, 0x86, 2]),
    Some(&[0x0e, 24, 0x86, 2]),
    Some(&[0x0e, 40, 0x86, 3]),
    Some(&[0x0e, 40, 0x86, 4]),
    // rbx is saved: only visible with all registers tracked.
    Some(&[0x0e, 24, 0x83, 2]),
    Some(&[0x0e, 32, 0x83, 3, 0x86, 2]),
    // CFA = rbp + 16, with and without the saved rbp.
    Some(&[0x0c, 6, 16, 0x86, 2]),
    Some(&[0x0c, 6, 32]),
    // CFA = *(rbp - 8)
    Some(&[0x0f, 3, 0x76, 0x78, 0x06]),
    // CFA = *(rsp + 8) + 8
    Some(&[0x0f, 5, 0x77, 8, 0x06, 0x23, 8]),
    // rbp at (rbp)
    Some(&[0x0e, 32, 0x10, 6, 2, 0x76, 0]),
    // CFA = rbx + 16
    Some(&[0x0c, 3, 16]),
    // rbp is lost.
    Some(&[0x0e, 24, 0x07, 6]),
    // The return address doubles as the saved rbp.
    Some(&[0x0e, 24, 0x86, 1]),
    // The outermost function.
    Some(&[0x07, 16]),
    None,
];

/// The functions with fast rules, relative to the stack pointer and to the frame pointer, and the outermost one. In
/// their frames a return address is an odd word and a saved frame pointer the even word below it.
const FAST: [u64; 8] = [0, 2, 3, 4, 4, 10, 11, 18];

/// A module with these functions, the first `last` of them moved to the end.
fn cfi(last: usize) -> EhFrame {
    let mut made = EhFrame::new();
    let cie = made.usual_cie();
    for (number, code) in FUNCTIONS.iter().cycle().skip(last).take(FUNCTIONS.len()).enumerate() {
        if let Some(code) = code {
            made.fde(cie, TEXT + FUNCTION * number as u64, FUNCTION, code);
        }
    }
    made.terminate();
    made
}

/// Stacks and the registers of a leaf on one of them.
#[derive(Clone)]
struct World {
    stacks: [Vec<u64>; 2],
    /// Bytes of each stack that are known to be readable, from its start.
    known: [u64; 2],
    registers: Registers,
    /// Only [`FAST`] functions are called.
    is_fast: bool,
}

impl Memory for World {
    fn read(&mut self, address: u64) -> Option<u64> {
        if (TEXT..TEXT + FUNCTION * FUNCTIONS.len() as u64).contains(&address) {
            // Every address follows a call.
            return Some(u64::from_le_bytes([0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0]));
        }
        self.stacks.iter().zip(STACKS).find_map(|(words, start)| {
            let offset = usize::try_from(address.checked_sub(start)?).ok()?;
            let bytes = [*words.get(offset / 8)?, words.get(offset / 8 + 1).copied().unwrap_or(0)];
            let fits = offset + 8 <= 8 * words.len();
            let both = u128::from(bytes[0]) | u128::from(bytes[1]) << 64;
            fits.then_some((both >> (8 * (offset % 8))) as u64)
        })
    }

    fn known_until(&mut self, address: u64) -> u64 {
        let ends = STACKS.iter().zip(self.known).map(|(start, known)| (*start, start + known));
        ends.into_iter()
            .find(|(start, end)| (*start..*end).contains(&address))
            .map_or(address, |(_, end)| end)
    }

    unsafe fn load(&mut self, address: u64) -> u64 {
        let known = self.known_until(address);
        assert!(address + 8 <= known, "{address:#x} is not known to be readable");
        self.read(address).expect("a known address is readable")
    }
}

impl World {
    fn new(is_fast: bool, random: &mut Random) -> Self {
        let mut world = Self {
            stacks: [const { Vec::new() }; 2],
            known: [8 * WORDS; 2],
            registers: Registers::default(),
            is_fast,
        };
        for stack in 0..2 {
            world.stacks[stack] = (0..WORDS).map(|number| world.word(number, random)).collect();
        }
        world.enter(random);
        world
    }

    /// A random content for the word with this number.
    fn word(&self, number: u64, random: &mut Random) -> u64 {
        if self.is_fast && !random.one_in(32) {
            return if number.is_multiple_of(2) { self.stack_address(random) } else { self.address(random) };
        }
        match random.below(16) {
            0 => random.below(4),
            1 => random.next(),
            2..5 => self.stack_address(random),
            _ => self.address(random),
        }
    }

    fn address(&self, random: &mut Random) -> u64 {
        if self.is_fast {
            return TEXT + FUNCTION * FAST[random.below(8) as usize] + 1 + random.below(FUNCTION - 1);
        }
        // Root and uncovered functions are chosen less often than they are in the list.
        let functions = FUNCTIONS.len() as u64 - if random.one_in(4) { 0 } else { 6 };
        TEXT + FUNCTION * random.below(functions) + random.below(FUNCTION)
    }

    fn stack_address(&self, random: &mut Random) -> u64 {
        if self.is_fast {
            return STACKS[0] + 16 * random.below(WORDS / 2);
        }
        STACKS[random.one_in(8) as usize] + 8 * random.below(WORDS) + u64::from(random.one_in(32))
    }

    fn enter(&mut self, random: &mut Random) {
        self.registers.pc = self.address(random);
        self.registers.r[SP] = STACKS[random.one_in(6) as usize] + 16 * random.below(WORDS / 8);
        self.registers.r[FP] = self.stack_address(random);
        self.registers.r[RBX] = self.stack_address(random);
    }

    /// Applies a random change between two walks.
    fn change(&mut self, random: &mut Random) {
        match random.below(10) {
            0 => {}
            1 => self.enter(random),
            2 => self.registers.pc = self.address(random),
            3 => self.registers.r[FP] = self.stack_address(random),
            4 => {
                let known = [0, 8 * WORDS - 4, 8 * random.below(WORDS), 8 * WORDS];
                self.known[random.below(2) as usize] = known[random.below(4) as usize];
            }
            5 => self.registers.r[SP] = self.registers.r[SP].wrapping_sub(8).max(STACKS[0]),
            6 => {
                for _ in 0..random.below(4) {
                    let (stack, number) = (random.one_in(8) as usize, random.below(WORDS));
                    self.stacks[stack][number as usize] = self.word(number, random);
                }
            }
            // Changes one word of those that the walk may read.
            _ => {
                let number = (self.registers.r[SP] / 8 + random.below(24)) % WORDS;
                let word = self.word(number, random);
                self.stacks[usize::from(self.registers.r[SP] >= STACKS[1])][number as usize] = word;
            }
        }
    }
}

/// Walks and returns the frames.
fn take(
    modules: &Modules<'_>,
    cache: &RuleCache,
    world: &mut World,
    stack_cache: &mut StackCache,
    most: usize,
) -> (Walk, Vec<Frame>) {
    let registers = world.registers;
    let walk = walk(modules, cache, &registers, world, stack_cache, most);
    (walk, stack_cache.frames().to_vec())
}

#[test]
fn the_stack_cache_changes_no_walk() {
    changes_nothing(false);
}

/// Whole stacks that repeat, with some relevant and some irrelevant words changed.
#[test]
fn the_stack_cache_changes_no_walk_of_simple_steps() {
    changes_nothing(true);
}

/// An empty table.
fn no_stacks() -> Box<KnownStacks<u32>> {
    // SAFETY: zeroed memory is an empty table, and 0 a valid note. It has the layout of the type, and is the box's own.
    unsafe { Box::from_raw(alloc_zeroed(Layout::new::<KnownStacks<u32>>()).cast()) }
}

/// A stack is known only among the modules of its walk, however often it was found there.
#[test]
fn no_stack_of_other_modules_is_known() {
    let cfi = Vec::leak(Vec::from([cfi(0)]));
    let end = TEXT + FUNCTION * FUNCTIONS.len() as u64;
    let module = [Module { start: TEXT, end, eh_frame: Some(cfi[0].section()), ..Module::default() }];
    let (mut random, mut known) = (Random(0x0b5e_55ed), no_stacks());
    let (cache, mut stack_cache) = (Box::new(RuleCache::new()), Box::new(StackCache::new()));
    let mut learned = |generation, known: &mut KnownStacks<u32>| {
        let modules = Modules::new(&module, generation).unwrap();
        cache.clear();
        loop {
            let mut world = World::new(true, &mut random);
            let (walk, _) = take(&modules, &cache, &mut world, &mut stack_cache, MOST);
            let registers = world.registers;
            if walk.end == End::Root
                && known
                    .learn(generation, &Leaf::of(&|| registers), &stack_cache, &mut world, generation)
                    .is_some()
            {
                return world;
            }
        }
    };
    // The first one's entry will be used again.
    let _ = learned(1, &mut known);
    let mut first = learned(1, &mut known);
    let registers = first.registers;
    for _ in 0..5 {
        assert!(known.find(1, &Leaf::of(&|| registers), &mut first).is_some());
    }
    let mut second = learned(2, &mut known);
    assert_eq!(known.find(2, &Leaf::of(&|| registers), &mut first), None);
    let registers = second.registers;
    assert!(known.find(2, &Leaf::of(&|| registers), &mut second).is_some());
    known.forget();
    assert_eq!(known.find(2, &Leaf::of(&|| registers), &mut second), None);
}

fn changes_nothing(is_fast: bool) {
    // One module that is replaced by another at the same address, and back.
    let cfi = [cfi(0), cfi(3)];
    let end = TEXT + FUNCTION * FUNCTIONS.len() as u64;
    let module = |cfi: &'static EhFrame, has_table: bool| {
        let bytes = has_table.then(|| &*compile(cfi.section(), 0, &[]).unwrap().leak());
        let table = bytes.map(|bytes| Table::from_bytes(bytes).unwrap());
        [Module { start: TEXT, end, eh_frame: Some(cfi.section()), table, ..Module::default() }]
    };
    let cfi = Vec::leak(Vec::from(cfi)).iter();
    let plain = cfi.clone().map(|cfi| module(cfi, false)).collect::<Vec<_>>();
    let with_tables = cfi.map(|cfi| module(cfi, true)).collect::<Vec<_>>();
    let mut generation = 0;
    let mut random = Random(0x5e1f_317d);
    let (cache, mut stack_cache) = (Box::new(RuleCache::new()), Box::new(StackCache::new()));
    let (other_cache, mut fresh) = (Box::new(RuleCache::new()), Box::new(StackCache::new()));
    let mut known = no_stacks();
    let mut hits = 0;
    let (mut unchanged, mut frames, mut roots) = (0, 0, 0);
    for number in 0..WORLDS {
        let has_tables = number % 2 == 1;
        let mut world = World::new(is_fast, &mut random);
        let mut before: Vec<Frame> = stack_cache.frames().to_vec();
        for step in 0..WALKS {
            if random.one_in(64) {
                generation += 1;
                cache.clear();
                other_cache.clear();
            }
            let most = if random.one_in(16) { random.below(40) as usize } else { MOST };
            let list = if is_fast { 0 } else { generation as usize % 2 };
            let lists = if has_tables { &with_tables } else { &plain };
            let modules = Modules::new(&lists[list], generation).unwrap();
            let (walk, found) = take(&modules, &cache, &mut world, &mut stack_cache, most);
            fresh.forget();
            let modules = Modules::new(&plain[list], generation).unwrap();
            let (wanted, expected) = take(&modules, &other_cache, &mut world, &mut fresh, most);
            assert_eq!((walk.depth, walk.end), (wanted.depth, wanted.end), "step {step}");
            assert_eq!(found, expected, "step {step}");
            assert_eq!((wanted.unchanged, found.len()), (0, walk.depth));
            let tail = |frames: &[Frame]| frames[frames.len() - walk.unchanged..].to_vec();
            assert_eq!(tail(&found), tail(&before), "step {step}");
            if most == MOST {
                let registers = world.registers;
                let all = || registers;
                let leaf = Leaf::of(&all);
                if let Some(index) = known.find(generation, &leaf, &mut world) {
                    let words: Vec<u64> = expected.iter().skip(1).map(|frame| frame.bits()).collect();
                    let (mut frames, note) = ([0; KnownStacks::<u32>::DEPTH], known.note(index).copied());
                    let frames = known.frames(index, &mut world, &mut frames);
                    assert_eq!((wanted.end, frames), (End::Root, &words[..]), "step {step}");
                    assert_eq!(note, Some(words.len() as u32), "step {step}");
                    hits += 1;
                }
                // In turns with others, so that there are several.
                if walk.end == End::Root && random.one_in(2) {
                    let depth = walk.depth as u32 - 1;
                    let _ = known.learn(generation, &leaf, &stack_cache, &mut world, depth);
                }
            }
            unchanged += walk.unchanged;
            frames += walk.depth;
            roots += usize::from(walk.end == End::Root);
            before = found;
            // A stack that repeats a third time is compared in another way.
            if random.one_in(3) {
                world.change(&mut random);
            }
        }
    }
    // The cache was used, and the walks were not trivial. Many of the random walks end at a word that is no return
    // address, and share no frames with others.
    let (least, depth) = if is_fast { (frames / 4, 4) } else { (frames / 8, 2) };
    assert!(unchanged > least, "{unchanged} of {frames} frames unchanged");
    assert!(!is_fast || hits > roots / 8, "{hits} of {roots} whole stacks were known");
    assert!(frames > depth * WORLDS * WALKS && roots > WORLDS * WALKS / 50, "{frames} frames, {roots} roots");
}
