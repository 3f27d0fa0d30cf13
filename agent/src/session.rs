//! The output of this process: the session directory, the region file, the doorbell.
//!
//! No file stays open: the region is mapped and its descriptor closed; later growth goes through the mapping (`room`).
//! If the region cannot be created, the agent stays inert and leaves a note with the reason in the directory.

use alloc::ffi::CString;
use alloc::format;
use alloc::vec::Vec;
use core::ptr::NonNull;

use handler::decimal::number;
use platform::clock;
use shm_format::layout::CHUNK_SPACE;
use shm_format::{ANSWERS_LEN, Anchor, ClockKind, Doorbell, Geometry, Identity, Mode, Region};

use crate::config::Config;
use crate::handed;
use crate::hexadecimal;
use crate::kernel::{self, Errno, File};
use crate::live_tables::{LiveTables, TableSizes};
use crate::time_namespace;

/// The part of it that is mapped initially: up to there the reader can extend the pool without the agent's help.
const FIRST_CHUNKS: usize = 2 << 20;
/// Below this size a region is not worth creating.
const SMALLEST_CHUNK_SPACE: usize = 128 << 10;
/// Smallest initial pool, used if there is no space for more.
const SMALLEST_POOL: usize = 32 << 10;
/// Pools smaller than this have more and smaller chunks.
const SMALL_POOL: usize = 64 << 10;
/// Processes with this many threads have smaller chunks, since each thread holds one.
const MANY_THREADS: u64 = 1024;
const SMALL_CHUNK: u32 = 4 << 10;
/// Space for the durable log, of which a process uses what its modules, threads and interpreted functions need.
const DURABLE_SPACE: usize = 32 << 20;
/// The same if all allocations are recorded: most of it is for their stacks.
const DURABLE_SPACE_OF_ALL: usize = 96 << 20;
/// Under a limit on address space, the region takes at most this fraction of it, and so does its table of allocation counts, also
/// under a limit on the size of files.
const ADDRESS_SPACE_PART: u64 = 64;
/// The part of it that is backed at first.
const DURABLE_START: u64 = 16 << 10;
/// Initial pool of a forked child while a reader drains it: most children soon exec or exit.
const FORK_POOL: usize = 128 << 10;

/// Why nothing is recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure {
    /// The recording ended before this process began.
    Over,
    /// There is no session directory that belongs to this user alone.
    Directory,
    /// /proc is missing.
    Proc,
    /// The region file cannot be created.
    Create(Errno),
    /// The file system or RLIMIT_FSIZE leaves no space.
    Room(Errno),
    /// There is no address space.
    Map(Errno),
    /// The region cannot be initialized.
    Format,
    /// The signal cannot be taken over.
    Signal(Errno),
}

impl Failure {
    /// The reason as a message.
    pub(crate) fn text(self) -> Vec<u8> {
        let (text, error) = match self {
            Failure::Over => ("the recording has ended", None),
            Failure::Directory => ("no session directory that only this user can write to", None),
            Failure::Proc => (
                "/proc is not readable; mount it in the root directory of the program, or permit the program to read it",
                None,
            ),
            Failure::Create(error) => ("cannot create the shared memory file", Some(error)),
            Failure::Room(error) => ("no space for the shared memory file", Some(error)),
            Failure::Map(error) => ("cannot map the shared memory", Some(error)),
            Failure::Format => ("cannot lay out the shared memory", None),
            Failure::Signal(error) => ("cannot install the signal handler", Some(error)),
        };
        match error {
            Some(error) => format!("{text}: {}", cause(error)).into_bytes(),
            None => text.as_bytes().to_vec(),
        }
    }
}

/// Explains an error for a file in the session directory, and says what to do.
fn cause(error: Errno) -> alloc::borrow::Cow<'static, str> {
    match error.0 {
        libc::ENOSPC => {
            "the file system of the session directory is full (XDG_RUNTIME_DIR names another one)"
        }
        libc::EDQUOT => "the quota of the session directory is used up (XDG_RUNTIME_DIR names another one)",
        libc::EFBIG => "the limit on the size of files (RLIMIT_FSIZE, ulimit -f) is too low",
        libc::ENOMEM => "no memory, or too little address space (RLIMIT_AS, ulimit -v)",
        libc::EACCES | libc::EPERM => "the session directory belongs to another user",
        libc::EMFILE | libc::ENFILE => "too many open files",
        number => return format!("errno {number}").into(),
    }
    .into()
}

