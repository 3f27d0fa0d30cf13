//! `list`: the processes that are recorded or carry a flight recorder, living and dead.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use selfwind_profile::digits::counted;
use serde::Serialize;

use crate::drain::process::RegionName;
use crate::target::attach::Attached;
use crate::target::liveness::Liveness;
use crate::target::session;
use crate::terminal::notices::warn;

/// One region.
#[derive(Debug, Serialize)]
struct Entry {
    /// Process id.
    pid: u32,
    /// `live` or `dead`.
    state: &'static str,
    /// `recorded` while a recorder drains it, else `flight`, or `left` by a recorder that was killed; `detached` of a live
    /// process whose sampling somebody has ended.
    kind: &'static str,
    /// Samples its process has recorded so far.
    samples: u64,
    /// Its program.
    exe: String,
    /// The region's file.
    region: PathBuf,
}

/// Prints what there is. With `reap` it first removes the regions of dead processes that nobody drains, and says which.
pub fn run(json: bool, reap: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut entries = Vec::new();
    for directory in session::directories() {
        let recorded = session::is_recorded(&directory);
        let found = regions(&directory, recorded);
        if reap && !recorded {
            for entry in reap_directory(&directory, &found) {
                let Entry { pid, exe, samples, region, .. } = entry;
                let samples = counted(*samples, "sample", "samples");
                warn(format_args!("removed {}: process {pid} {exe}, {samples}", region.display()));
            }
        }
        entries.extend(found.into_iter().filter(|entry| entry.region.exists()));
    }
    if json {
        for entry in &entries {
            serde_json::to_writer(&mut *out, entry)?;
            writeln!(out)?;
        }
    } else if entries.is_empty() {
        warn(
            "no recorded processes; start one with `selfwind record -- CMD` or LD_PRELOAD=$(selfwind agent-path)",
        );
    } else {
        writeln!(out, "{:>8}  {:<5}  {:<8}  {:>9}  PROGRAM", "PID", "STATE", "KIND", "SAMPLES")?;
        for entry in &entries {
            let Entry { pid, state, kind, samples, exe, .. } = entry;
            writeln!(out, "{pid:>8}  {state:<5}  {kind:<8}  {samples:>9}  {exe}")?;
        }
    }
    Ok(out.flush()?)
}

fn regions(directory: &Path, recorded: bool) -> Vec<Entry> {
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
                exe: peek.map_or_else(String::new, |peek| peek.exe),
                region: file.path(),
            })
        })
        .collect();
    entries.sort_by_key(|entry| entry.pid);
    entries
}

/// Removes sessions that a killed recorder left behind, when all their processes are dead and a day has gone by
/// in which somebody could have recovered them with `record -p`.
pub fn reap_abandoned() {
    const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);
    for directory in session::directories() {
        let age =
            std::fs::metadata(&directory).and_then(|metadata| metadata.modified()).map(|time| time.elapsed());
        let old = matches!(age, Ok(Ok(age)) if age > A_DAY);
        if old && !is_flight(&directory) && !session::is_recorded(&directory) {
            reap_directory(&directory, &regions(&directory, false));
        }
    }
}

fn is_flight(directory: &Path) -> bool {
    directory.file_name().is_some_and(|name| name == session::FLIGHT)
}

/// Removes what agents and recorders leave, and the directory if nothing else is in it: whatever directory
/// somebody named, nothing of theirs is lost. Gives the regions that it removed.
fn reap_directory<'a>(directory: &Path, entries: &'a [Entry]) -> Vec<&'a Entry> {
    let dead = entries.iter().filter(|entry| entry.state == "dead");
    let removed: Vec<&Entry> = dead.filter(|entry| std::fs::remove_file(&entry.region).is_ok()).collect();
    if is_flight(directory) || removed.len() < entries.len() {
        return removed;
    }
    for file in std::fs::read_dir(directory).into_iter().flatten().flatten().map(|file| file.path()) {
        if file.file_name().is_some_and(|name| name == session::BELL)
            || file.extension().is_some_and(|extension| extension == "failed")
        {
            let _ = std::fs::remove_file(file);
        }
    }
    let _ = std::fs::remove_dir(directory);
    removed
}
