//! Keeps an attached process's libraries known while it is recorded, where its loader does not tell what it loads later.
//!
//! Its memory map is looked at now and then. Executable files in it of which the agent has not told are reason enough
//! to visit it once more. What is none of the loader's libraries is no reason twice.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use selfwind_profile::profile_file::{Event, LentSample};

use crate::drain::listener::Listener;
use crate::proc;
use crate::target::inject::{self, Settings};
use crate::terminal::notices::Notices;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(500);

/// Passes events on, and has the agent look again when there are new libraries.
pub(crate) struct Renewal<'a> {
    inner: &'a mut dyn Listener,
    pid: u32,
    settings: Settings,
    notices: Notices,
    /// Where modules lie that the agent has told.
    told: Vec<(u64, u64)>,
    /// Where executable files lie that were a reason already.
    tried: BTreeSet<u64>,
    looked: Instant,
}

impl<'a> Renewal<'a> {
    /// For `pid`, which a recorder has attached with these settings.
    pub(crate) fn new(inner: &'a mut dyn Listener, pid: u32, settings: Settings, notices: Notices) -> Self {
        let (told, tried) = (Vec::new(), BTreeSet::new());
        Self { inner, pid, settings, notices, told, tried, looked: Instant::now() }
    }

    /// Executable files that nobody has told of, and that were no reason before.
    fn untold(&mut self) -> bool {
        let mappings = proc::mappings(self.pid).unwrap_or_default();
        let new: Vec<u64> = mappings
            .iter()
            .filter(|mapping| mapping.executable && mapping.is_of_file())
            .map(|mapping| mapping.start)
            .filter(|start| !self.told.iter().any(|(first, end)| (*first..*end).contains(start)))
            .collect();
        // What went away may come back as something else.
        self.tried.retain(|start| new.contains(start));
        let before = self.tried.len();
        self.tried.extend(new);
        self.tried.len() > before
    }
}

impl Listener for Renewal<'_> {
    fn event(&mut self, event: Event) -> io::Result<()> {
        if let Event::Module(module) = &event {
            self.told.retain(|(start, end)| *end <= module.start || module.end <= *start);
            self.told.push((module.start, module.end));
        }
        self.inner.event(event)
    }

    fn sample(&mut self, lent: LentSample<'_>) -> io::Result<()> {
        self.inner.sample(lent)
    }

    fn end_pass(&mut self) -> io::Result<()> {
        if self.looked.elapsed() >= EVERY {
            self.looked = Instant::now();
            if self.untold()
                && !inject::is_told_of_changes(self.pid)
                && let Err(error) = inject::attach(self.pid, self.settings)
            {
                self.notices.detail(format_args!("libraries loaded later are missing: {error}"));
            }
        }
        self.inner.end_pass()
    }

    fn snapshot(&mut self, ends: Vec<Event>) -> io::Result<()> {
        self.inner.snapshot(ends)
    }
}
