//! A profile being written: from the first event to the summary, and to the other format that was asked for.
//!
//! Whatever fails here leaves what was written so far, and says where it is.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::delay::Delay;
use crate::destination::{Destination, with_suffix};
use crate::follow::Listener;
use crate::generated_code::GeneratedCodeKeeper;
use crate::kernel_symbols::KernelSymbols;
use crate::notices::{Notices, warn};
use crate::output::{Format, Grouping};
use crate::profile_file::{End, Event, ProfileWriter, SessionInfo};
use crate::record::RecordOptions;
use crate::stats::Tally;
use crate::symbolize::SymbolSources;
use crate::tables::builder::Builder;
use crate::tables::cache::Cache;
use crate::{clock, open};

/// How soon a profile can be read while it is written.
const FLUSH_EVERY: Duration = Duration::from_millis(250);
/// How long a recording that is over waits for the unwind tables of the next one.
const TABLES_PATIENCE: Duration = Duration::from_millis(200);
/// Different notes of agents that are shown.
const NOTES_LIMIT: usize = 20;
/// Bytes of the command line kept in the profile.
const COMMAND_LIMIT: usize = 4096;

/// The profile to be, and the file made of it when another format is asked for.
pub(crate) struct Output {
    profile: Destination,
    export: Option<(Format, Destination)>,
}

impl Output {
    pub(crate) fn prepare(path: Option<&Path>) -> anyhow::Result<Self> {
        let format = path.and_then(Format::from_path);
        let Some((path, format)) = path.zip(format) else {
            return Ok(Self { profile: Destination::prepare(path)?, export: None });
        };
        let export = Destination::prepare(Some(path))?;
        match Destination::prepare(Some(&with_suffix(path, ".selfwind.data"))) {
            Ok(profile) => Ok(Self { profile, export: Some((format, export)) }),
            Err(error) => {
                export.abandon();
                Err(error.into())
            }
        }
    }

    /// Nothing will be written.
    pub(crate) fn abandon(self) {
        self.profile.abandon();
        if let Some((_, export)) = self.export {
            export.abandon();
        }
    }

    pub(crate) fn commit(self, pid: u32) -> anyhow::Result<Committed> {
        let (profile, path) = self.profile.commit(pid)?;
        let export =
            self.export.map(|(format, export)| anyhow::Ok((format, export.commit(pid)?))).transpose()?;
        Ok(Committed { profile, path, export })
    }
}

/// The files, made.
pub(crate) struct Committed {
    profile: File,
    path: PathBuf,
    export: Option<(Format, (File, PathBuf))>,
}

/// A profile being written.
pub(crate) struct Recording {
    writer: ProfileWriter<File>,
    path: PathBuf,
    export: Option<(Format, (File, PathBuf))>,
    /// Makes the tables that programs lack.
    tables: Option<Builder>,
    tally: Tally,
    notices: Notices,
    /// What agents had to say, each text once.
    notes: BTreeSet<String>,
    generated: GeneratedCodeKeeper,
    kernel_symbols: KernelSymbols,
    started_ns: u64,
    delay: Delay,
    per_thread: bool,
    open: bool,
    flushed: Instant,
}

impl Listener for Recording {
    fn event(&mut self, event: Event) -> io::Result<()> {
        let Some(event) = self.delay.filter(event) else { return Ok(()) };
        if let Event::Process(info) = &event
            && !info.note.is_empty()
            && self.notes.len() < NOTES_LIMIT
            && self.notes.insert(info.note.clone())
        {
            self.notices.say(format_args!("process {} ({}): {}", info.pid, info.exe.display(), info.note));
        }
        if let Event::Setting(setting) = &event
            && self.notes.len() < NOTES_LIMIT
            && self.notes.insert(format!("{}: {}", setting.key, setting.value))
        {
            self.notices.say(format_args!("{}: {}", setting.key, setting.value));
        }
        if let Event::Sample(sample) = &event {
            for symbol in self.kernel_symbols.news(sample) {
                self.writer.push(&Event::KernelSymbol(symbol))?;
            }
        }
        if let Some(tables) = &mut self.tables {
            tables.observe(&event);
        }
        for code in self.generated.observe(&event) {
            self.writer.push(&Event::Generated(code))?;
        }
        self.tally.add(&event);
        self.writer.push(&event)
    }

    fn pause(&mut self) -> io::Result<()> {
        if self.flushed.elapsed() >= FLUSH_EVERY {
            self.flushed = Instant::now();
            self.writer.flush()?;
        }
        Ok(())
    }

    fn save(&mut self) -> io::Result<()> {
        self.flushed = Instant::now();
        self.writer.flush()
    }
}

