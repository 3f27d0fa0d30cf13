//! Converts functions to rows: with the plain interpreter, or with the full one where the plain one gives up.

use super::functions::{Common, Function, Functions};
use super::plain;
use super::rows::Rows;
use crate::arch::Abi;
use crate::pointer::Bases;
use crate::program::Program;
use crate::rule::Rule;

/// The rows of `functions`; addresses are relative to `base`.
pub(super) fn rows<A: Abi>(functions: &Functions<'_, A>, base: u64) -> Rows {
    let mut rows = Rows::new(functions.section.bytes.len(), functions.end - base);
    let mut end = base;
    for function in functions.in_order() {
        if end != base && function.start > end {
            rows.push(end - base, Rule::UNCOVERED);
        }
        if let Some(common) = functions.commons.get(function.common as usize) {
            push_function(&mut rows, functions, &function, common, base);
        }
        end = function.end;
    }
    rows.push(end - base, Rule::UNCOVERED);
    rows
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
