//! From the numbers that perf has for registers (asm/perf_regs.h) to a walk's registers.
//!
//! Copied stacks are walked by the machine that they are of; the files of the architectures are twins.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{ARCH, MASK, registers};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{ARCH, MASK, registers};
