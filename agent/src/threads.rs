//! The threads of the process: each gets a slot and a timer when it starts, and returns them when it ends.
//!
//! A new thread begins in a trampoline that leaves no frame: it jumps to the start routine with the stack as the C
//! library made it, so that exceptions, cancellation and unwinders do not see the agent. A thread-specific key reports
//! the end of a thread; it works for return, `pthread_exit` and cancellation alike.

use alloc::boxed::Box;
use core::arch::global_asm;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use handler::chain;
use handler::kernel_answer;
use handler::recording::{self, Recording};
use handler::remainder::{self, Unplaced};
use handler::slot::{self, Slot};
use platform::activity::Active;
use platform::bounds::Bounds;
use platform::clock;
use platform::sys;
use shm_format::record::{self, DurableRecord};

use crate::agent;
use crate::journal;
use crate::kernel;
use crate::lock::{Lock, Masked};
use crate::locks;
use crate::sampling_signal;
use crate::signal_stacks;
use crate::sources::{self, Since};
use crate::symbols::Real;
use crate::thread_list;
use crate::thread_status::ThreadStatus;

const NO_KEY: u64 = u64::MAX;
/// CPU time for a stopped thread to get back into the wait that it was stopped in, before it is sampled. An earlier
/// tick would end that wait with EINTR.
const WAY_BACK_NS: u64 = 1_000_000;

pub(crate) static PTHREAD_CREATE: Real = Real::new(c"pthread_create");
static KEY_CREATE: Real = Real::new(c"pthread_key_create");
static SET_SPECIFIC: Real = Real::new(c"pthread_setspecific");
static INIT_ATTRIBUTES: Real = Real::new(c"pthread_attr_init");
static GET_STACK: Real = Real::new(c"pthread_attr_getstack");
static GET_STACK_SIZE: Real = Real::new(c"pthread_attr_getstacksize");
static GET_GUARD_SIZE: Real = Real::new(c"pthread_attr_getguardsize");

/// The real functions that this module needs.
pub(crate) static REAL: [&Real; 7] = [
    &PTHREAD_CREATE,
    &KEY_CREATE,
    &SET_SPECIFIC,
    &INIT_ATTRIBUTES,
    &GET_STACK,
    &GET_STACK_SIZE,
    &GET_GUARD_SIZE,
];

static KEY: AtomicU64 = AtomicU64::new(NO_KEY);
static LOCK: Lock = Lock::new();
/// The reader has been told that some threads have no timer.
static TIMER_FAILED: AtomicBool = AtomicBool::new(false);

/// The lock that a fork must hold.
pub(crate) fn lock() -> &'static Lock {
    &LOCK
}

/// What a new thread is to run.
#[derive(Clone, Copy)]
pub(crate) struct Start {
    routine: usize,
    argument: usize,
    /// Whether the creator's mask has the sampling signal blocked in the slot only; the kernel's mask is inherited
    /// anyway.
    hidden: bool,
    stack: Asked,
    /// Whether many threads begin with this, one after the other.
    kept: bool,
}

/// The requested stack.
#[derive(Clone, Copy)]
enum Asked {
    /// Provided by the creator.
    Given(Bounds),
    /// Allocated by the C library, with this many usable bytes.
    Made(u64),
}

/// The routine and argument of a `Start`, returned in two registers.
#[repr(C)]
pub(crate) struct Begun {
    routine: usize,
    argument: usize,
}

// rdi = `*mut Start`. Jumps to the routine with its argument, and with the stack as it was on entry.
global_asm!(
    ".text",
    ".p2align 4",
    ".globl selfwind_thread_start",
    ".hidden selfwind_thread_start",
    ".type selfwind_thread_start,@function",
    "selfwind_thread_start:",
    ".cfi_startproc",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "call {begin}",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "mov rdi, rdx",
    "jmp rax",
    ".cfi_endproc",
    ".size selfwind_thread_start, . - selfwind_thread_start",
    begin = sym begin,
);

unsafe extern "C" {
    fn selfwind_thread_start();
}

/// The address of the trampoline, which takes a [`Start`].
pub(crate) fn trampoline() -> usize {
    selfwind_thread_start as unsafe extern "C" fn() as usize
}

