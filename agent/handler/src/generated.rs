//! Generated code with registered call frame information, as walks look it up.
//!
//! The lists are published with the modules and immutable. Their contents come from the program, so they are untrusted:
//! registrations may overlap, all of them if need be.

use core::sync::atomic::{AtomicBool, Ordering};

use unwind::Module;

/// Maximum number of registrations, and of runs, examined for one address.
const LOOKS: usize = 16;

/// The program has deregistered something that could not be removed from the lists.
static OUTDATED: AtomicBool = AtomicBool::new(false);

/// An element with a start address, in a sorted list.
#[derive(Clone, Copy)]
pub struct From<T> {
    /// The first address.
    pub start: u64,
    /// The greatest end of this element and all before it in the list.
    pub reach: u64,
    /// The element.
    pub what: T,
}

/// The rules of one registration.
pub type Registration = From<&'static Module<'static>>;
/// Adjacent registrations: a change copies one run, and the list of runs.
pub type Run = From<&'static [Registration]>;

/// Invalidates all lists, including later ones.
pub fn set_outdated() {
    OUTDATED.store(true, Ordering::Relaxed);
}

/// The registration with a rule for `address`.
#[inline]
pub(crate) fn find(runs: &[Run], address: u64) -> Option<&'static Module<'static>> {
    if runs.is_empty() { None } else { search(runs, address) }
}

#[inline(never)]
fn search(runs: &[Run], address: u64) -> Option<&'static Module<'static>> {
    if OUTDATED.load(Ordering::Relaxed) {
        return None;
    }
    let registrations = reaching(runs, address).flat_map(|run| reaching(run.what, address));
    registrations.take(LOOKS).map(|registration| registration.what).find(|module| module.covers(address))
}

/// The elements of a list that may contain `address`, nearest first.
fn reaching<T>(list: &[From<T>], address: u64) -> impl Iterator<Item = &From<T>> {
    let after = list.partition_point(|from| from.start <= address);
    let before = list.get(..after).unwrap_or_default().iter().rev();
    before.take_while(move |from| address < from.reach).take(LOOKS)
}
