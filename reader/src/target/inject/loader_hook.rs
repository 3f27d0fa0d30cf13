//! Hooks the loader of a running process so that it notifies an injected agent of loads and unloads at once.
//!
//! The loader calls an empty function before and after each change, holding its lock, so that debuggers can set a breakpoint there;
//! its address is in `struct r_debug` (`r_brk`, link.h). Its only instruction is a `ret`, followed by padding. A jump to the agent
//! is written to the padding, which is never executed; then one byte turns the `ret` into a `nop`. So at any instant a thread
//! there executes complete, valid instructions. Restoring one byte removes the hook.

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
/// Size of a `jmp` with its displacement.
const JUMP_SIZE: usize = 5;
/// Alignment of functions.
const LINE: u64 = 16;
/// Compilers' padding between functions: `nop`s of all lengths, and `int3`.
const FILLERS: [&[u8]; 7] =
    [&[0x66, 0x66], &[0x66, 0x2e], &[0x66, 0x0f, 0x1f], &[0x0f, 0x1f], &[0x66, 0x90], &[0x90], &[0xcc]];
/// The reach of a `jmp` in bytes.
const REACH: u64 = (1 << 31) - (64 << 20);

/// The loader's empty function.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoaderHook {
    /// Its `ret`.
    ret: u64,
}

impl LoaderHook {
    /// Finds it in the process with this memory, from its `struct r_debug`; `None` if there is no loader, or its function is not as
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

    /// Makes the loader call the code at `target`.
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

    /// Removes the hook.
    pub(super) fn clear(self, memory: &Memory) -> io::Result<()> {
        let mut found = [0];
        memory.read(self.ret, &mut found)?;
        if found == [NOP] { memory.write(self.ret, &[RET]) } else { Ok(()) }
    }

    /// True if the hook is set.
    pub(super) fn is_set(self, memory: &Memory) -> bool {
        let mut found = [0];
        memory.read(self.ret, &mut found).is_ok() && found == [NOP]
    }

    /// The start of a free address range of `bytes` within reach of a jump.
    pub(super) fn near(self, mappings: &[Mapping], bytes: u64) -> Option<u64> {
        /// Kept free on both sides, as stacks and heaps grow.
        const APART: u64 = 1 << 20;
        /// Kept free below the main thread's stack, to which the kernel leaves more than its limit.
        const BELOW_STACK: u64 = 1 << 30;
        let is_near = |start: &u64| start.abs_diff(self.ret) < REACH;
        let holes = mappings.windows(2).filter_map(|pair| match pair {
            [before, after] if before.path != Path::new("[heap]") && after.path != Path::new("[stack]") => {
                let start = after.start.checked_sub(bytes + APART)?;
                (start >= before.end.checked_add(APART)?).then_some(start)
            }
            _ => None,
        });
        let below_stack = || {
            let [before, stack] = mappings.windows(2).find(|pair| pair[1].path == Path::new("[stack]"))?
            else {
                return None;
            };
            let start = before.end.checked_add(APART)?;
            (start.checked_add(bytes + BELOW_STACK)? <= stack.start).then_some(start).filter(is_near)
        };
        holes.filter(is_near).min_by_key(|start| start.abs_diff(self.ret)).or_else(below_stack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_gets_a_place_within_reach() {
        const GIB: u64 = 1 << 30;
        const MIB: u64 = 1 << 20;
        let loader = 0x7f00_0000_0000;
        let near = |mappings: &[(u64, u64, &str)]| {
            let mapping = |&(start, end, path): &(u64, u64, &str)| {
                Mapping::parse(format!("{start:x}-{end:x} r-xp 0 fe:00 1 {path}").as_bytes()).unwrap()
            };
            LoaderHook { ret: loader }.near(&mappings.iter().map(mapping).collect::<Vec<_>>(), 4 * MIB)
        };
        let heap = (GIB, 2 * GIB, "[heap]");
        let library = |distance: u64| (loader - distance, loader - distance + MIB, "/lib/a.so");
        let itself = (loader, loader + MIB, "/lib/ld.so");
        let stack = |distance: u64| (loader + distance, loader + distance + MIB, "[stack]");
        // Between the library and the loader; not next to a heap or too near a stack.
        assert_eq!(near(&[heap, library(64 * MIB), itself, stack(GIB)]), Some(loader - 5 * MIB));
        assert_eq!(near(&[heap, library(MIB), itself, stack(GIB)]), None);
        // Between the library and the loader, though that is further away.
        assert_eq!(near(&[heap, library(64 * MIB), itself, stack(2 * GIB)]), Some(loader - 5 * MIB));
        // Above the loader if there is no room below it.
        assert_eq!(near(&[heap, library(MIB), itself, stack(2 * GIB)]), Some(loader + 2 * MIB));
        // Out of reach.
        let far = [(GIB, 2 * GIB, "/a"), (loader - 3 * GIB, loader, "/b"), itself, stack(GIB)];
        assert_eq!(near(&far), None);
    }
}