/// Packs what a new thread is to run. [`cancel`] frees it if the thread was not created.
///
/// # Safety
/// `attributes` must be null or a `pthread_attr_t`.
pub(crate) unsafe fn prepare(attributes: *const c_void, routine: usize, argument: usize) -> *mut Start {
    let _masked = Masked::new();
    ensure_key();
    let hidden = slot::noted().is_some_and(Slot::is_hidden);
    // SAFETY: the caller promises null or valid attributes.
    let stack = unsafe { asked_stack(attributes) };
    Box::into_raw(Box::new(Start { routine, argument, hidden, stack, kept: false }))
}

/// Packs what threads created by the C library itself are to run, any number of them. Never freed: the last one is not
/// known.
///
/// # Safety
/// As for [`prepare`].
pub(crate) unsafe fn prepare_many(attributes: *const c_void, routine: usize, argument: usize) -> *mut Start {
    // SAFETY: the caller promises null or valid attributes.
    let start = unsafe { prepare(attributes, routine, argument) };
    // SAFETY: made just now, and nobody else has it.
    unsafe { (*start).kept = true };
    start
}

/// Frees what [`prepare`] made, after a failed `pthread_create`.
///
/// # Safety
/// `start` must come from [`prepare`], and no thread may have it.
pub(crate) unsafe fn cancel(start: *mut Start) {
    let _masked = Masked::new();
    // SAFETY: the caller fulfils this function's contract.
    drop(unsafe { Box::from_raw(start) });
}

/// Runs first in a new thread.
unsafe extern "C" fn begin(start: *mut Start) -> Begun {
    let mut masked = Masked::new();
    // SAFETY: made by `prepare`, and kept or for this thread alone.
    let start = unsafe { if (*start).kept { *start } else { *Box::from_raw(start) } };
    let Start { routine, argument, mut hidden, stack, kept } = start;
    if let (Some(_active), Some(recording)) = (Active::enter(), recording::current()) {
        // The C library blocks signals in its own threads.
        hidden |= kept && !chain::has_handler() && masked.unmask(sampling_signal::get());
        // The same thread may run several of these.
        if !kept || slot::noted().is_none() {
            register(recording, own_stack(stack), hidden);
        }
    }
    Begun { routine, argument }
}

/// Creates the key whose destructor reports the end of a thread, once.
fn ensure_key() {
    if KEY.load(Ordering::Acquire) != NO_KEY {
        return;
    }
    let Some(create) = KEY_CREATE.address() else { return };
    let _held = LOCK.hold();
    if KEY.load(Ordering::Acquire) != NO_KEY {
        return;
    }
    type Create = unsafe extern "C" fn(*mut u32, unsafe extern "C" fn(*mut c_void)) -> c_int;
    let mut key = 0u32;
    // SAFETY: the C library's function of this type.
    let result = unsafe { core::mem::transmute::<usize, Create>(create)(&raw mut key, ended) };
    if result == 0 {
        KEY.store(key.into(), Ordering::Release);
    }
}

/// Gives the calling thread, which is new, a slot and a timer. `hidden`: it blocks the signal in the slot's mask only.
fn register(recording: &Recording, stack: Bounds, hidden: bool) {
    register_since(recording, stack, hidden, Since::Birth);
}

/// Gives the first thread of a new image a slot and a timer. `hidden`: as above.
pub(crate) fn register_first(recording: &Recording, hidden: bool) {
    let (pid, used_ns) = (sys::process_id(), clock::thread_cpu_ns());
    let at_ns = recording.doorbell.and_then(|doorbell| doorbell.exec_times.take(pid, used_ns));
    register_since(
        recording,
        main_stack(),
        hidden,
        at_ns.map_or(Since::Birth, |at_ns| Since::Exec { at_ns }),
    );
}

fn register_since(recording: &Recording, stack: Bounds, hidden: bool, since: Since) {
    let tid = sys::thread_id();
    let Some(slot) = claim(recording, tid) else { return };
    slot.set_stack(stack);
    slot.set_hidden(hidden);
    slot::set_current(slot);
    let key = KEY.load(Ordering::Acquire);
    if key != NO_KEY
        && let Some(set) = SET_SPECIFIC.known()
    {
        type Set = unsafe extern "C" fn(u32, *const c_void) -> c_int;
        // SAFETY: the C library's function of this type, and a key it made.
        unsafe { core::mem::transmute::<usize, Set>(set)(key as u32, core::ptr::from_ref(slot).cast()) };
    }
    announce(recording, slot);
    signal_stacks::enter(slot);
    start(recording, slot, since);
}

