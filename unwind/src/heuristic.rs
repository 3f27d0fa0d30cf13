//! Steps through code without call frame information. Their frames are marked: they can be wrong.

use crate::frame::FoundBy;
use crate::memory::Memory;
use crate::modules::Modules;
use crate::step::Place;
use crate::x86_64::{self, Call, WORD};

/// Bytes that a frame may span for its frame pointer to be believed.
const FRAME_MAX: u64 = 1 << 20;
/// Words that a scan looks at.
const SCAN_WORDS: u64 = 128;

/// The caller of an instruction that tells where the return address is: in a PLT stub, and where a function with a
/// frame pointer has not made its frame record yet or has left it.
pub(crate) fn stub<M: Memory>(modules: &Modules<'_>, at: &Place, memory: &mut M) -> Option<(Place, FoundBy)> {
    // Outside of modules the bytes are as likely data.
    modules.find(at.pc).filter(|_| at.exact)?;
    let stub = x86_64::stub(at.pc, memory)?;
    let slot = at.sp.checked_add(stub.pushed)?;
    let pc = memory.read(slot)?;
    let fp = if stub.fp_on_top { Some(memory.read(at.sp)?) } else { at.fp };
    let caller = Place { pc, sp: slot.checked_add(WORD)?, fp, exact: false };
    let found_by = if stub.plt { FoundBy::Cfi } else { FoundBy::FramePointer };
    follows_call(modules, pc, memory).then_some((caller, found_by))
}

/// The caller by the frame pointer: a frame record above the stack pointer whose return address follows a call in
/// a module.
pub(crate) fn frame_pointer<M: Memory>(modules: &Modules<'_>, at: &Place, memory: &mut M) -> Option<Place> {
    let record = at.fp?;
    let size = record.checked_sub(at.sp)?;
    if size > FRAME_MAX || record % WORD != 0 {
        return None;
    }
    let fp = memory.read(record)?;
    let pc = memory.read(record.checked_add(WORD)?)?;
    let sp = record.checked_add(2 * WORD)?;
    follows_call(modules, pc, memory).then_some(Place { pc, sp, fp: Some(fp), exact: false })
}

/// The caller by the first word above the stack pointer that can be a return address.
pub(crate) fn scan<M: Memory>(modules: &Modules<'_>, at: &Place, memory: &mut M) -> Option<Place> {
    let mut place = at.sp.checked_next_multiple_of(WORD)?;
    for _ in 0..SCAN_WORDS {
        let pc = memory.read(place)?;
        place = place.checked_add(WORD)?;
        if follows_call(modules, pc, memory) {
            return Some(Place { pc, sp: place, fp: at.fp, exact: false });
        }
    }
    None
}

/// Whether `pc` lies in a module right behind a call whose target, where it is known, is in a module too.
fn follows_call<M: Memory>(modules: &Modules<'_>, pc: u64, memory: &mut M) -> bool {
    let inside = |address: u64| modules.find(address).is_some();
    // The call may be the last instruction of a module.
    if pc == 0 || !inside(pc - 1) {
        return false;
    }
    match x86_64::call_before(pc, memory) {
        Some(Call::Direct(target)) => inside(target),
        Some(Call::Indirect) => true,
        None => false,
    }
}
