//! Texts that frames of unwinders name: each stored once for the life of the process, and found again by its key.
//!
//! Both ordinary code and handlers add texts, and no one waits: an entry in the table is claimed by one exchange, and a text
//! can be read once its word is there. A thread that is killed in between leaves a text that nobody finds. Memory is
//! mapped by [`prepare`], never in a handler, and a forked child has its parent's.

use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};
use core::{ptr, slice};

use platform::sys;

use crate::functions::Key;

/// Ids are less.
const IDS: usize = 1 << 17;
const BYTES: usize = 4 << 20;
/// Longest text; more is cut off.
pub const LONGEST: usize = 1024;
/// Entries by key; a power of two.
const ENTRIES: usize = 2 * IDS;
/// Entries that a key may have.
const WAYS: usize = 16;
/// Times that a thread tries to reserve while others do.
const ATTEMPTS: usize = 64;
/// In the word of a text: it is there.
const THERE: u64 = 1 << 63;

#[repr(C)]
struct Arena {
    /// `ids:32 | bytes:32` that are taken.
    taken: AtomicU64,
    /// By id: `THERE | offset << 16 | length`.
    texts: [AtomicU64; IDS],
    /// `hash:47 | id:17`; 0 is free.
    entries: [AtomicU64; ENTRIES],
    bytes: [AtomicU8; BYTES],
}

static ARENA: AtomicPtr<Arena> = AtomicPtr::new(ptr::null_mut());

fn arena() -> Option<&'static Arena> {
    // SAFETY: published by `prepare`, zeroed, never unmapped.
    unsafe { ARENA.load(Ordering::Acquire).as_ref() }
}

/// Maps the memory for texts; false if there is none. Not in a handler, and by one thread at a time.
pub fn prepare() -> bool {
    if arena().is_none()
        && let Some(mapped) = sys::map_unlocked(size_of::<Arena>())
    {
        ARENA.store(mapped.cast(), Ordering::Release);
    }
    arena().is_some()
}

/// The text of an id.
pub(super) fn text(id: u32) -> Option<&'static [u8]> {
    let arena = arena()?;
    let word = arena.texts.get(id as usize)?.load(Ordering::Acquire);
    let (offset, length) = ((word & !THERE) as usize >> 16, word as u16 as usize);
    let bytes = arena.bytes.get(offset..offset + length).filter(|_| word & THERE != 0)?;
    // SAFETY: written before the word was stored, which the load acquires, and never again.
    Some(unsafe { slice::from_raw_parts(bytes.as_ptr().cast(), length) })
}

/// The id of the text that `key` stands for. If there is none yet, `fill` writes its `length` bytes: 0 if it cannot, there is
/// no room, or there is nothing to write.
pub(super) fn intern(key: Key, length: usize, fill: impl FnOnce(&mut [u8]) -> Option<()>) -> u32 {
    let Some(arena) = arena() else { return 0 };
    let word = key.word() & !(IDS as u64 - 1);
    let entries =
        || (0..WAYS).filter_map(move |way| arena.entries.get((key.word() as usize ^ way) % ENTRIES));
    let known = |entry: &&AtomicU64| {
        let found = entry.load(Ordering::Acquire);
        found != 0 && found & !(IDS as u64 - 1) == word
    };
    if let Some(entry) = entries().find(known) {
        return (entry.load(Ordering::Relaxed) % IDS as u64) as u32;
    }
    let free = entries().find(|entry| entry.load(Ordering::Relaxed) == 0);
    let Some(entry) = free.filter(|_| length > 0) else { return 0 };
    let id = arena.add(length.min(LONGEST), fill).unwrap_or(0);
    if id != 0 {
        // If another thread was faster its text is found from now on, and this one is good too.
        let _ = entry.compare_exchange(0, word | u64::from(id), Ordering::Release, Ordering::Relaxed);
    }
    id
}

/// The id of `bytes`, which are their own key.
pub fn intern_text(bytes: &[u8]) -> u32 {
    let cut = bytes.get(..LONGEST).unwrap_or(bytes);
    let mut key = Key::new(cut.len() as u64);
    for part in cut.chunks(8) {
        key = key.and(part.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
    }
    intern(key, cut.len(), |room| {
        room.iter_mut().zip(cut).for_each(|(to, from)| *to = *from);
        Some(())
    })
}

impl Arena {
    fn add(&self, length: usize, fill: impl FnOnce(&mut [u8]) -> Option<()>) -> Option<u32> {
        let (id, offset) = self.reserve(length)?;
        let bytes = self.bytes.get(offset..offset + length)?;
        // SAFETY: reserved for this text alone, and read by nobody before its word is there.
        let room = unsafe { slice::from_raw_parts_mut(bytes.as_ptr().cast_mut().cast::<u8>(), length) };
        fill(room)?;
        self.texts.get(id)?.store(THERE | (offset << 16 | length) as u64, Ordering::Release);
        Some(id as u32)
    }

    /// An id from 1 on, and the offset of so many bytes.
    fn reserve(&self, length: usize) -> Option<(usize, usize)> {
        let mut taken = self.taken.load(Ordering::Relaxed);
        for _ in 0..ATTEMPTS {
            let (id, offset) = ((taken >> 32) as usize + 1, taken as u32 as usize);
            if id >= IDS || offset + length > BYTES {
                return None;
            }
            let next = (id as u64) << 32 | (offset + length) as u64;
            match self.taken.compare_exchange(taken, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some((id, offset)),
                Err(now) => taken = now,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn texts_are_kept_once() {
        assert!(prepare() && prepare());
        let first = intern_text(b"burn");
        assert_eq!((text(first), intern_text(b"burn")), (Some(&b"burn"[..]), first));
        let others: std::vec::Vec<u32> =
            (0..5000).map(|number| intern_text(std::format!("f{number}").as_bytes())).collect();
        for (number, id) in others.iter().enumerate() {
            assert_eq!(text(*id), Some(std::format!("f{number}").as_bytes()));
            assert_eq!(intern_text(std::format!("f{number}").as_bytes()), *id);
        }
        assert_eq!((text(0), text(u32::MAX)), (None, None));
        assert_eq!(text(intern_text(&[b'x'; 3000])).map(<[u8]>::len), Some(LONGEST));
        // By a key of one's own, whatever the text; one that cannot be read is nobody's.
        let key = Key::new(7).and(1);
        assert_eq!((intern(key, 4, |_| None), intern(key, 0, |_| Some(()))), (0, 0));
        let copy = |room: &mut [u8]| {
            room.copy_from_slice(b"abcd");
            Some(())
        };
        let keyed = intern(key, 4, copy);
        assert_eq!((text(keyed), intern(key, 0, |_| None)), (Some(&b"abcd"[..]), keyed));
    }
}
