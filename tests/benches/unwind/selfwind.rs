//! selfwind: the handler's walker, with rows compiled ahead of time or with FDEs decoded on demand.

use crate::method::{MOST, Method, Stack};
use crate::workload::Walkway;
use crate::{modules, registers};
use compilation::compile;
use unwind::{Frame, Memory, Module, Modules, RuleCache, StackCache, Table, walk};

/// How the walker is used.
#[derive(Clone, Copy)]
pub(crate) struct Use {
    name: &'static str,
    /// With rows compiled ahead of time; otherwise FDEs are decoded on demand.
    tables: bool,
    /// With the previous-walk cache.
    stack_cache: bool,
    /// Without writing the frames shared with the previous walk again.
    only_new: bool,
    /// The code was compiled with frame pointers.
    framed: bool,
}

const USUAL: Use = Use { name: "selfwind", tables: true, stack_cache: true, only_new: false, framed: false };

pub(crate) const USES: [Use; 5] = [
    USUAL,
    Use { name: "selfwind, only new frames", only_new: true, ..USUAL },
    Use { name: "selfwind without stack cache", stack_cache: false, ..USUAL },
    Use { name: "selfwind, FDEs on demand", tables: false, ..USUAL },
    Use { name: "selfwind, framed code", framed: true, ..USUAL },
];

/// A variant of [`USES`]; the first is the one that is compared.
pub(crate) fn method(index: usize) -> Box<dyn Method> {
    Box::new(Selfwind::new(USES[index]))
}

/// The walker over all modules of this process.
struct Selfwind {
    how: Use,
    modules: Modules<'static>,
    cache: Box<RuleCache>,
    stack_cache: Box<StackCache>,
}

impl Selfwind {
    /// Reads the modules as they are now.
    fn new(how: Use) -> Selfwind {
        // As in the agent, which has these before there are tables.
        let (cache, stack_cache) = (Box::new(RuleCache::new()), Box::new(StackCache::new()));
        let with_text = modules::images().into_iter().filter(|image| image.text_start < image.text_end);
        let mut list: Vec<Module<'static>> = with_text.map(|image| image.module()).collect();
        if how.tables {
            list.iter_mut().for_each(|module| module.table = table(module));
        }
        Modules::sort(&mut list);
        Selfwind {
            how,
            modules: Modules::new(list.leak(), 0).expect("the loader's modules do not overlap"),
            cache,
            stack_cache,
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
        self.how.name
    }

    fn on_framed_code(&self) -> bool {
        self.how.framed
    }

    fn capture(&mut self, _: &Walkway, stack: &mut Stack) -> usize {
        if !self.how.stack_cache {
            self.stack_cache.forget();
        }
        let registers = registers::here();
        let mut memory = OwnStack(registers.sp());
        let taken = walk(&self.modules, &self.cache, &registers, &mut memory, &mut self.stack_cache, MOST);
        let new = if self.how.only_new { taken.depth - taken.unchanged } else { taken.depth };
        let frames = &self.stack_cache.frames()[..new];
        // As into a record: the words unchanged.
        stack[..new].iter_mut().zip(frames).for_each(|(word, frame)| *word = frame.bits());
        taken.depth
    }

    fn finish(&mut self, stack: &mut Stack, depth: usize) {
        if self.how.only_new {
            stack.iter_mut().zip(self.stack_cache.frames()).for_each(|(word, frame)| *word = frame.bits());
        }
        stack[..depth].iter_mut().for_each(|word| *word = Frame::from_bits(*word).address());
    }
}

/// Bytes of the main thread's stack.
const STACK: u64 = 8 << 20;

/// The calling thread's stack from an address on, as the handler reads it within known bounds: plain loads.
struct OwnStack(u64);

impl Memory for OwnStack {
    #[inline]
    fn read(&mut self, address: u64) -> Option<u64> {
        // SAFETY: the address is checked to lie above the stack pointer and within the main thread's 8 MiB.
        (address.wrapping_sub(self.0) < STACK).then(|| unsafe { (address as *const u64).read_volatile() })
    }

    #[inline]
    fn known_until(&mut self, address: u64) -> u64 {
        if address.wrapping_sub(self.0) < STACK { self.0 + STACK } else { address }
    }

    #[inline]
    unsafe fn load(&mut self, address: u64) -> u64 {
        // SAFETY: the caller promises a readable address.
        unsafe { (address as *const u64).read_volatile() }
    }
}
