//! Synthetic stacks for what real ones rarely show.

use std::boxed::Box;
use std::collections::HashMap;
use std::vec::Vec;

use crate::arch::native::{FP, SP};
use crate::fixture::EhFrame;
use crate::{End, FoundBy, Frame, Memory, Module, Modules, Registers, RuleCache, StackCache, walk};

const LEAF: u64 = 0x20_0000;
const MIDDLE: u64 = 0x21_0000;
const ROOT: u64 = 0x22_0000;
const UNCOVERED: u64 = 0x30_0000;
const STACK: u64 = 0x7000_0000;

/// Memory: words by address, for stack and code alike.
#[derive(Default)]
struct Words(HashMap<u64, u64>);

impl Memory for Words {
    fn read(&mut self, address: u64) -> Option<u64> {
        self.0.get(&address).copied()
    }
}

impl Words {
    fn stack(words: &[u64]) -> Self {
        Self((STACK..).step_by(8).zip(words.iter().copied()).collect())
    }

    /// Puts a `call *%rax` before `address`.
    fn call_before(mut self, address: u64) -> Self {
        self.0.insert(address - 8, u64::from_le_bytes([0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0]));
        self
    }

    fn set(mut self, address: u64, word: u64) -> Self {
        self.0.insert(address, word);
        self
    }
}

/// A module with three functions: a leaf, one with the given program, and an outermost one; and a module without CFI.
struct World {
    eh_frame: EhFrame,
    cache: Box<RuleCache>,
}

impl World {
    fn new(leaf: &[u8], middle: &[u8]) -> Self {
        let mut eh_frame = EhFrame::new();
        let cie = eh_frame.usual_cie();
        eh_frame.fde(cie, LEAF, 0x1000, leaf);
        eh_frame.fde(cie, MIDDLE, 0x1000, middle);
        eh_frame.fde(cie, ROOT, 0x1000, &[0x07, 16]);
        eh_frame.terminate();
        Self { eh_frame, cache: Box::new(RuleCache::new()) }
    }

    fn walk(&self, registers: &Registers, mut memory: Words) -> (Vec<Frame>, End) {
        let list = [
            Module {
                start: LEAF,
                end: UNCOVERED,
                eh_frame: Some(self.eh_frame.section()),
                ..Module::default()
            },
            Module {
                start: UNCOVERED,
                end: UNCOVERED + 0x1000,
                entry: UNCOVERED + 0x800,
                ..Module::default()
            },
        ];
        let modules = Modules::new(&list, 0).unwrap();
        let mut stack_cache = Box::new(StackCache::new());
        let mut walk = |stack_cache: &mut StackCache| {
            walk(&modules, &self.cache, registers, &mut memory, stack_cache, 100)
        };
        // From the sections, from the rule cache, and from the stack cache.
        let first = walk(&mut stack_cache);
        let seen = Vec::from(stack_cache.frames());
        assert_eq!((first.depth, first.unchanged), (seen.len(), 0));
        stack_cache.forget();
        assert_eq!((first, &seen[..]), (walk(&mut stack_cache), stack_cache.frames()));
        let again = walk(&mut stack_cache);
        assert_eq!((again.depth, again.end, &seen[..]), (first.depth, first.end, stack_cache.frames()));
        (seen, first.end)
    }
}

fn at(pc: u64) -> Registers {
    let mut registers = Registers { pc, ..Registers::default() };
    registers.r[SP] = STACK;
    registers
}

const fn cfi(address: u64) -> Frame {
    Frame::new(address, FoundBy::Cfi, false)
}

const fn exact(address: u64) -> Frame {
    Frame::new(address, FoundBy::Cfi, true)
}

#[test]
fn plain_frames() {
    let world = World::new(&[], &[0x0e, 24]);
    let stack = Words::stack(&[MIDDLE + 8, 0, 0, ROOT + 8]);
    let (frames, end) = world.walk(&at(LEAF), stack);
    assert_eq!((&frames[..], end), (&[exact(LEAF), cfi(MIDDLE + 8), cfi(ROOT + 8)][..], End::Root));
}

