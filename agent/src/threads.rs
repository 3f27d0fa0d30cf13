//! The threads of the process: each gets a slot and a timer at its birth, and gives them back at its end.
//!
//! A new thread begins in a trampoline that leaves no frame behind: the start routine is entered by a jump, with
//! the stack as the C library made it, so that exceptions, cancellation and unwinders see nothing of us. Its end
//! is told by a thread-specific key, which works for return, `pthread_exit` and cancellation alike.

use alloc::boxed::Box;
use core::arch::global_asm;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use handler::answer;
use handler::clock;
use handler::newcomers;
use handler::process::{self, Recording};
use handler::slot::{self, Slot};
use handler::stack::Bounds;
use handler::sys;
use shm_format::record::{self, DurableRecord};

use crate::agent;
use crate::journal;
use crate::kernel::{self, File};
use crate::lock::{Lock, Masked};
use crate::sources;
use crate::symbols::Real;
use handler::activity::Active;

/// Longest thread name, with its NUL (kernel: TASK_COMM_LEN).
const NAME: usize = 16;
const NO_KEY: u64 = u64::MAX;
/// CPU time that a thread has to get back into the wait that it was stopped in, before it is sampled. A tick on the way
/// would end that wait with EINTR.
const WAY_BACK_NS: u64 = 1_000_000;

pub(crate) static PTHREAD_CREATE: Real = Real::new(c"pthread_create");
static KEY_CREATE: Real = Real::new(c"pthread_key_create");
static SET_SPECIFIC: Real = Real::new(c"pthread_setspecific");
static GET_ATTRIBUTES: Real = Real::new(c"pthread_getattr_np");
static GET_STACK: Real = Real::new(c"pthread_attr_getstack");
static DESTROY_ATTRIBUTES: Real = Real::new(c"pthread_attr_destroy");

/// All functions of the C library that this module needs.
pub(crate) static REAL: [&Real; 6] =
    [&PTHREAD_CREATE, &KEY_CREATE, &SET_SPECIFIC, &GET_ATTRIBUTES, &GET_STACK, &DESTROY_ATTRIBUTES];

static KEY: AtomicU64 = AtomicU64::new(NO_KEY);
static COUNT: AtomicU32 = AtomicU32::new(0);
static LOCK: Lock = Lock::new();
/// The reader has been told that some threads have no timer.
static TIMER_FAILED: AtomicBool = AtomicBool::new(false);

/// The lock that a fork must hold.
pub(crate) fn lock() -> &'static Lock {
    &LOCK
}

/// What a new thread is to run.
pub(crate) struct Start {
    routine: usize,
    argument: usize,
    /// The creator's part of the mask that the kernel does not know; the kernel's part is inherited anyway.
    hidden: bool,
}

/// `Start`, in the two registers in which a function returns it.
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

/// Packs what a new thread is to run. Freed by [`cancel`] if no thread came of it.
pub(crate) fn prepare(routine: usize, argument: usize) -> *mut Start {
    let _masked = Masked::new();
    ensure_key();
    let hidden = slot::noted().is_some_and(Slot::is_hidden);
    newcomers::expect();
    Box::into_raw(Box::new(Start { routine, argument, hidden }))
}

/// Frees what [`prepare`] made, when `pthread_create` failed.
///
/// # Safety
/// `start` came from [`prepare`], and no thread has it.
pub(crate) unsafe fn cancel(start: *mut Start) {
    let _masked = Masked::new();
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(start) });
    newcomers::settle();
}

/// First act of a new thread.
unsafe extern "C" fn begin(start: *mut Start) -> Begun {
    let _masked = Masked::new();
    // SAFETY: made by `prepare` for this thread alone.
    let Start { routine, argument, hidden } = *unsafe { Box::from_raw(start) };
    if let (Some(_active), Some(recording)) = (Active::enter(), process::recording()) {
        register(recording, own_stack(), hidden);
    }
    newcomers::settle();
    Begun { routine, argument }
}

/// Makes the key whose destructor tells of a thread's end, once.
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

/// Gives the calling thread a slot and a timer. `hidden`: it blocks the signal, but the kernel does not know.
pub(crate) fn register(recording: &Recording, stack: Bounds, hidden: bool) {
    let tid = sys::thread_id();
    let Some(slot) = claim(tid) else { return };
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
    start(recording, slot, 0);
}