/// The unique identity of this process.
#[derive(Clone, Copy)]
pub(crate) struct Myself {
    pub(crate) pid: u32,
    /// The pid in /proc, which in a new pid namespace usually is the one that the reader sees.
    proc_pid: u32,
    /// Number of threads when it was read.
    pub(crate) threads: u64,
    start_time: u64,
    boot_id: [u8; 16],
    pub(crate) nonce: u64,
}

impl Myself {
    /// Reads the identity. `boot_id` is that of this boot, if it is known.
    pub(crate) fn read(boot_id: Option<[u8; 16]>) -> Result<Myself, Failure> {
        let mut nonce = [0u8; 8];
        if !kernel::random(&mut nonce) {
            nonce = (clock::now() ^ u64::from(platform::sys::process_id()) << 40).to_le_bytes();
        }
        let (proc_pid, threads, start_time) = stat().ok_or(Failure::Proc)?;
        Ok(Myself {
            pid: platform::sys::process_id(),
            proc_pid,
            threads,
            start_time: time_namespace::read().initial_start_time(start_time),
            boot_id: boot_id.or_else(read_boot_id).ok_or(Failure::Proc)?,
            nonce: u64::from_le_bytes(nonce),
        })
    }

    /// With the pid and nonce that the recorder specified, if it passes the region's file.
    pub(crate) fn named(self, config: &Config) -> Myself {
        match config.handed {
            Some((proc_pid, nonce)) => Myself { proc_pid, nonce, ..self },
            None => self,
        }
    }

    /// The name of a file of this process, without the directory.
    fn file_name(&self, extension: &str) -> Vec<u8> {
        format!("{}-{}-{:016x}.{extension}", self.proc_pid, self.start_time, self.nonce).into_bytes()
    }

    pub(crate) fn boot_id(&self) -> [u8; 16] {
        self.boot_id
    }
}

/// From /proc/self/stat: process id, number of threads (field 20), and start time of the process in clock ticks after
/// boot (field 22).
fn stat() -> Option<(u32, u64, u64)> {
    let mut buffer = [0u8; 1024];
    let stat = kernel::read_file(c"/proc/self/stat", &mut buffer).ok()?;
    let pid = number(stat.split(|byte| *byte == b' ').next()?)?;
    // The second field is the name in parentheses, which may contain anything.
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = stat.get(name_end + 2..)?.split(|byte| *byte == b' ');
    let threads = number(fields.nth(20 - 3)?)?;
    Some((pid as u32, threads, number(fields.nth(1)?)?))
}

fn read_boot_id() -> Option<[u8; 16]> {
    let mut buffer = [0u8; 64];
    let text = kernel::read_file(c"/proc/sys/kernel/random/boot_id", &mut buffer).ok()?;
    let digits: Vec<u8> = text.iter().copied().filter(u8::is_ascii_hexdigit).collect();
    hexadecimal::bytes(&digits)
}

/// A simultaneous reading of the clocks.
pub(crate) fn anchor() -> Anchor {
    let before = clock::now();
    let monotonic_ns = time_namespace::initial_monotonic(kernel::clock_ns(libc::CLOCK_MONOTONIC));
    let after = clock::now();
    let realtime_ns = kernel::clock_ns(libc::CLOCK_REALTIME);
    Anchor { ticks: before + after.saturating_sub(before) / 2, monotonic_ns, realtime_ns }
}

/// A directory that belongs to this user alone, as an absolute path without a trailing slash; empty if the recorder
/// passes files.
#[derive(Clone)]
pub(crate) struct Directory(Vec<u8>);

