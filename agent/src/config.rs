//! The agent's settings, from the environment.
//!
//! A bad value must never break the target: the default applies, and the bad setting is reported to the reader.

use alloc::vec::Vec;

use core::ffi::CStr;

use handler::decimal::number;
use handler::rate_limit::RateLimit;
use handler::recording::{Clock, Probe, Sources};
use handler::slot::MAX_FRAMES;
use handler::switch_limit::SwitchLimit;
use handler::unwinding::Unwind;
use platform::clock::SECOND_NS;
use shm_format::{COPY_MOST, Mode};

use crate::events::Events;
use crate::hexadecimal;
use crate::link_map;
use crate::symbols;
use crate::tracepoints::Patterns;

/// Default samples per second of CPU time. A prime, to avoid lockstep with periodic work at round rates.
const DEFAULT_FREQUENCY: u64 = 199;
const MAX_FREQUENCY: u64 = 100_000;
/// Default limit of the CPU time used by handlers, in hundredths of a percent.
const DEFAULT_OVERHEAD: u64 = 200;
const DEFAULT_COPY: u64 = 32 << 10;
/// Smallest useful limit of copied stack bytes.
const LEAST_COPY: u64 = 1 << 10;
const MIN_POOL: usize = 64 * 1024;
/// Initial pool size in bytes with a reader that drains it, and for a flight recorder that keeps history.
const DRAINED_POOL: usize = 256 * 1024;
/// The former at a low sampling rate: backing memory takes time at the start of a process, and the reader adds to the pool of
/// one that stays.
const SLOW_POOL: usize = 64 * 1024;
/// Sampling rate up to which a timer counts as slow, in samples per second.
const SLOW: u64 = 250;
const HISTORY_POOL: usize = 1 << 20;
/// Initial pool size for every allocation: what a program produces in some tens of milliseconds.
const ALLOCATIONS_POOL: usize = 4 << 20;
/// Initial pool size for events without a fixed rate, which may occur at every system call: on a busy machine the
/// reader may not run for some ten milliseconds.
const EVENT_POOL: usize = 1 << 20;
const MAX_POOL: usize = 1 << 30;
/// Factor for recordings that copy stacks.
const COPIES_POOL: usize = 4;
/// Substring of the path of the library that valgrind preloads.
const VALGRIND: &[u8] = b"/vgpreload_";

/// The settings of one process.
pub(crate) struct Config {
    /// SELFWIND_ENABLE: false makes the agent inert.
    pub(crate) enabled: bool,
    /// SELFWIND_DIR: the session directory, or none for a flight recorder.
    pub(crate) directory: Option<Vec<u8>>,
    /// SELFWIND_OTHERS: the directory for regions of processes that run as another user than the recorder.
    pub(crate) others: Option<Vec<u8>>,
    /// SELFWIND_FREQ, in samples per second of CPU time.
    pub(crate) frequency: u64,
    /// SELFWIND_EVENT.
    pub(crate) sources: Sources,
    /// What is recorded besides a clock, in the syntax of SELFWIND_EVENT, without what this build does not support.
    pub(crate) probes: Vec<u8>,
    /// Whether to use the best clock that this process is permitted.
    pub(crate) is_automatic: bool,
    /// Whether the process runs under valgrind, judging by the other preloaded libraries.
    pub(crate) is_emulated: bool,
    /// SELFWIND_PERF: the events of the source `perf`, or its clock.
    pub(crate) events: Events,
    /// Mean bytes between sampled allocations, 1 for all; 0 if SELFWIND_EVENT does not ask for allocations.
    pub(crate) allocations: u64,
    /// The program's tracepoints that SELFWIND_EVENT asks for.
    pub(crate) tracepoints: Patterns,
    /// Mean nanoseconds of lock waiting between samples, 1 for all waits; 0 if SELFWIND_EVENT does not ask for locks.
    pub(crate) waits: u64,
    /// SELFWIND_DEFER: let the kernel walk user stacks, where it can, for events that get no answer.
    pub(crate) deferred: bool,
    /// SELFWIND_NATIVE_ONLY: leave out interpreter frames.
    pub(crate) native_only: bool,
    /// SELFWIND_MODE.
    pub(crate) mode: Mode,
    /// SELFWIND_MAX_STACK.
    pub(crate) max_frames: usize,
    /// SELFWIND_UNWIND.
    pub(crate) unwind: Unwind,
    /// SELFWIND_COPY_LIMIT: maximum bytes copied of a stack.
    pub(crate) copy_limit: u64,
    /// SELFWIND_MAX_OVERHEAD, in hundredths of a percent.
    pub(crate) max_overhead: u64,
    /// SELFWIND_SWITCH_COST: nanoseconds that a perf event adds to a switch of threads; 0 if that is not known.
    pub(crate) switch_cost_ns: u64,
    /// SELFWIND_POOL: initial pool size in bytes.
    pub(crate) pool: usize,
    /// SELFWIND_TABLES: directory of table files, by default in the user's cache; `None` for no tables.
    pub(crate) tables: Option<Vec<u8>>,
    /// SELFWIND_SESSION: the nonce of the session.
    pub(crate) session: u64,
    /// SELFWIND_BOOT: the number of this boot in the recorder's /proc/sys/kernel/random/boot_id.
    pub(crate) boot: Option<[u8; 16]>,
    /// SELFWIND_VERBOSE: report on standard error why the agent stays inert.
    pub(crate) verbose: bool,
    /// XDG_RUNTIME_DIR, the preferred place of a flight recorder.
    pub(crate) runtime_directory: Option<Vec<u8>>,
    /// SELFWIND_RECORDER: the recorder whose end also ends the sampling of an attached process.
    pub(crate) recorder: Vec<u8>,
    /// SELFWIND_REGION: process id and nonce of a region whose file the recorder passes.
    pub(crate) handed: Option<(u32, u64)>,
    /// Reports for the reader about bad settings.
    pub(crate) note: Vec<u8>,
}

