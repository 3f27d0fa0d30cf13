//! The kernel's `siginfo`: the sender of a signal, and its value (include/uapi/asm-generic/siginfo.h).

/// All of it. Which fields are valid depends on the code.
#[repr(C)]
pub struct SignalInfo {
    signal: i32,
    errno: i32,
    code: i32,
    padding: i32,
    /// Timer: its id, overrun count in the upper half. Process: its pid, uid in the upper half. perf event: the
    /// address.
    sender: u64,
    /// The value that the sender attached.
    value: u64,
    /// perf event: type, flags in the upper half.
    event: u64,
    rest: [u64; 11],
}

/// The same size as the C library's type.
const _: [(); size_of::<libc::siginfo_t>()] = [(); size_of::<SignalInfo>()];

/// kill(2); also if the kernel had no memory for the signal's value (RLIMIT_SIGPENDING).
const USER: i32 = 0;
/// rt_sigqueueinfo(2).
const QUEUE: i32 = -1;
/// timer_settime(2).
const TIMER: i32 = -2;
/// The kernel itself: ITIMER_PROF, but also a breakpoint trap of the processor.
const KERNEL: i32 = 0x80;
/// A perf event with `sigtrap`.
const EVENT: i32 = 6;
/// The signal was blocked when the event happened (TRAP_PERF_FLAG_ASYNC).
const BLOCKED: u32 = 1;

/// Sender of a signal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A timer with this id; `overrun` further expirations since the signal was sent.
    Timer { id: i32, overrun: i32, value: u64 },
    /// A perf event.
    Event { data: u64, blocked: bool },
    /// The kernel.
    Kernel,
    /// A process, with a value.
    Queue { value: u64 },
    /// Unknown.
    Nobody,
    /// Any other sender.
    Other,
}

impl SignalInfo {
    /// Empty, for the kernel to fill in.
    pub const EMPTY: SignalInfo =
        SignalInfo { signal: 0, errno: 0, code: 0, padding: 0, sender: 0, value: 0, event: 0, rest: [0; 11] };

    /// The sender of the signal.
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

    /// Whether the kernel itself sent it, as for ITIMER_PROF.
    pub fn is_kernels(&self) -> bool {
        self.code == KERNEL
    }

    /// Whether it is a trap of the processor: a breakpoint or single step. If blocked or ignored, it ends the process
    /// (kernel/signal.c, `force_sig_info_to_task`).
    pub(crate) fn is_forced(&self, signal: i32) -> bool {
        signal == libc::SIGTRAP && (self.code == KERNEL || (1..EVENT).contains(&self.code))
    }

    /// Makes the signal of a timer with this value look like that of ITIMER_PROF.
    pub(crate) fn disguise(&mut self, value: usize) {
        if self.code == TIMER && self.value == value as u64 {
            (self.errno, self.code, self.sender, self.value) = (0, KERNEL, 0, 0);
        }
    }
}
