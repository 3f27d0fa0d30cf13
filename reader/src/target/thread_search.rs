//! Looks for threads that no agent knows of, from outside, while something is recorded.
//!
//! An agent hears of a thread where the program makes it by a function that the agent stands in front of. Others are
//! found here, in the kernel's list, and asked for a stack: the agent's handler takes such a thread in when it runs
//! there. Only a thread that is on a processor, or ready for one, is sent the signal: it waits in no call that a signal
//! could end. And it must have been without an agent's word at two looks, since a thread that is being made says so
//! itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use selfwind_profile::profile_file::Event;

use crate::proc::{self, threads};
use crate::target::region_name::RegionName;
use crate::target::request::thread::ThreadState;
use crate::target::request::{RequestOptions, Silence, Target, ask};

/// Between two looks, when all threads are known.
const TURN: Duration = Duration::from_millis(50);
/// Between two looks, while one is not.
const SHORT_TURN: Duration = Duration::from_millis(10);
/// Looks until the threads are listed although there are as many as are known: one may have come, another gone.
const LIST_EVERY: u32 = 20;
/// Time to wait for a thread's answer; it is asked again otherwise.
const PATIENCE: Duration = Duration::from_millis(20);
/// Times that a thread must be found blocking the signal: all threads do, for a moment now and then.
const CERTAINTY: u32 = 5;
/// Name of the setting that tells of threads which cannot be sampled; agents use it too.
pub(crate) const NOT_SAMPLED: &str = "not sampled";
/// Links of a directory without others in it: itself and the one above.
const OWN_LINKS: u64 = 2;
/// What agents call the process's timer, which finds every thread itself.
const PROCESS_TIMER: &str = "itimer";

/// A thread that cannot be sampled.
pub(crate) struct Blocking {
    /// Nonce of the region of its process.
    pub(crate) region_nonce: u64,
    /// Which, and why.
    pub(crate) text: String,
}

/// The search, until this is dropped.
pub(crate) struct ThreadSearch {
    over: Option<Sender<()>>,
    found: Receiver<Blocking>,
    searching: Option<JoinHandle<()>>,
}

impl ThreadSearch {
    /// Looks at all processes with a region in `directories`, or only at process `only`.
    ///
    /// # Errors
    /// When there can be no thread for it.
    pub(crate) fn start(directories: Vec<PathBuf>, only: Option<u32>) -> io::Result<Self> {
        let (over, is_over) = channel();
        let (told, found) = channel();
        let mut search = Search { directories, only, told, processes: BTreeMap::new() };
        let searching = std::thread::Builder::new().name("thread search".into()).spawn(move || {
            let mut turn = TURN;
            while is_over.recv_timeout(turn) == Err(RecvTimeoutError::Timeout) {
                turn = if search.look() { SHORT_TURN } else { TURN };
            }
        })?;
        Ok(Self { over: Some(over), found, searching: Some(searching) })
    }

    /// The threads that were found not to let the signal through, each once.
    pub(crate) fn blocking(&self) -> impl Iterator<Item = Blocking> {
        self.found.try_iter()
    }
}

impl Drop for ThreadSearch {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(searching) = self.searching.take() {
            let _ = searching.join();
        }
    }
}

struct Search {
    directories: Vec<PathBuf>,
    only: Option<u32>,
    told: Sender<Blocking>,
    processes: BTreeMap<RegionName, Watched>,
}

/// A process with more than one thread.
#[derive(Default)]
struct Watched {
    /// What its agent tells; none if that cannot be heard.
    target: Option<Target>,
    /// By number: the ids of threads that the agent has told of.
    known: HashMap<u32, u32>,
    looks: u32,
    /// Unknown when last looked.
    unknown: BTreeSet<u32>,
    /// Those who were found to block the signal, and how often.
    blocking: BTreeMap<u32, u32>,
}

