//! Decides which allocations are sampled, by a Poisson process over the bytes that each thread allocates.
//!
//! The distance to the next sample is exponentially distributed. So a block of S bytes is sampled with probability
//! `1 - exp(-S/R)` whatever came before it, and readers divide by that.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use super::alone;
use crate::distance;

/// The state of a thread.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Countdown {
    /// Bytes until the next sample: an allocation of at least this size takes the slow path. 0 before a distance has been drawn,
    /// and while the thread is [`alone`](super::alone).
    left: u64,
    /// State of the random number generator; 0 before the first number.
    random: u64,
    /// The stack pointer of the call in progress; 0 if there is none.
    pub(super) inside: u64,
    /// The value of `left` before that call.
    pub(super) saved: u64,
    /// Number of calls nested in that one.
    pub(super) nested: u64,
    /// Number of recorded allocations.
    pub(super) serial: u64,
}

platform::thread_block!(fn in_thread_locals() -> Countdown, "selfwind_countdown");

/// The calling thread's; `None` if there is no room for it.
#[inline(always)]
pub(super) fn own() -> Option<*mut Countdown> {
    in_thread_locals().or_else(|| SHARED.of_thread(thread_pointer()))
}

/// The address of the thread's control block, which is its first word (System V ABI, x86-64 supplement; TLS variant II).
fn thread_pointer() -> u64 {
    let pointer;
    // SAFETY: every thread that allocates has a control block of the C library.
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    pointer
}

/// The countdowns in a process into which the agent was injected: its threads have no thread-local storage of the agent's.
/// No two threads have their control blocks in one page. A place is never given up: a later thread with the same control
/// block continues there, which is as good as a new one, because the exponential distribution has no memory.
#[repr(C, align(64))]
pub(super) struct Place {
    countdown: UnsafeCell<Countdown>,
    /// Its thread's pointer; 0 if it is free.
    owner: AtomicU64,
    _free: u64,
}

/// Number of places.
pub(super) const PLACES: usize = 1 << 12;
/// Size of a place as a power of two.
pub(super) const PLACE_SHIFT: usize = 6;
/// Where a place names its owner.
pub(super) const OWNER_AT: usize = core::mem::offset_of!(Place, owner);
/// Places that a thread may have, from its own one on.
const TRIED: usize = 32;

const _: () = assert!(size_of::<Place>() == 1 << PLACE_SHIFT);

pub(super) struct Places([Place; PLACES]);

// SAFETY: a countdown is used by the thread that owns its place.
unsafe impl Sync for Places {}

const EMPTY: Countdown = Countdown { left: 0, random: 0, inside: 0, saved: 0, nested: 0, serial: 0 };

pub(super) static SHARED: Places = Places(
    [const { Place { countdown: UnsafeCell::new(EMPTY), owner: AtomicU64::new(0), _free: 0 } }; PLACES],
);

impl Places {
    fn of_thread(&self, pointer: u64) -> Option<*mut Countdown> {
        let first = (pointer >> 12) as usize;
        let mut places = (first..first + TRIED).filter_map(|place| self.0.get(place % PLACES));
        let is_own = |place: &&Place| match place.owner.load(Ordering::Relaxed) {
            0 => place.owner.compare_exchange(0, pointer, Ordering::Relaxed, Ordering::Relaxed).is_ok(),
            owner => owner == pointer,
        };
        places.find(is_own).map(|place| place.countdown.get())
    }

    /// Lets all threads draw new distances.
    pub(super) fn begin(&self) {
        self.0.iter().filter(|place| place.owner.load(Ordering::Relaxed) != 0).for_each(|place| {
            let countdown = place.countdown.get();
            // SAFETY: a word of a live countdown; a race with its owner changes the distance of one sample at most.
            unsafe { (&raw mut (*countdown).left).write_volatile(0) };
        });
    }
}

impl Countdown {
    /// Bytes until the next sample; 0 if no distance has been drawn.
    pub(super) fn left(&mut self) -> u64 {
        self.place().load(Ordering::Relaxed)
    }

    pub(super) fn set_left(&mut self, left: u64) {
        self.place().store(left, Ordering::Relaxed);
    }

    /// From now on, each allocation of the thread may be sampled.
    #[inline(always)]
    pub(super) fn skip_none(&mut self) {
        self.left = 0;
        alone::skip_none();
    }

    /// Counts an allocation of `size` bytes. Whether it is sampled, so that a new distance has been drawn, `mean` bytes on average.
    #[inline(never)]
    pub(super) fn is_reached_by(&mut self, size: u64, mean: u64) -> bool {
        let left = match self.left() {
            0 => self.draw(mean),
            left => left,
        };
        let is_reached = left <= size;
        let left = if is_reached { self.draw(mean) } else { left - size };
        self.set_left(left);
        is_reached
    }

    fn draw(&mut self, mean: u64) -> u64 {
        distance::draw(&mut self.random, mean)
    }

    /// Where the countdown is. Before it is known that the process has several threads, another one may use it, too, which at worst
    /// changes the distance of a sample.
    fn place(&mut self) -> &AtomicU64 {
        // SAFETY: `self` is borrowed for as long, and nothing else refers to its countdown.
        alone::left_of(thread_pointer()).unwrap_or_else(|| unsafe { AtomicU64::from_ptr(&raw mut self.left) })
    }
}
