//! Waits for locks as events: this library stands in front of the program's locks.
//!
//! Only in the build with the feature `locks`, which is preloaded for `-e lock` alone. Waits are sampled by a Poisson
//! process over the time that a thread waits, so that what is told adds up to all of it. While a thread waits, what it
//! waits for stands in a table ([`waited`]); whoever gives that up finds it there, and leaves its own stack: held here.
//! No thread is interrupted for that: the stack is taken after the lock was given up, so that nobody waits longer.
//!
//! What must never happen here: an allocation, a lock, a wait, a change of `errno`, another result than the program's C
//! library gives. A call may come before anything has started, from a signal handler, under the loader's lock, in a child
//! of `vfork`, or after `exit`; a wait may end by cancellation, or by a jump out of a signal handler.

mod entry;
mod glibc_mutex;
mod kind;
mod rate;
mod real;
mod waited;
mod waiter;

use core::sync::atomic::{AtomicU64, Ordering};

use handler::call::{self, Note};
use handler::clock;
use handler::recording::{self, Probe};
use shm_format::LockNonce;

use entry::Call;
pub(crate) use entry::futex;
use glibc_mutex::Approach;

/// Ticks of waiting between samples on average; 1 samples all waits. 0 before the start, and [`NEVER`] where nothing is
/// watched.
static MEAN: AtomicU64 = AtomicU64::new(NOT_YET);
const NOT_YET: u64 = 0;
const NEVER: u64 = u64::MAX;

/// From the moment a lock is given up until the waiter runs it may take so long: that much is allowed for.
const WAKE_UP_NS: u64 = 50_000;
/// Part of the mean that lies at least between two stacks of who gave the same lock up.
const GAP: u64 = 4;

/// No wait is watched, or nobody waits for what is given up.
const UNWATCHED: u64 = 0;

/// Finds the real functions.
pub(crate) fn find_real_functions() {
    real::find_all();
}

/// Samples from now on, one wait in `mean_ns` nanoseconds of waiting.
pub(crate) fn begin(mean_ns: u64) {
    rate::learn();
    let mean = if mean_ns <= 1 { 1 } else { rate::ticks(mean_ns) };
    MEAN.store(mean.clamp(1, NEVER - 1), Ordering::Relaxed);
}

/// Watches nothing in this process.
pub(crate) fn never() {
    MEAN.store(NEVER, Ordering::Relaxed);
}

/// Forgets, in a forked child, who waits in its parent.
pub(crate) fn forget_waits() {
    waited::forget();
    if let Some(own) = waiter::own() {
        // SAFETY: the thread's own; it is the only one of the process.
        let _ = unsafe { &mut *own }.abandon();
    }
}

/// The calling thread ends, perhaps in a wait that was cancelled.
pub(crate) fn thread_ends() {
    if let Some(own) = waiter::own()
        // SAFETY: the thread's own; all signals are blocked.
        && let Some(place) = unsafe { &mut *own }.abandon()
    {
        waited::leave(place, u64::MAX);
    }
}

/// What is to become of a call, in the two registers in which a function returns it.
#[repr(C)]
struct Decision {
    /// What `after` is told; or the result of a call that is made.
    word: u64,
    is_made: u64,
}

/// Before a call that has to wait, or for which somebody may wait.
unsafe extern "C" fn before(call: &Call) -> Decision {
    let approach = match call.kind().is_timed_mutex() {
        // SAFETY: the argument of a call of such a function.
        true => unsafe { glibc_mutex::approach(call.argument(0)) },
        false => Approach::Attempt,
    };
    if approach == Approach::Take {
        return Decision { word: UNWATCHED, is_made: 0 };
    }
    if approach == Approach::Attempt
        && let Some(result) = attempt(call)
    {
        return Decision { word: result as u64, is_made: 1 };
    }
    let mean = MEAN.load(Ordering::Relaxed);
    let word = match mean {
        NOT_YET | NEVER => UNWATCHED,
        _ if call.kind().releases() => give_up(call.argument(call.kind().subject()), mean).into(),
        _ => wait(call, mean),
    };
    Decision { word, is_made: 0 }
}

/// After it.
unsafe extern "C" fn after(call: &Call, word: u64) {
    if word == UNWATCHED {
        return;
    }
    if call.kind().releases() {
        return record(call, LockNonce::holder(word as u32));
    }
    let ticks = clock::now().saturating_sub(word);
    let Some(own) = waiter::own() else { return };
    // SAFETY: the thread's own; a signal handler that gets in between leaves it as it was, or draws anew.
    let own = unsafe { &mut *own };
    let place = own.end(core::ptr::from_ref(call) as u64);
    let link = place.map_or(0, |place| waited::leave(place, word));
    if own.samples(ticks, MEAN.load(Ordering::Relaxed)) {
        record(call, LockNonce::wait(ticks, link));
    }
}

/// Attempts a lock that is wanted for a limited time; none if that has to be waited for.
fn attempt(call: &Call) -> Option<i32> {
    type Attempt = unsafe extern "C" fn(u64) -> i32;
    let (number, busy) = call.kind().attempt()?;
    // SAFETY: the arguments are those of the call.
    if !unsafe { call.kind().may_attempt(&call.arguments) } {
        return None;
    }
    let function = real::address(number)?;
    // SAFETY: the C library's function of this type, or what looks it up; the argument is the lock of the call.
    let result = unsafe { core::mem::transmute::<usize, Attempt>(function)(call.argument(0)) };
    (result != busy).then_some(result)
}

/// A wait begins: at which tick.
fn wait(call: &Call, mean: u64) -> u64 {
    let kind = call.kind();
    if let Some(given) = kind.gives_up() {
        match give_up(call.argument(given), mean) {
            0 => {}
            // What is given up is not yet: it is in the call itself.
            link => record(call, LockNonce::holder(link)),
        }
    }
    let Some(own) = waiter::own() else { return UNWATCHED };
    // SAFETY: as in `after`.
    let own = unsafe { &mut *own };
    let now = clock::now().max(1);
    let due = now.saturating_add(own.left(mean));
    // Inside another wait, in a signal handler, it is only timed.
    if let Ok(left) = own.begin(core::ptr::from_ref(call) as u64) {
        left.into_iter().for_each(|place| _ = waited::leave(place, u64::MAX));
        if let Some(place) = waited::enter(call.argument(kind.subject()), now, due) {
            own.set_place(place);
        }
    }
    now
}

/// What is at `address` is about to be given up: a link, if somebody waits for it; else 0.
fn give_up(address: u64, mean: u64) -> u32 {
    waited::give_up(address, clock::now(), rate::ticks(WAKE_UP_NS), mean / GAP)
}

/// Records the stack of a call.
#[cold]
fn record(call: &Call, nonce: LockNonce) {
    if let Some(recording) = recording::current() {
        let note = Note { source: Probe::Locks.number(), nonce: nonce.0, with_callee: true };
        let _ = call::record(recording, &call.caller(), note);
    }
}
