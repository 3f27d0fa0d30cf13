//! What one instruction does to a [`State`], and where execution goes on.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

use crate::state::{RBP, RSP, State, Value};

/// Where execution goes on after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Next,
    /// To the address, or on.
    Branch(u64),
    Jump(u64),
    JumpIndirect,
    /// Of a function at this address, if it is known. It may not return.
    Call(Option<u64>),
    Return,
    /// Nowhere.
    Stop,
    /// What the instruction does to the stack pointer is not understood.
    Unsupported,
}

/// Applies `instruction` to `state`.
pub(crate) fn apply(instruction: &Instruction, state: &mut State) -> Flow {
    let flow = flow(instruction);
    match flow {
        Flow::Next => step(instruction, state),
        Flow::Call(_) => {
            state.call();
            flow
        }
        _ => flow,
    }
}

fn flow(instruction: &Instruction) -> Flow {
    let is_near = instruction.op0_kind() == OpKind::NearBranch64;
    let target = instruction.near_branch_target();
    match instruction.mnemonic() {
        Mnemonic::Call if is_near => Flow::Call(Some(target)),
        Mnemonic::Call => Flow::Call(None),
        Mnemonic::Jmp if is_near => Flow::Jump(target),
        Mnemonic::Jmp => Flow::JumpIndirect,
        Mnemonic::Ret if instruction.op_count() == 0 => Flow::Return,
        Mnemonic::Hlt | Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2 | Mnemonic::Int3 => Flow::Stop,
        Mnemonic::INVALID
        | Mnemonic::Ret
        | Mnemonic::Retf
        | Mnemonic::Iret
        | Mnemonic::Iretd
        | Mnemonic::Iretq
        | Mnemonic::Sysret
        | Mnemonic::Sysretq
        | Mnemonic::Sysexit
        | Mnemonic::Sysexitq
        | Mnemonic::Enter
        | Mnemonic::Xbegin => Flow::Unsupported,
        _ if is_near => Flow::Branch(target),
        _ => Flow::Next,
    }
}

fn step(instruction: &Instruction, state: &mut State) -> Flow {
    let before = state.sp();
    match instruction.mnemonic() {
        Mnemonic::Push => push(instruction, state),
        Mnemonic::Pop => pop(instruction, state),
        Mnemonic::Pushfq => lower(state, 8),
        Mnemonic::Popfq => lower(state, -8),
        Mnemonic::Leave => {
            state.set(RSP, state.get(RBP).plus(8));
            state.set(RBP, state.load(state.get(RBP)));
        }
        Mnemonic::Mov => mov(instruction, state),
        Mnemonic::Lea => {
            let value = address(instruction, state);
            write(instruction, state, value);
        }
        Mnemonic::Add | Mnemonic::Sub | Mnemonic::And => arithmetic(instruction, state),
        // Read only, or read and write flags.
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Nop | Mnemonic::Endbr64 | Mnemonic::Bt => {}
        Mnemonic::Xchg => {
            write(instruction, state, Value::Unknown);
            write_register(instruction.op1_register(), state, Value::Unknown);
            forget_stored(instruction, state);
        }
        Mnemonic::Syscall => {
            [0, 1, 11].iter().for_each(|register| state.set(*register, Value::Unknown));
        }
        Mnemonic::Cpuid => [0, 1, 2, 3].iter().for_each(|register| state.set(*register, Value::Unknown)),
        _ => other(instruction, state),
    }
    if state.sp() != before {
        state.forget_popped(before);
    }
    // The return address is no longer on the stack.
    match state.sp() {
        Value::Cfa(offset) if offset > -8 => Flow::Unsupported,
        _ => Flow::Next,
    }
}

/// The number of a general register, and whether this is all of it.
fn general(register: Register) -> Option<(usize, bool)> {
    let number = register as usize;
    let within = |first: Register, last: Register| {
        (first as usize..=last as usize).contains(&number).then(|| number - first as usize)
    };
    let part = || {
        within(Register::EAX, Register::R15D)
            .or_else(|| within(Register::AX, Register::R15W))
            .or_else(|| within(Register::AL, Register::BH).map(|number| number % 4))
            .or_else(|| within(Register::SPL, Register::R15L).map(|number| number + RSP))
    };
    within(Register::RAX, Register::R15).map(|number| (number, true)).or_else(|| Some((part()?, false)))
}

/// The number of a register, if it is a whole general one.
fn whole(register: Register) -> Option<usize> {
    general(register).and_then(|(number, is_whole)| is_whole.then_some(number))
}

fn lower(state: &mut State, bytes: i64) {
    state.set(RSP, state.sp().plus(-bytes));
}

/// Bytes that a push or pop moves.
fn width(instruction: &Instruction) -> i64 {
    match instruction.code() {
        Code::Push_r16
        | Code::Push_rm16
        | Code::Push_imm16
        | Code::Pushw_imm8
        | Code::Pushw_FS
        | Code::Pushw_GS => 2,
        Code::Pop_r16 | Code::Pop_rm16 | Code::Popw_FS | Code::Popw_GS => 2,
        _ => 8,
    }
}