/// Claims a slot for the calling thread. An existing one was taken for it by a handler, or belongs to a thread with the
/// same id that ended unnoticed.
fn claim(recording: &Recording, tid: u32) -> Option<&'static Slot> {
    if let Some(before) = slot::find(tid)
        && (!before.is_discovered() || before.end_discovered(before.sequence()))
    {
        retire(recording, before);
    }
    slot::claim(tid, slot::next_sequence())
}

/// Reports a slot's thread to the reader, and grows the region for its records.
pub(crate) fn announce(recording: &Recording, slot: &Slot) {
    recording.region.control().thread_started();
    journal::make_room(recording, slot::count());
    signal_stacks::provide(slot);
    tell(recording, slot, News::Born);
}

/// Starts sampling the slot's thread; if that fails, reports it to the reader, unless the thread has just ended.
pub(crate) fn start(recording: &Recording, slot: &Slot, since: Since) {
    let Some(agent) = agent::get() else { return };
    if let Err(shortfall) = sources::start_thread(recording, slot, &agent.config, since)
        && !has_ended(slot.tid())
        && !TIMER_FAILED.swap(true, Ordering::Relaxed)
    {
        let error = alloc::format!("errno {}", shortfall.error.0);
        journal::tell_setting(recording, shortfall.what.as_bytes(), error.as_bytes());
    }
}

/// What is reported about a thread.
#[derive(Clone, Copy)]
pub(crate) enum News {
    Born,
    Renamed,
    Ended,
}

/// Appends a record about the slot's thread.
pub(crate) fn tell(recording: &Recording, slot: &Slot, news: News) {
    let mut buffer = [0; kernel::THREAD_NAME];
    let name = name_of(slot.tid(), &mut buffer);
    let thread = record::Thread { ticks: clock::now(), tid: slot.tid(), seq: slot.sequence(), name };
    let record = match news {
        News::Born => DurableRecord::Thread(thread),
        News::Renamed => DurableRecord::ThreadName(thread),
        News::Ended => DurableRecord::ThreadEnd(thread),
    };
    journal::append(recording, &record);
}

/// The kernel's name of thread `tid`.
fn name_of(tid: u32, buffer: &mut [u8; kernel::THREAD_NAME]) -> &[u8] {
    if tid == sys::thread_id() {
        return kernel::thread_name(buffer);
    }
    let path = alloc::format!("/proc/self/task/{tid}/comm\0");
    let Ok(path) = core::ffi::CStr::from_bytes_with_nul(path.as_bytes()) else { return &[] };
    match kernel::read_file(path, buffer) {
        Ok(name) => name.strip_suffix(b"\n").unwrap_or(name),
        Err(_) => &[],
    }
}

/// Samples the calling thread, which is about to end, for the CPU time that no sample accounts for yet. No sampling
/// signal may be pending.
pub(crate) fn sample_remainder() {
    if let (Some(_active), Some(recording)) = (Active::enter(), recording::current()) {
        remainder::record(recording, Unplaced::SinceLastSample, clock::thread_cpu_ns());
    }
}

/// Samples the calling thread for the CPU time of its program so far. The agent's start began at `entered_ns` of that time.
pub(crate) fn sample_start(recording: &Recording, entered_ns: u64) {
    if let Some(_active) = Active::enter() {
        remainder::record(recording, Unplaced::ProgramStart, entered_ns);
        remainder::record(recording, Unplaced::AgentStart, clock::thread_cpu_ns());
    }
}

/// Samples the calling thread before an exec. The next image accounts for the time from then on; if it cannot be told,
/// it assumes a short time, which is then left to it.
pub(crate) fn sample_before_exec(recording: &Recording) {
    let used_ns = clock::thread_cpu_ns();
    match recording.doorbell {
        Some(doorbell) => {
            sample_remainder();
            doorbell.exec_times.put(sys::process_id(), used_ns);
        }
        None if used_ns > Since::SHORT_START_NS / 2 => sample_remainder(),
        None => {}
    }
}

