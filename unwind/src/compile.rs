//! Compiles `.eh_frame` into a [`Table`](crate::Table). Allocates: never in a handler.
//!
//! Every FDE's byte code is run once, in address order, and equal neighbouring rows become one. What lies uncovered between two functions
//! has a row of its own, however short it is: alignment cannot be told from a small function without an FDE. What a program
//! counter finds in the table is what the search in `.eh_frame_hdr` would find: of overlapping FDEs the one that starts
//! last.

mod conversion;
mod functions;
mod plain;
mod rows;

use alloc::vec::Vec;

use crate::arch::{Aarch64, Abi, Machine, Native, X86_64};
use crate::section::Section;
use crate::table::{self, BLOCK_SHIFT, BUILD_ID_MAX, CHECKED_FROM, HEADER, SOURCE_AT, Source};
use functions::Functions;

/// Address span that a table can describe.
const SPAN_MAX: u64 = 1 << 32;
/// The block index grows with the span, whatever is in it: this much for any file, and so much more for each function.
const SPAN_FREE: u64 = 64 << 20;
const SPAN_PER_FUNCTION: u64 = 64 << 10;

/// Why there is no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompileError {
    /// The section has no FDE that covers any address.
    NoFdes,
    /// The addresses reach over more than 4 GiB, or over very much for so few functions.
    TooWide,
    /// The build-id is longer than [`BUILD_ID_MAX`].
    BuildIdTooLong,
}

impl core::fmt::Display for CompileError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            CompileError::NoFdes => "no FDEs in .eh_frame",
            CompileError::TooWide => {
                "addresses in .eh_frame span more than 4 GiB, or too much for its few functions"
            }
            CompileError::BuildIdTooLong => "build-id longer than 48 bytes",
        })
    }
}

impl core::error::Error for CompileError {}

/// The table for `eh_frame` of this process's own architecture. See [`compile_for`].
pub fn compile(eh_frame: Section<'_>, bias: u64, build_id: &[u8]) -> Result<Vec<u8>, CompileError> {
    // Not by the machine's number: whoever asks for this alone has no use for the code of others.
    compile_as::<Native>(eh_frame, bias, build_id)
}

/// The table for `eh_frame` of a file for `machine`, whose addresses are `bias` above the virtual addresses (0 for a
/// file).
///
/// A malformed FDE has its rows up to the fault and is complex from there on, so that the exact evaluation has the last word on them.
pub fn compile_for(
    machine: Machine,
    eh_frame: Section<'_>,
    bias: u64,
    build_id: &[u8],
) -> Result<Vec<u8>, CompileError> {
    match machine {
        Machine::X86_64 => compile_as::<X86_64>(eh_frame, bias, build_id),
        Machine::Aarch64 => compile_as::<Aarch64>(eh_frame, bias, build_id),
    }
}

fn compile_as<A: Abi>(eh_frame: Section<'_>, bias: u64, build_id: &[u8]) -> Result<Vec<u8>, CompileError> {
    if build_id.len() > BUILD_ID_MAX {
        return Err(CompileError::BuildIdTooLong);
    }
    let functions = Functions::<A>::collect(eh_frame);
    if functions.count() == 0 {
        return Err(CompileError::NoFdes);
    }
    let base = functions.start.wrapping_sub(bias) & !((1 << BLOCK_SHIFT) - 1);
    let span = functions.end.wrapping_sub(bias).wrapping_sub(base);
    if span >= SPAN_MAX.min(SPAN_FREE + SPAN_PER_FUNCTION * functions.count() as u64) {
        return Err(CompileError::TooWide);
    }
    let rows = conversion::rows(&functions, bias.wrapping_add(base));
    let mut bytes = rows.write(base, &functions, build_id);
    seal(&mut bytes);
    Ok(bytes)
}

/// Notes in a compiled table which file it is about.
pub fn set_source(table: &mut [u8], source: &Source) {
    let numbers = [source.device, source.inode, source.size, source.modified_ns];
    for (place, number) in table[SOURCE_AT..HEADER].chunks_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    seal(table);
}

fn seal(table: &mut [u8]) {
    let sum = table::checksum(&table[CHECKED_FROM..]);
    table[24..32].copy_from_slice(&sum.to_le_bytes());
}
