//! Other programs' formats: one file per format.
//!
//! Every format is written from the same buckets, so the total of each equals the profile's weight, and
//! in a fixed order, so that equal profiles give equal bytes.

mod firefox;
mod flamegraph;
mod folded;
pub mod jsonl;
mod parquet;
mod perf_data;
mod pprof;
mod sampled_thread;
mod speedscope;
mod strings;
mod title;

use std::fs;
use std::io::{BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::str::FromStr;

use anyhow::Context;

use crate::profile::{self, Profile, Totals};
use crate::profile_file::ProfileError;
use crate::staged_file::StagedFile;
use crate::symbolize::SymbolSources;

/// Bytes written at once.
const BUFFER: usize = 256 * 1024;

/// A format a profile can be written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One line per stack, `root;...;leaf COUNT`, as flame graph tools read it.
    Folded,
    /// A flame graph as SVG.
    Flamegraph,
    /// One JSON object per stack and line.
    Jsonl,
    /// pprof's gzipped protocol buffer.
    Pprof,
    /// The JSON that the Firefox Profiler keeps its profiles in.
    Firefox,
    /// speedscope's JSON.
    Speedscope,
    /// perf's own file.
    Perf,
    /// Apache Parquet, one row per function of a stack.
    Parquet,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 8] = [
        Format::Folded,
        Format::Flamegraph,
        Format::Jsonl,
        Format::Pprof,
        Format::Firefox,
        Format::Speedscope,
        Format::Perf,
        Format::Parquet,
    ];

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Format::Folded => "folded",
            Format::Flamegraph => "flamegraph",
            Format::Jsonl => "jsonl",
            Format::Pprof => "pprof",
            Format::Firefox => "firefox",
            Format::Speedscope => "speedscope",
            Format::Perf => "perf",
            Format::Parquet => "parquet",
        }
    }

    /// True if a terminal cannot show it.
    pub fn is_binary(self) -> bool {
        matches!(self, Format::Pprof | Format::Perf | Format::Parquet)
    }

    /// The extension that asks for it.
    pub fn extension(self) -> &'static str {
        match self {
            Format::Folded => "folded",
            Format::Flamegraph => "svg",
            Format::Jsonl => "jsonl",
            Format::Pprof => "pb.gz",
            Format::Firefox => "json",
            Format::Speedscope => "speedscope.json",
            Format::Perf => "perf.data",
            Format::Parquet => "parquet",
        }
    }

    /// The command that shows a file in this format, where that is another program's and reads nothing else.
    pub fn shown_by(self) -> Option<&'static str> {
        match self {
            Format::Perf => Some("perf report -i"),
            Format::Pprof => Some("go tool pprof -top"),
            _ => None,
        }
    }

    /// The format that a file name asks for by its extension; none if it asks for no known one.
    pub fn from_path(path: &Path) -> Option<Format> {
        let name = path.file_name()?.to_str()?;
        if name.ends_with(".speedscope.json") {
            return Some(Format::Speedscope);
        }
        if name.ends_with(".pb.gz") {
            return Some(Format::Pprof);
        }
        if name == "perf.data" || name.ends_with(".perf.data") {
            return Some(Format::Perf);
        }
        match path.extension()?.to_str()? {
            "parquet" => Some(Format::Parquet),
            "folded" | "collapsed" => Some(Format::Folded),
            "svg" => Some(Format::Flamegraph),
            "jsonl" | "ndjson" => Some(Format::Jsonl),
            "pprof" => Some(Format::Pprof),
            "json" => Some(Format::Firefox),
            _ => None,
        }
    }
}

/// A profile, read as far as a format needs it.
pub struct Export {
    format: Format,
    content: Content,
    /// Why the profile is not whole, if it is not.
    pub incomplete: Option<String>,
}

enum Content {
    Named(Box<Profile>),
    /// perf looks up names itself.
    Recorded(Box<perf_data::Recording>),
}

