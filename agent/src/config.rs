//! What the environment asks of the agent.
//!
//! A bad value never breaks the target: the default is used, and the bad setting is noted for the reader.

use alloc::vec::Vec;

use core::ffi::CStr;

use handler::clock::SECOND_NS;
use handler::decimal::number;
use handler::rate_limit::RateLimit;
use handler::recording::{Clock, Probe, Sources};
use handler::slot::MAX_FRAMES;
use handler::unwinding::Unwind;
use shm_format::{COPY_MOST, Mode};

use crate::events::Events;
use crate::tracepoints::Patterns;

/// Samples per second of CPU time unless asked otherwise: not in step with anything that runs at round rates.
const DEFAULT_FREQUENCY: u64 = 199;
const MAX_FREQUENCY: u64 = 100_000;
/// Hundredths of a percent of the CPU time that handlers may take.
const DEFAULT_OVERHEAD: u64 = 200;
const DEFAULT_FRAMES: usize = 512;
const DEFAULT_COPY: u64 = 32 << 10;
/// Less of a stack is not worth copying.
const LEAST_COPY: u64 = 1 << 10;
const MIN_POOL: usize = 64 * 1024;
/// What a region starts with when a reader empties it all the time, and when it keeps history by itself.
const DRAINED_POOL: usize = 256 * 1024;
/// The former where timers are slow: its memory takes time when a process starts.
const SLOW_POOL: usize = 128 * 1024;
/// Samples per second of a slow timer.
const SLOW: u64 = 250;
const HISTORY_POOL: usize = 1 << 20;
/// The same for events without a rate, which may come at each system call: a busy machine keeps a reader from its
/// processor for some ten milliseconds.
const EVENT_POOL: usize = 1 << 20;
const MAX_POOL: usize = 1 << 30;
/// So many times as much for copies of stacks.
const COPIES_POOL: usize = 4;
/// What valgrind preloads has this in its path.
const VALGRIND: &[u8] = b"/vgpreload_";

/// The settings of one process.
pub(crate) struct Config {
    /// SELFWIND_ENABLE: false makes the agent inert.
    pub(crate) enabled: bool,
    /// SELFWIND_DIR: the session directory, or none for a flight recorder.
    pub(crate) directory: Option<Vec<u8>>,
    /// SELFWIND_OTHERS: where processes of other users than the recorder's leave their regions.
    pub(crate) others: Option<Vec<u8>>,
    /// SELFWIND_FREQ, in samples per second of CPU time.
    pub(crate) frequency: u64,
    /// SELFWIND_EVENT.
    pub(crate) sources: Sources,
    /// What is recorded beside a clock, as SELFWIND_EVENT has it, without what this library does not know.
    pub(crate) probes: Vec<u8>,
    /// The clock is to be the best that this process may have.
    pub(crate) is_automatic: bool,
    /// The process runs under valgrind, to judge by what else is preloaded.
    pub(crate) is_emulated: bool,
    /// SELFWIND_PERF: the events of the source `perf`, or its clock.
    pub(crate) events: Events,
    /// Bytes between sampled allocations on average, 1 for all, where SELFWIND_EVENT asks for allocations; else 0.
    pub(crate) allocations: u64,
    /// The tracepoints of the program's that SELFWIND_EVENT asks for.
    pub(crate) tracepoints: Patterns,
    /// Nanoseconds of waiting for locks between samples on average, 1 for all waits, where SELFWIND_EVENT asks for them; else 0.
    pub(crate) waits: u64,
    /// SELFWIND_DEFER: have the kernel walk, where it can, what no stack of ours answers.
    pub(crate) deferred: bool,
    /// SELFWIND_NATIVE_ONLY: leave out the frames of interpreters.
    pub(crate) native_only: bool,
    /// SELFWIND_MODE.
    pub(crate) mode: Mode,
    /// SELFWIND_MAX_STACK.
    pub(crate) max_frames: usize,
    /// SELFWIND_UNWIND.
    pub(crate) unwind: Unwind,
    /// SELFWIND_COPY_LIMIT: bytes of a stack that are copied at most.
    pub(crate) copy_limit: u64,
    /// SELFWIND_MAX_OVERHEAD, in hundredths of a percent.
    pub(crate) max_overhead: u64,
    /// SELFWIND_POOL: bytes of chunks backed at the start.
    pub(crate) pool: usize,
    /// SELFWIND_TABLES: the directory of table files, by default the one in the user's cache; none for no tables.
    pub(crate) tables: Option<Vec<u8>>,
    /// SELFWIND_SESSION: the nonce of the session.
    pub(crate) session: u64,
    /// SELFWIND_VERBOSE: say on standard error why the agent stays inert.
    pub(crate) verbose: bool,
    /// XDG_RUNTIME_DIR, the first choice for a flight recorder.
    pub(crate) runtime_directory: Option<Vec<u8>>,
    /// SELFWIND_RECORDER: the recorder that ends the sampling of an attached process with itself.
    pub(crate) recorder: Vec<u8>,
    /// SELFWIND_REGION: process id and nonce of a region whose file the recorder hands over.
    pub(crate) handed: Option<(u32, u64)>,
    /// What was wrong with the settings, for the reader.
    pub(crate) note: Vec<u8>,
}

