//! Steps through code without call frame information. The resulting frames are marked, since they can be wrong.

use crate::arch::WORD;
use crate::arch::native::{self, CALL_LENGTH, Call, INSTRUCTION_ALIGNMENT};
use crate::frame::FoundBy;
use crate::memory::Memory;
use crate::module::Module;
use crate::modules::Modules;
use crate::record_chain::RecordChain;
use crate::rule::Rule;
use crate::step::FrameRegisters;

/// Largest distance in bytes from the stack pointer at which a frame record is accepted.
const FRAME_MAX: u64 = 1 << 20;
/// Number of words that a scan examines.
const SCAN_WORDS: u64 = 128;
/// Most words that Haskell code pushes around the call of a C function.
const HASKELL_PUSHES: u64 = 8;
/// Number of frame records examined in search of one that a call created.
const CHAIN_MAX: usize = 1024;
/// Largest span in bytes of a JIT compiler's code (HotSpot's default is 240 MiB, V8's 128 MiB).
pub(crate) const GENERATED_MAX: u64 = 1 << 28;
/// Largest size of a generated function, in bytes.
const FUNCTION_MAX: u64 = 1 << 15;

/// Bytes from the entry point that can belong to the entry stub.
const ENTRY_STUB: u64 = 64;

/// Whether `address`, which no CFI covers, is in the module's entry stub, which has no caller (`_start` of musl and of
/// ld.so). If the entry point has CFI, there is no such stub.
pub(crate) fn is_entry_stub<M: Memory>(
    modules: &Modules<'_>,
    module: &Module<'_>,
    address: u64,
    memory: &mut M,
) -> bool {
    let entry = module.entry;
    let distance = address.wrapping_sub(entry);
    if entry == 0 || distance >= ENTRY_STUB || module.rule_at(entry) != Ok(Rule::UNCOVERED) {
        return false;
    }
    // The first function that the stub calls may directly follow it; that one does have a caller.
    let called =
        (CALL_LENGTH..ENTRY_STUB).step_by(INSTRUCTION_ALIGNMENT).find_map(
            |behind| match native::call_before(entry.checked_add(behind)?, memory) {
                Some(Call::Direct(target)) if modules.find(target).is_some() => Some(target),
                _ => None,
            },
        );
    called.is_none_or(|called| called <= entry || address < called)
}

/// The caller of an instruction that implies where the return address is: in a PLT stub, or in the prologue or epilogue
/// of a function with a frame pointer.
pub(crate) fn stub<M: Memory>(
    modules: &Modules<'_>,
    at: &FrameRegisters,
    memory: &mut M,
    chain: &mut RecordChain,
) -> Option<(FrameRegisters, FoundBy)> {
    let stub = if at.exact { native::stub(at.pc, memory)? } else { return None };
    let pc = match stub.pushed {
        Some(distance) => memory.read(at.sp.checked_add(distance)?)?,
        None => at.link.get()?,
    };
    let pc = native::strip(pc);
    let fp = if stub.fp_on_top { Some(memory.read(at.sp)?) } else { at.fp };
    let caller = FrameRegisters::caller(pc, at.sp.checked_add(stub.cfa)?, fp);
    let found_by = if stub.plt { FoundBy::Cfi } else { FoundBy::FramePointer };
    let is_caller = is_return_address(modules, pc, memory) || chain.holds(modules, at, &caller, memory);
    is_caller.then_some((caller, found_by))
}

impl RecordChain {
    /// Whether `caller`, found by its frame record alone, may have jumped to the code at `at` instead of calling it.
    /// Only generated code does that.
    pub(crate) fn holds<M: Memory>(
        &mut self,
        modules: &Modules<'_>,
        at: &FrameRegisters,
        caller: &FrameRegisters,
        memory: &mut M,
    ) -> bool {
        let may_jump = modules.find(at.lookup()).is_none() && is_near(modules, at, caller.pc);
        if !may_jump || memory.read(caller.pc).is_none() {
            return false;
        }
        // The result holds for all frame records up to `end`.
        if at.fp != Some(self.fp) || self.fp >= self.end {
            memory.distrust();
            let Some(end) = called(modules, caller, memory) else { return false };
            self.end = end;
        }
        self.fp = caller.fp.unwrap_or_default();
        true
    }
}

