//! The sources of samples: a timer on each thread's CPU clock, one ITIMER_PROF for the process, or perf events on each
//! thread.
//!
//! Timers are driven by the scheduler tick, so none fires more often than the kernel's HZ per second of CPU time;
//! missed expirations are delivered as the overrun count. The first expiry is at a random point of the period, so that
//! threads and processes shorter than a period are sampled in proportion to their time. perf events have their own
//! clock.

mod perf;
pub(crate) mod process_timer;
pub(crate) mod program_timer;
mod since;
mod thread_timer;

use core::sync::atomic::{AtomicBool, Ordering};

use alloc::vec::Vec;

use handler::interrupted_wait;
use handler::nesting::Entered;
use handler::recording::{Clock, Recording, Sources};
use handler::slot::{self, Slot};
use platform::clock;

pub(crate) use since::Since;

use crate::config::Config;
use crate::kernel::{self, Errno};
use crate::pending;
use crate::sampling_signal;
use crate::thread_status::ThreadStatus;

/// The perf events have ended, and timers have replaced them.
static EVENTS_ENDED: AtomicBool = AtomicBool::new(false);
/// A thread of this process, or of one that it was forked from, has asked to be traced.
static ASKED_TRACER: AtomicBool = AtomicBool::new(false);

/// Period of the timer for kernel time, used if perf events cover user mode only: the scheduler tick of most kernels.
const KERNEL_TIME_PERIOD_NS: u64 = 4_000_000;

/// The chosen sources, and what to report about the choice.
pub(crate) struct Choice {
    /// The clock that this process is permitted, and what else is recorded.
    pub(crate) sources: Sources,
    /// For the reader: why it is not the requested one, or what it can see.
    pub(crate) note: Option<Vec<u8>>,
}

/// Chooses the requested clock, or the best that this user is permitted. A forked child uses its parent's.
pub(crate) fn choose(config: &Config, parent: Option<Sources>) -> Choice {
    if let Some(sources) = parent {
        return Choice { sources, note: None };
    }
    let (clock, note) = match config.sources.clock {
        Some(clock) => choose_clock(config, clock),
        None => {
            sampling_signal::set_for_timers();
            (None, None)
        }
    };
    Choice { sources: config.sources.clocked_by(clock), note }
}

/// `wanted` or a replacement for it, and what to report.
fn choose_clock(config: &Config, mut wanted: Clock) -> (Option<Clock>, Option<Vec<u8>>) {
    let mut note = None;
    let status = (wanted == Clock::Perf).then(|| ThreadStatus::read(platform::sys::thread_id())).flatten();
    if wanted == Clock::Perf
        && let Some(harm) = harm_of_events(config, status.as_ref())
    {
        if !config.events.are_time() {
            sampling_signal::set_for_events();
            return (None, Some([b"nothing is sampled: ", harm.as_bytes()].concat()));
        }
        wanted = Clock::ThreadTimer;
        note = Some([b"cpu timers instead of perf: ", harm.as_bytes()].concat());
    }
    if wanted == Clock::Perf {
        match perf::probe(&config.events, config.deferred) {
            Ok(tier) => {
                sampling_signal::set_for_events();
                if status.is_some_and(|status| !status.is_filtered()) {
                    interrupted_wait::permit();
                }
                let mut note = tier.text(&config.events);
                note.extend_from_slice(match (config.deferred, perf::is_deferring()) {
                    (false, _) => b"",
                    (true, true) => b"; the kernel walks deferred call chains",
                    (true, false) => b"; the kernel has no deferred call chains (needs Linux 6.19)",
                });
                return (Some(Clock::Perf), Some(note));
            }
            Err(refusal) if config.events.are_time() => {
                wanted = Clock::ThreadTimer;
                note = Some(refusal.text("cpu timers instead of perf: "));
            }
            // No timer can replace events that do not measure time.
            Err(refusal) => {
                sampling_signal::set_for_events();
                return (Some(Clock::Perf), Some(refusal.text("nothing is sampled: ")));
            }
        }
    }
    sampling_signal::set_for_timers();
    if wanted == Clock::ThreadTimer && !thread_timer::may_be_had() {
        wanted = Clock::ProcessTimer;
        note.get_or_insert_default().extend_from_slice(b"itimer: no timer left for this user (ulimit -i)");
    }
    (Some(wanted), note)
}

/// Why perf events would do harm in this process although they are permitted; `None` if they would not.
fn harm_of_events(config: &Config, status: Option<&ThreadStatus>) -> Option<&'static str> {
    if config.is_emulated {
        return Some("valgrind does not support the signals of perf_event_open");
    }
    let status = status?;
    if status.is_traced() {
        return Some("the process is traced, and tracers take the SIGTRAP of an event for one of their own");
    }
    (config.is_automatic && status.is_filtered())
        .then_some("a seccomp filter was there before the program, and may kill it for perf_event_open")
}

/// Why a thread is not sampled like the others.
pub(crate) struct Shortfall {
    /// What was attempted.
    pub(crate) what: &'static str,
    /// The kernel's error.
    pub(crate) error: Errno,
}

