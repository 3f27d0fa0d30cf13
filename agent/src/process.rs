//! The life cycle of the process: recording begins, continues in a child after a fork, and ends.
//!
//! A forked child must never touch its parent's region: the mapping is not inherited, the page that refers to it is
//! wiped, and the child creates a region of its own. A child of `vfork` or `posix_spawn` shares its parent's memory and
//! has no timer; nothing here runs in it.

use alloc::boxed::Box;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use handler::kernel_answer;
use handler::late_start::LateStart;
use handler::process_time::ProcessTime;
use handler::recording::{self, Clock, Page, Probe, Recording};
use handler::slot::{self, Slot};
use handler::unwinding::Unwind;
use platform::activity::{self, Active};
use platform::clock;
use shm_format::record::{self, DurableRecord};

use crate::agent::{self, Agent};
use crate::allocations;
use crate::heap::HEAP;
use crate::journal;
use crate::kernel;
use crate::live_tables::LiveTables;
use crate::lock::{Lock, LockGuard, Masked};
use crate::locks;
use crate::mappings;
use crate::module_news::ModuleNews;
use crate::modules;
use crate::regions;
use crate::sampling_signal;
use crate::second_mappings;
use crate::session::{self, Failure, Myself};
use crate::signals;
use crate::sources::{self, Since, process_timer, program_timer};
use crate::symbols::Real;
use crate::threads;
use crate::tracepoints;

const PAGE: usize = size_of::<Page>();

static REGISTER_ATFORK: Real = Real::new(c"__register_atfork");
static PTHREAD_ATFORK: Real = Real::new(c"pthread_atfork");
static INNER_FORK: Real = Real::new(c"_Fork");

/// The real functions that this module needs.
pub(crate) static REAL: [&Real; 3] = [&REGISTER_ATFORK, &PTHREAD_ATFORK, &INNER_FORK];

/// The page that is wiped by a fork; null until the start.
static WIPED: AtomicPtr<Page> = AtomicPtr::new(core::ptr::null_mut());

/// Creates this process's region and records its identity, with its arguments if they are already known. Sampling does not
/// begin yet.
pub(crate) fn open(
    agent: &Agent,
    myself: &Myself,
    arguments: Option<&[u8]>,
    parent: Option<(u64, &Recording)>,
) -> Result<&'static Recording, Failure> {
    let doorbell = match parent {
        Some((_, recording)) => recording.doorbell,
        None => agent.directory.doorbell(),
    };
    if doorbell.is_some_and(|doorbell| doorbell.is_stopped()) {
        return Err(Failure::Over);
    }
    let (region, LiveTables { blocks, counts, mappings }) =
        session::create(&agent.config, &agent.directory, myself, parent.is_some())?;
    let choice = sources::choose(&agent.config, parent.map(|(_, recording)| recording.sources));
    let clock = choice.sources.clock;
    let recording: &'static Recording = Box::leak(Box::new(Recording {
        region,
        doorbell,
        sources: choice.sources,
        unwind: agent.config.unwind,
        copy_limit: agent.config.copy_limit,
        max_frames: agent.config.max_frames,
        cache: modules::cache(),
        tells_delay: clock == Some(Clock::Perf) && agent.config.events.are_waits(),
        process_time: ProcessTime::starting_now(agent.config.period_ns()),
        rate_limit: agent.config.rate_limit(clock),
        switch_limit: agent.config.switch_limit(clock),
        late_start: LateStart::new(sampling_signal::get(), agent.config.late_period(clock)),
        live_blocks: blocks,
        allocation_counts: counts,
        live_mappings: mappings,
    }));
    let parent_nonce = parent.map_or(0, |(nonce, _)| nonce);
    journal::tell_process(recording, &agent.config, &agent.names.program, arguments, parent_nonce);
    if !agent.config.probes.is_empty() {
        journal::tell_setting(recording, record::Setting::PROBES, &agent.config.probes);
    }
    if let Some(note) = choice.note {
        journal::tell_setting(recording, b"source", &note);
    }
    regions::make_room(recording);
    if recording.unwind != Unwind::Own {
        journal::tell_setting(recording, b"unwind", recording.unwind.name().as_bytes());
    }
    Ok(recording)
}

