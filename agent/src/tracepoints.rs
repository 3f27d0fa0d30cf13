//! The program's tracepoints: which ones are enabled, and the path from the program's call to the handler crate.
//!
//! A tracepoint asks once, when it is first hit ([`decide`]), and then knows whether it is enabled. There is no list of
//! them, so nothing here refers to a library that may be unloaded. What must never happen here: an allocation, a lock,
//! a wait, a change of `errno`. The program may call from anywhere, including a signal handler, and before anything has
//! started.

use alloc::vec::Vec;
use core::arch::naked_asm;
use core::ffi::{CStr, c_char};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use handler::recording::{self, Recording};
use handler::tracepoint::{self, Event};
use platform::arch::AnyAlignment;
use platform::clock;
use shm_format::record::{self, DurableRecord};
use shm_format::{FIELDS_MOST, FieldTypes};

use crate::preserved_registers::PreservedRegisters;

/// Maximum length in bytes of the names of a tracepoint, its provider and its fields.
const NAME_MOST: usize = 128;
const FIELDS_SIZE_MOST: usize = 2048;

/// `struct selfwind_tracepoint`.
#[repr(C)]
pub(crate) struct Site {
    record: AtomicPtr<()>,
    provider: *const c_char,
    name: *const c_char,
    types: *const u8,
    fields: *const u8,
    count: u32,
    fields_size: u32,
    /// Number and field types, as in the first word of its records; 0 before it is enabled.
    number: AtomicU64,
    /// Address of the recording that has its description.
    told: AtomicU64,
}

const _: () = assert!(size_of::<Site>() == 64);

/// A glob for tracepoint names, and how their events are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    /// `PROVIDER:NAME`, with `*` and `?`.
    glob: Vec<u8>,
    has_stack: bool,
}

/// The enabled tracepoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Patterns(Vec<Pattern>);

impl Patterns {
    /// Enables none.
    const NONE: Patterns = Patterns(Vec::new());

    /// Parses an element of SELFWIND_EVENT: `tp:PROVIDER:NAME`, or `nostack` after one, whose events then have no
    /// stack. False if it is something else.
    pub(crate) fn add(&mut self, word: &[u8]) -> bool {
        if word == b"nostack" {
            return self.0.last_mut().map(|last| last.has_stack = false).is_some();
        }
        let glob =
            word.strip_prefix(b"tp:").filter(|glob| glob.contains(&b':') && glob.len() <= 2 * NAME_MOST + 1);
        let pattern = glob.map(|glob| Pattern { glob: glob.to_vec(), has_stack: true });
        let is_one = pattern.is_some();
        self.0.extend(pattern);
        is_one
    }

    /// Whether none is wanted.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first pattern that matches a name.
    fn find(&self, provider: &[u8], name: &[u8]) -> Option<&Pattern> {
        self.0.iter().find(|pattern| matches(&pattern.glob, provider, name))
    }
}

/// The byte at index `at` of `PROVIDER:NAME`.
fn byte_of(provider: &[u8], name: &[u8], at: usize) -> Option<u8> {
    match at.checked_sub(provider.len()) {
        None => provider.get(at).copied(),
        Some(0) => Some(b':'),
        Some(behind) => name.get(behind - 1).copied(),
    }
}

/// Whether a glob matches `PROVIDER:NAME`. The number of steps is bounded by the product of their lengths.
fn matches(glob: &[u8], provider: &[u8], name: &[u8]) -> bool {
    let (mut at, mut next) = (0, 0);
    // Position after the last `*`, and how far that has matched.
    let mut last: Option<(usize, usize)> = None;
    while let Some(byte) = byte_of(provider, name, at) {
        match glob.get(next) {
            Some(b'*') => {
                next += 1;
                last = Some((next, at));
            }
            Some(wanted) if *wanted == b'?' || *wanted == byte => (at, next) = (at + 1, next + 1),
            _ => {
                let Some((behind, taken)) = last else { return false };
                (at, next) = (taken + 1, behind);
                last = Some((behind, taken + 1));
            }
        }
    }
    glob.get(next..).unwrap_or(&[]).iter().all(|byte| *byte == b'*')
}

static NOTHING: Patterns = Patterns::NONE;
/// The enabled tracepoints; null before they are known.
static WANTED: AtomicPtr<Patterns> = AtomicPtr::new(ptr::null_mut());
static NEXT_NUMBER: AtomicU32 = AtomicU32::new(1);

/// Enables the tracepoints that match `patterns`.
pub(crate) fn begin(patterns: &'static Patterns) {
    WANTED.store(ptr::from_ref(patterns).cast_mut(), Ordering::Release);
}

/// Enables no tracepoint in this process.
pub(crate) fn never() {
    begin(&NOTHING);
}

/// Log space in bytes for descriptions, which handlers cannot back.
pub(crate) const LOG: u64 = 512 << 10;

