//! Call frame information that the program registers for generated code (`__register_frame`), as published to handlers.
//!
//! Handlers read copies and tables compiled from them, never the program's memory. They are published together with the
//! modules, whose snapshots also tell when a copy is no longer in use. Total size is bounded, whatever the program
//! registers.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use handler::generated::{self, From};
use unwind::registered::Registered;
use unwind::{Module, Section, Table, compile};

use crate::kernel;

/// Maximum number of parts.
const MOST: usize = 1 << 14;
/// Maximum number of parts in a run.
const LONGEST_RUN: usize = 128;
/// Maximum bytes of all copies and tables.
const MOST_BYTES: usize = 64 << 20;
/// Maximum bytes of one registration.
const LONGEST: usize = 16 << 20;
/// Number of FDEs that a handler can search linearly if no table can be compiled from them.
const FEW: usize = 64;

/// One registration.
pub(crate) struct Part {
    /// The address that the program registered, which identifies it.
    begin: u64,
    module: Module<'static>,
    bytes: usize,
    /// Memory that the module refers to.
    _eh_frame: Vec<u8>,
    _table: Vec<u8>,
}

impl Part {
    /// Copies what the program registers at `begin`; `None` if it is unusable. Outside the handler; makes system calls.
    pub(crate) fn read(begin: u64) -> Option<Part> {
        let copy = Registered::copy(begin, LONGEST, &mut |address, to| kernel::copy_own(address, to))?;
        let (range, count) = copy.extent()?;
        let table = compile::compile(copy.section(), 0, &[]).unwrap_or_default();
        if table.is_empty() && count > FEW {
            return None;
        }
        let Section { bytes, address } = copy.section();
        // SAFETY: both live on the heap, owned by the part, as long as its module.
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
        Some(Part { begin, module, bytes, _eh_frame: copy.bytes, _table: table })
    }
}

/// Adjacent parts, sorted by first address; at least one. Immutable.
struct Run {
    list: Box<[generated::Part]>,
    parts: Vec<Arc<Part>>,
}

impl Run {
    fn new(parts: Vec<Arc<Part>>) -> Arc<Run> {
        let list = listed(&parts, |part| {
            // SAFETY: the part is kept alive next to the list.
            let module: &'static Module<'static> = unsafe { &*core::ptr::from_ref(&part.module) };
            (module.start, module.end, module)
        });
        Arc::new(Run { list, parts })
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
            let parts: &'static [generated::Part] = unsafe { &*core::ptr::from_ref(&*run.list) };
            (run.start(), run.reach(), parts)
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
    /// (registered address, first code address) of each part, sorted.
    starts: Vec<(u64, u64)>,
    bytes: usize,
}

impl Code {
    pub(crate) fn published(&self) -> &Arc<Published> {
        &self.published
    }

    /// Adds a part, replacing a registration at the same address, unless a limit is exceeded. Returns whether anything
    /// has changed.
    pub(crate) fn add(&mut self, part: Part) -> bool {
        let has_removed = self.remove(part.begin);
        if self.starts.len() >= MOST || self.bytes + part.bytes > MOST_BYTES {
            return has_removed;
        }
        let start = part.module.start;
        self.starts.insert(self.index_of(part.begin), (part.begin, start));
        self.bytes += part.bytes;
        let mut runs = self.published.runs.clone();
        let index = runs.partition_point(|run| run.start() <= start).saturating_sub(1);
        let mut parts = runs.get(index).map_or_else(Vec::new, |run| run.parts.clone());
        parts.insert(parts.partition_point(|other| other.module.start <= start), Arc::new(part));
        let later = if parts.len() > LONGEST_RUN { parts.split_off(parts.len() / 2) } else { Vec::new() };
        let changed = [parts, later].into_iter().filter(|parts| !parts.is_empty()).map(Run::new);
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
        // Parts with equal starts may be in several runs.
        let end = runs.partition_point(|run| run.start() <= start);
        let found = runs[..end].iter().enumerate().rev().find_map(|(index, run)| {
            let at = run.parts.iter().position(|part| part.begin == begin)?;
            Some((index, at))
        });
        if let Some((index, at)) = found {
            let mut parts = runs[index].parts.clone();
            self.bytes -= parts.remove(at).bytes;
            let rest = Some(parts).filter(|parts| !parts.is_empty()).map(Run::new);
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
