//! Searches for processes of a recording that run without the agent, and injects it: those of a command, or those that a running
//! process starts while it is recorded.
//!
//! A program runs without the agent if it is statically linked, if it does not reach the agent's file or the session directory (in a
//! sandbox, or with another root directory), or if it was started without the variables that name them. A process made by a bare
//! `clone` has its parent's agent, which does not record it. A process belongs to the recording if its parent does, or if it has the
//! recording's environment. What must never happen here: that the agent is injected into a process that is about to load it, or that
//! belongs to another recording.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use selfwind_profile::file_name::base_name;

use crate::proc::{self, Mapping, Stat};
use crate::process_files;
use crate::target::agent_file::is_agent;
use crate::target::inject::{self, Destination, InjectError, Settings, Turn};
use crate::target::region_name::RegionName;

/// Time between two searches while no process starts.
const INTERVAL: Duration = Duration::from_millis(50);
/// Time between two searches for this long after the start of a process.
const BUSY_INTERVAL: Duration = Duration::from_millis(10);
const BUSY: Duration = Duration::from_secs(1);
/// Time between two searches while a program without a loader has just started.
const SHORT_INTERVAL: Duration = Duration::from_millis(2);
/// How long a program counts as just started.
const NEW: Duration = Duration::from_millis(100);
/// How often, at least, to look at a process whose program has run for longer than [`NEW`], or has the agent: it may execute
/// another one.
const RECHECK: Duration = Duration::from_millis(250);
/// How long a program gets to set up its own signal handlers before the agent is injected, and the CPU time for that. A process
/// that uses less has nothing to sample, and is left alone.
const STARTED: Duration = Duration::from_millis(5);
const STARTED_NS: u64 = 3_000_000;
/// How long a loader gets to load the agent, and the agent to start: they may have to wait for a disk or a processor.
const LOADED: Duration = Duration::from_secs(2);
/// If more ids than this were given out since the last search, all processes are listed instead.
const MANY_IDS: u32 = 1000;
/// How many reasons to report.
const REASONS: usize = 3;

/// The recording that processes belong to.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// Process id of the command, or of the running process that is recorded.
    pub(crate) root: u32,
    /// It was running before: what it has started until now does not belong to the recording, and it has the agent.
    pub(crate) was_running: bool,
    /// Directory of the session.
    pub(crate) directory: PathBuf,
    /// Nonce of the session.
    pub(crate) session: u64,
    /// A process keeps its latest samples, instead of all until its pool is full.
    pub(crate) overwrite: bool,
}

/// The search. Dropping it ends it, and the sampling of the processes found.
pub(crate) struct ProcessSearch {
    over: Option<Sender<()>>,
    hands_over: Arc<AtomicBool>,
    searching: Option<JoinHandle<Vec<String>>>,
}

impl ProcessSearch {
    /// Searches from now on. The agents are injected with `settings`, and their regions belong to the session.
    ///
    /// # Errors
    /// If its thread cannot be started.
    pub(crate) fn start(recorded: Recorded, settings: Settings) -> io::Result<Self> {
        let (over, is_over) = channel();
        let hands_over = Arc::new(AtomicBool::new(false));
        let destination = Destination::Session {
            directory: recorded.directory.clone(),
            nonce: recorded.session,
            mode: if recorded.overwrite { "overwrite" } else { "discard" },
        };
        let was_running = recorded.was_running;
        let root = was_running.then(|| Stat::of(recorded.root).ok().flatten()).flatten();
        let processes = root.map(|stat| (recorded.root, Watched { is_settled: true, ..Watched::new(&stat) }));
        let mut search = Search {
            last: match proc::last_id() {
                Some(last) if was_running => last,
                _ => recorded.root.saturating_sub(1),
            },
            found: Instant::now(),
            recorded,
            settings: Settings { destination, ..settings },
            hands_over: hands_over.clone(),
            processes: processes.into_iter().collect(),
            injected: Vec::new(),
            reasons: Vec::new(),
        };
        let searching = std::thread::Builder::new().name("process search".into()).spawn(move || {
            let mut interval = SHORT_INTERVAL;
            while is_over.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                interval = search.look();
            }
            search.end()
        })?;
        Ok(Self { over: Some(over), hands_over, searching: Some(searching) })
    }

    /// True if some of the processes cannot ring the doorbell.
    pub(crate) fn hands_over(&self) -> bool {
        self.hands_over.load(Ordering::Relaxed)
    }

    /// Ends the search, and the sampling of the processes found. Returns which processes could not be recorded, and why.
    pub(crate) fn end(mut self) -> Vec<String> {
        self.stop()
    }

    fn stop(&mut self) -> Vec<String> {
        drop(self.over.take());
        self.searching.take().and_then(|searching| searching.join().ok()).unwrap_or_default()
    }
}

