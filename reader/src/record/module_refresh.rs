//! Keeps the modules of an attached process up to date while it is recorded, if its loader does not report later loads.
//!
//! Its memory map is read at an interval. If it shows executable files that the agent has not reported, the agent is asked to
//! look at the loader's list again. Each file is a reason for that only once, as it may not be one of the loader's. If allocations
//! are recorded, those of modules that are reported later must be redirected, too: when they are reported, the loader has not
//! relocated them yet.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use selfwind_profile::profile_file::{Event, SampleRef};

use crate::drain::listener::Listener;
use crate::proc;
use crate::target::inject::{self, Settings};
use crate::terminal::notices::Notices;

/// How often the memory map is read.
const READ_EVERY: Duration = Duration::from_millis(500);

/// Passes events on, and asks the agent to look again when there are new libraries.
pub(crate) struct ModuleRefresh<'a> {
    inner: &'a mut dyn Listener,
    pid: u32,
    settings: Settings,
    notices: Notices,
    /// Address ranges of the modules that the agent has reported.
    reported: Vec<(u64, u64)>,
    /// Start addresses of executable files for which the agent was asked before.
    asked: BTreeSet<u64>,
    last_read: Instant,
    /// Modules were reported whose allocations are not redirected yet.
    has_new: bool,
}

impl<'a> ModuleRefresh<'a> {
    /// For the process `pid`, which was attached with these settings.
    pub(crate) fn new(inner: &'a mut dyn Listener, pid: u32, settings: Settings, notices: Notices) -> Self {
        let (reported, asked) = (Vec::new(), BTreeSet::new());
        Self { inner, pid, settings, notices, reported, asked, last_read: Instant::now(), has_new: false }
    }

    /// True if there are unreported executable files for which the agent was not asked yet.
    fn has_unreported(&mut self) -> bool {
        let mappings = proc::mappings(self.pid).unwrap_or_default();
        let new: Vec<u64> = mappings
            .iter()
            .filter(|mapping| mapping.executable && mapping.is_of_file())
            .map(|mapping| mapping.start)
            .filter(|start| !self.reported.iter().any(|(first, end)| (*first..*end).contains(start)))
            .collect();
        // A removed file's address may be reused.
        self.asked.retain(|start| new.contains(start));
        let before = self.asked.len();
        self.asked.extend(new);
        self.asked.len() > before
    }
}

impl Listener for ModuleRefresh<'_> {
    fn event(&mut self, event: Event) -> io::Result<()> {
        if let Event::Module(module) = &event {
            self.reported.retain(|(start, end)| *end <= module.start || module.end <= *start);
            self.reported.push((module.start, module.end));
            self.has_new = true;
        }
        self.inner.event(event)
    }

    fn sample(&mut self, sample_ref: SampleRef<'_>) -> io::Result<()> {
        self.inner.sample(sample_ref)
    }

    fn end_pass(&mut self) -> io::Result<()> {
        if self.last_read.elapsed() >= READ_EVERY {
            self.last_read = Instant::now();
            if self.has_unreported()
                && !inject::is_loader_hooked(self.pid)
                && let Err(error) = inject::attach(self.pid, &self.settings)
            {
                self.notices.detail(format_args!("libraries loaded later are missing: {error}"));
            }
            if std::mem::take(&mut self.has_new)
                && self.settings.sources.have_allocations()
                && let Err(error) = inject::redirect(self.pid)
            {
                self.notices
                    .detail(format_args!("allocations of libraries loaded later are missing: {error}"));
            }
        }
        self.inner.end_pass()
    }

    fn tables_made(&self) -> u64 {
        self.inner.tables_made()
    }

    fn snapshot(&mut self, ends: Vec<Event>) -> io::Result<()> {
        self.inner.snapshot(ends)
    }
}
