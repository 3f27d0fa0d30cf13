//! Recognises frame records that no call created, for code that scans a stack without walking it.

use crate::heuristic::GENERATED_MAX;
use crate::memory::Memory;
use crate::modules::Modules;
use crate::record_chain::RecordChain;
use crate::step::FrameRegisters;

/// Recognises such records in address order. Accepts the same ones as [`walk`](fn@crate::walk).
#[derive(Debug)]
pub struct Jumps {
    chain: RecordChain,
    /// The generated code seen last, and code far from it seen before: the code after a call need not come from the
    /// same JIT compiler. 0 for none.
    code: [u64; 2],
}

impl Jumps {
    /// For a stack whose innermost instruction is at `pc`.
    #[must_use]
    pub fn new(modules: &Modules<'_>, pc: u64) -> Self {
        let code = if modules.find(pc).is_none() { pc } else { 0 };
        Self { chain: RecordChain::new(0), code: [code, 0] }
    }

    /// Reports a return address in generated code.
    pub fn note(&mut self, pc: u64) {
        let [last, before] = self.code;
        self.code = [pc, if is_near(last, pc) { before } else { last }];
    }

    /// Whether `pc` is near the generated code seen so far.
    #[must_use]
    pub fn is_near(&self, pc: u64) -> bool {
        self.code.iter().any(|code| is_near(*code, pc))
    }

    /// Whether `pc`, which follows no call, belongs to code that jumped to the frame whose frame pointer is `below`.
    /// `sp` and `fp` are those of the frame that jumped.
    pub fn made<M: Memory>(
        &mut self,
        modules: &Modules<'_>,
        below: u64,
        [pc, sp, fp]: [u64; 3],
        memory: &mut M,
    ) -> bool {
        let Some(code) = self.code.into_iter().find(|code| is_near(*code, pc)) else { return false };
        let (code, caller) =
            (FrameRegisters::caller(code, sp, Some(below)), FrameRegisters::caller(pc, sp, Some(fp)));
        self.chain.holds(modules, &code, &caller, memory)
    }
}

fn is_near(code: u64, pc: u64) -> bool {
    code != 0 && pc.abs_diff(code) < GENERATED_MAX
}
