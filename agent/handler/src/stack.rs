//! Reads of the interrupted thread's stack that can never fault.
//!
//! Inside the known bounds of the thread's stack a read is a plain load, as long as the walk has not had to guess. In the rest
//! of the stack (a coroutine's; a guard page) each page is probed once per walk, by a system call that reports an unmapped page
//! instead of faulting. The program's own code is read in place. Elsewhere (generated code, a wild pointer in a corrupt frame)
//! another thread may unmap a page after the probe, so the kernel copies what is read. Once the program has installed a
//! seccomp filter neither is done, and such memory counts as unreadable.

use platform::activity::is_filtered;
use platform::arch::load;
use platform::bounds::Bounds;
use platform::sys::{self, PAGE};
use unwind::Memory;

use crate::probed_pages::{NotCopied, ProbedPages};
use crate::program;

/// Probes per walk. Code without call frame information is probed frame by frame: as many as a walk has frames.
const PROBES: u32 = 1024;
/// Probes per walk that may fail, so that a chain of wild pointers stays cheap.
const WILD: u32 = 64;
/// Size in bytes of a stack whose bounds are not known, from the page below the stack pointer: that of a usual thread's.
const STACK: u64 = 8 << 20;

/// The memory that one walk may read.
pub struct Stack<'p> {
    /// What is known to be mapped.
    known: Bounds,
    pages: &'p mut ProbedPages,
    /// The stack pointer that the walk starts at.
    sp: u64,
    probes: u32,
    wild: u32,
    /// The walk has met memory that is not known to be mapped; most never do.
    uses_pages: bool,
}

impl<'p> Stack<'p> {
    /// Memory that is `known` to be mapped; elsewhere probed if `may_probe`, and system calls are not filtered. `sp` is the stack
    /// pointer, `pages` is the thread's.
    #[inline]
    pub(crate) fn new(known: Bounds, sp: u64, may_probe: bool, pages: &'p mut ProbedPages) -> Self {
        Self { wild: WILD, ..Self::probing(known, sp, if may_probe { PROBES } else { 0 }, pages) }
    }

    /// The same with a given number of probes, all of which may fail.
    #[inline]
    pub(crate) fn probing(known: Bounds, sp: u64, probes: u32, pages: &'p mut ProbedPages) -> Self {
        Self { known, pages, sp, probes, wild: probes, uses_pages: false }
    }

    /// Forgets the pages of earlier walks, once.
    fn use_pages(&mut self) {
        if !self.uses_pages {
            self.uses_pages = true;
            let unknown = match self.known.hold(self.sp) {
                true => Bounds::NONE,
                false => Bounds { low: self.sp.saturating_sub(PAGE), high: self.sp.saturating_add(STACK) },
            };
            self.pages.begin_walk([self.known, unknown]);
            if is_filtered() {
                self.probes = 0;
            }
        }
    }

    /// The word at `address`, in memory that is not known to be mapped.
    #[cold]
    #[inline(never)]
    fn unknown(&mut self, address: u64) -> Option<u64> {
        self.use_pages();
        if program::holds(address) {
            // SAFETY: the program's own code stays mapped.
            return Some(unsafe { load(address) });
        }
        if self.pages.in_stack(address) {
            // SAFETY: the pages were just probed, and nobody unmaps a stack in use.
            return self.is_readable(address).then(|| unsafe { load(address) });
        }
        let (aligned, shift) = (address & !7, address % 8 * 8);
        let low = self.copied(aligned)? >> shift;
        match shift {
            0 => Some(low),
            _ => Some(low | self.copied(aligned.checked_add(8)?)? << (64 - shift)),
        }
    }