impl Export {
    /// Reads the profile file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(format: Format, profile: &Path, sources: &SymbolSources) -> Result<Self, ProfileError> {
        let (content, incomplete) = if format == Format::Perf {
            let mut recording = perf_data::Recording::open(profile)?;
            let incomplete = recording.incomplete.take();
            (Content::Recorded(Box::new(recording)), incomplete)
        } else {
            let load = if format == Format::Firefox { profile::load_timed } else { profile::load };
            let mut named = load(profile, sources)?;
            let incomplete = named.incomplete.take();
            (Content::Named(Box::new(named)), incomplete)
        };
        Ok(Self { format, content, incomplete })
    }

    /// The profile, if it is made of one with names.
    pub fn profile_mut(&mut self) -> Option<&mut Profile> {
        match &mut self.content {
            Content::Named(profile) => Some(profile),
            Content::Recorded(_) => None,
        }
    }

    /// Writes it; says what it adds up to.
    ///
    /// # Errors
    /// When `out` cannot be written.
    pub fn write(&self, grouping: Grouping, out: &mut dyn Write) -> anyhow::Result<Totals> {
        let mut out = BufWriter::with_capacity(BUFFER, out);
        let totals = match &self.content {
            Content::Recorded(recording) => {
                recording.write(&mut out)?;
                recording.totals()
            }
            Content::Named(profile) => {
                write(self.format, grouping, profile, &mut out)?;
                profile.totals
            }
        };
        out.flush()?;
        Ok(totals)
    }

    /// Writes it to the file `out`, which is there whole or as it was before.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_file(&self, grouping: Grouping, out: &Path) -> anyhow::Result<Totals> {
        let cannot = || format!("{}: cannot write the output; choose another file with -o", out.display());
        let mut file = StagedFile::create(out).with_context(cannot)?;
        let totals = self.write(grouping, &mut file).with_context(cannot)?;
        file.commit().with_context(cannot)?;
        Ok(totals)
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Format::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| {
            let names = Format::ALL.map(Format::name).join(", ");
            format!("unknown format `{name}`; use one of {names}")
        })
    }
}

/// What stands before the root of each stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Grouping {
    /// Nothing: equal stacks of all threads are one.
    #[default]
    None,
    /// The process, `NAME-PID`.
    Process,
    /// The thread, `NAME-PID/TID`.
    Thread,
}

/// Reads a profile file and writes it in another format, without grouping.
///
/// # Errors
/// When the profile cannot be read or `out` cannot be written.
pub fn export(format: Format, profile: &Path, out: &mut dyn Write) -> anyhow::Result<Totals> {
    export_grouped(format, Grouping::None, profile, &SymbolSources::default(), out)
}

/// Reads a profile file and writes it in another format.
///
/// # Errors
/// When the profile cannot be read or `out` cannot be written.
pub fn export_grouped(
    format: Format,
    grouping: Grouping,
    profile: &Path,
    sources: &SymbolSources,
    out: &mut dyn Write,
) -> anyhow::Result<Totals> {
    Export::read(format, profile, sources)?.write(grouping, out)
}

/// Refuses an output that would replace the profile it is made of.
///
/// # Errors
/// When both are one file.
pub fn refuse_own(profile: &Path, out: &Path) -> anyhow::Result<()> {
    let identity = |path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    if identity(out).is_some_and(|out| identity(profile) == Some(out)) {
        anyhow::bail!(
            "{}: the output would overwrite the profile itself; choose another file with -o",
            out.display()
        );
    }
    Ok(())
}

/// Writes a named profile in a format.
fn write(format: Format, grouping: Grouping, profile: &Profile, out: &mut dyn Write) -> anyhow::Result<()> {
    match format {
        Format::Folded => folded::write(profile, grouping, out)?,
        Format::Flamegraph => flamegraph::write(profile, grouping, out)?,
        Format::Jsonl => jsonl::write(profile, out)?,
        Format::Pprof => pprof::write(profile, out)?,
        Format::Firefox => firefox::write(profile, out)?,
        Format::Speedscope => speedscope::write(profile, out)?,
        Format::Parquet => parquet::write(profile, out)?,
        Format::Perf => anyhow::bail!("perf's file is made from a recording, not from names"),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
