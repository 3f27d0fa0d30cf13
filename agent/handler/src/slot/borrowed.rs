//! A second workspace, for an event during a walk of the same thread: in a signal handler of the program.

use super::state::Slot;
use super::workspace::{self, Workbench, Workspace};
use crate::nesting::Entered;

/// A borrowed workspace, returned when dropped.
pub(crate) struct BorrowedBench<'a> {
    slot: &'a Slot,
    workspace: &'static Workspace,
    _entered: Entered<'a>,
}

impl<'a> BorrowedBench<'a> {
    /// Borrows one; `None` if the thread has borrowed one already, or there is no memory.
    #[cold]
    pub(crate) fn take(slot: &'a Slot) -> Option<Self> {
        let entered = slot.nested.enter()?;
        Some(Self { slot, workspace: workspace::take()?, _entered: entered })
    }

    /// The parts that a walk needs.
    pub(crate) fn bench(&mut self) -> Workbench<'_> {
        // SAFETY: `take` gives a workspace to one caller only, and the result borrows this value.
        unsafe {
            Workbench {
                stack_cache: &mut *self.workspace.stack_cache.get(),
                chain: &mut *self.workspace.chain.get(),
                scratch: &mut *self.workspace.scratch.get(),
                pages: &mut *self.workspace.probed_pages.get(),
                pin: &self.slot.nested_pin,
            }
        }
    }
}

impl Drop for BorrowedBench<'_> {
    fn drop(&mut self) {
        workspace::give(self.workspace);
    }
}
