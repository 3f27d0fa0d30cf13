//! Infers unwind rows for x86-64 code without call frame information: assembly, and C that was compiled without.
//!
//! Each function is followed from its first instruction, where the stack pointer is known, along all its branches. Per
//! instruction that gives where the canonical frame address and the caller's frame pointer are: relative to the stack or
//! frame pointer, in another register, or in a word of the frame. Where functions begin in a stripped file, which calls do not
//! return and where jump tables lead is inferred, too, and may be wrong. What must never happen here: rules for a function
//! that does not return with the stack pointer where it was, or that modifies it in a way that is not supported. The walker
//! does without them.

mod code;
mod effect;
mod function;
mod functions;
mod state;
#[cfg(test)]
mod tests;

pub use code::Code;
use compilation::InferredRow;
use functions::Functions;

/// Maximum number of bytes of code that are examined.
const CODE_MOST: usize = 64 << 20;

/// The rows of all functions whose use of the stack is understood, by address, without overlaps.
#[must_use]
pub fn infer(code: &Code) -> Vec<InferredRow> {
    let bytes: usize = code.ranges.iter().map(|(_, bytes)| bytes.len()).sum();
    if bytes > CODE_MOST {
        return Vec::new();
    }
    Functions::find(code).into_rows()
}