/// Whether `pc` is close enough to the generated code at `at` to come from the same JIT compiler, and no address of the stack.
fn is_near(modules: &Modules<'_>, at: &FrameRegisters, pc: u64) -> bool {
    let (to_code, to_stack) = (pc.abs_diff(at.pc), pc.abs_diff(at.sp));
    to_code < GENERATED_MAX && (to_stack > FRAME_MAX || to_code < to_stack) && modules.find(pc).is_none()
}

/// The first frame record, starting with that of `at`, that a call created. All before it must be generated code.
fn called<M: Memory>(modules: &Modules<'_>, at: &FrameRegisters, memory: &mut M) -> Option<u64> {
    let (mut below, mut record) = (at.sp, at.fp?);
    for _ in 0..CHAIN_MAX {
        if record.checked_sub(below)? > FRAME_MAX || record % WORD != 0 {
            return None;
        }
        let pc = native::strip(memory.read(record.checked_add(WORD)?)?);
        if is_return_address(modules, pc, memory) {
            return Some(record);
        }
        if !is_near(modules, at, pc) {
            return None;
        }
        (below, record) = (record.checked_add(2 * WORD)?, memory.read(record)?);
    }
    None
}

/// The caller by its frame record: a record above the stack pointer whose return address follows a call, in a module or
/// in generated code (JIT compilers keep frame pointers), or which is part of a [`RecordChain`].
pub(crate) fn frame_pointer<M: Memory>(
    modules: &Modules<'_>,
    at: &FrameRegisters,
    memory: &mut M,
    chain: &mut RecordChain,
) -> Option<FrameRegisters> {
    let record = at.fp?;
    let size = record.checked_sub(at.sp)?;
    if size > FRAME_MAX || record % WORD != 0 {
        return None;
    }
    let fp = memory.read(record)?;
    let pc = native::strip(memory.read(record.checked_add(WORD)?)?);
    let caller = FrameRegisters::caller(pc, record.checked_add(2 * WORD)?, Some(fp));
    let is_caller = is_return_address(modules, pc, memory)
        || ends_record(modules, fp, pc, memory)
        || chain.holds(modules, at, &caller, memory);
    is_caller.then_some(caller)
}

/// The caller of the C function that runs the compiled Haskell code at `at`. That code does not use the C stack, and jumps
/// from function to function; around calls of C functions it pushes a few words.
#[cold]
#[inline(never)]
fn haskell<M: Memory>(modules: &Modules<'_>, at: &FrameRegisters, memory: &mut M) -> Option<FrameRegisters> {
    memory.distrust();
    let lowest = at.sp.checked_add(native::HASKELL_FRAME)?;
    (0..=HASKELL_PUSHES).find_map(|pushed| {
        let slot = lowest.checked_add(pushed * WORD)?;
        let pc = native::strip(memory.read(slot)?);
        modules.find(pc.checked_sub(1)?)?;
        match native::call_before(pc, memory)? {
            Call::Direct(entry) if modules.find(entry).is_some() && native::runs_haskell(entry, memory) => {
                let fp = memory.read(slot - native::HASKELL_SAVED_FP);
                Some(FrameRegisters::caller(pc, slot.checked_add(WORD)?, fp))
            }
            _ => None,
        }
    })
}

