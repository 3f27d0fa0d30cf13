//! Code that the program generates and has registered call frame information for (`__register_frame`), as it is published.
//!
//! Handlers read copies and what was compiled from them, never the program's own memory. All of it is published with the
//! modules, whose snapshots tell when nobody uses a copy any more. What is registered cannot make it grow without bound.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use handler::generated::{self, From};
use unwind::registered::Registered;
use unwind::{Module, Section, Table, compile};

use crate::kernel;

/// Most parts.
const MOST: usize = 1 << 14;
/// Most parts of a run.
const LONGEST_RUN: usize = 128;
/// Most bytes of all copies and tables.
const MOST_BYTES: usize = 64 << 20;
/// Most bytes of one registration.
const LONGEST: usize = 16 << 20;
/// FDEs that a handler can search one by one, where no table can be made of them.
const FEW: usize = 64;

/// What was registered at once.
pub(crate) struct Part {
    /// By which address the program knows it.
    begin: u64,
    module: Module<'static>,
    bytes: usize,
    /// What the module refers to.
    _eh_frame: Vec<u8>,
    _table: Vec<u8>,
}

impl Part {
    /// Of what the program registers at `begin`, if it can be used. Outside the handler; makes system calls.
    pub(crate) fn read(begin: u64) -> Option<Part> {
        let copy = Registered::copy(begin, LONGEST, &mut |address, to| kernel::copy_own(address, to))?;
        let (range, count) = copy.extent()?;
        let table = compile::compile(copy.section(), 0, &[]).unwrap_or_default();
        if table.is_empty() && count > FEW {
            return None;
        }
        let Section { bytes, address } = copy.section();
        // SAFETY: both live in the part, on the heap, as long as its module.
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

/// Parts that are neighbours, by first address: at least one. Immutable.
struct Run {
    list: Box<[generated::Part]>,
    parts: Vec<Arc<Part>>,
}

impl Run {
    fn new(parts: Vec<Arc<Part>>) -> Arc<Run> {
        let list = listed(&parts, |part| {
            // SAFETY: the part is kept beside the list.
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

/// All runs at one time. Immutable.
#[derive(Default)]
pub(crate) struct Published {
    list: Box<[generated::Run]>,
    runs: Vec<Arc<Run>>,
}

impl Published {
    /// As handlers search it. The caller keeps this as long as the list is used.
    pub(crate) fn list(&self) -> &[generated::Run] {
        &self.list
    }

    fn new(runs: Vec<Arc<Run>>) -> Published {
        let list = listed(&runs, |run| {
            // SAFETY: the run is kept beside the list.
            let parts: &'static [generated::Part] = unsafe { &*core::ptr::from_ref(&*run.list) };
            (run.start(), run.reach(), parts)
        });
        Published { list, runs }
    }
}

/// As handlers search it, of what tells its start and end.
fn listed<P, T>(of: &[Arc<P>], describe: impl Fn(&P) -> (u64, u64, T)) -> Box<[From<T>]> {
    let mut reach = 0;
    let describe = |each: &Arc<P>| {
        let (start, end, what) = describe(each);
        reach = end.max(reach);
        From { start, reach, what }
    };
    of.iter().map(describe).collect()
}

/// What is registered.
#[derive(Default)]
pub(crate) struct Code {
    published: Arc<Published>,
    /// By which address the program knows code, in order, and the first address of that.
    starts: Vec<(u64, u64)>,
    bytes: usize,
}

impl Code {
    pub(crate) fn published(&self) -> &Arc<Published> {
        &self.published
    }

    /// Adds a part, which replaces what was registered at the same address; not if that is too much. Whether anything has
    /// changed.
    pub(crate) fn add(&mut self, part: Part) -> bool {
        let has_removed = self.remove(part.begin);
        if self.starts.len() >= MOST || self.bytes + part.bytes > MOST_BYTES {
            return has_removed;
        }
        let start = part.module.start;
        self.starts.insert(self.place_of(part.begin), (part.begin, start));
        self.bytes += part.bytes;
        let mut runs = self.published.runs.clone();
        let place = runs.partition_point(|run| run.start() <= start).saturating_sub(1);
        let mut parts = runs.get(place).map_or_else(Vec::new, |run| run.parts.clone());
        parts.insert(parts.partition_point(|other| other.module.start <= start), Arc::new(part));
        let later = if parts.len() > LONGEST_RUN { parts.split_off(parts.len() / 2) } else { Vec::new() };
        let changed = [parts, later].into_iter().filter(|parts| !parts.is_empty()).map(Run::new);
        runs.splice(place..runs.len().min(place + 1), changed);
        self.published = Arc::new(Published::new(runs));
        true
    }

    /// Removes what was registered at `begin`; false if there is no such part.
    pub(crate) fn remove(&mut self, begin: u64) -> bool {
        let place = self.place_of(begin);
        if self.starts.get(place).is_none_or(|(known, _)| *known != begin) {
            return false;
        }
        let (_, start) = self.starts.remove(place);
        let mut runs = self.published.runs.clone();
        // Parts with the same start may lie in several runs.
        let end = runs.partition_point(|run| run.start() <= start);
        let found = runs[..end].iter().enumerate().rev().find_map(|(place, run)| {
            let at = run.parts.iter().position(|part| part.begin == begin)?;
            Some((place, at))
        });
        if let Some((place, at)) = found {
            let mut parts = runs[place].parts.clone();
            self.bytes -= parts.remove(at).bytes;
            let rest = Some(parts).filter(|parts| !parts.is_empty()).map(Run::new);
            runs.splice(place..=place, rest);
        }
        self.published = Arc::new(Published::new(runs));
        true
    }

    /// Where in `starts` that is, or would be.
    fn place_of(&self, begin: u64) -> usize {
        self.starts.partition_point(|(other, _)| *other < begin)
    }
}
