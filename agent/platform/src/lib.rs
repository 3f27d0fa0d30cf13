//! What code in a signal handler may use of the machine and the kernel: opaque loads, system calls, the clock, thread-local
//! storage, and memory: for the durable log, and in huge pages.
//!
//! The handler and what reads interpreters' frames stand on it; it knows neither. What must never happen in the handler must
//! not happen here: an allocation, a lock, a wait, a call into a C library, a write to `errno`, a panic, an initialisation on
//! first use. A system call that the program would not make itself is one that its seccomp filter may kill for (`activity`).
#![no_std]
#![warn(missing_docs)]
#![warn(clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_macros))]

pub mod activity;
pub mod arch;
pub mod bounds;
pub mod clock;
pub mod huge_pages;
pub mod log;
pub mod sys;
pub mod thread_pointer;
