//! Everything of this crate that differs between architectures. No other file of it tests which one it is built for.
//!
//! The files define the same names: loads that are opaque to the compiler, the system call, the counter, the thread pointer
//! and a thread-local word. No policy here.

/// Defines `$bytes` bytes of zeroed thread-local storage as the symbol `$symbol`. Initial-exec, so that access needs no
/// call: a general-dynamic variable would go through the loader's resolver, which may allocate, and must not in a
/// handler.
#[macro_export]
macro_rules! thread_bytes {
    ($symbol:literal, $bytes:expr) => {
        core::arch::global_asm!(
            ".section .tbss,\"awT\",@nobits",
            concat!(".globl ", $symbol),
            concat!(".hidden ", $symbol),
            concat!(".type ", $symbol, ",@object"),
            concat!(".size ", $symbol, ",{bytes}"),
            ".p2align 3",
            concat!($symbol, ":"),
            ".zero {bytes}",
            ".text",
            bytes = const $bytes,
        );
    };
}

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

// The agent's thread-local word.
thread_bytes!("selfwind_slot", 8);
