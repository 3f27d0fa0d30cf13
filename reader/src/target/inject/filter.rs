//! Checks whether the system call filters of a process (seccomp) permit the agent's calls.
//!
//! Services and containers usually have a filter that forbids a few dangerous calls, none of which the agent makes. So the
//! filters of every thread are read (PTRACE_SECCOMP_GET_FILTER, which requires CAP_SYS_ADMIN) and evaluated for each of the
//! agent's calls before the process is changed. What must never happen here: the process is killed for a call of the agent.

use std::io;
use std::time::{Duration, Instant};

use nix::libc;

use crate::proc::{Status, threads};
use crate::target::attach::ptrace;
use crate::target::inject::error::InjectError;
use crate::target::inject::filter_program::{Instruction, SystemCall, Verdict, verdict};
use crate::target::inject::layout::THREAD;
use crate::target::inject::own_thread;
use crate::target::inject::paused::{Paused, Stopped};

/// How long to wait for a thread to stop.
const STOP: Duration = Duration::from_secs(2);
/// The mode of a thread without a filter (`Seccomp` in proc_pid_status(5)).
const NONE: &str = "0";
/// The mode of a thread in strict mode, which may only read, write and exit.
const STRICT: &str = "1";

/// A call made by or for the agent, and the known values of its first arguments.
struct Need {
    name: &'static str,
    number: libc::c_long,
    known: &'static [u64],
    /// The agent can do without it.
    optional: bool,
}

macro_rules! needs {
    ($($name:ident $(($($known:expr),*))? $($optional:literal)?;)*) => {
        &[$({
            let (known, optional): (&'static [u64], &[&str]) = (&[$($($known as u64),*)?], &[$($optional)?]);
            Need { name: stringify!($name), number: libc::$name, known, optional: !optional.is_empty() }
        }),*]
    };
}

/// All calls of the stub, of the agent with CPU timers outside the handler, and of the handler.
const NEEDS: &[Need] = needs! {
    SYS_rt_sigprocmask; SYS_mprotect; SYS_clone(THREAD); SYS_gettid; SYS_exit; SYS_rt_sigreturn; SYS_mmap; SYS_munmap;
    SYS_mremap; SYS_madvise; SYS_munlock; SYS_openat; SYS_close; SYS_read; SYS_fstat; SYS_lstat; SYS_getdents64;
    SYS_readlinkat; SYS_getcwd; SYS_ftruncate; SYS_fallocate; SYS_mkdirat; SYS_symlinkat; SYS_unlinkat;
    SYS_socketpair(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0); SYS_setsockopt; SYS_recvmsg;
    SYS_getpid; SYS_getppid; SYS_geteuid; SYS_prlimit64(0); SYS_prctl(libc::PR_GET_NAME); SYS_clock_gettime;
    SYS_getrandom; SYS_nanosleep; SYS_sched_yield; SYS_futex; SYS_rt_sigaction; SYS_rt_sigtimedwait; SYS_tgkill;
    SYS_rt_sigqueueinfo; SYS_rt_tgsigqueueinfo; SYS_timer_create; SYS_timer_settime; SYS_timer_gettime;
    SYS_timer_delete; SYS_getitimer; SYS_setitimer; SYS_write(2); SYS_process_vm_readv "optional"; SYS_pread64;
};

/// Fails if the filters of a process do not permit the agent's calls, or cannot be read.
pub(super) fn check(pid: i32) -> Result<(), InjectError> {
    let filtered: Vec<i32> = threads(pid as u32)
        .unwrap_or_default()
        .into_iter()
        .map(|tid| tid as i32)
        .filter(|&tid| mode(pid, tid).is_some_and(|mode| mode != NONE))
        .collect();
    let mut passed: Vec<Vec<Instruction>> = Vec::new();
    own_thread::run(pid, || filtered.into_iter().try_for_each(|tid| check_thread(pid, tid, &mut passed)))
}

/// Whether a thread is known to have no filter.
pub(super) fn has_none(tid: i32) -> bool {
    mode(tid, tid).as_deref() == Some(NONE)
}

fn mode(pid: i32, tid: i32) -> Option<String> {
    Some(Status::of_thread(pid, tid).ok()?.field("Seccomp")?.to_owned())
}

/// Checks the filters of one thread, except those in `passed`.
fn check_thread(pid: i32, tid: i32, passed: &mut Vec<Vec<Instruction>>) -> Result<(), InjectError> {
    if mode(pid, tid).as_deref() == Some(STRICT) {
        return Err(InjectError::Strict(pid));
    }
    for filter in filters(pid, tid)? {
        if passed.contains(&filter) {
            continue;
        }
        for need in NEEDS {
            let mut arguments = [None; 6];
            arguments.iter_mut().zip(need.known).for_each(|(argument, known)| *argument = Some(*known));
            match verdict(&filter, &SystemCall { number: need.number, arguments }) {
                Verdict::Allowed => {}
                Verdict::Failed if need.optional => {}
                _ => return Err(InjectError::Filtered { pid, call: &need.name["SYS_".len()..] }),
            }
        }
        passed.push(filter);
    }
    Ok(())
}

/// All filters of a thread, which is stopped meanwhile; `None` if it has ended.
fn filters(pid: i32, tid: i32) -> Result<Vec<Vec<Instruction>>, InjectError> {
    let _paused = match Paused::stop(pid, tid, Instant::now() + STOP)? {
        Stopped::Paused(paused) => paused,
        Stopped::Gone => return Ok(Vec::new()),
        Stopped::Late => return Err(InjectError::Unstoppable { pid, thread: tid }),
    };
    let mut filters = Vec::new();
    loop {
        match ptrace::filter(tid, filters.len()) {
            Ok(filter) => filters.push(filter.into_iter().map(Instruction::from).collect()),
            // There are no more.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(filters),
            Err(error) => return Err(unreadable(pid, error)),
        }
    }
}

fn unreadable(pid: i32, error: io::Error) -> InjectError {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => InjectError::FilterUnseen(pid),
        _ => InjectError::FilterUnreadable { pid, error },
    }
}
