//! The program's signal mask.
//!
//! Many programs block all signals in every thread and wait for them in one. A tick would then stay pending, and
//! `sigwait` or `sigpending` would return a signal that nobody sent. So as long as the program has no handler for the
//! sampling signal, a request to block it is stored in the thread's slot and not passed to the kernel. If somebody does
//! send that signal, [`handler::chain`] blocks it and makes it pending, as the program requested.

use core::ffi::c_int;

use handler::siginfo::SignalInfo;
use handler::slot::{self, Slot};
use handler::{chain, request, tick};
use platform::{activity, sys};

use super::real::{call_real, fail, own_recording, real_functions};
use crate::sampling_signal;

real_functions! {
    SIGMASK = c"pthread_sigmask";
    SIGPROCMASK = c"sigprocmask";
    SIGWAIT = c"sigwait";
    SIGWAITINFO = c"sigwaitinfo";
    SIGTIMEDWAIT = c"sigtimedwait";
    SIGPENDING = c"sigpending";
}

/// The sampling signal's bit in the first word of a signal set.
fn bit() -> u64 {
    1 << (sampling_signal::get() - 1)
}

/// `sigset_t` of glibc and musl; the kernel uses the first word only.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Set([u64; 16]);

/// The calling thread's slot, if part of its mask is kept there.
fn divided() -> Option<&'static Slot> {
    own_recording().filter(|_| !activity::is_filtered()).and_then(|_| slot::noted())
}

/// Changes the mask with `real`, which is given `how`, the new set and the old one.
///
/// # Safety
/// The pointers must be null or valid.
unsafe fn change(
    how: c_int,
    new: *const Set,
    old: *mut Set,
    real: impl Fn(c_int, *const Set, *mut Set) -> c_int,
) -> c_int {
    // SAFETY: the caller fulfils this function's contract.
    let (wanted, old_set) = unsafe { (new.as_ref().copied(), old.as_mut()) };
    let concerns = wanted.is_some_and(|set| set.0[0] & bit() != 0) || how == libc::SIG_SETMASK;
    let hidden_now = slot::noted().is_some_and(Slot::is_hidden);
    if !hidden_now && (!concerns || wanted.is_none()) {
        return real(how, new, old);
    }
    let Some(slot) = divided() else { return real(how, new, old) };
    let before = slot.is_hidden();
    let Some(mut set) = wanted else {
        let result = real(how, new, old);
        if let (0, Some(old)) = (result, old_set) {
            old.0[0] |= if before { bit() } else { 0 };
        }
        return result;
    };
    let named = set.0[0] & bit() != 0;
    let after = match how {
        libc::SIG_BLOCK => before || named,
        libc::SIG_UNBLOCK => before && !named,
        libc::SIG_SETMASK => named,
        _ => return real(how, new, old),
    };
    // A program with a handler of its own gets exactly the mask that it requests.
    let hide = after && !chain::has_handler();
    if hide && how != libc::SIG_UNBLOCK {
        set.0[0] &= !bit();
    }
    let result = real(how, &raw const set, old);
    if result == 0 {
        slot.set_hidden(hide);
        if let Some(old) = old_set {
            old.0[0] |= if before { bit() } else { 0 };
        }
    }
    result
}

/// POSIX `pthread_sigmask`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pthread_sigmask(how: c_int, new: *const Set, old: *mut Set) -> c_int {
    let real = |how, new, old| {
        call_real!(
            SIGMASK as fn(c_int, *const Set, *mut Set) -> c_int,
            (how, new, old),
            else libc::ENOSYS
        )
    };
    // SAFETY: the program's pointers, null or valid by this function's contract.
    unsafe { change(how, new, old, real) }
}

