//! The flag that says which event of a recording is shown.

use clap::Args;
use selfwind_profile::profile::Profile;

/// Which event.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct EventArgs {
    /// Which event of the recording: cpu, offcpu, that of `perf:EVENT`; of allocations alloc_space, alloc_objects, inuse_space (bytes that nobody has freed) or inuse_objects; of mappings mmap_space, mmap_objects, mmap_inuse_space or mmap_inuse_objects; of locks delay (ns waited, by who waits), held_delay (the same by who ended the wait) or contentions [default: the clock's, else alloc_space, mmap_space or delay]
    #[arg(long, value_name = "EVENT", visible_alias = "value")]
    event: Option<String>,
}

impl EventArgs {
    /// That event, if one was asked for.
    pub(crate) fn name(&self) -> Option<&str> {
        self.event.as_deref()
    }
}

/// Leaves one event of a profile: the one that was asked for, or the main one.
pub(crate) fn choose(profile: &mut Profile, event: Option<&str>) -> anyhow::Result<()> {
    let place = match event {
        Some(event) => profile.event(event)?,
        None => profile.main,
    };
    profile.choose(place);
    Ok(())
}
