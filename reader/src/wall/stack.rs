//! Walks the stack of a blocked thread from outside, with the call frame information of its modules.

use std::path::Path;

use nix::libc;
use offline::{NewMapping, Processes};
use selfwind_profile::profile_file::{ModuleGone, ModuleInfo};
use unwind::{End, FoundBy, Frame, Registers};

use super::blocked::Blocked;
use super::frame_pointer::{Record, Words, candidates};
use super::memory::RemoteMemory;

/// ELF `p_flags`: executable.
const EXECUTABLE: u32 = 1;
/// The numbers of rdi, rbp and rsp (System V ABI AMD64, figure 3.36).
const DI: usize = 5;
const FP: usize = 6;
const SP: usize = 7;
/// Stands for an unknown register: not a valid address.
const UNKNOWN: u64 = 0xdead_0000_0000_0001;
/// Maximum number of frame records to try for one stack.
const ATTEMPTS: usize = 32;

/// A stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stack {
    /// Frame words, leaf first.
    pub(super) frames: Vec<u64>,
    /// Why the walk ended.
    pub(super) end: End,
}

impl Stack {
    /// Whether it reaches the root, without a frame that was guessed.
    pub(super) fn is_certain(&self) -> bool {
        self.end.is_complete()
            && self.frames.iter().all(|frame| Frame::from_bits(*frame).found_by() != FoundBy::Guess)
    }
}

/// A walked stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NativeStack {
    /// Frame words, leaf first.
    pub(super) frames: Vec<u64>,
    /// The stack pointer of each; 0 if unknown.
    pub(super) pointers: Vec<u64>,
    /// Why the walk ended.
    pub(super) end: End,
}

impl NativeStack {
    /// Without frames.
    pub(super) fn empty(end: End) -> Self {
        Self { frames: Vec::new(), pointers: Vec::new(), end }
    }

    /// Adds frames that are not native.
    pub(super) fn extend(&mut self, frames: impl IntoIterator<Item = u64>) {
        self.frames.extend(frames);
    }

    /// Without the stack pointers.
    pub(super) fn into_stack(self) -> Stack {
        Stack { frames: self.frames, end: self.end }
    }
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

    /// Adds a module of a process, whose file is here under this path.
    pub(super) fn map(&mut self, module: &ModuleInfo, path: &Path) {
        use std::os::unix::ffi::OsStrExt;
        let code = module.segments.iter().filter(|segment| segment.flags & EXECUTABLE != 0);
        for segment in code {
            let mapping = NewMapping {
                start: segment.address,
                len: segment.len,
                offset: segment.pgoff,
                path: path.as_os_str().as_bytes(),
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

    /// Walks the stack of a blocked thread in the process with this memory.
    pub(super) fn walk(
        &mut self,
        process: u32,
        ns: u64,
        blocked: Blocked,
        memory: &mut RemoteMemory<'_>,
    ) -> NativeStack {
        let without = self.attempt(process, ns, blocked, UNKNOWN, memory);
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
        let records = candidates(memory, function, last.address(), sp, &mut begins);
        for Record { address, is_certain } in records.into_iter().take(ATTEMPTS) {
            let mut with = self.attempt(process, ns, blocked, address, memory);
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
    ) -> NativeStack {
        let mut registers = Registers { pc: blocked.pc, r: [UNKNOWN; Registers::COUNT] };
        (registers.r[SP], registers.r[FP]) = (blocked.sp, fp);
        if blocked.call == Some(libc::SYS_vfork as u16) {
            // It has taken its return address off the stack. Where that was, the child may have put one of the same function, or, for
            // a moment, of the agent.
            let returns_to = blocked.sp.checked_sub(8).and_then(|slot| memory.word(slot));
            registers.r[DI] = returns_to.unwrap_or(UNKNOWN);
        }
        let mut stack = NativeStack::empty(End::NoModule);
        let walk = self.processes.frames_in(process, ns, &registers, memory, |placed| {
            stack.frames.push(placed.frame.bits());
            stack.pointers.push(placed.stack_pointer);
        });
        NativeStack { end: walk.end, ..stack }
    }
}

/// The same frame, marked as a guess.
fn guessed(frame: u64) -> u64 {
    let frame = Frame::from_bits(frame);
    Frame::new(frame.address(), FoundBy::Guess, frame.is_exact()).bits()
}
