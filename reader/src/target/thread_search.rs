//! Searches for threads that the agent does not know of, from outside, during a recording.
//!
//! The agent registers threads that the program creates through an interposed function. Others are found here, in the kernel's
//! list, and sent a request for a stack: when the agent's handler runs in such a thread, it registers it. Only running or runnable
//! threads are sent the signal, so it cannot interrupt a system call. And a thread must have been unregistered at two
//! readings of the list, since a thread that is just being created registers itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use selfwind_profile::profile_file::Event;

use crate::proc::{self, Stat, threads, used_ns};
use crate::target::region_name::RegionName;
use crate::target::request::thread::ThreadState;
use crate::target::request::{NoStack, RequestOptions, Target, ask};

/// Time between two readings if all threads are known.
const INTERVAL: Duration = Duration::from_millis(50);
/// Time between two readings while one is unknown that should have registered itself.
const SHORT_INTERVAL: Duration = Duration::from_millis(10);
/// After this many readings, list the threads even if their number is unchanged: one may have ended and another started.
const LIST_EVERY: u32 = 20;
/// Time to wait for a thread's answer before the request is repeated.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(20);
/// How often a thread must be found blocking the signal to be reported: all threads do so briefly.
const BLOCKING_COUNT: u32 = 5;
/// CPU time in nanoseconds that it must have used meanwhile: on a busy machine a thread may wait for a processor while it
/// blocks the signal briefly.
const BLOCKING_CPU_NS: u64 = 10_000_000;
/// CPU time in nanoseconds after which a thread should have registered itself. Among hundreds of busy threads a new one waits
/// long for its first turn, and cannot answer before.
const REGISTERED_AFTER_NS: u64 = 1_000_000;
/// Key of the note about threads that cannot be sampled; agents use the same.
pub(crate) const NOT_SAMPLED: &str = "not sampled";
/// Link count of a directory without subdirectories.
const OWN_LINKS: u64 = 2;
/// The agent's name for the process-wide timer, whose signal reaches every thread.
const PROCESS_TIMER: &str = "itimer";

/// A thread that cannot be sampled, or several of the kernel's.
pub(crate) struct Blocking {
    /// Nonce of the region of its process.
    pub(crate) region_nonce: u64,
    /// Which thread, and why.
    pub(crate) text: String,
}

/// The search. It ends when this is dropped.
pub(crate) struct ThreadSearch {
    over: Option<Sender<()>>,
    found: Receiver<Blocking>,
    searching: Option<JoinHandle<()>>,
}

impl ThreadSearch {
    /// Searches all processes with a region in `directories`, or only the process `only`.
    ///
    /// # Errors
    /// If its thread cannot be started.
    pub(crate) fn start(directories: Vec<PathBuf>, only: Option<u32>) -> io::Result<Self> {
        let (over, is_over) = channel();
        let (told, found) = channel();
        let mut search = Search { directories, only, told, processes: BTreeMap::new() };
        let searching = std::thread::Builder::new().name("thread search".into()).spawn(move || {
            let mut turn = INTERVAL;
            while is_over.recv_timeout(turn) == Err(RecvTimeoutError::Timeout) {
                turn = if search.look() { SHORT_INTERVAL } else { INTERVAL };
            }
        })?;
        Ok(Self { over: Some(over), found, searching: Some(searching) })
    }

    /// Threads found to block the signal, each once, and processes in which the kernel's workers run.
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
    /// Access to its region; `None` if it cannot be opened.
    target: Option<Target>,
    /// Ids of registered threads, by thread number.
    known: HashMap<u32, u32>,
    looks: u32,
    /// Ids of threads that were unknown at the last reading.
    unknown: BTreeSet<u32>,
    /// The kernel's workers in the process have been reported.
    tells_workers: bool,
    /// Threads that were found to block the signal.
    blocking: BTreeMap<u32, BlockingThread>,
}

/// A thread that was found to block the signal.
#[derive(Clone, Copy)]
struct BlockingThread {
    /// How often it was found so, until it is reported.
    times: u32,
    /// CPU time that it had used the first time.
    used_ns: u64,
}

impl BlockingThread {
    const REPORTED: u32 = u32::MAX;

    /// Notes that it blocks the signal once more, having used `used_ns`. True if it must be reported now.
    fn again(&mut self, used_ns: u64) -> bool {
        if self.times == Self::REPORTED {
            return false;
        }
        self.times += 1;
        let is_certain =
            self.times >= BLOCKING_COUNT && used_ns.saturating_sub(self.used_ns) >= BLOCKING_CPU_NS;
        if is_certain {
            self.times = Self::REPORTED;
        }
        is_certain
    }
}

