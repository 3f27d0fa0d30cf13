//! The real functions of the program's own allocator.

use core::arch::naked_asm;
use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::link_map::StillList;
use crate::symbols::{self, Real};

/// Number of functions.
pub(super) const COUNT: usize = 30;
/// Number of allocating functions, which come first.
pub(super) const ALLOCATING: usize = 17;
/// The indices of some functions.
const MALLOC: usize = 0;
const FIRST_NEW: usize = 9;
const LAST_NEW: usize = 16;
const FREE: usize = 17;

/// A table of functions, one for each number, in the order of [`PLACED`]: what nearly all calls read is in one cache line.
#[repr(C, align(64))]
pub(super) struct Reals {
    /// The countdown of a thread that is [`alone`](super::alone), in bytes; 0 otherwise. Only in [`REALS`].
    pub(super) left: AtomicU64,
    functions: [AtomicPtr<()>; COUNT],
}

impl Reals {
    /// Where the table has the function with this number, in bytes.
    pub(super) const fn offset(number: usize) -> usize {
        let mut place = 0;
        while PLACED[place] != number {
            place += 1;
        }
        core::mem::offset_of!(Reals, functions) + place * size_of::<AtomicPtr<()>>()
    }

    fn of(&self, number: usize) -> Option<&AtomicPtr<()>> {
        let place = PLACED.iter().position(|placed| *placed == number)?;
        self.functions.get(place)
    }

    #[inline(never)]
    fn set(&self, number: usize, address: u64) {
        if let Some(pointer) = self.of(number) {
            pointer.store(address as *mut (), Ordering::Relaxed);
        }
    }
}

macro_rules! tables {
    ($($number:literal)*) => {
        /// The numbers of the functions in the order of the tables. The first seven: malloc, free, calloc, realloc, and C++'s
        /// `new` and `delete` of one object.
        const PLACED: [usize; COUNT] = [$($number),*];

        /// The real functions, or functions that look them up.
        pub(super) static REALS: Reals = Reals {
            left: AtomicU64::new(0),
            functions: [$(AtomicPtr::new(find_first::<$number> as *mut ())),*],
        };
    };
}

tables![0 17 1 2 9 18 20 3 4 5 6 7 8 10 11 12 13 14 15 16 19 21 22 23 24 25 26 27 28 29];

/// Stands in for the real function `KIND`: looks it up and jumps to it.
#[unsafe(naked)]
unsafe extern "C" fn find_first<const KIND: usize>() {
    naked_asm!(
        ".cfi_startproc",
        platform::push!(rdi rsi rdx),
        "mov edi, {kind}",
        "call {find}",
        platform::pop!(rdx rsi rdi),
        "jmp rax",
        ".cfi_endproc",
        kind = const KIND,
        find = sym find,
    )
}

/// Those of them that the program itself defines; null otherwise. Not among [`REALS`]: there may be a function of the agent's
/// between these and the C library's, which they call.
pub(super) static OF_PROGRAM: Reals =
    Reals { left: AtomicU64::new(0), functions: [const { AtomicPtr::new(core::ptr::null_mut()) }; COUNT] };

macro_rules! reals {
    ($($name:literal),* $(,)?) => { [$(Real::new($name)),*] };
}

static REAL: [Real; COUNT] = reals![
    c"malloc",
    c"calloc",
    c"realloc",
    c"reallocarray",
    c"memalign",
    c"aligned_alloc",
    c"posix_memalign",
    c"valloc",
    c"pvalloc",
    c"_Znwm",
    c"_Znam",
    c"_ZnwmRKSt9nothrow_t",
    c"_ZnamRKSt9nothrow_t",
    c"_ZnwmSt11align_val_t",
    c"_ZnamSt11align_val_t",
    c"_ZnwmSt11align_val_tRKSt9nothrow_t",
    c"_ZnamSt11align_val_tRKSt9nothrow_t",
    c"free",
    c"_ZdlPv",
    c"_ZdaPv",
    c"_ZdlPvm",
    c"_ZdaPvm",
    c"_ZdlPvRKSt9nothrow_t",
    c"_ZdaPvRKSt9nothrow_t",
    c"_ZdlPvSt11align_val_t",
    c"_ZdaPvSt11align_val_t",
    c"_ZdlPvmSt11align_val_t",
    c"_ZdaPvmSt11align_val_t",
    c"_ZdlPvSt11align_val_tRKSt9nothrow_t",
    c"_ZdaPvSt11align_val_tRKSt9nothrow_t",
];

/// Looks up all functions in one pass. A missing one is looked up again when it is called: its library may be loaded by
/// then.
pub(super) fn find_all() {
    symbols::resolve(&core::array::from_fn::<_, COUNT, _>(|number| &REAL[number]));
    note_known();
}

/// Looks up all functions in the objects of a process into which the agent was injected.
pub(super) fn find_in(objects: &StillList) {
    symbols::resolve_in(objects, &core::array::from_fn::<_, COUNT, _>(|number| &REAL[number]));
    note_known();
}

fn note_known() {
    for (number, real) in REAL.iter().enumerate() {
        if let Some(address) = real.known() {
            REALS.set(number, address as u64);
        }
    }
}

/// Looks up those that the program itself defines. False if that is no allocator.
pub(super) fn find_in_program() -> bool {
    for (number, real) in REAL.iter().enumerate() {
        OF_PROGRAM.set(number, symbols::in_program(real.name()).unwrap_or(0));
    }
    of_program(MALLOC) != 0 && of_program(FREE) != 0
}

/// The address of the program's own function with this number, or 0.
pub(super) fn of_program(number: usize) -> u64 {
    OF_PROGRAM.of(number).map_or(0, |pointer| pointer.load(Ordering::Relaxed).addr()) as u64
}

/// The real function with this number, or 0.
pub(super) fn known(number: usize) -> u64 {
    REAL.get(number).and_then(Real::known).unwrap_or(0) as u64
}

/// Whether the program has an allocator that can be called.
pub(super) fn has_allocator() -> bool {
    known(MALLOC) != 0 && known(FREE) != 0
}

/// The number of the function `name`.
pub(super) fn kind_of(name: &CStr) -> Option<usize> {
    REAL.iter().position(|real| real.name() == name)
}

/// Looks up one function at its first call.
pub(super) unsafe extern "C" fn find(number: usize) -> usize {
    let found = |number: usize| REAL.get(number)?.address();
    if let Some(address) = found(number) {
        REALS.set(number, address as u64);
        return address;
    }
    // If no library has C++'s operators, these equivalents serve.
    let substitute = match number {
        FIRST_NEW..=LAST_NEW => Some(MALLOC),
        number if number > FREE => Some(FREE),
        _ => None,
    };
    substitute.and_then(found).unwrap_or(missing as extern "C" fn() -> usize as usize)
}

/// Serves a program that calls a function that no library has.
extern "C" fn missing() -> usize {
    0
}
