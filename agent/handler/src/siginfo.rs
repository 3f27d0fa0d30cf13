//! The kernel's `siginfo`: who sent a signal, and what it carries (include/uapi/asm-generic/siginfo.h).

/// All of it. Which fields mean something depends on the code.
#[repr(C)]
pub struct SignalInfo {
    signal: i32,
    errno: i32,
    code: i32,
    padding: i32,
    /// Of a timer its id, and its overruns above; of a process its pid, and its uid above; of an event the address.
    sender: u64,
    /// What the sender has the signal carry.
    value: u64,
    /// Of an event what it is, and its flags above.
    event: u64,
    rest: [u64; 11],
}

/// As long as the C library's.
const _: [(); size_of::<libc::siginfo_t>()] = [(); size_of::<SignalInfo>()];

/// kill(2); also what the kernel says where it had no room for what the signal carried (RLIMIT_SIGPENDING).
const USER: i32 = 0;
/// rt_sigqueueinfo(2).
const QUEUE: i32 = -1;
/// timer_settime(2).
const TIMER: i32 = -2;
/// The kernel itself: ITIMER_PROF, but also a breakpoint of the processor.
const KERNEL: i32 = 0x80;
/// An event of perf_event_open(2) with `sigtrap`.
const EVENT: i32 = 6;
/// The signal was blocked when the event happened (TRAP_PERF_FLAG_ASYNC).
const BLOCKED: u32 = 1;

/// Who sent a signal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A timer of this id, which expired so many times more since the signal was sent.
    Timer { id: i32, overrun: i32, value: u64 },
    /// An event of perf_event_open(2).
    Event { data: u64, blocked: bool },
    /// The kernel.
    Kernel,
    /// A process, with a value.
    Queue { value: u64 },
    /// Nobody, for all that can be seen.
    Nobody,
    /// Anybody else.
    Other,
}

impl SignalInfo {
    /// For the kernel to fill.
    pub const EMPTY: SignalInfo =
        SignalInfo { signal: 0, errno: 0, code: 0, padding: 0, sender: 0, value: 0, event: 0, rest: [0; 11] };

    /// Who sent the signal.
    #[inline]
    pub(crate) fn sender(&self) -> Sender {
        match self.code {
            TIMER => Sender::Timer {
                id: self.sender as i32,
                overrun: (self.sender >> 32) as i32,
                value: self.value,
            },
            EVENT => Sender::Event { data: self.value, blocked: (self.event >> 32) as u32 & BLOCKED != 0 },
            KERNEL => Sender::Kernel,
            QUEUE => Sender::Queue { value: self.value },
            USER if self.sender == 0 => Sender::Nobody,
            _ => Sender::Other,
        }
    }

    /// True if the kernel itself sent it, as ITIMER_PROF does.
    pub fn is_kernels(&self) -> bool {
        self.code == KERNEL
    }

    /// True for a trap of the processor: a breakpoint, a single step. Neither blocked nor ignored, it ends the process
    /// (kernel/signal.c, `force_sig_info_to_task`).
    pub(crate) fn is_forced(&self, signal: i32) -> bool {
        signal == libc::SIGTRAP && (self.code == KERNEL || (1..EVENT).contains(&self.code))
    }

    /// Makes the signal of a timer that carries `value` look like that of ITIMER_PROF.
    pub(crate) fn disguise(&mut self, value: usize) {
        if self.code == TIMER && self.value == value as u64 {
            (self.errno, self.code, self.sender, self.value) = (0, KERNEL, 0, 0);
        }
    }
}
