//! Builds missing unwind tables in the background of a recording, without delaying it.
//!
//! A low-priority thread builds tables for the modules that are reported. A program that starts before its tables exist decodes
//! `.eh_frame` on demand; the next one finds the tables, and a running one is told to look for those that it lacks. What cannot be
//! decoded on demand is compiled before the start.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use compilation::set_source;
use object::{Object, ObjectSection, ReadCache};
use offline::SourceFile;
use selfwind_profile::profile_file::{Event, ModuleInfo};
use unwind::{Source, go_table, table_file};

use super::cache::{Cache, Limits};
use crate::terminal::notices::Notices;

/// Niceness of the thread: other work comes first, but not so much that a busy program never gets its tables.
const NICENESS: i32 = 5;

/// With less call frame information than its code divided by this, a file hardly has any.
const SPARSE: u64 = 16;
/// Bytes of code without call frame information beyond which no program waits for a table: a second or two.
const CODE_MOST: u64 = 4 << 20;

/// Bytes of a file beyond which its table, if it is under construction when a recording ends, is not waited for any longer than the
/// others: four seconds or more.
const LARGEST: u64 = 64 << 20;
/// How long one table is waited for.
const LONGEST: Duration = Duration::from_secs(10);

/// A module that needs a table.
struct WantedTable {
    pid: u32,
    /// Bytes of its file.
    len: u64,
    path: PathBuf,
    /// What names the table: the build-id, or else the key of the file.
    key: Vec<u8>,
}

/// Builds missing tables.
pub(crate) struct Builder {
    cache: Cache,
    notices: Notices,
    thread: Option<Thread>,
    /// Process ids by the profile's numbers.
    pids: HashMap<u32, u32>,
    asked: HashSet<Vec<u8>>,
    made: Arc<AtomicU64>,
}

/// What the thread and its recorder tell each other.
#[derive(Default)]
struct State {
    /// Bytes of the file whose table is under construction.
    len: AtomicU64,
    /// No other table is to be begun.
    is_ending: AtomicBool,
}

/// The thread and its queue.
struct Thread {
    queue: Sender<WantedTable>,
    state: Arc<State>,
    /// Carries no messages; it disconnects when the thread ends.
    done: Receiver<()>,
}

impl Builder {
    /// `None` if `cache` is read-only.
    pub(crate) fn new(cache: Cache, notices: Notices) -> Option<Self> {
        cache.is_writable().then(|| Self {
            cache,
            notices,
            thread: None,
            pids: HashMap::new(),
            asked: HashSet::new(),
            made: Arc::default(),
        })
    }

    /// Takes in an event: queues the modules that need a table.
    pub(crate) fn observe(&mut self, event: &Event) {
        match event {
            Event::Process(process) => {
                self.pids.insert(process.id, process.pid);
            }
            Event::ProcessEnd(end) => {
                self.pids.remove(&end.process);
            }
            Event::Module(module) => self.want(module),
            _ => {}
        }
    }

    fn want(&mut self, module: &ModuleInfo) {
        // Skip the vdso, which is not a file.
        if !module.path.is_absolute() {
            return;
        }
        let pid = self.pids.get(&module.process).copied().unwrap_or(0);
        let path = module.path.clone();
        let key = match module.build_id.as_slice() {
            [] => the_file_key(pid, &path),
            build_id => Some(build_id.to_vec()),
        };
        let Some(key) = key.filter(|key| !self.asked.contains(key)) else { return };
        self.asked.insert(key.clone());
        // Usually all tables exist, and no thread is started.
        if self.cache.holds(&key) {
            return;
        }
        let len = metadata(pid, &path).map_or(0, |metadata| metadata.len());
        let wanted = WantedTable { pid, len, path, key };
        if self.thread.is_none() {
            self.thread = Thread::start(self.cache.clone(), self.made.clone(), self.notices);
        }
        if let Some(thread) = &self.thread {
            // If the thread has ended, it has reported why.
            let _ = thread.queue.send(wanted);
        }
    }

    /// Number of tables that have been made since their programs looked for them.
    pub(crate) fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Waits until the queue is empty, at most for `timeout`; then for the table under construction, unless that takes too long.
    /// Otherwise all recordings of a program would begin it, and none end it.
    pub(crate) fn finish(self, timeout: Duration) {
        if let Some(thread) = self.thread {
            thread.finish(timeout);
        }
    }
}

