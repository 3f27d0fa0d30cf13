//! Raw system calls.
//!
//! A libc wrapper would write `errno`, may be interposed, and may be bound lazily; none of that may happen between
//! entry and return of a signal handler. Results are the kernel's: `-errno` on failure.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::arch;

/// Size of the kernel's signal set in bytes.
pub const SIGSET_BYTES: usize = 8;

/// Smallest page size of any machine, in bytes. Errors of system calls are in the last page of the address space.
pub const PAGE: u64 = 4096;

/// Makes system call `number`; unused arguments are zero.
///
/// # Safety
/// The caller is responsible for the effect of this system call with these arguments.
#[inline(always)]
pub unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: the caller is responsible for the effect.
    unsafe { arch::system_call(number, arguments) }
}

/// The kernel's id of the calling thread.
pub fn thread_id() -> u32 {
    // SAFETY: gettid has no arguments and cannot fail.
    unsafe { call(libc::SYS_gettid, [0; 6]) as u32 }
}

/// The kernel's id of the calling process.
pub fn process_id() -> u32 {
    // SAFETY: getpid has no arguments and cannot fail.
    unsafe { call(libc::SYS_getpid, [0; 6]) as u32 }
}

/// Maps zeroed memory forever, unlocked even if the program locks all future mappings (mlockall(2)): little of it is
/// used, so it had better be populated page by page.
pub fn map_unlocked(bytes: usize) -> Option<*mut u8> {
    map_guarded(bytes, 0)
}

/// [`map_unlocked`] with the lowest `guard` bytes inaccessible, whole pages.
pub fn map_guarded(bytes: usize, guard: usize) -> Option<*mut u8> {
    let kind = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing. It is inaccessible, so nothing is
    // populated yet, locked or not.
    let base =
        unsafe { call(libc::SYS_mmap, [0, bytes, libc::PROT_NONE as usize, kind, usize::MAX, 0]) } as usize;
    if base > usize::MAX - PAGE as usize {
        return None;
    }
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    // SAFETY: the mapping made above, which nobody else uses.
    let made = unsafe {
        call(libc::SYS_munlock, [base, bytes, 0, 0, 0, 0]);
        call(libc::SYS_mprotect, [base + guard, bytes - guard, access, 0, 0, 0])
    };
    (made == 0).then_some(base as *mut u8)
}

/// Wakes one waiter on `word`, which may be shared between processes.
pub fn futex_wake_one(word: *mut u32) {
    // SAFETY: FUTEX_WAKE uses the address as a key; an unmapped one is an error.
    unsafe {
        call(libc::SYS_futex, [word as usize, libc::FUTEX_WAKE as usize, 1, 0, 0, 0]);
    }
}

/// Sleeps while `word` holds `value`; may return early.
pub fn futex_wait(word: &AtomicU32, value: u32) {
    // SAFETY: FUTEX_WAIT only reads the word, which the reference keeps mapped.
    unsafe {
        call(libc::SYS_futex, [word.as_ptr() as usize, libc::FUTEX_WAIT as usize, value as usize, 0, 0, 0]);
    }
}

/// Gives memory to a part of a mapping, for writing; false if there is none, or before Linux 5.14.
///
/// # Safety
/// The range must belong to the caller.
pub unsafe fn populate(start: *mut u8, bytes: usize) -> bool {
    const MADV_POPULATE_WRITE: usize = 23;
    // SAFETY: the caller fulfils the contract; this advice changes no contents.
    unsafe { call(libc::SYS_madvise, [start as usize, bytes, MADV_POPULATE_WRITE, 0, 0, 0]) == 0 }
}

/// Whether the eight bytes at `address` are readable now. Never faults. All signals must be blocked, as in the handler:
/// then it has no effect.
///
/// `rt_sigprocmask` reads a signal set from there: an unreadable address gives EFAULT (kernel/signal.c). The set,
/// whatever it is, is added to the blocked signals. An invalid `how` would not need that, but valgrind reports it.
pub fn is_readable(address: u64) -> bool {
    if address == 0 {
        // For the kernel, a null pointer means no set.
        return false;
    }
    // SAFETY: the kernel checks the address; blocking more has no effect while all signals are blocked.
    let result = unsafe {
        call(libc::SYS_rt_sigprocmask, [libc::SIG_BLOCK as usize, address as usize, 0, SIGSET_BYTES, 0, 0])
    };
    result == 0
}