#[test]
fn a_return_address_right_behind_a_function_belongs_to_it() {
    let world = World::new(&[], &[0x0e, 24]);
    let (frames, end) = world.walk(&at(LEAF), Words::stack(&[MIDDLE + 0x1000, 0, 0, ROOT + 0x1000]));
    assert_eq!((frames.len(), end), (3, End::Root));
}

#[test]
fn a_function_start_as_return_address_is_the_root_of_a_made_stack() {
    let world = World::new(&[], &[]);
    let (frames, end) = world.walk(&at(LEAF), Words::stack(&[MIDDLE, 0x1234]));
    assert_eq!((&frames[..], end), (&[exact(LEAF), exact(MIDDLE)][..], End::Root));
    // After a call it is a normal return address: the preceding function merely lacks CFI.
    let mut registers = at(LEAF);
    registers.r[FP] = 1;
    let (frames, end) = world.walk(&registers, Words::stack(&[MIDDLE, ROOT + 8]).call_before(MIDDLE));
    assert_ne!((frames.len(), end), (2, End::Root));
}

#[test]
fn a_zero_return_address_is_the_root() {
    let world = World::new(&[], &[]);
    let (frames, end) = world.walk(&at(LEAF), Words::stack(&[0]));
    assert_eq!((frames.len(), end), (1, End::Root));
}

/// The leaf saves rbx at CFA - 16, and the middle function's CFA is rbx + 16.
const SAVES_RBX: [u8; 4] = [0x0e, 16, 0x83, 2];
const CFA_IS_RBX_16: [u8; 3] = [0x0c, 3, 16];

#[test]
fn rules_on_other_registers_restart_the_walk() {
    let world = World::new(&SAVES_RBX, &CFA_IS_RBX_16);
    // Leaf: [rbx, return address]; middle: its return address is at rbx + 8.
    let stack = Words::stack(&[STACK + 0x40, MIDDLE + 8]).set(STACK + 0x48, ROOT + 8);
    let (frames, end) = world.walk(&at(LEAF), stack);
    assert_eq!((&frames[..], end), (&[exact(LEAF), cfi(MIDDLE + 8), cfi(ROOT + 8)][..], End::Root));
    // Again from the middle to the middle: the second walk starts where the first one ended.
    let stack = Words::stack(&[STACK + 0x40, MIDDLE + 8]).set(STACK + 0x48, LEAF + 8);
    let stack =
        stack.set(STACK + 0x50, STACK + 0x80).set(STACK + 0x58, MIDDLE + 9).set(STACK + 0x88, ROOT + 8);
    let (frames, end) = world.walk(&at(LEAF), stack);
    let expected = [exact(LEAF), cfi(MIDDLE + 8), cfi(LEAF + 8), cfi(MIDDLE + 9), cfi(ROOT + 8)];
    assert_eq!((&frames[..], end), (&expected[..], End::Root));
}

#[test]
fn a_lost_register_ends_the_walk() {
    let world = World::new(&[0x07, 3], &CFA_IS_RBX_16);
    let (frames, end) = world.walk(&at(LEAF), Words::stack(&[MIDDLE + 8]));
    assert_eq!((frames.len(), end), (2, End::LostRegister));
    // Code without CFI preserves no register reliably.
    let world = World::new(&[], &CFA_IS_RBX_16);
    let mut registers = at(UNCOVERED);
    registers.r[FP] = STACK;
    let stack = Words::stack(&[STACK + 0x100, MIDDLE + 8]).call_before(MIDDLE + 8);
    let (frames, end) = world.walk(&registers, stack);
    assert_eq!((frames.len(), end), (2, End::LostRegister));
    // The lost register may be the frame pointer.
    let world = World::new(&[0x07, 6], &[0x0c, 6, 16]);
    let (frames, end) = world.walk(&at(LEAF), Words::stack(&[MIDDLE + 8]));
    assert_eq!((frames.len(), end), (2, End::LostRegister));
}

