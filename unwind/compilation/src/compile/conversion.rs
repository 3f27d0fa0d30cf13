//! Converts functions to rows: with the plain interpreter, or with the full one where the plain one gives up.

use core::ops::Range;

use unwind::Rule;
use unwind::cfi::{Fde, Reader};

use super::functions::{Common, Function, Functions};
use super::inferred_row::InferredRow;
use super::plain;
use super::rows::Rows;

/// The rows of `functions`, and between them those that were inferred. Addresses are relative to the start of `span`.
pub(super) fn rows<A: Reader>(
    functions: &Functions<'_, A>,
    inferred: &[InferredRow],
    span: Range<u64>,
) -> Rows {
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
fn push_function<A: Reader>(
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
fn push_any<A: Reader>(
    rows: &mut Rows,
    functions: &Functions<'_, A>,
    function: &Function,
    common: &Common<A>,
    base: u64,
) {
    let (section, Function { start, end, code, .. }) = (functions.section, *function);
    let fde = Fde { start, end, cie: common.cie, code, section };
    let ran = A::rules(&fde, &mut |from, to, rule| {
        if from < to && from < end {
            rows.push(from - base, rule);
        }
        to < end
    });
    if let Err(fault) = ran {
        rows.push(fault - base, Rule::COMPLEX);
    }
}