impl Drop for ProcessSearch {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Search {
    recorded: Recorded,
    settings: Settings,
    hands_over: Arc<AtomicBool>,
    /// The last id that was given to a process or thread before the latest search.
    last: u32,
    /// When an id was last given out.
    found: Instant,
    /// The processes of the recording, by pid.
    processes: BTreeMap<u32, Watched>,
    /// Processes into which the agent was injected: pid and start time.
    injected: Vec<(u32, u64)>,
    /// Why processes are not recorded.
    reasons: Vec<String>,
}

/// A process of the recording.
struct Watched {
    parent: u32,
    start_time: u64,
    /// The program that it runs; `None` before it was first looked at.
    program: Option<inject::RunningProgram>,
    /// When it was first seen with this program.
    since: Instant,
    checked: Instant,
    /// The agent is in it, or will never be.
    is_settled: bool,
    /// When the agent was last injected into it: an agent that was injected is not in the program that it executes next.
    injected: Option<Instant>,
}

/// What to do with a process.
enum Verdict {
    /// It has the agent, or must not have it.
    Leave,
    Inject,
    /// It cannot be recorded, for this reason.
    Refuse(&'static str),
}

impl Search {
    /// Searches once. Returns the time until the next search.
    fn look(&mut self) -> Duration {
        self.find_new();
        self.processes.retain(|&pid, watched| watched.is_still(pid));
        let judged = |(&pid, watched): (&u32, &Watched)| {
            let parent = self.processes.get(&watched.parent);
            Some((pid, watched.judge(pid, parent, &self.recorded)?))
        };
        let judged: Vec<(u32, Verdict)> = self.processes.iter().filter_map(judged).collect();
        for (pid, verdict) in judged {
            let is_settled = match verdict {
                Verdict::Leave => true,
                Verdict::Inject => self.inject(pid),
                Verdict::Refuse(reason) => {
                    self.report(pid, &reason);
                    true
                }
            };
            if let Some(watched) = self.processes.get_mut(&pid) {
                watched.is_settled = is_settled;
                if matches!(verdict, Verdict::Inject) {
                    watched.injected = Some(Instant::now());
                }
            }
        }
        match self.processes.values().any(|watched| watched.is_urgent(&self.recorded)) {
            true => SHORT_INTERVAL,
            false if self.found.elapsed() < BUSY => BUSY_INTERVAL,
            false => INTERVAL,
        }
    }

    /// Adds the new processes of the recording.
    fn find_new(&mut self) {
        let Some(last) = proc::last_id() else { return };
        let new: Vec<u32> = match last.checked_sub(self.last) {
            Some(0) => return,
            Some(count) if count <= MANY_IDS => (self.last + 1..=last).filter(|&id| exists(id)).collect(),
            _ => proc::processes(),
        };
        (self.last, self.found) = (last, Instant::now());
        for pid in new {
            if let Ok(Some(stat)) = Stat::of(pid)
                && !stat.is_other_thread
                && !stat.is_zombie()
                && !self.processes.contains_key(&pid)
                && self.is_of_recording(pid, &stat)
            {
                self.processes.insert(pid, Watched::new(&stat));
            }
        }
    }

    fn is_of_recording(&self, pid: u32, stat: &Stat) -> bool {
        let is_alive = |parent: &Watched| proc::start_time(stat.parent) == Some(parent.start_time);
        pid == self.recorded.root
            || self.processes.get(&stat.parent).is_some_and(is_alive)
            || Environment::of(pid)
                .is_some_and(|environment| environment.session() == Some(self.recorded.session))
    }

    /// Injects the agent into a process. True if nothing more is to be done about it.
    fn inject(&mut self, pid: u32) -> bool {
        let Some(start_time) = proc::start_time(pid) else { return true };
        let is_apart = inject::is_apart(pid as i32);
        let _turn = Turn::at(pid);
        match inject::attach(pid, &self.settings) {
            Ok(_) | Err(InjectError::Slow(_)) => {
                self.hands_over.fetch_or(is_apart, Ordering::Relaxed);
                self.injected.push((pid, start_time));
                true
            }
            Err(InjectError::NoProcess(_) | InjectError::Preloaded(_)) => true,
            Err(InjectError::Replaced(_)) => false,
            Err(
                InjectError::Traced { .. }
                | InjectError::Stopped(_)
                | InjectError::Busy(_)
                | InjectError::Lost(_)
                | InjectError::Unstoppable { .. },
            ) => {
                // That may pass, but not soon.
                if let Some(watched) = self.processes.get_mut(&pid) {
                    watched.since = watched.since.checked_sub(NEW).unwrap_or(watched.since);
                }
                false
            }
            Err(error) => {
                // Otherwise it has ended.
                if proc::start_time(pid) == Some(start_time) {
                    self.report(pid, &error);
                }
                true
            }
        }
    }