#[test]
fn expressions_and_registers() {
    // CFA = *(rsp) + rax, return address in rcx, rbp = *(CFA - 8) by expression.
    let code = [0x0f, 6, 0x77, 0, 0x06, 0x70, 0, 0x22, 0x09, 16, 2, 0x10, 6, 2, 0x38, 0x1c];
    let world = World::new(&code, &[0x0c, 6, 16]);
    let mut registers = at(LEAF);
    registers.r[0] = 0x10;
    registers.r[2] = MIDDLE + 8;
    let stack = Words::stack(&[STACK + 0x20]).set(STACK + 0x28, STACK + 0x50).set(STACK + 0x58, ROOT + 8);
    let (frames, end) = world.walk(&registers, stack);
    assert_eq!((&frames[..], end), (&[exact(LEAF), cfi(MIDDLE + 8), cfi(ROOT + 8)][..], End::Root));
}

#[test]
fn frame_pointers_without_cfi() {
    let world = World::new(&[], &[]);
    let mut registers = at(UNCOVERED + 0x10);
    registers.r[FP] = STACK + 0x20;
    let stack = Words::stack(&[1, 2, 3, 4, STACK + 0x40, UNCOVERED + 0x20, 5, 6, 0, ROOT + 8]);
    let stack = stack.call_before(UNCOVERED + 0x20).call_before(ROOT + 8);
    let (frames, end) = world.walk(&registers, stack);
    let by_pointer = |address| Frame::new(address, FoundBy::FramePointer, false);
    assert_eq!(
        (&frames[..], end),
        (&[exact(UNCOVERED + 0x10), by_pointer(UNCOVERED + 0x20), by_pointer(ROOT + 8)][..], End::Root)
    );
}

#[test]
fn guesses_without_cfi() {
    let world = World::new(&[], &[]);
    // The word that points into the leaf function does not follow a call; the one into the root function does.
    let stack = Words::stack(&[1, LEAF + 0x10, 2, ROOT + 8, 3]).call_before(ROOT + 8);
    let (frames, end) = world.walk(&at(UNCOVERED + 0x10), stack);
    assert_eq!(
        (&frames[..], end),
        (&[exact(UNCOVERED + 0x10), Frame::new(ROOT + 8, FoundBy::Guess, false)][..], End::Root)
    );
    let (frames, end) = world.walk(&at(UNCOVERED + 0x10), Words::stack(&[1; 300]));
    assert_eq!((frames.len(), end), (1, End::NoCfi));
    let (frames, end) = world.walk(&at(0x1234), Words::stack(&[1; 300]));
    assert_eq!((frames.len(), end), (1, End::NoModule));
    // A wild jump: the caller is on top of the stack.
    let (frames, end) = world.walk(&at(0), Words::stack(&[ROOT + 8]).call_before(ROOT + 8));
    assert_eq!((frames.len(), end), (2, End::Root));
}

#[test]
fn after_a_guess_callers_must_be_code() {
    let world = World::new(&[], &[]);
    let walk = |stack| {
        let (frames, end) = world.walk(&at(UNCOVERED + 0x10), stack);
        (frames.iter().map(|frame| frame.address()).collect::<Vec<_>>(), end)
    };
    let guessed = |caller| Words::stack(&[1, MIDDLE + 8, caller]).call_before(MIDDLE + 8);
    let (leaf, generated) = (UNCOVERED + 0x10, 0x5000_0008);
    assert_eq!(walk(guessed(0x16)), ([leaf, MIDDLE + 8].to_vec(), End::NoCode));
    assert_eq!(walk(guessed(0)), ([leaf, MIDDLE + 8].to_vec(), End::NoCode));
    assert_eq!(walk(guessed(ROOT + 8)), ([leaf, MIDDLE + 8, ROOT + 8].to_vec(), End::Root));
    let (frames, _) = walk(guessed(generated).call_before(generated));
    assert_eq!(frames, [leaf, MIDDLE + 8, generated]);
}

