//! The flag that selects the event of a recording.

use clap::Args;
use selfwind_profile::profile::Profile;

/// Which event.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct EventArgs {
    /// Event to use: cpu, offcpu, or that of `perf:EVENT`; of allocations alloc_space, alloc_objects, inuse_space (bytes not freed) or inuse_objects; of mappings mmap_space, mmap_objects, mmap_inuse_space or mmap_inuse_objects; of locks delay (ns waited, by waiter), held_delay (the same, by who ended the wait) or contentions [default: the clock's, else alloc_space, mmap_space or delay]
    #[arg(long, value_name = "EVENT", visible_alias = "value")]
    event: Option<String>,
}

impl EventArgs {
    /// The event, if given.
    pub(crate) fn name(&self) -> Option<&str> {
        self.event.as_deref()
    }
}

/// Selects one event of a profile: `event`, or the main one.
pub(crate) fn choose(profile: &mut Profile, event: Option<&str>) -> anyhow::Result<()> {
    let index = match event {
        Some(event) => profile.event(event)?,
        None => profile.main,
    };
    profile.choose(index);
    Ok(())
}
