//! The title of a profile, and how it was recorded.

use crate::profile::Profile;
use crate::profile_file::SessionInfo;

/// The recorded command, else the first process.
pub(super) fn title(profile: &Profile) -> String {
    if profile.session.command.is_empty() {
        return profile.processes.first().map_or("no process".into(), |process| process.name());
    }
    profile.session.command.join(" ")
}

/// What triggered its samples, and how often.
pub(super) fn source(session: &SessionInfo) -> String {
    let SessionInfo { source, frequency, .. } = session;
    if *frequency == 0 { source.clone() } else { format!("{source}, {frequency} Hz") }
}
