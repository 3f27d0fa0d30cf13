//! Evaluates a system call filter (seccomp(2), classic BPF) for a call that has not been made yet.
//!
//! Some arguments of the call are known; others are addresses that are not known in advance. Where a branch depends on one of
//! those, both ways are followed, and the worst verdict counts. What must never happen here: a verdict better than the kernel's.

use std::collections::HashSet;

use nix::libc;

/// One instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    code: u16,
    jump_true: u8,
    jump_false: u8,
    operand: u32,
}

impl From<libc::sock_filter> for Instruction {
    fn from(raw: libc::sock_filter) -> Self {
        Self { code: raw.code, jump_true: raw.jt, jump_false: raw.jf, operand: raw.k }
    }
}

/// What a filter does with a call, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// It is made.
    Allowed,
    /// It fails with an error, and nothing else happens.
    Failed,
    /// The process is killed or sent a signal, or a supervisor decides.
    Fatal,
}

/// A call: its number, and its known arguments.
#[derive(Clone, Copy, Debug)]
pub(super) struct SystemCall {
    pub(super) number: libc::c_long,
    pub(super) arguments: [Option<u64>; 6],
}

/// `AUDIT_ARCH_X86_64` of `linux/audit.h`.
const ARCHITECTURE: u32 = 0xc000_003e;
/// Size of `struct seccomp_data`, and where its fields are.
const DATA_BYTES: u32 = 64;
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const ARGUMENTS_AT: u32 = 16;
/// Size of a filter's scratch memory in words.
const WORDS: usize = libc::BPF_MEMWORDS as usize;
/// Maximum number of ways to follow; beyond it the filter counts as undecidable.
const WAYS: usize = 200_000;

/// State of the evaluation; `None` is an unknown value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    at: usize,
    accumulator: Option<u32>,
    index: Option<u32>,
    memory: [Option<u32>; WORDS],
}

/// The result of an instruction.
enum Step {
    Next(State),
    /// Both branches, since the compared value is unknown.
    Fork(State, State),
    Return(Option<u32>),
    /// An invalid instruction.
    Invalid,
}

/// The worst verdict of `program` for `call`.
pub(super) fn verdict(program: &[Instruction], call: &SystemCall) -> Verdict {
    let start = State { at: 0, accumulator: Some(0), index: Some(0), memory: [Some(0); WORDS] };
    let mut open = vec![start];
    let mut seen = HashSet::new();
    let mut worst = Verdict::Allowed;
    while let Some(state) = open.pop() {
        if seen.len() > WAYS {
            return Verdict::Fatal;
        }
        if !seen.insert(state) {
            continue;
        }
        match program.get(state.at).map_or(Step::Invalid, |instruction| step(*instruction, state, call)) {
            Step::Next(next) => open.push(next),
            Step::Fork(one, other) => open.extend([one, other]),
            Step::Return(Some(action)) => worst = worst.max(of_action(action)),
            Step::Return(None) | Step::Invalid => return Verdict::Fatal,
        }
    }
    worst
}

fn of_action(action: u32) -> Verdict {
    match action & libc::SECCOMP_RET_ACTION_FULL {
        libc::SECCOMP_RET_ALLOW | libc::SECCOMP_RET_LOG => Verdict::Allowed,
        libc::SECCOMP_RET_ERRNO => Verdict::Failed,
        _ => Verdict::Fatal,
    }
}

/// The word of `struct seccomp_data` at `offset`.
fn data(call: &SystemCall, offset: u32) -> Option<Option<u32>> {
    if !offset.is_multiple_of(4) || offset >= DATA_BYTES {
        return None;
    }
    let half =
        |argument: u32, shift: u32| call.arguments[argument as usize].map(|value| (value >> shift) as u32);
    Some(match offset.checked_sub(ARGUMENTS_AT) {
        Some(at) => half(at / 8, at % 8 * 8),
        None if offset == NUMBER_AT => Some(call.number as u32),
        None if offset == ARCHITECTURE_AT => Some(ARCHITECTURE),
        // The address of the calling instruction.
        None => None,
    })
}

