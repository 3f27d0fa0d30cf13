//! `report --differences`: stacks of which the thread's own walk and the walk of the copy differ (`--unwind both`), side by
//! side.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use selfwind_profile::profile_file::{Comparison, Event, ModuleInfo, ProfileReader, Verdict, end_name};
use selfwind_profile::stats::CopyStats;
use serde::Serialize;
use unwind::{FoundBy, Frame};

use crate::terminal::screen::printable;

/// Number of differences shown by default.
const SHOWN: usize = 5;
/// Width of the left column.
const WIDTH: usize = 44;

/// A process and its modules.
#[derive(Default)]
struct Process {
    pid: u32,
    exe: String,
    /// Each with the time until which it was mapped.
    modules: Vec<(ModuleInfo, u64)>,
}

/// One difference.
#[derive(Serialize)]
struct Difference {
    pid: u32,
    exe: String,
    tid: u32,
    /// Nanoseconds after the start of the recording.
    at_ns: u64,
    /// `differs`, or `cut` if the copy did not contain the whole stack.
    verdict: &'static str,
    /// Size of the copied stack in bytes.
    copied: u64,
    own_end: &'static str,
    copy_end: &'static str,
    own: Vec<String>,
    copy: Vec<String>,
}

#[derive(Serialize)]
struct Differences {
    copy: CopyStats,
    differences: Vec<Difference>,
}

/// Writes the first `limit` differences of a profile, 0 for all; those of complete copies come before those cut off.
pub(super) fn write(
    path: &Path,
    limit: Option<usize>,
    json: bool,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let limit = limit.map_or(SHOWN, |limit| if limit == 0 { usize::MAX } else { limit });
    let differences = read(path, limit)?;
    if json {
        serde_json::to_writer_pretty(&mut *out, &differences)?;
        writeln!(out)?;
    } else {
        writeln!(out, "copy {}", differences.copy)?;
        for (number, difference) in differences.differences.iter().enumerate() {
            write_one(number + 1, difference, out)?;
        }
    }
    Ok(out.flush()?)
}

fn read(path: &Path, limit: usize) -> anyhow::Result<Differences> {
    let mut processes: BTreeMap<u32, Process> = BTreeMap::new();
    let (mut differing, mut cut) = (Vec::new(), Vec::new());
    let mut stats: Option<CopyStats> = None;
    let mut started_ns = 0;
    for event in ProfileReader::open(path)?.by_ref() {
        match event? {
            Event::Session(session) => started_ns = session.started_ns,
            Event::Process(info) => {
                let process = processes.entry(info.id).or_default();
                (process.pid, process.exe) = (info.pid, info.exe.to_string_lossy().into_owned());
            }
            Event::Module(module) => {
                processes.entry(module.process).or_default().modules.push((module, u64::MAX));
            }
            Event::ModuleGone(gone) => {
                let modules = processes.entry(gone.process).or_default().modules.iter_mut().rev();
                if let Some((_, until)) = modules.into_iter().find(|(module, _)| module.module == gone.module)
                {
                    *until = gone.ns;
                }
            }
            Event::Comparison(comparison) => {
                stats.get_or_insert_default().add(&comparison);
                let list = match comparison.verdict {
                    Verdict::Identical => continue,
                    Verdict::Cut => &mut cut,
                    Verdict::Differs => &mut differing,
                };
                if list.len() < limit {
                    list.push(comparison);
                }
            }
            _ => {}
        }
    }
    let Some(copy) = stats else {
        anyhow::bail!(
            "{}: no stack was recorded together with its copy (selfwind record --unwind both)",
            path.display()
        );
    };
    let nobody = Process::default();
    let shown = differing.iter().chain(&cut).take(limit);
    let differences = shown
        .map(|comparison| {
            let process = processes.get(&comparison.process).unwrap_or(&nobody);
            difference(comparison, process, started_ns)
        })
        .collect();
    Ok(Differences { copy, differences })
}

fn difference(comparison: &Comparison, process: &Process, started_ns: u64) -> Difference {
    let frames = |words: &[u64]| words.iter().map(|word| process.frame(*word, comparison.ns)).collect();
    Difference {
        pid: process.pid,
        exe: process.exe.clone(),
        tid: comparison.tid,
        at_ns: comparison.ns.saturating_sub(started_ns),
        verdict: if comparison.verdict == Verdict::Cut { "cut" } else { "differs" },
        copied: comparison.copied,
        own_end: end_name(comparison.own_end),
        copy_end: end_name(comparison.copy_end),
        own: frames(&comparison.own),
        copy: frames(&comparison.copy),
    }
}

impl Process {
    /// A frame as module and offset, marked if it was not found through call frame information.
    fn frame(&self, word: u64, ns: u64) -> String {
        let frame = Frame::from_bits(word);
        let address = frame.lookup_address();
        let is_there = |(module, until): &&(ModuleInfo, u64)| {
            module.start <= address && address < module.end && module.loaded_ns <= ns && ns <= *until
        };
        let location = match self.modules.iter().rev().find(is_there) {
            Some((module, _)) => {
                let name = module.path.file_name().unwrap_or(module.path.as_os_str()).to_string_lossy();
                format!("{name}+{:#x}", frame.address().wrapping_sub(module.bias))
            }
            None => format!("{:#x}", frame.address()),
        };
        let mark = match frame.found_by() {
            FoundBy::Cfi => "",
            FoundBy::FramePointer => " (fp)",
            FoundBy::Guess => " (?)",
            FoundBy::Region => " (region)",
        };
        printable(&format!("{location}{mark}")).into_owned()
    }
}

fn write_one(number: usize, difference: &Difference, out: &mut dyn Write) -> std::io::Result<()> {
    let Difference { pid, tid, exe, own, copy, .. } = difference;
    let what = if difference.verdict == "cut" { "cut off" } else { "differs" };
    writeln!(
        out,
        "\n{number}. {what}: process {pid} ({}), thread {tid}, after {:.3} s, {} bytes copied",
        printable(exe),
        difference.at_ns as f64 / 1e9,
        difference.copied
    )?;
    let heads = [("stack", difference.own_end), ("copy", difference.copy_end)]
        .map(|(name, end)| format!("{name}, end: {end}"));
    writeln!(out, "        {:WIDTH$}   {}", heads[0], heads[1])?;
    let nothing = String::new();
    for at in 0..own.len().max(copy.len()) {
        let [left, right] = [own, copy].map(|frames| frames.get(at).unwrap_or(&nothing));
        let mark = if left == right { ' ' } else { '≠' };
        writeln!(out, "  {at:>4}  {left:WIDTH$} {mark} {right}")?;
    }
    Ok(())
}