/// Claims a slot, adding a block of them if there is none left.
fn claim(tid: u32) -> Option<&'static Slot> {
    let sequence = process::next_sequence();
    if let Some(slot) = slot::claim(tid, sequence) {
        return Some(slot);
    }
    let _held = LOCK.hold();
    slot::claim(tid, sequence).or_else(|| {
        let bytes = slot::next_block_bytes()?;
        let block = kernel::map_private(bytes)?;
        // SAFETY: a zeroed mapping of the asked size, never unmapped.
        unsafe { slot::add_block(block.as_ptr(), bytes) };
        slot::claim(tid, sequence)
    })
}

/// Tells the reader of a slot's thread and makes room for its records.
pub(crate) fn announce(recording: &Recording, slot: &Slot) {
    let threads = COUNT.fetch_add(1, Ordering::Relaxed) as usize + 1;
    recording.region.control().thread_started();
    journal::make_room(recording, threads);
    tell(recording, slot, News::Born);
}

/// Arms the slot's timer, whose first period begins after `delay_ns` of CPU time; a thread that cannot have one is not
/// sampled, and the reader is told.
pub(crate) fn start(recording: &Recording, slot: &Slot, delay_ns: u64) {
    let Some(agent) = agent::get() else { return };
    if let Err(shortfall) = sources::start_thread(recording, slot, &agent.config, delay_ns)
        && !TIMER_FAILED.swap(true, Ordering::Relaxed)
    {
        let error = alloc::format!("errno {}", shortfall.error.0);
        journal::tell_setting(recording, shortfall.what.as_bytes(), error.as_bytes());
    }
}

/// What there is to tell of a thread.
#[derive(Clone, Copy)]
pub(crate) enum News {
    Born,
    Renamed,
    Ended,
}

