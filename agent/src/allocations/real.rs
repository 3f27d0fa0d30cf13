//! The functions behind the allocator's names: the program's own allocator, whatever that is.

use core::sync::atomic::Ordering;

use super::entry::{self, COUNT, Kind};
use crate::symbols::{self, Real};

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

/// Looks all of them up in one pass. One that is missing is looked for again when it is called: its library may be loaded
/// by then.
pub(super) fn find_all() {
    let all: [&Real; COUNT] = core::array::from_fn(|number| &REAL[number]);
    symbols::resolve(&all);
    for (place, real) in entry::REALS.iter().zip(&REAL) {
        if let Some(address) = real.known() {
            place.store(address as *mut (), Ordering::Relaxed);
        }
    }
}

/// Looks one of them up at its first call.
pub(super) unsafe extern "C" fn find(number: usize) -> usize {
    let found = |kind: Kind| REAL.get(kind.0)?.address();
    let kind = Kind(number);
    if let Some(address) = found(kind) {
        if let Some(place) = entry::REALS.get(number) {
            place.store(address as *mut (), Ordering::Relaxed);
        }
        return address;
    }
    kind.substitute().and_then(found).unwrap_or(missing as extern "C" fn() -> usize as usize)
}

/// What a program gets that calls a function that nobody has.
extern "C" fn missing() -> usize {
    0
}
