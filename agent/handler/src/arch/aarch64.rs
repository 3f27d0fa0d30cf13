//! aarch64 under Linux (AAPCS64, arch/arm64/kernel/signal.c).

use core::arch::asm;
use core::ffi::c_int;

use unwind::{Memory, Registers};

/// The ABI has no red zone: nothing below the stack pointer is in use.
pub(crate) const RED_ZONE: u64 = 0;
/// Offset of the `ucontext` in the kernel's signal frame: after the `siginfo`.
pub(crate) const CONTEXT_AT: u64 = 128;

/// Where a signal frame whose return address is at `at` holds the interrupted program counter: frames have no return
/// address here.
pub(crate) fn interrupted<M: Memory>(_at: u64, _memory: &mut M) -> Option<u64> {
    None
}

/// Number of callee-saved registers besides the stack pointer, plus the link register.
pub(crate) const PRESERVED: usize = 12;

/// The registers at a function's first instruction, as far as calls preserve them: x19 to x29, and x30, the return
/// address.
pub(crate) fn registers_at_entry(pc: u64, sp: u64, preserved: &[u64; PRESERVED]) -> Registers {
    let mut registers = Registers { pc, ..Registers::default() };
    for (register, value) in registers.r.iter_mut().skip(19).zip(preserved) {
        *register = *value;
    }
    if let Some(register) = registers.r.get_mut(31) {
        *register = sp;
    }
    registers
}

/// The frame pointer among these.
#[inline(always)]
pub(crate) fn frame_pointer_at_entry(preserved: &[u64; PRESERVED]) -> u64 {
    let [.., x29, _] = *preserved;
    x29
}

/// The current registers, as far as calls preserve them.
#[inline(always)]
pub(crate) fn registers_here() -> Registers {
    let mut found = [0u64; PRESERVED + 2];
    // SAFETY: writes the fourteen words of the array only.
    unsafe {
        asm!(
            "stp x19, x20, [{found}]",
            "stp x21, x22, [{found}, 16]",
            "stp x23, x24, [{found}, 32]",
            "stp x25, x26, [{found}, 48]",
            "stp x27, x28, [{found}, 64]",
            "stp x29, x30, [{found}, 80]",
            "mov {word}, sp",
            "str {word}, [{found}, 96]",
            "adr {word}, .",
            "str {word}, [{found}, 104]",
            found = in(reg) found.as_mut_ptr(),
            word = out(reg) _,
            options(nostack, preserves_flags),
        );
    }
    let [preserved @ .., sp, pc] = found;
    registers_at_entry(pc, sp, &preserved)
}

/// The interrupted registers.
#[inline]
pub(crate) fn registers(machine: &libc::mcontext_t) -> Registers {
    let mut registers = Registers { pc: machine.pc, ..Registers::default() };
    let (general, sp) = registers.r.split_at_mut(machine.regs.len());
    general.copy_from_slice(&machine.regs);
    sp.fill(machine.sp);
    registers
}

/// The interrupted stack pointer.
#[inline]
pub(crate) fn stack_pointer(machine: &libc::mcontext_t) -> u64 {
    machine.sp
}

/// The interrupted frame pointer.
#[inline]
pub(crate) fn frame_pointer(machine: &libc::mcontext_t) -> u64 {
    let [.., frame_pointer, _link] = machine.regs;
    frame_pointer
}

/// The interrupted program counter.
#[inline]
pub(crate) fn instruction_pointer(machine: &libc::mcontext_t) -> u64 {
    machine.pc
}

/// Whether the thread has just returned from a system call: on aarch64 the registers do not tell.
pub(crate) fn is_behind_a_call(_: &libc::mcontext_t) -> bool {
    false
}

/// Whether the thread may be about to repeat a system call that waits: not recognised here yet.
pub(crate) fn may_repeat_wait(_: &libc::mcontext_t) -> bool {
    false
}

/// Length of the instruction of a system call.
pub(crate) const CALL_BYTES: u64 = 4;

/// Whether code begins with the instruction of a system call (`svc #0`).
pub(crate) fn is_call(code: u64) -> bool {
    code as u32 == 0xd400_0001
}

/// Has the system call at the program counter return an error instead of being made.
pub(crate) fn end_call(machine: &mut libc::mcontext_t, error: c_int) {
    machine.pc += 4;
    if let Some(result) = machine.regs.first_mut() {
        *result = -i64::from(error) as u64;
    }
}

/// Header of a record of processor state (arch/arm64/include/uapi/asm/sigcontext.h, `_aarch64_ctx`), and of the record
/// that points to further ones (`extra_context`).
#[repr(C)]
#[derive(Clone, Copy)]
struct State {
    magic: u32,
    size: u32,
    more: u64,
    more_bytes: u32,
}

/// Bytes for state records after the registers.
const STATES: usize = 4096;

/// The record that points to further ones, if there is one.
///
/// # Safety
/// `context` must be complete, in the kernel's signal frame or in a copy of it.
unsafe fn extra(context: *mut libc::ucontext_t) -> Option<*mut State> {
    const EXTRA: u32 = 0x4558_5401;
    // SAFETY: the records are the last bytes of the kernel's `ucontext`, and of libc's.
    let first = unsafe { context.add(1).cast::<u8>().sub(STATES) };
    let mut at = 0;
    while at + size_of::<State>() <= STATES {
        // SAFETY: inside the records, which are aligned to 16 bytes.
        let state = unsafe { first.add(at).cast::<State>() };
        // SAFETY: inside the records; every bit pattern is a valid header.
        match unsafe { *state } {
            State { magic: EXTRA, .. } => return Some(state),
            State { magic: 0, .. } => return None,
            // An invalid length ends the search.
            State { size, .. } => at += (size as usize).next_multiple_of(16).max(16),
        }
    }
    None
}

