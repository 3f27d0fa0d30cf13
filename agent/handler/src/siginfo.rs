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

/// A timer that has expired.
pub(crate) struct Timer {
    pub(crate) id: i32,
    /// Further expirations since the signal was sent.
    pub(crate) overrun: i32,
    pub(crate) value: u64,
}

impl SignalInfo {
    /// Empty, for the kernel to fill in.
    pub const EMPTY: SignalInfo =
        SignalInfo { signal: 0, errno: 0, code: 0, padding: 0, sender: 0, value: 0, event: 0, rest: [0; 11] };

    /// The timer that sent it.
    #[inline]
    pub(crate) fn timer(&self) -> Option<Timer> {
        let (id, overrun) = (self.sender as i32, (self.sender >> 32) as i32);
        (self.code == TIMER).then_some(Timer { id, overrun, value: self.value })
    }

    /// The value of the perf event that sent it, and whether the signal was blocked then.
    #[inline]
    pub(crate) fn event(&self) -> Option<(u64, bool)> {
        (self.code == EVENT).then_some((self.value, (self.event >> 32) as u32 & BLOCKED != 0))
    }

    /// The value that a process has sent with it.
    pub(crate) fn queued(&self) -> Option<u64> {
        (self.code == QUEUE).then_some(self.value)
    }

    /// Whether nothing is known of the sender.
    pub(crate) fn is_nobodys(&self) -> bool {
        self.code == USER && self.sender == 0
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