impl Directory {
    /// The directory of the configuration, or that of the flight recorder.
    pub(crate) fn find(config: &Config) -> Result<Directory, Failure> {
        if config.handed.is_some() {
            return Ok(Directory(Vec::new()));
        }
        if let Some(path) = &config.directory {
            // Never created here: after the end of the recording it has been removed.
            return Directory::check(path.clone())
                .or_else(|| Directory::for_others(config))
                .ok_or(Failure::Directory);
        }
        let user = kernel::user_id();
        let bases = [
            config.runtime_directory.as_ref().map(|base| [base.as_slice(), b"/selfwind"].concat()),
            Some(format!("/dev/shm/selfwind-{user}").into_bytes()),
            Some(format!("/tmp/selfwind-{user}").into_bytes()),
        ];
        bases
            .into_iter()
            .flatten()
            .find_map(|base| Directory::make([Directory::make(base)?.0.as_slice(), b"/flight"].concat()))
            .ok_or(Failure::Directory)
    }

    /// Creates `path` if it does not exist.
    fn make(path: Vec<u8>) -> Option<Directory> {
        let _ = kernel::make_directory(&CString::new(path.as_slice()).ok()?);
        Directory::check(path)
    }

    /// Checks that nobody else can write into `path`.
    fn check(path: Vec<u8>) -> Option<Directory> {
        const WRITABLE_BY_OTHERS: u32 = 0o022;
        let name = CString::new(path.as_slice()).ok()?;
        let status = File::open(&name, libc::O_RDONLY | libc::O_DIRECTORY, 0).ok()?.status().ok()?;
        (status.owner == kernel::user_id() && status.mode & WRITABLE_BY_OTHERS == 0)
            .then_some(Directory(path))
    }

    /// The directory for processes of users other than a recorder that is root: everybody may create files there, but
    /// not touch those of others.
    fn for_others(config: &Config) -> Option<Directory> {
        const STICKY: u32 = 0o1000;
        let path = config.others.clone()?;
        let status = kernel::status_of(&CString::new(path.as_slice()).ok()?).ok()?;
        (status.owner == 0 && status.mode & STICKY != 0).then_some(Directory(path))
    }

    /// The path of a file in the directory; `None` if the recorder passes files.
    fn file(&self, name: &[u8]) -> Option<CString> {
        if self.0.is_empty() {
            return None;
        }
        CString::new([self.0.as_slice(), b"/", name].concat()).ok()
    }

    /// Opens the region of `myself` again, if its name still exists.
    pub(crate) fn open_region(&self, myself: &Myself) -> Option<File> {
        File::open(&self.file(&myself.file_name("region"))?, libc::O_RDWR, 0).ok()
    }

    /// Whether it is reachable from the process's current root.
    pub(crate) fn is_there(&self) -> bool {
        CString::new(self.0.as_slice()).is_ok_and(|path| kernel::status_of(&path).is_ok())
    }

    /// Removes the name of the region of `myself`; existing mappings stay.
    pub(crate) fn remove_region(&self, myself: &Myself) {
        if let Some(path) = self.file(&myself.file_name("region")) {
            kernel::unlink(&path);
        }
    }

    /// Leaves a note why `myself` records nothing: a dangling symbolic link. Unlike a file, it takes no block of a full
    /// file system, and a limit on file sizes, which is enforced by a signal, does not apply to it.
    pub(crate) fn note_failure(&self, myself: &Myself, failure: &Failure) {
        if matches!(failure, Failure::Over) {
            return;
        }
        let Some(path) = self.file(&myself.file_name("failed")) else { return };
        if let Ok(text) = CString::new(failure.text()) {
            let _ = kernel::make_link(&path, &text);
        }
    }

    /// Maps the doorbell, if a reader has created one here.
    pub(crate) fn doorbell(&self) -> Option<Doorbell> {
        let file = File::open(&self.file(b"doorbell")?, libc::O_RDWR, 0).ok()?;
        let bytes = shm_format::layout::PAGE;
        if file.status().ok()?.size < bytes as u64 {
            return None;
        }
        let base = file.map(bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED).ok()?;
        // SAFETY: a shared mapping of this length that is never unmapped.
        unsafe { Doorbell::open(base, bytes) }.ok()
    }
}

