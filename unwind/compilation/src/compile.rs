//! Compiles `.eh_frame` into a [`Table`](unwind::Table). Allocates, so it must never run in a handler.
//!
//! Runs the program of every FDE once, in address order, and merges adjacent rows with equal rules. An uncovered range
//! between two functions gets a row of its own, however short: alignment padding looks the same as a small function
//! without an FDE. Lookups in the table agree with the search in `.eh_frame_hdr`: of overlapping FDEs the one with the
//! greatest start wins.

mod conversion;
mod functions;
mod inferred_row;
mod plain;
mod rows;

use alloc::vec::Vec;
use core::ops::Range;

use unwind::cfi::Reader;
use unwind::table_layout::{BLOCK_SHIFT, BUILD_ID_MAX, CHECKED_FROM, HEADER, SOURCE_AT, checksum};
use unwind::{Aarch64, Machine, Native, Section, Source, X86_64};

use functions::Functions;
pub use inferred_row::InferredRow;

/// Largest address span that a table can describe.
const SPAN_MAX: u64 = 1 << 32;
/// The block index grows with the span, not with the number of rows: this much span is allowed for any file, plus
/// [`SPAN_PER_FUNCTION`] for each function.
const SPAN_FREE: u64 = 64 << 20;
const SPAN_PER_FUNCTION: u64 = 64 << 10;

/// Why no table was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompileError {
    /// No FDE of the section covers any address.
    NoFdes,
    /// The addresses span more than 4 GiB, or too much for so few functions.
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

/// The table for `eh_frame` of this build's architecture. See [`compile_for`].
pub fn compile(eh_frame: Section<'_>, bias: u64, build_id: &[u8]) -> Result<Vec<u8>, CompileError> {
    // Not via `compile_for`, so that callers of this alone link the code of one architecture only.
    compile_as::<Native>(eh_frame, &[], bias, build_id)
}

/// The table for `eh_frame` of a file for `machine`, whose addresses are its virtual addresses plus `bias` (0 for a
/// file on disk).
///
/// A malformed FDE keeps its rows up to the error; the rest becomes complex, so that all registers are evaluated.
pub fn compile_for(
    machine: Machine,
    eh_frame: Section<'_>,
    bias: u64,
    build_id: &[u8],
) -> Result<Vec<u8>, CompileError> {
    compile_with(machine, Some(eh_frame), &[], bias, build_id)
}

/// Like [`compile_for`], with rows for addresses that no FDE covers, sorted and without overlaps; where one does, it counts.
pub fn compile_with(
    machine: Machine,
    eh_frame: Option<Section<'_>>,
    inferred: &[InferredRow],
    bias: u64,
    build_id: &[u8],
) -> Result<Vec<u8>, CompileError> {
    let eh_frame = eh_frame.unwrap_or(Section { bytes: &[], address: 0 });
    match machine {
        Machine::X86_64 => compile_as::<X86_64>(eh_frame, inferred, bias, build_id),
        Machine::Aarch64 => compile_as::<Aarch64>(eh_frame, inferred, bias, build_id),
    }
}

/// The parts of `within` that no FDE of `eh_frame` covers, by address.
pub fn uncovered(machine: Machine, eh_frame: Option<Section<'_>>, within: Range<u64>) -> Vec<Range<u64>> {
    match (machine, eh_frame) {
        (_, None) => [within].into(),
        (Machine::X86_64, Some(eh_frame)) => uncovered_as::<X86_64>(eh_frame, within),
        (Machine::Aarch64, Some(eh_frame)) => uncovered_as::<Aarch64>(eh_frame, within),
    }
}

fn uncovered_as<A: Reader>(eh_frame: Section<'_>, within: Range<u64>) -> Vec<Range<u64>> {
    let functions = Functions::<A>::collect(eh_frame);
    let mut gaps = Vec::new();
    let mut at = within.start;
    if functions.count() > 0 && functions.end - functions.start < SPAN_MAX {
        for function in functions.in_order() {
            if at < function.start.min(within.end) {
                gaps.push(at..function.start.min(within.end));
            }
            at = at.max(function.end);
        }
    }
    if at < within.end {
        gaps.push(at..within.end);
    }
    gaps
}

fn compile_as<A: Reader>(
    eh_frame: Section<'_>,
    inferred: &[InferredRow],
    bias: u64,
    build_id: &[u8],
) -> Result<Vec<u8>, CompileError> {
    if build_id.len() > BUILD_ID_MAX {
        return Err(CompileError::BuildIdTooLong);
    }
    let functions = Functions::<A>::collect(eh_frame);
    if functions.count() == 0 && inferred.is_empty() {
        return Err(CompileError::NoFdes);
    }
    let (mut start, mut end) = (functions.start, functions.end);
    if let [first, ..] = inferred
        && let [.., last] = inferred
    {
        (start, end) = (start.min(first.start), end.max(last.end));
    }
    let base = start.wrapping_sub(bias) & !((1 << BLOCK_SHIFT) - 1);
    let span = end.wrapping_sub(bias).wrapping_sub(base);
    let count = functions.count() + inferred.len();
    if span >= SPAN_MAX.min(SPAN_FREE + SPAN_PER_FUNCTION * count as u64) {
        return Err(CompileError::TooWide);
    }
    let rows = conversion::rows(&functions, inferred, bias.wrapping_add(base)..end);
    let mut bytes = rows.write(base, &functions, build_id);
    seal(&mut bytes);
    Ok(bytes)
}

/// Records in a compiled table which file it was compiled from.
pub fn set_source(table: &mut [u8], source: &Source) {
    let numbers = [source.device, source.inode, source.size, source.modified_ns];
    for (field, number) in table[SOURCE_AT..HEADER].chunks_mut(8).zip(numbers) {
        field.copy_from_slice(&number.to_le_bytes());
    }
    seal(table);
}

fn seal(table: &mut [u8]) {
    let sum = checksum(&table[CHECKED_FROM..]);
    table[24..32].copy_from_slice(&sum.to_le_bytes());
}