/// A process that this one has started without a fork, so that nothing has sampled it, executes a program.
pub(crate) fn tell_unsampled_exec(pid: u32) {
    if let Some(doorbell) = recording::current().and_then(|recording| recording.doorbell) {
        doorbell.exec_times.put(pid, 0);
    }
}

/// The key's destructor: the thread is about to end.
unsafe extern "C" fn ended(_: *mut c_void) {
    sample_remainder();
    let _masked = Masked::new();
    locks::thread_ends();
    let Some(slot) = slot::noted() else { return };
    signal_stacks::leave(slot);
    if let Some(recording) = recording::current() {
        retire(recording, slot);
    }
    slot::note_end();
}

/// Releases a slot: afterwards nothing refers to its thread.
fn retire(recording: &Recording, slot: &Slot) {
    let active = Active::enter();
    if active.is_some() {
        kernel_answer::leave(recording, slot);
        sources::stop_thread(slot);
    }
    recording.rate_limit.inherit(slot.take_carried());
    slot.tell_events(recording.region.control());
    if slot.cursor.close(&recording.region).wake {
        recording.ring();
    }
    if active.is_some() {
        tell(recording, slot, News::Ended);
    }
    recording.region.control().thread_ended();
    slot.release();
}

/// Reaps: releases the slots of discovered threads that have ended.
pub(crate) fn reap_discovered(recording: &Recording) {
    let mut discovered = slot::discovered().peekable();
    if discovered.peek().is_none() {
        return;
    }
    let _masked = Masked::new();
    for slot in discovered {
        let sequence = slot.sequence();
        if has_ended(slot.tid()) && slot.end_discovered(sequence) {
            signal_stacks::take_back(slot);
            retire(recording, slot);
        }
    }
}

/// Whether there is no such thread of this process any more.
fn has_ended(tid: u32) -> bool {
    let arguments = [sys::process_id() as usize, tid as usize, 0, 0, 0, 0];
    // SAFETY: signal 0 only tests whether the thread exists.
    let found = unsafe { kernel::call(libc::SYS_tgkill, arguments) };
    found == Err(kernel::Errno(libc::ESRCH))
}

/// The thread that registers the others.
#[derive(Clone, Copy)]
pub(crate) enum Present {
    /// A thread that has its slot.
    Known,
    /// The agent's own thread, while the program continues.
    Apart,
    /// A thread of the program that was interrupted, with these signals blocked.
    Caller(u64),
}

/// Registers the running threads. Those with a slot are only armed, if necessary. A thread that blocks the signal is
/// skipped: a tick would stay pending and be returned by a `sigwait` of the program.
pub(crate) fn register_existing(recording: &Recording, present: Present) {
    /// Number of rechecks of threads that block the signal, and nanoseconds between them.
    const LOOKS: u32 = 10;
    const PAUSE_NS: u32 = 5_000_000;
    let mut blocked = register_listed(recording, present);
    // Threads occasionally block all signals for a moment, as does the one stopped for an attach until it continues.
    for _ in 0..LOOKS {
        if blocked == 0 || !matches!(present, Present::Apart) {
            break;
        }
        kernel::sleep(PAUSE_NS);
        blocked = register_listed(recording, present);
    }
    if blocked > 0 && recording.sources.clock.is_some() {
        let text =
            alloc::format!("{blocked} threads, as long as they block signal {}", sampling_signal::get());
        journal::tell_setting(recording, b"not sampled", text.as_bytes());
    }
}

/// Registers the threads that the kernel lists. Returns the number of those that block the signal.
fn register_listed(recording: &Recording, present: Present) -> u32 {
    let own = sys::thread_id();
    let mut blocked = 0;
    // Without /proc there is no process to register.
    let _ = thread_list::each(|tid| {
        let mask = match present {
            Present::Known | Present::Apart if tid == own => return true,
            Present::Caller(mask) if tid == own => mask,
            _ => ThreadStatus::read(tid).map_or(0, |status| status.blocked()),
        };
        match mask & 1 << (sampling_signal::get() - 1) != 0 {
            true => blocked += 1,
            false => register_other(recording, tid),
        }
        true
    });
    blocked
}

