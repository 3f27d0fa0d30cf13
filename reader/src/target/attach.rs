//! Access to memory written by other processes: regions, the doorbell. All `unsafe` code of this crate is in this folder.
//!
//! A file is mapped only after checks on its descriptor: a regular file of this user, inaccessible to others, and as long as its
//! header claims. Its contents stay untrusted: `shm_format` copies and checks them.

pub(crate) mod owner;
mod perf_event;
pub(crate) mod ptrace;
pub(crate) mod request;
mod truncation;

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use memmap2::{MmapMut, MmapOptions, MmapRaw};
use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use rustix::event::Timespec;
use rustix::fs::{FallocateFlags, FlockOperation, flock};
use rustix::thread::futex;
use shm_format::injection::Call;
use shm_format::layout::PAGE;
use shm_format::record;
use shm_format::{
    Anchor, ChunkInfo, ClockKind, CountersSnapshot, DrainStats, DurableRecord, DurableStats, Geometry,
    Identity, LayoutError, Mode, Pass, RecordRef, RegionReader,
};

pub(crate) use perf_event::{PerfScope, probe_deferred_callchains, probe_perf_event};

/// Maximum size of a region; a larger file is not one.
const REGION_LIMIT: u64 = 4 << 30;

/// Why a region cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    /// Its process is still creating it.
    #[error("it is not finished yet")]
    Unfinished,
    /// Another reader has it.
    #[error("another selfwind is recording it; stop that one first")]
    Busy,
    /// The file is not one that this user's agent would make.
    #[error("not a region: {0}")]
    Refused(&'static str),
    /// Its contents are not a region of this version.
    #[error("{0}; run it with the agent of this selfwind (`selfwind agent-path`)")]
    Layout(LayoutError),
    /// The system refused.
    #[error("cannot open it: {0}")]
    System(#[from] io::Error),
}

/// A region of another process, mapped and locked for this reader.
pub(crate) struct Attached {
    // Before the mapping, as fields are dropped in order.
    reader: RegionReader,
    map: MmapRaw,
    /// The file was truncated: no more data can be read.
    truncated: Cell<bool>,
    /// Holds the lock.
    file: File,
}

impl Attached {
    /// Maps a region and takes the reader's lock on it.
    pub(crate) fn open(path: &Path) -> Result<Self, AttachError> {
        let file = open_region(path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            rustix::io::Errno::WOULDBLOCK => AttachError::Busy,
            other => AttachError::System(other.into()),
        })?;
        Self::map(file)
    }

    /// Maps a region without taking the lock, to look at it without draining.
    pub(crate) fn peek(path: &Path) -> Result<Peek, AttachError> {
        let mut attached = Self::map(open_region(path)?)?;
        let mut peek = Peek {
            samples: attached.counters().recorded.count,
            exe: String::new(),
            control: None,
            recorder: None,
            sampling: true,
            source: (0, 0),
            probes: String::new(),
        };
        attached.durable(&mut |record| match record {
            DurableRecord::Process(process) => {
                peek.exe = String::from_utf8_lossy(process.exe).into_owned();
                peek.source = (process.source, process.period_ns);
            }
            DurableRecord::Setting(setting) if setting.key == Call::SETTING => {
                let value = std::str::from_utf8(setting.value).ok();
                let control = value.and_then(|value| u64::from_str_radix(value, 16).ok());
                (peek.control, peek.sampling) = (control.or(peek.control), control.is_some());
            }
            DurableRecord::Setting(setting) if setting.key == Call::RECORDER => {
                let value = std::str::from_utf8(setting.value).ok().and_then(|value| value.split_once('-'));
                peek.recorder = value.and_then(|(pid, start)| Some((pid.parse().ok()?, start.parse().ok()?)));
            }
            DurableRecord::Setting(setting) if setting.key == record::Setting::PROBES => {
                peek.probes = String::from_utf8_lossy(setting.value).into_owned();
            }
            _ => {}
        });
        Ok(peek)
    }

    fn map(file: File) -> Result<Self, AttachError> {
        let map = MmapOptions::new().map_raw(&file)?;
        let base = NonNull::new(map.as_mut_ptr()).ok_or(AttachError::Refused("it maps to nothing"))?;
        // SAFETY: `base..base + len` is the mapping just made, readable, writable and as long as the file; it is
        // stored beside the reader and unmapped after it. Should the file get shorter, `truncation` keeps the range
        // accessible; every access of the reader goes through it.
        let (opened, truncated) =
            truncation::guarded(&map, || unsafe { RegionReader::open(base, map.len()) });
        let reader = opened.map_err(|error| match error {
            LayoutError::BadMagic(0) => AttachError::Unfinished,
            other => AttachError::Layout(other),
        })?;
        Ok(Self { reader, map, truncated: Cell::new(truncated), file })
    }

    /// Ends the access; the memory of a removed region is freed with what this returns.
    pub(crate) fn into_memory(self) -> RegionMemory {
        RegionMemory { _map: self.map, _file: self.file }
    }

    /// True once the file was found to be truncated: data read after that is meaningless.
    pub(crate) fn is_truncated(&self) -> bool {
        self.truncated.get()
    }

    /// Reads the shared memory.
    fn read<T>(&self, access: impl FnOnce(&RegionReader) -> T) -> T {
        let (result, truncated) = truncation::guarded(&self.map, || access(&self.reader));
        self.truncated.set(self.truncated.get() || truncated);
        result
    }

    /// Reads the shared memory and advances in it.
    fn take<T>(&mut self, access: impl FnOnce(&mut RegionReader) -> T) -> T {
        let (result, truncated) = truncation::guarded(&self.map, || access(&mut self.reader));
        self.truncated.set(self.truncated.get() || truncated);
        result
    }

    /// Who wrote it.
    pub(crate) fn identity(&self) -> Identity {
        // The file's owner, not what the region claims.
        let uid = self.file.metadata().map_or(u32::MAX, |metadata| metadata.uid());
        Identity { uid, ..self.reader.identity() }
    }

    /// Its sizes.
    pub(crate) fn geometry(&self) -> &Geometry {
        self.reader.geometry()
    }

    /// What happens to new records if the pool is full.
    pub(crate) fn mode(&self) -> Mode {
        self.reader.mode()
    }

    /// Its clock.
    pub(crate) fn clock(&self) -> ClockKind {
        self.reader.clock()
    }

    /// The clocks when it was created.
    pub(crate) fn anchor(&self) -> Anchor {
        self.reader.anchor()
    }

    /// Its counters now.
    pub(crate) fn counters(&self) -> CountersSnapshot {
        self.read(RegionReader::counters)
    }

    /// Reads the tables behind the answers.
    pub(crate) fn tables<T>(&self, access: impl FnOnce(&[AtomicU64]) -> T) -> T {
        self.read(|reader| access(reader.tables()))
    }

    /// Number of recordings that have begun after the first one.
    pub(crate) fn recordings(&self) -> u64 {
        self.read(RegionReader::recordings)
    }

    /// Delivers new durable records.
    pub(crate) fn durable(&mut self, sink: &mut dyn FnMut(DurableRecord<'_>)) -> DurableStats {
        self.take(|reader| reader.durable(sink))
    }

    /// Delivers new records of the pool.
    pub(crate) fn drain(
        &mut self,
        pass: Pass,
        scratch: &mut [u8],
        sink: &mut dyn FnMut(ChunkInfo, RecordRef<'_>),
    ) -> DrainStats {
        self.take(|reader| reader.drain(pass, scratch, sink))
    }

    /// Delivers new records of the pool, which stay there until they are [acknowledged](Self::acknowledge): see
    /// [`RegionReader::drain_holding`].
    pub(crate) fn drain_holding(
        &mut self,
        pass: Pass,
        scratch: &mut [u8],
        positions: &mut Vec<u64>,
        sink: &mut dyn FnMut(ChunkInfo, RecordRef<'_>),
    ) -> DrainStats {
        self.take(|reader| {
            positions.resize(reader.chunks().max(positions.len()), 0);
            reader.drain_holding(pass, scratch, positions, sink)
        })
    }

    /// Acknowledges the records of chunks before these positions.
    pub(crate) fn acknowledge(&mut self, positions: &[(u32, u64)]) {
        self.take(|reader| {
            for (chunk, position) in positions {
                reader.acknowledge(*chunk, *position);
            }
        });
    }

    /// True while there is a complete chunk to drain.
    pub(crate) fn has_complete(&self) -> bool {
        self.read(RegionReader::has_complete)
    }

    /// The number of chunks with memory, and how many of them are free.
    pub(crate) fn fill(&self) -> (usize, usize) {
        self.read(|reader| (reader.chunks(), reader.free_chunks()))
    }

    /// Allocates memory for the first `chunks` chunks, as far as the process has mapped them, and makes them available to writers.
    /// Returns how many have memory now.
    pub(crate) fn extend_pool(&mut self, chunks: usize) -> io::Result<usize> {
        let (backed, mapped) = self.read(|reader| (reader.chunks(), reader.chunks_mapped()));
        let chunks = chunks.min(mapped);
        if chunks <= backed {
            return Ok(backed);
        }
        let offset = |chunk: usize| self.geometry().chunk_offset(chunk as u32) as u64;
        let (from, to) = (offset(backed), offset(chunks));
        rustix::fs::fallocate(&self.file, FallocateFlags::empty(), from, to - from)?;
        self.read(|reader| reader.offer(chunks));
        Ok(chunks)
    }

    /// Begins another recording: blocks allocated from now on are told from earlier ones.
    pub(crate) fn begin_recording(&self) {
        self.read(|reader| reader.begin_recording());
    }

    /// Tells the process that there are new unwind tables.
    pub(crate) fn tell_tables(&self) {
        self.read(|reader| reader.tell_tables());
    }

    /// Closes the chunks of a thread that is gone.
    pub(crate) fn retire(&mut self, tid: u32, thread_seq: u32) {
        self.take(|reader| reader.retire(tid, thread_seq));
    }
}

/// The memory of a region that is no longer accessed.
pub(crate) struct RegionMemory {
    _map: MmapRaw,
    _file: File,
}

/// A region's properties that can be read without draining it.
#[derive(Debug)]
pub(crate) struct Peek {
    /// Samples recorded so far.
    pub(crate) samples: u64,
    /// The program.
    pub(crate) exe: String,
    /// The address by which a recorder can call an injected agent again.
    pub(crate) control: Option<u64>,
    /// False after a recorder has stopped the sampling.
    pub(crate) sampling: bool,
    /// The recorder whose end stops the sampling: its pid and start time.
    pub(crate) recorder: Option<(u32, u64)>,
    /// The number of its source, and the nanoseconds of a unit of weight.
    pub(crate) source: (u32, u64),
    /// Its sources other than the clock, as reported by the process.
    pub(crate) probes: String,
}

fn open_region(path: &Path) -> Result<File, AttachError> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags.bits()).open(path)?;
    let metadata = file.metadata()?;
    let refuse = |why| Err(AttachError::Refused(why));
    match metadata.len() {
        _ if !metadata.is_file() => refuse("it is not a regular file"),
        _ if metadata.uid() != geteuid().as_raw() && !path.parent().is_some_and(owner::is_open_to_all) => {
            refuse("it belongs to another user")
        }
        // Someone may have created a hard link here to a file that they cannot access.
        _ if metadata.nlink() != 1 => refuse("it has another name"),
        _ if metadata.mode() & 0o077 != 0 => refuse("others may open it"),
        0 => Err(AttachError::Unfinished),
        len if len < 2 * PAGE as u64 => refuse("it is too short"),
        len if len > REGION_LIMIT => refuse("it is too long"),
        _ => Ok(file),
    }
}

/// A futex on which the reader sleeps and by which other processes wake it.
pub(crate) struct Doorbell {
    page: shm_format::Doorbell,
    map: MmapRaw,
}

impl Doorbell {
    /// A doorbell that the processes of a session share; `file` is new and empty.
    pub(super) fn in_file(file: &File) -> io::Result<Self> {
        // Written instead of only extended: a store to a page without memory raises SIGBUS.
        (&*file).write_all(&[0; PAGE])?;
        Self::format(MmapOptions::new().len(PAGE).map_raw(file)?)
    }

    /// A doorbell for this process alone, if the recorded processes do not know one.
    pub(crate) fn private() -> io::Result<Self> {
        Self::format(MmapMut::map_anon(PAGE)?.into())
    }

    fn format(map: MmapRaw) -> io::Result<Self> {
        let base = NonNull::new(map.as_mut_ptr()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the page is mapped readable and writable for the life of `map`, which is stored beside it.
        let page = unsafe { shm_format::Doorbell::format(base, map.len()) }.map_err(io::Error::other)?;
        Ok(Self { page, map })
    }

    /// Accesses the page. If its file was truncated, no one can ring any more, and every sleep runs until its timeout.
    fn touch<T>(&self, access: impl FnOnce(&shm_format::DoorbellPage) -> T) -> T {
        truncation::guarded(&self.map, || access(&self.page)).0
    }

    fn futex(&self) -> &AtomicU32 {
        // SAFETY: the word lies in the page that `self` keeps mapped, is aligned, and is only used atomically.
        unsafe { AtomicU32::from_ptr(self.page.futex_word()) }
    }

    /// The number of changes announced so far: to be read before the changes.
    pub(crate) fn changes(&self) -> u32 {
        self.touch(shm_format::DoorbellPage::changes)
    }

    /// Announces sleep. Check for work once more, then sleep on the result. It will not sleep if more than these `changes` have been
    /// announced.
    pub(crate) fn prepare_sleep(&self, changes: u32) -> Sleep<'_> {
        self.touch(shm_format::DoorbellPage::prepare_sleep);
        Sleep { doorbell: self, is_due: self.changes() != changes }
    }

    /// Wakes the reader, if it sleeps.
    pub(crate) fn ring(&self) {
        if self.touch(shm_format::DoorbellPage::ring) {
            let _ = futex::wake(self.futex(), futex::Flags::empty(), 1);
        }
    }

    /// Has processes ring also when they have begun and when their modules have changed.
    pub(crate) fn ask_for_changes(&self) {
        self.touch(shm_format::DoorbellPage::ask_for_changes);
    }

    /// The recorder has started process `pid`, which nothing has sampled so far.
    pub(crate) fn tell_unsampled_exec(&self, pid: u32) {
        self.touch(|page| page.exec_times.put(pid, 0));
    }

    /// Signals all processes of the session that the recording has ended.
    pub(crate) fn stop(&self) {
        self.touch(shm_format::DoorbellPage::stop);
    }
}

/// An announced sleep.
pub(crate) struct Sleep<'a> {
    doorbell: &'a Doorbell,
    /// There is something to do at once.
    is_due: bool,
}

