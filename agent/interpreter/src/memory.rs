//! Reads of an interpreter's memory that can never fault.
//!
//! Its frames, code and names lie on the heap, which another thread may unmap at any time, and pointers to the stack may be
//! old ones. So each page is asked for once per walk (`sys::is_readable`), and nothing of that is believed in the next one.
//! That is a system call, so what need not be asked for is not: ranges that nobody may unmap (the interpreter's own data,
//! where its modules of the start and its main thread's state are, the used part of the thread's stack, the thread's state
//! and the chunk of its data stack). Objects that are certainly alive (`python::trust`) are not read by this at all.

use platform::arch::load;
use platform::bounds::Bounds;
use platform::sys::{self, PAGE, SignalsBlocked};

const ENTRIES: usize = 128;
/// Probes per walk, so that a chain of wild pointers stays cheap.
const PROBES: u32 = 512;

/// The pages seen readable in a walk, each beside the number of that walk.
pub(crate) struct Pages {
    /// By page: its address and, in the low bits, the walk.
    seen: [u64; ENTRIES],
    /// 1 to 4095; 0 before the first.
    walk: u64,
}

impl Pages {
    pub(crate) fn begin(&mut self) {
        self.walk += 1;
        if self.walk >= PAGE {
            self.seen.fill(0);
            self.walk = 1;
        }
    }
}

/// Whether the thread has all signals blocked. A probe may change the mask (`sys::is_readable`), so it needs that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signals {
    /// It has: this is its handler.
    Blocked,
    /// It has not; they are from the first probe to the end of the walk.
    Open,
}

/// What stays mapped for the rest of a walk, beside what is known at its start: one range of each kind.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lasting {
    /// A thread state.
    State = 2,
    /// A chunk of the data stack.
    Chunk = 3,
}

/// The memory that one walk may read.
pub(crate) struct Memory<'a> {
    pages: &'a mut Pages,
    known: [Bounds; 4],
    probes: u32,
    signals: Signals,
    blocked: Option<SignalsBlocked>,
}

impl<'a> Memory<'a> {
    /// All that can be read if `may_probe`, else nothing. The `known` ranges are mapped.
    pub(crate) fn new(may_probe: bool, signals: Signals, pages: &'a mut Pages, known: [Bounds; 2]) -> Self {
        pages.begin();
        let [first, second] = known;
        match may_probe {
            true => Self {
                known: [first, second, Bounds::NONE, Bounds::NONE],
                signals,
                ..Self::resume(pages, PROBES)
            },
            false => Self::resume(pages, 0),
        }
    }

    /// The memory of a walk that has begun, with so many probes left. Signals are blocked.
    pub(crate) fn resume(pages: &'a mut Pages, probes: u32) -> Self {
        let known = [Bounds::NONE; 4];
        Self { pages, known, probes, signals: Signals::Blocked, blocked: None }
    }

    /// Notes a range that stays mapped for the rest of the walk, in the place of the last one of its kind. So do its pages: the
    /// outermost `_PyCFrame` of 3.11 and 3.12 lies behind the fields of the thread state that are read.
    ///
    /// # Safety
    /// It does.
    pub(super) unsafe fn keep(&mut self, kind: Lasting, range: Bounds) {
        if let Some(known) = self.known.get_mut(kind as usize) {
            let high = range.high.checked_next_multiple_of(PAGE).unwrap_or(range.high);
            *known = Bounds { low: range.low & !(PAGE - 1), high };
        }
    }

    /// Notes that the page of an address has been read.
    #[inline]
    pub(super) fn saw(&mut self, address: u64) {
        let page = address & !(PAGE - 1);
        if let Some(seen) = self.pages.seen.get_mut((page / PAGE) as usize % ENTRIES) {
            *seen = page | self.pages.walk;
        }
    }

    /// Probes that are left.
    pub(crate) fn probes(&self) -> u32 {
        self.probes
    }

    /// The word at `address`, of any alignment. Apart: it is called from everywhere.
    #[inline(never)]
    pub(crate) fn word(&mut self, address: u64) -> Option<u64> {
        // SAFETY: the eight bytes lie in what is known to be mapped, or in pages that were just seen so.
        self.spans_readable(address).then(|| unsafe { load(address) })
    }

    /// The word at `offset` of the structure at `base`.
    pub(crate) fn field(&mut self, base: u64, offset: u16) -> Option<u64> {
        self.word(base.checked_add(offset.into())?)
    }