/// Compiled Java keeps no frame pointer, but saves that of the interpreter, which jumped to it.
#[test]
fn interpreters_that_jump_are_followed_after_a_guess() {
    const GENERATED: u64 = 0x500_0000;
    let world = World::new(&[], &[]);
    let mut registers = at(GENERATED);
    registers.r[FP] = 1;
    let call = u64::from_le_bytes([0x90, 0x90, 0x90, 0xe8, 0xf8, 0xfe, 0xff, 0xff]);
    let nops = u64::from_le_bytes([0x90; 8]);
    let walk = |jumped: u64| {
        let stack = [1, STACK + 0x20, GENERATED + 0x108, 2, STACK + 0x40, jumped, 3, 4, 0, ROOT + 8];
        let code = [0x100, 0x200, 0x208].into_iter().zip([call, nops, nops]);
        let stack = code.fold(Words::stack(&stack), |words, (at, code)| words.set(GENERATED + at, code));
        world.walk(&registers, stack.call_before(ROOT + 8))
    };
    let compiled = [exact(GENERATED), Frame::new(GENERATED + 0x108, FoundBy::Guess, false)];
    let by_pointer = |address| Frame::new(address, FoundBy::FramePointer, false);
    let interpreted = [by_pointer(GENERATED + 0x208), by_pointer(ROOT + 8)];
    assert_eq!(walk(GENERATED + 0x208), ([compiled, interpreted].concat(), End::Root));
    // Data is no code, so it is not followed.
    let (frames, _) = walk(STACK + 0x30);
    assert_eq!(frames[..2], compiled);
    assert!(frames[2..].iter().all(|frame| frame.address() == ROOT + 8), "{frames:?}");
}

/// Go's call frame information does not describe the switch to another stack.
#[test]
fn a_word_that_no_call_returns_to_is_no_frame() {
    let world = World::new(&[], &[]);
    let data = STACK + 0x4000_0008;
    for word in [0x16, data] {
        for (leaf, words) in [(MIDDLE, &[word][..]), (LEAF, &[MIDDLE + 8, word])] {
            let walk = |stack: Words| {
                let (frames, end) = world.walk(&at(leaf), stack);
                (frames.iter().map(|frame| frame.address()).collect::<Vec<_>>(), end)
            };
            let known = [&[leaf], &words[..words.len() - 1]].concat();
            assert_eq!(walk(Words::stack(words)), (known.clone(), End::NoCode));
            // The word points to readable memory, but not after a call.
            assert_eq!(walk(Words::stack(words).set(word - 8, 0)), (known.clone(), End::NoCode));
            // The word points into code generated at run time.
            let (frames, _) = walk(Words::stack(words).call_before(word));
            assert_eq!(frames, [&known[..], &[word]].concat());
        }
    }
}

#[test]
fn the_entry_stub_is_the_root() {
    let world = World::new(&[], &[]);
    let (frames, end) = world.walk(&at(LEAF), Words::stack(&[UNCOVERED + 0x810, 0, 0]));
    assert_eq!((frames.len(), end), (2, End::Root));
}

#[test]
fn code_after_the_entry_stub_has_a_caller() {
    let world = World::new(&[], &[]);
    // call UNCOVERED + 0x820, which is _start_c; it was called from the stub.
    let call = u64::from_le_bytes([0x90, 0x90, 0x90, 0xe8, 0x10, 0, 0, 0]);
    let stack = Words::stack(&[UNCOVERED + 0x810]).set(UNCOVERED + 0x808, call);
    let (frames, end) = world.walk(&at(UNCOVERED + 0x824), stack);
    let stub = Frame::new(UNCOVERED + 0x810, FoundBy::Guess, false);
    assert_eq!((&frames[..], end), (&[exact(UNCOVERED + 0x824), stub][..], End::Root));
}

