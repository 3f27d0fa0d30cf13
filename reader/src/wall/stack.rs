//! The stack of a blocked thread, walked from outside with the tables of its modules.

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
/// In the place of a frame pointer that is not known: no address, and no record can lie there.
const UNKNOWN: u64 = 0xdead_0000_0000_0001;
/// Records that are tried for one stack.
const ATTEMPTS: usize = 32;

/// A stack as samples have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stack {
    /// Frame words, leaf first.
    pub(super) frames: Vec<u64>,
    /// Why there are no more.
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

    /// A module was mapped in a process, by its number.
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

    /// A module of this many bytes from `start` on is gone.
    pub(super) fn unmap(&mut self, gone: &ModuleGone, start: u64, len: u64) {
        self.processes.unmap(gone.process, gone.ns, start, len);
    }

    /// A process has ended.
    pub(super) fn forget(&mut self, process: u32, ns: u64) {
        self.processes.exit(process, ns);
        self.processes.settle(ns);
    }

    /// The stack of a thread that is blocked, in the process whose `mem` file this is.
    pub(super) fn walk(&mut self, process: u32, ns: u64, blocked: Blocked, mem: &File) -> Stack {
        let mut memory = RemoteMemory::new(mem, blocked.sp);
        let without = self.attempt(process, ns, blocked, UNKNOWN, &mut memory);
        let known = without.frames.len();
        let Some(&last) = without.frames.last().filter(|_| !without.end.is_complete()) else {
            return without;
        };
        // The frame that needed what is not known: its stack pointer is behind its return address.
        let last = Frame::from_bits(last);
        let sp = match known {
            1 => Some(blocked.sp),
            _ => memory.place_of(last.address()).and_then(|place| place.checked_add(8)),
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
