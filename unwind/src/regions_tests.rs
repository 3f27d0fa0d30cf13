//! Walks through regions with unwinders of their own, over synthetic stacks.

use std::boxed::Box;
use std::collections::HashMap;
use std::vec::Vec;

use crate::arch::native::{FP, SP};
use crate::fixture::EhFrame;
use crate::leaf::Leaf;
use crate::{
    End, FoundBy, Frame, Memory, Module, Modules, Region, RegionStep, Regions, Registers, RuleCache,
    StackCache, Tracked, walk_with,
};

const LEAF: u64 = 0x20_0000;
const MIDDLE: u64 = 0x21_0000;
const ROOT: u64 = 0x22_0000;
const END: u64 = 0x23_0000;
/// Generated code.
const CODE: u64 = 0x50_0000;
const STACK: u64 = 0x7000_0000;
const RBX: usize = 3;

struct Words(HashMap<u64, u64>);

impl Memory for Words {
    fn read(&mut self, address: u64) -> Option<u64> {
        self.0.get(&address).copied()
    }
}

fn stack(words: &[u64]) -> Words {
    Words((STACK..).step_by(8).zip(words.iter().copied()).collect())
}

/// A single region whose unwinder is a closure.
struct One<'r, F> {
    start: u64,
    region: Region<'r>,
    unwind: F,
    asked: Vec<usize>,
}

impl<'r, F: FnMut(&mut Tracked) -> RegionStep> Regions<'r> for One<'r, F> {
    fn find(&self, address: u64) -> Option<Region<'r>> {
        (self.start <= address && address < self.start + 0x1000).then_some(self.region)
    }

    fn step(&mut self, number: usize, _: bool, registers: &mut Tracked) -> RegionStep {
        self.asked.push(number);
        (self.unwind)(registers)
    }
}

const PLAIN: RegionStep = RegionStep::Caller { interrupted: false, other_stack: false };

/// An unwinder with a rule that CFI cannot express: the caller's frame is at rbx, and rbx is unchanged.
fn by_rbx(registers: &mut Tracked, pc: u64) -> RegionStep {
    let Some(rbx) = registers.get(RBX) else { return RegionStep::End(End::LostRegister) };
    let before = *registers;
    registers.arrive_at(pc, false, |number| if number == SP { Some(rbx) } else { before.get(number) });
    PLAIN
}

fn world() -> EhFrame {
    let mut eh_frame = EhFrame::new();
    let cie = eh_frame.usual_cie();
    eh_frame.fde(cie, LEAF, 0x1000, &[]);
    // rbx is saved in the word below the return address: DW_CFA_def_cfa_offset 16, DW_CFA_offset rbx 2.
    eh_frame.fde(cie, MIDDLE, 0x1000, &[0x0e, 16, 0x83, 2]);
    eh_frame.fde(cie, ROOT, 0x1000, &[0x07, 16]);
    eh_frame.terminate();
    eh_frame
}

fn walk_through<'r, F: FnMut(&mut Tracked) -> RegionStep>(
    modules: &'r Modules<'r>,
    cache: &'r RuleCache,
    registers: &Registers,
    mut memory: Words,
    regions: &mut One<'r, F>,
) -> (Vec<Frame>, End) {
    let mut stack_cache = Box::new(StackCache::new());
    let mut walk = |regions: &mut One<'r, F>| {
        walk_with(modules, cache, &Leaf::of(&|| *registers), &mut memory, &mut stack_cache, 100, regions)
    };
    let first = walk(regions);
    let asked = core::mem::take(&mut regions.asked);
    // The unwinder is called again in each walk: its results are not cached.
    let again = walk(regions);
    assert_eq!((first.end, first.depth, &asked), (again.end, again.depth, &regions.asked));
    (Vec::from(stack_cache.frames()), first.end)
}

fn at(pc: u64, rbx: u64) -> Registers {
    let mut registers = Registers { pc, ..Registers::default() };
    (registers.r[SP], registers.r[FP], registers.r[RBX]) = (STACK, 0, rbx);
    registers
}

fn addresses(frames: &[Frame]) -> Vec<u64> {
    frames.iter().map(|frame| frame.address()).collect()
}

#[test]
fn a_region_gets_registers_saved_by_inner_frames() {
    let eh_frame = world();
    let list = [Module { start: LEAF, end: END, eh_frame: Some(eh_frame.section()), ..Module::default() }];
    let (modules, cache) = (Modules::new(&list, 0).unwrap(), Box::new(RuleCache::new()));
    // The function saved rbx and was called by generated code whose caller is at the saved rbx, not at the current one.
    let words = [STACK + 24, CODE + 8, 0, ROOT + 8];
    for wants_all in [true, false] {
        let region = Region { wants_all, under: None };
        let unwind = |registers: &mut Tracked| by_rbx(registers, ROOT + 8);
        let mut regions = One { start: CODE, region, unwind, asked: Vec::new() };
        let (frames, end) =
            walk_through(&modules, &cache, &at(MIDDLE + 8, 0xdead), stack(&words), &mut regions);
        assert_eq!(regions.asked, [1]);
        if wants_all {
            assert_eq!(addresses(&frames), [MIDDLE + 8, CODE + 8, ROOT + 8]);
            assert_eq!((frames[2].found_by(), end), (FoundBy::Region, End::Root));
        } else {
            // With three registers only, the unwinder does not get the one it needs.
            assert_eq!((addresses(&frames), end), ([MIDDLE + 8, CODE + 8].to_vec(), End::LostRegister));
        }
    }
}

