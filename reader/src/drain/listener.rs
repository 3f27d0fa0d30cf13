//! The receiver of a recording's events.

use std::io;

use selfwind_profile::profile_file::{Event, SampleRef};

/// Receives the events of a recording in timestamp order.
pub(crate) trait Listener {
    /// When what is received begins to count (CLOCK_MONOTONIC, ns): earlier samples will be dropped.
    fn begins_ns(&self) -> u64 {
        0
    }

    /// Receives an event.
    fn event(&mut self, event: Event) -> io::Result<()>;

    /// Receives a sample. Its shared frames are those of the sample in the previous call.
    fn sample(&mut self, sample_ref: SampleRef<'_>) -> io::Result<()> {
        self.event(Event::Sample(sample_ref.to_sample()))
    }

    /// Called at the end of each pass.
    fn end_pass(&mut self) -> io::Result<()>;

    /// Number of unwind tables that were made because of what was received.
    fn tables_made(&self) -> u64 {
        0
    }

    /// Flushes everything received so far: after this call, none of it is lost even if the recorder is killed.
    fn flush(&mut self) -> io::Result<()> {
        self.end_pass()
    }

    /// Saves a snapshot of everything received so far, completed by the end events `ends`.
    fn snapshot(&mut self, _ends: Vec<Event>) -> io::Result<()> {
        Ok(())
    }
}