/// Whether a system call filter was there before the program's own, if known.
static INHERITS_FILTER: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 2;

/// Whether the process was started under a system call filter, which may kill for a call that few programs make. The program's
/// own filters are observed (`activity::is_filtered`).
fn inherits_filter() -> bool {
    let mut known = INHERITS_FILTER.load(Ordering::Relaxed);
    if known == UNKNOWN {
        // SAFETY: this operation only reads.
        let mode = unsafe { call(libc::SYS_prctl, [libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0, 0]) };
        known = u8::from(mode != 0);
        INHERITS_FILTER.store(known, Ordering::Relaxed);
    }
    known != 0
}

/// Whether the kernel has copied the words of this process, whose id is `process`, from `address` on to `words`. `None` if
/// it cannot be asked. Never faults, whatever other threads unmap meanwhile.
pub fn copy_own(process: u32, address: u64, words: &mut [u64]) -> Option<bool> {
    if inherits_filter() {
        return None;
    }
    let bytes = size_of_val(words);
    let to = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: bytes };
    let from = libc::iovec { iov_base: address as *mut _, iov_len: bytes };
    let arguments = [process as usize, (&raw const to) as usize, 1, (&raw const from) as usize, 1, 0];
    // SAFETY: the kernel checks the source, and writes at most `bytes` into `words`.
    let count = unsafe { call(libc::SYS_process_vm_readv, arguments) };
    match count as i32 {
        error if error == -libc::ENOSYS || error == -libc::EPERM => None,
        count => Some(count as usize == bytes),
    }
}

/// Blocks all signals of the calling thread until dropped.
#[derive(Debug)]
pub struct SignalsBlocked {
    before: u64,
}

impl SignalsBlocked {
    /// Blocks them.
    pub fn enter() -> Self {
        Self { before: set_signal_mask(!0) }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        set_signal_mask(self.before);
    }
}

/// The signals that wait for the calling thread or its process, as a set.
pub fn pending_signals() -> u64 {
    let mut pending = 0u64;
    // SAFETY: the call only writes the eight bytes of the set.
    unsafe { call(libc::SYS_rt_sigpending, [(&raw mut pending) as usize, SIGSET_BYTES, 0, 0, 0, 0]) };
    pending
}

/// The flags of the handler of a signal; `None` if it has none.
pub fn handler_flags(signal: u32) -> Option<u64> {
    // The kernel's `sigaction`: handler, flags, restorer, mask (include/linux/signal_types.h).
    let mut action = [0u64; 4];
    let arguments = [signal as usize, 0, action.as_mut_ptr() as usize, SIGSET_BYTES, 0, 0];
    // SAFETY: without a new action the call only writes the present one, 32 bytes at most.
    let result = unsafe { call(libc::SYS_rt_sigaction, arguments) };
    let [handler, flags, ..] = action;
    (result == 0 && handler > libc::SIG_IGN as u64).then_some(flags)
}

/// The calling thread's signal mask.
pub fn signal_mask() -> u64 {
    let mut mask = 0u64;
    // SAFETY: with no new set the call only writes the current one, eight bytes.
    unsafe { call(libc::SYS_rt_sigprocmask, [0, 0, (&raw mut mask) as usize, SIGSET_BYTES, 0, 0]) };
    mask
}

/// Replaces the calling thread's signal mask and returns the previous one.
pub fn set_signal_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: both sets are live eight-byte words.
    unsafe {
        call(
            libc::SYS_rt_sigprocmask,
            [
                libc::SIG_SETMASK as usize,
                (&raw const mask) as usize,
                (&raw mut before) as usize,
                SIGSET_BYTES,
                0,
                0,
            ],
        );
    }
    before
}