/// Publishes the recording to handlers.
pub(crate) fn publish(recording: &'static Recording) -> bool {
    let mut page = WIPED.load(Ordering::Relaxed);
    if page.is_null() {
        let Some(new) = kernel::map_private(PAGE) else { return false };
        page = new.as_ptr().cast();
        // SAFETY: a new page of the agent's. If the kernel cannot wipe it (before 4.14), the fork handlers clear it.
        let _ = unsafe { kernel::advise(page.cast(), PAGE, libc::MADV_WIPEONFORK) };
        WIPED.store(page, Ordering::Relaxed);
    }
    // SAFETY: the page is zeroed, never unmapped, and wiped or cleared in a child.
    unsafe { recording::publish(page, recording) };
    true
}

/// Handles an ITIMER_PROF that the program already has, inherited by exec or because it is running already: another
/// timer emulates it, or it keeps the kernel's and nothing is sampled.
fn make_way(recording: &Recording) {
    let left = process_timer::get();
    if recording.is_clocked_by(Clock::ProcessTimer)
        && process_timer::is_armed(&left)
        && !program_timer::replace(&left)
    {
        give_timer_up(recording);
    }
}

/// Leaves ITIMER_PROF to the program.
pub(crate) fn give_timer_up(recording: &Recording) {
    recording.process_time.give_up();
    let why = b"the program uses ITIMER_PROF itself (gcc -pg, or ulimit -i leaves it no other timer)";
    journal::tell_setting(recording, b"not sampled", why);
}

/// Starts the process-wide timer, if that is the source.
pub(crate) fn start_source(recording: &Recording, agent: &Agent) {
    if recording.is_clocked_by(Clock::ProcessTimer)
        && !recording.process_time.is_given_up()
        && !sources::is_avoided(platform::sys::thread_id())
        && let Err(error) = process_timer::start(agent.config.period_ns())
    {
        journal::tell_setting(
            recording,
            b"process timer failed",
            alloc::format!("errno {}", error.0).as_bytes(),
        );
    }
}

/// The locks that a fork holds, so that its child finds everything consistent. Always acquired in this order.
struct AllLocks {
    held: [Option<LockGuard<'static>>; LOCKS],
}

const LOCKS: usize = 6;

fn locks() -> [&'static Lock; LOCKS] {
    [threads::lock(), signals::lock(), modules::lock(), journal::lock(), mappings::lock(), HEAP.lock()]
}

struct Cell(UnsafeCell<AllLocks>);

// SAFETY: accessed only by the thread that holds all the locks.
unsafe impl Sync for Cell {}

static HELD: Cell = Cell(UnsafeCell::new(AllLocks { held: [const { None }; LOCKS] }));

/// Before a fork: acquires all locks.
pub(crate) unsafe extern "C" fn before_fork() {
    let held = locks().map(|lock| Some(lock.hold()));
    // perf events need none of the locks, and a fork takes long: let them through, so that its stack is sampled.
    if lets_events_through()
        && let Some(Some(first)) = held.first()
    {
        first.let_through(sampling_signal::get());
    }
    // SAFETY: all locks are held, so no other thread is here.
    unsafe { (*HELD.0.get()).held = held };
}

/// Whether signals may be delivered during a fork, which the kernel restarts as long as one is pending. So the C
/// library must block them around the system call (as those with `_Fork` do: glibc 2.34, musl 1.2.3), and the source
/// must not be a timer.
fn lets_events_through() -> bool {
    let has_events = |slot: &Slot| slot.kernel_rings.are_attached() && slot.timer() == Slot::NO_TIMER;
    INNER_FORK.known().is_some() && slot::noted().is_some_and(has_events)
}

/// After a fork, in both processes: releases the locks in reverse order.
fn give_back() {
    // SAFETY: this thread took the locks before the fork; in a child it is the only thread.
    let held = unsafe { &mut (*HELD.0.get()).held };
    for held in held.iter_mut().rev() {
        *held = None;
    }
}

/// After a fork, in the parent.
pub(crate) unsafe extern "C" fn after_fork_parent() {
    give_back();
    if kernel_user().is_some_and(|user| user != 0) {
        tell_other_user(b"children are not recorded", b"");
    }
}

/// The effective user id; `None` if a seccomp filter may forbid the call.
fn kernel_user() -> Option<u32> {
    Active::enter().map(|_active| kernel::user_id())
}

/// Records once that this process has become a user who cannot create files in the session directory: its children and
/// the programs it executes will have no region and cannot report that themselves.
fn tell_other_user(what: &[u8], of: &[u8]) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let (Some(agent), Some(recording), Some(user)) = (agent::get(), recording::current(), kernel_user())
    else {
        return;
    };
    // A recording by root has a directory for all users.
    let is_open = agent.config.others.is_some() || user == agent.user;
    if is_open || recording.is_over() || TOLD.swap(true, Ordering::Relaxed) {
        return;
    }
    let _masked = Masked::new();
    let pid = platform::sys::process_id();
    let text = alloc::format!("process {pid} has become user {user}, who may not open the session directory");
    journal::tell_setting(recording, &[what, of].concat(), text.as_bytes());
}