fn step(instruction: Instruction, state: State, call: &SystemCall) -> Step {
    let Instruction { code, operand, .. } = instruction;
    let code = u32::from(code);
    let next = State { at: state.at + 1, ..state };
    let source = if code & libc::BPF_X != 0 { state.index } else { Some(operand) };
    match code & 0x07 {
        libc::BPF_LD | libc::BPF_LDX => {
            let value = match code & 0xe0 {
                libc::BPF_IMM => Some(Some(operand)),
                libc::BPF_LEN => Some(Some(DATA_BYTES)),
                libc::BPF_MEM => state.memory.get(operand as usize).copied(),
                libc::BPF_ABS => data(call, operand),
                _ => None,
            };
            match value {
                Some(value) if code & 0x07 == libc::BPF_LD => {
                    Step::Next(State { accumulator: value, ..next })
                }
                Some(value) => Step::Next(State { index: value, ..next }),
                None => Step::Invalid,
            }
        }
        libc::BPF_ST | libc::BPF_STX => {
            let value = if code & 0x07 == libc::BPF_ST { state.accumulator } else { state.index };
            let mut next = next;
            match next.memory.get_mut(operand as usize) {
                Some(word) => *word = value,
                None => return Step::Invalid,
            }
            Step::Next(next)
        }
        libc::BPF_ALU => match calculate(code & 0xf0, state.accumulator, source) {
            Some(value) => Step::Next(State { accumulator: value, ..next }),
            None => Step::Invalid,
        },
        libc::BPF_JMP => jump(instruction, state, source),
        libc::BPF_RET => Step::Return(match code & 0x18 {
            libc::BPF_K => Some(operand),
            libc::BPF_A => state.accumulator,
            _ => None,
        }),
        _ => match code & 0xf8 {
            libc::BPF_TAX => Step::Next(State { index: state.accumulator, ..next }),
            libc::BPF_TXA => Step::Next(State { accumulator: state.index, ..next }),
            _ => Step::Invalid,
        },
    }
}

/// The accumulator after an operation; `None` if the operation does not exist, or if it kills, as a division by zero does.
fn calculate(operation: u32, left: Option<u32>, right: Option<u32>) -> Option<Option<u32>> {
    let both = |calculated: fn(u32, u32) -> u32| left.zip(right).map(|(left, right)| calculated(left, right));
    Some(match operation {
        libc::BPF_ADD => both(u32::wrapping_add),
        libc::BPF_SUB => both(u32::wrapping_sub),
        libc::BPF_MUL => both(u32::wrapping_mul),
        libc::BPF_DIV => return left.zip(right).and_then(|(left, right)| left.checked_div(right)).map(Some),
        libc::BPF_AND => both(|left, right| left & right),
        libc::BPF_OR => both(|left, right| left | right),
        libc::BPF_XOR => both(|left, right| left ^ right),
        libc::BPF_LSH => return left.zip(right).and_then(|(left, right)| left.checked_shl(right)).map(Some),
        libc::BPF_RSH => return left.zip(right).and_then(|(left, right)| left.checked_shr(right)).map(Some),
        libc::BPF_NEG => left.map(u32::wrapping_neg),
        _ => return None,
    })
}

