//! Threads that nobody announces: made by a bare `clone`, by the C library for itself, or in a process that the agent
//! came into when it ran already.
//!
//! Now and then a tick looks whether the process has more threads than have slots, and gives those a slot and a timer on
//! their CPU clock. So a thread is found as long as one that is known uses CPU time, and none is interrupted for it.
//! Twice must a thread be seen without a slot: one that is about to end has given its slot back. And while a
//! `pthread_create` is under way nobody is looked for: that thread will say so itself.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use crate::activity::Active;
use crate::process::{self, Recording, Source};
use crate::slot::{self, Slot};
use crate::sys;
use crate::thread_timer;

/// CPU time of the process between two looks.
const INTERVAL_NS: u64 = 50_000_000;
/// Threads that are taken in, or found gone, by one look.
const AT_ONCE: usize = 64;
/// Words of the sieve for thread ids.
const SIEVE: usize = 32;
/// What a directory has beside its entries: itself and the one above.
const OWN_LINKS: u64 = 2;
const TASKS: &core::ffi::CStr = c"/proc/self/task";

/// Threads that `pthread_create` was asked for, and those of them that have slots or came to nothing.
static ASKED_FOR: AtomicU32 = AtomicU32::new(0);
static SETTLED: AtomicU32 = AtomicU32::new(0);

/// A thread is about to be made that will say so itself.
pub fn expect() {
    ASKED_FOR.fetch_add(1, Ordering::SeqCst);
}

/// Such a thread has its slot, or did not come to be.
pub fn settle() {
    SETTLED.fetch_add(1, Ordering::SeqCst);
}

