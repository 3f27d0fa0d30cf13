//! Thread creation and naming, `_Fork`, and calls after which children cannot be recorded.

use core::ffi::{c_char, c_int, c_void};

use handler::slot;
use platform::activity::Active;

use super::real::{call_real, fail, own_recording, real_functions};
use crate::lock::Masked;
use crate::threads::News;
use crate::{module_news, threads};

real_functions! {
    THRD_CREATE = c"thrd_create";
    TIMER_CREATE = c"timer_create";
    SET_NAME = c"pthread_setname_np";
    BARE_FORK = c"_Fork";
    FORK = c"fork";
    CHROOT = c"chroot";
}

/// POSIX `pthread_create`: the new thread begins in the agent's trampoline.
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
    // SAFETY: the program's attributes, valid by this function's contract.
    let start = unsafe { prepare(attributes, routine, argument) };
    let Some(start) = start else { return create(routine, argument) };
    let result = create(threads::trampoline(), start as usize);
    if result != 0 {
        // SAFETY: `pthread_create` failed, so no thread uses it.
        unsafe { threads::cancel(start) };
    }
    result
}

/// Packs the start of a new thread, if it is to be sampled. Under a seccomp filter, creating a timer for it could kill
/// the program.
///
/// # Safety
/// `attributes` must be null or a `pthread_attr_t`.
unsafe fn prepare(attributes: *const c_void, routine: usize, argument: usize) -> Option<*mut threads::Start> {
    let _active = Active::enter()?;
    let recording = own_recording()?;
    module_news::refresh(recording);
    threads::reap_discovered(recording);
    // SAFETY: the caller fulfils this function's contract.
    Some(unsafe { threads::prepare(attributes, routine, argument) })
}

/// C11 `thrd_create`, like [`pthread_create`]. The C library reads the routine's `int` from the same register.
///
/// # Safety
/// As C says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn thrd_create(thread: *mut c_void, routine: usize, argument: usize) -> c_int {
    /// `thrd_error` of glibc and musl.
    const ERROR: c_int = 2;
    let create = |routine: usize, argument: usize| {
        call_real!(
            THRD_CREATE as fn(*mut c_void, usize, usize) -> c_int,
            (thread, routine, argument),
            else ERROR
        )
    };
    // SAFETY: such a thread has no attributes.
    let start = unsafe { prepare(core::ptr::null(), routine, argument) };
    let Some(start) = start else { return create(routine, argument) };
    let result = create(threads::trampoline(), start as usize);
    if result != 0 {
        // SAFETY: `thrd_create` failed, so no thread uses it.
        unsafe { threads::cancel(start) };
    }
    result
}

/// POSIX `timer_create`: with SIGEV_THREAD the C library creates threads for the program's function.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn timer_create(
    clock: c_int,
    event: *mut Notification,
    timer: *mut c_void,
) -> c_int {
    let create = |event: *mut Notification| {
        call_real!(
            TIMER_CREATE as fn(c_int, *mut Notification, *mut c_void) -> c_int,
            (clock, event, timer),
            else fail(libc::ENOSYS)
        )
    };
    // SAFETY: null, or valid by this function's contract.
    let wanted = unsafe { event.as_ref() }.filter(|event| event.notify == libc::SIGEV_THREAD);
    let prepared = wanted.and_then(|wanted| {
        let _active = Active::enter()?;
        own_recording()?;
        let (routine, argument) = (wanted.function, wanted.value);
        // SAFETY: null or the program's attributes.
        let start = unsafe { threads::prepare_many(wanted.attributes, routine, argument) };
        Some(Notification { value: start as usize, function: threads::trampoline(), ..*wanted })
    });
    match prepared {
        Some(mut event) => create(&raw mut event),
        None => create(event),
    }
}

/// `struct sigevent` of glibc and musl for SIGEV_THREAD.
#[repr(C)]
pub(crate) struct Notification {
    value: usize,
    signal: c_int,
    notify: c_int,
    function: usize,
    attributes: *const c_void,
    rest: [usize; 4],
}

const _: () = assert!(size_of::<Notification>() == 64);

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

/// Tells the reader the calling thread's new name.
pub(super) fn renamed() {
    let Some(_active) = Active::enter() else { return };
    let _masked = Masked::new();
    if let (Some(recording), Some(slot)) = (own_recording(), slot::noted()) {
        threads::tell(recording, slot, News::Renamed);
    }
}

/// POSIX `_Fork`: a fork without `pthread_atfork` handlers, so the agent's are called here.
///
/// # Safety
/// As POSIX says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _Fork() -> c_int {
    if BARE_FORK.address().is_none() || own_recording().is_none() {
        // A C library without `_Fork` calls the handlers in `fork`.
        let real = if BARE_FORK.known().is_some() { &BARE_FORK } else { &FORK };
        return call_real!(real as fn() -> c_int, (), else fail(libc::ENOSYS));
    }
    // SAFETY: called around one fork, as the C library would.
    unsafe { crate::process::before_fork() };
    let result = call_real!(BARE_FORK as fn() -> c_int, (), else -1);
    // SAFETY: called around one fork, as the C library would.
    unsafe {
        match result {
            0 => crate::process::after_fork_child(),
            _ => crate::process::after_fork_parent(),
        }
    }
    result
}

/// Linux `chroot`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn chroot(path: *const c_char) -> c_int {
    let result = call_real!(CHROOT as fn(*const c_char) -> c_int, (path), else fail(libc::ENOSYS));
    if result == 0 {
        crate::process::root_changed();
    }
    result
}