/// The caller of code without any rule: by a frame record near the stack pointer; else by recognising the code that
/// ends a thread; else by a frame record on another stack, to which the code has switched. The flag says whether the
/// caller is on the same stack.
pub(crate) fn record<M: Memory>(
    modules: &Modules<'_>,
    at: &FrameRegisters,
    memory: &mut M,
    chain: &mut RecordChain,
) -> Option<(FrameRegisters, bool)> {
    if let Some(caller) = frame_pointer(modules, at, memory, chain).or_else(|| haskell(modules, at, memory)) {
        return Some((caller, true));
    }
    memory.distrust();
    let top = memory.read(at.sp).filter(|_| !at.exact);
    if let Some(pc) = top.filter(|&pc| follows_call(modules, pc, memory) && native::ends_thread(pc, memory)) {
        let sp = at.sp.checked_add(WORD)?;
        return Some((FrameRegisters::caller(pc, sp, at.fp), true));
    }
    let record = at.fp.filter(|record| record % WORD == 0 && *record != 0)?;
    let fp = memory.read(record)?;
    let pc = native::strip(memory.read(record.checked_add(WORD)?)?);
    let sp = record.checked_add(2 * WORD)?;
    // A function without CFI that has overwritten the frame pointer leaves that of a frame already walked.
    let was_walked = (chain.low..at.sp).contains(&record);
    let is_far = !was_walked && (record < at.sp || record - at.sp > FRAME_MAX);
    // With frame pointers in use the next record is further out, or there is none.
    let goes_on = fp == 0 || fp > record;
    (is_far
        && goes_on
        && (ends_record(modules, fp, pc, memory) || returns_to_generated_code(modules, at, pc, memory)))
    .then_some((FrameRegisters::caller(pc, sp, Some(fp)), false))
}

/// Whether the generated code at `at`, to which a call returns, was itself called by generated code at `pc`.
#[cold]
#[inline(never)]
fn returns_to_generated_code<M: Memory>(
    modules: &Modules<'_>,
    at: &FrameRegisters,
    pc: u64,
    memory: &mut M,
) -> bool {
    let is_generated = modules.find(at.lookup()).is_none() && is_near(modules, at, pc);
    !at.exact && is_generated && native::call_before(pc, memory).is_some()
}

/// Whether the generated code at `at`, whose frame pointer is known, runs in the first function of a stack of its own, as in
/// Erlang: the frame record has no frame pointer, and a return address that follows no call.
#[cold]
#[inline(never)]
pub(crate) fn begins_stack<M: Memory>(modules: &Modules<'_>, at: &FrameRegisters, memory: &mut M) -> bool {
    let Some(record) = at.fp.filter(|record| !at.exact && record % WORD == 0) else {
        return false;
    };
    memory.distrust();
    if memory.read(record) != Some(0) {
        return false;
    }
    let pc = record.checked_add(WORD).and_then(|slot| memory.read(slot)).map(native::strip);
    pc.is_some_and(|pc| {
        is_near(modules, at, pc) && memory.read(pc).is_some() && native::call_before(pc, memory).is_none()
    })
}

/// Whether the code at `pc` has no caller: the function that every goroutine returns to, or the one that ends a thread.
pub(crate) fn is_outermost<M: Memory>(at: &FrameRegisters, memory: &mut M) -> bool {
    !at.exact
        && (native::ends_thread(at.pc, memory)
            || (at.fp == Some(0) && native::goroutine_end(at.pc, memory).is_some()))
}

/// Whether the two words of a frame record are plausible: a return address, or Go's `goexit`, which a goroutine's first
/// function is set up to return to.
fn ends_record<M: Memory>(modules: &Modules<'_>, fp: u64, pc: u64, memory: &mut M) -> bool {
    let is_end = |target| modules.find(target).is_some() && modules.find(pc).is_some();
    follows_call(modules, pc, memory) || (fp == 0 && native::goroutine_end(pc, memory).is_some_and(is_end))
}

/// The caller by the first word above the stack pointer that can be a return address.
pub(crate) fn scan<M: Memory>(
    modules: &Modules<'_>,
    at: &FrameRegisters,
    memory: &mut M,
) -> Option<FrameRegisters> {
    memory.distrust();
    let mut slot = at.sp.checked_next_multiple_of(WORD)?;
    if modules.find(at.lookup()).is_none() {
        return scan_generated(modules, at, slot, memory);
    }
    for _ in 0..SCAN_WORDS {
        let pc = native::strip(memory.read(slot)?);
        slot = slot.checked_add(WORD)?;
        if follows_call(modules, pc, memory) {
            return Some(FrameRegisters::caller(pc, slot, at.fp));
        }
    }
    None
}

