//! Copies a thread's registers and stack for unwinding elsewhere: the words that unwinding needs, and zeros for all
//! others.
//!
//! Unwinding needs the addresses that functions return to and where their frames are: code addresses, and addresses of
//! the stack itself. Everything else is data of the program and must not leave the process, except for registers that
//! the rule of the interrupted instruction uses. Generated code cannot be recognised by its address; there a word of a
//! frame record is copied if it points after a call, or if a walk would accept it (`unwind::Jumps`), as is the program
//! counter in a signal frame.

use interpreter::regions::{self, Region};
use platform::bounds::Bounds;
use platform::clock;
use shm_format::{CopiedWord, CopyEnd, CopyHead, CopyWriter, Loss, RecordKind, StackHead};
use unwind::{Jumps, Memory, Modules, Registers};

use crate::arch;
use crate::context::Context;
use crate::outcome::{Missed, Outcome};
use crate::recording::Recording;
use crate::sample::known_bounds;
use crate::slot::Slot;
use crate::snapshot::{self, Pinned};
use crate::stack::Stack;
use crate::unwinding::Unwind;

/// Size of a word in bytes.
const WORD: u64 = 8;
/// Records of a thread between two searches for generated code, until some is found.
const LOOK_EVERY: u64 = 16;
/// Pages that may be probed: with generated code, many words merely look like return addresses.
const PROBES: u32 = 1024;
/// Range of possible code addresses.
const CODE: core::ops::Range<u64> = 0x1_0000..1 << 48;

/// The stack range that a walk's frames cover.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    low: u64,
    high: u64,
}

impl Extent {
    /// That of the slot's last walk. The caller must be inside its nesting guard.
    pub(crate) fn of_walk(slot: &Slot) -> Self {
        // SAFETY: the caller's guard makes this the only use of the stack cache.
        let stack_cache = unsafe { &*slot.stack_cache() };
        let all = Self { low: u64::MAX, high: 0 };
        stack_cache
            .stack_pointers()
            .fold(all, |Self { low, high }, sp| Self { low: low.min(sp), high: high.max(sp) })
    }
}

/// The range to copy, and how it is read.
struct Reach<'p> {
    /// Address of the first word.
    low: u64,
    /// End of the requested range.
    until: u64,
    /// Base of the stack, if known.
    base: Option<u64>,
    memory: Stack<'p>,
}

impl<'p> Reach<'p> {
    /// The caller is inside the slot's nesting guard.
    fn new(slot: &'p Slot, context: Context<'_>, limit: u64) -> Self {
        let known = known_bounds(slot, context);
        let sp = context.stack_pointer();
        let base = (known != Bounds::NONE).then_some(known.high);
        let low = context.lowest_in_use().checked_next_multiple_of(WORD).unwrap_or(sp & !(WORD - 1));
        let until = sp.saturating_add(limit).min(base.unwrap_or(u64::MAX)) & !(WORD - 1);
        // SAFETY: the caller's guard makes this the only use of the pages.
        let pages = unsafe { &mut *slot.probed_pages() };
        let memory = Stack::probing(known, sp, PROBES, pages);
        Self { low, until, base, memory }
    }

    /// The range that counts as stack addresses.
    fn stack(&self) -> Bounds {
        Bounds { low: self.low, high: self.base.unwrap_or(self.until) }
    }

    /// Why a copy that reached `until` ends.
    fn end(&self) -> CopyEnd {
        match self.base {
            Some(base) if base - self.until < WORD => CopyEnd::Base,
            _ => CopyEnd::Limit,
        }
    }
}

/// Writes a copy of the interrupted stack. `extent` is given if the walk of the same stack is recorded next. The caller
/// must be inside the slot's nesting guard.
#[inline(never)]
pub(crate) fn record(
    recording: &Recording,
    slot: &Slot,
    context: Context<'_>,
    head: &StackHead,
    extent: Option<Extent>,
) -> Outcome {
    let written = write(recording, slot, context, head, extent);
    if written == Err(Loss::PoolFull) {
        recording.ring();
    }
    written.map_err(Missed::Lost)
}