/// Gives another thread a slot and a timer, unless it has them.
fn register_other(recording: &Recording, tid: u32) {
    if let Some(slot) = slot::find(tid) {
        if slot.timer() == Slot::NO_TIMER {
            start(recording, slot, Since::Now { delay_ns: WAY_BACK_NS });
        }
        return;
    }
    let Some(slot) = slot::adopt(tid, slot::next_sequence()) else { return };
    if tid == sys::process_id() {
        slot.set_stack(main_stack());
    }
    announce(recording, slot);
    start(recording, slot, Since::Now { delay_ns: WAY_BACK_NS });
}

/// In a forked child: the calling thread is the only one left.
pub(crate) fn restart_after_fork(recording: &Recording) {
    let own = slot::noted();
    for slot in slot::taken().filter(|slot| !own.is_some_and(|own| core::ptr::eq(*slot, own))) {
        slot.release();
    }
    match own {
        Some(slot) => {
            slot.restart(sys::thread_id(), slot::next_sequence());
            announce(recording, slot);
            start(recording, slot, Since::Birth);
        }
        None => register(recording, Bounds::NONE, false),
    }
}

/// The stack that a thread with these attributes will have.
///
/// # Safety
/// `attributes` must be null or a `pthread_attr_t`.
unsafe fn asked_stack(attributes: *const c_void) -> Asked {
    type Init = unsafe extern "C" fn(*mut c_void) -> c_int;
    type Stack = unsafe extern "C" fn(*const c_void, *mut usize, *mut usize) -> c_int;
    type Size = unsafe extern "C" fn(*const c_void, *mut usize) -> c_int;
    let (Some(init), Some(stack), Some(size), Some(guard)) =
        (INIT_ATTRIBUTES.known(), GET_STACK.known(), GET_STACK_SIZE.known(), GET_GUARD_SIZE.known())
    else {
        return Asked::Made(0);
    };
    let mut defaults = [0u64; 16];
    let mut attributes = attributes;
    let (mut low, mut bytes, mut guarded) = (0usize, 0usize, 0usize);
    // SAFETY: the C library's functions of these types, none of which allocates. 128 bytes exceed both libraries'
    // `pthread_attr_t`. The values read were set by the program or by `pthread_attr_init`.
    unsafe {
        if attributes.is_null() {
            core::mem::transmute::<usize, Init>(init)((&raw mut defaults).cast());
            attributes = (&raw const defaults).cast();
        } else if core::mem::transmute::<usize, Stack>(stack)(attributes, &raw mut low, &raw mut bytes) == 0
            && low != 0
            && low.checked_add(bytes).is_some_and(|high| high != 0)
        {
            return Asked::Given(Bounds { low: low as u64, high: (low + bytes) as u64 });
        }
        core::mem::transmute::<usize, Size>(size)(attributes, &raw mut bytes);
        core::mem::transmute::<usize, Size>(guard)(attributes, &raw mut guarded);
    }
    Asked::Made((bytes as u64).saturating_sub(guarded as u64))
}

/// The calling thread's stack. If the C library allocated it, it ends below the thread's control block in the same
/// mapping.
fn own_stack(asked: Asked) -> Bounds {
    /// Size limit of the control block and its alignment, above the thread pointer.
    const CONTROL_BLOCK: u64 = 16 << 10;
    match asked {
        Asked::Given(bounds) => bounds,
        Asked::Made(bytes) => {
            let high = thread_pointer() as u64;
            Bounds { low: high.saturating_sub(bytes.saturating_sub(CONTROL_BLOCK)), high }
        }
    }
}

/// The thread pointer, whose first word is itself (x86-64 TLS ABI).
pub(crate) fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: every thread with a C library has one.
    unsafe {
        core::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, readonly, preserves_flags))
    };
    pointer
}

/// The main thread's stack: from the lowest address that it may grow to, up to the end of its mapping.
pub(crate) fn main_stack() -> Bounds {
    /// Below this there may be other mappings, whatever the limit says (kernel: mmap_base keeps 128 MiB free).
    const LARGEST: u64 = 128 << 20;
    let high = crate::auxiliary::stack_end();
    if high == 0 {
        return Bounds::NONE;
    }
    Bounds { low: high.saturating_sub(kernel::limit(libc::RLIMIT_STACK).min(LARGEST)), high }
}
