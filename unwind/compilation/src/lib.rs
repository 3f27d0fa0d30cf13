//! Compiles call frame information to unwind tables, which the walker (the crate `unwind`) looks rows up in.
//!
//! [`compile()`] and its variants read `.eh_frame`. Call frame information in other forms is rewritten as that section first:
//! [`debug_frame`], the table of a Go program ([`go_frame`]), and what a program registers for generated code ([`registered`]).
//! The feature `verify` adds a check against another implementation.
//!
//! The agent uses this crate too, so it needs no standard library. It allocates, so it must never run in a signal handler, and
//! neither the walker nor the handler may depend on it. The bytes that it reads are untrusted: they may be malformed, but must
//! never cause a panic.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod compile;
pub mod debug_frame;
#[cfg(test)]
#[path = "../../src/fixture.rs"]
mod fixture;
pub mod go_frame;
#[cfg(test)]
mod hostile_tests;
pub mod registered;
#[cfg(test)]
mod stack_cache_tests;
#[cfg(test)]
mod table_tests;
#[cfg(feature = "verify")]
pub mod verify;

pub use compile::{CompileError, InferredRow, compile, compile_for, compile_with, set_source, uncovered};
