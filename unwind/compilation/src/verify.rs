//! Checks our reading of `.eh_frame` against gimli, which shares no code with it. For every row of every FDE
//! it checks the compiled table, the full-register decoder, and the on-demand search.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::marker::PhantomData;

use gimli::{BaseAddresses, CieOrFde, EhFrame, EndianSlice, LittleEndian, UnwindSection};

use unwind::cfi;
use unwind::elf_file::ElfFile;
use unwind::{
    Aarch64, Abi, Cfa, FrameRow, Kind, Machine, RegisterRule, ReturnAddress, Rule, SavedFp, Section, Table,
    X86_64,
};

use crate::compile::{CompileError, compile_for};

type Reader<'a> = EndianSlice<'a, LittleEndian>;
type Fde<'a> = gimli::FrameDescriptionEntry<Reader<'a>>;
type GimliRow = gimli::UnwindTableRow<usize, Storage>;
type GimliRule = gimli::RegisterRule<usize>;

/// Storage for deeper nesting than gimli's default.
struct Storage;

impl gimli::UnwindContextStorage<usize> for Storage {
    type Rules = [(gimli::Register, GimliRule); 64];
    type Stack = Box<[GimliRow; 16]>;
}

/// Number of mismatches and refusals described in words; all are counted.
const DESCRIBED: usize = 20;
/// Rows per FDE that are also decoded on demand. Each such decode starts at the beginning of the FDE.
const ON_DEMAND: usize = 16;

/// Result of a verification.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// FDEs that cover any address.
    pub fdes: u64,
    /// Rows of those FDEs, as gimli counts them.
    pub rows: u64,
    /// Rows that the table leaves to the evaluation of all registers.
    pub complex_rows: u64,
    /// FDEs, or parts of FDEs, that another FDE hides from the search.
    pub shadowed: u64,
    /// FDEs that gimli refuses to evaluate completely; the rows before the refusal are compared.
    pub refused: u64,
    /// Rows and uncovered ranges on which the two disagree.
    pub mismatches: u64,
    /// The first mismatches and refusals in words.
    pub described: Vec<String>,
    /// Rows in the table after merging.
    pub table_rows: u64,
    /// Bytes of the table.
    pub table_bytes: u64,
    /// Bytes of the section.
    pub eh_frame_bytes: u64,
}

/// Verifies the sections of `file`. An error says why nothing can be verified.
pub fn verify(file: &ElfFile<'_>) -> Result<Report, CompileError> {
    match file.machine {
        Machine::X86_64 => verify_as::<X86_64>(file),
        Machine::Aarch64 => verify_as::<Aarch64>(file),
    }
}

fn verify_as<A: Abi>(file: &ElfFile<'_>) -> Result<Report, CompileError> {
    let eh_frame = file.eh_frame.ok_or(CompileError::NoFdes)?;
    let bytes = compile_for(A::MACHINE, eh_frame, 0, file.build_id.unwrap_or(&[]))?;
    let mut verifier = Verifier::<A>::new(file, eh_frame);
    match Table::from_bytes(&bytes) {
        Ok(table) if table.machine() == A::MACHINE => verifier.run(&table),
        Ok(table) => verifier.mismatch(|| format!("the compiled table is for {}", table.machine())),
        Err(error) => verifier.mismatch(|| format!("the compiled table is refused: {error}")),
    }
    Ok(verifier.report)
}

struct Verifier<'a, A> {
    section: Section<'a>,
    gimli: EhFrame<Reader<'a>>,
    bases: BaseAddresses,
    eh_frame_hdr: Option<Section<'a>>,
    abi: PhantomData<A>,
    /// Starts of all FDEs, sorted.
    starts: Vec<u64>,
    table_rows: Vec<(u64, Rule)>,
    report: Report,
}