impl Recording {
    /// Where it is written.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Begins a profile of what happens since `since` (CLOCK_MONOTONIC), or from now on.
    pub(crate) fn begin(
        output: Committed,
        tables: Option<Cache>,
        options: &RecordOptions,
        since: Option<u64>,
    ) -> anyhow::Result<Self> {
        let now = clock::monotonic_ns();
        let started_ns = since.unwrap_or(now);
        let begins_ns = started_ns + options.delay.map_or(0, |delay| delay.as_nanos() as u64);
        let system = nix::sys::utsname::uname().context("uname failed")?;
        let mut room = COMMAND_LIMIT;
        let command = options.command.iter().map(|argument| argument.to_string_lossy().into_owned());
        let session = SessionInfo {
            version: env!("CARGO_PKG_VERSION").into(),
            host: system.nodename().to_string_lossy().into_owned(),
            kernel: system.release().to_string_lossy().into_owned(),
            started_realtime_ns: clock::realtime_ns().saturating_sub(now.saturating_sub(started_ns)),
            started_ns,
            command: command
                .take_while(|argument| {
                    let fits = argument.len() < room;
                    room = room.saturating_sub(argument.len() + 1);
                    fits
                })
                .collect(),
            frequency: options.source.frequency(options.frequency),
            source: options.source.name(),
        };
        let mut recording = Self {
            writer: ProfileWriter::new(output.profile)
                .with_context(|| format!("{}: cannot write the profile", output.path.display()))?,
            path: output.path,
            export: output.export,
            tables: tables.and_then(|cache| Builder::new(cache, options.notices)),
            tally: Tally::default(),
            notices: options.notices,
            notes: BTreeSet::new(),
            kernel_symbols: KernelSymbols::default(),
            // The duration is that of what is in the profile.
            started_ns: begins_ns,
            // A flight recorder holds samples of before, which are welcome.
            delay: Delay::until(if options.delay.is_some() { begins_ns } else { 0 }),
            per_thread: options.per_thread,
            // Not each snapshot.
            open: options.open && since.is_none(),
            generated: GeneratedCodeKeeper::default(),
            flushed: Instant::now(),
        };
        recording.event(Event::Session(session))?;
        recording.writer.flush()?;
        Ok(recording)
    }

    /// Ends the profile, makes the other format of it, and says what there is.
    pub(crate) fn end(mut self, status: Option<i32>) -> anyhow::Result<()> {
        let notices = self.notices;
        let ns = clock::monotonic_ns();
        if let Some(tables) = self.tables.take() {
            tables.finish(TABLES_PATIENCE);
        }
        self.event(Event::End(End { ns, wall_ns: ns.saturating_sub(self.started_ns), status }))?;
        let path = self.path.display();
        self.writer.flush().with_context(|| format!("{path}: cannot write the profile"))?;
        let stats = self.tally.finish(self.writer.bytes_written());
        let mut shown = None;
        let next = if let Some((format, (mut file, exported))) = self.export.take() {
            self.export_to(format, &mut file).with_context(|| {
                format!("{}: cannot write it; the profile is kept in {path}", exported.display())
            })?;
            let _ = std::fs::remove_file(&self.path);
            shown = Some(exported.clone());
            exported.display().to_string()
        } else {
            format!("{path}; next: selfwind report {path}")
        };
        if self.kernel_symbols.are_hidden() {
            notices.say(
                "functions of the kernel have no names: /proc/kallsyms hides them (run as root, or sysctl kernel.kptr_restrict=0)",
            );
        }
        notices.say(format_args!("{} -> {next}", stats.summary()));
        if let Some(text) = stats.lowered() {
            notices.say(text);
        }
        if stats.samples == 0 && stats.detail.images == 0 {
            notices.say("no process came up with the agent (is SELFWIND_ENABLE=0 set?); `selfwind record -v` tells more");
        } else if stats.samples == 0 && stats.detail.frequency == 0 {
            notices.say("the events did not happen in the processes, or could not be had");
        } else if stats.samples == 0 {
            notices.say(
                "the processes used less CPU time than one period of a sample; a higher -F catches more",
            );
        }
        if self.open && stats.samples > 0 {
            let shown = shown.map_or_else(|| self.draw(), Ok)?;
            // What was recorded is there: that it cannot be shown is no failure of the recording.
            open::open(&shown).unwrap_or_else(warn);
        }
        Ok(())
    }

    fn export_to(&self, format: Format, file: &mut File) -> anyhow::Result<()> {
        let grouping = if self.per_thread { Grouping::Thread } else { Grouping::None };
        let sources = SymbolSources { silent: self.notices == Notices::Quiet, ..SymbolSources::default() };
        crate::output::export_grouped(format, grouping, &self.path, &sources, file).map(|_| ())
    }

    /// Draws the flame graph of the profile beside it.
    fn draw(&self) -> anyhow::Result<PathBuf> {
        let drawn = self.path.with_extension("svg");
        let cannot = || format!("{}: cannot draw the flame graph", drawn.display());
        let mut file = File::create(&drawn).with_context(cannot)?;
        self.export_to(Format::Flamegraph, &mut file).with_context(cannot)?;
        self.notices.say(format_args!("flame graph in {}", drawn.display()));
        Ok(drawn)
    }
}
