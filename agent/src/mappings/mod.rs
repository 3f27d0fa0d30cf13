//! Mappings of memory as events: this library stands in front of mmap(2), munmap(2) and mremap(2).
//!
//! Only in the build with the feature `mappings`, and without effect unless `-e mmap` asks for it: then the region has a
//! table of live mappings. What is unmapped is taken out of it before the call, what is mapped is entered after it: so
//! whoever gets the same addresses next finds nothing there. What the kernel refused to unmap is put back.
//!
//! What must never happen here: a change of `errno`, another result than the program's C library gives, a system call where
//! the program filters its own. A call may come before anything has started, from a signal handler, under the loader's lock,
//! inside the program's allocator, in a child of `vfork`, or after `exit`.

mod entry;

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use handler::activity::Active;
use handler::call::{self, Note};
use handler::recording::{self, Probe, Recording};
use handler::sys::PAGE;
use shm_format::{LiveMappings, MappedPart, MappingKind, MappingNonce, kind_of};

use crate::agent;
use crate::lock::Lock;
use crate::symbols::{self, Real};
use entry::{COUNT, Call, Kind};

/// All functions of the C library behind ours, by the numbers in [`entry`].
static REAL: [Real; COUNT] =
    [Real::new(c"mmap"), Real::new(c"mmap64"), Real::new(c"munmap"), Real::new(c"mremap")];

/// Held while the table is changed.
static LOCK: Lock = Lock::new();
/// Mappings recorded.
static SERIAL: AtomicU64 = AtomicU64::new(0);

/// Parts of mappings that one call may unmap, and be refused, without a loss.
const PARTS: usize = 8;

/// Finds the real functions.
pub(crate) fn find_real_functions() {
    symbols::resolve(&REAL.each_ref());
}

/// The lock, which a fork holds.
pub(crate) fn lock() -> &'static Lock {
    &LOCK
}

/// A call of the program.
unsafe extern "C" fn called(call: &Call) -> u64 {
    let [first, second, third, ..] = call.arguments;
    let taken = match call.kind() {
        Kind::Unmap => take_out(pages(first, second)),
        // Of a size of 0 the pages are mapped once more.
        Kind::Remap if stays(call) => Taken::default(),
        Kind::Remap => take_out(pages(first, second)),
        Kind::Map => Taken::default(),
    };
    let result = real(call);
    let is_refused = result > u64::MAX - PAGE;
    match call.kind() {
        _ if is_refused => taken.put_back(0..u64::MAX),
        Kind::Unmap => {}
        Kind::Map => mapped(call, pages(result, second), kind_of_map(call)),
        // What was cut off is gone, the rest is as it was.
        Kind::Remap if result == first && third <= second => taken.put_back(pages(result, third)),
        Kind::Remap => mapped(call, pages(result, third), taken.kind()),
    }
    result
}

/// True if a call of mremap leaves the old pages where they are.
fn stays(call: &Call) -> bool {
    call.arguments[1] == 0 || call.arguments[3] & libc::MREMAP_DONTUNMAP as u64 != 0
}

/// What a call of mmap maps.
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

/// The whole pages from `start` on that hold so many bytes.
fn pages(start: u64, bytes: u64) -> Range<u64> {
    start..start.saturating_add(bytes).checked_next_multiple_of(PAGE).unwrap_or(start)
}

/// Makes the call.
fn real(call: &Call) -> u64 {
    type Function = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64) -> u64;
    let Some(address) = REAL.get(call.number()).and_then(Real::address) else { return u64::MAX };
    let [first, second, third, fourth, fifth, sixth] = call.arguments;
    // SAFETY: the C library's function, which takes so many words or fewer; they are the program's own.
    let result = unsafe {
        core::mem::transmute::<usize, Function>(address)(first, second, third, fourth, fifth, sixth)
    };
    // munmap gives an `int`.
    if call.kind() == Kind::Unmap { i64::from(result as i32) as u64 } else { result }
}

/// The recording of this very process, if it has a table of mappings.
fn own() -> Option<(&'static Recording, &'static LiveMappings)> {
    let recording = recording::current()?;
    Some((recording, recording.live_mappings.as_ref()?)).filter(|_| agent::is_own_process())
}

/// Changes the table, one thread after another. Where the program filters its calls nobody can wait: of changes that meet,
/// one is counted as missing.
fn change(change: impl FnOnce()) {
    let active = Active::enter();
    let _held = active.as_ref().map(|_| LOCK.hold());
    change();
}

/// Memory has been mapped.
fn mapped(call: &Call, range: Range<u64>, kind: MappingKind) {
    let Some((recording, table)) = own() else { return };
    let nonce = MappingNonce::new(range.end - range.start, kind, SERIAL.fetch_add(1, Ordering::Relaxed));
    let note = Note { source: Probe::Mappings.number(), nonce: nonce.0, with_callee: false };
    let thread = call::record(recording, &call.caller(), note);
    change(|| match thread {
        Some(thread) => table.insert(range, nonce.id(thread)),
        None => table.remove(range, &mut |_| ()),
    });
}

/// What a call is about to unmap.
#[derive(Default)]
struct Taken {
    parts: [Option<MappedPart>; PARTS],
    /// Parts that found no room here.
    more: usize,
}

/// Takes what lies in `range` out of the table.
fn take_out(range: Range<u64>) -> Taken {
    let mut taken = Taken::default();
    // An address that is not a page's is refused.
    if !range.start.is_multiple_of(PAGE) {
        return taken;
    }
    if let Some((_, table)) = own() {
        let Taken { parts, more } = &mut taken;
        let mut places = parts.iter_mut();
        let mut take = |part| match places.next() {
            Some(place) => *place = Some(part),
            None => *more += 1,
        };
        change(|| table.remove(range, &mut take));
    }
    taken
}

impl Taken {
    /// Enters again what lies in `range`.
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

    /// What was mapped there.
    fn kind(&self) -> MappingKind {
        self.parts.iter().flatten().next().map_or(MappingKind::Anonymous, |part| kind_of(part.id))
    }
}
