//! A workspace for an event that came while its thread was at work in its own: in a signal handler of the program's.

use super::Slot;
use super::workspace::{self, Workbench, Workspace};
use crate::nesting::Entered;

/// A workspace that is one event's. Goes back when dropped.
pub(crate) struct BorrowedBench<'a> {
    slot: &'a Slot,
    workspace: &'static Workspace,
    _entered: Entered<'a>,
}

impl<'a> BorrowedBench<'a> {
    /// Borrows one; none if the thread has one already, or there is no memory.
    #[cold]
    pub(crate) fn take(slot: &'a Slot) -> Option<Self> {
        let entered = slot.nested.enter()?;
        Some(Self { slot, workspace: workspace::take()?, _entered: entered })
    }

    /// What a walk needs.
    pub(crate) fn bench(&mut self) -> Workbench<'_> {
        // SAFETY: `take` gives a workspace to one alone, and this borrows it for as long as the result lives.
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
