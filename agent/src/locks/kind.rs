//! The watched functions: which lock each operates on, and how.
//!
//! A function's number is its index in the table of real functions.

/// `pthread_mutex_trylock`.
pub(super) const TRY_MUTEX: usize = 1;
/// `pthread_rwlock_tryrdlock`.
pub(super) const TRY_READ: usize = 6;
/// `pthread_rwlock_trywrlock`.
pub(super) const TRY_WRITE: usize = 10;
/// `mtx_trylock`.
pub(super) const C11_TRY: usize = 25;
/// `syscall` that waits on a futex.
pub(super) const FUTEX_WAIT: usize = 32;
/// `syscall` that wakes waiters of a futex.
pub(super) const FUTEX_WAKE: usize = 33;

const CLOCK_MUTEX: usize = 3;
const CLOCK_READ: usize = 8;
const CLOCK_WRITE: usize = 12;
const BARRIER: usize = 23;

/// Result of an attempt at a lock that is taken.
pub(super) const BUSY: i32 = libc::EBUSY;
/// `thrd_busy`, with glibc and musl.
pub(super) const C11_BUSY: i32 = 1;

/// Whether it is an attempt, which only the entries call.
pub(super) fn is_attempt(number: usize) -> bool {
    matches!(number, TRY_MUTEX | TRY_READ | TRY_WRITE | C11_TRY)
}

/// A function that was called.
#[derive(Clone, Copy)]
pub(super) struct Kind(pub(super) usize);

impl Kind {
    /// Whether it releases a lock or wakes waiters.
    pub(super) fn releases(self) -> bool {
        matches!(self.0, 4 | 13 | 17 | 18 | 22 | 27 | 30 | 31 | FUTEX_WAKE)
    }

    /// Index of the argument that is waited for or released.
    pub(super) fn subject(self) -> usize {
        usize::from(self.0 == FUTEX_WAIT || self.0 == FUTEX_WAKE)
    }

    /// Index of the argument that it releases before it waits: a condition's mutex, or the barrier that others wait at.
    pub(super) fn gives_up(self) -> Option<usize> {
        match self.0 {
            14..=16 | 28 | 29 => Some(1),
            BARRIER => Some(0),
            _ => None,
        }
    }

    /// Whether it locks a mutex with a timeout.
    pub(super) fn is_timed_mutex(self) -> bool {
        matches!(self.0, 2 | CLOCK_MUTEX | 26)
    }

    /// The attempt to make before a wait with a timeout, and its result if the lock is taken. For waits without a
    /// timeout the entry has made the attempt.
    pub(super) fn attempt(self) -> Option<(usize, i32)> {
        match self.0 {
            2 | CLOCK_MUTEX => Some((TRY_MUTEX, BUSY)),
            7 | CLOCK_READ => Some((TRY_READ, BUSY)),
            11 | CLOCK_WRITE => Some((TRY_WRITE, BUSY)),
            26 => Some((C11_TRY, C11_BUSY)),
            _ => None,
        }
    }

    /// Whether an attempt is equivalent to the function when the lock is free. glibc rejects unknown clocks, and for
    /// rwlocks invalid times, before it examines the lock.
    ///
    /// # Safety
    /// The arguments must be those of a call of this function.
    pub(super) unsafe fn may_attempt(self, arguments: &[u64; 6]) -> bool {
        let knows_clock = match self.0 {
            CLOCK_MUTEX | CLOCK_READ | CLOCK_WRITE => {
                [libc::CLOCK_REALTIME, libc::CLOCK_MONOTONIC].contains(&(arguments[1] as i32))
            }
            _ => true,
        };
        let limit = match self.0 {
            7 | 11 => Some(arguments[1]),
            CLOCK_READ | CLOCK_WRITE => Some(arguments[2]),
            _ => None,
        };
        // SAFETY: the caller promises this function's arguments; it would read the timeout itself, if there is one.
        let time = limit.map(|limit| unsafe { (limit as *const libc::timespec).as_ref() });
        let has_good_time = |time: &libc::timespec| (0..1_000_000_000).contains(&time.tv_nsec);
        knows_clock && time.is_none_or(|time| time.is_some_and(has_good_time))
    }
}