impl Thread {
    /// `None` if no thread can be started.
    fn start(cache: Cache, made: Arc<AtomicU64>, notices: Notices) -> Option<Self> {
        Self::work(move |queue| work_off(&cache, queue, &made, notices))
    }

    fn work(work_off: impl FnOnce(Queue) + Send + 'static) -> Option<Self> {
        let (queue, wanted) = channel();
        let (alive, done) = channel::<()>();
        let state = Arc::new(State::default());
        let queued = Queue { wanted, waiting: Vec::new(), state: state.clone() };
        let work = move || {
            let _alive = alive;
            let _ = rustix::process::setpriority_process(None, NICENESS);
            work_off(queued);
        };
        thread::Builder::new().name("tables".into()).spawn(work).ok()?;
        Some(Self { queue, state, done })
    }

    fn finish(self, timeout: Duration) {
        let Self { queue, state, done } = self;
        drop(queue);
        if done.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout) {
            state.is_ending.store(true, Ordering::Relaxed);
            if state.len.load(Ordering::Relaxed) <= LARGEST {
                let _ = done.recv_timeout(LONGEST);
            }
        }
    }
}

/// The tables that are wanted, those of small files first: a large one takes longer than many recordings.
struct Queue {
    wanted: Receiver<WantedTable>,
    waiting: Vec<WantedTable>,
    state: Arc<State>,
}

impl Iterator for Queue {
    type Item = WantedTable;

    fn next(&mut self) -> Option<WantedTable> {
        if self.waiting.is_empty() {
            self.waiting.push(self.wanted.recv().ok()?);
        }
        self.waiting.extend(self.wanted.try_iter());
        let (smallest, next) = self.waiting.iter().enumerate().min_by_key(|(_, wanted)| wanted.len)?;
        self.state.len.store(next.len, Ordering::Relaxed);
        let next = self.waiting.swap_remove(smallest);
        (!self.state.is_ending.load(Ordering::Relaxed)).then_some(next)
    }
}

fn work_off(cache: &Cache, queue: Queue, made: &AtomicU64, notices: Notices) {
    let mut built = 0;
    for wanted in queue {
        let path = wanted.path.display();
        let provided = provide(cache, &wanted);
        if provided.is_ok() {
            // Even if it was there already: another recorder may have made it after the program had looked for it.
            made.fetch_add(1, Ordering::Relaxed);
        }
        match provided {
            Ok(None) => {}
            Ok(Some(table)) => {
                built += 1;
                notices.detail(format_args!("{path}: unwind table {}", table.display()));
            }
            Err(reason) => notices.detail(format_args!("{path}: no unwind table: {reason:#}")),
        }
    }
    if built > 0 {
        let _ = cache.prune(Limits::default());
    }
}

/// Builds the tables of a program that is about to start, and of its loader, if their files have unwind information that will
/// not be in memory: `.debug_frame`, the table of a Go program, or the code itself where little of it has call frame information.
/// All other programs get their tables later.
pub(crate) fn before_start(cache: &Cache, program: &Path, notices: Notices) {
    prepare(cache, program, Path::new("/"), notices);
}

/// Like [`before_start`], for a process that runs already, in the user's cache.
pub(crate) fn before_attach(pid: u32, notices: Notices) {
    if let Some(cache) = Cache::of_user(Notices::Quiet) {
        let process = Path::new("/proc").join(pid.to_string());
        prepare(&cache, &process.join("exe"), &process.join("root"), notices);
    }
}

fn prepare(cache: &Cache, program: &Path, root: &Path, notices: Notices) {
    let made = |path: &Path| -> Result<bool> {
        let content = ReadCache::new(File::open(path)?);
        let elf = object::File::parse(&content)?;
        let identity = SourceFile::identity_of(&fs::metadata(path)?);
        let key = key_of(elf.build_id()?.unwrap_or_default(), &identity);
        if !cache.is_writable() || cache.holds(&key) || !needs_table(&elf) {
            return Ok(false);
        }
        build(cache, &the_file(path, &key)?).map(|_| true)
    };
    let loader = || -> Option<PathBuf> {
        let content = ReadCache::new(File::open(program).ok()?);
        let elf = object::File::parse(&content).ok()?;
        let path = elf.section_by_name(".interp")?.data().ok()?;
        let path = Path::new(OsStr::from_bytes(path.strip_suffix(&[0])?));
        Some(root.join(path.strip_prefix("/").unwrap_or(path)))
    };
    for path in [program.to_owned()].into_iter().chain(loader()) {
        if let Ok(true) = made(&path) {
            notices.detail(format_args!("{}: unwind table made beforehand", path.display()));
        }
    }
}