/// End of the kernel's signal frame: after the `ucontext`, the state that does not fit into it, and a frame record.
///
/// # Safety
/// `context` must be in the kernel's signal frame.
pub(crate) unsafe fn frame_end(context: *const libc::ucontext_t) -> u64 {
    const FRAME_RECORD: u64 = 16;
    // SAFETY: the caller promises a complete context.
    let end = unsafe {
        let whole = context.add(1) as u64;
        extra(context.cast_mut())
            .map_or(whole, |state| whole.max((*state).more.wrapping_add(u64::from((*state).more_bytes))))
    };
    end.next_multiple_of(16) + FRAME_RECORD
}

/// Adjusts the pointers in a signal frame that was copied from `distance` bytes below.
///
/// # Safety
/// `context` must be complete and in the copy.
pub(crate) unsafe fn relocate(context: *mut libc::ucontext_t, distance: u64) {
    // SAFETY: the caller promises a complete context.
    unsafe {
        if let Some(state) = extra(context) {
            (*state).more = (*state).more.wrapping_add(distance);
        }
    }
}

/// Makes the handler that is about to run on `frame` return to `restorer`. Returns the frame to pass to the entry code.
/// The return address is in a register here, so the entry code sets it; the lowest bit of the result, clear in any
/// frame's address, tells it to.
///
/// # Safety
/// `frame` must be a signal frame on which a handler is about to run, and `restorer` be `selfwind_guest_restore`.
pub(crate) unsafe fn return_to(frame: u64, _restorer: usize) -> u64 {
    frame | 1
}

/// Copies without `memcpy`, which the compiler would call otherwise.
///
/// # Safety
/// `length` bytes, a multiple of eight, must be readable at `from` and writable at `to`, without overlap.
pub(crate) unsafe fn copy(from: u64, to: u64, length: u64) {
    // SAFETY: the caller promises readable and writable bytes.
    unsafe {
        asm!(
            "2:",
            "cbz {length}, 3f",
            "ldr {word}, [{from}], #8",
            "str {word}, [{to}], #8",
            "sub {length}, {length}, #8",
            "b 2b",
            "3:",
            length = inout(reg) length => _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            word = out(reg) _,
            options(nostack, preserves_flags),
        );
    }
}

// x0 = the new frame, x9 = what to run there; the handler's arguments and the return address are on the stack. Pointers
// into the old frame are adjusted, including the frame record that x29 points to. The lowest bit of the frame says that
// the handler returns through the agent.
macro_rules! switch_frame {
    () => {
        "ldp x10, x1, [sp]
        ldp x2, x30, [sp, #16]
        add sp, sp, #32
        and x11, x0, #~1
        mov x12, sp
        sub x12, x11, x12
        add x1, x1, x12
        add x2, x2, x12
        add x29, x29, x12
        mov sp, x11
        tbz x0, #0, 4f
        adrp x30, selfwind_guest_restore
        add x30, x30, :lo12:selfwind_guest_restore
        4:
        mov x0, x10"
    };
}
pub(crate) use switch_frame;

/// The code of `on_own_signal`.
macro_rules! own_signal {
    ($serve:path, $begin:path) => {
        core::arch::naked_asm!(
            "stp x0, x1, [sp, #-32]!",
            "stp x2, x30, [sp, #16]",
            "bl {serve}",
            "cbnz x0, 2f",
            "ldr x30, [sp, #24]",
            "add sp, sp, #32",
            "ret",
            "2:",
            "mov x9, x1",
            $crate::arch::switch_frame!(),
            // The mask changes in that frame only: another signal may be delivered at once.
            "stp x0, x1, [sp, #-32]!",
            "stp x2, x30, [sp, #16]",
            "mov x1, x2",
            "mov x2, x9",
            "bl {begin}",
            "mov x9, x0",
            "ldp x0, x1, [sp]",
            "ldp x2, x30, [sp, #16]",
            "add sp, sp, #32",
            "br x9",
            serve = sym $serve,
            begin = sym $begin,
        )
    };
}
pub(crate) use own_signal;

/// The code of `on_guest_signal`.
macro_rules! guest_signal {
    ($pass:path) => {
        core::arch::naked_asm!(
            "stp x0, x1, [sp, #-32]!",
            "stp x2, x30, [sp, #16]",
            "mov x1, x2",
            "add x2, sp, #32",
            "bl {pass}",
            "mov x9, x1",
            $crate::arch::switch_frame!(),
            "br x9",
            pass = sym $pass,
        )
    };
}
pub(crate) use guest_signal;

/// The code that handlers return to.
macro_rules! restorers {
    ($return_stack:path) => {
        // Unwinders and debuggers recognise the instructions of the first one.
        core::arch::global_asm!(
            ".text",
            ".p2align 4",
            "nop",
            ".globl selfwind_restore",
            ".hidden selfwind_restore",
            ".type selfwind_restore,@function",
            "selfwind_restore:",
            "mov x8, #139",
            "svc #0",
            ".size selfwind_restore, . - selfwind_restore",
            "nop",
            ".globl selfwind_guest_restore",
            ".hidden selfwind_guest_restore",
            ".type selfwind_guest_restore,@function",
            "selfwind_guest_restore:",
            "add x0, sp, #128",
            "bl {return_stack}",
            "mov x8, #139",
            "svc #0",
            ".size selfwind_guest_restore, . - selfwind_guest_restore",
            return_stack = sym $return_stack,
        );
    };
}
pub(crate) use restorers;
