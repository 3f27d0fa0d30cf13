//! An interpreter as the agent has found it among the loaded objects.

use super::layout::Layout;
use crate::stack::Bounds;

/// An interpreter that is loaded in this process.
#[derive(Clone, Copy, Debug)]
pub struct Python {
    /// The field offsets of its structures.
    pub layout: Layout,
    /// Address of `_PyRuntime`.
    pub runtime: u64,
    /// Address of `PyCode_Type`.
    pub code_type: u64,
    /// The code of its object file.
    pub text: Code,
    /// The evaluation loop, without the parts that compilers move elsewhere.
    pub evaluation: Code,
    /// The data of its object file, which stays mapped as long as the object is loaded.
    pub data: Bounds,
}

/// A range of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Code {
    /// First address.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
}

impl Code {
    #[inline]
    pub(crate) fn holds(self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}