    /// A field of 32 bits.
    #[inline(never)]
    pub(crate) fn half(&mut self, base: u64, offset: u16) -> Option<u32> {
        // A word from the same eight bytes on: never beyond the page that holds the field.
        let address = base.checked_add(offset.into())?;
        let word = self.word(address & !7)?;
        (address % 8 <= 4).then(|| (word >> (address % 8 * 8)) as u32)
    }

    /// Copies the bytes from `address` on.
    pub(crate) fn copy(&mut self, address: u64, to: &mut [u8]) -> Option<()> {
        let mut at = address;
        for part in to.chunks_mut(8) {
            // The last word is read up to its end: from aligned ones, so that nothing beyond its page is touched.
            let (low, shift) = (at & !7, at % 8 * 8);
            let mut word = self.word(low)? >> shift;
            if shift != 0 && part.len() as u64 > 8 - at % 8 {
                word |= self.word(low.checked_add(8)?)? << (64 - shift);
            }
            let bytes = word.to_le_bytes();
            part.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
            at = at.checked_add(8)?;
        }
        Some(())
    }

    #[inline]
    fn spans_readable(&mut self, address: u64) -> bool {
        if self.known.iter().any(|range| range.hold(address)) {
            return true;
        }
        let first = address & !(PAGE - 1);
        let Some(last) = address.checked_add(7).map(|end| end & !(PAGE - 1)) else { return false };
        self.is_readable(first) && (first == last || self.is_readable(last))
    }

    #[inline]
    fn is_readable(&mut self, page: u64) -> bool {
        let index = (page / PAGE) as usize % ENTRIES;
        self.pages.seen.get(index) == Some(&(page | self.pages.walk)) || self.probe(page, index)
    }

    #[cold]
    fn probe(&mut self, page: u64, index: usize) -> bool {
        let Some(left) = self.probes.checked_sub(1) else { return false };
        self.probes = left;
        if self.signals == Signals::Open && self.blocked.is_none() {
            self.blocked = Some(SignalsBlocked::enter());
        }
        let readable = sys::is_readable(page);
        if readable && let Some(seen) = self.pages.seen.get_mut(index) {
            *seen = page | self.pages.walk;
        }
        readable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> Pages {
        Pages { seen: [0; ENTRIES], walk: 0 }
    }

    #[test]
    fn fields_are_read_by_their_size() {
        let words = [0x1122_3344_5566_7788u64, 0x99aa_bbcc_ddee_ff00];
        let base = words.as_ptr() as u64;
        let mut pages = pages();
        let mut memory = Memory::new(true, Signals::Blocked, &mut pages, [Bounds::NONE; 2]);
        assert_eq!(memory.field(base, 4), Some(0xddee_ff00_1122_3344));
        assert_eq!((memory.half(base, 0), memory.half(base, 4)), (Some(0x5566_7788), Some(0x1122_3344)));
        let mut bytes = [0u8; 11];
        assert_eq!(memory.copy(base + 3, &mut bytes), Some(()));
        assert_eq!(bytes, [0x55, 0x44, 0x33, 0x22, 0x11, 0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb]);
        for wild in [0, 8, 0x7fff_ffff_f000, 0xdead_beef_dead_beef, u64::MAX - 7, u64::MAX] {
            assert_eq!((memory.word(wild), memory.copy(wild, &mut bytes)), (None, None), "{wild:x}");
        }
    }

    #[test]
    fn what_is_known_is_not_probed() {
        let words = [1u64, 2, 3];
        let low = words.as_ptr() as u64;
        let mut pages = pages();
        let mut memory =
            Memory::new(true, Signals::Blocked, &mut pages, [Bounds::NONE, Bounds { low, high: low + 16 }]);
        assert_eq!((memory.word(low), memory.word(low + 8), memory.probes()), (Some(1), Some(2), PROBES));
        assert_eq!((memory.word(low + 16), memory.probes() < PROBES), (Some(3), true));
    }

    #[test]
    fn nothing_is_believed_in_the_next_walk() {
        let word = 7u64;
        let address = &raw const word as u64;
        let mut pages = pages();
        assert_eq!(Memory::new(true, Signals::Blocked, &mut pages, [Bounds::NONE; 2]).word(address), Some(7));
        for _ in 0..2 * PAGE {
            let known = [Bounds { low: address, high: address + 8 }; 2];
            assert_eq!(Memory::new(false, Signals::Blocked, &mut pages, known).word(address), None);
        }
    }
}
