//! A signal frame in the kernel's format (`struct rt_sigframe` and `sigcontext_64` of x86-64), through which a thread returns.
//!
//! A diverted thread returns to where it was through `rt_sigreturn`, by itself, with all registers and its signal mask, even if the
//! tracer is dead by then.

use nix::libc::user_regs_struct;

/// Bytes before the floating-point state.
const CONTEXT: usize = 304;
/// Offset of `uc_mcontext`, and in it of the pointer to the floating-point state.
const REGISTERS: usize = 40;
const FPSTATE: usize = REGISTERS + 184;
const SIGNAL_MASK: usize = 296;
/// UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS.
const FLAGS: u64 = 7;

/// Offset in the legacy area of the kernel's own `struct _fpx_sw_bytes`.
const SOFTWARE: usize = 464;
const MAGIC_1: u32 = 0x4650_5853;
const MAGIC_2: u32 = 0x4650_5845;
/// Maximum size of the state without AMX, which is in a signal frame only if the program has requested it.
const LARGEST_STATE: usize = 2696;
const AMX: u64 = 0b11 << 17;

/// Kernel-internal results of interrupted system calls: ERESTARTSYS, -NOINTR, -NOHAND, -_RESTARTBLOCK.
const RESTARTS: [i64; 4] = [-512, -513, -514, -516];

/// Maximum size of a frame in bytes.
pub(super) const ROOM: usize = 8192;

/// The frame for `address`, a multiple of 64, that restores `registers`, the extended `state` and the signal `mask`.
pub(super) fn frame(address: u64, registers: &user_regs_struct, state: &[u8], mask: u64) -> Vec<u8> {
    let fpstate = CONTEXT.next_multiple_of(64);
    let mut frame = vec![0u8; fpstate];
    let mut put = |offset: usize, word: u64| frame[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
    let (mut rip, mut rax) = (registers.rip, registers.rax);
    if registers.orig_rax as i64 >= 0 && RESTARTS.contains(&(rax as i64)) {
        // Repeat the call: back over the two bytes of the `syscall` instruction.
        (rip, rax) = (rip - 2, registers.orig_rax);
    }
    put(0, FLAGS);
    let r = registers;
    let words = [
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, rax, r.rcx,
        r.rsp, rip, r.eflags,
    ];
    for (index, word) in words.into_iter().enumerate() {
        put(REGISTERS + 8 * index, word);
    }
    put(REGISTERS + 8 * words.len(), r.cs | r.ss << 48);
    put(FPSTATE, address + fpstate as u64);
    // The kernel rejects an alternate stack of size 0, so the thread keeps its own.
    put(SIGNAL_MASK, mask);
    let size = state.len().min(LARGEST_STATE);
    let mut state = state[..size].to_vec();
    let features = u64::from_le_bytes(state[SOFTWARE..SOFTWARE + 8].try_into().unwrap_or_default()) & !AMX;
    state[SOFTWARE..SOFTWARE + 4].copy_from_slice(&MAGIC_1.to_le_bytes());
    state[SOFTWARE + 4..SOFTWARE + 8].copy_from_slice(&(size as u32 + 4).to_le_bytes());
    state[SOFTWARE + 8..SOFTWARE + 16].copy_from_slice(&features.to_le_bytes());
    state[SOFTWARE + 16..SOFTWARE + 20].copy_from_slice(&(size as u32).to_le_bytes());
    frame.extend(state);
    frame.extend(MAGIC_2.to_le_bytes());
    frame
}
