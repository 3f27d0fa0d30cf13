//! Regions of code with an unwinder of their own, as a walk asks them: generated code, or the loop of an interpreter.
//!
//! Who answers runs code of others. So what it says is believed in nothing: the caller must be code, and further out.

use crate::end::End;
use crate::module::Module;
use crate::tracked::Tracked;

/// A region that an address is in.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    /// The unwinder wants more than the program counter, stack pointer and frame pointer: the walk goes back and tracks all.
    pub wants_all: bool,
    /// The module that has a hole here, by whose rules the walk goes on where the unwinder leaves the frame to it.
    pub under: Option<&'a Module<'a>>,
}

/// What an unwinder said of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionStep {
    /// The registers are those of the caller.
    Caller {
        /// The caller was interrupted: its program counter is the next instruction and no return address.
        interrupted: bool,
        /// The caller's stack may be another one.
        other_stack: bool,
    },
    /// The frame is to be unwound as if there were no unwinder.
    Beside,
    /// There is no caller, or none that can be found.
    End(End),
}

/// Unwinders of regions.
pub trait Regions<'r> {
    /// The region that `address` is in.
    fn find(&self, address: u64) -> Option<Region<'r>>;

    /// Asks the unwinder of the region just found. `registers` are those of frame `number` of the walk, leaf first, and may be
    /// made its caller's; `exact` says that its program counter is no return address.
    fn step(&mut self, number: usize, exact: bool, registers: &mut Tracked) -> RegionStep;

    /// The generated code with rules for `address`, which is in no module of the walk. It may be another one in the next
    /// walk: nothing of it is remembered.
    fn generated(&self, address: u64) -> Option<&'r Module<'r>> {
        let _ = address;
        None
    }
}

/// No regions at all.
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
