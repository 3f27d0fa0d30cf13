//! Walks through generated code that has registered call frame information, over synthetic stacks.

use std::boxed::Box;
use std::collections::HashMap;
use std::vec::Vec;

use crate::arch::native::{FP, SP};
use crate::fixture::EhFrame;
use crate::leaf::Leaf;
use crate::{
    End, FoundBy, Memory, Module, Modules, Region, RegionStep, Regions, Registers, RuleCache, StackCache,
    Tracked, walk_with,
};

const LEAF: u64 = 0x20_0000;
const ROOT: u64 = 0x21_0000;
const END: u64 = 0x22_0000;
/// Generated code, outside all modules.
const CODE: u64 = 0x50_0000;
const SIZE: u64 = 0x1000;
const STACK: u64 = 0x7000_0000;
/// A return address in generated code without a rule.
const CALLED: u64 = CODE + SIZE + 8;
const CALL_RAX: u64 = 0xd0ff_9090_9090_9090;
const RBX: usize = 3;

struct Words(HashMap<u64, u64>);

impl Memory for Words {
    fn read(&mut self, address: u64) -> Option<u64> {
        self.0.get(&address).copied()
    }
}

struct Generated<'r>(&'r Module<'r>);

impl<'r> Regions<'r> for Generated<'r> {
    fn find(&self, _: u64) -> Option<Region<'r>> {
        None
    }

    fn step(&mut self, _: usize, _: bool, _: &mut Tracked) -> RegionStep {
        RegionStep::Beside
    }

    fn generated(&self, address: u64) -> Option<&'r Module<'r>> {
        Some(self.0).filter(|module| module.covers(address))
    }
}

/// A section with one FDE per function.
fn section(functions: &[(u64, &[u8])]) -> EhFrame {
    let mut made = EhFrame::new();
    let cie = made.usual_cie();
    for (start, code) in functions {
        made.fde(cie, *start, SIZE, code);
    }
    made.terminate();
    made
}

fn module(start: u64, end: u64, eh_frame: &EhFrame) -> Module<'_> {
    Module { start, end, eh_frame: Some(eh_frame.section()), ..Module::default() }
}

/// The frames of a walk from `pc` over a stack with these words; rbx points to the third word.
fn walk(
    generated: &[u8],
    pc: u64,
    words: &[u64],
    cache: &RuleCache,
    stack_cache: &mut StackCache,
) -> (Vec<u64>, End) {
    // DW_CFA_undefined rip
    let eh_frame = section(&[(LEAF, &[]), (ROOT, &[0x07, 16])]);
    let list = [module(LEAF, END, &eh_frame)];
    let modules = Modules::new(&list, 0).unwrap();
    let eh_frame = section(&[(CODE, generated)]);
    let generated = module(CODE, CODE + SIZE, &eh_frame);
    let mut memory = Words((STACK..).step_by(8).zip(words.iter().copied()).collect());
    memory.0.insert(CALLED - 8, CALL_RAX);
    let mut registers = Registers { pc, ..Registers::default() };
    (registers.r[SP], registers.r[FP], registers.r[RBX]) = (STACK, 0xdead, STACK + 16);
    let mut regions = Generated(&generated);
    let walk =
        walk_with(&modules, cache, &Leaf::of(&|| registers), &mut memory, stack_cache, 100, &mut regions);
    let frames = stack_cache.frames();
    assert!(frames.iter().all(|frame| frame.found_by() == FoundBy::Cfi));
    (frames.iter().map(|frame| frame.address()).collect(), walk.end)
}

const WORDS: [u64; 7] = [CODE + 8, CODE + 16, ROOT + 8, CODE + 24, 0, 0, ROOT + 16];

#[test]
fn walks_continue_through_generated_code_with_rules() {
    let (cache, mut stack_cache) = (Box::new(RuleCache::new()), Box::new(StackCache::new()));
    let mut frames = |code: &[u8], pc| walk(code, pc, &WORDS, &cache, &mut stack_cache);
    // Called or interrupted, the word at rsp is the return address.
    let all = [LEAF + 4, CODE + 8, CODE + 16, ROOT + 8].to_vec();
    assert_eq!(frames(&[], LEAF + 4), (all.clone(), End::Root));
    assert_eq!(frames(&[], CODE + 4).0[1..], all[1..]);
    // DW_CFA_def_cfa rbx 8: needs all registers tracked.
    let by_rbx = [0x0c, 3, 8];
    assert_eq!(frames(&by_rbx, LEAF + 4), ([LEAF + 4, CODE + 8, ROOT + 8].to_vec(), End::Root));
    assert_eq!(frames(&by_rbx, CODE + 4), ([CODE + 4, ROOT + 8].to_vec(), End::Root));
    // DW_CFA_undefined rip
    assert_eq!(frames(&[0x07, 16], CODE + 4), ([CODE + 4].to_vec(), End::Root));
}

#[test]
fn replaced_generated_code_is_not_cached() {
    let (cache, mut stack_cache) = (Box::new(RuleCache::new()), Box::new(StackCache::new()));
    let mut frames = |code: &[u8]| walk(code, LEAF + 4, &WORDS, &cache, &mut stack_cache).0;
    let near = [LEAF + 4, CODE + 8, CODE + 16, ROOT + 8];
    // DW_CFA_def_cfa_offset 24
    let (far, code): (_, &[u8]) = ([LEAF + 4, CODE + 8, CODE + 24, ROOT + 16], &[0x0e, 24]);
    for _ in 0..3 {
        assert_eq!(frames(&[]), near);
        assert_eq!(frames(&[]), near);
        assert_eq!(frames(code), far);
    }
}

#[test]
fn generated_code_without_a_rule_falls_back_to_heuristics() {
    let (cache, mut stack_cache) = (Box::new(RuleCache::new()), Box::new(StackCache::new()));
    let mut walk = |word| walk(&[], LEAF + 4, &[word, 0, 0], &cache, &mut stack_cache);
    assert_eq!(walk(CALLED), ([LEAF + 4, CALLED].to_vec(), End::NoModule));
    assert_eq!(walk(CALLED + 8), ([LEAF + 4].to_vec(), End::NoCode));
}
