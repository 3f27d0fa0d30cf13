//! A profile being written: from the first event to the summary, and the export to another format if requested.
//!
//! Whatever fails here, what was written so far is kept and the error says where.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use selfwind_profile::file_name::with_suffix;
use selfwind_profile::input;
use selfwind_profile::output::{Export, Format, Grouping};
use selfwind_profile::profile::{self, Resolved};
use selfwind_profile::profile_file::{End, Event, ProfileError, ProfileWriter, SampleRef, SessionInfo};
use selfwind_profile::staged_file::StagedFile;
use selfwind_profile::stats::Tally;
use selfwind_profile::symbolize::SymbolSources;

use crate::drain::listener::Listener;
use crate::drain::watch::{self, WatchEvent};
use crate::record::agent_notes::AgentNotes;
use crate::record::delay::Delay;
use crate::record::destination::Destination;
use crate::record::generated_code::GeneratedCodeKeeper;
use crate::record::interpreter::Interpreters;
use crate::record::kernel_symbols::KernelSymbols;
use crate::record::module_files::ModuleFiles;
use crate::record::new_addresses::NewAddresses;
use crate::record::numbered::Numbered;
use crate::record::options::RecordOptions;
use crate::resolve;
use crate::sampling::clock::Clock;
use crate::tables::builder::Builder;
use crate::tables::cache::Cache;
use crate::target::{clock, shortage};
use crate::terminal::notices::{Notices, warn};
use crate::terminal::open;
use crate::wall::{PYTHON_AT, Wall};

/// How often the profile is flushed, so that it can be read while it is written.
const FLUSH_EVERY: Duration = Duration::from_millis(250);
/// How long a finished recording waits for the builder of unwind tables, which are for the next recording.
const TABLES_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the look-up of names checks for signals.
const SIGNAL_CHECK_EVERY: Duration = Duration::from_millis(50);
/// A profile with fewer samples than this gets a hint.
const FEW_SAMPLES: u64 = 5;
/// Maximum size of the command line in the profile, in bytes.
const COMMAND_LIMIT: usize = 4096;

/// The profile to be written, and the file to export to if another format is requested.
pub(crate) struct Output {
    profile: Destination,
    export: Option<(Format, Destination)>,
}

impl Output {
    /// The output of a recording with these options.
    pub(super) fn of(options: &RecordOptions) -> anyhow::Result<Self> {
        let output = Self::prepare(options.output.as_deref())?;
        if options.every.is_some() && !options.snapshot && !output.profile.is_regular_file() {
            output.abandon();
            anyhow::bail!(
                "--every copies the profile as it grows, so it must be a regular file; name one with -o"
            );
        }
        Ok(output)
    }