impl Sleep<'_> {
    /// Sleeps until the doorbell rings, at most for `timeout`.
    pub(crate) fn sleep(self, timeout: Duration) {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        if self.is_due {
            return;
        }
        // The reason for waking does not matter: the caller checks for work in any case.
        let _ = futex::wait(self.doorbell.futex(), futex::Flags::empty(), 1, Some(&timeout));
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        self.doorbell.touch(shm_format::DoorbellPage::awake);
    }
}

/// The time-stamp counter.
pub(super) fn read_tsc() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; it only reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;

    #[test]
    fn files_that_are_no_regions_are_refused() {
        let dir = std::env::temp_dir().join(format!("selfwind-attach-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let path = dir.join("a.region");
        let refused = |content: &[u8], mode: u32| {
            let _ = fs::remove_file(&path);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Attached::open(&path).err().unwrap().to_string()
        };
        assert!(refused(&[0; 8192], 0o644).contains("others may open it"));
        assert!(refused(&[1; 100], 0o600).contains("too short"));
        assert!(refused(&[1; 8192], 0o600).contains("not a region"));
        assert!(refused(&[0; 8192], 0o600).contains("not finished"));
        assert!(refused(&[], 0o600).contains("not finished"));
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(matches!(Attached::open(&path), Err(AttachError::System(_))));
        assert!(matches!(Attached::open(&dir), Err(AttachError::System(_))));
        fs::remove_dir_all(&dir).unwrap();
    }

    /// Whether a thread of this process waits in the kernel, as far as the kernel tells.
    fn is_asleep(thread: i32) -> bool {
        let call = fs::read_to_string(format!("/proc/self/task/{thread}/syscall"));
        call.is_ok_and(|call| call.starts_with(&format!("{} ", nix::libc::SYS_futex)))
    }

    #[test]
    fn of_many_sleepers_each_ring_wakes_one() {
        const SLEEPERS: usize = 6;
        let doorbell = std::sync::Arc::new(Doorbell::private().unwrap());
        let (told, threads) = std::sync::mpsc::channel();
        let (woke, woken) = std::sync::mpsc::channel();
        for _ in 0..SLEEPERS {
            let (doorbell, told, woke) = (doorbell.clone(), told.clone(), woke.clone());
            std::thread::spawn(move || {
                let sleep = doorbell.prepare_sleep(0);
                told.send(nix::unistd::gettid().as_raw()).unwrap();
                sleep.sleep(Duration::from_secs(600));
                woke.send(()).unwrap();
            });
        }
        let threads: Vec<i32> = threads.iter().take(SLEEPERS).collect();
        // Who is not asleep yet would see the ring without being woken.
        let began = Instant::now();
        while !threads.iter().all(|thread| is_asleep(*thread)) && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        for _ in 0..SLEEPERS {
            // The announcement of one reader is enough.
            std::mem::forget(doorbell.prepare_sleep(0));
            doorbell.ring();
            doorbell.ring();
            woken.recv_timeout(Duration::from_secs(120)).unwrap();
            assert!(woken.recv_timeout(Duration::from_millis(50)).is_err(), "one ring woke two");
        }
    }

    #[test]
    fn a_ring_ends_the_sleep_and_a_lost_one_only_costs_the_timeout() {
        let doorbell = std::sync::Arc::new(Doorbell::private().unwrap());
        let other = doorbell.clone();
        let sleep = doorbell.prepare_sleep(0);
        let ringer = std::thread::spawn(move || other.ring());
        let long = Duration::from_secs(600);
        let began = Instant::now();
        sleep.sleep(long);
        assert!(began.elapsed() < long);
        ringer.join().unwrap();
        doorbell.prepare_sleep(0).sleep(Duration::from_millis(1));
    }
}
