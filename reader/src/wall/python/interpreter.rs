//! Where the interpreter is, as its agent has found it, and the layout of its structures.

use python_layout::{Layout, Linkage};

use crate::wall::memory::RemoteMemory;

/// Words of `_Py_DebugOffsets` that are read.
const WORDS: usize = 128;

/// An interpreter in another process.
pub(super) struct Interpreter {
    pub(super) layout: Layout,
    /// Address of `_PyRuntime`.
    pub(super) runtime: u64,
    /// Address of `PyCode_Type`.
    pub(super) code_type: u64,
}

impl Interpreter {
    /// Reads it, from the agent's description: the minor version of Python 3, and the two addresses. `None` for 3.9, in which nothing
    /// in memory tells whose a thread state is.
    pub(super) fn read(described: &str, memory: &mut RemoteMemory<'_>) -> Option<Self> {
        let mut words = described.split(' ');
        let minor: u8 = words.next()?.parse().ok()?;
        let mut address = || u64::from_str_radix(words.next()?, 16).ok();
        let (runtime, code_type) = (address()?, address()?);
        let mut described = |number: usize| memory.word(runtime.wrapping_add(8 * number as u64)).unwrap_or(0);
        let words: Vec<u64> = (0..WORDS).map(&mut described).collect();
        let layout = Layout::of_minor(minor)
            .or_else(|| Layout::described(|number| words.get(number).copied().unwrap_or(0)))?;
        (layout.minor == minor && layout.linkage != Linkage::Objects).then_some(Self {
            layout,
            runtime,
            code_type,
        })
    }
}
