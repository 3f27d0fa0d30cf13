//! Errors of injection: the cause, and what to do about it.

use std::io;

use crate::target::{agent_file, shortage};

/// Why the agent cannot be injected into a process, and what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InjectError {
    /// No such process, or it has just ended.
    #[error("process {0} does not exist")]
    NoProcess(i32),
    /// The reader's own pid.
    #[error("selfwind cannot record itself; give the id of another process")]
    Oneself,
    /// A kernel thread.
    #[error("process {0} belongs to the kernel: there is no program to sample")]
    Kernel(i32),
    /// Not x86-64.
    #[error("process {0} does not run an x86-64 program, but the agent is one")]
    NotNative(i32),
    /// It belongs to another user.
    #[error(
        "process {pid} belongs to user {user}, selfwind runs as {own}; run it as root: sudo selfwind ..."
    )]
    OtherUser {
        /// The process.
        pid: i32,
        /// Its user.
        user: u32,
        /// The user of this program.
        own: u32,
    },
    /// ptrace is not permitted.
    #[error("process {pid} may not be traced: {why}; or start it with `selfwind record -- CMD`")]
    Denied {
        /// The process.
        pid: i32,
        /// What forbids it, and what to do.
        why: String,
    },
    /// A debugger traces it.
    #[error("process {pid} is already traced by process {tracer} (a debugger, strace?); end that first")]
    Traced {
        /// The process.
        pid: i32,
        /// Its tracer.
        tracer: i32,
    },
    /// Stopped by a signal.
    #[error("process {0} is stopped; continue it first: kill -CONT {0}")]
    Stopped(i32),
    /// Its system call filter does not permit a call of the agent.
    #[error(
        "the system call filter (seccomp) of process {pid} does not allow {call}, which the agent needs; allow it in the filter, or start the process with `selfwind record -- CMD`, so that the agent is there before the filter"
    )]
    Filtered {
        /// The process.
        pid: i32,
        /// The call.
        call: &'static str,
    },
    /// It cannot be determined what its filter permits.
    #[error(
        "process {0} filters its system calls (seccomp), and only root can see whether the filter allows those of the agent: sudo selfwind ...; or start it with `selfwind record -- CMD`, so that the agent is there before the filter"
    )]
    FilterUnseen(i32),
    /// Its filter cannot be read.
    #[error(
        "process {pid} filters its system calls (seccomp), and the kernel does not show the filter ({error}); start it with `selfwind record -- CMD`, so that the agent is there before the filter"
    )]
    FilterUnreadable {
        /// The process.
        pid: i32,
        /// The system's answer.
        error: io::Error,
    },
    /// Strict mode.
    #[error("process {0} may only read, write and exit (seccomp strict mode), so nothing can sample it")]
    Strict(i32),
    /// It uses a shadow stack.
    #[error(
        "process {0} runs with a shadow stack (CET; x86_Thread_features in /proc/{0}/status), which injecting the agent into a running process does not support; start it with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off, or with `selfwind record -- CMD`"
    )]
    ShadowStack(i32),
    /// The agent's system calls would be delivered to the program.
    #[error(
        "process {0} has its system calls delivered as signals (PR_SET_SYSCALL_USER_DISPATCH), as Wine does; it cannot be sampled"
    )]
    Dispatches(i32),
    /// A thread does not stop.
    #[error("thread {thread} of process {pid} is in an uninterruptible wait (state D); try again later")]
    Unstoppable {
        /// The process.
        pid: i32,
        /// The thread.
        thread: i32,
    },
    /// Signals keep arriving.
    #[error("thread {0} keeps receiving signals, or does not leave the agent; try again")]
    Busy(i32),
    /// No code that makes system calls, not even a vDSO.
    #[error("the process contains no system call instruction that could be used")]
    NoWay,
    /// The target cannot map memory.
    #[error("the process cannot map memory for the agent: {0}")]
    Map(io::Error),
    /// /proc/PID/mem.
    #[error("the memory of the process cannot be accessed: {0}")]
    Memory(io::Error),
    /// No directory for the region.
    #[error("no directory for shared memory ({0}); set XDG_RUNTIME_DIR to one that you own")]
    NoDirectory(String),
    /// The agent refuses.
    #[error("the agent in the process reports: {0}")]
    Agent(String),
    /// It was started with the agent.
    #[error(
        "process {0} was started with the agent, which cannot be detached; `selfwind record -p {0}` records it"
    )]
    Preloaded(i32),
    /// It is sampled by another source.
    #[error(
        "process {pid} was started with -e {own}, which cannot be changed while it runs: leave out -e {asked}, or start it with SELFWIND_EVENT={asked}"
    )]
    OtherSource {
        /// The process.
        pid: i32,
        /// The requested source.
        asked: String,
        /// Its own.
        own: String,
    },
    /// Kernel events need an agent from the start.
    #[error(
        "process {pid} runs without the agent, and an injected agent can use CPU timers only (it does not see an exec, and a pending kernel event would kill the new program); leave out -e {asked}, or start the program with `selfwind record -e {asked} -- CMD`"
    )]
    TimersOnly {
        /// The process.
        pid: i32,
        /// The requested source.
        asked: String,
    },
    /// The requested sources need an agent from the start.
    #[error(
        "process {pid} cannot be recorded with -e {asked}: it was started without the agent, which would have to interpose functions before the loader binds them. Start the program with `selfwind record -e {asked} -- CMD`; or, for `record -p` at any later time, with LD_PRELOAD=$(selfwind agent-path -e {setting}) SELFWIND_EVENT={setting}"
    )]
    FromTheStart {
        /// The process.
        pid: i32,
        /// The requested sources.
        asked: String,
        /// Their setting for an agent.
        setting: String,
    },
    /// Its agent records other sources from the start.
    #[error(
        "process {pid} cannot be recorded with -e {asked}: it has recorded {own} since its start, which cannot be changed while it runs. Leave out -e {asked}, or start the program with LD_PRELOAD=$(selfwind agent-path -e {setting}) SELFWIND_EVENT={setting}"
    )]
    OtherProbes {
        /// The process.
        pid: i32,
        /// The requested sources.
        asked: String,
        /// Its own.
        own: String,
        /// The setting for an agent with the requested sources.
        setting: String,
    },
    /// Another recorder samples it.
    #[error(
        "process {pid} cannot be recorded with -e {asked}: another selfwind samples it with {own}; end that first (`selfwind attach --detach -p {pid}` ends an attach)"
    )]
    OtherRecorder {
        /// The process.
        pid: i32,
        /// The requested sources.
        asked: String,
        /// Its own.
        own: String,
    },
    /// Its agent was injected for a recording without allocations.
    #[error(
        "process {0} contains an agent from an earlier attach without -e alloc, which stays until the process ends; start the program anew, or leave out -e alloc"
    )]
    PlainAgent(i32),
    /// Its loader would not wait while the agent redirects its allocations.
    #[error(
        "the allocations of process {0} cannot be redirected while it runs: that takes glibc's loader in its usual form, which statically linked programs and those with musl do not have; a program with musl can be started with `selfwind record -e alloc -- CMD`, a statically linked one has no heap profile"
    )]
    LoaderUnhooked(i32),
    /// It is not attached.
    #[error("process {0} is not attached: there is nothing to detach")]
    NotAttached(i32),
    /// Its agent is of another build.
    #[error("process {0} contains the agent of another selfwind; use that one")]
    OtherAgent(i32),
    /// Its region cannot be created or passed to it.
    #[error("the region's file cannot be passed to process {pid}: {error}")]
    HandOver {
        /// The process.
        pid: i32,
        /// The system's answer.
        error: io::Error,
    },
    /// The embedded agent is not usable.
    #[error("the embedded agent cannot be laid out: {0}")]
    Image(&'static str),
    /// No agent embedded.
    #[error(transparent)]
    AgentFile(#[from] agent_file::AgentFileError),
    /// No thread can be started here.
    #[error(
        "process {pid} cannot be traced: no thread can be started for that ({error}); see `ulimit -u` and `ulimit -v`"
    )]
    NoThread {
        /// The process.
        pid: i32,
        /// The system's answer.
        error: io::Error,
    },
    /// It runs another program than at the beginning.
    #[error("process {0} has just executed another program; try again")]
    Replaced(i32),
    /// The thread vanished.
    #[error("thread {0} has just ended")]
    Lost(i32),
    /// The agent takes too long.
    #[error(
        "the agent is still starting or stopping in process {0} and will finish by itself; try again when the machine is less busy"
    )]
    Slow(i32),
    /// A defect in selfwind.
    #[error("the agent failed to start (signal {0}); the process is unchanged")]
    Fault(i32),
}

impl InjectError {
    pub(super) fn denied(pid: i32, error: io::Error) -> Self {
        let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
        let is_root = nix::unistd::geteuid().is_root();
        let why = match scope.trim() {
            "1" if !is_root => "kernel.yama.ptrace_scope is 1, so only its parent and root may; run selfwind as root, or permit it: `sudo sysctl kernel.yama.ptrace_scope=0`".into(),
            "2" if !is_root => "kernel.yama.ptrace_scope is 2, so only root may; run selfwind as root".into(),
            "3" => "kernel.yama.ptrace_scope is 3, which forbids it until the next boot".into(),
            _ if is_root => format!("{error}{}", shortage::of_permission()),
            _ => format!("{error}; it may have changed its user or set PR_SET_DUMPABLE to 0; run selfwind as root"),
        };
        Self::Denied { pid, why }
    }
}