impl Config {
    /// The settings in `environment`.
    pub(crate) fn read(environment: impl Iterator<Item = &'static CStr>) -> Config {
        let mut config = Config {
            enabled: true,
            directory: None,
            others: None,
            frequency: DEFAULT_FREQUENCY,
            sources: Sources::of_clock(Some(Clock::Perf)),
            probes: Vec::new(),
            is_automatic: true,
            is_emulated: false,
            events: Events::default(),
            allocations: 0,
            tracepoints: Patterns::default(),
            waits: 0,
            deferred: false,
            native_only: false,
            mode: Mode::Overwrite,
            max_frames: DEFAULT_FRAMES,
            unwind: Unwind::Own,
            copy_limit: DEFAULT_COPY,
            max_overhead: DEFAULT_OVERHEAD,
            pool: 0,
            tables: None,
            session: 0,
            verbose: false,
            runtime_directory: None,
            recorder: Vec::new(),
            handed: None,
            note: Vec::new(),
        };
        let (mut mode, mut cache, mut home) = (None, None, None);
        let (mut tables, mut events, mut named) = (None, None, None);
        for entry in environment {
            let entry = entry.to_bytes();
            let Some(equals) = entry.iter().position(|byte| *byte == b'=') else { continue };
            let (name, value) = (&entry[..equals], &entry[equals + 1..]);
            if name == b"XDG_RUNTIME_DIR" {
                config.runtime_directory = directory(value);
            } else if name == b"XDG_CACHE_HOME" {
                cache = directory(value);
            } else if name == b"HOME" {
                home = directory(value);
            } else if name == b"LD_PRELOAD" {
                config.is_emulated = value.windows(VALGRIND.len()).any(|part| part == VALGRIND);
            } else if name == b"SELFWIND_EVENT" {
                named = Some((entry, value));
            } else if name == b"SELFWIND_TABLES" && !value.is_empty() {
                tables = Some(value);
            } else if let Some(name) = name.strip_prefix(b"SELFWIND_")
                && config.set(name, value, &mut mode, &mut events).is_none()
            {
                config.complain(entry);
            }
        }
        config.choose_events(named, &mut events);
        config.tables = match tables {
            None => cache.or_else(|| Some([&home?, &b"/.cache"[..]].concat())),
            Some(value) => {
                if flag(value) != Some(false) && directory(value).is_none() {
                    config.complain(&[b"SELFWIND_TABLES=", value].concat());
                }
                directory(value)
            }
        };
        if let (None, Some(cache)) = (tables, &mut config.tables) {
            cache.extend_from_slice(b"/selfwind/tables");
        }
        let by_hand = if config.directory.is_some() { Mode::Discard } else { Mode::Overwrite };
        config.mode = mode.unwrap_or(by_hand);
        config.events = events.unwrap_or_else(|| Events::task_clock(config.period_ns()));
        if config.pool == 0 {
            config.pool = match config.mode {
                // Events come at any rate.
                _ if !config.tracepoints.is_empty() => HISTORY_POOL,
                Mode::Discard if config.sources.clock != Some(Clock::Perf) && config.frequency <= SLOW => {
                    SLOW_POOL
                }
                Mode::Discard if config.sources.clock == Some(Clock::Perf) && !config.events.are_time() => {
                    EVENT_POOL
                }
                Mode::Discard => DRAINED_POOL,
                Mode::Overwrite => HISTORY_POOL,
            };
            if config.unwind.copies() {
                config.pool *= COPIES_POOL;
            }
        }
        config
    }