fn push(instruction: &Instruction, state: &mut State) {
    let value = match instruction.op0_kind() {
        OpKind::Register => whole(instruction.op0_register()).map_or(Value::Unknown, |from| state.get(from)),
        _ => Value::Unknown,
    };
    lower(state, width(instruction));
    state.store(state.sp(), value);
}

fn pop(instruction: &Instruction, state: &mut State) {
    let value = state.load(state.sp());
    lower(state, -width(instruction));
    write(instruction, state, value);
}

fn mov(instruction: &Instruction, state: &mut State) {
    let [to, from] = [instruction.op0_register(), instruction.op1_register()].map(whole);
    match (instruction.op0_kind(), instruction.op1_kind()) {
        (OpKind::Register, OpKind::Register) => {
            let value = from.map_or(Value::Unknown, |from| state.get(from));
            write(instruction, state, value);
        }
        (OpKind::Register, OpKind::Memory) if to.is_some() => {
            let value = state.load(address(instruction, state));
            write(instruction, state, value);
        }
        (OpKind::Memory, OpKind::Register) => {
            let value = from.map_or(Value::Unknown, |from| state.get(from));
            state.store(address(instruction, state), value);
        }
        (OpKind::Memory, _) => state.store(address(instruction, state), Value::Unknown),
        _ => write(instruction, state, Value::Unknown),
    }
}

fn arithmetic(instruction: &Instruction, state: &mut State) {
    let constant = match instruction.op1_kind() {
        OpKind::Immediate8to64 | OpKind::Immediate32to64 => Some(instruction.immediate(1) as i64),
        _ => None,
    };
    let to =
        if instruction.op0_kind() == OpKind::Register { whole(instruction.op0_register()) } else { None };
    let (Some(constant), Some(to)) = (constant, to) else { return other(instruction, state) };
    match instruction.mnemonic() {
        Mnemonic::Add => state.set(to, state.get(to).plus(constant)),
        Mnemonic::Sub => state.set(to, state.get(to).plus(constant.wrapping_neg())),
        // Rounds down.
        _ if to == RSP && constant < 0 => state.align(),
        _ => state.set(to, Value::Unknown),
    }
}

/// An instruction of which only the operands that it may write are of interest. Nearly all write the first one alone.
fn other(instruction: &Instruction, state: &mut State) {
    write(instruction, state, Value::Unknown);
    forget_stored(instruction, state);
    match instruction.mnemonic() {
        // Write a second operand, or registers that are not named.
        Mnemonic::Mul | Mnemonic::Imul | Mnemonic::Div | Mnemonic::Idiv | Mnemonic::Cqo | Mnemonic::Cdq => {
            [0, 2].iter().for_each(|register| state.set(*register, Value::Unknown));
        }
        Mnemonic::Xadd | Mnemonic::Mulx => {
            write_register(instruction.op1_register(), state, Value::Unknown);
        }
        Mnemonic::Cmpxchg
        | Mnemonic::Cmpxchg8b
        | Mnemonic::Cmpxchg16b
        | Mnemonic::Rdtsc
        | Mnemonic::Rdtscp => {
            [0, 1, 2].iter().for_each(|register| state.set(*register, Value::Unknown));
        }
        Mnemonic::Xgetbv | Mnemonic::Cdqe | Mnemonic::Cwde | Mnemonic::Lahf => {
            [0, 2].iter().for_each(|register| state.set(*register, Value::Unknown));
        }
        // Strings: rcx, rsi and rdi.
        _ if is_string(instruction) => {
            [0, 1, 6, 7].iter().for_each(|register| state.set(*register, Value::Unknown));
        }
        _ => {}
    }
}

fn is_string(instruction: &Instruction) -> bool {
    let is_string = |kind| {
        matches!(
            kind,
            OpKind::MemorySegRSI
                | OpKind::MemoryESRDI
                | OpKind::MemorySegRDI
                | OpKind::MemorySegESI
                | OpKind::MemoryESEDI
        )
    };
    is_string(instruction.op0_kind()) || is_string(instruction.op1_kind())
}

/// The address of the instruction's memory operand, as far as it is relative to something known.
fn address(instruction: &Instruction, state: &State) -> Value {
    let is_plain =
        instruction.memory_index() == Register::None && instruction.segment_prefix() == Register::None;
    match whole(instruction.memory_base()) {
        Some(base) if is_plain => state.get(base).plus(instruction.memory_displacement64() as i64),
        _ => Value::Unknown,
    }
}

/// Takes in that the first operand is written, if it is a register.
fn write(instruction: &Instruction, state: &mut State, value: Value) {
    if instruction.op0_kind() == OpKind::Register {
        write_register(instruction.op0_register(), state, value);
    }
}

fn write_register(register: Register, state: &mut State, value: Value) {
    if let Some((number, is_whole)) = general(register) {
        state.set(number, if is_whole { value } else { Value::Unknown });
    }
}

/// Takes in that the first operand is written, if it is memory.
fn forget_stored(instruction: &Instruction, state: &mut State) {
    if instruction.op0_kind() == OpKind::Memory {
        state.store(address(instruction, state), Value::Unknown);
    }
}
