//! Builds missing unwind tables in the background of a recording, without delaying it.
//!
//! A low-priority thread builds tables for the modules that are reported. A program that starts before its tables exist decodes
//! `.eh_frame` on demand; the next one finds the tables. What cannot be decoded on demand is compiled before the start.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use object::{Object, ReadCache};
use offline::SourceFile;
use selfwind_profile::profile_file::{Event, ModuleInfo};
use unwind::{compile, go_table};

use super::cache::{Cache, Limits};
use crate::terminal::notices::Notices;

/// Niceness of the thread: any other work comes first.
const NICENESS: i32 = 19;

/// A module that needs a table.
struct WantedTable {
    pid: u32,
    path: PathBuf,
    build_id: Vec<u8>,
}

/// Builds missing tables.
pub(crate) struct Builder {
    cache: Cache,
    notices: Notices,
    thread: Option<Thread>,
    /// Process ids by the profile's numbers.
    pids: HashMap<u32, u32>,
    asked: HashSet<Vec<u8>>,
}

/// The thread and its queue.
struct Thread {
    queue: Sender<WantedTable>,
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
        // Skip the vdso, which is not a file, and modules without a build-id.
        if !module.path.is_absolute()
            || module.build_id.is_empty()
            || !self.asked.insert(module.build_id.clone())
        {
            return;
        }
        let pid = self.pids.get(&module.process).copied().unwrap_or(0);
        // Usually all tables exist, and no thread is started.
        if self.cache.holds(&module.build_id) {
            return;
        }
        let wanted = WantedTable { pid, path: module.path.clone(), build_id: module.build_id.clone() };
        if self.thread.is_none() {
            self.thread = Thread::start(self.cache.clone(), self.notices);
        }
        if let Some(thread) = &self.thread {
            // If the thread has ended, it has reported why.
            let _ = thread.queue.send(wanted);
        }
    }

    /// Waits until the queue is empty, at most for `timeout`.
    pub(crate) fn finish(self, timeout: Duration) {
        let Some(Thread { queue, done }) = self.thread else { return };
        drop(queue);
        let waited = done.recv_timeout(timeout);
        debug_assert!(matches!(waited, Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected)));
    }
}

impl Thread {
    /// `None` if no thread can be started.
    fn start(cache: Cache, notices: Notices) -> Option<Self> {
        let (queue, wanted) = channel();
        let (alive, done) = channel::<()>();
        let work = move || {
            let _alive = alive;
            let _ = rustix::process::setpriority_process(None, NICENESS);
            work_off(&cache, &wanted, notices);
        };
        thread::Builder::new().name("tables".into()).spawn(work).ok()?;
        Some(Self { queue, done })
    }
}

fn work_off(cache: &Cache, wanted: &Receiver<WantedTable>, notices: Notices) {
    let mut built = 0;
    for wanted in wanted {
        let path = wanted.path.display();
        match provide(cache, &wanted) {
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

/// Builds the table of a program that is about to start, if its file has call frame information that will not be in memory:
/// `.debug_frame`, or the table of a Go program.
pub(crate) fn before_start(cache: &Cache, program: &Path, notices: Notices) {
    let made = || -> Result<bool> {
        let content = ReadCache::new(File::open(program)?);
        let elf = object::File::parse(&content)?;
        let build_id = elf.build_id()?.unwrap_or_default();
        let has_more =
            [".debug_frame", go_table::SECTION].iter().any(|name| elf.section_by_name(name).is_some());
        if !has_more || build_id.is_empty() || !cache.is_writable() || cache.holds(build_id) {
            return Ok(false);
        }
        build(cache, &the_file(program, build_id)?).map(|_| true)
    };
    // All other programs get their tables later.
    if let Ok(true) = made() {
        notices.detail(format_args!("{}: unwind table made before it starts", program.display()));
    }
}

/// Ensures that there is a table. Returns its path if it was built now.
fn provide(cache: &Cache, wanted: &WantedTable) -> Result<Option<PathBuf>> {
    if cache.load(&wanted.build_id).is_ok() {
        return Ok(None);
    }
    // The path in the process's root directory, which may differ, or else in that of the recorder, if the process has ended.
    let inside = Path::new("/proc").join(wanted.pid.to_string()).join("root");
    let inside = inside.join(wanted.path.strip_prefix("/").unwrap_or(&wanted.path));
    let file = the_file(&inside, &wanted.build_id).or_else(|_| the_file(&wanted.path, &wanted.build_id))?;
    build(cache, &file).map(Some)
}

fn the_file(path: &Path, build_id: &[u8]) -> Result<SourceFile> {
    let file = SourceFile::read(path)?;
    if file.build_id != build_id {
        bail!("the file has been replaced since it was loaded");
    }
    Ok(file)
}

/// Compiles the table of `file` into `cache`.
pub(crate) fn build(cache: &Cache, file: &SourceFile) -> Result<PathBuf> {
    let elf = file.elf();
    let build_id = elf.build_id.context("it has no build-id, which would name the table")?;
    let eh_frame = elf.eh_frame.context("no .eh_frame")?;
    let mut table = compile::compile_for(elf.machine, eh_frame, 0, build_id)?;
    compile::set_source(&mut table, &file.identity);
    cache.store(build_id, &table).with_context(|| format!("cannot write to {}", cache.directory().display()))
}