    /// The same for a process that runs already: its execs will not be seen, so it has no events of the kernel by default.
    pub(crate) fn attached(self) -> Config {
        let clock = if self.is_automatic { Some(Clock::ThreadTimer) } else { self.sources.clock };
        Config { sources: self.sources.clocked_by(clock), is_automatic: false, ..self }
    }

    /// True if a sample weighs and holds the same with these settings.
    pub(crate) fn takes_same_samples(&self, other: &Config) -> bool {
        let of = |config: &Config| (config.frequency, config.unwind, config.copy_limit);
        of(self) == of(other)
    }

    /// Applies one setting; none if its value is bad.
    fn set(
        &mut self,
        name: &[u8],
        value: &[u8],
        mode: &mut Option<Mode>,
        events: &mut Option<Events>,
    ) -> Option<()> {
        match name {
            b"NATIVE_ONLY" => self.native_only = flag(value)?,
            b"DEFER" => self.deferred = flag(value)?,
            b"ENABLE" => self.enabled = flag(value)?,
            b"VERBOSE" => self.verbose = flag(value)?,
            b"DIR" => self.directory = Some(directory(value)?),
            b"OTHERS" => self.others = Some(directory(value)?),
            b"FREQ" => self.frequency = number(value).filter(|hz| (1..=MAX_FREQUENCY).contains(hz))?,
            b"PERF" => *events = Some(Events::parse(value)?),
            b"MODE" => *mode = Some(mode_of(value)?),
            b"MAX_STACK" => {
                self.max_frames = frames(value)?;
            }
            b"UNWIND" => self.unwind = Unwind::from_name(value)?,
            b"COPY_LIMIT" => {
                self.copy_limit = size(value).filter(|bytes| (LEAST_COPY..=COPY_MOST).contains(bytes))?;
            }
            b"MAX_OVERHEAD" => self.max_overhead = percent(value)?,
            b"POOL" => self.pool = pool(value)?,
            b"RECORDER" => self.recorder = value.to_vec(),
            b"REGION" => self.handed = Some(handed(value)?),
            b"SESSION" => self.session = hexadecimal(value)?,
            // Names of the recorder's own, or of a later version.
            _ => {}
        }
        Some(())
    }

