//! The requests of ptrace(2) as they are needed here: signals by number (real-time ones too), the signal mask, and the
//! whole extended register state, which the `nix` crate does not offer.

use std::io;
use std::ptr;

use nix::libc::{self, c_int, c_long, c_uint, c_void, pid_t};

/// The result of `waitpid` for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Still running.
    Running,
    /// It has ended.
    Ended,
    /// Stopped by PTRACE_INTERRUPT.
    Interrupted,
    /// A group stop, by SIGSTOP or the like.
    Group,
    /// About to receive this signal.
    Signal(c_int),
    /// Before or after a system call.
    SystemCall,
}

const PTRACE_EVENT_STOP: c_int = 128;
/// Registers of the XSAVE area (`linux/elf.h`).
const NT_X86_XSTATE: usize = 0x202;
/// More than any processor's XSAVE area.
const XSTATE_ROOM: usize = 16 << 10;
const SIGSET_BYTES: usize = 8;
/// `linux/ptrace.h`.
const PTRACE_SECCOMP_GET_FILTER: c_uint = 0x420c;

fn request(request: c_uint, tid: pid_t, address: usize, data: *mut c_void) -> io::Result<c_long> {
    // SAFETY: none of the requests of this file writes to our memory but through `data`, which its caller has made
    // for the request.
    match unsafe { libc::ptrace(request, tid, address as *mut c_void, data) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

/// Traces the thread without stopping it; stops at system calls are told from SIGTRAP.
pub(crate) fn seize(tid: pid_t) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACESYSGOOD as usize as *mut c_void;
    request(libc::PTRACE_SEIZE, tid, 0, options).map(drop)
}

/// Stops the thread soon.
pub(crate) fn interrupt(tid: pid_t) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, tid, 0, ptr::null_mut()).map(drop)
}

/// Resumes a stopped thread, with `signal` if that is not 0.
pub(crate) fn cont(tid: pid_t, signal: c_int) -> io::Result<()> {
    request(libc::PTRACE_CONT, tid, 0, signal as usize as *mut c_void).map(drop)
}

/// Resumes a stopped thread until its next system call.
pub(crate) fn cont_to_system_call(tid: pid_t) -> io::Result<()> {
    request(libc::PTRACE_SYSCALL, tid, 0, ptr::null_mut()).map(drop)
}

/// Detaches from a stopped thread, which resumes.
pub(crate) fn detach(tid: pid_t) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, 0, ptr::null_mut()).map(drop)
}

/// Checks whether the thread has stopped.
pub(crate) fn wait(tid: pid_t) -> io::Result<Stop> {
    let mut status = 0;
    // SAFETY: the kernel writes one `int`.
    match unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | libc::WNOHANG) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Stop::Running),
        _ => Ok(stop_of(status)),
    }
}

fn stop_of(status: c_int) -> Stop {
    if !libc::WIFSTOPPED(status) {
        return Stop::Ended;
    }
    match (status >> 16, libc::WSTOPSIG(status)) {
        (PTRACE_EVENT_STOP, libc::SIGTRAP) => Stop::Interrupted,
        (PTRACE_EVENT_STOP, _) => Stop::Group,
        (_, signal) if signal == libc::SIGTRAP | 0x80 => Stop::SystemCall,
        (_, signal) => Stop::Signal(signal),
    }
}

/// The signal mask of a stopped thread; in `ppoll` and the like, the one it will return to.
pub(crate) fn signal_mask(tid: pid_t) -> io::Result<u64> {
    let mut mask = 0u64;
    request(libc::PTRACE_GETSIGMASK, tid, SIGSET_BYTES, (&raw mut mask).cast())?;
    Ok(mask)
}

/// Sets the signal mask of a stopped thread.
pub(crate) fn set_signal_mask(tid: pid_t, mut mask: u64) -> io::Result<()> {
    request(libc::PTRACE_SETSIGMASK, tid, SIGSET_BYTES, (&raw mut mask).cast()).map(drop)
}

/// A stopped thread's floating-point and vector registers, as XSAVE lays them out.
pub(crate) fn extended_state(tid: pid_t) -> io::Result<Vec<u8>> {
    let mut state = vec![0u8; XSTATE_ROOM];
    let mut iovec = libc::iovec { iov_base: state.as_mut_ptr().cast(), iov_len: state.len() };
    request(libc::PTRACE_GETREGSET, tid, NT_X86_XSTATE, (&raw mut iovec).cast())?;
    state.truncate(iovec.iov_len);
    Ok(state)
}

/// Replaces them.
pub(crate) fn set_extended_state(tid: pid_t, state: &[u8]) -> io::Result<()> {
    // The kernel only reads, whatever the type says.
    let mut iovec = libc::iovec { iov_base: state.as_ptr().cast_mut().cast(), iov_len: state.len() };
    request(libc::PTRACE_SETREGSET, tid, NT_X86_XSTATE, (&raw mut iovec).cast()).map(drop)
}

/// The instructions of a stopped thread's system call filter `index`, the latest first; ENOENT if there are fewer.
/// Takes CAP_SYS_ADMIN.
pub(crate) fn filter(tid: pid_t, index: usize) -> io::Result<Vec<libc::sock_filter>> {
    let count = request(PTRACE_SECCOMP_GET_FILTER, tid, index, ptr::null_mut())? as usize;
    let mut filter = vec![libc::sock_filter { code: 0, jt: 0, jf: 0, k: 0 }; count];
    // A filter never changes.
    request(PTRACE_SECCOMP_GET_FILTER, tid, index, filter.as_mut_ptr().cast())?;
    Ok(filter)
}