/// The caller of generated code. Prefers the word from `slot` on that follows a direct call to the closest address
/// below `at`; otherwise takes the first one that follows an indirect call. Frames of generated code contain unused
/// space in which stale return addresses remain.
fn scan_generated<M: Memory>(
    modules: &Modules<'_>,
    at: &FrameRegisters,
    mut slot: u64,
    memory: &mut M,
) -> Option<FrameRegisters> {
    let (mut below, mut nearest, mut direct, mut indirect) = (0, 0, None, None);
    for _ in 0..SCAN_WORDS {
        let Some(word) = memory.read(slot) else { break };
        let pc = native::strip(word);
        slot = slot.checked_add(WORD)?;
        if let Some(call) = call_to(modules, at, pc, memory) {
            // JIT compilers save the caller's frame pointer first, even where they use the register otherwise.
            let is_saved = modules.find(pc - 1).is_none()
                && below % WORD == 0
                && below.checked_sub(slot).is_some_and(|size| size <= FRAME_MAX);
            let caller = FrameRegisters::caller(pc, slot, if is_saved { Some(below) } else { at.fp });
            match call {
                Call::Direct(target) if target > nearest => (nearest, direct) = (target, Some(caller)),
                Call::Direct(_) => {}
                Call::Indirect => indirect = indirect.or(Some(caller)),
            }
        }
        below = word;
    }
    direct.or(indirect)
}

/// The call before `pc`, if it can have led to the generated code at `at`.
fn call_to<M: Memory>(modules: &Modules<'_>, at: &FrameRegisters, pc: u64, memory: &mut M) -> Option<Call> {
    let in_module = modules.find(pc.checked_sub(1)?).is_some();
    if !in_module && !is_near(modules, at, pc) {
        return None;
    }
    match native::call_before(pc, memory)? {
        // A library calls another one through a PLT stub; a library that is in no module looks like generated code.
        Call::Direct(target) if in_module => {
            let leads_out = modules.find(target).is_some() && native::stub(target, memory)?.plt;
            leads_out.then_some(Call::Indirect)
        }
        Call::Direct(target) if at.lookup().wrapping_sub(target) >= FUNCTION_MAX => None,
        call => Some(call),
    }
}

/// Whether `pc` can be a return address: it follows a call, in a module or in generated code.
pub(crate) fn is_return_address<M: Memory>(modules: &Modules<'_>, pc: u64, memory: &mut M) -> bool {
    let generated = modules.find(pc.wrapping_sub(1)).is_none() && native::call_before(pc, memory).is_some();
    generated || follows_call(modules, pc, memory)
}

/// Whether a call may return to `pc`: it is in a module, or follows a call in generated code.
pub(crate) fn may_be_called<M: Memory>(modules: &Modules<'_>, pc: u64, memory: &mut M) -> bool {
    modules.find(pc.wrapping_sub(1)).is_some() || native::call_before(pc, memory).is_some()
}