fn jump(instruction: Instruction, state: State, source: Option<u32>) -> Step {
    let to = |distance: usize| {
        let mut next = state;
        next.at += 1 + distance;
        next
    };
    let operation = u32::from(instruction.code) & 0xf0;
    if operation == libc::BPF_JA {
        return Step::Next(to(instruction.operand as usize));
    }
    let compared: fn(u32, u32) -> bool = match operation {
        libc::BPF_JEQ => |left, right| left == right,
        libc::BPF_JGT => |left, right| left > right,
        libc::BPF_JGE => |left, right| left >= right,
        libc::BPF_JSET => |left, right| left & right != 0,
        _ => return Step::Invalid,
    };
    let (holds, fails) = (to(instruction.jump_true.into()), to(instruction.jump_false.into()));
    match state.accumulator.zip(source) {
        Some((left, right)) => Step::Next(if compared(left, right) { holds } else { fails }),
        None => Step::Fork(holds, fails),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(code: u32, jumps: (u8, u8), operand: u32) -> Instruction {
        Instruction { code: code as u16, jump_true: jumps.0, jump_false: jumps.1, operand }
    }

    fn load(offset: u32) -> Instruction {
        instruction(libc::BPF_LD | libc::BPF_ABS, (0, 0), offset)
    }

    fn compare(operation: u32, operand: u32, jumps: (u8, u8)) -> Instruction {
        instruction(libc::BPF_JMP | operation, jumps, operand)
    }

    fn give(action: u32) -> Instruction {
        instruction(libc::BPF_RET, (0, 0), action)
    }

    fn call(number: libc::c_long, first: Option<u64>) -> SystemCall {
        SystemCall { number, arguments: [first, None, None, None, None, None] }
    }

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const ERROR: u32 = libc::SECCOMP_RET_ERRNO | 1;

    #[test]
    fn calls_are_told_by_number_and_architecture() {
        let program = [
            load(ARCHITECTURE_AT),
            compare(libc::BPF_JEQ, ARCHITECTURE, (0, 4)),
            load(NUMBER_AT),
            compare(libc::BPF_JEQ, libc::SYS_read as u32, (1, 0)),
            give(ERROR),
            give(ALLOW),
            give(libc::SECCOMP_RET_KILL_PROCESS),
        ];
        assert_eq!(verdict(&program, &call(libc::SYS_read, None)), Verdict::Allowed);
        assert_eq!(verdict(&program, &call(libc::SYS_write, None)), Verdict::Failed);
    }

    /// As container engines forbid new namespaces.
    #[test]
    fn flags_that_are_known_are_tested_and_others_are_feared() {
        let program =
            [load(ARGUMENTS_AT), compare(libc::BPF_JSET, 0x7e02_0000, (0, 1)), give(ERROR), give(ALLOW)];
        let thread = libc::CLONE_VM | libc::CLONE_THREAD;
        assert_eq!(verdict(&program, &call(libc::SYS_clone, Some(thread as u64))), Verdict::Allowed);
        assert_eq!(
            verdict(&program, &call(libc::SYS_clone, Some(libc::CLONE_NEWUSER as u64))),
            Verdict::Failed
        );
        assert_eq!(verdict(&program, &call(libc::SYS_clone, None)), Verdict::Failed);
    }

    #[test]
    fn what_is_calculated_and_kept_is_followed() {
        let program = [
            load(ARGUMENTS_AT),
            instruction(libc::BPF_ALU | libc::BPF_AND, (0, 0), 0xf0),
            instruction(libc::BPF_ST, (0, 0), 3),
            instruction(libc::BPF_LDX | libc::BPF_MEM, (0, 0), 3),
            instruction(libc::BPF_LD | libc::BPF_IMM, (0, 0), 0x10),
            compare(libc::BPF_JEQ | libc::BPF_X, 0, (0, 1)),
            give(ALLOW),
            give(libc::SECCOMP_RET_TRAP),
        ];
        assert_eq!(verdict(&program, &call(libc::SYS_read, Some(0x1f))), Verdict::Allowed);
        assert_eq!(verdict(&program, &call(libc::SYS_read, Some(0x2f))), Verdict::Fatal);
        assert_eq!(verdict(&program, &call(libc::SYS_read, None)), Verdict::Fatal);
    }

    #[test]
    fn what_is_no_filter_is_feared() {
        let zero = instruction(libc::BPF_ALU | libc::BPF_DIV, (0, 0), 0);
        let beyond = instruction(libc::BPF_JMP | libc::BPF_JA, (0, 0), u32::MAX);
        for program in [&[][..], &[load(64)], &[load(2)], &[zero, give(ALLOW)], &[beyond], &[give(0)]] {
            assert_eq!(verdict(program, &call(libc::SYS_read, None)), Verdict::Fatal, "{program:?}");
        }
    }

    /// Ways that fork at many arguments join again, so their number grows with the instructions and not with the combinations.
    #[test]
    fn ways_that_meet_are_followed_once() {
        let mut program = Vec::new();
        for _ in 0..2_000 {
            program.extend([load(ARGUMENTS_AT), compare(libc::BPF_JEQ, 7, (0, 0))]);
        }
        program.push(give(ALLOW));
        assert_eq!(verdict(&program, &call(libc::SYS_read, None)), Verdict::Allowed);
    }
}
