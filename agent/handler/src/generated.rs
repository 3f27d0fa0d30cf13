//! Generated code for which the program has registered call frame information, as walks find it.
//!
//! Lists are published with the modules and immutable. What they say is the program's own, so nothing here is taken for
//! sane: parts may overlap, and all of them may.

use core::sync::atomic::{AtomicBool, Ordering};

use unwind::Module;

/// Parts that are looked at for one address, and runs of them.
const LOOKS: usize = 16;

/// The program has taken something back that could not be taken out of the lists.
static OUTDATED: AtomicBool = AtomicBool::new(false);

/// Something that begins at an address, in a list in the order of these.
#[derive(Clone, Copy)]
pub struct From<T> {
    /// The first address.
    pub start: u64,
    /// The greatest address that ends this or something before it in the list.
    pub reach: u64,
    /// What it is.
    pub what: T,
}

/// The rules of code that was registered at once.
pub type Part = From<&'static Module<'static>>;
/// Neighbouring parts: a change copies one run, and the list of all runs.
pub type Run = From<&'static [Part]>;

/// Makes all lists void, those to come too.
pub fn set_outdated() {
    OUTDATED.store(true, Ordering::Relaxed);
}

/// The part with a rule for `address`.
#[inline]
pub(crate) fn find(runs: &[Run], address: u64) -> Option<&'static Module<'static>> {
    if runs.is_empty() { None } else { search(runs, address) }
}

#[inline(never)]
fn search(runs: &[Run], address: u64) -> Option<&'static Module<'static>> {
    if OUTDATED.load(Ordering::Relaxed) {
        return None;
    }
    let parts = reaching(runs, address).flat_map(|run| reaching(run.what, address));
    parts.take(LOOKS).map(|part| part.what).find(|module| module.covers(address))
}

/// Those of a list that may hold `address`, the nearest first.
fn reaching<T>(list: &[From<T>], address: u64) -> impl Iterator<Item = &From<T>> {
    let after = list.partition_point(|from| from.start <= address);
    let before = list.get(..after).unwrap_or_default().iter().rev();
    before.take_while(move |from| address < from.reach).take(LOOKS)
}
