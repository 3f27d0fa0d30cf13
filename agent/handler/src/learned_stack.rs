//! Learns where the stack of a thread is that was running before the agent came, or that nobody has registered since.
//!
//! A C library keeps the control block of a thread at the top of the stack that it has allocated for it, in the same
//! mapping. What lies between the two is probed once, and again where the stack has grown; samples then read it in place.
//! What must never happen here: that another stack is taken for the thread's own (a coroutine's, or the creator's, whose
//! control block a thread made by a bare `clone` may use). So a control block must name the thread, and the first thread,
//! whose control block is elsewhere, is left out.

use platform::activity::is_filtered;
use platform::arch;
use platform::bounds::Bounds;
use platform::sys::{self, PAGE};
use platform::thread_pointer;

use crate::slot::Slot;

/// Most bytes that are probed at a time.
const FARTHEST: u64 = 1 << 20;
/// Pages below the stack pointer that are probed as well, so that a deeper stack need not be probed soon.
const AHEAD: u64 = 4;

/// The stack of the calling thread, which has `slot`, if `sp` points to it. All signals must be blocked.
#[cold]
#[inline(never)]
pub(crate) fn learn(slot: &Slot, sp: u64) -> Bounds {
    // Where threads have notes of their slots, hardly any is discovered.
    if !slot.is_discovered() || arch::has_thread_word() || is_filtered() {
        return Bounds::NONE;
    }
    let known = slot.stack();
    let page = sp & !(PAGE - 1);
    let (from, high) = match slot.has_learned_stack() {
        true => (known.low, known.high),
        false if known == Bounds::NONE && slot.tid() != sys::process_id() => match own_control_block(slot) {
            Some(high) => (high, high),
            None => return Bounds::NONE,
        },
        false => return Bounds::NONE,
    };
    let is_below = from.checked_sub(page).is_some_and(|bytes| bytes <= FARTHEST);
    if !is_below || !(page..from).step_by(PAGE as usize).all(sys::is_readable) {
        return Bounds::NONE;
    }
    let below = (1..=AHEAD).map(|pages| page.wrapping_sub(pages * PAGE));
    let low = below.take_while(|page| sys::is_readable(*page)).last().unwrap_or(page);
    slot.learn_stack(Bounds { low, high })
}

/// Forgets the stack of an earlier thread with the same id as the calling one, which has found `slot` by its id.
pub(crate) fn forget_earlier(slot: &Slot) {
    if slot.has_learned_stack() && arch::thread_pointer() != Some(slot.stack().high) {
        slot.set_stack(Bounds::NONE);
    }
}

/// The address of the calling thread's control block, if that names it.
fn own_control_block(slot: &Slot) -> Option<u64> {
    let block = arch::thread_pointer()?;
    let is_own = |offset: &u16| {
        let word = block.checked_add(u64::from(*offset) & !7).filter(|word| sys::is_readable(*word));
        // SAFETY: the aligned word was just probed, and a thread's own block stays mapped.
        word.is_some_and(|word| unsafe { arch::load(word) } as u32 == slot.tid())
    };
    (thread_pointer::names_itself(block) && arch::CONTROL_BLOCK_TIDS.iter().any(is_own)).then_some(block)
}
