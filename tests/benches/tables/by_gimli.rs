//! The peer: evaluating the rows of a file with gimli, and making a table of them.

use std::collections::HashMap;
use std::hint::black_box;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EndianSlice, LittleEndian, Register, RegisterRule,
    UnwindContext, UnwindSection, UnwindTableRow,
};
use unwind::{Kind, Rule, SavedFp};

use crate::Input;

const FP: Register = Register(6);
const SP: Register = Register(7);
const RETURN_ADDRESS: Register = Register(16);

type Row = UnwindTableRow<usize>;

/// Evaluates all rows and reads the columns that decide a rule; returns the number of rows.
pub(crate) fn evaluate(input: &Input) -> u64 {
    let mut count = 0;
    each_row(input, |row| {
        black_box((row.start_address(), row.cfa(), row.register(FP), row.register(RETURN_ADDRESS)));
        count += 1;
    });
    count
}

/// Rows in address order, equal neighbours merged, and the distinct rules they use.
pub(crate) fn table(input: &Input) -> (Vec<(u64, u16)>, Vec<Rule>) {
    let (mut rows, mut rules, mut numbers) = (Vec::new(), Vec::new(), HashMap::new());
    each_row(input, |row| {
        let rule = rule(row);
        let number = *numbers.entry(rule).or_insert_with(|| {
            rules.push(rule);
            (rules.len() - 1) as u16
        });
        if rows.last().is_none_or(|&(_, last)| last != number) {
            rows.push((row.start_address(), number));
        }
    });
    rows.sort_by_key(|row| row.0);
    (rows, rules)
}

fn rule(row: &Row) -> Rule {
    if row.register(RETURN_ADDRESS) != Some(RegisterRule::Offset(-8)) || row.register(SP).is_some() {
        return Rule::COMPLEX;
    }
    let fp = match row.register(FP) {
        None | Some(RegisterRule::SameValue) => SavedFp::Same,
        Some(RegisterRule::Offset(offset)) => SavedFp::AtCfa(offset as i16),
        _ => return Rule::COMPLEX,
    };
    let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else { return Rule::COMPLEX };
    let kind = match *register {
        SP => Kind::Sp,
        FP => Kind::Fp,
        _ => return Rule::COMPLEX,
    };
    Rule::new(kind, *offset as i32, 0, fp).unwrap_or(Rule::COMPLEX)
}

/// All rows, the way gimli's documentation shows it: one context for all, the last CIE kept.
fn each_row(input: &Input, mut each: impl FnMut(&Row)) {
    let section = EhFrame::new(&input.bytes, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(input.address);
    let mut context = UnwindContext::new();
    let mut entries = section.entries(&bases);
    let mut last: Option<(
        gimli::EhFrameOffset,
        gimli::CommonInformationEntry<EndianSlice<'_, LittleEndian>>,
    )> = None;
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(|section, bases, offset| match &last {
            Some((at, cie)) if *at == offset => Ok(cie.clone()),
            _ => {
                let cie = section.cie_from_offset(bases, offset)?;
                last = Some((offset, cie.clone()));
                Ok(cie)
            }
        });
        let Ok(fde) = fde else { continue };
        let Ok(mut rows) = fde.rows(&section, &bases, &mut context) else { continue };
        while let Ok(Some(row)) = rows.next_row() {
            each(row);
        }
    }
}
