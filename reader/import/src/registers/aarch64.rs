//! AArch64.

use unwind::Registers;

/// The machine as uname names it.
pub(crate) const ARCH: &str = "aarch64";

const PC: u64 = 32;
/// The least that a walk needs: x29, x30, sp, pc.
pub(crate) const MASK: u64 = 1 << 29 | 1 << 30 | 1 << 31 | 1 << PC;

/// The registers of a sample; those that it has not are 0. perf's numbers are those of DWARF.
pub(crate) fn registers(get: impl Fn(u64) -> Option<u64>) -> Option<Registers> {
    let r = std::array::from_fn(|number| get(number as u64).unwrap_or(0));
    Some(Registers { r, pc: get(PC)? })
}
