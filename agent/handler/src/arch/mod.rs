//! Everything of this crate that differs between architectures. No other file of it tests which one it is built for.
//!
//! The files define the same names: the registers in the kernel's `ucontext`, the layout of its signal frame, and the
//! code that enters and leaves one. No policy here.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

/// Defines what the kernel calls, `on_own_signal` and `on_guest_signal`, and what handlers return to,
/// `selfwind_restore` and `selfwind_guest_restore`. `$serve` and `$pass` decide what runs next; `$begin` prepares the
/// program's own handler of the sampling signal; `$return_stack` runs before the return from a handler of the program.
macro_rules! signal_entries {
    ($serve:path, $begin:path, $pass:path, $return_stack:path) => {
        /// The agent's signal handler, called by the kernel.
        ///
        /// # Safety
        /// Only for the kernel to call, as an SA_SIGINFO handler with all signals blocked.
        #[unsafe(naked)]
        pub unsafe extern "C" fn on_own_signal(
            signal: c_int,
            info: *mut libc::siginfo_t,
            context: *mut c_void,
        ) {
            $crate::arch::own_signal!($serve, $begin)
        }

        /// Stands in for the program's handlers of other signals, called by the kernel.
        ///
        /// # Safety
        /// For the kernel to call. A program that obtains its address may also call it as a function: then it runs the
        /// handler.
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
