//! Builds the tables that recorded programs lack, beside the recording and never in its way.
//!
//! One thread of low priority works through the modules that the recording meets. A program that starts before its
//! tables are there decodes on demand; the next one finds them. What it could not decode is compiled before it starts.

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
use unwind::compile;

use super::cache::{Cache, Limits};
use crate::terminal::notices::Notices;

/// Niceness of the thread: whoever else wants the processor has it.
const NICENESS: i32 = 19;

/// A module whose table is wanted.
struct Wanted {
    pid: u32,
    path: PathBuf,
    build_id: Vec<u8>,
}

/// What is wanted, and who makes it.
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
    queue: Sender<Wanted>,
    /// Says nothing; it ends with the thread.
    done: Receiver<()>,
}

impl Builder {
    /// None when `cache` is only to be read.
    pub(crate) fn new(cache: Cache, notices: Notices) -> Option<Self> {
        cache.is_writable().then(|| Self {
            cache,
            notices,
            thread: None,
            pids: HashMap::new(),
            asked: HashSet::new(),
        })
    }

    /// Takes notice of what the recording has met.
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
        // Neither the vdso, which is no file, nor what has no name in the cache.
        if !module.path.is_absolute()
            || module.build_id.is_empty()
            || !self.asked.insert(module.build_id.clone())
        {
            return;
        }
        let pid = self.pids.get(&module.process).copied().unwrap_or(0);
        // Most often all tables are there, and there is no thread.
        if self.cache.holds(&module.build_id) {
            return;
        }
        let wanted = Wanted { pid, path: module.path.clone(), build_id: module.build_id.clone() };
        if self.thread.is_none() {
            self.thread = Thread::start(self.cache.clone(), self.notices);
        }
        if let Some(thread) = &self.thread {
            // A thread that has ended has said why.
            let _ = thread.queue.send(wanted);
        }
    }

    /// Waits until everything asked for is done, but no longer than `patience`.
    pub(crate) fn finish(self, patience: Duration) {
        let Some(Thread { queue, done }) = self.thread else { return };
        drop(queue);
        let waited = done.recv_timeout(patience);
        debug_assert!(matches!(waited, Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected)));
    }
}

impl Thread {
    /// None when there are no threads left.
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

fn work_off(cache: &Cache, wanted: &Receiver<Wanted>, notices: Notices) {
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

/// Makes the table of a program that is about to start, if call frame information is in its file that will not be in its
/// memory: `.debug_frame`, the only one that Go writes.
pub(crate) fn before_start(cache: &Cache, program: &Path, notices: Notices) {
    let made = || -> Result<bool> {
        let content = ReadCache::new(File::open(program)?);
        let elf = object::File::parse(&content)?;
        let build_id = elf.build_id()?.unwrap_or_default();
        let has_more = elf.section_by_name(".debug_frame").is_some();
        if !has_more || build_id.is_empty() || !cache.is_writable() || cache.holds(build_id) {
            return Ok(false);
        }
        build(cache, &the_file(program, build_id)?).map(|_| true)
    };
    // Whatever else is to be started has no table, or gets one later.
    if let Ok(true) = made() {
        notices.detail(format_args!("{}: unwind table made before it starts", program.display()));
    }
}

/// Makes sure that there is a table; its path if it had to be made.
fn provide(cache: &Cache, wanted: &Wanted) -> Result<Option<PathBuf>> {
    if cache.load(&wanted.build_id).is_ok() {
        return Ok(None);
    }
    // The name as the program sees it, then as we do: it may live in another root directory, or be gone already.
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