/// Records, after a `chroot`, that children will be unable to create a region; they cannot report that themselves.
pub(crate) fn root_changed() {
    let (Some(_active), Some(agent), Some(recording)) =
        (Active::enter(), agent::get(), recording::current().filter(|_| agent::is_own_process()))
    else {
        return;
    };
    if recording.is_over() || agent.directory.is_there() {
        return;
    }
    let _masked = Masked::new();
    let pid = platform::sys::process_id();
    let text = alloc::format!(
        "process {pid} has another root (chroot), from where the session directory cannot be reached; bind it into the new root"
    );
    journal::tell_setting(recording, b"children are not recorded", text.as_bytes());
}

/// After a fork, in the child.
pub(crate) unsafe extern "C" fn after_fork_child() {
    // Restores the mask from before the fork, so it comes first.
    give_back();
    let _masked = Masked::new();
    become_child();
}

/// Creates the child's own region and starts sampling.
pub(crate) fn become_child() {
    let (Some(agent), Some(parent)) = (agent::get(), agent::myself()) else { return };
    // SAFETY: set once by the parent's `publish`; only the doorbell is used, whose mapping is inherited.
    let doorbell = PARENT.load(Ordering::Relaxed);
    // SAFETY: a published recording is never freed.
    let Some(before) = (unsafe { doorbell.as_ref() }) else { return };
    recording::forget();
    allocations::forget_blocks();
    locks::forget_waits();
    program_timer::forget();
    activity::forget_others();
    // A seccomp filter is inherited, too.
    let Some(_active) = Active::enter() else { return };
    if before.is_over() {
        return;
    }
    let Ok(myself) = Myself::read(Some(parent.boot_id())) else { return };
    let myself: &'static Myself = Box::leak(Box::new(myself));
    let opened = open(agent, myself, None, Some((parent.nonce, before)));
    agent::set_myself(myself);
    let recording = match opened {
        Ok(recording) => recording,
        Err(failure) => return agent.directory.note_failure(myself, &failure),
    };
    modules::tell_all(&mut ModuleNews::new(recording));
    begin(agent, recording, threads::restart_after_fork);
}

/// The recording of this process or, in a new child, of its parent.
static PARENT: AtomicPtr<Recording> = AtomicPtr::new(core::ptr::null_mut());

