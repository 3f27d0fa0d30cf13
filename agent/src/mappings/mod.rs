//! Memory mappings as events, by interposing mmap(2), munmap(2) and mremap(2).
//!
//! Only in the build with the feature `mappings`, and without effect unless `-e mmap` is recorded: then the region has
//! a table of live mappings. What is unmapped is removed from it before the call, and what is mapped is inserted after
//! the call, so that another thread that gets the same addresses next finds nothing there. What the kernel refused to
//! unmap is reinserted.
//!
//! What must never happen here: a change of `errno`, a result that differs from that of the program's C library, a
//! system call under a seccomp filter of the program. A call may occur before anything has started, in a signal
//! handler, under the loader's lock, inside the program's allocator, in a child of `vfork`, or after `exit`.

mod entry;
mod mapping_call;

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use handler::call::{self, Note};
use handler::recording::{self, Probe, Recording};
use platform::activity::Active;
use platform::arch::AnyAlignment;
use platform::sys::PAGE;
use shm_format::{LiveMappings, MappedPart, MappingKind, MappingNonce, kind_of};

use crate::agent;
use crate::lock::Lock;
use crate::symbols::{self, Real};
use mapping_call::{COUNT, Call, Kind};

/// The real functions, indexed by [`Call::number`].
static REAL: [Real; COUNT] =
    [Real::new(c"mmap"), Real::new(c"mmap64"), Real::new(c"munmap"), Real::new(c"mremap")];

/// Held while the table is modified.
static LOCK: Lock = Lock::new();
/// Number of mappings recorded.
static SERIAL: AtomicU64 = AtomicU64::new(0);

/// Parts of mappings that can be restored if the kernel refuses one call to unmap them.
const PARTS: usize = 8;

/// Looks up the real functions.
pub(crate) fn find_real_functions() {
    symbols::resolve(&REAL.each_ref());
}

/// The lock, which a fork must hold.
pub(crate) fn lock() -> &'static Lock {
    &LOCK
}

/// Makes a call of the program to the function at `entry`, and records it.
unsafe extern "C" fn called(call: &Call, entry: u64) -> u64 {
    let _any_alignment = AnyAlignment::permit();
    let [first, second, third, ..] = call.arguments;
    let taken = match call.kind() {
        Kind::Unmap => take_out(pages(first, second)),
        // With an old size of 0 the pages are mapped a second time.
        Kind::Remap if stays(call) => Taken::default(),
        Kind::Remap => take_out(pages(first, second)),
        Kind::Map => Taken::default(),
    };
    let result = real(call);
    let is_refused = result > u64::MAX - PAGE;
    match call.kind() {
        _ if is_refused => taken.put_back(0..u64::MAX),
        Kind::Unmap => {}
        Kind::Map => mapped(call, entry, pages(result, second), kind_of_map(call)),
        // What was cut off is gone; the rest is unchanged.
        Kind::Remap if result == first && third <= second => taken.put_back(pages(result, third)),
        Kind::Remap => mapped(call, entry, pages(result, third), taken.kind()),
    }
    result
}

/// Whether a call of mremap leaves the old pages in place.
fn stays(call: &Call) -> bool {
    call.arguments[1] == 0 || call.arguments[3] & libc::MREMAP_DONTUNMAP as u64 != 0
}

/// Kind of the mapping that a call of mmap makes.
fn kind_of_map(call: &Call) -> MappingKind {
    let [_, _, access, flags, ..] = call.arguments;
    let has = |flag: i32| flags & flag as u64 != 0;
    match () {
        () if !has(libc::MAP_ANONYMOUS) => MappingKind::File,
        () if access == libc::PROT_NONE as u64 => MappingKind::Reserved,
        () if has(libc::MAP_SHARED) => MappingKind::Shared,
        () => MappingKind::Anonymous,
    }
}

/// The whole pages that contain `bytes` bytes from `start`.
fn pages(start: u64, bytes: u64) -> Range<u64> {
    start..start.saturating_add(bytes).checked_next_multiple_of(PAGE).unwrap_or(start)
}

/// Calls the real function.
fn real(call: &Call) -> u64 {
    type Function = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64) -> u64;
    let Some(address) = REAL.get(call.number()).and_then(Real::address) else { return u64::MAX };
    let [first, second, third, fourth, fifth, sixth] = call.arguments;
    // SAFETY: the C library's function, which takes this many words or fewer; they are the program's arguments.
    let result = unsafe {
        core::mem::transmute::<usize, Function>(address)(first, second, third, fourth, fifth, sixth)
    };
    // munmap returns an `int`.
    if call.kind() == Kind::Unmap { i64::from(result as i32) as u64 } else { result }
}

/// The recording of the calling process, if it has a table of mappings.
fn own() -> Option<(&'static Recording, &'static LiveMappings)> {
    let recording = recording::current()?;
    Some((recording, recording.live_mappings.as_ref()?)).filter(|_| agent::is_own_process())
}

/// Modifies the table, one thread at a time. Under a seccomp filter a thread cannot wait: of concurrent changes, one is
/// counted as missing.
fn change(change: impl FnOnce()) {
    let active = Active::enter();
    let _held = active.as_ref().map(|_| LOCK.hold());
    change();
}

/// Records a mapping.
fn mapped(call: &Call, entry: u64, range: Range<u64>, kind: MappingKind) {
    let Some((recording, table)) = own() else { return };
    let nonce = MappingNonce::new(range.end - range.start, kind, SERIAL.fetch_add(1, Ordering::Relaxed));
    let note = Note { source: Probe::Mappings.number(), nonce: nonce.0, weight: 1, with_callee: false };
    let thread = call::record(recording, &call.caller(entry), note);
    change(|| match thread {
        Some(thread) => table.insert(range, nonce.id(thread)),
        None => table.remove(range, &mut |_| ()),
    });
}

/// The parts that a call is about to unmap.
#[derive(Default)]
struct Taken {
    parts: [Option<MappedPart>; PARTS],
    /// Number of parts beyond the capacity.
    more: usize,
}

/// Removes `range` from the table.
fn take_out(range: Range<u64>) -> Taken {
    let mut taken = Taken::default();
    // The kernel rejects an unaligned address.
    if !range.start.is_multiple_of(PAGE) {
        return taken;
    }
    if let Some((_, table)) = own() {
        let Taken { parts, more } = &mut taken;
        let mut free = parts.iter_mut();
        let mut take = |part| match free.next() {
            Some(free) => *free = Some(part),
            None => *more += 1,
        };
        change(|| table.remove(range, &mut take));
    }
    taken
}

impl Taken {
    /// Reinserts what lies in `range`.
    fn put_back(self, range: Range<u64>) {
        if self.parts.iter().all(Option::is_none) {
            return;
        }
        let Some((_, table)) = own() else { return };
        (0..self.more).for_each(|_| table.miss());
        change(|| {
            for MappedPart { range: part, id } in self.parts.into_iter().flatten() {
                table.insert(part.start.max(range.start)..part.end.min(range.end), id);
            }
        });
    }

    /// Kind of the removed mapping.
    fn kind(&self) -> MappingKind {
        self.parts.iter().flatten().next().map_or(MappingKind::Anonymous, |part| kind_of(part.id))
    }
}