impl Search {
    /// Looks once at every process; true if some thread is unknown.
    fn look(&mut self) -> bool {
        let mut names: Vec<RegionName> = self
            .directories
            .iter()
            .flat_map(|directory| fs::read_dir(directory).into_iter().flatten().flatten())
            .filter_map(|entry| RegionName::parse(&entry.file_name()))
            .filter(|name| self.only.is_none_or(|only| only == name.pid))
            .collect();
        names.sort();
        self.processes.retain(|name, _| names.binary_search(name).is_ok());
        let mut unknown = false;
        for name in names {
            let count = fs::metadata(format!("/proc/{}/task", name.pid)).map_or(0, |task| task.nlink());
            if count.saturating_sub(OWN_LINKS) < 2 || proc::start_time(name.pid) != Some(name.start_time) {
                self.processes.remove(&name);
                continue;
            }
            let watched = self.processes.entry(name).or_insert_with_key(|name| Watched {
                target: Target::find(name.pid).ok().filter(|target| !is_sampled_by_process(target)),
                ..Watched::default()
            });
            unknown |= watched.look(&name, count - OWN_LINKS, &self.told);
        }
        unknown
    }
}

fn is_sampled_by_process(target: &Target) -> bool {
    target.events.iter().any(|event| matches!(event, Event::Process(info) if info.source == PROCESS_TIMER))
}

impl Watched {
    /// Looks at all threads of the process, and asks those that are new and run. True if it should be looked at again
    /// soon.
    fn look(&mut self, name: &RegionName, count: u64, told: &Sender<Blocking>) -> bool {
        let pid = name.pid;
        let Some(target) = &mut self.target else { return false };
        target.learn();
        for event in target.events.drain(..) {
            match event {
                Event::Thread(thread) => _ = self.known.insert(thread.seq, thread.tid),
                Event::ThreadEnd(thread) => _ = self.known.remove(&thread.seq),
                _ => {}
            }
        }
        self.looks += 1;
        let is_quiet = self.unknown.is_empty() && self.known.len() as u64 == count;
        if is_quiet && !self.looks.is_multiple_of(LIST_EVERY) {
            return false;
        }
        // Who was made since is unknown for this turn only.
        let Ok(tids) = threads(pid) else { return false };
        let is_inner = ThreadState::read(pid, pid).is_ok_and(|state| state.inner_tid != pid);
        let inner = |tid| match is_inner {
            true => ThreadState::read(pid, tid).map_or(tid, |state| state.inner_tid),
            false => tid,
        };
        let listed: BTreeMap<u32, u32> = tids.into_iter().map(|tid| (inner(tid), tid)).collect();
        // An id that is gone may come again, for another thread.
        self.known.retain(|_, tid| listed.contains_key(tid));
        let known: BTreeSet<u32> = self.known.values().copied().collect();
        let strange = listed.iter().filter(|(inner, _)| !known.contains(inner)).map(|(_, &tid)| tid);
        let before = std::mem::replace(&mut self.unknown, strange.collect());
        let runs = |tid: &u32| ThreadState::read(pid, *tid).is_ok_and(|state| state.state == 'R');
        let asked: Vec<u32> = self.unknown.intersection(&before).copied().filter(runs).collect();
        if !asked.is_empty() {
            self.ask(name, &asked, told);
        }
        self.blocking.retain(|tid, _| self.unknown.contains(tid));
        self.unknown.iter().any(|tid| self.blocking.get(tid).is_none_or(|&times| times < CERTAINTY))
    }

    fn ask(&mut self, name: &RegionName, tids: &[u32], told: &Sender<Blocking>) {
        let pid = name.pid;
        let options = RequestOptions { timeout: PATIENCE, gentle: true };
        // Anew each time, so that the places for requests are free for others meanwhile.
        let Ok(reports) = Target::find(pid).and_then(|mut target| ask(&mut target, tids, options)) else {
            return;
        };
        for report in reports {
            let Err(Silence::Blocks(signal)) = report.outcome else { continue };
            let times = self.blocking.entry(report.thread.tid).or_default();
            *times += 1;
            if *times == CERTAINTY {
                let text = format!(
                    "process {pid}: {} ({}) runs with signal {signal} blocked",
                    report.thread.tid, report.thread.name
                );
                let _ = told.send(Blocking { region_nonce: name.nonce, text });
            }
        }
    }
}