/// Whether `pc` follows a call in a module, and the call's target, if known, is in a module too.
pub(crate) fn follows_call<M: Memory>(modules: &Modules<'_>, pc: u64, memory: &mut M) -> bool {
    let inside = |address: u64| modules.find(address).is_some();
    // The call may be the last instruction of its module.
    if pc == 0 || !inside(pc - 1) {
        return false;
    }
    match native::call_before(pc, memory) {
        Some(Call::Direct(target)) => inside(target),
        Some(Call::Indirect) => true,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::native::Link;

    /// One frame record at 0x7010 and eight bytes of code before 0x9008.
    struct Record {
        caller: u64,
        code: [u8; 8],
    }

    impl Memory for Record {
        fn read(&mut self, address: u64) -> Option<u64> {
            match address {
                0x7010 => Some(0x7100),
                0x7018 => Some(self.caller),
                0x9000 => Some(u64::from_le_bytes(self.code)),
                _ => None,
            }
        }
    }

    const AT: FrameRegisters =
        FrameRegisters { pc: 0x9900, sp: 0x7000, fp: Some(0x7010), exact: true, link: Link::LOST };
    const CALL_RAX: [u8; 8] = [0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0];
    const NO_CALL: [u8; 8] = [0x90; 8];

    fn by_pointer(code: [u8; 8]) -> Option<u64> {
        let modules = [Module { start: 0x1000, end: 0x2000, ..Module::default() }];
        let modules = Modules::new(&modules, 0)?;
        frame_pointer(&modules, &AT, &mut Record { caller: 0x9008, code }, &mut RecordChain::new(AT.sp))
            .map(|slot| slot.pc)
    }

    #[test]
    fn frame_pointers_lead_through_generated_code() {
        assert_eq!(by_pointer(CALL_RAX), Some(0x9008));
    }

    /// The first frame of a goroutine: its record has no frame pointer, and returns behind the first instruction of
    /// `nop; call; nop`.
    struct Goroutine;

    impl Memory for Goroutine {
        fn read(&mut self, address: u64) -> Option<u64> {
            match address {
                0x7010 => Some(0),
                0x7018 => Some(0x1101),
                // Calls 0x1206.
                0x1100 => Some(u64::from_le_bytes([0x90, 0xe8, 0, 1, 0, 0, 0x90, 0xcc])),
                0x10f9 => Some(u64::from_le_bytes([0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0x90])),
                _ => None,
            }
        }
    }

    #[test]
    fn a_goroutine_has_an_outermost_frame() {
        let modules = [Module { start: 0x1000, end: 0x2000, ..Module::default() }];
        let modules = Modules::new(&modules, 0).unwrap();
        let at = FrameRegisters { pc: 0x1500, exact: false, ..AT };
        let (end, same_stack) = record(&modules, &at, &mut Goroutine, &mut RecordChain::new(AT.sp)).unwrap();
        assert_eq!((end.pc, end.sp, end.fp, same_stack), (0x1101, 0x7020, Some(0), true));
        assert!(is_outermost(&end, &mut Goroutine) && !is_outermost(&at, &mut Goroutine));
        assert!(!is_outermost(&FrameRegisters { fp: Some(0x7000), ..end }, &mut Goroutine));
        // On the scheduler's stack, with the frame pointer still the goroutine's.
        let at = FrameRegisters { sp: 0x9000, ..at };
        let (end, same_stack) = record(&modules, &at, &mut Goroutine, &mut RecordChain::new(0x8000)).unwrap();
        assert_eq!((end.pc, same_stack), (0x1101, false));
        // A stale frame pointer of a frame further in.
        assert_eq!(record(&modules, &at, &mut Goroutine, &mut RecordChain::new(0x7000)), None);
    }

    /// A stack in the heap: records at 0x5000_5000 and, the first of all, at 0x5000_5020, whose return address follows no call.
    const OWN_STACK: [(u64, u64); 4] =
        [(0x5000_5000, 0x5000_5020), (0x5000_5008, 0x9208), (0x5000_5020, 0), (0x5000_5028, 0x9100)];

    #[test]
    fn generated_code_may_have_a_stack_of_its_own() {
        let modules = [Module { start: 0x1000, end: 0x2000, ..Module::default() }];
        let modules = Modules::new(&modules, 0).unwrap();
        let called = FrameRegisters {
            pc: 0x9908,
            sp: 0x7000_0000,
            fp: Some(0x5000_5000),
            exact: false,
            link: Link::LOST,
        };
        let of = |at, stack: &[(u64, u64)]| {
            record(&modules, &at, &mut Jumps(stack), &mut RecordChain::new(0x7000_0000))
        };
        // A C function called on the thread's stack returns to the code; its caller is on the other stack.
        let (caller, same_stack) = of(called, &OWN_STACK).unwrap();
        assert_eq!(
            (caller.pc, caller.sp, caller.fp, same_stack),
            (0x9208, 0x5000_5010, Some(0x5000_5020), false)
        );
        assert_eq!(of(FrameRegisters { exact: true, ..called }, &OWN_STACK), None);
        // No call before the return address, or code of a file: not from there.
        assert_eq!(of(called, &[(0x5000_5000, 0x5000_5020), (0x5000_5008, 0x9108)]), None);
        assert_eq!(of(FrameRegisters { pc: 0x1500, ..called }, &OWN_STACK), None);

        let begins = |at, stack: &[(u64, u64)]| begins_stack(&modules, &at, &mut Jumps(stack));
        assert!(begins(caller, &OWN_STACK));
        assert!(!begins(FrameRegisters { exact: true, ..caller }, &OWN_STACK));
        assert!(!begins(FrameRegisters { fp: Some(0x5000_5000), ..caller }, &OWN_STACK));
        // Behind a call it is a caller, and elsewhere it is no code.
        assert!(!begins(caller, &[(0x5000_5020, 0), (0x5000_5028, 0x9208)]));
        assert!(!begins(caller, &[(0x5000_5020, 0), (0x5000_5028, 0x6000_0000)]));
    }

    /// A stack that ends at 0x7000, with other memory above it.
    #[derive(Default)]
    struct Ended {
        distrusted: bool,
    }

    impl Memory for Ended {
        fn read(&mut self, address: u64) -> Option<u64> {
            assert!(self.distrusted || address < 0x7000, "{address:x} is read as if it were known");
            None
        }

        fn distrust(&mut self) {
            self.distrusted = true;
        }
    }

    #[test]
    fn nothing_beyond_a_stack_counts_as_readable() {
        let modules = [Module { start: 0x1000, end: 0x2000, ..Module::default() }];
        let modules = Modules::new(&modules, 0).unwrap();
        for exact in [false, true] {
            let at = FrameRegisters { pc: 0x1500, sp: 0x7000, fp: Some(0), exact, ..AT };
            assert_eq!(record(&modules, &at, &mut Ended::default(), &mut RecordChain::new(AT.sp)), None);
            assert_eq!(scan(&modules, &at, &mut Ended::default()), None);
        }
    }

    #[test]
    fn a_return_address_follows_a_call() {
        assert_eq!(by_pointer(NO_CALL), None);
    }

    /// Generated code with calls only before 0x1308 and 0x9208 (indirect), before 0x1208 (to 0x1300), 0x9308 (to
    /// 0x9380), 0x9408 (to 0x9980) and 0x9688 (to 0x98e0); and some words of the stack.
    struct Jumps<'a>(&'a [(u64, u64)]);

    impl Memory for Jumps<'_> {
        fn read(&mut self, address: u64) -> Option<u64> {
            let code = |address| match address {
                0x9200 | 0x1300 => Some(u64::from_le_bytes(CALL_RAX)),
                0x1200 => Some(u64::from_le_bytes([0x90, 0x90, 0x90, 0xe8, 0xf8, 0, 0, 0])),
                0x9300 => Some(u64::from_le_bytes([0x90, 0x90, 0x90, 0xe8, 0x78, 0, 0, 0])),
                0x9400 => Some(u64::from_le_bytes([0x90, 0x90, 0x90, 0xe8, 0x78, 5, 0, 0])),
                0x9680 => Some(u64::from_le_bytes([0x90, 0x90, 0x90, 0xe8, 0x58, 2, 0, 0])),
                0x9000..0xa000 | 0x4000_9000..0x4000_a000 => Some(u64::from_le_bytes(NO_CALL)),
                _ => None,
            };
            self.0
                .iter()
                .find(|(at, _)| *at == address)
                .map_or_else(|| code(address), |(_, word)| Some(*word))
        }
    }

    /// The callers found by following frame pointers from generated code.
    fn jumped(at: FrameRegisters, stack: &[(u64, u64)]) -> std::vec::Vec<u64> {
        let modules = [Module { start: 0x1000, end: 0x2000, ..Module::default() }];
        let modules = Modules::new(&modules, 0).unwrap();
        let (mut chain, mut memory) = (RecordChain::new(AT.sp), Jumps(stack));
        let next = |at: &FrameRegisters| frame_pointer(&modules, at, &mut memory, &mut chain);
        let callers: std::vec::Vec<u64> =
            std::iter::successors(Some(at), next).skip(1).map(|slot| slot.pc).collect();
        let alone = frame_pointer(&modules, &at, &mut Jumps(stack), &mut RecordChain::new(AT.sp));
        assert_eq!(alone.map(|slot| slot.pc), callers.first().copied());
        callers
    }

    const LOW: u64 = 0x20_7000;

    #[test]
    fn records_without_calls_are_followed_up_to_one_with() {
        let at = FrameRegisters { sp: LOW, fp: Some(LOW + 0x10), ..AT };
        let stack = |second: u64, caller: u64, end: u64| {
            let (first, third) = (LOW + 0x10, LOW + 0x80);
            [
                (first, second),
                (first + 8, caller),
                (LOW + 0x40, third),
                (LOW + 0x48, 0x9108),
                (third, 0),
                (third + 8, end),
            ]
        };
        let second = LOW + 0x40;
        assert_eq!(jumped(at, &stack(second, 0x9008, 0x9208)), [0x9008, 0x9108, 0x9208]);
        // The last record follows no call; a record lies further in; or its code is too far away for the same JIT
        // compiler.
        assert_eq!(jumped(at, &stack(second, 0x9008, 0x9508)), []);
        assert_eq!(jumped(at, &stack(LOW + 0x18, 0x9008, 0x9208)), []);
        for caller in [0x4000_9008, 0x8008, 0x1008, LOW + 0x48] {
            assert_eq!(jumped(at, &stack(second, caller, 0x9208)), [], "{caller:x}");
        }
        // Ahead-of-time compiled code always calls.
        assert_eq!(jumped(FrameRegisters { pc: 0x1100, ..at }, &stack(second, 0x9008, 0x9208)), []);
    }

    #[test]
    fn generated_code_is_called_from_nearby_code() {
        let modules = [Module { start: 0x1000, end: 0x2000, ..Module::default() }];
        let modules = Modules::new(&modules, 0).unwrap();
        let at = FrameRegisters { sp: LOW, fp: Some(7), ..AT };
        let stack =
            |below, caller| [(LOW, 0x9108), (LOW + 8, 0x4000_9208), (LOW + 16, below), (LOW + 24, caller)];
        let among =
            |at: &FrameRegisters, below, caller| scan(&modules, at, &mut Jumps(&stack(below, caller)));
        let found = |at: &FrameRegisters, below| among(at, below, 0x9208);
        assert_eq!(found(&at, LOW + 0x40), Some(FrameRegisters::caller(0x9208, LOW + 32, Some(LOW + 0x40))));
        // The call's target must be the running code.
        assert_eq!(among(&at, 0, 0x9308), Some(FrameRegisters::caller(0x9308, LOW + 32, Some(7))));
        assert_eq!(among(&at, 0, 0x9408), None);
        // A direct call of a module stays in the module.
        assert_eq!(among(&at, 0, 0x1208), None);
        assert_eq!(among(&at, LOW + 0x40, 0x1308), Some(FrameRegisters::caller(0x1308, LOW + 32, Some(7))));
        // A stale return address from an earlier call of another function.
        let earlier = [(LOW, 0x9308), (LOW + 8, 0x9208), (LOW + 16, 0), (LOW + 24, 0x9688)];
        let caller = Some(FrameRegisters::caller(0x9688, LOW + 32, Some(7)));
        assert_eq!(scan(&modules, &at, &mut Jumps(&earlier)), caller);
        // The word below is no frame pointer.
        assert_eq!(found(&at, LOW), Some(FrameRegisters::caller(0x9208, LOW + 32, Some(7))));
        assert_eq!(found(&FrameRegisters { pc: 0x1100, ..at }, LOW), None);
    }
}