    /// Reports why a process is not recorded, unless it ends, or this user may know nothing about it.
    fn report(&mut self, pid: u32, reason: &dyn Display) {
        if let Ok(program) = fs::read_link(format!("/proc/{pid}/exe")) {
            let program = base_name(&program);
            self.reasons.push(format!("{program} has not loaded the agent, and is not recorded: {reason}"));
        }
    }

    /// Ends the sampling of the processes that are still running. Returns which could not be recorded, and why.
    fn end(mut self) -> Vec<String> {
        for (pid, start_time) in self.injected {
            if proc::start_time(pid) == Some(start_time) {
                // An error means that it has ended, or executed another program.
                let _ = inject::detach(pid);
            }
        }
        let more = self.reasons.len().saturating_sub(REASONS);
        self.reasons.truncate(REASONS);
        if more > 0 {
            self.reasons.push(format!("further processes not recorded for such reasons: {more}"));
        }
        self.reasons
    }
}

impl Watched {
    fn new(stat: &Stat) -> Self {
        let now = Instant::now();
        let Stat { parent, start_time, .. } = *stat;
        Self {
            parent,
            start_time,
            program: None,
            since: now,
            checked: now,
            is_settled: false,
            injected: None,
        }
    }

    /// True if it must be looked at now.
    fn is_due(&self) -> bool {
        let is_new = !self.is_settled && self.since.elapsed() < NEW;
        // Most that execute another program do so soon.
        let recheck = (self.injected.unwrap_or(self.since).elapsed() / 4).min(RECHECK);
        is_new || self.checked.elapsed() >= recheck
    }

    /// True while this is the process `pid`. Notes if it has executed another program.
    fn is_still(&mut self, pid: u32) -> bool {
        if !self.is_due() {
            return true;
        }
        self.checked = Instant::now();
        if proc::start_time(pid) != Some(self.start_time) {
            return false;
        }
        let Some(program) = inject::RunningProgram::of(pid) else { return true };
        if self.program.as_ref() != Some(&program) {
            if self.program.is_some() {
                (self.since, self.is_settled) = (self.checked, false);
            }
            self.program = Some(program);
        }
        true
    }

    /// True if the agent may have to be injected soon.
    fn is_urgent(&self, recorded: &Recorded) -> bool {
        let will_load = self.has_loader() && !recorded.was_running;
        !self.is_settled && self.since.elapsed() < NEW && !will_load
    }

    fn has_loader(&self) -> bool {
        self.program.as_ref().is_none_or(inject::RunningProgram::has_loader)
    }

    /// What to do about it; `None` if that must be seen later. `parent` is its first one.
    fn judge(&self, pid: u32, parent: Option<&Watched>, recorded: &Recorded) -> Option<Verdict> {
        let age = self.since.elapsed();
        // Most processes with a loader have the agent, and are settled by that.
        let is_idle = || !self.has_loader() && used_ns(pid) < STARTED_NS;
        if self.is_settled || self.checked.elapsed() > SHORT_INTERVAL || age < STARTED || is_idle() {
            return None;
        }
        let Ok(mappings) = proc::mappings(pid) else { return Some(Verdict::Leave) };
        let mut names = mappings.iter().filter_map(|mapping| mapping.path.file_name());
        if names.clone().any(|name| RegionName::parse(name).is_some()) {
            return Some(Verdict::Leave);
        }
        if used_ns(pid) < STARTED_NS {
            return None;
        }
        let Some(environment) = Environment::of(pid) else { return Some(Verdict::Leave) };
        let is_in_exec = || matches!(Stat::of(pid), Ok(Some(stat)) if !stat.has_environment);
        if environment.0.is_empty() && is_in_exec() {
            return None;
        }
        let session = environment.session();
        if !environment.is_enabled() || session.is_some_and(|session| session != recorded.session) {
            return Some(Verdict::Leave);
        }
        if names.any(|name| is_agent(name.as_bytes())) {
            let is_fork = parent.is_some_and(|parent| parent.program == self.program);
            return match reaches(pid, &recorded.directory) {
                false => Some(Verdict::Inject),
                // The agent reports itself why it does not record.
                true if self.has_failed(pid, &recorded.directory) => Some(Verdict::Leave),
                // After a fork by the C library it begins at once.
                true if is_fork => (age >= NEW).then_some(Verdict::Inject),
                true => (age >= LOADED).then_some(Verdict::Leave),
            };
        }
        if environment.is_of_valgrind() && !self.has_loader() {
            return Some(Verdict::Refuse(
                "it is valgrind, which emulates the program, and an injected agent could disturb it",
            ));
        }
        let is_preloaded = environment.preloads_agent() && !inject::is_secure(pid);
        let will_load = is_preloaded && (self.has_loader() || maps_other_code(&mappings));
        (!will_load || age >= LOADED).then_some(Verdict::Inject)
    }

