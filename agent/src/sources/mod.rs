//! What asks for samples: a timer on each thread's CPU clock, one ITIMER_PROF for the process, or the kernel by events
//! of perf_event_open(2) on each thread.
//!
//! Timers are driven by the scheduler tick, so none fires more often than the kernel's HZ per second of CPU time; what
//! a late signal stands for comes as its overrun count. The first expiry is at a random part of the period, so that
//! threads and processes shorter than a period are sampled in proportion to their time. The kernel's events have a
//! clock of their own.

mod perf;
pub(crate) mod process_timer;
pub(crate) mod program_timer;
mod thread_timer;

use core::sync::atomic::{AtomicBool, Ordering};

use alloc::vec::Vec;

use handler::nesting::Entered;
use handler::recording::{Clock, Recording, Sources};
use handler::slot::{self, Slot};

use crate::config::Config;
use crate::kernel::{self, Errno};
use crate::sampling_signal;

/// The kernel's events have ended, and timers go on in their place.
static EVENTS_ENDED: AtomicBool = AtomicBool::new(false);

/// Period of the timer for time in the kernel, where events are in user mode only: a tick of most kernels.
const KERNEL_TIME_PERIOD_NS: u64 = 4_000_000;

/// What will ask for samples, and what there is to say about it.
pub(crate) struct Choice {
    /// The clock that this process may have, and what else is recorded.
    pub(crate) sources: Sources,
    /// Why it is not the one asked for, or what it can see; for the reader.
    pub(crate) note: Option<Vec<u8>>,
}

/// Chooses the clock asked for, or the best that this user may have. A forked child has what its parent had.
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

/// `wanted`, or what takes its place, and what there is to say about it.
fn choose_clock(config: &Config, mut wanted: Clock) -> (Option<Clock>, Option<Vec<u8>>) {
    let mut note = None;
    let harm = match wanted {
        Clock::Perf if config.is_emulated => Some("valgrind does not support the signals of perf_event_open"),
        Clock::Perf if config.is_automatic => perf::harm(),
        _ => None,
    };
    if let Some(harm) = harm {
        wanted = if config.events.are_time() { Clock::ThreadTimer } else { Clock::Perf };
        note = Some([b"cpu timers instead of perf: ", harm.as_bytes()].concat());
    }
    if wanted == Clock::Perf {
        match perf::probe(&config.events, config.deferred) {
            Ok(tier) => {
                sampling_signal::set_for_events();
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
            // No timer can take the place of events that are not time.
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

/// From when on samples of a thread stand for its CPU time.
#[derive(Clone, Copy)]
pub(crate) enum Since {
    /// From its birth, which was just now, or from the exec that made it the only one of a new image.
    Birth,
    /// From now on; by a timer, after so many nanoseconds of its CPU time.
    Now { delay_ns: u64 },
}

impl Since {
    /// Nanoseconds of a thread's CPU time before now that it is to be sampled for, at most. Nobody tells when an exec
    /// was: the kernel and the loader take 1 to 2 ms until there is an agent.
    pub(crate) fn earlier_ns(self) -> u64 {
        match self {
            Since::Birth => 2_000_000,
            Since::Now { .. } => 0,
        }
    }

    pub(crate) fn delay_ns(self) -> u64 {
        match self {
            Since::Birth => 0,
            Since::Now { delay_ns } => delay_ns,
        }
    }
}

/// Why a thread is not sampled as the others are.
pub(crate) struct Shortfall {
    /// What was tried.
    pub(crate) what: &'static str,
    /// What the kernel said.
    pub(crate) error: Errno,
}

/// Starts sampling the slot's thread, as the recording does it.
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
        Some(Clock::ThreadTimer) => timer("thread timer failed"),
        Some(Clock::ProcessTimer) | None => Ok(()),
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
            // Events that are not time have no timer in their place.
            Err(error) if config.events.are_time() => {
                timer("thread timer failed")?;
                Err(Shortfall { what: "no kernel events for some threads, CPU timers instead", error })
            }
            Err(error) => Err(Shortfall { what: "no kernel events for some threads", error }),
        },
    }
}

/// Has a timer tell of the time that the thread spends in the kernel, which no event of user mode does.
fn watch_kernel_time(slot: &Slot, config: &Config, since: Since) {
    thread_timer::disarm(slot);
    let period_ns = config.period_ns().max(KERNEL_TIME_PERIOD_NS);
    if thread_timer::arm_beside_events(slot, sampling_signal::get(), period_ns, since).is_err() {
        // Then events in user mode stand for it.
        slot.kernel_rings.weigh_all();
    }
}

/// Ends the kernel's events of all threads, before the program filters its system calls: an event inside the exec that
/// may follow would kill the next image, and whoever wanted to end it then might be killed for the call. Timers go on
/// where samples stand for time: they need no further call. False if there is nothing to end.
pub(crate) fn end_events(recording: &Recording, config: &Config) -> bool {
    // Events in user mode do not happen inside an exec; but those of a clock leave time in the kernel to be asked for.
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

/// Keeps the slot's thread out of its handler, unless it does not leave it for a long time.
fn enter(slot: &Slot) -> Option<Entered<'_>> {
    const ATTEMPTS: usize = 10_000;
    (0..ATTEMPTS).find_map(|_| {
        let entered = slot.nesting.enter();
        if entered.is_none() {
            kernel::yield_now();
        }
        entered
    })
}

/// Begins the events again that were ended for a filter that the kernel refused.
pub(crate) fn resume_events(recording: &Recording, config: &Config) {
    EVENTS_ENDED.store(false, Ordering::SeqCst);
    for slot in slot::taken() {
        thread_timer::disarm(slot);
        let _ = start_thread(recording, slot, config, Since::Now { delay_ns: 0 });
    }
}

/// Ends the timer of a thread that may be in its handler. Events of the kernel end in the handler, when it finds that
/// the recording has ended: only their own thread may unmap their rings.
pub(crate) fn stop_timer(slot: &Slot) {
    thread_timer::disarm(slot);
}

/// Ends the sampling of the calling thread's slot, or of one whose thread is gone.
pub(crate) fn stop_thread(slot: &Slot) {
    thread_timer::disarm(slot);
    slot.kernel_rings.close();
}