fn write(
    recording: &Recording,
    slot: &Slot,
    context: Context<'_>,
    head: &StackHead,
    extent: Option<Extent>,
) -> Result<(), Loss> {
    let pc = context.instruction_pointer();
    let mut reach = Reach::new(slot, context, recording.copy_limit);
    let pinned = Pinned::new(&slot.pin);
    let none = Modules::default();
    let modules = pinned.as_ref().map_or(&none, Pinned::modules);
    let regions = pinned.as_ref().map_or(&[][..], Pinned::regions);
    let mut filter = Filter::new(modules, regions, reach.stack(), pc);
    let code_only = recording.unwind == Unwind::CopyCode;
    let head = CopyHead {
        code_only,
        beside: extent.is_some(),
        source: head.source,
        weight: head.weight,
        nonce: head.nonce,
        start: reach.low,
        pc,
        code: generated_code(modules, regions, pc, &mut reach.memory),
    };
    // SAFETY: the caller's guard makes this the only use of the buffer.
    let buffer = unsafe { &mut *slot.copy_buffer() };
    let put = |kind, first, bytes: &[u8]| put(recording, slot, kind, first, bytes);
    let mut writer = CopyWriter::begin(buffer, &head, Registers::COUNT, put)?;
    let computed = unwind::registers_of_cfa(modules, pc);
    let [sp, fp] = write_registers(context, computed, &mut filter, &mut writer)?;
    filter.code_only = code_only;
    filter.has_generated = snapshot::saw_unknown_code()
        || extent.is_some()
        || !regions.is_empty()
        || slot.cursor.sequence().is_multiple_of(LOOK_EVERY);
    let (at, end) = copy(&mut reach, &mut filter, [sp, fp], &mut writer)?;
    let covers = extent.is_some_and(|walked| reach.low <= walked.low && walked.high <= at);
    writer.end(end, covers)
}

/// Writes the registers that unwinding needs, among them those that the CFA is `computed` from. Returns stack pointer and
/// frame pointer. Not inlined: the other registers must not be on the stack while the words are copied.
#[inline(never)]
fn write_registers<F: FnMut(RecordKind, u64, &[u8]) -> Result<(), Loss>>(
    context: Context<'_>,
    computed: u64,
    filter: &mut Filter<'_>,
    writer: &mut CopyWriter<'_, F>,
) -> Result<[u64; 2], Loss> {
    let registers = context.registers();
    for (number, register) in registers.r.into_iter().enumerate() {
        // The frame pointer is always needed. Others may hold counts of words, as in libcrypto's assembly.
        let is_named = register == registers.fp() || computed >> number & 1 != 0;
        let is_needed = register != 0 && is_named;
        match filter.find(register).or(is_needed.then_some(CopiedWord::Other(register))) {
            Some(word) => writer.register(word)?,
            None => writer.no_register()?,
        }
    }
    writer.end_registers()?;
    Ok([registers.sp(), registers.fp()])
}

/// Writes the words of the stack. Returns the end of the copied range, and why it ends there. Not inlined: its locals must
/// not be on the stack while the CFA rule is looked up.
#[inline(never)]
fn copy<F: FnMut(RecordKind, u64, &[u8]) -> Result<(), Loss>>(
    reach: &mut Reach,
    filter: &mut Filter<'_>,
    [sp, fp]: [u64; 2],
    writer: &mut CopyWriter<'_, F>,
) -> Result<(u64, CopyEnd), Loss> {
    let mut at = reach.low;
    // Return addresses may also be here: at a function's first instruction, and where the frame pointer points.
    let likely = [sp, sp.wrapping_add(WORD), fp.wrapping_add(WORD)];
    // The preceding word, if it is a stack address.
    let mut saved_fp = None;
    let mut records = Records::default();
    // Where the last signal frame holds the interrupted program counter; 0 for none.
    let mut interrupted = 0;
    while at < reach.until {
        let known = reach.memory.known_until(at).min(reach.until);
        if known.saturating_sub(at) < WORD {
            return Ok((at, CopyEnd::Unreadable));
        }
        while known - at >= WORD {
            // SAFETY: the eight bytes lie below what is known to be readable from `at` on.
            let word = unsafe { reach.memory.load(at) };
            let mut kept = filter.find(word);
            if filter.has_generated {
                let is_in_record = records.take(at);
                let is_likely = saved_fp.is_some() || is_in_record || likely.contains(&at);
                if kept.is_none() && (is_likely || filter.jumps.is_near(word)) {
                    // What lies below the stack pointer is stale.
                    let fps = if at == sp {
                        Some([fp, fp])
                    } else {
                        saved_fp.map(|saved| [at.wrapping_sub(WORD), saved])
                    };
                    kept = filter.generated(at, fps, word, &mut reach.memory);
                }
                match kept {
                    Some(CopiedWord::Code(_)) => {
                        interrupted = arch::interrupted(at, &mut reach.memory).unwrap_or(interrupted);
                    }
                    None if interrupted == at && CODE.contains(&word) => {
                        kept = Some(generated(word, &mut reach.memory));
                    }
                    _ => {}
                }
            }
            saved_fp = matches!(kept, Some(CopiedWord::Stack(_))).then_some(word);
            if saved_fp.is_some() {
                records.note(at, word);
            }
            match kept {
                Some(CopiedWord::Stack(_)) if filter.code_only => writer.skip(),
                Some(word) => writer.keep(word)?,
                None => writer.skip(),
            }
            at += WORD;
        }
    }
    Ok((at, reach.end()))
}

