//! The requests of ptrace(2) as they are needed here: signals by number (real-time ones too), the signal mask, and the
//! whole extended register state, which the `nix` crate does not offer.

use std::io;
use std::ptr;

use nix::libc::{self, c_int, c_long, c_uint, c_void, pid_t};

use crate::proc::Status;

/// The result of waiting for a thread.
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
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: c_uint = 0x4211;

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

/// Resumes a stopped thread for one instruction.
pub(crate) fn step(tid: pid_t) -> io::Result<()> {
    request(libc::PTRACE_SINGLESTEP, tid, 0, ptr::null_mut()).map(drop)
}

/// Detaches from a stopped thread, which resumes.
pub(crate) fn detach(tid: pid_t) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, 0, ptr::null_mut()).map(drop)
}

/// Checks whether the thread has stopped. A process that this one has started stays a zombie, so that its status is left to
/// whoever waits for it.
pub(crate) fn wait(tid: pid_t) -> io::Result<Stop> {
    match look(tid, libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT)? {
        None => Ok(Stop::Running),
        Some((libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED, _)) => {
            if !is_own_child(tid) {
                look(tid, libc::WEXITED)?;
            }
            Ok(Stop::Ended)
        }
        // If it has been killed meanwhile, the next check says so.
        Some(_) => match look(tid, libc::WSTOPPED) {
            Ok(Some((_, status))) => Ok(stop_of(status)),
            _ => Ok(Stop::Running),
        },
    }
}

/// How the status of the thread has changed, as waitid(2) tells it: CLD_ code and status. The kernel reports stops of a traced
/// thread even if `ways` are ends alone.
fn look(tid: pid_t, ways: c_int) -> io::Result<Option<(c_int, c_int)>> {
    // SAFETY: all zero is a valid value.
    let mut information: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = ways | libc::__WALL | libc::WNOHANG;
    // SAFETY: the kernel writes one `siginfo_t`.
    match unsafe { libc::waitid(libc::P_PID, tid as libc::id_t, &raw mut information, options) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel has written the fields of SIGCHLD, or left them zero.
        _ if unsafe { information.si_pid() } == 0 => Ok(None),
        // SAFETY: as above.
        _ => Ok(Some((information.si_code, unsafe { information.si_status() }))),
    }
}

/// Whether this is the main thread of a process that this one has started.
fn is_own_child(tid: pid_t) -> bool {
    let has = |status: &Status, name, value: u32| status.field(name) == Some(&value.to_string());
    Status::of_process(tid)
        .is_ok_and(|status| has(&status, "Tgid", tid as u32) && has(&status, "PPid", std::process::id()))
}

fn stop_of(status: c_int) -> Stop {
    match (status >> 8, status & 0xff) {
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

/// Whether a stopped thread has its system calls delivered as signals (Syscall User Dispatch). Before Linux 6.4 that cannot be
/// told.
pub(crate) fn dispatches_calls(tid: pid_t) -> bool {
    /// mode, address of the selector, offset and length of the code that is exempt.
    const WORDS: usize = 4;
    let mut config = [0u64; WORDS];
    let bytes = std::mem::size_of_val(&config);
    let found = request(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid, bytes, (&raw mut config).cast());
    found.is_ok() && config[0] != 0
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

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::time::Duration;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn a_child_that_ends_while_traced_keeps_its_status() {
        let mut child = Command::new("sleep").arg("100").spawn().expect("sleep");
        let tid = child.id() as pid_t;
        std::thread::scope(|scope| {
            let tracer = scope.spawn(|| {
                seize(tid).expect("a child");
                interrupt(tid).expect("a child");
                let next = || loop {
                    match wait(tid).expect("a traced process") {
                        Stop::Running => std::thread::sleep(Duration::from_millis(1)),
                        stop => return stop,
                    }
                };
                assert_eq!(next(), Stop::Interrupted);
                kill(Pid::from_raw(tid), Signal::SIGKILL).expect("a stopped process");
                assert_eq!(next(), Stop::Ended);
                assert_eq!(next(), Stop::Ended);
            });
            tracer.join().expect("the tracing thread");
        });
        assert_eq!(child.wait().expect("its status").signal(), Some(libc::SIGKILL));
    }
}
