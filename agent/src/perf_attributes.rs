//! `struct perf_event_attr` of perf_event_open(2), as far as the agent uses it.

/// PERF_SAMPLE_ bits, in the order of a record's fields.
const SAMPLE_IP: u64 = 1;
const SAMPLE_TIME: u64 = 1 << 2;
const SAMPLE_CALLCHAIN: u64 = 1 << 5;
const SAMPLE_REGS_USER: u64 = 1 << 12;
/// PERF_FORMAT_LOST: the kernel counts records that did not fit.
const FORMAT_LOST: u64 = 1 << 4;
/// PERF_REG_X86_SP and PERF_REG_X86_IP.
const REGISTERS: u64 = 1 << 7 | 1 << 8;

const DISABLED: u64 = 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const FREQUENCY: u64 = 1 << 10;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const EXCLUDE_KERNEL_CHAIN: u64 = 1 << 21;
const EXCLUDE_USER_CHAIN: u64 = 1 << 22;
const USE_CLOCK: u64 = 1 << 25;
const CONTEXT_SWITCH: u64 = 1 << 26;
const REMOVE_ON_EXEC: u64 = 1 << 36;
const SIGTRAP: u64 = 1 << 37;
/// `defer_callchain` and `defer_output` (Linux 6.19): the kernel walks the user stack at the return to user mode.
const DEFER: u64 = 1 << 38 | 1 << 39;

/// The kernel's structure up to `sig_data` (PERF_ATTR_SIZE_VER7).
#[repr(C)]
#[derive(Default)]
pub(crate) struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clock: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved2: u16,
    aux_sample_size: u32,
    reserved3: u32,
    sig_data: u64,
}

const _: () = assert!(size_of::<Attributes>() == 128);

/// What is recorded with an event.
#[derive(Clone, Copy)]
pub(crate) struct Scope {
    /// User mode only.
    pub(crate) user_only: bool,
    /// Let the kernel walk user stacks, for events that get no answer.
    pub(crate) deferred: bool,
}

/// An event that requests stacks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Event {
    /// `type` and `config`.
    pub(crate) kind: u32,
    pub(crate) config: u64,
    /// Events, or nanoseconds of a clock, between samples; samples per second with `by_frequency`.
    pub(crate) period: u64,
    pub(crate) by_frequency: bool,
    /// Also record context switches.
    pub(crate) with_switches: bool,
    /// A tracepoint filter, terminated by NUL; empty for none.
    pub(crate) filter: alloc::vec::Vec<u8>,
    /// A file name, terminated by NUL, and a file offset for a uprobe; empty for other events.
    pub(crate) file: alloc::vec::Vec<u8>,
    pub(crate) offset: u64,
    /// Index of the session's event that it counts as: uprobes at several places share one name.
    pub(crate) number: u32,
}

/// A clock that fired more often than every 100 us would leave a thread on a slow machine no time besides the answers.
/// Weights still count the requested periods.
pub(crate) const SHORTEST_PERIOD_NS: u64 = 100_000;
/// PERF_TYPE_SOFTWARE and its PERF_COUNT_SW_TASK_CLOCK.
pub(crate) const SOFTWARE: u32 = 1;
pub(crate) const TASK_CLOCK: u64 = 1;

/// PERF_COUNT_SW_CONTEXT_SWITCHES and PERF_COUNT_SW_CPU_MIGRATIONS.
pub(crate) const CONTEXT_SWITCHES: u64 = 3;
const MIGRATIONS: u64 = 4;
/// PERF_TYPE_TRACEPOINT.
const TRACEPOINT: u32 = 2;

/// Clocks with at least this period have few unanswered stacks.
const LONG_PERIOD_NS: u64 = 1_000_000;

impl Event {
    /// Whether it is PERF_COUNT_SW_CPU_CLOCK or PERF_COUNT_SW_TASK_CLOCK.
    fn is_clock(&self) -> bool {
        self.kind == SOFTWARE && self.config <= TASK_CLOCK
    }

    /// Whether it never occurs in user mode.
    pub(crate) fn is_in_kernel(&self) -> bool {
        let is_software = self.kind == SOFTWARE && [CONTEXT_SWITCHES, MIGRATIONS].contains(&self.config);
        is_software || self.kind == TRACEPOINT
    }

    /// Whether few stacks wait for their answers: at most a thousand events per second, or each is answered at once.
    pub(crate) fn is_seldom(&self) -> bool {
        if self.is_breakpoint() {
            return true;
        }
        let by_period = self.is_clock() && !self.by_frequency && !self.with_switches;
        by_period && self.period >= LONG_PERIOD_NS
    }

    fn is_breakpoint(&self) -> bool {
        !self.file.is_empty()
    }

    /// The event, with the period of a clock limited to what a thread can answer.
    pub(crate) fn no_faster(&self) -> Event {
        let period = if self.is_clock() { self.period.max(SHORTEST_PERIOD_NS) } else { self.period };
        Event { period, ..self.clone() }
    }

    /// The kernel's description of the event. `data` is delivered with its signals.
    pub(crate) fn attributes(&self, scope: Scope, data: u64) -> Attributes {
        let Scope { user_only, deferred } = scope;
        let mut flags = DISABLED | EXCLUDE_HYPERVISOR | USE_CLOCK | REMOVE_ON_EXEC | SIGTRAP;
        // A deferred call chain is requested as a user call chain.
        flags |= if deferred { DEFER } else { EXCLUDE_USER_CHAIN };
        for (wanted, flag) in [
            // For a uprobe the kernel's call chain consists of its own probe handling only.
            (user_only || self.is_breakpoint(), EXCLUDE_KERNEL | EXCLUDE_KERNEL_CHAIN),
            (self.by_frequency, FREQUENCY),
            (self.with_switches, CONTEXT_SWITCH | SAMPLE_ID_ALL),
        ] {
            flags |= if wanted { flag } else { 0 };
        }
        Attributes {
            kind: self.kind,
            size: size_of::<Attributes>() as u32,
            config: self.config,
            sample_period: self.period,
            sample_type: SAMPLE_IP | SAMPLE_TIME | SAMPLE_CALLCHAIN | SAMPLE_REGS_USER,
            read_format: FORMAT_LOST,
            flags,
            config1: if self.is_breakpoint() { self.file.as_ptr() as u64 } else { 0 },
            config2: self.offset,
            sample_regs_user: REGISTERS,
            clock: libc::CLOCK_MONOTONIC,
            sig_data: data,
            ..Attributes::default()
        }
    }
}