/// Nearby words that may be return addresses because a stack address points to the word before them: a frame record,
/// whose own frame pointer may be anything, as with compiled Java code.
#[derive(Default)]
struct Records {
    /// One bit per word, by its index modulo [`Records::SPAN`].
    bits: [u64; 8],
}

impl Records {
    /// Bytes of look-ahead.
    const SPAN: u64 = 8 * 64 * WORD;

    /// The word at `at` is the stack address `to`.
    fn note(&mut self, at: u64, to: u64) {
        let slot = to.wrapping_add(WORD);
        let is_ahead = slot > at && slot - at < Self::SPAN && slot.is_multiple_of(WORD);
        if let Some(bits) = self.bits.get_mut(index(slot)).filter(|_| is_ahead) {
            *bits |= bit(slot);
        }
    }

    /// Whether such an address was seen before `at`. Must be called for consecutive words.
    fn take(&mut self, at: u64) -> bool {
        let Some(bits) = self.bits.get_mut(index(at)) else { return false };
        let was_noted = *bits & bit(at) != 0;
        *bits &= !bit(at);
        was_noted
    }
}

/// Index of a word's bit.
fn index(slot: u64) -> usize {
    (slot / WORD / 64 % 8) as usize
}

fn bit(slot: u64) -> u64 {
    1 << (slot / WORD % 64)
}

/// The code around `pc` if that is in no module. If it is not registered code either, the agent is told to rescan its
/// modules.
fn generated_code(
    modules: &Modules<'_>,
    regions: &[Region],
    pc: u64,
    memory: &mut Stack,
) -> Option<[u64; 2]> {
    if modules.find(pc).is_some() {
        return None;
    }
    match regions::find(regions, pc) {
        Some(Region { under: Some(_), .. }) => return None,
        Some(_) => {}
        None => snapshot::note_unknown_code(),
    }
    Some([memory.read(pc.wrapping_sub(WORD))?, memory.read(pc)?])
}

/// Writes one piece.
fn put(recording: &Recording, slot: &Slot, kind: RecordKind, first: u64, bytes: &[u8]) -> Result<(), Loss> {
    let words = bytes.as_chunks().0;
    let mut record = slot.cursor.reserve(&recording.region, kind, 1 + words.len(), clock::now)?;
    record.set(0, first);
    for (at, word) in words.iter().enumerate() {
        record.set(1 + at, u64::from_le_bytes(*word));
    }
    if record.commit().wake {
        recording.ring();
    }
    Ok(())
}

/// Decides which words are copied.
struct Filter<'m> {
    modules: &'m Modules<'m>,
    /// Regions inside modules, which are holes here but not for whoever unwinds the copy.
    regions: &'m [Region],
    stack: Bounds,
    /// The spans of the last addresses looked up: nearly all others lie there, too.
    near: [Span; 2],
    code_only: bool,
    /// Whether the program may have run code outside all modules.
    has_generated: bool,
    jumps: Jumps,
}

/// An address range between two boundaries of modules.
#[derive(Clone, Copy)]
struct Span {
    start: u64,
    len: u64,
    is_code: bool,
}

impl<'m> Filter<'m> {
    fn new(modules: &'m Modules<'m>, regions: &'m [Region], stack: Bounds, pc: u64) -> Self {
        let nothing = Span { start: 0, len: 0, is_code: false };
        let jumps = Jumps::new(modules, pc);
        Self { modules, regions, stack, near: [nothing; 2], code_only: false, has_generated: false, jumps }
    }

    /// Classifies the word; `None` if it is not copied.
    #[inline]
    fn find(&mut self, word: u64) -> Option<CopiedWord> {
        if word.wrapping_sub(self.stack.low) <= self.stack.high.wrapping_sub(self.stack.low) {
            return Some(CopiedWord::Stack(word));
        }
        let address = unwind::strip(word);
        if !CODE.contains(&address) {
            return None;
        }
        // A call may be the last instruction of a module.
        let lookup = address.wrapping_sub(1);
        let is_code = match self.near.iter().find(|span| lookup.wrapping_sub(span.start) < span.len) {
            Some(span) => span.is_code,
            None => self.look_up(lookup),
        };
        is_code.then_some(CopiedWord::Code(address))
    }

