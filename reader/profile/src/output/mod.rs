//! Export formats: one file per format.
//!
//! Every format is written from the same buckets, so its total equals the profile's weight for each event, and in a fixed order, so
//! that equal profiles give equal bytes. A format with one number per stack contains a single event.

mod description;
mod firefox;
mod flamegraph;
mod folded;
mod grouping;
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

use self::description::{Description, Writer};
pub use self::grouping::Grouping;
use crate::events::NoSuchEvent;
use crate::profile::{self, Profile, Totals};
use crate::profile_file::ProfileError;
use crate::staged_file::StagedFile;
use crate::symbolize::SymbolSources;
use crate::tracepoint::Wanted;

/// Size of the output buffer in bytes.
const BUFFER: usize = 256 * 1024;

/// The formats: one line each, with the module that defines its `DESCRIPTION`.
macro_rules! formats {
    ($($format:ident = $module:ident,)*) => {
        /// A format a profile can be written in.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Format {
            $(#[doc = concat!("See `", stringify!($module), ".rs`.")] $format,)*
        }

        impl Format {
            /// All formats.
            pub const ALL: [Format; [$(Format::$format),*].len()] = [$(Format::$format),*];

            fn description(self) -> &'static Description {
                match self {
                    $(Format::$format => &$module::DESCRIPTION,)*
                }
            }
        }
    };
}

formats! {
    Folded = folded,
    Flamegraph = flamegraph,
    Jsonl = jsonl,
    Pprof = pprof,
    Firefox = firefox,
    Speedscope = speedscope,
    Perf = perf_data,
    Parquet = parquet,
}

impl Format {
    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        self.description().name
    }

    /// The names of all formats, listed as in a sentence.
    pub fn names() -> String {
        Self::ALL.map(Format::name).join(", ")
    }

    /// True if it is binary.
    pub fn is_binary(self) -> bool {
        self.description().is_binary
    }

    /// True if it has one number per stack.
    fn has_one_event(self) -> bool {
        matches!(self, Format::Folded | Format::Flamegraph)
    }

    /// The extension that selects it.
    pub fn extension(self) -> &'static str {
        self.description().extensions[0]
    }

    /// The command that shows a file in this format, if that takes another program.
    pub fn shown_by(self) -> Option<&'static str> {
        self.description().shown_by
    }

    /// The format that a file name selects by its extension; `None` if the extension is unknown. The longest matching
    /// extension wins.
    pub fn from_path(path: &Path) -> Option<Format> {
        let name = path.file_name()?.to_string_lossy();
        let length = |format: &Format| format.description().matched(&name);
        Self::ALL.into_iter().filter(|format| length(format) > 0).max_by_key(length)
    }
}

/// A profile, read as far as a format requires.
pub struct Export {
    format: Format,
    content: Content,
    /// Why the profile is incomplete, if it is.
    pub incomplete: Option<String>,
}

enum Content {
    Named(Box<Profile>),
    /// perf looks up names itself.
    Raw(Box<perf_data::RawProfile>),
}

impl Export {
    /// Reads the profile file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(format: Format, profile: &Path, sources: &SymbolSources) -> Result<Self, ProfileError> {
        let load = |wanted| profile::load_wanted(profile, sources, wanted);
        let mut named = match format.description().writer {
            Writer::Named(_) => load(Wanted::Nothing)?,
            Writer::Detailed(_) => load(Wanted::Everything)?,
            Writer::Timed(_) => profile::load_timed(profile, sources)?,
            Writer::Recorded => {
                let mut raw = perf_data::RawProfile::open(profile)?;
                let incomplete = raw.incomplete.take();
                return Ok(Self { format, content: Content::Raw(Box::new(raw)), incomplete });
            }
        };
        let incomplete = named.incomplete.take();
        Ok(Self { format, content: Content::Named(Box::new(named)), incomplete })
    }

    /// Writes this event only; in pprof's format it becomes the default one.
    ///
    /// # Errors
    /// If the profile has no such event.
    pub fn choose(&mut self, event: &str) -> Result<(), NoSuchEvent> {
        match &mut self.content {
            Content::Named(profile) => {
                let index = profile.event(event)?;
                match self.format {
                    Format::Pprof => profile.prefer(index),
                    _ => profile.choose(index),
                }
            }
            Content::Raw(raw) => raw.choose(event)?,
        }
        Ok(())
    }

    /// The events omitted because the format has only one and none was selected.
    pub fn left_out(&self) -> Vec<String> {
        match &self.content {
            Content::Named(profile) if self.format.has_one_event() && profile.measures.len() > 1 => {
                let measures = profile.measures.iter().enumerate();
                let others = measures.filter(|(index, _)| *index != usize::from(profile.main));
                others.map(|(_, measure)| measure.name.to_string()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Writes it, and returns its totals.
    ///
    /// # Errors
    /// When `out` cannot be written.
    pub fn write(&self, grouping: Grouping, out: &mut dyn Write) -> anyhow::Result<Totals> {
        let mut out = BufWriter::with_capacity(BUFFER, out);
        let totals = match &self.content {
            Content::Raw(raw) => {
                raw.write(&mut out)?;
                raw.totals()
            }
            Content::Named(profile) => {
                write(self.format, grouping, profile, &mut out)?;
                profile.totals
            }
        };
        out.flush()?;
        Ok(totals)
    }

    /// Writes it to the file `out` atomically.
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
        let found = Format::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| format!("unknown format `{name}`; use one of {}", Format::names()))
    }
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

/// Fails if the output would overwrite the profile itself.
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
    match format.description().writer {
        Writer::Named(write) | Writer::Detailed(write) | Writer::Timed(write) => {
            Ok(write(profile, grouping, out)?)
        }
        Writer::Recorded => {
            anyhow::bail!("{} is written from a recording, not from a profile with names", format.name())
        }
    }
}

#[cfg(test)]
mod tests;
