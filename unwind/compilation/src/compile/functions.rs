//! The functions of a section in address order, as a search in `.eh_frame_hdr` finds them.

use alloc::vec::Vec;

use unwind::cfi::{self, CfiEntry, Cie, Code, Extent, Reader};
use unwind::{Kind, Rule, SavedFp, Section};

/// Typical section bytes per FDE, for reserving memory once.
const BYTES_PER_FDE: usize = 40;
/// `DW_EH_PE_pcrel | DW_EH_PE_sdata4`, the encoding of nearly every FDE: signed four bytes relative to themselves.
const PCREL_SDATA4: u8 = 0x1b;

/// A parsed CIE and its initial rule.
pub(super) struct Common<A> {
    offset: usize,
    pub(super) cie: Cie<A>,
    /// The initial rule, if it is one for [`super::plain`].
    pub(super) plain: Option<Rule>,
    /// Whether its FDEs have the encoding that compilers and linkers normally emit.
    is_usual: bool,
}

/// Address range of a function and the location of its program.
#[derive(Clone, Copy)]
pub(super) struct Function {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) code: Code,
    pub(super) common: u32,
}

pub(super) struct Functions<'a, A> {
    pub(super) section: Section<'a>,
    pub(super) commons: Vec<Common<A>>,
    /// Indices into `commons`, keyed by offset.
    by_offset: Vec<u32>,
    /// In section order, without empty ones.
    functions: Vec<Function>,
    /// First address of any function.
    pub(super) start: u64,
    /// First address after all functions.
    pub(super) end: u64,
}

impl<'a, A: Reader> Functions<'a, A> {
    pub(super) fn collect(section: Section<'a>) -> Self {
        let functions = Vec::with_capacity(section.bytes.len() / BYTES_PER_FDE);
        let (commons, by_offset) = (Vec::new(), Vec::new());
        let mut found = Self { section, commons, by_offset, functions, start: u64::MAX, end: 0 };
        let mut common = usize::MAX;
        for extent in cfi::entries(section) {
            let CfiEntry::Fde { cie: offset } = extent.entry else { continue };
            // Adjacent FDEs usually share their CIE.
            if found.commons.get(common).is_none_or(|common| common.offset != offset) {
                let Some(index) = found.common(offset) else { continue };
                common = index;
            }
            let Some(function) = found.function(&extent, common) else { continue };
            if function.start < function.end {
                found.start = found.start.min(function.start);
                found.end = found.end.max(function.end);
                found.functions.push(function);
            }
        }
        found
    }

    /// Number of non-empty FDEs.
    pub(super) fn count(&self) -> usize {
        self.functions.len()
    }

    /// The functions sorted by address, without overlaps: a function ends where the next one begins, and of several
    /// with the same start the last counts. Together they span less than 4 GiB.
    pub(super) fn in_order(&self) -> impl Iterator<Item = Function> + '_ {
        // Sorting small keys is faster than sorting whole functions.
        let numbered = self.functions.iter().enumerate();
        let mut order: Vec<u64> =
            numbered.map(|(number, function)| (function.start - self.start) << 32 | number as u64).collect();
        order.sort_unstable();
        let mut order =
            order.into_iter().filter_map(|key| self.functions.get(key as u32 as usize)).peekable();
        core::iter::from_fn(move || {
            loop {
                let function = *order.next()?;
                let Some(next) = order.peek() else { return Some(function) };
                if next.start > function.start {
                    return Some(Function { end: function.end.min(next.start), ..function });
                }
            }
        })
    }

    fn function(&self, extent: &Extent, number: usize) -> Option<Function> {
        let common = self.commons.get(number)?;
        if common.is_usual
            && let Some(function) = self.usual(extent, number as u32)
        {
            return Some(function);
        }
        let fde = A::fde(&self.section, extent, common.cie)?;
        Some(Function { start: fde.start, end: fde.end, code: fde.code, common: number as u32 })
    }

    /// Fast path for the usual FDE encoding: two four-byte numbers, the first relative to itself, then a one-byte
    /// length of the augmentation data.
    #[inline]
    fn usual(&self, extent: &Extent, common: u32) -> Option<Function> {
        let body = self.section.bytes.get(extent.body..extent.end)?;
        let [a, b, c, d, e, f, g, h, augmentation] = *body.first_chunk()?;
        let length = i32::from_le_bytes([e, f, g, h]);
        let code = extent.body + 9 + usize::from(augmentation);
        if length < 0 || augmentation >= 0x80 || code > extent.end {
            return None;
        }
        let field = self.section.address.wrapping_add(extent.body as u64);
        let start = field.wrapping_add(i32::from_le_bytes([a, b, c, d]) as u64);
        let code = Code { start: u32::try_from(code).ok()?, end: u32::try_from(extent.end).ok()? };
        Some(Function { start, end: start.checked_add(length as u64)?, code, common })
    }

    /// The index of the CIE at `offset`, which is parsed at first use.
    fn common(&mut self, offset: usize) -> Option<usize> {
        let offset_of = |number: &u32| self.commons.get(*number as usize).map_or(0, |common| common.offset);
        let at = match self.by_offset.binary_search_by_key(&offset, offset_of) {
            Ok(at) => return self.by_offset.get(at).map(|&number| number as usize),
            Err(at) => at,
        };
        let cie = A::cie(&self.section, offset)?;
        let plain = A::initial_rule(&cie, &self.section).filter(|rule| {
            matches!(rule.kind(), Kind::Sp | Kind::Fp) && !matches!(rule.fp(), SavedFp::AtFp(_))
        });
        let is_usual = cie.pointer_encoding == PCREL_SDATA4 && cie.has_augmentation_data();
        self.by_offset.insert(at, self.commons.len() as u32);
        self.commons.push(Common { offset, cie, plain, is_usual });
        Some(self.commons.len() - 1)
    }
}
