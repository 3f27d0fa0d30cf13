//! What a system call filter (seccomp(2), classic BPF) that the program is about to install would do with the calls
//! that no sample can do without, and with those of an agent in the program that comes after an exec.
//!
//! A handler returns by a call of its own, `rt_sigreturn`, and walks with the help of another. A program that has no
//! handlers may forbid both. What must never happen: that a filter is taken for a milder one than the kernel will see.

use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::kernel;

/// Longest filter that the kernel takes (`BPF_MAXINSNS`).
const LONGEST: usize = 4096;
/// Words that a filter may keep.
const WORDS: usize = libc::BPF_MEMWORDS as usize;
/// Size of `struct seccomp_data`, of which only number and architecture are known before a call is made.
const DATA_BYTES: u32 = 64;
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;

/// `AUDIT_ARCH_*` of `linux/audit.h`: 64 bits, little-endian, and the machine.
const ARCHITECTURE: u32 = 0xc000_0000 | unwind::Machine::NATIVE.to_elf() as u32;

/// What an agent may call from its start on.
const OF_AN_AGENT: [libc::c_long; 43] = [
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_munlock,
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_fstat,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_getcwd,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_symlinkat,
    libc::SYS_unlinkat,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_geteuid,
    libc::SYS_prlimit64,
    libc::SYS_prctl,
    libc::SYS_clock_gettime,
    libc::SYS_nanosleep,
    libc::SYS_sched_yield,
    libc::SYS_futex,
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_gettime,
    libc::SYS_timer_delete,
    libc::SYS_getitimer,
    libc::SYS_setitimer,
    libc::SYS_getrandom,
    libc::SYS_process_vm_readv,
];

/// True if signals may be handled under the filter that a `struct sock_fprog` at `address` describes. One that cannot be
/// read, or whose answer depends on more than the call's number, permits nothing.
pub(crate) fn permits_signals(address: usize) -> bool {
    read(address).is_some_and(|program| permits_return(&program))
}

/// Some filter of this process would kill for what an agent calls. The kernel takes the strictest answer of all filters, so
/// each can be judged by itself.
static FORBIDS_AGENTS: AtomicBool = AtomicBool::new(false);

/// Whether all filters that this process has installed permit an agent, and so the evaluation of another filter.
pub(crate) fn permit_agents() -> bool {
    !FORBIDS_AGENTS.load(Ordering::Relaxed)
}

/// Sets what [`permit_agents`] answers.
pub(crate) fn set_permit_agents(permit: bool) {
    FORBIDS_AGENTS.store(!permit, Ordering::Relaxed);
}

/// Adds the filter that is described at `address` (0 for strict mode); the answer is then that of [`permit_agents`].
pub(crate) fn add(address: usize) -> bool {
    set_permit_agents(permit_agents() && address != 0 && permits_agent(address));
    permit_agents()
}

/// True if an agent may start and sample under that filter: nothing that it calls is fatal.
fn permits_agent(address: usize) -> bool {
    read(address).is_some_and(|program| {
        permits_return(&program) && OF_AN_AGENT.iter().all(|&number| is_harmless(&program, number))
    })
}

fn permits_return(program: &[libc::sock_filter]) -> bool {
    matches!(action(program, libc::SYS_rt_sigreturn), Some(libc::SECCOMP_RET_ALLOW | libc::SECCOMP_RET_LOG))
        && is_harmless(program, libc::SYS_rt_sigprocmask)
}

/// True if the call is made or fails: an error is an answer too.
fn is_harmless(program: &[libc::sock_filter], number: libc::c_long) -> bool {
    matches!(
        action(program, number),
        Some(libc::SECCOMP_RET_ALLOW | libc::SECCOMP_RET_LOG | libc::SECCOMP_RET_ERRNO)
    )
}

