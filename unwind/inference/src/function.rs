//! Follows one function along its branches.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};
use unwind::Rule;

use crate::code::Code;
use crate::effect::{self, Flow};
use crate::state::State;

/// Maximum number of instructions of a function.
const INSTRUCTIONS_MOST: usize = 200_000;
/// Of the starts of functions and loops.
const ALIGNMENT: u64 = 16;
/// Maximum number of calls of a function that are found not to return.
const RESTARTS_MOST: usize = 64;

/// Why a function is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// The stack pointer is not understood.
    Unsupported,
    /// The code behind this call belongs to another function: the call does not return.
    After(u64),
}

/// How an instruction was reached.
#[derive(Clone, Copy)]
struct Path {
    address: u64,
    state: State,
    /// The latest call on the way.
    call: Option<u64>,
    /// A register was popped on the way.
    popped: bool,
}

/// An instruction of the function.
#[derive(Clone, Copy)]
struct Step {
    state: State,
    length: u8,
    /// The next instruction is not reached from this one.
    ends: bool,
}

/// Whether a function begins somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begins {
    Not,
    Possibly,
    Certainly,
}

/// What is known about all functions.
pub(crate) struct Known<'c> {
    pub(crate) code: &'c Code,
    /// Where functions begin.
    pub(crate) starts: HashSet<u64>,
    /// Functions that do not return.
    pub(crate) noreturn: HashSet<u64>,
    /// Whether a function begins at an address behind a call and padding.
    pub(crate) begins: RefCell<HashMap<u64, Begins>>,
}

/// A function, as far as it has been followed.
pub(crate) struct Function<'k> {
    known: &'k Known<'k>,
    /// It is followed only to see whether it is one.
    is_guess: bool,
    start: u64,
    steps: BTreeMap<u64, Step>,
    /// Indirect jumps: the address of the next instruction.
    jumps: BTreeMap<u64, State>,
    /// Calls that do not return.
    noreturn_calls: HashSet<u64>,
    /// What it calls directly, or jumps to as its last act.
    pub(crate) called: Vec<u64>,
    /// It returns, or restores registers and jumps to another function.
    returns: bool,
    /// It jumps to another function.
    leaves: bool,
    /// How often a path has led to what is known, or out of the function in a proper way.
    joins: usize,
}

impl<'k> Function<'k> {
    /// The function that begins at `start`; `None` if it is not understood.
    pub(crate) fn follow(known: &'k Known<'k>, start: u64) -> Option<Self> {
        Self::follow_as(known, start, false)
    }

    fn follow_as(known: &'k Known<'k>, start: u64, is_guess: bool) -> Option<Self> {
        let mut function = Self {
            known,
            is_guess,
            start,
            steps: BTreeMap::new(),
            jumps: BTreeMap::new(),
            noreturn_calls: HashSet::new(),
            called: Vec::new(),
            returns: false,
            leaves: false,
            joins: 0,
        };
        for _ in 0..RESTARTS_MOST {
            let entry = Path { address: start, state: State::ENTRY, call: None, popped: false };
            match function.run(entry, false) {
                Ok(_) => {
                    function.follow_tables();
                    return Some(function);
                }
                Err(Failure::Unsupported) => return None,
                Err(Failure::After(call)) => {
                    if !function.noreturn_calls.insert(call) {
                        return None;
                    }
                    function.steps.clear();
                    function.jumps.clear();
                    function.called.clear();
                    (function.returns, function.leaves) = (false, false);
                }
            }
        }
        None
    }

