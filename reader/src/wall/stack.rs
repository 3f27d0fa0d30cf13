//! Walks the stack of a blocked thread from outside, with the call frame information of its modules.

use std::fs::File;

use offline::{NewMapping, Processes};
use selfwind_profile::profile_file::{ModuleGone, ModuleInfo};
use unwind::{End, FoundBy, Frame, Registers};

use super::blocked::Blocked;
use super::frame_pointer::{Record, Words, candidates};
use super::memory::RemoteMemory;

/// ELF `p_flags`: executable.
const EXECUTABLE: u32 = 1;
/// The number of rbp and rsp (System V ABI AMD64, figure 3.36).
const FP: usize = 6;
const SP: usize = 7;
/// Stands for an unknown frame pointer: not a valid address.
const UNKNOWN: u64 = 0xdead_0000_0000_0001;
/// Maximum number of frame records to try for one stack.
const ATTEMPTS: usize = 32;

/// A walked stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stack {
    /// Frame words, leaf first.
    pub(super) frames: Vec<u64>,
    /// Why the walk ended.
    pub(super) end: End,
}

/// Walks stacks.
pub(super) struct Walker<'b> {
    processes: Processes<'b>,
}

impl Words for RemoteMemory<'_> {
    fn word(&mut self, address: u64) -> Option<u64> {
        RemoteMemory::word(self, address)
    }

    fn byte(&mut self, address: u64) -> Option<u8> {
        RemoteMemory::byte(self, address)
    }
}

impl<'b> Walker<'b> {
    pub(super) fn new(processes: Processes<'b>) -> Self {
        Self { processes }
    }

    /// Adds a module of a process.
    pub(super) fn map(&mut self, module: &ModuleInfo) {
        use std::os::unix::ffi::OsStrExt;
        let code = module.segments.iter().filter(|segment| segment.flags & EXECUTABLE != 0);
        for segment in code {
            let mapping = NewMapping {
                start: segment.address,
                len: segment.len,
                offset: segment.pgoff,
                path: module.path.as_os_str().as_bytes(),
                build_id: &module.build_id,
                executable: true,
            };
            self.processes.map(module.process, module.loaded_ns, &mapping);
        }
    }

    /// Removes a module of `len` bytes at `start`.
    pub(super) fn unmap(&mut self, gone: &ModuleGone, start: u64, len: u64) {
        self.processes.unmap(gone.process, gone.ns, start, len);
    }

    /// Forgets a process that has ended.
    pub(super) fn forget(&mut self, process: u32, ns: u64) {
        self.processes.exit(process, ns);
        self.processes.settle(ns);
    }

    /// Walks the stack of a blocked thread in the process with this `mem` file.
    pub(super) fn walk(&mut self, process: u32, ns: u64, blocked: Blocked, mem: &File) -> Stack {
        let mut memory = RemoteMemory::new(mem, blocked.sp);
        let without = self.attempt(process, ns, blocked, UNKNOWN, &mut memory);
        let known = without.frames.len();
        let Some(&last) = without.frames.last().filter(|_| !without.end.is_complete()) else {
            return without;
        };
        // This frame needs the unknown frame pointer. Its stack pointer is just above its return address.
        let last = Frame::from_bits(last);
        let sp = match known {
            1 => Some(blocked.sp),
            _ => memory.address_of(last.address()).and_then(|address| address.checked_add(8)),
        };
        let function = self.processes.function_at(process, ns, last.lookup_address());
        let (Some(sp), Some(function)) = (sp, function) else { return without };
        let mut begins = |address| self.processes.function_at(process, ns, address) == Some(address);
        let records = candidates(&mut memory, function, last.address(), sp, &mut begins);
        for Record { address, is_certain } in records.into_iter().take(ATTEMPTS) {
            let mut with = self.attempt(process, ns, blocked, address, &mut memory);
            if with.end.is_complete() && with.frames.len() > known {
                if !is_certain {
                    with.frames[known..].iter_mut().for_each(|frame| *frame = guessed(*frame));
                }
                return with;
            }
        }
        without
    }

    fn attempt(
        &mut self,
        process: u32,
        ns: u64,
        blocked: Blocked,
        fp: u64,
        memory: &mut RemoteMemory<'_>,
    ) -> Stack {
        let mut registers = Registers { pc: blocked.pc, ..Registers::default() };
        (registers.r[SP], registers.r[FP]) = (blocked.sp, fp);
        let mut frames = Vec::new();
        let walk = self.processes.frames_in(process, ns, &registers, memory, |placed| {
            frames.push(placed.frame.bits());
        });
        Stack { frames, end: walk.end }
    }
}

/// The same frame, marked as a guess.
fn guessed(frame: u64) -> u64 {
    let frame = Frame::from_bits(frame);
    Frame::new(frame.address(), FoundBy::Guess, frame.is_exact()).bits()
}