/// The instructions of the filter that a `struct sock_fprog` at `address` describes.
fn read(address: usize) -> Option<Vec<libc::sock_filter>> {
    const SIZE: usize = size_of::<libc::sock_fprog>();
    let mut described = [0u8; SIZE];
    if !kernel::copy_own(address as u64, &mut described) {
        return None;
    }
    // SAFETY: as many bytes as the structure has; any bytes are a valid one, whose pointer is not followed.
    let described = unsafe { described.as_ptr().cast::<libc::sock_fprog>().read_unaligned() };
    let length = usize::from(described.len);
    if !(1..=LONGEST).contains(&length) {
        return None;
    }
    let mut program = vec![libc::sock_filter { code: 0, jt: 0, jf: 0, k: 0 }; length];
    let bytes = length * size_of::<libc::sock_filter>();
    // SAFETY: the instructions' own memory; any bytes are valid instructions.
    let raw = unsafe { core::slice::from_raw_parts_mut(program.as_mut_ptr().cast::<u8>(), bytes) };
    kernel::copy_own(described.filter as u64, raw).then_some(program)
}

/// What the filter says to the call of that number; none if it asks for more than that, or is none. Jumps lead forward
/// only, so it ends.
fn action(program: &[libc::sock_filter], number: libc::c_long) -> Option<u32> {
    let (mut accumulator, mut index, mut memory) = (0u32, 0u32, [0u32; WORDS]);
    let mut at = 0usize;
    loop {
        let &libc::sock_filter { code, jt, jf, k } = program.get(at)?;
        let code = u32::from(code);
        at += 1;
        let source = if code & libc::BPF_X != 0 { index } else { k };
        match code & 0x07 {
            class @ (libc::BPF_LD | libc::BPF_LDX) => {
                let value = match code & 0xe0 {
                    libc::BPF_IMM => k,
                    libc::BPF_LEN => DATA_BYTES,
                    libc::BPF_MEM => *memory.get(k as usize)?,
                    libc::BPF_ABS if k == NUMBER_AT => number as u32,
                    libc::BPF_ABS if k == ARCHITECTURE_AT => ARCHITECTURE,
                    _ => return None,
                };
                *(if class == libc::BPF_LD { &mut accumulator } else { &mut index }) = value;
            }
            libc::BPF_ST => *memory.get_mut(k as usize)? = accumulator,
            libc::BPF_STX => *memory.get_mut(k as usize)? = index,
            libc::BPF_ALU => accumulator = calculated(code & 0xf0, accumulator, source)?,
            libc::BPF_JMP if code & 0xf0 == libc::BPF_JA => at = at.checked_add(k as usize)?,
            libc::BPF_JMP => {
                let holds = match code & 0xf0 {
                    libc::BPF_JEQ => accumulator == source,
                    libc::BPF_JGT => accumulator > source,
                    libc::BPF_JGE => accumulator >= source,
                    libc::BPF_JSET => accumulator & source != 0,
                    _ => return None,
                };
                at += usize::from(if holds { jt } else { jf });
            }
            libc::BPF_RET => {
                let said = if code & 0x18 == libc::BPF_A { accumulator } else { k };
                return Some(said & libc::SECCOMP_RET_ACTION_FULL);
            }
            _ if code & 0xf8 == libc::BPF_TAX => index = accumulator,
            _ if code & 0xf8 == libc::BPF_TXA => accumulator = index,
            _ => return None,
        }
    }
}

/// The accumulator after an operation; none where the kernel would kill.
fn calculated(operation: u32, left: u32, right: u32) -> Option<u32> {
    Some(match operation {
        libc::BPF_ADD => left.wrapping_add(right),
        libc::BPF_SUB => left.wrapping_sub(right),
        libc::BPF_MUL => left.wrapping_mul(right),
        libc::BPF_DIV => left.checked_div(right)?,
        libc::BPF_AND => left & right,
        libc::BPF_OR => left | right,
        libc::BPF_XOR => left ^ right,
        libc::BPF_LSH => left.checked_shl(right)?,
        libc::BPF_RSH => left.checked_shr(right)?,
        libc::BPF_NEG => left.wrapping_neg(),
        _ => return None,
    })
}