    /// The aligned word at `address`, by a copy of the kernel's.
    fn copied(&mut self, address: u64) -> Option<u64> {
        let NotCopied(block) = match self.pages.copied(address) {
            Ok(word) => return word,
            Err(not_copied) => not_copied,
        };
        if self.probes == 0 || self.wild == 0 {
            return None;
        }
        self.probes -= 1;
        match self.pages.copy_block(block) {
            Some(true) => self.pages.copied(address).ok().flatten(),
            Some(false) => {
                self.wild -= 1;
                None
            }
            // SAFETY: the page was just probed. A kernel without copies has nothing better.
            None => self.page_is_readable(address & !(PAGE - 1)).then(|| unsafe { load(address) }),
        }
    }

    #[cold]
    fn is_readable(&mut self, address: u64) -> bool {
        let first = address & !(PAGE - 1);
        let Some(last) = address.checked_add(7).map(|end| end & !(PAGE - 1)) else { return false };
        self.page_is_readable(first) && (first == last || self.page_is_readable(last))
    }

    /// End of the page, if it is readable.
    #[cold]
    #[inline(never)]
    fn readable_until(&mut self, address: u64) -> u64 {
        self.use_pages();
        let page = address & !(PAGE - 1);
        if self.pages.in_stack(address) && self.page_is_readable(page) {
            page.saturating_add(PAGE)
        } else {
            address
        }
    }

    fn page_is_readable(&mut self, page: u64) -> bool {
        if self.pages.contains(page) {
            return true;
        }
        if self.probes == 0 || self.wild == 0 {
            return false;
        }
        self.probes -= 1;
        let readable = sys::is_readable(page);
        self.wild -= u32::from(!readable);
        if readable {
            self.pages.insert(page);
        }
        readable
    }
}

