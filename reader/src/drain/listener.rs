//! Who takes what a recording yields.

use std::io;

use selfwind_profile::profile_file::{Event, LentSample};

/// Takes what a recording yields.
pub(crate) trait Listener {
    /// Something was learnt.
    fn event(&mut self, event: Event) -> io::Result<()>;

    /// A sample came. What it shares is shared with the one of the call before.
    fn sample(&mut self, lent: LentSample<'_>) -> io::Result<()> {
        self.event(Event::Sample(lent.to_sample()))
    }

    /// That was all for now.
    fn pause(&mut self) -> io::Result<()>;

    /// Makes sure of what it was told: after this, our own death loses nothing of it.
    fn save(&mut self) -> io::Result<()> {
        self.pause()
    }

    /// Keeps a copy of what it was told so far, completed by `ends`.
    fn snapshot(&mut self, _ends: Vec<Event>) -> io::Result<()> {
        Ok(())
    }
}