/// A region with its tables of live blocks and mappings.
type Made = (Region, LiveTables);

/// Creates and maps this process's region.
pub(crate) fn create(
    config: &Config,
    directory: &Directory,
    myself: &Myself,
    is_fork: bool,
) -> Result<Made, Failure> {
    if config.handed.is_some() {
        let file = handed::region().map_err(Failure::Create)?;
        return lay_out(config, &file, myself, is_fork);
    }
    let make = |directory: &Directory| {
        let path = directory.file(&myself.file_name("region")).ok_or(Failure::Directory)?;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        let file = File::open(&path, flags, 0o600).map_err(Failure::Create)?;
        Ok((path, file))
    };
    let (path, file) = match make(directory) {
        // The process has become another user since it started.
        Err(Failure::Create(Errno(libc::EACCES | libc::EPERM))) if config.others.is_some() => {
            make(&Directory::for_others(config).ok_or(Failure::Directory)?)?
        }
        made => made?,
    };
    let made = lay_out(config, &file, myself, is_fork);
    if made.is_err() {
        kernel::unlink(&path);
    }
    made
}

/// Sizes, backs and maps the region file.
fn lay_out(config: &Config, file: &File, myself: &Myself, is_fork: bool) -> Result<Made, Failure> {
    let small = is_fork && config.mode == Mode::Discard;
    let mut pool = if small { config.pool.min(FORK_POOL) } else { config.pool };
    loop {
        match lay_out_with(pool, config, file, myself) {
            Err(Failure::Room(Errno(libc::ENOSPC | libc::EDQUOT | libc::ENOMEM))) if pool > SMALLEST_POOL => {
                pool = (pool / 2).max(SMALLEST_POOL);
            }
            made => return made,
        }
    }
}

/// Like [`lay_out`], with `pool` bytes of memory for chunks.
fn lay_out_with(pool: usize, config: &Config, file: &File, myself: &Myself) -> Result<Made, Failure> {
    let mut space = CHUNK_SPACE.max(pool);
    let address_limit = kernel::limit(libc::RLIMIT_AS);
    if address_limit != libc::RLIM_INFINITY {
        space = space.min((address_limit / ADDRESS_SPACE_PART) as usize).max(SMALLEST_CHUNK_SPACE);
    }
    let file_limit = kernel::limit(libc::RLIMIT_FSIZE);
    let sizes = TableSizes::of(config, (address_limit.min(file_limit) / ADDRESS_SPACE_PART) as usize);
    let (geometry, mapped) = loop {
        let geometry = geometry(config, space, pool, myself.threads);
        let bytes = geometry.total_len() + ANSWERS_LEN + sizes.len();
        // A file that exceeds the limit would raise SIGXFSZ.
        let mapped = if bytes as u64 > file_limit {
            Err(Errno(libc::EFBIG))
        } else {
            file.set_len(bytes).and_then(|()| Mapped::new(file, &geometry))
        };
        match mapped {
            Ok(mapped) => break (geometry, mapped),
            Err(_) if space > SMALLEST_CHUNK_SPACE => space /= 2,
            Err(error @ Errno(libc::EFBIG)) => return Err(Failure::Room(error)),
            Err(error) => return Err(Failure::Map(error)),
        }
    };
    let Mapped { base, bytes, answers } = mapped;
    let formatted = back(file, &geometry, &mapped).map_err(Failure::Room).and_then(|()| {
        let identity = identity(config, myself);
        let kind = if clock::is_counter() { ClockKind::Tsc } else { ClockKind::Monotonic };
        // SAFETY: a new shared mapping of a new file, of this length, which is never unmapped once this succeeds.
        unsafe { Region::format(base, bytes, &geometry, &identity, config.mode, kind, anchor()) }
            .map_err(|_| Failure::Format)
    });
    let tables = |region| {
        let offset = geometry.total_len() + ANSWERS_LEN;
        Ok((region, LiveTables::make(&sizes, file, offset).map_err(Failure::Room)?))
    };
    let (mut region, tables) = match formatted.and_then(tables) {
        Ok(formatted) => formatted,
        Err(failure) => {
            mapped.unmap();
            return Err(failure);
        }
    };
    // SAFETY: mapped above, and never unmapped.
    unsafe { region.answer_in(answers) };
    region.invite_offers();
    Ok((region, tables))
}