/// Appends a record about the slot's thread.
pub(crate) fn tell(recording: &Recording, slot: &Slot, news: News) {
    let mut buffer = [0u8; NAME];
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
fn name_of(tid: u32, buffer: &mut [u8; NAME]) -> &[u8] {
    if tid == sys::thread_id() {
        let arguments = [libc::PR_GET_NAME as usize, buffer.as_mut_ptr() as usize, 0, 0, 0, 0];
        // SAFETY: the kernel writes 16 bytes.
        let _ = unsafe { kernel::call(libc::SYS_prctl, arguments) };
        let end = buffer.iter().position(|byte| *byte == 0).unwrap_or(NAME);
        return &buffer[..end];
    }
    let path = alloc::format!("/proc/self/task/{tid}/comm\0");
    let Ok(path) = core::ffi::CStr::from_bytes_with_nul(path.as_bytes()) else { return &[] };
    match kernel::read_file(path, buffer) {
        Ok(name) => name.strip_suffix(b"\n").unwrap_or(name),
        Err(_) => &[],
    }
}

/// The key's destructor: the thread is about to end.
unsafe extern "C" fn ended(_: *mut c_void) {
    let _masked = Masked::new();
    let Some(slot) = slot::noted() else { return };
    if let Some(recording) = process::recording() {
        retire(recording, slot);
    }
    slot::set_current(core::ptr::null());
}

/// Ends a slot's life: after this nothing refers to its thread.
fn retire(recording: &Recording, slot: &Slot) {
    let active = Active::enter();
    if active.is_some() {
        answer::leave(recording, slot);
        sources::stop_thread(slot);
    }
    recording.region.control().leave_out(slot.take_put_off().into());
    if slot.cursor.close(&recording.region).wake {
        recording.ring();
    }
    if active.is_some() {
        tell(recording, slot, News::Ended);
    }
    recording.region.control().thread_ended();
    slot.release();
    COUNT.fetch_sub(1, Ordering::Relaxed);
}

/// Looks after threads that nobody announces: tells of the new ones, retires those that are gone.
pub(crate) fn look_after_strangers(recording: &Recording) {
    let mut strangers = slot::strangers().peekable();
    if strangers.peek().is_none() {
        return;
    }
    let _masked = Masked::new();
    for slot in strangers {
        if slot.take_adopted() {
            announce(recording, slot);
        }
        let arguments = [sys::process_id() as usize, slot.tid() as usize, 0, 0, 0, 0];
        // SAFETY: signal 0 only asks whether the thread is there.
        if unsafe { kernel::call(libc::SYS_tgkill, arguments) } == Err(kernel::Errno(libc::ESRCH))
            && slot.end_adoption()
        {
            retire(recording, slot);
        }
    }
}

/// Registers the threads that run already, except `own`. Those that are known are only armed, if they are not.
pub(crate) fn register_existing(recording: &Recording, own: Option<u32>) {
    let Ok(directory) = File::read_only(c"/proc/self/task") else { return };
    let mut buffer = [0u8; 4096];
    while let Ok(count @ 1..) = directory.entries(&mut buffer) {
        let mut rest = &buffer[..count];
        // `linux_dirent64`: inode 8, offset 8, record length 2, type 1, name.
        while let Some(length) = rest.get(16..18).map(|length| u16::from_le_bytes([length[0], length[1]])) {
            let (entry, after) = rest.split_at((length as usize).clamp(19, rest.len()));
            rest = after;
            let name = entry[19..].split(|byte| *byte == 0).next().unwrap_or(&[]);
            if let Some(tid) =
                crate::config::number(name).map(|tid| tid as u32).filter(|tid| Some(*tid) != own)
            {
                register_other(recording, tid);
            }
        }
    }
}

/// Gives another thread a slot and a timer, unless it has them.
fn register_other(recording: &Recording, tid: u32) {
    if let Some(slot) = slot::taken().find(|slot| slot.tid() == tid) {
        if slot.take_adopted() {
            announce(recording, slot);
        }
        if slot.timer() == Slot::NO_TIMER {
            start(recording, slot, WAY_BACK_NS);
        }
        return;
    }
    let Some(slot) = claim(tid) else { return };
    if tid == sys::process_id() {
        slot.set_stack(main_stack());
    }
    slot.set_unannounced();
    announce(recording, slot);
    start(recording, slot, WAY_BACK_NS);
}

/// In a forked child: the calling thread is the only one left.
pub(crate) fn restart_after_fork(recording: &Recording) {
    COUNT.store(0, Ordering::Relaxed);
    newcomers::forget_expected();
    let own = slot::noted();
    for slot in slot::taken().filter(|slot| !own.is_some_and(|own| core::ptr::eq(*slot, own))) {
        slot.release();
    }
    match own {
        Some(slot) => {
            slot.restart(sys::thread_id(), process::next_sequence());
            announce(recording, slot);
            start(recording, slot, 0);
        }
        None => register(recording, Bounds::NONE, false),
    }
}

/// The calling thread's stack, as the C library knows it.
fn own_stack() -> Bounds {
    let (Some(get), Some(stack), Some(destroy)) =
        (GET_ATTRIBUTES.known(), GET_STACK.known(), DESTROY_ATTRIBUTES.known())
    else {
        return Bounds::NONE;
    };
    type Get = unsafe extern "C" fn(usize, *mut c_void) -> c_int;
    type Stack = unsafe extern "C" fn(*const c_void, *mut usize, *mut usize) -> c_int;
    type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;
    let mut attributes = [0u64; 16];
    let attributes = (&raw mut attributes).cast::<c_void>();
    let (mut low, mut bytes) = (0usize, 0usize);
    // SAFETY: the C library's functions of these types; `pthread_t` is the thread pointer, which fs:0 holds in
    // both C libraries; 128 bytes are more than either's `pthread_attr_t`.
    unsafe {
        if core::mem::transmute::<usize, Get>(get)(thread_pointer(), attributes) != 0 {
            return Bounds::NONE;
        }
        core::mem::transmute::<usize, Stack>(stack)(attributes, &raw mut low, &raw mut bytes);
        core::mem::transmute::<usize, Destroy>(destroy)(attributes);
    }
    Bounds { low: low as u64, high: (low + bytes) as u64 }
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

/// The main thread's stack: up to the end of its mapping, down as far as it may grow.
pub(crate) fn main_stack() -> Bounds {
    /// Farther down there may be other mappings, whatever the limit says (kernel: mmap_base keeps 128 MiB free).
    const LARGEST: u64 = 128 << 20;
    let high = crate::auxiliary::stack_end();
    if high == 0 {
        return Bounds::NONE;
    }
    Bounds { low: high.saturating_sub(kernel::limit(libc::RLIMIT_STACK).min(LARGEST)), high }
}