impl Memory for Stack<'_> {
    #[inline]
    fn read(&mut self, address: u64) -> Option<u64> {
        if !self.known.hold(address) {
            return self.unknown(address);
        }
        // SAFETY: the eight bytes lie in a range known to be mapped.
        Some(unsafe { load(address) })
    }

    #[inline]
    fn known_until(&mut self, address: u64) -> u64 {
        if self.known.hold(address) { self.known.high } else { self.readable_until(address) }
    }

    fn distrust(&mut self) {
        self.use_pages();
        self.known = Bounds::NONE;
    }

    #[inline]
    unsafe fn load(&mut self, address: u64) -> u64 {
        // SAFETY: the caller promises bytes within what `known_until` returned, which are mapped.
        unsafe { load(address) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_memory_is_read_without_probes() {
        let words = [1u64, 2, 3];
        let low = words.as_ptr() as u64;
        let mut pages = ProbedPages::new();
        let mut stack = Stack::new(Bounds { low, high: low + 24 }, low, false, &mut pages);
        assert_eq!(stack.read(low + 8), Some(2));
        assert_eq!(stack.read(low + 4), Some(2 << 32));
        assert_eq!(stack.read(low + 16), Some(3));
        assert_eq!(stack.read(low + 17), None);
        assert_eq!(stack.read(low - 1), None);
        assert_eq!(stack.read(u64::MAX), None);
    }

    #[test]
    fn the_program_is_read_in_place() {
        static CODE: [u64; 4] = [1, 2, 3, 4];
        let low = CODE.as_ptr() as u64;
        program::note(low, low + 24);
        let mut pages = ProbedPages::new();
        let mut stack = Stack::new(Bounds::NONE, 0, false, &mut pages);
        assert_eq!(
            [0, 8, 16, 17, 24].map(|at| stack.read(low + at)),
            [Some(1), Some(2), Some(3), None, None]
        );
        assert_eq!(stack.read(low - 1), None);
    }

    #[test]
    fn unknown_memory_is_probed() {
        let word = 7u64;
        let mut pages = ProbedPages::new();
        let mut stack = Stack::new(Bounds::NONE, 0, true, &mut pages);
        assert_eq!(stack.read(&raw const word as u64), Some(7));
        for wild in [0, 8, 0x7fff_ffff_f000, 0xdead_beef_dead_beef, u64::MAX - 7, u64::MAX] {
            assert_eq!(stack.read(wild), None, "{wild:x}");
        }
    }

    #[test]
    fn memory_that_another_thread_unmaps_is_never_loaded_from() {
        let page = sys::map_unlocked(PAGE as usize).unwrap();
        let words: [u64; PAGE as usize / 8] = core::array::from_fn(|n| n as u64 * 0x0123_4567_89ab_cdef);
        // SAFETY: the page was just mapped and has room for the words.
        unsafe { page.cast::<[u64; PAGE as usize / 8]>().write(words) };
        let (address, mut pages) = (page as u64, ProbedPages::new());
        let mut stack = Stack::new(Bounds::NONE, 0, true, &mut pages);
        // Of every alignment, also from two blocks.
        for offset in (0..PAGE - 8).step_by(3) {
            // SAFETY: the eight bytes lie in the page.
            assert_eq!(stack.read(address + offset), Some(unsafe { load(address + offset) }), "{offset}");
        }
        assert_eq!(stack.known_until(address), address, "nothing may be loaded from there");
        // SAFETY: mapped above, and nothing refers to it any more.
        unsafe { sys::call(libc::SYS_munmap, [page as usize, PAGE as usize, 0, 0, 0, 0]) };
        // In the same walk what was copied before may still be known, in the next one nothing is.
        (0..PAGE).step_by(8).for_each(|offset| _ = stack.read(address + offset));
        let mut stack = Stack::new(Bounds::NONE, 0, true, &mut pages);
        assert!((0..PAGE - 8).step_by(8).all(|offset| stack.read(address + offset).is_none()));
    }

    #[test]
    fn what_is_known_has_an_end() {
        let words = [1u64, 2, 3];
        let low = words.as_ptr() as u64;
        let bounds = Bounds { low, high: low + 24 };
        let mut pages = ProbedPages::new();
        let mut stack = Stack::new(bounds, low, false, &mut pages);
        assert_eq!(stack.known_until(low), low + 24);
        assert_eq!(stack.known_until(low + 16), low + 24);
        assert_eq!(stack.known_until(low + 17), low + 17);
        assert_eq!(stack.known_until(low - 1), low - 1);
        let mut probing = Stack::new(Bounds::NONE, low, true, &mut pages);
        assert_eq!(probing.known_until(low), (low & !(PAGE - 1)) + PAGE);
        assert_eq!(probing.known_until(8), 8);
    }

    #[test]
    fn probes_are_bounded() {
        let word = 7u64;
        let mut pages = ProbedPages::new();
        let mut stack = Stack::new(Bounds::NONE, 0, true, &mut pages);
        for page in 0..u64::from(WILD) {
            assert_eq!(stack.read(page << 12), None);
        }
        assert_eq!(stack.read(&raw const word as u64), None);
    }

    /// A register with any number in it may be taken for the frame pointer of each frame.
    #[test]
    fn a_walk_asks_once_for_what_is_not_there() {
        let mut pages = ProbedPages::new();
        let mut stack = Stack::new(Bounds::NONE, 0, true, &mut pages);
        for _ in 0..2 * WILD {
            assert_eq!((stack.read(8 << 40), stack.read(0xdead_beef_0300)), (None, None));
        }
        assert_eq!((stack.wild, stack.probes), (WILD - 2, PROBES - 2));
    }

    #[test]
    fn a_walk_may_look_at_the_code_of_every_frame() {
        static CODE: [[u64; PAGE as usize / 8]; 1100] = [[7; PAGE as usize / 8]; 1100];
        let mut pages = ProbedPages::new();
        let mut stack = Stack::new(Bounds::NONE, 0, true, &mut pages);
        for (number, page) in CODE.iter().enumerate() {
            let is_read = number < PROBES as usize;
            assert_eq!(stack.read(page.as_ptr() as u64), is_read.then_some(7), "{number}");
        }
    }
}
