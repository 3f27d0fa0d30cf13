//! perf events on each thread, which request stacks by a synchronous signal.
//!
//! An event writes into a ring of its own and sends SIGTRAP, which the kernel delivers when the thread returns to user
//! mode: no system call is interrupted. Events are never inherited, because the signal would kill a child or run the
//! handler in its parent's memory; they are removed at exec. The descriptor is closed as soon as the ring is mapped:
//! the mapping keeps the event alive.

use alloc::format;
use alloc::vec::Vec;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use handler::kernel_ring::{KernelRing, PAGE};
use handler::recording::Recording;
use handler::slot::Slot;
use handler::thread_timer;
use platform::clock;
use shm_format::record::{self, DurableRecord};

use super::since::Since;
use crate::events::Events;
use crate::journal;
use crate::kernel::{self, Errno, File};
use crate::perf_attributes::{Event, SHORTEST_PERIOD_NS, Scope};

/// Data pages of a ring, in order of preference: locked memory is limited.
const SIZES: [usize; 5] = [16, 8, 4, 2, 1];
/// Data pages for a rare event: space for a hundred kernel stacks that wait for their answers while signals are blocked
/// or the thread is in a system call.
const SELDOM: usize = 4;

const IOC_ENABLE: usize = 0x2400;
const IOC_SET_FILTER: usize = 0x4008_2406;
const FLAG_CLOSE_ON_EXEC: usize = 8;

/// Only user mode is permitted.
static USER_ONLY: AtomicBool = AtomicBool::new(false);
/// The kernel supports deferred user call chains, and they are requested.
static DEFERRED: AtomicBool = AtomicBool::new(false);
static NEXT_RING: AtomicU32 = AtomicU32::new(1);

/// What the kernel permits.
#[derive(Clone, Copy)]
pub(super) enum Tier {
    KernelAndUser,
    UserOnly,
}

impl Tier {
    pub(super) fn text(self, events: &Events) -> Vec<u8> {
        match self {
            Tier::KernelAndUser => b"perf: kernel and user stacks".to_vec(),
            Tier::UserOnly => format!(
                "perf: user mode only; {} because kernel.perf_event_paranoid is {} (CAP_PERFMON, or sysctl kernel.perf_event_paranoid=1, allows them)",
                match events.are_one_clock() {
                    true => "time in the kernel is sampled at the kernel's tick, and kernel stacks are missing",
                    false => "events in the kernel and kernel stacks are missing",
                },
                paranoid()
            )
            .into_bytes(),
        }
    }
}

/// Why no events are permitted.
#[derive(Clone, Copy)]
pub(super) struct Refusal(Errno);

impl Refusal {
    pub(super) fn text(self, consequence: &str) -> Vec<u8> {
        let why = match self.0.0 {
            libc::EACCES | libc::EPERM => format!(
                "perf_event_open is denied (kernel.perf_event_paranoid is {}, or a seccomp filter); CAP_PERFMON, or sysctl kernel.perf_event_paranoid=2, allows it",
                paranoid()
            ),
            libc::EINVAL | libc::E2BIG => "the kernel refuses the event (sigtrap needs Linux 5.13)".into(),
            libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP => "this machine does not have the event".into(),
            libc::ENOSYS => "the kernel has no perf_event_open".into(),
            other => format!("perf_event_open failed, errno {other}"),
        };
        format!("{consequence}{why}").into_bytes()
    }
}

fn paranoid() -> alloc::string::String {
    let mut buffer = [0u8; 16];
    let text = kernel::read_file(c"/proc/sys/kernel/perf_event_paranoid", &mut buffer).unwrap_or(b"unknown");
    alloc::string::String::from_utf8_lossy(text.trim_ascii()).into_owned()
}

/// Determines what the calling thread is permitted, with deferred call chains if requested. Nothing stays open.
pub(super) fn probe(events: &Events, deferred: bool) -> Result<Tier, Refusal> {
    let try_all = |scope| {
        events.all().iter().try_for_each(|event| {
            let file = open_event(event, scope, platform::sys::thread_id(), 0)?;
            let (base, bytes) = map_smallest(&file)?;
            // SAFETY: mapped just now, and nobody else uses it.
            unsafe { kernel::unmap(base.as_ptr(), bytes) };
            Ok(())
        })
    };
    for (user_only, tier) in [(false, Tier::KernelAndUser), (true, Tier::UserOnly)] {
        match try_all(Scope { user_only, deferred: false }) {
            Ok(()) => {
                USER_ONLY.store(user_only, Ordering::Relaxed);
                let deferred = deferred && try_all(Scope { user_only, deferred: true }).is_ok();
                DEFERRED.store(deferred, Ordering::Relaxed);
                return Ok(tier);
            }
            Err(Errno(libc::EACCES | libc::EPERM)) if !user_only => {}
            Err(error) => return Err(Refusal(error)),
        }
    }
    Err(Refusal(Errno(libc::EACCES)))
}

/// Whether the kernel defers user call chains.
pub(super) fn is_deferring() -> bool {
    DEFERRED.load(Ordering::Relaxed)
}

/// Opens the events on the slot's thread and enables them. A process that has changed its user since its start gets
/// them in user mode only.
pub(super) fn open(recording: &Recording, slot: &Slot, events: &Events, since: Since) -> Result<(), Errno> {
    if slot.kernel_rings.are_attached() {
        return Ok(());
    }
    let user_only = USER_ONLY.load(Ordering::Relaxed);
    let scope = Scope { user_only, deferred: DEFERRED.load(Ordering::Relaxed) };
    match open_all(recording, slot, events, scope, since) {
        Err(Errno(libc::EACCES)) if !user_only => {
            open_all(recording, slot, events, Scope { user_only: true, ..scope }, since)?;
            if !USER_ONLY.swap(true, Ordering::Relaxed) {
                tell_user_only(recording, events);
            }
            Ok(())
        }
        opened => opened,
    }
}

