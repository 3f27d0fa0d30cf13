//! x86-64.

use unwind::Registers;

/// The machine as uname names it.
pub(crate) const ARCH: &str = "x86_64";

/// perf's numbers in DWARF order: rax rdx rcx rbx rsi rdi rbp rsp r8..r15.
const ORDER: [u64; 16] = [0, 3, 2, 1, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23];
const IP: u64 = 8;
/// The least that a walk needs: rbp, rsp, rip.
pub(crate) const MASK: u64 = 1 << 6 | 1 << 7 | 1 << IP;

/// The registers of a sample; those that it has not are 0.
pub(crate) fn registers(get: impl Fn(u64) -> Option<u64>) -> Option<Registers> {
    let r = ORDER.map(|number| get(number).unwrap_or(0));
    Some(Registers { r, pc: get(IP)? })
}