/// Decides whether a tracepoint is enabled, when it is first hit. Not zero if it is.
///
/// # Safety
/// The strings of `site` must be those that the header defines.
pub(crate) unsafe extern "C" fn decide(site: &Site) -> i32 {
    // SAFETY: published patterns are never freed.
    let Some(wanted) = (unsafe { WANTED.load(Ordering::Acquire).as_ref() }) else { return 0 };
    // SAFETY: the caller promises the header's strings.
    let found = unsafe { site.names() }.and_then(|(provider, name)| wanted.find(provider, name));
    // SAFETY: the caller promises the header's strings.
    let types = found.and_then(|_| unsafe { site.field_types() });
    let (Some(pattern), Some(types)) = (found, types) else {
        site.record.store(ptr::null_mut(), Ordering::Relaxed);
        return 0;
    };
    if site.number.load(Ordering::Relaxed) == 0 {
        let number = u64::from(NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)) | types.bits();
        // Another thread may have decided at the same time.
        let _ = site.number.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
    }
    let entry: unsafe extern "C" fn(&Site, *const u64) = match pattern.has_stack {
        true => with_stack,
        false => without_stack,
    };
    // Release: pairs with the header's acquire, after which the number is visible.
    site.record.store(entry as *mut (), Ordering::Release);
    1
}

impl Site {
    /// Provider and name; `None` if one is missing or too long.
    ///
    /// # Safety
    /// As for [`decide`].
    unsafe fn names(&self) -> Option<(&[u8], &[u8])> {
        let text = |text: *const c_char| {
            // SAFETY: the caller promises null or a string of the header.
            let text = if text.is_null() { c"" } else { unsafe { CStr::from_ptr(text) } }.to_bytes();
            Some(text).filter(|text| !text.is_empty() && text.len() <= NAME_MOST)
        };
        Some((text(self.provider)?, text(self.name)?))
    }

    /// The field types; `None` if there are too many, or unknown ones.
    ///
    /// # Safety
    /// As for [`decide`].
    unsafe fn field_types(&self) -> Option<FieldTypes> {
        let count = self.count as usize;
        if count > FIELDS_MOST || self.fields_size as usize > FIELDS_SIZE_MOST {
            return None;
        }
        // SAFETY: the caller promises one letter per field.
        FieldTypes::of_letters(unsafe { core::slice::from_raw_parts(self.types, count) })
    }

    /// Makes sure that `recording` has its description. False if the log is full.
    #[inline]
    fn is_told(&self, recording: &Recording) -> bool {
        self.told.load(Ordering::Relaxed) == ptr::from_ref(recording) as u64 || self.tell(recording)
    }

    #[cold]
    fn tell(&self, recording: &Recording) -> bool {
        // SAFETY: the header's strings, as `decide` has required.
        let Some((provider, name)) = (unsafe { self.names() }) else { return false };
        let size = (self.fields_size as usize).min(FIELDS_SIZE_MOST);
        // SAFETY: the header's own constant, of this size.
        let fields = unsafe { core::slice::from_raw_parts(self.fields, size) };
        let id = self.number.load(Ordering::Relaxed) as u32;
        let described = record::Tracepoint { ticks: clock::now(), id, provider, name, fields };
        let told = recording.region.append(&DurableRecord::Tracepoint(described)).is_ok();
        if told {
            self.told.store(ptr::from_ref(recording) as u64, Ordering::Relaxed);
        } else {
            tracepoint::lose_undescribed(recording);
        }
        told
    }

    /// An event with these values.
    ///
    /// # Safety
    /// As for [`Event::new`].
    #[inline]
    unsafe fn event(&self, values: *const u64) -> Event {
        // SAFETY: the caller fulfils the contract of `Event::new`.
        unsafe { Event::new(self.number.load(Ordering::Relaxed), values) }
    }
}

/// An event without a stack.
unsafe extern "C" fn without_stack(site: &Site, values: *const u64) {
    let Some(recording) = recording::current() else { return };
    if site.is_told(recording) {
        // SAFETY: the header passes a word for each field, and strings as its documentation says.
        unsafe { site.event(values) }.record(recording);
    }
}

/// Records an event with a stack: pushes the callee-saved registers in the order of [`PreservedRegisters`].
#[unsafe(naked)]
unsafe extern "C" fn with_stack(site: &Site, values: *const u64) {
    naked_asm!(
        ".cfi_startproc",
        platform::push!(rbp rbx r12 r13 r14 r15),
        "mov rdx, rsp",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {record}",
        "add rsp, 56",
        ".cfi_adjust_cfa_offset -56",
        "ret",
        ".cfi_endproc",
        record = sym record_with_stack,
    )
}

unsafe extern "C" fn record_with_stack(site: &Site, values: *const u64, preserved: &PreservedRegisters) {
    let _any_alignment = AnyAlignment::permit();
    let Some(recording) = recording::current() else { return };
    if site.is_told(recording) {
        let caller = preserved.caller(with_stack as unsafe extern "C" fn(&Site, *const u64) as usize as u64);
        // SAFETY: the header passes one word per field, and strings as it documents.
        unsafe { site.event(values) }.record_with_stack(recording, &caller);
    }
}