    /// Applies SELFWIND_EVENT, the whole entry and its value, a list. Events by name need their numbers, which a recorder
    /// finds out (SELFWIND_PERF); without them a clock takes their place.
    fn choose_events(&mut self, named: Option<(&[u8], &[u8])>, events: &mut Option<Events>) {
        let Some((entry, value)) = named else { return };
        let (mut sources, mut automatic, mut is_list, mut is_wrong) =
            (Sources::default(), false, false, false);
        for word in value.split(|byte| *byte == b',') {
            let mut is_probe = true;
            if let Some(mean) = allocations(word) {
                (sources, self.allocations) = (sources.with(Probe::Allocations), mean);
            } else if self.tracepoints.add(word) {
                sources = sources.with(Probe::Tracepoints);
            } else if let Some(mean) = waits(word) {
                (sources, self.waits) = (sources.with(Probe::Locks), mean);
            } else if cfg!(feature = "mappings") && word == b"mmap" {
                sources = sources.with(Probe::Mappings);
            } else if let Some(clock) = clock(word) {
                is_probe = false;
                is_wrong |= sources.clock.is_some();
                is_list = word.starts_with(b"perf:");
                is_wrong |= is_list && events.is_none();
                if word == b"offcpu" && events.is_none() {
                    *events = Some(Events::off_processor());
                }
                (sources, automatic) = (sources.clocked_by(Some(clock)), word == b"auto");
            } else {
                // Another event of a list, which the recorder has read.
                is_probe = false;
                is_wrong |= !is_list;
            }
            if is_probe {
                self.add_probe(word);
            }
        }
        if sources != Sources::default() {
            (self.sources, self.is_automatic) = (sources, automatic);
        }
        if is_wrong {
            self.complain(entry);
        }
    }

    fn add_probe(&mut self, word: &[u8]) {
        if !self.probes.is_empty() {
            self.probes.push(b',');
        }
        self.probes.extend_from_slice(word);
    }

    /// Notes a bad setting.
    fn complain(&mut self, entry: &[u8]) {
        const LONGEST: usize = 120;
        if !self.note.is_empty() {
            self.note.extend_from_slice(b"; ");
        }
        self.note.extend_from_slice(b"ignored ");
        self.note.extend_from_slice(&entry[..entry.len().min(LONGEST)]);
        if entry.starts_with(b"SELFWIND_POOL=") {
            self.note.extend_from_slice(b" (a size from 64K to 1G, such as 512K or 16M)");
        }
        if entry.starts_with(b"SELFWIND_COPY_LIMIT=") {
            self.note.extend_from_slice(b" (a size from 1K to 1M, such as 8K or 64K)");
        }
        if entry.starts_with(b"SELFWIND_UNWIND=") {
            self.note.extend_from_slice(b" (self, copy, copy-code, guess or both)");
        }
    }

    /// Nanoseconds that one unit of weight stands for: of CPU time or time off the processor; 0 for events.
    pub(crate) fn unit_ns(&self, clock: Option<Clock>) -> u64 {
        match clock {
            Some(Clock::Perf) => self.events.unit_ns(),
            Some(Clock::ThreadTimer | Clock::ProcessTimer) => self.period_ns(),
            None => 0,
        }
    }

    /// The limit of what samples at `clock` may cost. Events that are no time have none.
    pub(crate) fn rate_limit(&self, clock: Option<Clock>) -> RateLimit {
        let (limit, period_ns) = self.limit(clock);
        RateLimit::new(limit, period_ns)
    }

    /// The limit, in hundredths of a percent of CPU time, and the nanoseconds of it that a tick stands for.
    pub(crate) fn limit(&self, clock: Option<Clock>) -> (u64, u64) {
        match self.unit_ns(clock) {
            _ if clock.is_none() => (RateLimit::NO_LIMIT, 1),
            period_ns if clock != Some(Clock::Perf) || self.events.are_one_clock() => {
                (self.max_overhead, period_ns)
            }
            _ => (RateLimit::NO_LIMIT, 1),
        }
    }

    /// The period of timers for unregistered threads; 0 if they can have none.
    pub(crate) fn late_period(&self, clock: Option<Clock>) -> u64 {
        if clock == Some(Clock::Perf) && !self.events.are_time() { 0 } else { self.unit_ns(clock) }
    }

    /// Nanoseconds of CPU time between samples.
    pub(crate) fn period_ns(&self) -> u64 {
        SECOND_NS / self.frequency
    }
}

fn flag(value: &[u8]) -> Option<bool> {
    match value {
        b"0" | b"" | b"no" | b"off" => Some(false),
        b"1" | b"yes" | b"on" => Some(true),
        _ => None,
    }
}