impl<'a, A: Abi> Verifier<'a, A> {
    fn new(file: &ElfFile<'a>, section: Section<'a>) -> Self {
        let mut gimli = EhFrame::new(section.bytes, LittleEndian);
        gimli.set_address_size(8);
        if A::MACHINE == Machine::Aarch64 {
            gimli.set_vendor(gimli::Vendor::AArch64);
        }
        let report = Report { eh_frame_bytes: section.bytes.len() as u64, ..Report::default() };
        let bases = BaseAddresses::default().set_eh_frame(section.address);
        Self {
            section,
            gimli,
            bases,
            eh_frame_hdr: file.eh_frame_hdr,
            abi: PhantomData,
            starts: Vec::new(),
            table_rows: Vec::new(),
            report,
        }
    }

    fn mismatch(&mut self, describe: impl FnOnce() -> String) {
        self.report.mismatches += 1;
        self.describe(describe);
    }

    fn describe(&mut self, describe: impl FnOnce() -> String) {
        if self.report.described.len() < DESCRIBED {
            self.report.described.push(describe());
        }
    }

    fn run(&mut self, table: &Table<'_>) {
        self.table_rows = table.rows().collect();
        self.report.table_rows = self.table_rows.len() as u64;
        self.report.table_bytes = table.as_bytes().len() as u64;
        let fdes = self.fdes();
        self.starts = fdes.iter().map(|fde| fde.initial_address()).collect();
        self.starts.sort_unstable();
        let mut context = gimli::UnwindContext::<usize, Storage>::new_in();
        let mut covered = Vec::with_capacity(fdes.len());
        for fde in &fdes {
            let after = self.starts.partition_point(|&start| start <= fde.initial_address());
            let limit = self.starts.get(after).copied().unwrap_or(u64::MAX);
            covered.push((fde.initial_address(), fde.end_address().min(limit)));
            self.fde(table, fde, limit, &mut context);
        }
        self.uncovered(table, covered);
    }

