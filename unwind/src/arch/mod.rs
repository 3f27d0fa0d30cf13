//! Everything that differs between architectures. No other file of this crate tests which one it is built for.
//!
//! Call frame information of every architecture is read on every machine: the readers are generic over [`Abi`], chosen
//! by the [`Machine`] of the ELF file, and its constants cost nothing at run time. Walks are for the architecture of
//! this build only (`native`): registers, where the return address is, signal frames, stubs and calls. The files of
//! the architectures define the same names.

// Of the architectures that this is not built for, only the ABI constants are used.
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

/// The architecture of this build.
#[cfg(target_arch = "aarch64")]
pub type Native = Aarch64;
/// The architecture of this build.
#[cfg(target_arch = "x86_64")]
pub type Native = X86_64;

impl Machine {
    /// The machine of this build.
    pub const NATIVE: Machine = Native::MACHINE;
}

/// Size of a return address or a saved register on the stack, in bytes.
pub(crate) const WORD: u64 = 8;
