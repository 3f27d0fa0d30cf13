//! `list`: the processes, running or dead, that are recorded or have a flight recorder.

use std::io::Write;

use selfwind_profile::digits::counted;

use crate::target::leftovers::{Entry, reap_directory, regions};
use crate::target::{session, session_directory};
use crate::terminal::notices::warn;
use crate::terminal::screen::printable;

/// Prints the list. With `reap`, first removes the regions of dead processes that no recorder is draining, and prints them.
pub(crate) fn run(json: bool, reap: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut entries = Vec::new();
    for directory in session::directories() {
        let recorded = session_directory::is_recorded(&directory);
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
            let exe = printable(exe);
            writeln!(out, "{pid:>8}  {state:<5}  {kind:<8}  {samples:>9}  {exe}")?;
        }
    }
    Ok(out.flush()?)
}