impl Config {
    /// Whether every allocation is recorded.
    pub(crate) fn records_all_allocations(&self) -> bool {
        self.allocations == 1
    }

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
            max_frames: MAX_FRAMES,
            unwind: Unwind::Own,
            copy_limit: DEFAULT_COPY,
            max_overhead: DEFAULT_OVERHEAD,
            switch_cost_ns: 0,
            pool: 0,
            tables: None,
            session: 0,
            boot: None,
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
                // Tracepoints may be hit at any rate.
                _ if !config.tracepoints.is_empty() => HISTORY_POOL,
                _ if config.records_all_allocations() => ALLOCATIONS_POOL,
                Mode::Discard if config.sources.clock == Some(Clock::Perf) && !config.events.are_time() => {
                    EVENT_POOL
                }
                Mode::Discard if config.frequency <= SLOW && config.is_one_clock() => SLOW_POOL,
                Mode::Discard => DRAINED_POOL,
                Mode::Overwrite => HISTORY_POOL,
            };
            if config.unwind.copies() {
                config.pool *= COPIES_POOL;
            }
        }
        config
    }

    /// Adapts the settings to a running process: its execs will not be seen, so it gets no perf events by default.
    pub(crate) fn attached(self) -> Config {
        let clock = if self.is_automatic { Some(Clock::ThreadTimer) } else { self.sources.clock };
        Config { sources: self.sources.clocked_by(clock), is_automatic: false, ..self }
    }

    /// Whether samples have the same weight and content under both settings.
    pub(crate) fn takes_same_samples(&self, other: &Config) -> bool {
        let of = |config: &Config| (config.frequency, config.unwind, config.copy_limit, config.allocations);
        of(self) == of(other)
    }

    /// Applies one setting; `None` if its value is invalid.
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
            b"SWITCH_COST" => self.switch_cost_ns = number(value)?,
            b"POOL" => self.pool = pool(value)?,
            b"RECORDER" => self.recorder = value.to_vec(),
            b"REGION" => self.handed = Some(handed(value)?),
            b"SESSION" => self.session = hexadecimal::number(value)?,
            b"BOOT" => self.boot = Some(hexadecimal::bytes(value)?),
            // Settings for the recorder only, or of a later version.
            _ => {}
        }
        Some(())
    }

    /// Applies SELFWIND_EVENT, a list. Events given by name need their kernel numbers, which the recorder resolves
    /// (SELFWIND_PERF); without them a clock is used instead.
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
            } else if cfg!(feature = "mappings") && word == b"mmap" && symbols::interposes(c"mmap") {
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
                // Another event, which the recorder has resolved.
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

    /// Reports an invalid setting.
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

    /// Whether a clock at the set rate is all that the kernel is asked for.
    fn is_one_clock(&self) -> bool {
        self.sources.clock != Some(Clock::Perf) || self.events.are_one_clock()
    }

    /// Nanoseconds that a unit of weight stands for, of CPU time or off-CPU time; 0 for events.
    pub(crate) fn unit_ns(&self, clock: Option<Clock>) -> u64 {
        match clock {
            Some(Clock::Perf) => self.events.unit_ns(),
            Some(Clock::ThreadTimer | Clock::ProcessTimer) => self.period_ns(),
            None => 0,
        }
    }

    /// The rate limiter for samples of `clock`. Events that do not measure time are not limited.
    pub(crate) fn rate_limit(&self, clock: Option<Clock>) -> RateLimit {
        let (limit, period_ns) = self.limit(clock);
        RateLimit::new(limit, period_ns)
    }

    /// From how many switches on a thread's perf events are replaced: only by default, where they measure CPU time.
    pub(crate) fn switch_limit(&self, clock: Option<Clock>) -> SwitchLimit {
        match self.is_automatic && clock == Some(Clock::Perf) && self.max_overhead < RateLimit::NO_LIMIT {
            true => SwitchLimit::new(self.switch_cost_ns, self.max_overhead),
            false => SwitchLimit::NONE,
        }
    }

    /// The limit in hundredths of a percent of CPU time, and the nanoseconds of CPU time that a tick stands for.
    pub(crate) fn limit(&self, clock: Option<Clock>) -> (u64, u64) {
        match self.unit_ns(clock) {
            _ if clock.is_none() => (RateLimit::NO_LIMIT, 1),
            period_ns if clock != Some(Clock::Perf) || self.events.are_one_clock() => {
                (self.max_overhead, period_ns)
            }
            _ => (RateLimit::NO_LIMIT, 1),
        }
    }

    /// Period of the timers for unregistered threads; 0 if they cannot have any.
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

/// Accepts an absolute path that leaves space for file names.
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

/// Mean bytes between samples, from `alloc`, `alloc:BYTES` or `alloc:all`, in a library that interposes the allocator, or can
/// redirect its calls.
fn allocations(value: &[u8]) -> Option<u64> {
    const DEFAULT_MEAN: u64 = 512 << 10;
    let value = value.strip_prefix(b"alloc").filter(|_| cfg!(feature = "allocations"))?;
    mean(value, DEFAULT_MEAN).filter(|_| link_map::is_without_loader() || symbols::interposes(c"malloc"))
}

/// Mean nanoseconds between samples, from `lock`, `lock:NS` or `lock:all`, in a library that interposes locks.
fn waits(value: &[u8]) -> Option<u64> {
    const DEFAULT_MEAN: u64 = 100_000;
    let value = value.strip_prefix(b"lock").filter(|_| cfg!(feature = "locks"))?;
    mean(value, DEFAULT_MEAN).filter(|_| symbols::interposes(c"pthread_mutex_lock"))
}

/// The mean distance that follows the name of a source.
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

/// Parses a percentage above 0 and up to 100, with at most two decimals, into hundredths of a percent.
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

/// Parses a number of bytes, with an optional K, M or G for powers of 1024.
fn size(value: &[u8]) -> Option<u64> {
    let (digits, shift) = match value.split_last()? {
        (b'K' | b'k', digits) => (digits, 10),
        (b'M' | b'm', digits) => (digits, 20),
        (b'G' | b'g', digits) => (digits, 30),
        _ => (value, 0),
    };
    number(digits)?.checked_mul(1 << shift)
}

/// Parses a process id and a hexadecimal nonce.
fn handed(value: &[u8]) -> Option<(u32, u64)> {
    let dash = value.iter().position(|byte| *byte == b'-')?;
    Some((u32::try_from(number(&value[..dash])?).ok()?, hexadecimal::number(&value[dash + 1..])?))
}
