//! Unwinders that programs and plug-ins register for regions of code (agent/include/selfwind.h), asked by the walk.
//!
//! They are others' code in our handler. What they must never do is written in the header; what can be held is held here:
//! reads cannot fault, reads and frames cost of a budget, they are called only where their stack has room, and what they
//! say of the caller is checked by the walk. A region is found through the snapshot that the walk has pinned, so whoever
//! removes one knows when nobody uses it any more.

mod contract;
mod emitted;
pub mod names;

use core::ffi::{c_int, c_void};

use platform::bounds::Bounds;
use platform::clock;
use platform::log;
use shm_format::record::{self, DurableRecord};
use unwind::{Interpreted, Module, RegionStep, Tracked};

use crate::functions::{self, Key};
use crate::gap::Gap;
use crate::memory::{Memory, Pages};
use contract::{COLUMNS, Frame, STACK, Said, Walk};

pub use contract::{Unwind, Unwinder, VERSION};
pub(crate) use emitted::Emitted;

/// The number of these languages in records; which one it is stands in the place of a line table.
const BY_UNWINDER: u32 = 2;
/// The form of that.
const LINE_IS_OFFSET: u32 = 4;
/// A text is UTF-8.
const UTF_8: u32 = 8;
/// Bytes that unwinders may read in a sample; each call counts for this many more.
const READS: usize = 1 << 20;
const READ_COST: usize = 64;
/// Frames and names that they may ask for in a sample.
const CALLS: u32 = 8192;
/// Page probes in a sample.
const PROBES: u32 = 512;
/// What must be free on the stack for an unwinder to be called: its own part, and what its calls need (`emit` 536 bytes). Rust
/// programs have alternate stacks of 8 KiB, of which the kernel's frame takes 3.6 where processors have AVX-512.
const ROOM: u64 = STACK + 640;
/// Languages whose state is kept in a walk.
const STATES: usize = 4;
/// Longest name of a language.
pub const LANGUAGE: usize = 15;

/// A registered region; immutable once published.
#[derive(Clone)]
pub struct Region {
    /// Its number.
    pub id: u32,
    /// The first address.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
    /// The unwinder.
    pub unwind: Unwind,
    /// What it is given, an address.
    pub data: usize,
    /// The registers that it wants, by DWARF number.
    pub wants: u64,
    /// What marks its frames, filled up with zeros.
    pub language: [u8; LANGUAGE],
    /// The module that has a hole here.
    pub under: Option<Module<'static>>,
}

impl Region {
    fn language(&self) -> &[u8] {
        self.language.split(|byte| *byte == 0).next().unwrap_or(&[])
    }

    /// What tells its names and functions from those of others.
    fn key(&self) -> u64 {
        let halves = self.language.chunks(8);
        halves.fold(1, |key: u64, half| {
            half.iter()
                .fold(key, |key, byte| key.rotate_left(8) ^ u64::from(*byte))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        })
    }

    fn wants_all(&self) -> bool {
        self.wants & !(1 << Tracked::SP | 1 << Tracked::FP) != 0
    }
}

/// The one of `list` that `address` is in.
#[inline]
pub fn find(list: &[Region], address: u64) -> Option<&Region> {
    let after = list.partition_point(|region| region.start <= address);
    list.get(after.checked_sub(1)?).filter(|region| address < region.end)
}

/// What unwinders need during a walk, kept off the stack. Zeros are an empty one.
#[repr(C)]
pub struct Scratch {
    walk: Walk,
    /// The one in shared memory, in which functions are announced.
    shared: *const shm_format::Region,
    region: *const Region,
    states: [([u8; LANGUAGE], [u64; 4]); STATES],
    reads: usize,
    calls: u32,
    probes: u32,
    pages: Pages,
    emitted: Emitted,
}

impl Scratch {
    /// The frames that were emitted in the last walk.
    pub(crate) fn emitted(&self) -> &Emitted {
        &self.emitted
    }
}

/// The regions of one walk.
pub struct Regions<'r> {
    list: &'r [Region],
    scratch: *mut Scratch,
    /// The stack that the handler runs on, as far as it is known.
    stack: Bounds,
}

impl<'r> Regions<'r> {
    /// Those of `list`, for a walk of the thread whose `scratch` this is. If there are any, [`begin`](Self::begin) must follow.
    #[inline]
    pub fn new(list: &'r [Region], scratch: *mut Scratch) -> Self {
        Self { list, scratch, stack: Bounds::NONE }
    }

