//! All that differs between architectures. Nothing else in this crate asks which one it is built for.
//!
//! Two things are asked for. Call frame information of either architecture is read on any machine, as the [`Machine`] of
//! its ELF file says: the readers are compiled for each [`Abi`], whose constants cost them nothing. A walk is one of this
//! process, so it knows only the architecture that it is built for, `native`: the registers, where a rule leaves the
//! return address, signal frames, stubs and calls. The files of the architectures are twins: each has the same names.

// Of the architecture that this is not built for only the constants are of use.
#[cfg_attr(not(target_arch = "aarch64"), allow(dead_code, unreachable_pub))]
pub(crate) mod aarch64;
mod abi;
mod machine;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unreachable_pub))]
pub(crate) mod x86_64;

pub use aarch64::Aarch64;
pub use abi::Abi;
pub use machine::Machine;
pub use native::Registers;
pub use x86_64::X86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64 as native;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64 as native;

/// The architecture that this is built for.
#[cfg(target_arch = "aarch64")]
pub type Native = Aarch64;
/// The architecture that this is built for.
#[cfg(target_arch = "x86_64")]
pub type Native = X86_64;

impl Machine {
    /// The one that this is built for.
    pub const NATIVE: Machine = Native::MACHINE;
}

/// Bytes of a return address on the stack, and of a saved register.
pub(crate) const WORD: u64 = 8;
