//! Redirects allocations that do not come to the functions which the agent exports: the entries of the objects' offset tables that
//! refer to the allocator refer to other functions of the agent. These are all allocations of a process into which the agent was
//! injected, while it records, and those from a program's own allocator.
//!
//! An object that is loaded later is redirected by the next call. A forked child inherits the entries; an agent of its own takes
//! them over. Pointers to functions that the program has stored stay as they are, and so do calls inside of the allocator's
//! own object.

use platform::sys::PAGE;

use crate::kernel;
use crate::link_map::{self, StillList};
use crate::object_info::ObjectInfo;
use crate::offset_table::{Entry, OffsetTable};
use crate::symbols;

use super::entry::{INJECTED, TO_PROGRAM};
use super::real::{self, COUNT};

/// Redirects all allocations. False if the loader is busy, or the program has no allocator in a library.
pub(crate) fn begin() -> bool {
    let mut has_allocator = false;
    let is_done = link_map::hold_still(|objects| {
        real::find_in(objects);
        let real: [u64; COUNT] = core::array::from_fn(real::known);
        has_allocator = real::has_allocator();
        let known = |entry: &Entry<'_>| number_of(entry).or_else(|| inherited(entry.address()));
        each_entry(objects, &mut |entry| redirect(entry, &real, &INJECTED, known));
    });
    is_done && has_allocator
}

/// Undoes it.
pub(crate) fn end() {
    link_map::hold_still(|objects| {
        each_entry(objects, &mut |entry| {
            let address = entry.address();
            if let Some(kind) = INJECTED.iter().position(|own| *own as usize as u64 == address) {
                entry.replace(address, real::known(kind));
            }
        });
    });
}

/// The number of the function at `address` if it is one of the agent's that recorded the parent of this process.
fn inherited(address: u64) -> Option<usize> {
    const COMPARED: usize = 32;
    INJECTED.iter().position(|own| {
        let own = *own as usize;
        // SAFETY: the code of a function, none of which is shorter. It is the same in every copy of this library.
        let code = unsafe { core::slice::from_raw_parts(own as *const u8, COMPARED) };
        let mut found = [0u8; COMPARED];
        let distance = address.wrapping_sub(own as u64);
        distance != 0
            && distance.is_multiple_of(PAGE)
            && kernel::copy_own(address, &mut found)
            && found == code
    })
}

/// Redirects the calls to an allocator that the program itself defines, as far as its objects are loaded now: they do not come to
/// the functions that the agent exports. Those of the program to its own functions are not in any table.
///
/// A library that the program loads may have been told to look for functions elsewhere first (RTLD_DEEPBIND). So only `at_start` is
/// it certain what the loader has not looked up yet.
pub(crate) fn begin_for_program(at_start: bool) {
    let theirs: [u64; COUNT] = core::array::from_fn(real::of_program);
    let known = |entry: &Entry<'_>| if at_start { number_of(entry) } else { None };
    symbols::visit_objects(&mut |object| {
        each_entry_of(object, &mut |entry| redirect(entry, &theirs, &TO_PROGRAM, known));
        true
    });
}

/// The number of the function that the loader will look up for this entry.
fn number_of(entry: &Entry<'_>) -> Option<usize> {
    entry.unresolved().and_then(real::kind_of)
}

/// Redirects an entry that refers to one of the functions `from` to that with the same number of `to`. `known` gives the numbers for
/// further entries.
fn redirect(
    entry: &Entry<'_>,
    from: &[u64; COUNT],
    to: &[unsafe extern "C" fn(); COUNT],
    known: impl Fn(&Entry<'_>) -> Option<usize>,
) {
    let address = entry.address();
    let number = from.iter().position(|from| *from == address && address != 0).or_else(|| known(entry));
    if let Some(number) = number.filter(|number| from.get(*number) != Some(&0))
        && let Some(to) = to.get(number)
    {
        entry.replace(address, *to as usize as u64);
    }
}

fn each_entry(objects: &StillList, visit: &mut dyn FnMut(&Entry<'_>)) {
    objects.visit(&mut |object| {
        each_entry_of(object, visit);
        true
    });
}

/// The object must stay loaded during the call.
fn each_entry_of(object: &ObjectInfo, visit: &mut dyn FnMut(&Entry<'_>)) {
    // SAFETY: the caller keeps the object loaded.
    if let Some(table) = unsafe { OffsetTable::of_object(object) } {
        table.visit(visit);
    }
}
