//! All that differs between architectures. Nothing else in this crate asks which one it is built for.
//!
//! The files are twins, each has the same names: the registers in the kernel's `ucontext`, the shape of its signal frame
//! and the ways in and out of one, a word of thread-local storage, the system call, the clock, and a load that the
//! compiler does not know. Nothing here decides anything.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;