    pub(super) fn prepare(path: Option<&Path>) -> anyhow::Result<Self> {
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

    /// Undoes `prepare`: nothing will be written.
    pub(super) fn abandon(self) {
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

/// The created files.
pub(crate) struct Committed {
    profile: File,
    path: PathBuf,
    export: Option<(Format, (File, PathBuf))>,
}

/// A profile being written.
pub(crate) struct Recording {
    writer: ProfileWriter<File>,
    path: PathBuf,
    snapshots: Numbered,
    export: Option<(Format, (File, PathBuf))>,
    /// Builds missing unwind tables.
    tables: Option<Builder>,
    tally: Tally,
    notices: Notices,
    notes: AgentNotes,
    /// A notice has said why processes are not recorded.
    missing_explained: bool,
    generated: GeneratedCodeKeeper,
    files: ModuleFiles,
    interpreters: Interpreters,
    kernel_symbols: KernelSymbols,
    new_addresses: NewAddresses,
    /// The previous sample was written, so the next one may share frames with it.
    follows: bool,
    /// Samples waiting threads.
    wall: Option<Wall>,
    started_ns: u64,
    delay: Delay,
    per_thread: bool,
    /// The user has chosen CPU timers.
    timers: bool,
    /// Why there may be no samples, if only allocations or waits for locks are recorded.
    why_empty: Option<&'static str>,
    /// Tracepoints are recorded.
    tracepoints: bool,
    open: bool,
    /// Store names at the end.
    names: bool,
    sources: SymbolSources,
    flushed: Instant,
}

impl Listener for Recording {
    fn begins_ns(&self) -> u64 {
        self.delay.until_ns()
    }

    fn event(&mut self, event: Event) -> io::Result<()> {
        let Some(mut event) = self.delay.filter(event) else { return Ok(()) };
        self.files.identify(&mut event);
        if let Some(wall) = &mut self.wall {
            wall.observe(&mut event);
        }
        match &event {
            // For the wall clock alone.
            Event::Setting(setting) if setting.key == PYTHON_AT => return Ok(()),
            Event::Process(info) => self.notes.process(info),
            Event::Setting(setting) => self.notes.setting(setting),
            _ => {}
        }
        if let Event::Sample(sample) = &mut event {
            // The next sample's shared frames are not those of this one.
            self.follows = false;
            let mut frames = std::mem::take(&mut sample.frames);
            frames.reverse();
            return self.store(SampleRef { sample, frames: &frames, shared: 0 });
        }
        if let Some(tables) = &mut self.tables {
            tables.observe(&event);
        }
        for mut found in self.generated.observe(&event) {
            self.files.identify(&mut found);
            self.interpreters.observe(&found);
            self.push(&found)?;
        }
        self.interpreters.observe(&event);
        self.tally.add(&event);
        self.push(&event)
    }

    fn sample(&mut self, sample_ref: SampleRef<'_>) -> io::Result<()> {
        if self.wall.is_some() {
            // Its stacks are decoded from other events.
            return self.event(Event::Sample(sample_ref.to_sample()));
        }
        if self.delay.drops(sample_ref.sample) {
            self.follows = false;
            return Ok(());
        }
        let shared = if std::mem::replace(&mut self.follows, true) { sample_ref.shared } else { 0 };
        self.store(SampleRef { shared, ..sample_ref })
    }

    fn tables_made(&self) -> u64 {
        self.tables.as_ref().map_or(0, Builder::made)
    }

    fn end_pass(&mut self) -> io::Result<()> {
        let seen: Vec<Event> = self.wall.iter().flat_map(Wall::take).collect();
        seen.into_iter().try_for_each(|event| self.event(event))?;
        if self.flushed.elapsed() >= FLUSH_EVERY {
            self.flushed = Instant::now();
            self.writer.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flushed = Instant::now();
        self.writer.flush()
    }

    fn snapshot(&mut self, ends: Vec<Event>) -> io::Result<()> {
        self.flush()?;
        let mut ends: Vec<Event> = ends.into_iter().filter_map(|end| self.delay.filter_end(end)).collect();
        let ns = clock::monotonic_ns();
        ends.push(Event::End(End { ns, wall_ns: ns.saturating_sub(self.started_ns), status: None }));
        // A failed snapshot does not end the recording.
        match self.snapshots.copy(&self.path, self.writer.bytes_written(), &ends) {
            Ok(path) => self.notices.detail(format_args!("snapshot in {}", path.display())),
            Err(error) => warn(format_args!("{error:#}")),
        }
        Ok(())
    }
}

impl Recording {
    /// Writes an event that is no sample.
    fn push(&mut self, event: &Event) -> io::Result<()> {
        self.new_addresses.event(event, self.writer.bytes_written());
        self.writer.push(event)
    }

    /// Writes a sample.
    fn store(&mut self, sample_ref: SampleRef<'_>) -> io::Result<()> {
        if !sample_ref.sample.kernel.is_empty() {
            for symbol in self.kernel_symbols.new_symbols(sample_ref.sample) {
                self.push(&Event::KernelSymbol(symbol))?;
            }
        }
        self.interpreters.sample(sample_ref.sample);
        self.tally.sample(sample_ref);
        let block = self.writer.bytes_written();
        let shared = self.writer.push_sample(sample_ref)?;
        self.new_addresses.sample(SampleRef { shared, ..sample_ref }, block);
        self.generated.sample(SampleRef { shared, ..sample_ref });
        Ok(())
    }

    /// The path of the profile.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Begins a profile of what happened since `since` (CLOCK_MONOTONIC, ns), or of what happens from now on.
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
            frequency: options.sampling.sources.frequency(options.sampling.frequency),
            source: options.sampling.sources.name(),
        };
        let (sampling, is_command) = (&options.sampling, !options.command.is_empty());
        // The wall clock of a process that runs already begins with the recording.
        let wall_since_ns = options.pid.map_or(0, |_| started_ns);
        let wall = sampling.sources.have_wall().then(|| Wall::start(sampling.frequency, wall_since_ns));
        let looks_up_names = options.names || output.export.is_some() || options.open;
        let mut recording = Self {
            writer: ProfileWriter::new(output.profile).map_err(|error| cannot_start(&output.path, &error))?,
            snapshots: Numbered::beside(&output.path),
            path: output.path,
            export: output.export,
            tables: tables.and_then(|cache| Builder::new(cache, options.notices)),
            tally: Tally::flat(),
            notices: options.notices,
            missing_explained: false,
            notes: AgentNotes::new(
                options.notices,
                is_command,
                is_command && sampling.sources.can_be_injected(),
            ),
            kernel_symbols: KernelSymbols::default(),
            new_addresses: NewAddresses::default(),
            follows: false,
            wall: wall.transpose().context("cannot start a thread")?,
            // The duration is that of the profile's contents.
            started_ns: begins_ns,
            // A flight recorder's older samples are wanted, except CPU time beside waits, which were not recorded then.
            delay: Delay::until(if options.delay.is_some() { begins_ns } else { 0 })
                .clocks_until(if sampling.sources.have_wall() { wall_since_ns } else { 0 }),
            per_thread: options.per_thread,
            timers: matches!(options.sampling.sources.clock, Some(Clock::Cpu | Clock::Itimer)),
            why_empty: options.sampling.sources.why_empty(),
            tracepoints: options.sampling.sources.have_tracepoints(),
            // Snapshots are not opened.
            open: options.open && since.is_none(),
            names: options.names,
            sources: SymbolSources {
                progress: options.sources.progress.filter(|_| options.notices != Notices::Quiet),
                ..options.sources.clone()
            },
            generated: GeneratedCodeKeeper::default(),
            files: ModuleFiles::new(looks_up_names),
            interpreters: Interpreters::default(),
            flushed: Instant::now(),
        };
        resolve::hold(recording.writer.sink());
        let begun = recording.event(Event::Session(session)).and_then(|()| recording.writer.flush());
        begun.map_err(|error| cannot_start(&recording.path, &error))?;
        Ok(recording)
    }

    /// Notes that a notice has said why processes are not recorded.
    pub(super) fn missing_processes_are_explained(&mut self) {
        self.missing_explained = true;
    }

    /// Ends the profile, stores its names, exports it, and prints the summary. `used_ns` is the CPU time of the command, if known.
    /// A signal in `events` ends the look-up of names; once the profile is complete, signals kill the recorder again.
    pub(crate) fn end(
        mut self,
        status: Option<i32>,
        used_ns: Option<u64>,
        events: Option<&Receiver<WatchEvent>>,
    ) -> anyhow::Result<()> {
        let notices = self.notices;
        let ns = clock::monotonic_ns();
        let seen = self.wall.as_mut().map(Wall::finish).unwrap_or_default();
        let end = Event::End(End { ns, wall_ns: ns.saturating_sub(self.started_ns), status });
        let reported = seen.into_iter().chain([end]).try_for_each(|event| self.event(event));
        let ended = reported.and_then(|()| self.writer.flush());
        ended.map_err(|error| cannot_continue(&self.path, &error))?;
        let path = self.path.display().to_string();
        self.sources.copies = self.files.copies();
        // An export finds the names itself, and its profile is removed.
        if self.names && self.export.is_none() {
            self.store_names(events);
        }
        if events.is_some() {
            // The profile is complete: Ctrl-C may end the export.
            watch::unblock_signals();
        }
        // The names took time as well.
        if let Some(tables) = self.tables.take() {
            tables.finish(TABLES_TIMEOUT);
        }
        self.notes.end();
        let stats = self.tally.finish(self.writer.bytes_written());
        let mut shown = None;
        let next = if let Some((format, (mut file, exported))) = self.export.take() {
            if let Err(error) = self.export_to(format, &mut file) {
                // An incomplete file could be mistaken for a complete one.
                if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
                    let _ = std::fs::remove_file(&exported);
                }
                let kept =
                    format!("{}: cannot write the output; the profile is kept in {path}", exported.display());
                return Err(error.context(kept));
            }
            let _ = std::fs::remove_file(&self.path);
            shown = Some(exported.clone());
            match format.shown_by() {
                Some(command) => format!("{0}; next: {command} {0}", exported.display()),
                None => exported.display().to_string(),
            }
        } else {
            format!("{path}; next: selfwind report {path}")
        };
        if let Some(text) = self.kernel_symbols.missing_names() {
            notices.say(text);
        }
        notices.say(format_args!("{} -> {next}", stats.summary()));
        if let Some(text) = self.snapshots.summary() {
            notices.say(text);
        }
        if let Some(text) = stats.lowered() {
            notices.say(text);
        }
        if let Some(rate) = stats.coarse() {
            // Otherwise there is a note why, or the agent was injected, which has timers only.
            let is_choice = self.timers && status.is_some();
            let advice = if is_choice { "; `-e perf` reaches the full rate" } else { "" };
            notices.say(format_args!(
                "{rate}; each sample stands for all periods since the previous one{advice}"
            ));
        }
        let is_clocked = stats.detail.frequency != 0 && !(self.why_empty.is_some() || self.wall.is_some());
        let uncovered =
            used_ns.filter(|_| is_clocked || stats.detail.cpu_ns > 0).and_then(|ns| stats.uncovered(ns));
        if let Some(text) = &uncovered {
            notices.say(text);
        }
        if status.is_some()
            && let Some(text) = stats.outlived()
        {
            notices.say(text);
        }
        if stats.samples == 0 && stats.detail.images == 0 && self.missing_explained {
            // Another cause would contradict the notice.
        } else if stats.samples == 0 && stats.detail.images == 0 {
            notices.say("the agent started in no process (is SELFWIND_ENABLE=0 set?); `selfwind record -v` shows more");
        } else if stats.samples == 0 && self.delay.until_ns() > clock::monotonic_ns() {
            notices.say("the recording ended before the delay (`--delay`) was over");
        } else if stats.samples == 0
            && let Some(why) = self.why_empty
        {
            notices.say(why);
        } else if stats.samples == 0 && stats.detail.frequency == 0 {
            notices.say(match self.tracepoints {
                true => "no such tracepoint ran in these processes: tracepoints are those of the header selfwind.h, as the program names them",
                false => "the events did not occur in these processes, or could not be counted",
            });
        } else if stats.samples < FEW_SAMPLES
            && is_clocked
            && uncovered.is_none()
            && !self.notes.explain_missing_samples()
        {
            notices.say(
                "too little CPU time for a profile; use a higher -F for a short program, -e wall for one that waits",
            );
        }
        if let Some(advice) = self.interpreters.advice() {
            notices.say(advice);
        }
        if self.open && stats.samples > 0 {
            let shown = shown.map_or_else(|| self.draw(), Ok)?;
            // The recording itself succeeded: failing to open the result is only a warning.
            open::open(&shown).unwrap_or_else(warn);
        }
        Ok(())
    }

    /// Adds the names to the profile. On failure, only the names are missing.
    fn store_names(&mut self, events: Option<&Receiver<WatchEvent>>) {
        let path = self.path.display().to_string();
        if !std::fs::metadata(&self.path).is_ok_and(|metadata| metadata.is_file()) {
            return self
                .notices
                .detail(format_args!("cannot read {path} back, so no names are stored in it"));
        }
        let later = format!("`selfwind resolve {path}` adds them");
        let before = self.writer.bytes_written();
        let stored = match self.find_names(events) {
            Some(found) => found.map_err(anyhow::Error::from).and_then(|resolved| {
                resolve::append(&mut self.writer, &resolved)?;
                Ok(resolved)
            }),
            None => return self.notices.say(format_args!("interrupted: the profile has no names; {later}")),
        };
        match stored {
            Ok(resolved) => self.notices.detail(format_args!(
                "names of {} addresses: {} bytes",
                resolved.addresses,
                resolved.section.len()
            )),
            Err(error) => {
                let cut = File::options().write(true).open(&self.path).and_then(|file| file.set_len(before));
                warn(format_args!("the profile has no names: {error:#}; {later}"));
                cut.unwrap_or_else(warn);
            }
        }
    }

    /// Finds the names in a separate thread, which is abandoned if a signal arrives.
    fn find_names(
        &mut self,
        events: Option<&Receiver<WatchEvent>>,
    ) -> Option<Result<Resolved, ProfileError>> {
        let (path, sources) = (self.path.clone(), self.sources.clone());
        let addresses = self.new_addresses.take();
        let find = move || match &addresses {
            Some((addresses, skipped)) => {
                profile::resolve_addresses(&path, &sources, addresses, skipped.clone())
            }
            None => profile::resolve(&path, &sources),
        };
        let (found, names) = channel();
        let find = Arc::new(find);
        let in_thread = Arc::clone(&find);
        let send = move || drop(found.send(in_thread()));
        if std::thread::Builder::new().name("selfwind-names".into()).spawn(send).is_err() {
            return Some(find());
        }
        // Earlier signals were meant for the recording.
        events.into_iter().for_each(|events| events.try_iter().for_each(drop));
        loop {
            match names.recv_timeout(SIGNAL_CHECK_EVERY) {
                Ok(found) => return Some(found),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let mut signals = events.into_iter().flat_map(|events| events.try_iter());
            if signals.any(|event| matches!(event, WatchEvent::Signal { .. })) {
                return None;
            }
        }
    }

    fn export_to(&self, format: Format, file: &mut dyn Write) -> anyhow::Result<()> {
        let grouping = if self.per_thread { Grouping::Thread } else { Grouping::None };
        let export = Export::read(format, &self.path, &self.sources)?;
        if let Some(remark) = &export.incomplete {
            warn(format_args!("{}: {remark}", input::name(&self.path)));
        }
        export.write(grouping, file).map(|_| ())
    }

    /// Draws the flame graph next to the profile.
    fn draw(&self) -> anyhow::Result<PathBuf> {
        let drawn = self.path.with_extension("svg");
        let cannot = || format!("{}: cannot draw the flame graph", drawn.display());
        let mut file = StagedFile::create(&drawn).with_context(cannot)?;
        self.export_to(Format::Flamegraph, &mut file).with_context(cannot)?;
        file.commit().with_context(cannot)?;
        self.notices.say(format_args!("flame graph in {}", drawn.display()));
        Ok(drawn)
    }
}

/// The error when the profile cannot even be started.
fn cannot_start(path: &Path, error: &io::Error) -> anyhow::Error {
    anyhow::anyhow!("{}: cannot write the profile: {}", path.display(), shortage::explain(error))
}

/// The error when the profile cannot be continued.
pub(super) fn cannot_continue(path: &Path, error: &io::Error) -> anyhow::Error {
    let (path, why) = (path.display(), shortage::explain(error));
    anyhow::anyhow!(
        "{path}: cannot write the profile: {why}; everything written before is intact: selfwind report {path}"
    )
}
