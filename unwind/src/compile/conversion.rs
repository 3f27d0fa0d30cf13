//! Converts functions to rows: with the plain interpreter, or with the full one where the plain one gives up.

use core::ops::Range;

use super::functions::{Common, Function, Functions};
use super::inferred_row::InferredRow;
use super::plain;
use super::rows::Rows;
use crate::arch::Abi;
use crate::pointer::Bases;
use crate::program::Program;
use crate::rule::Rule;

/// The rows of `functions`, and between them those that were inferred. Addresses are relative to the start of `span`.
pub(super) fn rows<A: Abi>(functions: &Functions<'_, A>, inferred: &[InferredRow], span: Range<u64>) -> Rows {
    let base = span.start;
    let mut rows = Rows::new(functions.section.bytes.len(), span.end - base);
    let (mut rest, mut end) = (inferred, base);
    for function in functions.in_order() {
        rest = push_gap(&mut rows, rest, end..function.start, base);
        if let Some(common) = functions.commons.get(function.common as usize) {
            push_function(&mut rows, functions, &function, common, base);
        }
        end = function.end;
    }
    push_gap(&mut rows, rest, end..span.end, base);
    rows.push(span.end - base, Rule::UNCOVERED);
    rows
}

/// Pushes the inferred rows in a gap between functions; returns those that follow it.
fn push_gap<'r>(
    rows: &mut Rows,
    inferred: &'r [InferredRow],
    gap: Range<u64>,
    base: u64,
) -> &'r [InferredRow] {
    let (before, rest) = inferred.split_at(inferred.partition_point(|row| row.start < gap.end));
    let mut at = gap.start;
    for row in before.iter().filter(|row| gap.start <= row.start && row.end <= gap.end) {
        push_uncovered(rows, at..row.start, base);
        rows.push(row.start - base, row.rule);
        at = row.end;
    }
    push_uncovered(rows, at..gap.end, base);
    rest
}

fn push_uncovered(rows: &mut Rows, range: Range<u64>, base: u64) {
    // What is before the first row is uncovered in any case.
    if range.start < range.end && range.start != base {
        rows.push(range.start - base, Rule::UNCOVERED);
    }
}

/// Pushes the rows of one function.
fn push_function<A: Abi>(
    rows: &mut Rows,
    functions: &Functions<'_, A>,
    function: &Function,
    common: &Common<A>,
    base: u64,
) {
    let bytes = functions.section.bytes;
    let code = bytes.get(function.code.start as usize..function.code.end as usize);
    if let (Some(initial), Some(code)) = (common.plain, code) {
        let (start, end) = (function.start - base, function.end - base);
        let mark = rows.mark();
        if plain::push_rows(rows, &common.cie, initial, code, start, end).is_some() {
            return;
        }
        rows.back_to(mark);
    }
    push_any(rows, functions, function, common, base);
}

/// Pushes the rows of one function with the full interpreter.
fn push_any<A: Abi>(
    rows: &mut Rows,
    functions: &Functions<'_, A>,
    function: &Function,
    common: &Common<A>,
    base: u64,
) {
    let (section, start, end) = (functions.section, function.start, function.end);
    let Some(initial) = common.initial else { return rows.push(start - base, Rule::COMPLEX) };
    let bases = Bases { section: section.address, data: None, function: Some(start) };
    let program = Program { section: section.bytes, cie: &common.cie, bases, code: function.code };
    let signal = common.cie.is_signal_frame();
    let ran = program.rows(initial, start, end, |from, to, row| {
        if from < to && from < end {
            rows.push(from - base, row.rule(section.bytes, signal));
        }
        to < end
    });
    if let Err(fault) = ran {
        rows.push(fault - base, Rule::COMPLEX);
    }
}
