//! Stack scan without unwinding: every word that can be a return address becomes a frame.
//!
//! The result includes stale return addresses from earlier calls. It is what a tool without call frame information can
//! get, and a baseline for comparing walks with.

use crate::arch::native::{self, Call};
use crate::arch::{Registers, WORD};
use crate::end::End;
use crate::frame::{FoundBy, Frame};
use crate::heuristic;
use crate::memory::Memory;
use crate::modules::Modules;
use crate::stack_cache::{CachedFrame, StackCache};
use crate::walk_result::Walk;

/// Finds every word from the stack pointer up to `until` that points after a call in a module. The frames are in
/// [`StackCache::frames`], at most `most` of them; all but the first are marked as guessed.
///
/// Async-signal-safe, like [`walk`](fn@crate::walk).
pub fn guess<M: Memory>(
    modules: &Modules<'_>,
    registers: &Registers,
    until: u64,
    memory: &mut M,
    stack_cache: &mut StackCache,
    most: usize,
) -> Walk {
    stack_cache.forget();
    stack_cache.begin(modules.generation(), registers.sp());
    let most = most.min(StackCache::CAPACITY);
    let mut depth = 0;
    let mut end = End::DepthLimit;
    if most > 0 {
        stack_cache
            .note(depth, CachedFrame::otherwise(Frame::new(registers.pc, FoundBy::Cfi, true), 0, None));
        depth += 1;
    }
    let mut slot = registers.sp().checked_next_multiple_of(WORD).unwrap_or(until);
    while depth < most {
        if slot >= until {
            end = End::Root;
            break;
        }
        let Some(word) = memory.read(slot) else {
            end = End::Unreadable;
            break;
        };
        let address = native::strip(word);
        if heuristic::follows_call(modules, address, memory) {
            stack_cache
                .note(depth, CachedFrame::otherwise(Frame::new(address, FoundBy::Guess, false), 0, None));
            depth += 1;
        }
        slot = slot.saturating_add(WORD);
    }
    stack_cache.end(depth, StackCache::CAPACITY, false);
    Walk::fresh(depth, end)
}

/// Removes the pointer authentication signature, if any, from a code address.
#[inline(always)]
pub fn strip(address: u64) -> u64 {
    native::strip(address)
}

/// What the direct call instruction that ends at `address` calls; `None` if it is another instruction.
pub fn called_before<M: Memory>(address: u64, memory: &mut M) -> Option<u64> {
    match native::call_before(address, memory) {
        Some(Call::Direct(target)) => Some(target),
        _ => None,
    }
}

/// Whether a call instruction ends at `address`, which may be in generated code.
pub fn is_behind_call<M: Memory>(address: u64, memory: &mut M) -> bool {
    native::call_before(address, memory).is_some()
}
