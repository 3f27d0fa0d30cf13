//! Infers unwind rows for x86-64 code without call frame information: assembly, and C that was compiled without.
//!
//! Each function is followed from its first instruction, where the stack pointer is known, along all its branches. Per
//! instruction that gives where the canonical frame address and the caller's frame pointer are: relative to the stack or
//! frame pointer, in another register, or in a word of the frame. Where functions begin in a stripped file, which calls do not
//! return and where jump tables lead is inferred, too, and may be wrong. What must never happen here: rules for a function
//! that does not return with the stack pointer where it was, or that modifies it in a way that is not supported. The walker
//! does without them.

mod effect;
mod function;
mod functions;
mod state;
#[cfg(test)]
mod tests;

use std::ops::Range;

use unwind::compile::InferredRow;

/// Maximum number of bytes of code that are examined.
const CODE_MOST: usize = 64 << 20;

/// Code to examine. All addresses are virtual addresses of the file.
#[derive(Debug, Default)]
pub struct Code {
    /// Ranges without call frame information: address and contents, by address, without overlaps.
    pub ranges: Vec<(u64, Vec<u8>)>,
    /// Where functions are known to begin: from symbols, and the initialisers.
    pub starts: Vec<u64>,
    /// Where the program begins, which has no caller.
    pub entry: u64,
}

impl Code {
    /// The part of the range that contains `address`, from there on.
    fn at(&self, address: u64) -> Option<&[u8]> {
        let after = self.ranges.partition_point(|(start, _)| *start <= address);
        let (start, bytes) = self.ranges.get(after.checked_sub(1)?)?;
        bytes.get(usize::try_from(address - start).ok()?..).filter(|bytes| !bytes.is_empty())
    }

    fn addresses(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(start, bytes)| *start..start + bytes.len() as u64)
    }
}

/// The rows of all functions whose use of the stack is understood, by address, without overlaps.
#[must_use]
pub fn infer(code: &Code) -> Vec<InferredRow> {
    let bytes: usize = code.ranges.iter().map(|(_, bytes)| bytes.len()).sum();
    if bytes > CODE_MOST {
        return Vec::new();
    }
    functions::Functions::find(code).into_rows()
}