    /// Begins a walk. Functions are announced in the `shared` region. `stacks` are those that the handler may be running on; memory
    /// is probed if `may_probe`.
    #[cold]
    #[inline(never)]
    pub fn begin(&mut self, shared: &'r shm_format::Region, stacks: [Bounds; 2], may_probe: bool) {
        let here = &raw const *self as u64;
        self.stack = stacks.into_iter().find(|bounds| bounds.hold(here)).unwrap_or(Bounds::NONE);
        // SAFETY: the thread's own, inside its nesting guard.
        let scratch = unsafe { &mut *self.scratch };
        scratch.shared = shared;
        scratch.states = [([0; LANGUAGE], [0; 4]); STATES];
        (scratch.reads, scratch.calls) = (READS, CALLS);
        scratch.probes = if may_probe { PROBES } else { 0 };
        scratch.pages.begin();
        scratch.emitted.clear();
    }

    #[inline]
    fn get(&self, address: u64) -> Option<&'r Region> {
        find(self.list, address)
    }

    /// Whether an unwinder is registered for `address`.
    pub fn hold(&self, address: u64) -> bool {
        self.get(address).is_some()
    }

    fn has_room(&self) -> bool {
        let here = &raw const self as u64;
        self.stack == Bounds::NONE || here.saturating_sub(self.stack.low) >= ROOM
    }
}

impl<'r> unwind::Regions<'r> for Regions<'r> {
    #[inline]
    fn find(&self, address: u64) -> Option<unwind::Region<'r>> {
        if self.list.is_empty() {
            return None;
        }
        let region = self.get(address)?;
        Some(unwind::Region { wants_all: region.wants_all(), under: region.under.as_ref() })
    }

    #[inline(never)]
    fn step(&mut self, number: usize, exact: bool, registers: &mut Tracked) -> RegionStep {
        let lookup = registers.pc().wrapping_sub(u64::from(!exact));
        let Some(region) = self.get(lookup).filter(|_| self.has_room()) else { return RegionStep::Beside };
        let scratch = self.scratch;
        // SAFETY: the thread's own, inside its nesting guard. No reference into it is held while the unwinder runs, which
        // reaches it again through the pointer in the walk.
        unsafe {
            (*scratch).fill(region, number, exact, registers);
            (*scratch).walk.agent = scratch.cast::<c_void>();
            let said = Said::new((region.unwind)(&raw mut (*scratch).walk));
            (*scratch).settle(said, region, number, registers)
        }
    }
}

impl Scratch {
    /// The unwinder's own words, kept by its language.
    fn state(&mut self, region: &Region) -> Option<&mut [u64; 4]> {
        let is_its = |state: &&mut ([u8; LANGUAGE], [u64; 4])| {
            state.0 == region.language || state.0.first() == Some(&0)
        };
        let (language, state) = self.states.iter_mut().find(is_its)?;
        *language = region.language;
        Some(state)
    }

    /// Says what the unwinder is given.
    fn fill(&mut self, region: &Region, number: usize, exact: bool, registers: &Tracked) {
        let state = self.state(region).map_or([0; 4], |state| *state);
        self.region = region;
        let walk = &mut self.walk;
        (walk.size, walk.version) = (size_of::<Walk>() as u32, VERSION);
        (walk.frame, walk.interrupted) = (number as u32, exact.into());
        (walk.registers.known, walk.registers.pc) = (0, registers.pc());
        for (number, register) in walk.registers.value.iter_mut().enumerate() {
            let value = registers.get(number);
            walk.registers.known |= u64::from(value.is_some()) << number;
            *register = value.unwrap_or(0);
        }
        (walk.state, walk.data) = (state, region.data as *mut c_void);
        walk.read = Some(read);
        walk.name = Some(name);
        walk.emit = Some(emit);
    }

    /// Takes over what the unwinder said.
    fn settle(&mut self, said: Said, region: &Region, number: usize, registers: &mut Tracked) -> RegionStep {
        let after = self.walk.state;
        if let Some(state) = self.state(region) {
            *state = after;
        }
        match said {
            Said::NotMine => self.emitted.forget_open(),
            Said::Caller { .. } => self.emitted.close(number, true),
            Said::Beside | Said::End(_) => self.emitted.close(number, false),
        }
        match said {
            Said::NotMine | Said::Beside => RegionStep::Beside,
            Said::End(end) => RegionStep::End(end),
            Said::Caller { interrupted, other_stack } => {
                let said = &self.walk.registers;
                let value = |number: usize| {
                    let is_known = number < COLUMNS && said.known >> number & 1 != 0;
                    said.value.get(number).copied().filter(|_| is_known)
                };
                registers.arrive_at(said.pc, interrupted, value);
                RegionStep::Caller { interrupted, other_stack }
            }
        }
    }