#[test]
fn an_entry_point_with_cfi_is_no_stub() {
    let world = World::new(&[], &[]);
    let module = Module {
        start: LEAF,
        end: UNCOVERED,
        // The outermost function ends 16 bytes after the entry point.
        entry: ROOT + 0x1000 - 16,
        eh_frame: Some(world.eh_frame.section()),
        ..Module::default()
    };
    let list = [module];
    let mut stack_cache = Box::new(StackCache::new());
    let mut stack = Words::stack(&[MIDDLE + 8, 0]).call_before(MIDDLE + 8);
    let modules = Modules::new(&list, 0).unwrap();
    let walked = walk(&modules, &world.cache, &at(ROOT + 0x1008), &mut stack, &mut stack_cache, 8);
    // A stub would have been the root.
    assert_eq!((walked.depth, walked.end), (2, End::NoCode));
    assert_eq!(stack_cache.frames()[1].found_by(), FoundBy::Guess);
}

#[test]
fn a_signal_restorer_without_cfi() {
    let world = World::new(&SAVES_RBX, &CFA_IS_RBX_16);
    let mov_15_rax_syscall = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05, 0, 0, 0, 0, 0, 0, 0];
    // The signal interrupted the middle function at its first instruction, on a lower stack.
    let context = STACK + 40;
    let low = STACK - 0x1000;
    let memory = Words::default()
        .set(UNCOVERED + 0x40, u64::from_le_bytes(mov_15_rax_syscall[..8].try_into().unwrap()))
        .set(UNCOVERED + 0x41, u64::from_le_bytes(mov_15_rax_syscall[1..9].try_into().unwrap()));
    let memory = (0..17).fold(memory, |memory, i| memory.set(context + 8 * i, 0));
    let memory = memory
        .set(STACK + 120, 0)
        .set(context + 8 * 11, low) // rbx
        .set(STACK + 160, low) // rsp
        .set(STACK + 168, MIDDLE) // rip
        .set(low + 8, ROOT + 8);
    let (frames, end) = world.walk(&at(UNCOVERED + 0x40), memory);
    assert_eq!((&frames[..], end), (&[exact(UNCOVERED + 0x40), exact(MIDDLE), cfi(ROOT + 8)][..], End::Root));
}

#[test]
fn walks_that_go_nowhere_end() {
    // CFA = rsp: the frame after the leaf would be empty.
    let world = World::new(&[0x0e, 0], &[0x0e, 0]);
    let stack = Words::default().set(STACK - 8, MIDDLE + 8);
    let (frames, end) = world.walk(&at(LEAF), stack);
    assert_eq!((frames.len(), end), (2, End::NoProgress));
    // CFA = rbp + 16 with a frame pointer that points to itself: switching "stacks" forever must be bounded.
    let world = World::new(&[0x0c, 6, 16, 0x86, 2], &[]);
    let mut registers = at(LEAF);
    registers.r[FP] = STACK;
    let (frames, end) = world.walk(&registers, Words::stack(&[STACK, LEAF + 8]));
    assert!(frames.len() < 30, "{}", frames.len());
    assert_eq!(end, End::NoProgress);
}

#[test]
fn unreadable_stacks_end() {
    let world = World::new(&[], &[]);
    let (frames, end) = world.walk(&at(LEAF), Words::default());
    assert_eq!((frames.len(), end), (1, End::Unreadable));
    let world = World::new(&SAVES_RBX, &CFA_IS_RBX_16);
    let (frames, end) = world.walk(&at(LEAF), Words::stack(&[0x10, MIDDLE + 8]));
    assert_eq!((frames.len(), end), (2, End::Unreadable));
}

#[test]
fn malformed_cfi_ends() {
    let world = World::new(&[], &[0x3f]);
    let (frames, end) = world.walk(&at(LEAF), Words::stack(&[MIDDLE + 8]));
    assert_eq!((frames.len(), end), (2, End::BadCfi));
}