/// POSIX `sigprocmask`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sigprocmask(how: c_int, new: *const Set, old: *mut Set) -> c_int {
    let real = |how, new, old| {
        call_real!(
            SIGPROCMASK as fn(c_int, *const Set, *mut Set) -> c_int,
            (how, new, old),
            else fail(libc::ENOSYS)
        )
    };
    // SAFETY: the program's pointers, null or valid by this function's contract.
    unsafe { change(how, new, old, real) }
}

/// POSIX `sigpending`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sigpending(set: *mut Set) -> c_int {
    let result = call_real!(SIGPENDING as fn(*mut Set) -> c_int, (set), else fail(libc::ENOSYS));
    // SAFETY: null, or valid by this function's contract.
    if let (0, Some(set)) = (result, unsafe { set.as_mut() })
        && set.0[0] & bit() != 0
        && divided().is_some_and(Slot::is_hidden)
    {
        // Pending but not blocked: a tick about to be delivered. A signal sent to the program would be blocked by now.
        let mask = sys::signal_mask();
        set.0[0] &= !bit() | mask;
    }
    result
}

/// Waits with `real` until a signal arrives that is not a tick of the agent.
///
/// # Safety
/// `info` must be null or valid.
unsafe fn wait(
    set: *const Set,
    info: *mut libc::siginfo_t,
    real: impl Fn(*mut libc::siginfo_t) -> c_int,
) -> c_int {
    // SAFETY: the program's arguments, valid by this function's contract.
    let concerns = unsafe { set.as_ref() }.is_some_and(|set| set.0[0] & bit() != 0);
    let Some(recording) = own_recording().filter(|_| concerns) else { return real(info) };
    let mut received = SignalInfo::EMPTY;
    loop {
        let signal = real((&raw mut received).cast());
        if signal == sampling_signal::get()
            && (tick::discard(&received, recording) || request::is_request(&received, recording))
        {
            continue;
        }
        // SAFETY: null, or valid by this function's contract.
        if let Some(info) = unsafe { info.cast::<SignalInfo>().as_mut() } {
            *info = received;
        }
        return signal;
    }
}

/// POSIX `sigwaitinfo`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sigwaitinfo(set: *const Set, info: *mut libc::siginfo_t) -> c_int {
    let real = |info| {
        call_real!(
            SIGWAITINFO as fn(*const Set, *mut libc::siginfo_t) -> c_int,
            (set, info),
            else fail(libc::ENOSYS)
        )
    };
    // SAFETY: the program's arguments, valid by this function's contract.
    unsafe { wait(set, info, real) }
}

/// POSIX `sigtimedwait`. An intervening tick restarts the timeout; that is rare, since ticks need CPU time.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sigtimedwait(
    set: *const Set,
    info: *mut libc::siginfo_t,
    timeout: *const libc::timespec,
) -> c_int {
    let real = |info| {
        call_real!(
            SIGTIMEDWAIT as fn(*const Set, *mut libc::siginfo_t, *const libc::timespec) -> c_int,
            (set, info, timeout),
            else fail(libc::ENOSYS)
        )
    };
    // SAFETY: the program's arguments, valid by this function's contract.
    unsafe { wait(set, info, real) }
}

/// POSIX `sigwait`.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sigwait(set: *const Set, signal: *mut c_int) -> c_int {
    // SAFETY: the program's arguments, valid by this function's contract.
    let concerns = unsafe { set.as_ref() }.is_some_and(|set| set.0[0] & bit() != 0);
    if !concerns || own_recording().is_none() {
        return call_real!(
            SIGWAIT as fn(*const Set, *mut c_int) -> c_int,
            (set, signal),
            else libc::ENOSYS
        );
    }
    loop {
        // SAFETY: the program's set, valid by this function's contract. After a handler has interrupted it, `sigwait`
        // continues.
        let received = unsafe { sigwaitinfo(set, core::ptr::null_mut()) };
        if received > 0 {
            // SAFETY: the program's arguments, valid by this function's contract.
            unsafe { *signal = received };
            return 0;
        }
    }
}
