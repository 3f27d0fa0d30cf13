//! The walker's interface to registered regions: code with an unwinder of its own, generated code or an interpreter's
//! loop.
//!
//! Unwinders are other people's code, so their results are untrusted: the caller must be in code, and further out.

use crate::end::End;
use crate::module::Module;
use crate::tracked::Tracked;

/// The region that contains an address.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    /// Whether the unwinder needs more than the program counter, stack pointer and frame pointer. If so, the walk
    /// restarts with all registers tracked.
    pub wants_all: bool,
    /// The module that the region lies in. Its rules apply where the unwinder declines a frame.
    pub under: Option<&'a Module<'a>>,
}

/// Result of an unwinder for one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionStep {
    /// The registers are now the caller's.
    Caller {
        /// Whether the caller was interrupted: its program counter is the next instruction, not a return address.
        interrupted: bool,
        /// Whether the caller may be on another stack.
        other_stack: bool,
    },
    /// The unwinder declines: unwind the frame as if there were none.
    Beside,
    /// There is no caller, or it cannot be found.
    End(End),
}

/// The unwinders of registered regions.
pub trait Regions<'r> {
    /// The region that contains `address`.
    fn find(&self, address: u64) -> Option<Region<'r>>;

    /// Calls the unwinder of the region found last. `registers` are those of frame `number` of the walk, counted from
    /// the leaf; the unwinder may replace them by the caller's. `exact` says that the program counter is no return
    /// address.
    fn step(&mut self, number: usize, exact: bool, registers: &mut Tracked) -> RegionStep;

    /// Generated code with call frame information for `address`, which is in no module. It may be replaced before the
    /// next walk, so nothing found through it may be cached.
    fn generated(&self, address: u64) -> Option<&'r Module<'r>> {
        let _ = address;
        None
    }

    /// Whether `module`, none of whose rules covers an address, has got [another table](Module::late) now.
    fn adopt(&mut self, module: &Module<'_>) -> bool {
        let _ = module;
        false
    }
}

/// An implementation without any regions.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRegions;

impl<'r> Regions<'r> for NoRegions {
    #[inline(always)]
    fn find(&self, _: u64) -> Option<Region<'r>> {
        None
    }

    #[inline(always)]
    fn step(&mut self, _: usize, _: bool, _: &mut Tracked) -> RegionStep {
        RegionStep::Beside
    }
}