/// Publishes `recording`, registers threads and starts the source.
pub(crate) fn begin(agent: &'static Agent, recording: &'static Recording, register: impl FnOnce(&Recording)) {
    PARENT.store(core::ptr::from_ref(recording).cast_mut(), Ordering::Relaxed);
    if publish(recording) {
        register(recording);
        make_way(recording);
        start_source(recording, agent);
        if recording.sources.have(Probe::Allocations) {
            allocations::begin(recording, agent);
        } else {
            allocations::never();
        }
        enable_tracepoints(agent, recording);
        if recording.sources.have(Probe::Locks) {
            locks::begin(agent.config.waits, agent.config.max_overhead);
        } else {
            locks::never();
        }
        recording.announce_change();
    }
}

/// Enables the requested tracepoints, and backs log space for their descriptions.
fn enable_tracepoints(agent: &'static Agent, recording: &Recording) {
    let wanted = &agent.config.tracepoints;
    if !wanted.is_empty() {
        journal::make_log(recording, tracepoints::LOG);
    }
    tracepoints::begin(wanted);
}

/// Makes the C library call the functions above around every fork.
pub(crate) fn watch_forks() {
    type Handler = unsafe extern "C" fn();
    type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;
    type Plain = unsafe extern "C" fn(Handler, Handler, Handler) -> c_int;
    let (before, parent, child) =
        (before_fork as Handler, after_fork_parent as Handler, after_fork_child as Handler);
    if let Some(register) = REGISTER_ATFORK.known() {
        // SAFETY: glibc's function of this type; a null object handle means that it is never unregistered.
        unsafe {
            core::mem::transmute::<usize, Register>(register)(before, parent, child, core::ptr::null_mut())
        };
    } else if let Some(register) = PTHREAD_ATFORK.known() {
        // SAFETY: the C library's function of this type.
        unsafe { core::mem::transmute::<usize, Plain>(register)(before, parent, child) };
    }
}

/// Stops the ticks of the calling thread and says why; see [`stop_ticks`].
pub(crate) fn silence_thread(recording: &Recording, why: &[u8]) {
    let _masked = Masked::new();
    stop_ticks(recording);
    journal::tell_setting(recording, b"stopped", why);
}

/// Stops the ticks of the calling thread; or of the whole process, if there is no timer per thread.
fn stop_ticks(recording: &Recording) {
    match recording.sources.clock {
        Some(Clock::ProcessTimer) if recording.process_time.is_given_up() => {}
        Some(Clock::ProcessTimer) => process_timer::stop(),
        None => {}
        Some(Clock::ThreadTimer | Clock::Perf) => slot::noted().into_iter().for_each(sources::stop_thread),
    }
}

/// Asks, by `request`, for the calling thread to be traced. It gets no more ticks, which its tracer would see first.
pub(crate) fn ask_tracer(recording: &Recording, agent: &Agent, request: impl FnOnce() -> c_long) -> c_long {
    // Signals that are pending come when this ends, before the request.
    let masked = Masked::new();
    stop_ticks(recording);
    drop(masked);
    let result = request();
    let _masked = Masked::new();
    let slot = slot::noted();
    if result == 0 {
        sources::avoid_tracers();
        // Nothing accounts for its time any more.
        slot.inspect(|slot| slot.kernel_rings.count_time(0, 0, false));
        if recording.sources.clock.is_some() {
            let why = b"a thread asked to be traced (PTRACE_TRACEME), and its tracer would see every sample";
            journal::tell_setting(recording, b"stopped", why);
        }
    } else {
        start_source(recording, agent);
        slot.inspect(|slot| threads::start(recording, slot, Since::Now { delay_ns: 0 }));
    }
    result
}