/// An absolute path that leaves room for file names.
fn directory(value: &[u8]) -> Option<Vec<u8>> {
    const LONGEST: usize = 3072;
    (value.first() == Some(&b'/') && value.len() <= LONGEST).then(|| value.to_vec())
}

fn clock(value: &[u8]) -> Option<Clock> {
    match value {
        b"cpu" => Some(Clock::ThreadTimer),
        b"itimer" => Some(Clock::ProcessTimer),
        b"auto" | b"perf" | b"offcpu" => Some(Clock::Perf),
        value if value.starts_with(b"perf:") => Some(Clock::Perf),
        _ => None,
    }
}

/// Bytes between samples on average, of `alloc`, `alloc:BYTES` or `alloc:all`, for the library that knows allocations.
fn allocations(value: &[u8]) -> Option<u64> {
    const DEFAULT_MEAN: u64 = 512 << 10;
    mean(value.strip_prefix(b"alloc").filter(|_| cfg!(feature = "allocations"))?, DEFAULT_MEAN)
}

/// Nanoseconds between samples on average, of `lock`, `lock:NS` or `lock:all`, for the library that knows locks.
fn waits(value: &[u8]) -> Option<u64> {
    const DEFAULT_MEAN: u64 = 100_000;
    mean(value.strip_prefix(b"lock").filter(|_| cfg!(feature = "locks"))?, DEFAULT_MEAN)
}

/// A mean distance, of what stands behind the name of a source.
fn mean(value: &[u8], default: u64) -> Option<u64> {
    match value.strip_prefix(b":") {
        None if value.is_empty() => Some(default),
        Some(b"all") => Some(1),
        Some(mean) => number(mean).filter(|mean| *mean > 0),
        None => None,
    }
}

fn mode_of(value: &[u8]) -> Option<Mode> {
    match value {
        b"discard" => Some(Mode::Discard),
        b"overwrite" => Some(Mode::Overwrite),
        _ => None,
    }
}

fn frames(value: &[u8]) -> Option<usize> {
    number(value).map(|frames| frames as usize).filter(|frames| (1..=MAX_FRAMES).contains(frames))
}

/// Percent with at most two decimals, above 0 and up to 100, in hundredths.
fn percent(value: &[u8]) -> Option<u64> {
    let mut parts = value.splitn(2, |byte| *byte == b'.');
    let whole = number(parts.next()?).filter(|whole| *whole <= 100)?;
    let decimals = match parts.next() {
        None => 0,
        Some([tenths]) => 10 * number(&[*tenths])?,
        Some(two) => number(two).filter(|_| two.len() == 2)?,
    };
    Some(whole * 100 + decimals).filter(|sum| (1..=RateLimit::NO_LIMIT).contains(sum))
}

fn pool(value: &[u8]) -> Option<usize> {
    usize::try_from(size(value)?).ok().filter(|bytes| (MIN_POOL..=MAX_POOL).contains(bytes))
}

/// Bytes, or with K, M or G behind it so many times 1024, 1024^2 or 1024^3.
fn size(value: &[u8]) -> Option<u64> {
    let (digits, shift) = match value.split_last()? {
        (b'K' | b'k', digits) => (digits, 10),
        (b'M' | b'm', digits) => (digits, 20),
        (b'G' | b'g', digits) => (digits, 30),
        _ => (value, 0),
    };
    number(digits)?.checked_mul(1 << shift)
}

/// A process id and, in hexadecimal, a nonce.
fn handed(value: &[u8]) -> Option<(u32, u64)> {
    let dash = value.iter().position(|byte| *byte == b'-')?;
    Some((u32::try_from(number(&value[..dash])?).ok()?, hexadecimal(&value[dash + 1..])?))
}

/// A hexadecimal number of up to 16 digits.
fn hexadecimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, digit| Some(sum << 4 | u64::from(char::from(*digit).to_digit(16)?)))
}
