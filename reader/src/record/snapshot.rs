//! Snapshots: writes what flight recorders hold, without consuming it.
//!
//! A pool in overwrite mode keeps the latest samples. A snapshot copies the records that are complete and not overwritten
//! while it reads, and changes nothing: the next snapshot contains them too if they are still there. Modules and threads are
//! never overwritten, so old samples keep their names.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::drain::collector::{Collector, Scope};
use crate::record::attachment::as_sampled;
use crate::record::numbered::Numbered;
use crate::record::options::RecordOptions;
use crate::record::recording::{Output, Recording};
use crate::target::inject;
use crate::target::session::Session;
use crate::terminal::notices::warn;

/// Writes what the pool of a process holds now.
pub(crate) fn save_process(options: &RecordOptions, pid: u32) -> anyhow::Result<u8> {
    if options.duration.is_some() {
        anyhow::bail!(
            "--snapshot -p writes what is there immediately; leave out -d, or leave out --snapshot to keep recording"
        );
    }
    if options.every.is_some() {
        anyhow::bail!(
            "--snapshot -p writes one snapshot immediately; leave out --snapshot to take one --every so often"
        );
    }
    let directories = crate::target::session::directories();
    let mut collector = Collector::new(directories, Scope::Process(pid), options.notices).peeking();
    let since = collector.find_process(pid)?;
    let options = &as_sampled(options, pid, inject::found(pid));
    let output = Output::prepare(options.output.as_deref())?;
    write(collector, output, options, pid, since)?;
    Ok(0)
}

fn write(
    mut collector: Collector,
    output: Output,
    options: &RecordOptions,
    pid: u32,
    since: u64,
) -> anyhow::Result<()> {
    let mut recording = Recording::begin(output.commit(pid)?, None, options, Some(since))?;
    collector.finish(&mut recording).context("the rest of the profile could not be written")?;
    recording.end(None, None, None)
}

/// Takes the snapshots of a running command.
pub(crate) struct Snapshots<'a> {
    options: &'a RecordOptions,
    directories: Vec<PathBuf>,
    names: Numbered,
    since: u64,
}

impl<'a> Snapshots<'a> {
    /// Without any snapshot yet.
    pub(crate) fn new(options: &'a RecordOptions, session: &Session, path: &Path) -> Self {
        let directories = session.directories();
        Self {
            options,
            directories,
            names: Numbered::beside(path),
            since: crate::target::clock::monotonic_ns(),
        }
    }

    /// Writes a snapshot next to the profile. A failure is only a warning.
    pub(crate) fn take(&mut self) {
        let path = self.names.next();
        let collector =
            Collector::new(self.directories.clone(), Scope::Everything, self.options.notices).peeking();
        let written = Output::prepare(Some(&path))
            .and_then(|output| write(collector, output, self.options, std::process::id(), self.since));
        if let Err(error) = written {
            warn(format_args!("snapshot {}: {error:#}", path.display()));
        }
    }
}
