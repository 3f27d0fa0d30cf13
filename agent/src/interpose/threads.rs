//! Threads and bare forks.

use core::ffi::{c_char, c_int, c_void};

use handler::slot;

use super::{call_real, fail, own_recording, real_functions};
use crate::lock::Masked;
use crate::threads::News;
use crate::{modules, threads};
use handler::activity::Active;

real_functions! {
    SET_NAME = c"pthread_setname_np";
    BARE_FORK = c"_Fork";
    FORK = c"fork";
}

/// POSIX `pthread_create`: the new thread begins in our trampoline.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pthread_create(
    thread: *mut c_void,
    attributes: *const c_void,
    routine: usize,
    argument: usize,
) -> c_int {
    let real = &threads::PTHREAD_CREATE;
    let create = |routine: usize, argument: usize| {
        call_real!(
            real as fn(*mut c_void, *const c_void, usize, usize) -> c_int,
            (thread, attributes, routine, argument),
            else libc::EAGAIN
        )
    };
    let Some(start) = prepare(routine, argument) else { return create(routine, argument) };
    let result = create(threads::trampoline(), start as usize);
    if result != 0 {
        // SAFETY: no thread came of it.
        unsafe { threads::cancel(start) };
    }
    result
}

/// Packs what a new thread is to run, if it is to be sampled. Under a filter a timer for it could kill the program.
fn prepare(routine: usize, argument: usize) -> Option<*mut threads::Start> {
    let _active = Active::enter()?;
    let recording = own_recording()?;
    modules::refresh(recording);
    threads::look_after_strangers(recording);
    Some(threads::prepare(routine, argument))
}

/// GNU `pthread_setname_np`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pthread_setname_np(thread: usize, name: *const c_char) -> c_int {
    let result = call_real!(SET_NAME as fn(usize, *const c_char) -> c_int, (thread, name), else libc::ENOSYS);
    if result == 0 && thread == threads::thread_pointer() {
        renamed();
    }
    result
}

/// Tells the reader that the calling thread has another name.
pub(super) fn renamed() {
    let Some(_active) = Active::enter() else { return };
    let _masked = Masked::new();
    if let (Some(recording), Some(slot)) = (own_recording(), slot::noted()) {
        threads::tell(recording, slot, News::Renamed);
    }
}

/// POSIX `_Fork`: a fork without the handlers of `pthread_atfork`, so ours are called here.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _Fork() -> c_int {
    if BARE_FORK.address().is_none() || own_recording().is_none() {
        // Where there is no `_Fork`, `fork` calls the handlers itself.
        let real = if BARE_FORK.known().is_some() { &BARE_FORK } else { &FORK };
        return call_real!(real as fn() -> c_int, (), else fail(libc::ENOSYS));
    }
    // SAFETY: called around one fork, as the C library would.
    unsafe { crate::process::before_fork() };
    let result = call_real!(BARE_FORK as fn() -> c_int, (), else -1);
    // SAFETY: as above.
    unsafe {
        match result {
            0 => crate::process::after_fork_child(),
            _ => crate::process::after_fork_parent(),
        }
    }
    result
}
