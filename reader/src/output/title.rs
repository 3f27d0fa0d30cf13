//! What a profile is called.

use crate::profile::Profile;

/// The recorded command, else the first process.
pub(super) fn title(profile: &Profile) -> String {
    if profile.session.command.is_empty() {
        return profile.processes.first().map_or("no process".into(), |process| process.name());
    }
    profile.session.command.join(" ")
}