    /// Its instructions: address, length, and rule, if one is certain.
    pub(crate) fn rules(&self) -> impl Iterator<Item = (u64, u8, Option<Rule>)> + '_ {
        self.steps.iter().map(|(address, step)| (*address, step.length, step.state.rule()))
    }

    /// Follows all branches from `path`. If that is `tentative`, nothing that is known already may change. Returns the addresses
    /// of new instructions.
    fn run(&mut self, path: Path, tentative: bool) -> Result<Vec<u64>, Failure> {
        let mut added = Vec::new();
        let mut paths = vec![path];
        while let Some(path) = paths.pop() {
            if let Err(failure) = self.run_one(path, tentative, &mut paths, &mut added) {
                if tentative {
                    self.take_back(&added);
                }
                return Err(failure);
            }
        }
        Ok(added)
    }

    fn take_back(&mut self, added: &[u64]) {
        added.iter().for_each(|address| {
            self.steps.remove(address);
        });
        let Self { steps, jumps, .. } = self;
        jumps.retain(|next, _| {
            steps.range(..next).next_back().is_some_and(|(at, step)| at + u64::from(step.length) == *next)
        });
    }

    /// Follows `path` up to where it ends, and adds what branches off to `paths`.
    fn run_one(
        &mut self,
        path: Path,
        tentative: bool,
        paths: &mut Vec<Path>,
        added: &mut Vec<u64>,
    ) -> Result<(), Failure> {
        let Path { mut address, mut state, mut call, mut popped } = path;
        let blame = |call: Option<u64>| call.map_or(Failure::Unsupported, Failure::After);
        let Some(bytes) = self.known.code.at(address) else { return Err(blame(call)) };
        let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        loop {
            if address != self.start && self.known.starts.contains(&address) {
                // Another function follows. Execution goes on there only where it could jump there.
                return self.branch(Path { address, state, call, popped }, paths);
            }
            match self.steps.get_mut(&address) {
                Some(known) if tentative && !known.state.has_same_frame(&state) => return Err(blame(call)),
                Some(known) => {
                    self.joins += 1;
                    if !known.state.meet(&state) {
                        return Ok(());
                    }
                    state = known.state;
                }
                None => {}
            }
            if self.steps.len() >= INSTRUCTIONS_MOST || !decoder.can_decode() {
                return Err(blame(call));
            }
            decoder.decode_out(&mut instruction);
            let before = state;
            popped |= matches!(instruction.mnemonic(), Mnemonic::Pop | Mnemonic::Leave);
            let flow = effect::apply(&instruction, &mut state);
            let next = instruction.next_ip();
            let is_noreturn_call = match flow {
                Flow::Call(target) => self.is_noreturn_call(address, target, next),
                _ => false,
            };
            let ends = is_noreturn_call || !matches!(flow, Flow::Next | Flow::Branch(_) | Flow::Call(_));
            let step = Step { state: before, length: instruction.len() as u8, ends };
            if self.steps.insert(address, step).is_none() {
                added.push(address);
            }
            match flow {
                Flow::Next => {}
                Flow::Branch(target) => self.branch(Path { address: target, state, call, popped }, paths)?,
                Flow::Jump(target) => {
                    return self.branch(Path { address: target, state, call, popped }, paths);
                }
                Flow::JumpIndirect => {
                    self.leaves |= state.may_return();
                    self.returns |= state.may_return() && popped;
                    self.jumps.insert(next, state);
                    return Ok(());
                }
                Flow::Call(target) => {
                    self.called.extend(target);
                    if is_noreturn_call {
                        return Ok(());
                    }
                    call = Some(address);
                }
                Flow::Return if before.may_return() => {
                    self.joins += 1;
                    self.returns = true;
                    return Ok(());
                }
                Flow::Stop => return Ok(()),
                Flow::Return | Flow::Unsupported => return Err(blame(call)),
            }
            address = next;
        }
    }

    /// Whether the call at `address`, which `next` follows, does not return.
    fn is_noreturn_call(&self, address: u64, target: Option<u64>, next: u64) -> bool {
        if self.noreturn_calls.contains(&address)
            || target.is_some_and(|target| self.known.noreturn.contains(&target))
        {
            return true;
        }
        // Behind a call, the start of a loop is aligned, or another function's.
        let aligned = next.next_multiple_of(ALIGNMENT);
        let may_begin =
            if aligned == next { self.begins_frame(next) } else { self.skip_padding(next) == aligned };
        if !may_begin {
            return false;
        }
        self.is_guess || self.begins_other(aligned) != Begins::Not
    }

    /// Whether the instruction at `address` is one that many functions begin with.
    fn begins_frame(&self, address: u64) -> bool {
        let Some(bytes) = self.known.code.at(address) else { return false };
        let first = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
        matches!(first.mnemonic(), Mnemonic::Push | Mnemonic::Endbr64)
    }

    /// Whether another function begins at `address`.
    fn begins_other(&self, address: u64) -> Begins {
        let begins = self.known.begins.borrow().get(&address).copied();
        begins.unwrap_or_else(|| {
            let begins = match Self::follow_as(self.known, address, true) {
                Some(function) if function.returns && function.begins_by_moving() => Begins::Certainly,
                Some(function) if function.is_likely() => Begins::Possibly,
                _ => Begins::Not,
            };
            self.known.begins.borrow_mut().insert(address, begins);
            begins
        })
    }

    /// Whether this would hardly be understood, were it not a function that is called. What only jumps may be a part of another
    /// function, or compiled Haskell, which nobody calls, and which has a stack of its own.
    pub(crate) fn is_likely(&self) -> bool {
        self.returns || self.is_noreturn() && !self.called.is_empty() && self.begins_by_moving()
    }

    /// Whether the first thing that it does is to move the stack pointer.
    fn begins_by_moving(&self) -> bool {
        self.steps.values().nth(1).is_some_and(|second| second.state.sp() != State::ENTRY.sp())
    }

    /// Whether nothing leads back to the caller.
    pub(crate) fn is_noreturn(&self) -> bool {
        !self.returns && !self.leaves && self.jumps.is_empty()
    }

    /// Takes in a direct jump to where `path` begins.
    fn branch(&mut self, path: Path, paths: &mut Vec<Path>) -> Result<(), Failure> {
        let target = path.address;
        let is_other = self.known.starts.contains(&target) || self.known.code.at(target).is_none();
        if target == self.start || !is_other {
            paths.push(path);
        } else if path.state.may_return() {
            self.called.push(target);
            self.joins += 1;
            self.leaves = true;
            self.returns |= path.popped;
        } else {
            return Err(path.call.map_or(Failure::Unsupported, Failure::After));
        }
        Ok(())
    }

    /// Follows the targets of indirect jumps. They are not looked up: where code lies between parts of the function, or
    /// behind it, that is reached in no other way, it is what such a jump leads to, if it then fits.
    fn follow_tables(&mut self) {
        let Some((mut gap, mut state)) = self.jumps.first_key_value().map(|(gap, state)| (*gap, *state))
        else {
            return;
        };
        loop {
            // The nearest jump before it.
            if let Some((_, jump)) = self.jumps.range(..=gap).next_back() {
                state = *jump;
            }
            let start = self.skip_padding(gap);
            let is_open = !self.steps.contains_key(&start) && !self.known.starts.contains(&start);
            let fits = |function: &mut Self| {
                let path = Path { address: start, state, call: None, popped: true };
                (function.is_guess || function.begins_other(start) != Begins::Certainly)
                    && function.fits(path)
            };
            if is_open && !fits(self) && !self.continues_after(gap) {
                return;
            }
            let Some(next) = self.gap_after(start) else { return };
            if next <= gap {
                return;
            }
            gap = next;
        }
    }

    /// Follows `path` if all that it leads to fits.
    fn fits(&mut self, path: Path) -> bool {
        let mut blamed = Vec::new();
        for _ in 0..RESTARTS_MOST {
            let joins = self.joins;
            match self.run(path, true) {
                Ok(_) if self.joins > joins => return true,
                Ok(added) => {
                    self.take_back(&added);
                    break;
                }
                Err(Failure::After(call)) if self.noreturn_calls.insert(call) => blamed.push(call),
                Err(_) => break,
            }
        }
        blamed.iter().for_each(|call| {
            self.noreturn_calls.remove(call);
        });
        false
    }

    fn continues_after(&self, address: u64) -> bool {
        self.steps.range(address..).next().is_some()
    }

    /// The end of the first instruction from `address` on after which the function has a gap.
    fn gap_after(&self, address: u64) -> Option<u64> {
        let mut steps = self.steps.range(address..);
        let (at, step) = steps.next()?;
        let mut end = at + u64::from(step.length);
        let mut ends = step.ends;
        for (at, step) in steps {
            if *at > end && ends {
                break;
            }
            (end, ends) = (at + u64::from(step.length), step.ends);
        }
        Some(end)
    }

    fn skip_padding(&self, address: u64) -> u64 {
        skip_padding(self.known.code, address)
    }
}

/// The first instruction from `address` on that is not there for alignment.
pub(crate) fn skip_padding(code: &Code, address: u64) -> u64 {
    let Some(bytes) = code.at(address) else { return address };
    let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    loop {
        let at = decoder.ip();
        let is_zero = usize::try_from(at - address).is_ok_and(|at| bytes.get(at..at + 2) == Some(&[0, 0]));
        if !decoder.can_decode() {
            return at;
        }
        decoder.decode_out(&mut instruction);
        let is_padding = match instruction.mnemonic() {
            Mnemonic::Nop | Mnemonic::Int3 => true,
            // As assemblers pad: `xchg ax, ax` and `lea rsi, [rsi]`.
            Mnemonic::Xchg => instruction.op0_register() == instruction.op1_register(),
            Mnemonic::Lea => {
                instruction.memory_base() == instruction.op0_register()
                    && instruction.memory_displacement64() == 0
                    && instruction.memory_index() == iced_x86::Register::None
            }
            _ => is_zero,
        };
        if !is_padding {
            return at;
        }
    }
}