    /// Reads for an unwinder.
    fn read(&mut self, address: u64, to: &mut [u8]) -> Option<()> {
        self.reads = self.reads.checked_sub(to.len().checked_add(READ_COST)?)?;
        let mut memory = Memory::resume(&mut self.pages, self.probes);
        let read = memory.copy(address, to);
        self.probes = memory.probes();
        read
    }

    fn name(&mut self, key: u64, other: u64, address: u64, bytes: usize) -> Option<u32> {
        self.calls = self.calls.checked_sub(1)?;
        // SAFETY: set by `fill` to the region of the snapshot that the walk has pinned.
        let region = unsafe { self.region.as_ref() }?;
        let key = Key::new(region.key()).and(key).and(other);
        Some(names::intern(key, bytes, |room| self.read(address, room)))
    }

    fn emit(&mut self, frame: Frame) -> Option<()> {
        self.calls = self.calls.checked_sub(1)?;
        let text = names::text(frame.name)?;
        let file = if frame.file == 0 { &[] } else { names::text(frame.file)? };
        let Some(function) = self.function(&frame, text, file) else {
            self.emitted.push_gap(Gap::UnnamedByUnwinder);
            return None;
        };
        let offset = if frame.line <= Interpreted::LAST_OFFSET { frame.line } else { 0 };
        self.emitted.push(Interpreted { function, offset })
    }

    /// The number of a function, which is told now if it was not before.
    fn function(&self, frame: &Frame, name: &[u8], file: &[u8]) -> Option<u32> {
        // SAFETY: set by `fill` to a region of the snapshot that the walk has pinned, and by `begin` to one that outlives the walk.
        let (shared, region) = unsafe { (self.shared.as_ref()?, self.region.as_ref()?) };
        let both = u64::from(frame.name) << 32 | u64::from(frame.file);
        let key = Key::new(shared.nonce()).and(region.key()).and(both).and(frame.first_line.into());
        if let Some(number) = functions::find(key) {
            return Some(number);
        }
        let id = functions::next()?;
        let function = record::Function {
            ticks: clock::now(),
            id,
            language: BY_UNWINDER,
            lines_form: LINE_IS_OFFSET,
            first_line: frame.first_line,
            name_width: UTF_8,
            file_width: UTF_8,
            name,
            file,
            lines: region.language(),
        };
        log::append(shared, &DurableRecord::Function(function)).ok()?;
        functions::remember(key, id);
        Some(id)
    }
}

/// The scratch that a walk belongs to.
///
/// # Safety
/// The walk is one that an unwinder was given and has not returned from.
unsafe fn scratch<'a>(walk: *mut Walk) -> Option<&'a mut Scratch> {
    // SAFETY: the caller's promise: the pointer is that of `step`, and the thread is in the unwinder.
    unsafe { walk.as_ref()?.agent.cast::<Scratch>().as_mut() }
}

unsafe extern "C" fn read(walk: *mut Walk, address: u64, to: *mut u8, bytes: usize) -> c_int {
    if to.is_null() || bytes > READS {
        return -1;
    }
    // SAFETY: the unwinder's promise: its walk, and room for so many bytes.
    let (scratch, to) = unsafe { (scratch(walk), core::slice::from_raw_parts_mut(to, bytes)) };
    match scratch.and_then(|scratch| scratch.read(address, to)) {
        Some(()) => 0,
        None => -1,
    }
}

unsafe extern "C" fn name(walk: *mut Walk, key: u64, other: u64, address: u64, bytes: usize) -> u32 {
    // SAFETY: the unwinder's promise.
    let scratch = unsafe { scratch(walk) };
    scratch.and_then(|scratch| scratch.name(key, other, address, bytes)).unwrap_or(0)
}

unsafe extern "C" fn emit(walk: *mut Walk, frame: *const Frame) -> c_int {
    // SAFETY: the unwinder's promises.
    let (scratch, frame) = unsafe { (scratch(walk), Frame::read(frame)) };
    let emitted = scratch.zip(frame).and_then(|(scratch, frame)| scratch.emit(frame));
    if emitted.is_some() { 0 } else { -1 }
}