    /// True if its agent has left a note in `directory` that it cannot record.
    fn has_failed(&self, pid: u32, directory: &Path) -> bool {
        let own = format!("{pid}-{}-", self.start_time);
        let is_own = |name: &[u8]| name.starts_with(own.as_bytes()) && name.ends_with(b".failed");
        let mut entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.any(|entry| is_own(entry.file_name().as_bytes()))
    }
}

/// True if the program has mapped another file's code, such as a loader: a program that starts others in its own process (Wine's
/// preloader).
fn maps_other_code(mappings: &[Mapping]) -> bool {
    let mut code = mappings.iter().filter(|mapping| mapping.executable && mapping.path.is_absolute());
    let first = code.next();
    first.is_some_and(|first| code.any(|other| other.path != first.path))
}

/// True if there is a process or thread with this id. Faster than a look into /proc; most have ended already where many start.
fn exists(id: u32) -> bool {
    kill(Pid::from_raw(id as i32), None) != Err(Errno::ESRCH)
}

/// CPU time of a process in nanoseconds, exact for its main thread.
fn used_ns(pid: u32) -> u64 {
    const TICK_NS: u64 = 10_000_000;
    let of_process = Stat::of(pid).ok().flatten().map_or(0, |stat| stat.cpu_ticks * TICK_NS);
    of_process.max(proc::used_ns(pid, pid))
}

/// True if `directory` is at the same path for the process.
fn reaches(pid: u32, directory: &Path) -> bool {
    let at = |path: PathBuf| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    at(process_files::within_root(pid, directory)) == at(directory.to_owned())
}

/// The environment with which a program was started.
struct Environment(Vec<u8>);

impl Environment {
    fn of(pid: u32) -> Option<Self> {
        proc::environment(pid).ok().map(Self)
    }

    fn value(&self, name: &str) -> Option<&[u8]> {
        let mut entries = self.0.split(|&byte| byte == 0);
        entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    }

    /// The session of the recording that started the program.
    fn session(&self) -> Option<u64> {
        u64::from_str_radix(std::str::from_utf8(self.value("SELFWIND_SESSION")?).ok()?, 16).ok()
    }

    /// False if the program is not to be recorded.
    fn is_enabled(&self) -> bool {
        !matches!(self.value("SELFWIND_ENABLE"), Some(b"0" | b"" | b"no" | b"off"))
    }

    /// True for valgrind's own programs, which emulate others, and have no C library.
    fn is_of_valgrind(&self) -> bool {
        self.value("VALGRIND_LAUNCHER").is_some()
    }

    /// True if the loader is asked to load an agent.
    fn preloads_agent(&self) -> bool {
        let files =
            self.value("LD_PRELOAD").into_iter().flat_map(|value| value.split(|byte| b" :".contains(byte)));
        files.into_iter().any(|file| file.rsplit(|&byte| byte == b'/').next().is_some_and(is_agent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_says_what_a_process_belongs_to() {
        let of = |text: &str| Environment(text.as_bytes().to_vec());
        let own = of("A=1\0LD_PRELOAD=/y/b.so:/x/agent-probes-1.so\0SELFWIND_SESSION=00000000000000ff\0");
        assert_eq!(own.session(), Some(255));
        assert!(own.is_enabled() && own.preloads_agent());
        let other =
            of("NOT_SELFWIND_SESSION=1\0SELFWIND_ENABLE=0\0LD_PRELOAD=/x/agent-1/b.so\0SELFWIND_SESSION=x");
        assert!(other.session().is_none() && !other.is_enabled() && !other.preloads_agent());
    }
}
