//! Counts the distinct cache lines that one run of the handler touches: the cost of a sample with cold caches, as a
//! number without noise.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpAccess, Register};

use crate::single_step::tracee::Registers;

const LINE: u64 = 64;

/// The lines of one run.
#[derive(Debug, Default)]
pub struct CacheLines {
    code: BTreeSet<u64>,
    data: BTreeSet<u64>,
}

impl CacheLines {
    /// Notes what the instruction `code` touches when executed with these registers.
    pub fn note(&mut self, code: &[u8], now: &Registers) {
        let instruction = Decoder::with_ip(64, code, now.rip, DecoderOptions::NONE).decode();
        let length = instruction.len() as u64;
        add(&mut self.code, now.rip, length);
        let mut factory = InstructionInfoFactory::new();
        for used in factory.info(&instruction).used_memory() {
            // `lea` and prefetches do not wait for memory.
            if matches!(used.access(), OpAccess::None | OpAccess::NoMemAccess) {
                continue;
            }
            if let Some(address) = used.virtual_address(0, |register, _, _| value(register, now)) {
                let repeated = if instruction.has_rep_prefix() { now.rcx } else { 1 };
                add(&mut self.data, address, used.memory_size().size().max(1) as u64 * repeated.max(1));
            }
        }
    }

    /// Lines of code.
    pub fn code(&self) -> usize {
        self.code.len()
    }

    /// Number of data cache lines, by the owner that `owner` gives for an address.
    pub fn data(&self, owner: impl Fn(u64) -> String) -> BTreeMap<String, usize> {
        let mut lines = BTreeMap::new();
        for line in &self.data {
            *lines.entry(owner(line * LINE)).or_default() += 1;
        }
        lines
    }
}

fn add(lines: &mut BTreeSet<u64>, address: u64, bytes: u64) {
    lines.extend(address / LINE..=(address + bytes - 1) / LINE);
}

fn value(register: Register, now: &Registers) -> Option<u64> {
    Some(match register {
        Register::RAX => now.rax,
        Register::RBX => now.rbx,
        Register::RCX => now.rcx,
        Register::RDX => now.rdx,
        Register::RSI => now.rsi,
        Register::RDI => now.rdi,
        Register::RBP => now.rbp,
        Register::RSP => now.rsp,
        Register::R8 => now.r8,
        Register::R9 => now.r9,
        Register::R10 => now.r10,
        Register::R11 => now.r11,
        Register::R12 => now.r12,
        Register::R13 => now.r13,
        Register::R14 => now.r14,
        Register::R15 => now.r15,
        Register::FS => now.fs_base,
        Register::GS => now.gs_base,
        Register::CS | Register::DS | Register::ES | Register::SS => 0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touched(code: &[u8], now: &Registers) -> (usize, Vec<u64>) {
        let mut lines = CacheLines::default();
        lines.note(code, now);
        (lines.code(), lines.data.into_iter().collect())
    }

    #[test]
    fn what_an_instruction_touches_is_counted_by_lines() {
        // SAFETY: plain numbers, for which zero is a value.
        let mut now: Registers = unsafe { std::mem::zeroed() };
        (now.rip, now.rsp, now.rdi, now.rsi, now.rcx, now.fs_base) =
            (0x1000, 0x8000, 0x4000, 0x6001, 200, 0x7000);
        // push rbp
        assert_eq!(touched(&[0x55], &now), (1, vec![0x7ff8 / 64]));
        // mov rax, [rdi + 60]: over the end of a line
        assert_eq!(touched(&[0x48, 0x8b, 0x47, 0x3c], &now), (1, vec![0x100, 0x101]));
        // lea rax, [rdi]; mov rax, fs:[rcx]
        assert_eq!(touched(&[0x48, 0x8d, 0x07], &now), (1, vec![]));
        assert_eq!(touched(&[0x64, 0x48, 0x8b, 0x01], &now), (1, vec![0x70c8 / 64]));
        // rep movsb: 200 bytes from 0x6001 to 0x4000
        let lines = [0x100, 0x101, 0x102, 0x103, 0x180, 0x181, 0x182, 0x183];
        assert_eq!(touched(&[0xf3, 0xa4], &now), (1, lines.to_vec()));
        // The last byte of a line begins an instruction.
        now.rip = 0x103f;
        assert_eq!(touched(&[0x48, 0x8b, 0x07], &now).0, 2);
    }
}