    /// gimli's FDEs that cover any address; of several with the same start the last one, as in the table.
    fn fdes(&mut self) -> Vec<Fde<'a>> {
        let (section, bases) = (self.gimli, self.bases.clone());
        let mut entries = section.entries(&bases);
        let mut fdes: Vec<Fde<'a>> = Vec::new();
        let mut last_cie = None;
        loop {
            match entries.next() {
                Ok(None) => break,
                Ok(Some(CieOrFde::Cie(_))) => {}
                Ok(Some(CieOrFde::Fde(partial))) => {
                    let parsed = partial.parse(|section, bases, offset| match &last_cie {
                        Some((at, cie)) if *at == offset.0 => Ok(Clone::clone(cie)),
                        _ => {
                            let cie = section.cie_from_offset(bases, offset)?;
                            last_cie = Some((offset.0, cie.clone()));
                            Ok(cie)
                        }
                    });
                    match parsed {
                        Ok(fde) => fdes.push(fde),
                        Err(error) => self.mismatch(|| format!("gimli refuses an FDE: {error}")),
                    }
                }
                Err(error) => {
                    self.mismatch(|| format!("gimli refuses an entry: {error}"));
                    break;
                }
            }
        }
        fdes.retain(|fde| fde.initial_address() < fde.end_address());
        let all = fdes.len();
        fdes.sort_by_key(|fde| fde.initial_address());
        fdes.reverse();
        fdes.dedup_by_key(|fde| fde.initial_address());
        fdes.reverse();
        self.report.shadowed += (all - fdes.len()) as u64;
        fdes
    }

    fn fde(
        &mut self,
        table: &Table<'_>,
        fde: &Fde<'a>,
        limit: u64,
        context: &mut gimli::UnwindContext<usize, Storage>,
    ) {
        self.report.fdes += 1;
        self.report.shadowed += u64::from(fde.end_address() > limit);
        let start = fde.initial_address();
        let Some(ours) = cfi::Fde::<A>::at(&self.section, fde.offset()) else {
            return self.mismatch(|| format!("{start:#x}: FDE refused"));
        };
        if (ours.start, ours.end) != (start, fde.end_address())
            || ours.cie.is_signal_frame() != fde.cie().is_signal_trampoline()
        {
            return self.mismatch(|| format!("{start:#x}: FDE {:#x}..{:#x} differs", ours.start, ours.end));
        }
        // Not without the search table: the linear search is slow and bounded. `cfi_tests` of `unwind` cover it.
        match cfi::find::<A>(&self.section, self.eh_frame_hdr, start) {
            _ if self.eh_frame_hdr.is_none() => {}
            Ok(Some(found)) if (found.start, found.end) == (ours.start, ours.end) => {}
            found => self
                .mismatch(|| format!("{start:#x}: the search finds {:?}", found.map(|f| f.map(|f| f.start)))),
        }
        let mut our_rows = Vec::new();
        let complete = ours.rows(|from, to, row| our_rows.push((from, to, *row))).is_some();
        let stride = our_rows.len() / ON_DEMAND + 1;
        let (section, bases) = (self.gimli, self.bases.clone());
        let mut rows = match fde.rows(&section, &bases, context) {
            Ok(rows) => rows,
            Err(error) => return self.mismatch(|| format!("{start:#x}: gimli refuses the CIE: {error}")),
        };
        let mut count = 0;
        loop {
            let row = match rows.next_row() {
                Ok(Some(row)) => row,
                Ok(None) => break,
                Err(error) => {
                    self.report.rows += count as u64;
                    self.report.refused += 1;
                    return self.describe(|| format!("{start:#x}: gimli refuses a row: {error}"));
                }
            };
            let Some((from, to, our_row)) = our_rows.get(count) else { break };
            if (*from, *to) != (row.start_address(), row.end_address()) || !self.same(&ours, our_row, row) {
                self.mismatch(|| format!("{from:#x}: row {our_row:?}, gimli {row:?}"));
            }
            let end = row.end_address().min(limit).min(fde.end_address());
            if row.start_address() < end {
                self.table_row(table, row, end);
                if count % stride == 0 {
                    self.on_demand(&ours, row);
                }
            }
            count += 1;
        }
        self.report.rows += count as u64;
        if count != our_rows.len() || !complete {
            self.mismatch(|| format!("{start:#x}: {} rows, gimli {count}", our_rows.len()));
        }
    }

    /// Checks that the table has gimli's row from its first to its last address, without a boundary in between.
    fn table_row(&mut self, table: &Table<'_>, row: &GimliRow, end: u64) {
        let start = row.start_address();
        let (first, last) = (table.lookup(start), table.lookup(end - 1));
        let boundary = self.boundary_after(start).is_some_and(|boundary| boundary < end);
        if first != last || boundary || !self.agrees(first, row) {
            self.mismatch(|| format!("{start:#x}..{end:#x}: table {first:?} {last:?}, gimli {row:?}"));
        }
        self.report.complex_rows += u64::from(first.kind() == Kind::Complex);
    }

    fn on_demand(&mut self, ours: &cfi::Fde<'_, A>, row: &GimliRow) {
        let start = row.start_address();
        match ours.rule_at(start) {
            Some(rule) if self.agrees(rule, row) => {}
            rule => self.mismatch(|| format!("{start:#x}: on demand {rule:?}, gimli {row:?}")),
        }
        match ours.row_at(start) {
            Some(our_row) if self.same(ours, &our_row, row) => {}
            our_row => self.mismatch(|| format!("{start:#x}: on demand {our_row:?}, gimli {row:?}")),
        }
    }

    /// The start of the first table row after `address`.
    fn boundary_after(&self, address: u64) -> Option<u64> {
        let next = self.table_rows.partition_point(|row| row.0 <= address);
        self.table_rows.get(next).map(|row| row.0)
    }

    /// Checks that the table covers nothing between functions.
    fn uncovered(&mut self, table: &Table<'_>, mut covered: Vec<(u64, u64)>) {
        covered.sort_unstable();
        let ends = covered.iter().map(|range| range.1);
        let starts = covered.iter().skip(1).map(|range| Some(range.0)).chain([None]);
        for (end, next) in ends.zip(starts) {
            let size = next.map_or(u64::MAX, |next| next - end);
            if size == 0 {
                continue;
            }
            let last = next.map_or(end, |next| next - 1);
            let boundary = self.boundary_after(end).is_some_and(|boundary| boundary < last);
            if table.lookup(end) != Rule::UNCOVERED || table.lookup(last) != Rule::UNCOVERED || boundary {
                self.mismatch(|| format!("{end:#x}: {size} uncovered bytes, table {:?}", table.lookup(end)));
            }
        }
    }

    /// Whether a full row has gimli's CFA and gimli's rule in every column, comparing expressions byte by byte.
    fn same(&self, ours: &cfi::Fde<'_, A>, row: &FrameRow<A>, theirs: &GimliRow) -> bool {
        let cfa = match (row.cfa(), theirs.cfa()) {
            (
                Cfa::Register { register, offset },
                gimli::CfaRule::RegisterAndOffset { register: r, offset: o },
            ) => register == r.0 && i64::from(offset) == *o,
            (Cfa::Expression(position), gimli::CfaRule::Expression(expression)) => {
                ours.expression(position) == self.expression(*expression)
            }
            _ => false,
        };
        cfa && (0..row.columns()).all(|column| {
            let theirs = theirs.register(gimli::Register(column as u16));
            match (row.register_rule(column), theirs) {
                (RegisterRule::Same, None | Some(GimliRule::SameValue)) => true,
                (RegisterRule::Undefined, Some(GimliRule::Undefined)) => true,
                (RegisterRule::AtCfa(ours), Some(GimliRule::Offset(theirs))) => i64::from(ours) == theirs,
                (RegisterRule::CfaPlus(ours), Some(GimliRule::ValOffset(theirs))) => {
                    i64::from(ours) == theirs
                }
                (RegisterRule::Register(ours), Some(GimliRule::Register(theirs))) => ours == theirs.0,
                (RegisterRule::Constant(ours), Some(GimliRule::Constant(theirs))) => {
                    u64::from(ours) == theirs
                }
                (RegisterRule::AtExpression(position), Some(GimliRule::Expression(expression)))
                | (RegisterRule::Expression(position), Some(GimliRule::ValExpression(expression))) => {
                    ours.expression(position) == self.expression(expression)
                }
                _ => false,
            }
        })
    }

    fn expression(&self, expression: gimli::UnwindExpression<usize>) -> Option<&'a [u8]> {
        expression.get(&self.gimli).ok().map(|expression| expression.0.slice())
    }

    /// Whether a packed rule is equivalent to gimli's row, and `Complex` only where it must be.
    fn agrees(&self, rule: Rule, row: &GimliRow) -> bool {
        let column = |number: usize| row.register(gimli::Register(number as u16));
        let same = |rule: Option<GimliRule>| matches!(rule, None | Some(GimliRule::SameValue));
        let pushes = A::MACHINE == Machine::X86_64;
        let return_address = match column(A::RETURN_ADDRESS) {
            Some(GimliRule::Undefined) => return rule.kind() == Kind::Root,
            None | Some(GimliRule::SameValue) if pushes => return rule.kind() == Kind::Root,
            None | Some(GimliRule::SameValue) => Some(ReturnAddress::InRegister),
            Some(GimliRule::Offset(offset)) if !pushes || offset == -8 => {
                i16::try_from(offset).ok().map(ReturnAddress::AtCfa)
            }
            _ => None,
        };
        let return_address = return_address.filter(|_| same(column(A::SP)) && !rule.is_signal_frame());
        let fp = match column(A::FP) {
            None | Some(GimliRule::SameValue) => Some(SavedFp::Same),
            Some(GimliRule::Offset(offset)) => i16::try_from(offset).ok().map(SavedFp::AtCfa),
            Some(GimliRule::Expression(expression)) => match self.operations(expression).as_deref() {
                Some([Op::RegisterOffset(FP_X86_64, offset)]) if pushes => {
                    i16::try_from(*offset).ok().map(SavedFp::AtFp)
                }
                _ => None,
            },
            _ => None,
        };
        let expected = return_address.zip(fp).and_then(|(return_address, fp)| {
            let (kind, offset, addend) = self.expected_cfa(row.cfa())?;
            let rule = Rule::new(kind, i32::try_from(offset).ok()?, i32::try_from(addend).ok()?, fp)?;
            Some(if pushes { rule } else { rule.with_return_address(return_address) })
        });
        match expected {
            Some(expected) => rule == expected,
            None => rule.kind() == Kind::Complex,
        }
    }

    fn expected_cfa(&self, cfa: &gimli::CfaRule<usize>) -> Option<(Kind, i64, i64)> {
        use Op::{Constant, Deref, Plus, PlusConstant, RegisterOffset};
        match cfa {
            gimli::CfaRule::RegisterAndOffset { register, offset } => match usize::from(register.0) {
                number if number == A::SP => Some((Kind::Sp, *offset, 0)),
                number if number == A::FP => Some((Kind::Fp, *offset, 0)),
                _ => None,
            },
            gimli::CfaRule::Expression(_) if A::MACHINE != Machine::X86_64 => None,
            gimli::CfaRule::Expression(expression) => match *self.operations(*expression)?.as_slice() {
                [RegisterOffset(register @ (SP_X86_64 | FP_X86_64), offset), Deref, ref rest @ ..] => {
                    let kind = if register == SP_X86_64 { Kind::SpMemory } else { Kind::FpMemory };
                    let addend = match *rest {
                        [] => 0,
                        [PlusConstant(addend @ 0..128)] => addend as i64,
                        _ => return None,
                    };
                    i16::try_from(offset).ok()?;
                    Some((kind, offset, addend))
                }
                [
                    RegisterOffset(SP_X86_64, 8),
                    RegisterOffset(16, 0),
                    Constant(15),
                    Op::And,
                    Constant(threshold @ 0..16),
                    Op::Ge,
                    Constant(3),
                    Op::Shl,
                    Plus,
                ] => Some((Kind::Plt, 8, threshold as i64)),
                _ => None,
            },
        }
    }

    /// The expression, if it consists of operations that packed rules support.
    fn operations(&self, expression: gimli::UnwindExpression<usize>) -> Option<Vec<Op>> {
        let mut operations = expression.get(&self.gimli).ok()?.operations(gimli::Encoding {
            address_size: 8,
            format: gimli::Format::Dwarf32,
            version: 4,
        });
        let mut found = Vec::new();
        while let Some(operation) = operations.next().ok()? {
            found.push(match operation {
                gimli::Operation::RegisterOffset { register, offset, .. } => {
                    Op::RegisterOffset(register.0, offset)
                }
                gimli::Operation::Deref { size: 8, space: false, .. } => Op::Deref,
                gimli::Operation::PlusConstant { value } => Op::PlusConstant(value),
                gimli::Operation::UnsignedConstant { value } => Op::Constant(value),
                gimli::Operation::And => Op::And,
                gimli::Operation::Ge => Op::Ge,
                gimli::Operation::Shl => Op::Shl,
                gimli::Operation::Plus => Op::Plus,
                _ => return None,
            });
        }
        Some(found)
    }
}

const FP_X86_64: u16 = X86_64::FP as u16;
const SP_X86_64: u16 = X86_64::SP as u16;

#[derive(Clone, Copy)]
enum Op {
    RegisterOffset(u16, i64),
    Deref,
    PlusConstant(u64),
    Constant(u64),
    And,
    Ge,
    Shl,
    Plus,
}