/// The mapped parts of a new region: everything up to the first chunks, and the answers.
struct Mapped {
    base: NonNull<u8>,
    bytes: usize,
    answers: NonNull<u8>,
}

impl Mapped {
    fn new(file: &File, geometry: &Geometry) -> Result<Mapped, Errno> {
        let chunk = geometry.chunk_size as usize;
        let first = (FIRST_CHUNKS / chunk).max(geometry.chunks_backed as usize).next_power_of_two();
        let bytes = geometry.chunk_offset(geometry.chunk_capacity.min(first as u32));
        let shared = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let base = file.map(bytes, libc::PROT_NONE, shared)?;
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let answers = file.map_from(geometry.total_len(), ANSWERS_LEN, both, shared).inspect_err(|_| {
            // SAFETY: nobody else uses the mapping yet.
            unsafe { kernel::unmap(base.as_ptr(), bytes) };
        })?;
        for (part, bytes) in [(base, bytes), (answers, ANSWERS_LEN)] {
            // SAFETY: affects only this mapping: it is not inherited, since a child creates its own region, and not
            // dumped, since core dumps are for the program's memory.
            let _ = unsafe {
                kernel::advise(part.as_ptr(), bytes, libc::MADV_DONTFORK)
                    .and_then(|()| kernel::advise(part.as_ptr(), bytes, libc::MADV_DONTDUMP))
            };
        }
        Ok(Mapped { base, bytes, answers })
    }

    fn unmap(&self) {
        // SAFETY: the region was not created, so nobody else uses the mappings.
        unsafe {
            kernel::unmap(self.base.as_ptr(), self.bytes);
            kernel::unmap(self.answers.as_ptr(), ANSWERS_LEN);
        }
    }
}

/// The largest sensible region with up to `space` bytes of chunks, `pool` bytes of them backed, for a process with this
/// many threads.
fn geometry(config: &Config, space: usize, pool: usize, threads: u64) -> Geometry {
    let default = Geometry::default();
    let is_small = pool < SMALL_POOL;
    let chunk_size = if is_small || threads >= MANY_THREADS { SMALL_CHUNK } else { default.chunk_size };
    let chunk = chunk_size as usize;
    let capacity = (space / chunk).clamp(1, 65_535);
    let log = if config.records_all_allocations() { DURABLE_SPACE_OF_ALL } else { DURABLE_SPACE };
    Geometry {
        chunk_capacity: capacity as u32,
        chunks_backed: (pool / chunk).clamp(1, capacity) as u32,
        durable_capacity: (capacity * chunk).min(log) as u64,
        durable_backed: DURABLE_START,
        chunk_size,
    }
}

fn identity(config: &Config, myself: &Myself) -> Identity {
    Identity {
        pid: myself.proc_pid,
        uid: kernel::user_id(),
        start_time: myself.start_time,
        boot_id: myself.boot_id,
        session_nonce: config.session,
        region_nonce: myself.nonce,
    }
}

/// Backs what the geometry declares as backed and makes it accessible, as well as the chunks that the reader may back.
/// The rest of the log stays inaccessible, so that a program that locks all its memory does not fill the file.
fn back(file: &File, geometry: &Geometry, mapped: &Mapped) -> Result<(), Errno> {
    let chunks = geometry.chunk_offset(0);
    let log = geometry.durable_offset() + geometry.durable_backed as usize;
    let pool = geometry.chunk_offset(geometry.chunks_backed) - chunks;
    for (offset, bytes, accessible) in [(0, log, log), (chunks, pool, mapped.bytes - chunks)] {
        file.allocate(offset, bytes)?;
        // SAFETY: inside the new mapping, which nobody else uses yet.
        unsafe { kernel::make_accessible(mapped.base.as_ptr().add(offset), accessible) }?;
    }
    // The answers are not backed: a requester does that before its first request.
    Ok(())
}