/// Forgets, in a forked child, threads that are not there any more.
pub fn forget_expected() {
    SETTLED.store(ASKED_FOR.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// The number of threads asked for, if none is under way.
fn expected() -> Option<u32> {
    let asked_for = ASKED_FOR.load(Ordering::SeqCst);
    (SETTLED.load(Ordering::SeqCst) == asked_for).then_some(asked_for)
}

/// When to look, and what was seen.
#[derive(Debug)]
pub struct Newcomers {
    signal: i32,
    period_ns: AtomicU64,
    passed_ns: AtomicU64,
    looking: AtomicBool,
    /// Without slots when last looked.
    seen: [AtomicU32; AT_ONCE],
}

impl Newcomers {
    /// For timers of this signal and period; for a period of 0 nobody is looked for.
    pub fn new(signal: i32, period_ns: u64) -> Self {
        Self {
            signal,
            period_ns: AtomicU64::new(period_ns),
            passed_ns: AtomicU64::new(0),
            looking: AtomicBool::new(false),
            seen: [const { AtomicU32::new(0) }; AT_ONCE],
        }
    }

    /// Another period, from now on.
    pub fn set_period(&self, period_ns: u64) {
        self.period_ns.store(period_ns, Ordering::Relaxed);
    }

    /// A tick came that stands for so many periods: looks, if it is time to.
    pub(crate) fn tick(&self, recording: &Recording, periods: u32) {
        let more = self.period_ns.load(Ordering::Relaxed).saturating_mul(periods.into());
        let passed = self.passed_ns.fetch_add(more, Ordering::Relaxed).saturating_add(more);
        if passed < INTERVAL_NS || recording.source == Source::ProcessTimer {
            return;
        }
        let Some(_active) = Active::enter() else { return };
        // Another thread may be at it.
        if !self.looking.swap(true, Ordering::Acquire) {
            self.passed_ns.store(0, Ordering::Relaxed);
            self.look(recording);
            self.looking.store(false, Ordering::Release);
        }
    }

    #[cold]
    fn look(&self, recording: &Recording) {
        let Some(expected) = expected() else { return };
        let strangers = slot::strangers().next().is_some();
        if threads() == Some(slot::count() as u64) && !strangers {
            return;
        }
        if strangers {
            bury(recording);
        }
        let mut known = Sieve::new();
        slot::taken().for_each(|slot| known.add(slot.tid()));
        let mut seen = 0;
        each_thread(&mut |tid| {
            if known.may_have(tid) || seen == AT_ONCE {
                return;
            }
            // None is under way now, and none was: whoever was listed by then has been made by somebody else.
            if is_still(expected) && self.was_seen(tid) {
                self.take_in(tid);
            } else if let Some(place) = self.seen.get(seen) {
                place.store(tid, Ordering::Relaxed);
                seen += 1;
            }
        });
        self.seen.iter().skip(seen).for_each(|place| place.store(0, Ordering::Relaxed));
    }

    fn was_seen(&self, tid: u32) -> bool {
        self.seen.iter().any(|place| place.load(Ordering::Relaxed) == tid)
    }

    /// Gives a thread a slot and a timer.
    fn take_in(&self, tid: u32) {
        let Some(slot) = slot::adopt(tid, process::next_sequence()) else {
            // Room for the next look.
            return slot::make_room();
        };
        if slot.timer() == Slot::NO_TIMER
            && thread_timer::arm(slot, self.signal, self.period_ns.load(Ordering::Relaxed), 0).is_err()
            && slot.end_adoption()
        {
            // It is gone, or the user may have no more timers.
            thread_timer::disarm(slot);
            slot.release();
        }
    }
}

fn is_still(before: u32) -> bool {
    fence(Ordering::SeqCst);
    expected() == Some(before)
}

/// Gives up the slots of threads that are gone.
fn bury(recording: &Recording) {
    let process = sys::process_id() as usize;
    for slot in slot::strangers().take(AT_ONCE) {
        // SAFETY: signal 0 only asks whether the thread is there.
        let found = unsafe { sys::call(libc::SYS_tgkill, [process, slot.tid() as usize, 0, 0, 0, 0]) };
        if found == -libc::ESRCH as isize && slot.end_adoption() {
            thread_timer::disarm(slot);
            recording.region.control().leave_out(slot.take_put_off().into());
            if slot.cursor.close(&recording.region).wake {
                recording.ring();
            }
            slot.release();
        }
    }
}

/// How many threads the process has: each is a directory.
fn threads() -> Option<u64> {
    let mut status = core::mem::MaybeUninit::<libc::stat>::zeroed();
    let arguments = [libc::AT_FDCWD as usize, TASKS.as_ptr() as usize, status.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: the kernel reads a C string and writes one `stat` of its own layout, which is libc's on x86-64.
    let result = unsafe { sys::call(libc::SYS_newfstatat, arguments) };
    // SAFETY: zeroes are a `stat`, and so is what the kernel writes.
    let links = unsafe { status.assume_init() }.st_nlink;
    (result == 0).then(|| links.saturating_sub(OWN_LINKS))
}

/// Calls `see` with the id of each thread of the process.
fn each_thread(see: &mut dyn FnMut(u32)) {
    /// `linux_dirent64`: inode 8, offset 8, record length 2, type 1, name.
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let flags = (libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) as usize;
    let arguments = [libc::AT_FDCWD as usize, TASKS.as_ptr() as usize, flags, 0, 0, 0];
    // SAFETY: the path is a C string.
    let directory = unsafe { sys::call(libc::SYS_openat, arguments) };
    let Ok(directory) = usize::try_from(directory) else { return };
    let mut buffer = [0u8; 512];
    loop {
        let arguments = [directory, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0];
        // SAFETY: the kernel writes at most the buffer's length into it.
        let got = unsafe { sys::call(libc::SYS_getdents64, arguments) };
        let Some(mut rest) = usize::try_from(got).ok().and_then(|got| buffer.get(..got)) else { break };
        if rest.is_empty() {
            break;
        }
        while let Some(&[low, high]) = rest.get(LENGTH..LENGTH + 2) {
            let length = usize::from(u16::from_le_bytes([low, high]));
            if let Some(tid) = rest.get(NAME..length).and_then(number) {
                see(tid);
            }
            rest = rest.get(length.max(NAME)..).unwrap_or(&[]);
        }
    }
    // SAFETY: the descriptor was opened above.
    unsafe { sys::call(libc::SYS_close, [directory, 0, 0, 0, 0, 0]) };
}

/// The decimal number before the first NUL.
fn number(name: &[u8]) -> Option<u32> {
    let digits = name.split(|byte| *byte == 0).next().filter(|digits| !digits.is_empty())?;
    digits.iter().try_fold(0u32, |sum, digit| {
        let digit = u32::from(*digit).checked_sub(u32::from(b'0')).filter(|digit| *digit < 10)?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// A set of thread ids that may hold more than was put in, another excess each time.
struct Sieve {
    bits: [u64; SIEVE],
    salt: u32,
}

impl Sieve {
    fn new() -> Self {
        Self { bits: [0; SIEVE], salt: crate::clock::now() as u32 | 1 }
    }

    fn place(&self, tid: u32) -> (usize, u64) {
        let mixed = tid.wrapping_mul(self.salt).wrapping_mul(0x9e37_79b1) >> 21;
        (mixed as usize / 64, 1 << (mixed % 64))
    }

    fn add(&mut self, tid: u32) {
        let (word, bit) = self.place(tid);
        if let Some(word) = self.bits.get_mut(word) {
            *word |= bit;
        }
    }

    fn may_have(&self, tid: u32) -> bool {
        let (word, bit) = self.place(tid);
        self.bits.get(word).is_none_or(|word| word & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn threads_are_counted_and_listed() {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..40 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                    }
                });
            }
            let mut found = Vec::new();
            each_thread(&mut |tid| found.push(tid));
            stop.store(true, Ordering::Relaxed);
            assert!(found.len() > 40 && found.contains(&sys::thread_id()), "{found:?}");
        });
        assert!(threads().is_some_and(|threads| threads >= 1));
    }

    #[test]
    fn a_sieve_keeps_what_it_has_and_misses_few_others() {
        let mut sieve = Sieve::new();
        (1000..1100).for_each(|tid| sieve.add(tid));
        assert!((1000..1100).all(|tid| sieve.may_have(tid)));
        let missed = (2000..3000).filter(|&tid| sieve.may_have(tid)).count();
        assert!(missed < 500, "{missed}");
    }

    #[test]
    fn names_are_numbers_or_nothing() {
        assert_eq!(number(b"4711\0\0x"), Some(4711));
        for name in [&b".\0"[..], b"..\0", b"", b"\0", b"12a\0", b"99999999999\0"] {
            assert_eq!(number(name), None);
        }
    }

    #[test]
    fn nobody_is_looked_for_while_a_thread_is_under_way() {
        let before = expected();
        expect();
        assert!(expected().is_none());
        settle();
        assert!(expected().is_some() && expected() != before);
    }
}