/// Tells the reader why threads are sampled in user mode only. Apart, as a thread's start must touch little of its stack.
#[cold]
#[inline(never)]
fn tell_user_only(recording: &Recording, events: &Events) {
    let (mut path, mut thread) = (alloc::vec![0; 4096], [0; kernel::THREAD_NAME]);
    // This thread may have a name of its own.
    let program = kernel::read_link(c"/proc/self/exe", &mut path).ok();
    let program = program.and_then(|path| path.rsplit(|byte| *byte == b'/').next());
    let name = program.unwrap_or_else(|| kernel::thread_name(&mut thread));
    let name = alloc::string::String::from_utf8_lossy(name);
    let became = match kernel::user_id() {
        0 => "entered a user namespace, or gave up capabilities".into(),
        kernel::UNMAPPED_USER => "changed its user".into(),
        user => format!("became user {user}"),
    };
    let threads = format!("threads begun since {name} {became}");
    if events.all().iter().any(Event::is_in_kernel) {
        let note = format!("context switches and other events of the kernel, of {threads}");
        journal::tell_setting(recording, b"not sampled", note.as_bytes());
    }
    if !events.all().iter().all(Event::is_in_kernel) {
        let note = format!("perf: user mode only, without kernel stacks, for {threads}");
        journal::tell_setting(recording, b"source", note.as_bytes());
    }
}

fn open_all(
    recording: &Recording,
    slot: &Slot,
    events: &Events,
    scope: Scope,
    since: Since,
) -> Result<(), Errno> {
    count_time(slot, events, scope.user_only, since);
    let opened: Result<(), Errno> = events
        .all()
        .iter()
        .zip(slot.kernel_rings.all())
        .try_for_each(|(event, ring)| open_one(recording, slot, ring, event, scope));
    if opened.is_err() {
        slot.kernel_rings.close();
    }
    opened
}

/// If the event is the clock, makes weights of the slot's thread account for its CPU time. Counting starts at a random
/// point of the preceding period, so that on average full periods cover all time (`remainder`).
fn count_time(slot: &Slot, events: &Events, user_only: bool, since: Since) {
    if events.are_one_clock() {
        let period_ns = events.unit_ns();
        let early = thread_timer::first_expiry(period_ns, slot.tid().into());
        let used_ns = clock::cpu_ns_of(slot.tid());
        let from_ns = used_ns.saturating_sub(since.earlier_ns(used_ns)).wrapping_sub(early);
        // An event that occurs less often than requested stands for more than one period, which only the clock can
        // tell.
        slot.kernel_rings.count_time(from_ns, period_ns, user_only && period_ns >= SHORTEST_PERIOD_NS);
    }
}

/// Whether only user mode is visible.
pub(super) fn is_user_only() -> bool {
    USER_ONLY.load(Ordering::Relaxed)
}

fn open_one(
    recording: &Recording,
    slot: &Slot,
    ring: &KernelRing,
    event: &Event,
    scope: Scope,
) -> Result<(), Errno> {
    let event = &event.no_faster();
    let file = open_event(event, scope, slot.tid(), slot.token())?;
    let (base, bytes) = map(&file, if event.is_seldom() { SELDOM } else { SIZES[0] })?;
    let id = NEXT_RING.fetch_add(1, Ordering::Relaxed);
    let (code_start, code_end) = kernel::own_code();
    journal::append(
        recording,
        &DurableRecord::KernelRing(record::KernelRing {
            ticks: clock::now(),
            tid: slot.tid(),
            seq: slot.sequence(),
            ring: id,
            event: event.number,
            bytes: bytes as u32,
            user_only: scope.user_only.into(),
            code_start,
            code_end,
        }),
    );
    // SAFETY: a ring of this size, unmapped only when it is detached.
    unsafe { ring.attach(base.as_ptr(), (bytes - PAGE) as u32, id) };
    // The handler was installed before any thread was registered.
    file.control(IOC_ENABLE, 0).inspect_err(|_| slot.kernel_rings.close())
}

fn open_event(event: &Event, scope: Scope, tid: u32, data: u64) -> Result<File, Errno> {
    let attributes = event.attributes(scope, data);
    let any = usize::MAX;
    let arguments = [(&raw const attributes) as usize, tid as usize, any, any, FLAG_CLOSE_ON_EXEC, 0];
    // SAFETY: the kernel reads one `perf_event_attr` of the size that it states.
    let file = File::own(unsafe { kernel::call(libc::SYS_perf_event_open, arguments) }?);
    if !event.filter.is_empty() {
        file.control(IOC_SET_FILTER, event.filter.as_ptr() as usize)?;
    }
    Ok(file)
}

/// Maps the largest ring of up to `most` pages that the limit on locked memory permits. Returns its size in bytes,
/// including the control page.
fn map(file: &File, most: usize) -> Result<(NonNull<u8>, usize), Errno> {
    let mut result = Err(Errno(libc::ENOMEM));
    for pages in SIZES.into_iter().filter(|&pages| pages <= most) {
        let bytes = (pages + 1) * PAGE;
        result =
            file.map(bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED).map(|base| (base, bytes));
        if result.is_ok() {
            break;
        }
    }
    result
}

fn map_smallest(file: &File) -> Result<(NonNull<u8>, usize), Errno> {
    let bytes = 2 * PAGE;
    file.map(bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED).map(|base| (base, bytes))
}
