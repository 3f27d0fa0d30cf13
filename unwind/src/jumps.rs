//! Frame records that no call has made, for whoever goes through the words of a stack without walking it.

use crate::chain::Chain;
use crate::heuristic::GENERATED_MAX;
use crate::memory::Memory;
use crate::modules::Modules;
use crate::step::Place;

/// Tells such records, in the order of their addresses: see [`walk`](fn@crate::walk), which believes the same.
#[derive(Debug)]
pub struct Jumps {
    chain: Chain,
    /// Generated code that was met last, and code far from it that was met before: what follows a call need not be by the same
    /// compiler. 0 for none.
    code: [u64; 2],
}

impl Jumps {
    /// Of a stack whose innermost instruction is at `pc`.
    #[must_use]
    pub fn new(modules: &Modules<'_>, pc: u64) -> Self {
        let code = if modules.find(pc).is_none() { pc } else { 0 };
        Self { chain: Chain::new(0), code: [code, 0] }
    }

    /// Generated code is returned to at `pc`.
    pub fn note(&mut self, pc: u64) {
        let [last, before] = self.code;
        self.code = [pc, if is_near(last, pc) { before } else { last }];
    }

    /// Whether `pc` may be code by a compiler whose code was met.
    #[must_use]
    pub fn is_near(&self, pc: u64) -> bool {
        self.code.iter().any(|code| is_near(*code, pc))
    }

    /// Whether `pc`, which follows no call, is where the code was jumped to from whose frame pointer is `below`: a frame at `sp`
    /// whose frame pointer is `fp`.
    pub fn made<M: Memory>(
        &mut self,
        modules: &Modules<'_>,
        below: u64,
        [pc, sp, fp]: [u64; 3],
        memory: &mut M,
    ) -> bool {
        let Some(code) = self.code.into_iter().find(|code| is_near(*code, pc)) else { return false };
        let (code, caller) = (Place::caller(code, sp, Some(below)), Place::caller(pc, sp, Some(fp)));
        self.chain.holds(modules, &code, &caller, memory)
    }
}

fn is_near(code: u64, pc: u64) -> bool {
    code != 0 && pc.abs_diff(code) < GENERATED_MAX
}
