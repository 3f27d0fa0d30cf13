//! How an agent in a process that runs already is told at once of what the loader loads and unloads.
//!
//! The loader calls an empty function after (and before) each change, holding its lock, for debuggers to put a breakpoint
//! there; its address stands in `struct r_debug` (`r_brk`, link.h). Its only instruction is a `ret`, with padding behind.
//! A jump to the agent goes into the padding, which nobody executes; then one byte turns the `ret` into a `nop`. So at any
//! instant a thread there finds whole instructions that do what they should. One byte takes it back.

use std::io;
use std::path::Path;

use crate::proc::Mapping;
use crate::target::inject::memory::Memory;

/// Offset of `r_brk` in `struct r_debug`.
const BREAKPOINT: u64 = 16;
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
const RET: u8 = 0xc3;
const NOP: u8 = 0x90;
const JUMP: u8 = 0xe9;
/// `jmp` and its distance.
const JUMP_SIZE: usize = 5;
/// Functions begin at multiples of this.
const LINE: u64 = 16;
/// What compilers fill the room between functions with: `nop`s of all lengths, and `int3`.
const FILLERS: [&[u8]; 7] =
    [&[0x66, 0x66], &[0x66, 0x2e], &[0x66, 0x0f, 0x1f], &[0x0f, 0x1f], &[0x66, 0x90], &[0x90], &[0xcc]];
/// A `jmp` reaches so far.
const REACH: u64 = (1 << 31) - (64 << 20);

/// The loader's empty function.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoaderHook {
    /// Its `ret`.
    ret: u64,
}

impl LoaderHook {
    /// In the process with this memory and this `struct r_debug`; none if there is no loader, or its function is not as
    /// expected.
    pub(super) fn find(memory: &Memory, debugger: u64) -> Option<Self> {
        let [function] = memory.words(debugger.checked_add(BREAKPOINT).filter(|_| debugger != 0)?).ok()?;
        let mut code = [0; LINE as usize];
        memory.read(function, &mut code).ok()?;
        let before = if code.starts_with(&ENDBR64) { ENDBR64.len() } else { 0 };
        let [first, rest @ ..] = &code[before..] else { return None };
        let room = (LINE - 1 - before as u64) as usize;
        let is_fresh = *first == RET && FILLERS.iter().any(|filler| rest.starts_with(filler));
        let is_ours = (*first == RET || *first == NOP) && rest.starts_with(&[JUMP]);
        let fits = function.is_multiple_of(LINE) && room >= JUMP_SIZE;
        (fits && (is_fresh || is_ours)).then_some(Self { ret: function + before as u64 })
    }

    /// Has the loader tell the code at `target`.
    pub(super) fn set(self, memory: &Memory, target: u64) -> io::Result<()> {
        let distance = target.wrapping_sub(self.ret + 1 + JUMP_SIZE as u64) as i64;
        let distance = i32::try_from(distance).map_err(|_| io::ErrorKind::AddrNotAvailable)?;
        let mut jump = [JUMP; JUMP_SIZE];
        jump[1..].copy_from_slice(&distance.to_le_bytes());
        let mut found = [0; JUMP_SIZE];
        memory.read(self.ret + 1, &mut found)?;
        if found != jump {
            self.clear(memory)?;
            memory.write(self.ret + 1, &jump)?;
        }
        memory.write(self.ret, &[NOP])
    }

    /// Has the loader tell nobody but debuggers.
    pub(super) fn clear(self, memory: &Memory) -> io::Result<()> {
        let mut found = [0];
        memory.read(self.ret, &mut found)?;
        if found == [NOP] { memory.write(self.ret, &[RET]) } else { Ok(()) }
    }

    /// True if the loader tells somebody.
    pub(super) fn is_set(self, memory: &Memory) -> bool {
        let mut found = [0];
        memory.read(self.ret, &mut found).is_ok() && found == [NOP]
    }

    /// A free place of so many `bytes` that a jump reaches.
    pub(super) fn near(self, mappings: &[Mapping], bytes: u64) -> Option<u64> {
        /// Left free at both ends: stacks and heaps grow.
        const APART: u64 = 1 << 20;
        let holes = mappings.windows(2).filter_map(|pair| match pair {
            [before, after] if before.path != Path::new("[heap]") && after.path != Path::new("[stack]") => {
                let start = after.start.checked_sub(bytes + APART)?;
                (start >= before.end.checked_add(APART)?).then_some(start)
            }
            _ => None,
        });
        holes.filter(|start| start.abs_diff(self.ret) < REACH).min_by_key(|start| start.abs_diff(self.ret))
    }
}
