//! All that differs between architectures. Nothing else in this crate asks which one it is built for.
//!
//! The files are twins, each has the same names: the registers in the kernel's `ucontext`, the shape of its signal frame
//! and the ways in and out of one, a word of thread-local storage, the system call, the clock, and a load that the
//! compiler does not know. Nothing here decides anything.

/// Defines `$bytes` bytes of thread-local storage, zero at first, as the symbol `$symbol`. Initial-exec: they are found without
/// a call. A general-dynamic variable would reach the loader's resolver, which may allocate inside the handler.
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
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

// The calling thread's own word.
thread_bytes!("selfwind_slot", 8);

/// Defines what the kernel calls, `on_own_signal` and `on_guest_signal`, and where handlers return to, `selfwind_restore`
/// and `selfwind_guest_restore`. `$serve` and `$pass` say what runs next; `$begin` readies the program's own handler of the
/// sampling signal; `$return_stack` comes before the return from a handler of the program's.
macro_rules! signal_entries {
    ($serve:path, $begin:path, $pass:path, $return_stack:path) => {
        /// Our own handler, as the kernel calls it.
        ///
        /// # Safety
        /// For the kernel to call, as an SA_SIGINFO handler with every signal blocked.
        #[unsafe(naked)]
        pub unsafe extern "C" fn on_own_signal(
            signal: c_int,
            info: *mut libc::siginfo_t,
            context: *mut c_void,
        ) {
            $crate::arch::own_signal!($serve, $begin)
        }

        /// The program's handlers of other signals, as the kernel calls them.
        ///
        /// # Safety
        /// For the kernel to call. May be called as a function too, by a program that has found it out: it is the handler.
        #[unsafe(naked)]
        pub unsafe extern "C" fn on_guest_signal(
            signal: c_int,
            info: *mut libc::siginfo_t,
            context: *mut c_void,
        ) {
            $crate::arch::guest_signal!($pass)
        }

        $crate::arch::restorers!($return_stack);
    };
}
pub(crate) use signal_entries;
