//! Converts perf's register numbers (asm/perf_regs.h) to the registers of a walk.
//!
//! Copied stacks can be walked only on the architecture they were recorded on; each architecture has a file of the same form.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{ARCH, MASK, registers};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{ARCH, MASK, registers};
