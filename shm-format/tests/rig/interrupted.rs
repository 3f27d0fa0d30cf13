//! A pool that is interrupted at a chosen step.

use std::cell::{Cell, RefCell};
use std::sync::atomic::AtomicU64;

use shm_format::layout::{FillLine, SearchLine};
use shm_format::{Chunk, Mode, Pool, Region, Step};

/// Every step after which a handler may run.
pub const STEPS: [Step; 12] = [
    Step::Loaded,
    Step::Helped,
    Step::Timed,
    Step::Reserved,
    Step::Busy,
    Step::Published,
    Step::Taken,
    Step::Prepared,
    Step::Switched,
    Step::Sealed,
    Step::Done,
    Step::Committed,
];

/// A region whose steps run what the test has planned for them, like a signal handler.
pub struct Interrupted<'a> {
    region: &'a Region,
    hook: RefCell<Option<(Step, u32)>>,
    handler: &'a dyn Fn(&Interrupted<'a>),
    pub ran: Cell<u32>,
}

impl<'a> Interrupted<'a> {
    pub fn new(region: &'a Region, handler: &'a dyn Fn(&Interrupted<'a>)) -> Self {
        Self { region, hook: RefCell::new(None), handler, ran: Cell::new(0) }
    }

    /// Makes the handler run once, at the `skip + 1`st occurrence of `step`.
    pub fn plan(&self, step: Step, skip: u32) {
        *self.hook.borrow_mut() = Some((step, skip));
    }

    /// Cancels the planned handler.
    pub fn forget(&self) {
        *self.hook.borrow_mut() = None;
    }
}

impl Pool for Interrupted<'_> {
    fn backed(&self) -> usize {
        self.region.backed()
    }
    fn chunk(&self, index: usize) -> Option<Chunk<'_>> {
        self.region.chunk(index)
    }
    fn bitmap(&self) -> &[AtomicU64] {
        self.region.bitmap()
    }
    fn search(&self) -> &SearchLine {
        self.region.search()
    }
    fn fill(&self) -> &FillLine {
        self.region.fill()
    }
    fn mode(&self) -> Mode {
        Pool::mode(self.region)
    }
    fn step(&self, step: Step) {
        let due = match &mut *self.hook.borrow_mut() {
            Some((planned, 0)) if *planned == step => true,
            Some((planned, skip)) if *planned == step => {
                *skip -= 1;
                false
            }
            _ => false,
        };
        if due {
            *self.hook.borrow_mut() = None;
            self.ran.set(self.ran.get() + 1);
            (self.handler)(self);
        }
    }
}
