//! Lock waits as events, by interposing the lock functions.
//!
//! Only in the build with the feature `locks`, which is preloaded for `-e lock` only. Waits are sampled by a Poisson
//! process over waiting time, so that the recorded total is unbiased. While a thread waits, the lock is entered in a
//! table ([`waited`]); the thread that releases the lock finds it there and records its own stack: the holder's. It
//! does so after the release, so that nobody waits longer, and no thread is interrupted.
//!
//! What must never happen here: an allocation, a lock, a wait, a change of `errno`, a result that differs from that of
//! the program's C library. A call may occur before anything has started, in a signal handler, under the loader's lock,
//! in a child of `vfork`, or after `exit`; a wait may end by cancellation, or by a jump out of a signal handler.

mod budget;
pub(crate) mod entry;
mod glibc_mutex;
mod glibc_rwlock;
mod kind;
mod rate;
mod real;
mod waited;
mod waiter;
mod watched_call;

use core::sync::atomic::{AtomicU64, Ordering};

use handler::call::{self, Note};
use handler::rate_limit::RateLimit;
use handler::recording::{self, Probe};
use platform::arch::AnyAlignment;
use platform::clock;
use shm_format::LockNonce;

use glibc_mutex::Approach;
use waiter::Mean;
use watched_call::{Call, Decision, EntryOf};

/// Mean ticks of waiting between samples; 1 samples all waits. [`NOT_YET`] before the start, [`NEVER`] if nothing is
/// watched.
static MEAN: AtomicU64 = AtomicU64::new(NOT_YET);
const NOT_YET: u64 = 0;
const NEVER: u64 = u64::MAX;

/// Allowance for the time from the release of a lock until the waiter runs.
const WAKE_UP_NS: u64 = 50_000;
/// Fraction of the mean that must pass between two recorded releases of the same lock.
const MIN_LINK_DISTANCE: u64 = 4;

/// The call is not watched, or nobody waits for what it releases.
const UNWATCHED: u64 = 0;

/// Looks up the real functions.
pub(crate) fn find_real_functions() {
    real::find_all();
}

/// Starts sampling, on average once in `mean_ns` nanoseconds of waiting; less often if that took more than `limit` hundredths
/// of a percent of a processor, unless all waits are requested.
pub(crate) fn begin(mean_ns: u64, limit: u64) {
    rate::learn();
    budget::begin(if mean_ns <= 1 { RateLimit::NO_LIMIT } else { limit });
    let mean = if mean_ns <= 1 { 1 } else { rate::ticks(mean_ns) };
    MEAN.store(mean.clamp(1, NEVER - 1), Ordering::Relaxed);
}

/// Watches nothing in this process.
pub(crate) fn never() {
    MEAN.store(NEVER, Ordering::Relaxed);
}

/// In a forked child: forgets the waits of the parent's threads.
pub(crate) fn forget_waits() {
    waited::forget();
    if let Some(own) = waiter::own() {
        // SAFETY: thread-local, and the calling thread is the only one of the process.
        let _ = unsafe { &mut *own }.abandon();
    }
}

/// Called at the end of a thread, which may have been cancelled in a wait.
pub(crate) fn thread_ends() {
    if let Some(own) = waiter::own()
        // SAFETY: thread-local, and all signals are blocked.
        && let Some(entry) = unsafe { &mut *own }.abandon()
    {
        waited::leave(entry, u64::MAX);
    }
}

/// Runs before a call that has to wait, or for which somebody may wait. `entry_of` gives the address of the called function.
fn before(call: &Call, entry_of: EntryOf) -> Decision {
    let _any_alignment = AnyAlignment::permit();
    let approach = match call.kind().is_timed_mutex() {
        // SAFETY: the argument of a mutex function.
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
    let mean = mean();
    let word = match mean.requested {
        NOT_YET | NEVER => UNWATCHED,
        _ if call.kind().releases() => give_up(call.argument(call.kind().subject()), mean).into(),
        _ => wait(call, entry_of, mean),
    };
    Decision { word, is_made: 0 }
}

/// Runs after the call.
fn after(call: &Call, entry_of: EntryOf, word: u64) {
    let _any_alignment = AnyAlignment::permit();
    if word == UNWATCHED {
        return;
    }
    if call.kind().releases() {
        return record(call, entry_of, LockNonce::holder(word as u32), 1);
    }
    let ticks = clock::now().saturating_sub(word);
    let Some(own) = waiter::own() else { return };
    // SAFETY: thread-local; a signal handler that intervenes restores it, or draws a new distance.
    let own = unsafe { &mut *own };
    let entry = own.end(core::ptr::from_ref(call) as u64);
    let link = entry.map_or(0, |entry| waited::leave(entry, word));
    if let Some(doubled) = own.samples(ticks, mean()) {
        record(call, entry_of, LockNonce::wait(ticks, link), 1 << doubled);
    }
}

/// The mean distance between samples at present.
fn mean() -> Mean {
    Mean { requested: MEAN.load(Ordering::Relaxed), doubled: budget::doubled() }
}

/// Makes the attempt for a call with a timeout; `None` if it has to wait.
fn attempt(call: &Call) -> Option<i32> {
    type Attempt = unsafe extern "C" fn(u64) -> i32;
    let (number, busy) = call.kind().attempt()?;
    // SAFETY: the arguments are those of the call.
    if !unsafe { call.kind().may_attempt(&call.arguments) } {
        return None;
    }
    let function = real::address(number)?;
    // SAFETY: the C library's function of this type, or the stub that looks it up; the argument is the call's lock.
    let result = unsafe { core::mem::transmute::<usize, Attempt>(function)(call.argument(0)) };
    (result != busy).then_some(result)
}

/// Begins a wait; returns its start in ticks.
fn wait(call: &Call, entry_of: EntryOf, mean: Mean) -> u64 {
    let kind = call.kind();
    if let Some(given) = kind.gives_up() {
        match give_up(call.argument(given), mean) {
            0 => {}
            // The release happens inside the call, so its stack is recorded before it.
            link => record(call, entry_of, LockNonce::holder(link), 1),
        }
    }
    let Some(own) = waiter::own() else { return UNWATCHED };
    // SAFETY: thread-local; a signal handler that intervenes restores it, or draws a new distance.
    let own = unsafe { &mut *own };
    let now = clock::now().max(1);
    let due = now.saturating_add(own.left(mean));
    // A wait nested in a signal handler is only timed.
    if let Ok(left) = own.begin(core::ptr::from_ref(call) as u64) {
        left.into_iter().for_each(|entry| _ = waited::leave(entry, u64::MAX));
        if let Some(entry) = waited::enter(call.argument(kind.subject()), now, due) {
            own.set_entry(entry);
        }
    }
    now
}

/// Called before `address` is released: returns a link if somebody waits for it, else 0.
fn give_up(address: u64, mean: Mean) -> u32 {
    waited::give_up(address, clock::now(), rate::ticks(WAKE_UP_NS), mean.ticks() / MIN_LINK_DISTANCE)
}

/// Records the stack of a call. The weight is the multiple of the requested mean that a wait was drawn with.
#[cold]
fn record(call: &Call, entry_of: EntryOf, nonce: LockNonce, weight: u32) {
    if let Some(recording) = recording::current() {
        let begun = clock::now();
        let note = Note { source: Probe::Locks.number(), nonce: nonce.0, weight, with_callee: true };
        let _ = call::record(recording, &call.caller(entry_of(call)), note);
        budget::spend(begun);
    }
}
