//! What tells a walk how to go on besides the rules of the loaded modules: unwinders of regions, rules of generated code, and
//! tables that the recorder has made since a module was loaded.

use interpreter::regions::{Regions, Scratch};
use platform::bounds::Bounds;
use unwind::{Module, RegionStep, Tracked};

use crate::adoption;
use crate::generated::{self, Run};
use crate::recording::Recording;
use crate::snapshot::Pinned;

/// What one walk has of that.
pub(crate) struct OtherRules<'r> {
    regions: Regions<'r>,
    generated: &'r [Run],
    recording: &'r Recording,
}

impl<'r> OtherRules<'r> {
    /// For a walk with a `pinned` snapshot, of the thread whose `scratch` this is. If there are regions, [`begin`](Self::begin)
    /// must follow.
    #[inline]
    pub(crate) fn new(pinned: &'r Pinned<'_>, recording: &'r Recording, scratch: *mut Scratch) -> Self {
        let regions = Regions::new(pinned.regions(), scratch);
        Self { regions, generated: pinned.generated(), recording }
    }

    /// Begins a walk. `stacks` are those that the handler may be running on; memory is probed if `may_probe`.
    pub(crate) fn begin(&mut self, stacks: [Bounds; 2], may_probe: bool) {
        self.regions.begin(&self.recording.region, stacks, may_probe);
    }

    /// Whether an unwinder or a rule is registered for `address`.
    pub(crate) fn hold(&self, address: u64) -> bool {
        self.regions.hold(address) || generated::find(self.generated, address).is_some()
    }
}

impl<'r> unwind::Regions<'r> for OtherRules<'r> {
    #[inline]
    fn find(&self, address: u64) -> Option<unwind::Region<'r>> {
        self.regions.find(address)
    }

    #[inline]
    fn step(&mut self, number: usize, exact: bool, registers: &mut Tracked) -> RegionStep {
        self.regions.step(number, exact, registers)
    }

    #[inline]
    fn generated(&self, address: u64) -> Option<&'r Module<'r>> {
        generated::find(self.generated, address)
    }

    fn adopt(&mut self, module: &Module<'_>) -> bool {
        adoption::adopt(self.recording, module)
    }
}