/// Starts sampling the slot's thread, with the source of the recording.
pub(crate) fn start_thread(
    recording: &Recording,
    slot: &Slot,
    config: &Config,
    since: Since,
) -> Result<(), Shortfall> {
    let timer = |what| {
        thread_timer::arm(slot, sampling_signal::get(), config.period_ns(), since)
            .map_err(|error| Shortfall { what, error })
    };
    match recording.sources.clock {
        Some(Clock::ProcessTimer) | None => Ok(()),
        _ if is_avoided(slot.tid()) => Ok(()),
        Some(Clock::ThreadTimer) => timer("thread timer failed"),
        Some(Clock::Perf) if EVENTS_ENDED.load(Ordering::SeqCst) && config.events.are_time() => {
            timer("thread timer failed")
        }
        Some(Clock::Perf) => match perf::open(recording, slot, &config.events, since) {
            Ok(()) => {
                if perf::is_user_only() && config.events.are_one_clock() {
                    watch_kernel_time(slot, config, since);
                }
                Ok(())
            }
            // Events that do not measure time cannot be replaced by a timer.
            Err(error) if config.events.are_time() => {
                timer("thread timer failed")?;
                Err(Shortfall { what: "no kernel events for some threads, CPU timers instead", error })
            }
            Err(error) => Err(Shortfall { what: "no kernel events for some threads", error }),
        },
    }
}

/// Starts a timer that accounts for the thread's time in the kernel, which events in user mode do not see.
fn watch_kernel_time(slot: &Slot, config: &Config, since: Since) {
    thread_timer::disarm(slot);
    let period_ns = config.period_ns().max(KERNEL_TIME_PERIOD_NS);
    if thread_timer::arm_beside_events(slot, sampling_signal::get(), period_ns, since).is_err() {
        // The timer failed: events in user mode then stand for all time.
        slot.kernel_rings.weigh_all();
    }
}

/// Ends the perf events of all threads before the program installs a seccomp filter: an event inside a later exec would
/// kill the next image, and the system call that ends it could then be forbidden. Where samples stand for time, timers
/// continue: they need no further call. False if there is nothing to end.
pub(crate) fn end_events(recording: &Recording, config: &Config) -> bool {
    // Events in user mode do not occur inside an exec; but those of a clock rely on a request for kernel time.
    let harmless = perf::is_user_only() && !config.events.are_one_clock();
    if !recording.is_clocked_by(Clock::Perf) || harmless || EVENTS_ENDED.swap(true, Ordering::SeqCst) {
        return false;
    }
    for slot in slot::taken().filter(|slot| slot.kernel_rings.are_attached()) {
        let entered = enter(slot);
        if entered.is_some() {
            slot.kernel_rings.close();
        }
        if config.events.are_time() {
            thread_timer::disarm(slot);
            let since = Since::Now { delay_ns: 0 };
            let _ = thread_timer::arm(slot, sampling_signal::get(), config.period_ns(), since);
        }
    }
    true
}

/// Ends all sources of signals, before the program forbids returning from them, and waits for signals that are on their
/// way to other threads. No thread may start to be sampled meanwhile.
pub(crate) fn end_all() {
    for slot in slot::taken() {
        let entered = enter(slot);
        thread_timer::disarm(slot);
        if entered.is_some() {
            slot.kernel_rings.close();
        }
    }
    let (own, signal) = (platform::sys::thread_id(), sampling_signal::get());
    let begun = kernel::clock_ns(libc::CLOCK_MONOTONIC);
    for slot in slot::taken().filter(|slot| slot.tid() != own) {
        let used_ns = clock::cpu_ns_of(slot.tid());
        let ran_ns = || clock::cpu_ns_of(slot.tid()).saturating_sub(used_ns);
        while !pending::is_served(slot.tid(), signal, ran_ns()) && is_patient(begun) {
            kernel::yield_now();
        }
    }
}

/// Whether other threads may still be waited for: one may be stopped, or block everything for good.
fn is_patient(begun: u64) -> bool {
    const PATIENCE_NS: u64 = 500_000_000;
    kernel::clock_ns(libc::CLOCK_MONOTONIC) - begun < PATIENCE_NS
}

/// Keeps the slot's thread out of its handler. `None` if it stays in the handler for a long time.
fn enter(slot: &Slot) -> Option<Entered<'_>> {
    let begun = kernel::clock_ns(libc::CLOCK_MONOTONIC);
    loop {
        let entered = slot.nesting.enter();
        if entered.is_some() || !is_patient(begun) {
            return entered;
        }
        kernel::yield_now();
    }
}

/// Starts all threads again: with events, unless an earlier filter (`is_filtered`) has ended them.
pub(crate) fn resume(recording: &Recording, config: &Config, is_filtered: bool) {
    EVENTS_ENDED.fetch_and(is_filtered, Ordering::SeqCst);
    for slot in slot::taken() {
        thread_timer::disarm(slot);
        let _ = start_thread(recording, slot, config, Since::Now { delay_ns: 0 });
    }
}

/// Ends the timer of a thread that may be in its handler. perf events end in the handler, when it finds that the
/// recording has ended: only their own thread may unmap their rings.
pub(crate) fn stop_timer(slot: &Slot) {
    thread_timer::disarm(slot);
}

/// Ends sampling of the calling thread, or of a thread that has ended.
pub(crate) fn stop_thread(slot: &Slot) {
    thread_timer::disarm(slot);
    slot.kernel_rings.close();
}

/// The calling thread asks to be traced: from now on, threads that are traced are not sampled.
pub(crate) fn avoid_tracers() {
    ASKED_TRACER.store(true, Ordering::Relaxed);
}

/// Whether thread `tid` is not sampled because of its tracer.
pub(crate) fn is_avoided(tid: u32) -> bool {
    ASKED_TRACER.load(Ordering::Relaxed) && ThreadStatus::read(tid).is_some_and(|status| status.is_traced())
}
