//! Lists the regions in session directories, and removes those left by dead processes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::target::attach::Attached;
use crate::target::liveness::Liveness;
use crate::target::region_name::RegionName;
use crate::target::{others, session, session_directory};

/// One region.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    /// Process id.
    pub(crate) pid: u32,
    /// `live` or `dead`.
    pub(crate) state: &'static str,
    /// `recorded` while a recorder drains it; otherwise `flight` (flight recorder), `left` by a recorder that was killed, or
    /// `detached` if the process is running and its sampling was stopped.
    pub(crate) kind: &'static str,
    /// Samples its process has recorded so far.
    pub(crate) samples: u64,
    /// Its program.
    pub(crate) exe: String,
    /// The region's file.
    pub(crate) region: PathBuf,
    /// A recorder has stopped the sampling that it began, and has what was recorded.
    #[serde(skip)]
    is_saved: bool,
}

/// The regions in a session directory.
pub(crate) fn regions(directory: &Path, recorded: bool) -> Vec<Entry> {
    let flight = is_flight(directory);
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut entries: Vec<Entry> = files
        .filter_map(|file| {
            let name = RegionName::parse(&file.file_name())?;
            let peek = Attached::peek(&file.path()).ok();
            let live = Liveness::follow(name.pid, name.start_time).is_running();
            Some(Entry {
                pid: name.pid,
                state: if live { "live" } else { "dead" },
                kind: match (recorded, flight) {
                    _ if live && peek.as_ref().is_some_and(|peek| !peek.sampling) => "detached",
                    (true, _) => "recorded",
                    (_, true) => "flight",
                    _ => "left",
                },
                samples: peek.as_ref().map_or(0, |peek| peek.samples),
                is_saved: peek.as_ref().is_some_and(|peek| !peek.sampling && peek.recorder.is_some()),
                exe: peek.map_or_else(String::new, |peek| peek.exe),
                region: file.path(),
            })
        })
        .collect();
    entries.sort_by_key(|entry| entry.pid);
    entries
}

/// Removes what nobody needs: the regions of dead processes of which a recorder has all data, and sessions that a killed recorder
/// left behind, once all their processes are dead and a day has passed in which `record -p` could have recovered them.
pub(crate) fn reap_abandoned() {
    others::reap_abandoned();
    const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);
    for directory in session::directories() {
        if is_flight(&directory) {
            let entries = regions(&directory, false).into_iter();
            let saved: Vec<Entry> = entries.filter(|entry| entry.is_saved).collect();
            reap_directory(&directory, &saved);
            continue;
        }
        let age =
            std::fs::metadata(&directory).and_then(|metadata| metadata.modified()).map(|time| time.elapsed());
        let old = matches!(age, Ok(Ok(age)) if age > A_DAY);
        if old && !session_directory::is_recorded(&directory) {
            reap_directory(&directory, &regions(&directory, false));
        }
    }
}

fn is_flight(directory: &Path) -> bool {
    directory.file_name().is_some_and(|name| name == session::FLIGHT)
}

/// Removes the files of agents and recorders, and the directory if it is then empty, so that no other files are lost in a
/// directory named by the user. Returns the removed regions.
pub(crate) fn reap_directory<'a>(directory: &Path, entries: &'a [Entry]) -> Vec<&'a Entry> {
    let dead = entries.iter().filter(|entry| entry.state == "dead");
    let removed: Vec<&Entry> = dead.filter(|entry| std::fs::remove_file(&entry.region).is_ok()).collect();
    if is_flight(directory) || removed.len() < entries.len() {
        return removed;
    }
    for file in std::fs::read_dir(directory).into_iter().flatten().flatten().map(|file| file.path()) {
        if file.file_name().is_some_and(|name| name == session_directory::DOORBELL)
            || file.extension().is_some_and(|extension| extension == "failed")
        {
            let _ = std::fs::remove_file(file);
        }
    }
    let _ = std::fs::remove_dir(directory);
    removed
}
