//! Call frame information that the program registers for generated code (`__register_frame`), as published to handlers.
//!
//! Handlers read copies and tables compiled from them, never the program's memory. They are published together with the
//! modules, whose snapshots also tell when a copy is no longer in use. Total size is bounded, whatever the program
//! registers.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use compilation::compile;
use compilation::registered::Registered;
use handler::generated::{self, From};
use unwind::{Module, Section, Table};

use crate::kernel;

/// Maximum number of registrations.
const MOST: usize = 1 << 14;
/// Maximum number of registrations in a run.
const LONGEST_RUN: usize = 128;
/// Maximum bytes of all copies and tables.
const MOST_BYTES: usize = 64 << 20;
/// Maximum bytes of one registration.
const LONGEST: usize = 16 << 20;
/// Number of FDEs that a handler can search linearly if no table can be compiled from them.
const FEW: usize = 64;

/// One registration.
pub(crate) struct Registration {
    /// The address that the program registered, which identifies it.
    begin: u64,
    module: Module<'static>,
    bytes: usize,
    /// Memory that the module refers to.
    _eh_frame: Vec<u8>,
    _table: Vec<u8>,
}

impl Registration {
    /// Copies what the program registers at `begin`; `None` if it is unusable. Outside the handler; makes system calls.
    pub(crate) fn read(begin: u64) -> Option<Registration> {
        let copy = Registered::copy(begin, LONGEST, &mut |address, to| kernel::copy_own(address, to))?;
        let (range, count) = copy.extent()?;
        let table = compile(copy.section(), 0, &[]).unwrap_or_default();
        if table.is_empty() && count > FEW {
            return None;
        }
        let Section { bytes, address } = copy.section();
        // SAFETY: both live on the heap, owned by the registration, as long as its module.
        let (bytes, rows): (&'static [u8], &'static [u8]) =
            unsafe { (&*core::ptr::from_ref(bytes), &*core::ptr::from_ref(table.as_slice())) };
        let module = Module {
            start: range.start,
            end: range.end,
            eh_frame: Some(Section { bytes, address }),
            table: Table::from_trusted_bytes(rows).ok(),
            ..Module::default()
        };
        let bytes = copy.bytes.len() + table.len();
        Some(Registration { begin, module, bytes, _eh_frame: copy.bytes, _table: table })
    }
}

/// Adjacent registrations, sorted by first address; at least one. Immutable.
struct Run {
    list: Box<[generated::Registration]>,
    registrations: Vec<Arc<Registration>>,
}

impl Run {
    fn new(registrations: Vec<Arc<Registration>>) -> Arc<Run> {
        let list = listed(&registrations, |registration| {
            // SAFETY: the registration is kept alive next to the list.
            let module: &'static Module<'static> = unsafe { &*core::ptr::from_ref(&registration.module) };
            (module.start, module.end, module)
        });
        Arc::new(Run { list, registrations })
    }

    fn start(&self) -> u64 {
        self.list.first().map_or(0, |first| first.start)
    }

    fn reach(&self) -> u64 {
        self.list.last().map_or(0, |last| last.reach)
    }
}

/// All runs as of one publication. Immutable.
#[derive(Default)]
pub(crate) struct Published {
    list: Box<[generated::Run]>,
    runs: Vec<Arc<Run>>,
}

impl Published {
    /// The list for handlers to search. The caller must keep `self` alive as long as the list is used.
    pub(crate) fn list(&self) -> &[generated::Run] {
        &self.list
    }

    fn new(runs: Vec<Arc<Run>>) -> Published {
        let list = listed(&runs, |run| {
            // SAFETY: the run is kept alive next to the list.
            let registrations: &'static [generated::Registration] =
                unsafe { &*core::ptr::from_ref(&*run.list) };
            (run.start(), run.reach(), registrations)
        });
        Published { list, runs }
    }
}

/// Builds a list for handlers from (start, end, contents) of each element.
fn listed<P, T>(of: &[Arc<P>], describe: impl Fn(&P) -> (u64, u64, T)) -> Box<[From<T>]> {
    let mut reach = 0;
    let describe = |each: &Arc<P>| {
        let (start, end, what) = describe(each);
        reach = end.max(reach);
        From { start, reach, what }
    };
    of.iter().map(describe).collect()
}

/// All registrations of the program.
#[derive(Default)]
pub(crate) struct Code {
    published: Arc<Published>,
    /// (registered address, first code address) of each registration, sorted.
    starts: Vec<(u64, u64)>,
    bytes: usize,
}

impl Code {
    pub(crate) fn published(&self) -> &Arc<Published> {
        &self.published
    }

    /// Adds a registration, replacing one at the same address, unless a limit is exceeded. Returns whether anything has
    /// changed.
    pub(crate) fn add(&mut self, registration: Registration) -> bool {
        let has_removed = self.remove(registration.begin);
        if self.starts.len() >= MOST || self.bytes + registration.bytes > MOST_BYTES {
            return has_removed;
        }
        let start = registration.module.start;
        self.starts.insert(self.index_of(registration.begin), (registration.begin, start));
        self.bytes += registration.bytes;
        let mut runs = self.published.runs.clone();
        let index = runs.partition_point(|run| run.start() <= start).saturating_sub(1);
        let mut earlier = runs.get(index).map_or_else(Vec::new, |run| run.registrations.clone());
        earlier.insert(earlier.partition_point(|other| other.module.start <= start), Arc::new(registration));
        let later =
            if earlier.len() > LONGEST_RUN { earlier.split_off(earlier.len() / 2) } else { Vec::new() };
        let changed = [earlier, later].into_iter().filter(|run| !run.is_empty()).map(Run::new);
        runs.splice(index..runs.len().min(index + 1), changed);
        self.published = Arc::new(Published::new(runs));
        true
    }

    /// Removes the registration at `begin`; false if there is none.
    pub(crate) fn remove(&mut self, begin: u64) -> bool {
        let index = self.index_of(begin);
        if self.starts.get(index).is_none_or(|(known, _)| *known != begin) {
            return false;
        }
        let (_, start) = self.starts.remove(index);
        let mut runs = self.published.runs.clone();
        // Registrations with equal starts may be in several runs.
        let end = runs.partition_point(|run| run.start() <= start);
        let found = runs[..end].iter().enumerate().rev().find_map(|(index, run)| {
            let at = run.registrations.iter().position(|other| other.begin == begin)?;
            Some((index, at))
        });
        if let Some((index, at)) = found {
            let mut registrations = runs[index].registrations.clone();
            self.bytes -= registrations.remove(at).bytes;
            let rest = Some(registrations).filter(|run| !run.is_empty()).map(Run::new);
            runs.splice(index..=index, rest);
        }
        self.published = Arc::new(Published::new(runs));
        true
    }

    /// Index in `starts` of that registration, or where it would be inserted.
    fn index_of(&self, begin: u64) -> usize {
        self.starts.partition_point(|(other, _)| *other < begin)
    }
}
