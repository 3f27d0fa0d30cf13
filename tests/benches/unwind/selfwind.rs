//! Ourselves: the walker the handler uses, with rows compiled beforehand or with FDEs decoded on demand.

use crate::method::{MOST, Method, Stack};
use crate::workload::Walkway;
use crate::{modules, registers};
use unwind::compile::compile;
use unwind::{Frame, Memory, Module, Modules, RuleCache, Table, walk};

/// Our walker over all modules of this process.
pub(crate) struct Selfwind {
    name: &'static str,
    modules: Modules<'static>,
    cache: Box<RuleCache>,
    frames: [Frame; MOST],
}

impl Selfwind {
    /// Reads the modules as they are now and, with `tables`, compiles the rows of each.
    pub(crate) fn new(tables: bool) -> Selfwind {
        let with_text = modules::images().into_iter().filter(|image| image.text_start < image.text_end);
        let mut list: Vec<Module<'static>> = with_text.map(|image| image.module()).collect();
        if tables {
            list.iter_mut().for_each(|module| module.table = table(module));
        }
        Modules::sort(&mut list);
        Selfwind {
            name: if tables { "selfwind, tables" } else { "selfwind, FDEs on demand" },
            modules: Modules::new(list.leak(), 0).expect("the loader's modules do not overlap"),
            cache: Box::new(RuleCache::new()),
            frames: [Frame::default(); MOST],
        }
    }
}

/// The rows of a module, kept for good: the bench has a few modules and ends.
fn table(module: &Module<'static>) -> Option<Table<'static>> {
    let bytes = compile(module.eh_frame?, module.bias, &[]).ok()?;
    Some(Table::from_bytes(bytes.leak()).expect("the table just compiled is valid"))
}

impl Method for Selfwind {
    fn name(&self) -> &'static str {
        self.name
    }

    fn capture(&mut self, _: &Walkway, stack: &mut Stack) -> usize {
        let registers = registers::here();
        let taken =
            walk(&self.modules, &self.cache, &registers, &mut OwnStack(registers.sp()), &mut self.frames);
        for (address, frame) in stack.iter_mut().zip(&self.frames[..taken.depth]) {
            *address = frame.address();
        }
        taken.depth
    }
}

/// The calling thread's stack from an address on, as the handler reads it within known bounds: plain loads.
struct OwnStack(u64);

impl Memory for OwnStack {
    #[inline]
    fn read(&mut self, address: u64) -> Option<u64> {
        // SAFETY: the address is checked to lie above the stack pointer and within the main thread's 8 MiB.
        (address.wrapping_sub(self.0) < 8 << 20).then(|| unsafe { (address as *const u64).read_volatile() })
    }
}
