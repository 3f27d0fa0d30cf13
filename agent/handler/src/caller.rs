//! The caller of an interposed function: the registers that the function saved on entry, and the walk from them.

use interpreter::Signals;
use platform::clock;
use shm_format::{Committed, Loss, StackChain, StackHead};
use unwind::{End, Leaf, Registers, Walk};

use crate::arch;
use crate::ordinary_walk;
use crate::recording::Recording;
use crate::sample::words;
use crate::slot::{Slot, Workbench};
use crate::snapshot::Pinned;

/// How a call is recorded.
#[derive(Clone, Copy, Debug)]
pub struct Note {
    /// The number of the source in records.
    pub source: u8,
    /// The source's data about the call.
    pub nonce: u64,
    /// What the record counts as.
    pub weight: u32,
    /// Whether the stack includes the called function.
    pub with_callee: bool,
}

/// The registers that a call preserves, as they were at the entry of the interposed function.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// Address of the called function.
    pub entry: u64,
    /// The stack pointer at its entry, which points to the return address.
    pub stack_pointer: u64,
    /// The registers that a call preserves, in the order of `arch::registers_at_entry`.
    pub preserved: &'a [u64; arch::PRESERVED],
}

impl Caller<'_> {
    pub(crate) fn registers(&self) -> Registers {
        arch::registers_at_entry(self.entry, self.stack_pointer, self.preserved)
    }

    /// Where a walk starts, without the registers that most do not need.
    #[inline(always)]
    pub(crate) fn leaf<'a>(&self, all: &'a dyn Fn() -> Registers) -> Leaf<'a> {
        let fp = arch::frame_pointer_at_entry(self.preserved);
        Leaf { pc: self.entry, sp: self.stack_pointer, fp, all }
    }

    /// Walks the caller's stack, including an interpreter's frames. Also returns the chain, which knows of the walk, and
    /// the frames, leaf first; the first is the called function.
    pub(crate) fn walk<'w>(
        &self,
        recording: &Recording,
        slot: &Slot,
        bench: &'w mut Workbench<'_>,
    ) -> (Walk, &'w mut StackChain, &'w [u64]) {
        let (mut walk, is_mixed) = ordinary_walk::walk_on(recording, slot, &self.registers(), bench);
        let Workbench { stack_cache, chain, scratch, pin, .. } = bench;
        let pinned = if is_mixed { Pinned::new(pin) } else { None };
        if is_mixed && pinned.is_none() {
            stack_cache.unmark();
        }
        let mixed = pinned.as_ref().and_then(|pinned| {
            interpreter::add_frames(
                pinned.python(),
                !pinned.regions().is_empty(),
                &slot.sampled(&recording.region, Signals::Open),
                recording.max_frames,
                stack_cache,
                &mut walk,
                scratch,
            )
        });
        if is_mixed {
            chain.walked(walk.unchanged);
        }
        (walk, chain, mixed.unwrap_or_else(|| words(stack_cache.frames())))
    }

    /// Walks the caller's stack and writes it. The caller of this function is inside the slot's nesting guard and has prepared
    /// the slot.
    #[inline(never)]
    pub(crate) fn write(
        &self,
        recording: &Recording,
        slot: &Slot,
        note: Note,
    ) -> (Result<Committed, Loss>, End) {
        // SAFETY: nothing else uses the workspace inside the guard.
        let mut bench = unsafe { slot.bench() };
        let (walk, chain, frames) = self.walk(recording, slot, &mut bench);
        // The innermost frame is the called function.
        let frames = frames.get(usize::from(!note.with_callee)..).unwrap_or(&[]);
        let head =
            StackHead { weight: note.weight, end: walk.end as u8, source: note.source, nonce: note.nonce };
        (chain.write(&slot.cursor, &recording.region, head, frames, clock::now), walk.end)
    }
}