    #[inline(never)]
    fn look_up(&mut self, address: u64) -> bool {
        let (mut range, mut is_code) = self.modules.span(address);
        if !is_code && !self.regions.is_empty() {
            is_code = regions::find(self.regions, address).is_some_and(|region| region.under.is_some());
            range = address..address + 1;
        }
        self.near = [Span { start: range.start, len: range.end - range.start, is_code }, self.near[0]];
        is_code
    }

    /// Classifies the word at `at` if it may point into generated code. `fps` are the frame pointers of a frame that
    /// would return there, and of its caller.
    #[cold]
    fn generated(
        &mut self,
        at: u64,
        fps: Option<[u64; 2]>,
        word: u64,
        memory: &mut Stack,
    ) -> Option<CopiedWord> {
        let address = unwind::strip(word);
        if !CODE.contains(&address) {
            return None;
        }
        let (modules, sp) = (self.modules, at.wrapping_add(WORD));
        let is_code = unwind::is_behind_call(address, memory)
            || fps.is_some_and(|[below, fp]| self.jumps.made(modules, below, [address, sp, fp], memory));
        if is_code {
            self.jumps.note(address);
        }
        if is_code && !snapshot::saw_unknown_code() {
            snapshot::note_unknown_code();
        }
        is_code.then(|| generated(address, memory))
    }
}

/// Generated code, with the bytes before it.
fn generated(address: u64, memory: &mut Stack) -> CopiedWord {
    CopiedWord::Generated(address, memory.read(address.wrapping_sub(WORD)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use unwind::Module;

    use super::*;

    unsafe extern "C" fn unwinder<T>(_: *mut T) -> core::ffi::c_int {
        -1
    }

    fn region(start: u64, end: u64, under: Option<Module<'static>>) -> Region {
        Region { id: 1, start, end, unwind: unwinder, data: 0, wants: 0, language: [0; 15], under }
    }

    #[test]
    fn a_hole_that_a_region_has_in_a_module_is_code() {
        let whole = Module { start: 0x1_1000, end: 0x1_4000, ..Module::default() };
        let list = [Module { end: 0x1_2000, ..whole }, Module { start: 0x1_3000, ..whole }];
        let modules = Modules::new(&list, 0).unwrap();
        let regions = [region(0x1_2000, 0x1_3000, Some(whole)), region(0x2_0000, 0x2_1000, None)];
        let mut filter = Filter::new(&modules, &regions, Bounds::NONE, 0x1_1000);
        for _ in 0..3 {
            for word in [0x1_1001, 0x1_2001, 0x1_2fff, 0x1_3001, 0x1_4000] {
                assert_eq!(filter.find(word), Some(CopiedWord::Code(word)), "{word:x}");
            }
            // Generated code is recognised by the preceding call.
            for word in [0x1_1000, 0x1_4001, 0x2_0001] {
                assert_eq!(filter.find(word), None, "{word:x}");
            }
        }
    }

    #[test]
    fn addresses_of_code_and_of_the_stack_are_kept() {
        let list = [(0x1_1000, 0x1_2000), (0x1_5000, 0x1_6000), (0x1_6000, 0x1_7000)]
            .map(|(start, end)| Module { start, end, ..Module::default() });
        let modules = Modules::new(&list, 0).unwrap();
        let mut filter = Filter::new(&modules, &[], Bounds { low: 0x1_8000, high: 0x1_9000 }, 0x1_1000);
        for _ in 0..3 {
            for word in [0, 1, 0x1_1000, 0x1_2001, 0x1_4fff, 0x1_7001, 0x1_7fff, 0x1_9001, 1 << 47, u64::MAX]
            {
                assert_eq!(filter.find(word), None, "{word:x}");
            }
            for word in [0x1_1001, 0x1_1fff, 0x1_2000, 0x1_5001, 0x1_6000, 0x1_6001, 0x1_7000] {
                assert_eq!(filter.find(word), Some(CopiedWord::Code(word)), "{word:x}");
            }
            for word in [0x1_8000, 0x1_8003, 0x1_9000] {
                assert_eq!(filter.find(word), Some(CopiedWord::Stack(word)), "{word:x}");
            }
        }
    }

    #[test]
    fn a_record_is_known_by_the_addresses_that_lead_to_it() {
        let at = 0x7ffd_0000_1008u64;
        for (to, wanted) in [
            (at + 8, true),
            (at + Records::SPAN - 2 * WORD, true),
            (at + Records::SPAN - WORD, false),
            (at - 8, false),
            (at + 9, false),
            (u64::MAX, false),
        ] {
            let mut records = Records::default();
            records.note(at, to);
            let found = (1..2000).map(|word| at + word * WORD).filter(|&slot| records.take(slot));
            assert!(found.eq(wanted.then(|| to + WORD)), "{to:x}");
        }
    }
}