/// Whether the process will have to do without most of the file's unwind information, unless it has a table.
fn needs_table<'d>(elf: &impl Object<'d>) -> bool {
    let size = |name: &str| elf.section_by_name(name).map_or(0, |section| section.size());
    if [".debug_frame", go_table::SECTION].iter().any(|name| size(name) > 0) {
        return true;
    }
    // Not decoded: compilers write about a fifth as much call frame information as code.
    let code = size(".text");
    code <= CODE_MOST && size(".eh_frame") < code / SPARSE
}

/// Ensures that there is a table. Returns its path if it was built now.
fn provide(cache: &Cache, wanted: &WantedTable) -> Result<Option<PathBuf>> {
    if cache.load(&wanted.key).is_ok() {
        return Ok(None);
    }
    let file = the_file(&inside(wanted.pid, &wanted.path), &wanted.key)
        .or_else(|_| the_file(&wanted.path, &wanted.key))?;
    build(cache, &file).map(Some)
}

/// `path` in the root directory of a process, which may differ from that of the recorder. Once the process has ended, there is
/// only the latter.
fn inside(pid: u32, path: &Path) -> PathBuf {
    let root = Path::new("/proc").join(pid.to_string()).join("root");
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn the_file(path: &Path, key: &[u8]) -> Result<SourceFile> {
    let file = SourceFile::read(path)?;
    if key_of(&file.build_id, &file.identity) != key {
        bail!("the file has been replaced since it was loaded");
    }
    Ok(file)
}

fn metadata(pid: u32, path: &Path) -> Option<fs::Metadata> {
    fs::metadata(inside(pid, path)).or_else(|_| fs::metadata(path)).ok()
}

/// The key of the file that a process has loaded from `path`, which has no build-id.
fn the_file_key(pid: u32, path: &Path) -> Option<Vec<u8>> {
    let metadata = metadata(pid, path)?;
    metadata.is_file().then(|| key_of(&[], &SourceFile::identity_of(&metadata)))
}

/// What names the table of a file.
fn key_of(build_id: &[u8], identity: &Source) -> Vec<u8> {
    match build_id {
        [] => table_file::file_key(identity).to_vec(),
        build_id => build_id.to_vec(),
    }
}

/// Compiles the table of `file` into `cache`.
pub(crate) fn build(cache: &Cache, file: &SourceFile) -> Result<PathBuf> {
    let key = key_of(&file.build_id, &file.identity);
    let mut table = file.table(&key)?;
    set_source(&mut table, &file.identity);
    cache.store(&key, &table).with_context(|| format!("cannot write to {}", cache.directory().display()))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn wanted(len: u64) -> WantedTable {
        WantedTable { pid: 0, len, path: PathBuf::new(), key: Vec::new() }
    }

    /// The lengths of the files whose tables are made if the recording ends once the first one is under construction, which is
    /// completed `meanwhile` or after that.
    fn made(lens: &[u64], meanwhile: bool) -> Vec<u64> {
        let (begun, has_begun) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let (made, all) = mpsc::channel();
        let work = move |queue: Queue| {
            ended.recv().unwrap();
            for wanted in queue {
                let _ = begun.send(());
                // Until the recorder no longer waits for all tables.
                let _ = ended.recv();
                thread::sleep(Duration::from_millis(50));
                let _ = made.send(wanted.len);
            }
        };
        let thread = Thread::work(work).unwrap();
        lens.iter().for_each(|&len| thread.queue.send(wanted(len)).unwrap());
        end.send(()).unwrap();
        has_begun.recv().unwrap();
        let state = thread.state.clone();
        let waiting = thread::spawn(move || thread.finish(Duration::ZERO));
        while !state.is_ending.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        let end = (!meanwhile).then_some(end);
        waiting.join().unwrap();
        let made = all.try_iter().collect();
        drop(end);
        made
    }

    #[test]
    fn a_table_under_construction_is_waited_for_and_the_smallest_comes_first() {
        assert_eq!(made(&[30, 10, 20], true), [10]);
        assert_eq!(made(&[LARGEST], true), [LARGEST]);
    }

    #[test]
    fn a_very_large_one_is_not_waited_for() {
        assert!(made(&[LARGEST + 1], false).is_empty());
    }
}