#[test]
fn after_a_guess_a_region_counts_as_code() {
    let eh_frame = world();
    let list = [Module { start: LEAF, end: END, eh_frame: Some(eh_frame.section()), ..Module::default() }];
    let (modules, cache) = (Modules::new(&list, 0).unwrap(), Box::new(RuleCache::new()));
    let bare = LEAF + 0x2000;
    let mut memory = stack(&[1, MIDDLE + 8, STACK + 40, CODE + 8, 0]);
    memory.0.insert(MIDDLE, u64::from_le_bytes([0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0]));
    let region = Region { wants_all: true, under: None };
    let unwind = |registers: &mut Tracked| by_rbx(registers, ROOT + 8);
    let mut regions = One { start: CODE, region, unwind, asked: Vec::new() };
    let (frames, end) = walk_through(&modules, &cache, &at(bare, 0xdead), memory, &mut regions);
    assert_eq!(addresses(&frames), [bare, MIDDLE + 8, CODE + 8, ROOT + 8]);
    assert_eq!((frames[1].found_by(), end), (FoundBy::Guess, End::Root));
}

#[test]
fn a_declined_frame_uses_the_rules_of_its_module() {
    let eh_frame = world();
    let whole = Module { start: LEAF, end: END, eh_frame: Some(eh_frame.section()), ..Module::default() };
    // The module has a hole where the region is.
    let list = [Module { end: MIDDLE, ..whole }, Module { start: MIDDLE + 0x1000, ..whole }];
    let (modules, cache) = (Modules::new(&list, 0).unwrap(), Box::new(RuleCache::new()));
    let region = Region { wants_all: false, under: Some(&whole) };
    let mut seen = Vec::new();
    let unwind = |registers: &mut Tracked| {
        seen.push(registers.get(RBX));
        RegionStep::Beside
    };
    let mut regions = One { start: MIDDLE, region, unwind, asked: Vec::new() };
    let words = [MIDDLE + 8, 7, MIDDLE + 16, 8, ROOT + 8];
    let (frames, end) = walk_through(&modules, &cache, &at(LEAF + 4, 6), stack(&words), &mut regions);
    assert_eq!(addresses(&frames), [LEAF + 4, MIDDLE + 8, MIDDLE + 16, ROOT + 8]);
    assert_eq!((regions.asked, end), ([1, 2].to_vec(), End::Root));
    // Each frame has its own value.
    assert_eq!(seen[..2], [Some(6), Some(7)]);
}

#[test]
fn random_walks_end_with_a_reason() {
    let eh_frame = world();
    let list = [Module { start: LEAF, end: END, eh_frame: Some(eh_frame.section()), ..Module::default() }];
    let (modules, cache) = (Modules::new(&list, 0).unwrap(), Box::new(RuleCache::new()));
    let region = Region { wants_all: true, under: None };
    let said = |pc: u64, sp: Option<u64>, step: RegionStep| {
        let unwind = move |registers: &mut Tracked| {
            registers.arrive_at(pc, false, |number| if number == SP { sp } else { None });
            step
        };
        let mut regions = One { start: CODE, region, unwind, asked: Vec::new() };
        let (frames, end) = walk_through(&modules, &cache, &at(CODE, 0), stack(&[0; 64]), &mut regions);
        (frames.len(), end)
    };
    let above = Some(STACK + 8);
    let to_other = RegionStep::Caller { interrupted: false, other_stack: true };
    let interrupted = RegionStep::Caller { interrupted: true, other_stack: false };
    assert_eq!(said(0xdead_beef, above, PLAIN), (1, End::BadUnwinder));
    assert_eq!(said(u64::MAX, above, PLAIN), (1, End::BadUnwinder));
    assert_eq!(said(ROOT + 8, None, PLAIN), (1, End::BadUnwinder));
    assert_eq!(said(0, above, PLAIN), (1, End::Root));
    assert_eq!(said(ROOT + 8, Some(0), PLAIN), (1, End::NoProgress));
    assert_eq!(said(ROOT + 8, Some(STACK - 8), PLAIN), (1, End::NoProgress));
    // The same frame forever: as a frame that called, as an interrupted one, and as one on another stack.
    assert_eq!(said(CODE + 1, Some(STACK), PLAIN), (2, End::NoProgress));
    assert_eq!(said(CODE, Some(STACK), interrupted), (1, End::NoProgress));
    assert_eq!(said(CODE + 1, Some(STACK - 8), to_other).1, End::NoProgress);
    assert_eq!(said(0, above, RegionStep::End(End::Unreadable)), (1, End::Unreadable));
}

#[test]
fn an_endless_stack_is_cut_off() {
    let list = [];
    let (modules, cache) = (Modules::new(&list, 0).unwrap(), Box::new(RuleCache::new()));
    let region = Region { wants_all: false, under: None };
    let unwind = |registers: &mut Tracked| {
        let sp = registers.get(SP).unwrap();
        registers.arrive_at(CODE + 1, false, |number| (number == SP).then_some(sp + 8));
        PLAIN
    };
    let mut regions = One { start: CODE, region, unwind, asked: Vec::new() };
    let (frames, end) = walk_through(&modules, &cache, &at(CODE, 0), stack(&[]), &mut regions);
    assert_eq!((frames.len(), end), (100, End::DepthLimit));
}