impl Search {
    /// Searches every process once; true if a thread is unknown.
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
    /// Lists the threads of the process, and sends requests to those that are unregistered and running. True if the list should be
    /// read again soon.
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
        // A thread created since then is unknown this time only.
        let Ok(tids) = threads(pid) else { return false };
        let is_inner = ThreadState::read(pid, pid).is_ok_and(|state| state.inner_tid != pid);
        let inner = |tid| match is_inner {
            true => ThreadState::read(pid, tid).map_or(tid, |state| state.inner_tid),
            false => tid,
        };
        let listed: BTreeMap<u32, u32> = tids.into_iter().map(|tid| (inner(tid), tid)).collect();
        // The id of an ended thread may be reused.
        self.known.retain(|_, tid| listed.contains_key(tid));
        let known: BTreeSet<u32> = self.known.values().copied().collect();
        let strange = listed.iter().filter(|(inner, _)| !known.contains(inner)).map(|(_, &tid)| tid);
        let before = std::mem::replace(&mut self.unknown, strange.collect());
        let ran = |tid: &u32| used_ns(pid, *tid) >= REGISTERED_AFTER_NS;
        let ran: Vec<u32> = self.unknown.iter().copied().filter(ran).collect();
        let (workers, ran): (Vec<u32>, Vec<u32>) =
            ran.into_iter().partition(|&tid| is_kernel_worker(pid, tid));
        self.tell_workers(name, &workers, told);
        let runs = |tid: &u32| ThreadState::read(pid, *tid).is_ok_and(|state| state.state == 'R');
        let asked: Vec<u32> = ran.iter().copied().filter(|tid| before.contains(tid)).filter(runs).collect();
        if !asked.is_empty() {
            self.ask(name, &asked, told);
        }
        self.blocking.retain(|tid, _| self.unknown.contains(tid));
        let is_uncertain = |found: &BlockingThread| found.times < BLOCKING_COUNT;
        ran.iter().any(|tid| self.blocking.get(tid).is_none_or(is_uncertain))
    }

    /// Reports once that the kernel's workers have run.
    fn tell_workers(&mut self, name: &RegionName, workers: &[u32], told: &Sender<Blocking>) {
        let pid = name.pid;
        let busy = workers.iter().find(|&&tid| used_ns(pid, tid) >= BLOCKING_CPU_NS);
        let Some(&tid) = busy.filter(|_| !self.tells_workers) else { return };
        let Ok(ThreadState { name: worker, .. }) = ThreadState::read(pid, tid) else { return };
        self.tells_workers = true;
        let text = format!(
            "process {pid}: {worker} and others like it; these threads are the kernel's, and run no code of the program"
        );
        let _ = told.send(Blocking { region_nonce: name.nonce, text });
    }

    fn ask(&mut self, name: &RegionName, tids: &[u32], told: &Sender<Blocking>) {
        let pid = name.pid;
        let options = RequestOptions { timeout: ANSWER_TIMEOUT, gentle: true };
        // Opened each time, so that the request slots are free for others in between.
        let Ok(reports) = Target::find(pid).and_then(|mut target| ask(&mut target, tids, options)) else {
            return;
        };
        for report in reports {
            let Err(NoStack::Blocks(signal)) = report.outcome else { continue };
            let used_ns = used_ns(pid, report.thread.tid);
            let found =
                self.blocking.entry(report.thread.tid).or_insert(BlockingThread { times: 0, used_ns });
            if found.again(used_ns) {
                let text = format!(
                    "process {pid}: {} ({}) runs with signal {signal} blocked",
                    report.thread.tid, report.thread.name
                );
                let _ = told.send(Blocking { region_nonce: name.nonce, text });
            }
        }
    }
}

fn is_kernel_worker(pid: u32, tid: u32) -> bool {
    Stat::of_thread(pid, tid).is_some_and(|stat| stat.is_kernel_worker())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_told_of_once_when_it_has_run_with_the_signal_blocked() {
        let mut starved = BlockingThread { times: 0, used_ns: 700 };
        assert!((0..100).all(|_| !starved.again(700)));
        let mut busy = BlockingThread { times: 0, used_ns: 700 };
        let told: Vec<u64> = (0..20).filter(|turn| busy.again(turn * 4_000_000)).collect();
        assert_eq!(told, [4]);
        assert!(starved.again(BLOCKING_CPU_NS + 700) && !starved.again(u64::MAX));
    }
}