/// Leaves nothing armed or pending that could kill the next image. `program_timer` is the remaining time of the
/// program's own ITIMER_PROF, which an exec preserves. Returns whether the signal mask had to be changed.
pub(crate) fn before_exec(
    recording: &Recording,
    path: &[u8],
    program_timer: impl FnOnce() -> libc::itimerval,
) -> bool {
    threads::sample_before_exec(recording);
    let mut masked = Masked::new();
    // Before the mask changes, so that signals sent by then are delivered.
    refuse_requests(recording);
    journal::append(recording, &DurableRecord::Exec(record::Exec { ticks: clock::now(), path }));
    tell_other_user(b"a program is not recorded: ", path);
    if let Some(slot) = slot::noted() {
        kernel_answer::leave(recording, slot);
        // An event inside the exec would send its signal to the new image, although it is removed at exec.
        slot.kernel_rings.close();
        leave_out(recording, slot);
        slot.tell_events(recording.region.control());
        if slot.cursor.close(&recording.region).wake {
            recording.ring();
        }
    }
    signals::uncover();
    let hidden = slot::noted().is_some_and(Slot::is_hidden);
    if hidden {
        masked.mask(sampling_signal::get());
    }
    if recording.is_clocked_by(Clock::ProcessTimer) && !recording.process_time.is_given_up() {
        process_timer::stop();
        signals::drain_process_timer();
        let left = program_timer();
        if left.it_value.tv_sec != 0 || left.it_value.tv_usec != 0 {
            let _ = process_timer::set(&left);
        }
    }
    hidden
}

/// Counts carried-over weight when no sample will take it up.
fn leave_out(recording: &Recording, slot: &Slot) {
    let left = slot.take_carried().saturating_add(recording.rate_limit.take_orphaned());
    recording.region.control().leave_out(left.into());
}

/// Refuses further requests for stacks and waits for requesters that are about to send one: the signal would kill the
/// next image.
pub(crate) fn refuse_requests(recording: &Recording) {
    /// Timeout, in case a requester was killed meanwhile.
    const PATIENCE_NS: u64 = 20_000_000;
    let region = &recording.region;
    region.close_requests(true);
    let begun = kernel::clock_ns(libc::CLOCK_MONOTONIC);
    while region.is_being_asked() && kernel::clock_ns(libc::CLOCK_MONOTONIC) - begun < PATIENCE_NS {
        kernel::yield_now();
    }
}

/// Starts the sampling again that ended for a filter which the kernel refused; `is_filtered` by an earlier one.
pub(crate) fn resume(recording: &Recording, agent: &Agent, is_filtered: bool) {
    recording.region.close_requests(false);
    if !is_filtered {
        start_source(recording, agent);
    }
    sources::resume(recording, &agent.config, is_filtered);
}

/// Restores the state after an exec that failed; `hidden` is the result of [`before_exec`].
pub(crate) fn after_failed_exec(recording: &Recording, hidden: bool) {
    let mut masked = Masked::new();
    recording.region.close_requests(false);
    signals::cover();
    if hidden {
        masked.unmask(sampling_signal::get());
    }
    if let Some(agent) = agent::get() {
        start_source(recording, agent);
    }
    if recording.is_clocked_by(Clock::Perf)
        && let Some(slot) =
            slot::noted().filter(|slot| slot.timer() == Slot::NO_TIMER || !slot.kernel_rings.are_attached())
    {
        threads::start(recording, slot, Since::Now { delay_ns: 0 });
    }
}

/// The process ends by `exit`: hands this thread's chunk to the reader.
pub(crate) fn end() {
    let Some(_active) = Active::enter() else { return };
    let Some(recording) = recording::current().filter(|_| agent::is_own_process()) else { return };
    threads::sample_remainder();
    let _masked = Masked::new();
    recording.region.close_requests(true);
    if recording.is_clocked_by(Clock::ProcessTimer) && !recording.process_time.is_given_up() {
        process_timer::stop();
    }
    if let Some(slot) = slot::noted() {
        kernel_answer::leave(recording, slot);
        sources::stop_thread(slot);
        leave_out(recording, slot);
        let _ = slot.cursor.close(&recording.region);
    }
    slot::taken().for_each(|slot| slot.tell_events(recording.region.control()));
    second_mappings::tell(recording);
    journal::append(recording, &DurableRecord::Exit(record::Exit { ticks: clock::now(), status: None }));
    journal::tell_anchor(recording);
    recording.ring();
}
