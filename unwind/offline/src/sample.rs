//! The input of a walk: copied registers and stack of one thread.

use unwind::{Memory, Registers};

use crate::binaries::Binaries;
use crate::layout::Layout;

/// A thread at one time: its registers and a copy of its stack.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'s> {
    /// Its process.
    pub pid: u32,
    /// When it was taken, on the clock of the mappings.
    pub ns: u64,
    /// Its registers.
    pub registers: Registers,
    /// The address of the first byte of `stack`.
    pub stack_start: u64,
    /// The copied bytes.
    pub stack: &'s [u8],
    /// What is known about code that is in no file.
    pub generated: GeneratedCode<'s>,
}

impl Sample<'_> {
    /// First address after the copied stack.
    pub(crate) fn stack_end(&self) -> u64 {
        self.stack_start.saturating_add(self.stack.len() as u64)
    }
}

/// Bytes of generated code, as far as they were copied with the sample.
#[derive(Clone, Copy, Debug, Default)]
pub struct GeneratedCode<'s> {
    /// The eight bytes before the program counter and the eight bytes at it.
    pub leaf: Option<[u64; 2]>,
    /// Possible return addresses in ascending order, each with the eight bytes before it.
    pub before: &'s [(u64, u64)],
}

impl GeneratedCode<'_> {
    /// The eight bytes at `address`, for a thread with this program counter.
    fn read(&self, pc: u64, address: u64) -> Option<u64> {
        let behind = address.wrapping_add(8);
        let find = |of: u64| self.before.binary_search_by_key(&of, |(address, _)| *address);
        match self.leaf {
            Some([before, _]) if behind == pc => Some(before),
            Some([_, at]) if address == pc => Some(at),
            _ => match find(behind) {
                Ok(at) => self.before.get(at).map(|(_, before)| *before),
                // The return address is listed, so a call precedes it; no other bytes around it are known.
                Err(_) => find(address).is_ok().then_some(UNKNOWN_CODE),
            },
        }
    }
}

/// Substitute for code bytes that were not copied: they make any address behind them a return address. Six nops, then
/// `call *%rax`.
const UNKNOWN_CODE: u64 = u64::from_le_bytes([0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0]);

/// Red zone: bytes below the stack pointer that a leaf function may use (System V ABI, 3.2.2).
const RED_ZONE: u64 = 128;

/// Memory of a sampled thread: the copied stack, and code from files.
pub(crate) struct SampleMemory<'s, 'a> {
    pub(crate) layout: &'s Layout<'a>,
    pub(crate) binaries: &'s Binaries,
    pub(crate) sample: &'s Sample<'s>,
}

impl Memory for SampleMemory<'_, '_> {
    fn read(&mut self, address: u64) -> Option<u64> {
        let stack = self.sample.stack;
        if let Some(distance) = address.checked_sub(self.sample.stack_start)
            && distance < stack.len() as u64
        {
            return stack.get(distance as usize..)?.first_chunk().map(|word| u64::from_le_bytes(*word));
        }
        // Compilers emit no CFI for the pop of a register in an epilogue, so the rule still points to its old slot,
        // which is now below the copied stack. The register already holds that value. Of such registers a walk only
        // needs the frame pointer.
        if self
            .sample
            .registers
            .sp()
            .checked_sub(address)
            .is_some_and(|below| (1..=RED_ZONE).contains(&below))
        {
            return Some(self.sample.registers.fp());
        }
        match self.layout.find(address) {
            Some(mapping) if mapping.binary.is_some() => mapping.word(address, self.binaries),
            Some(_) => Some(UNKNOWN_CODE),
            None => self.sample.generated.read(self.sample.registers.pc, address),
        }
    }

    fn known_until(&mut self, address: u64) -> u64 {
        let end = self.sample.stack_end();
        if self.sample.stack_start <= address { end.max(address) } else { address }
    }
}
