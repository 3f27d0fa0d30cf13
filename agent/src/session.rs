//! Where this process's records go: the session directory, the region file, the bell.
//!
//! Nothing here stays open: the region is mapped and closed, and what it needs later is backed through the
//! mapping. If it cannot be made, the agent stays inert and says why in a text file beside the regions.

use alloc::ffi::CString;
use alloc::format;
use alloc::vec::Vec;
use core::ptr::NonNull;

use handler::clock;
use shm_format::{ANSWERS_LEN, Anchor, Bell, ClockKind, Geometry, Identity, Mode, Region};

use crate::config::Config;
use crate::kernel::{self, Errno, File};
use handler::activity::Active;

/// Address space for chunks; only the backed part costs memory. One for each of 10,000 threads, and more.
const CHUNK_SPACE: usize = 256 << 20;
/// Below this the region is not worth making.
const SMALLEST_CHUNK_SPACE: usize = 128 << 10;
/// Memory for chunks that the region is made with, should there be no room for more.
const SMALLEST_POOL: usize = 32 << 10;
/// With less than this there are more and smaller chunks.
const SMALL_POOL: usize = 128 << 10;
/// A process with so many threads has smaller chunks: each holds one.
const MANY_THREADS: u64 = 1024;
const SMALL_CHUNK: u32 = 4 << 10;
const DURABLE_SPACE: usize = 4 << 20;
/// A program with a limit on its address space keeps all but this part of it.
const ADDRESS_SPACE_PART: u64 = 64;
const DURABLE_START: u64 = 64 << 10;
const SMALL_DURABLE_START: u64 = 16 << 10;
/// What a forked child starts with while a reader takes its records: most children soon exec or exit.
const FORK_POOL: usize = 128 << 10;

/// Why nothing is recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure {
    /// The recording has ended before this process began.
    Over,
    /// No session directory that is ours alone.
    Directory,
    /// /proc is missing.
    Proc,
    /// The region file cannot be made.
    Create(Errno),
    /// The file system or RLIMIT_FSIZE has no room.
    Room(Errno),
    /// No address space.
    Map(Errno),
    /// The region cannot be laid out.
    Format,
    /// The signal cannot be taken over.
    Signal(Errno),
}

impl Failure {
    /// The reason in words.
    pub(crate) fn text(self) -> Vec<u8> {
        let (text, error) = match self {
            Failure::Over => ("the recording is over", None),
            Failure::Directory => ("no session directory that this user alone can write", None),
            Failure::Proc => ("/proc is not readable", None),
            Failure::Create(error) => ("cannot create the region file", Some(error)),
            Failure::Room(error) => ("no room for the region file", Some(error)),
            Failure::Map(error) => ("cannot map the region", Some(error)),
            Failure::Format => ("cannot lay out the region", None),
            Failure::Signal(error) => ("cannot take over the signal", Some(error)),
        };
        match error {
            Some(error) => format!("{text}: {}", cause(error)).into_bytes(),
            None => text.as_bytes().to_vec(),
        }
    }
}

/// What an error means for a file in the session directory, and what to do.
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

/// This process among all others, ever.
#[derive(Clone, Copy)]
pub(crate) struct Myself {
    pub(crate) pid: u32,
    /// As /proc numbers it, which in a new process namespace is most often as the reader does.
    proc_pid: u32,
    /// Threads at the time of reading.
    pub(crate) threads: u64,
    start_time: u64,
    boot_id: [u8; 16],
    pub(crate) nonce: u64,
}

impl Myself {
    /// Reads who this process is. `boot_id` never changes, so a forked child passes its parent's.
    pub(crate) fn read(boot_id: Option<[u8; 16]>) -> Result<Myself, Failure> {
        let mut nonce = [0u8; 8];
        if !kernel::random(&mut nonce) {
            nonce = (clock::now() ^ u64::from(handler::sys::process_id()) << 40).to_le_bytes();
        }
        let (proc_pid, threads, start_time) = stat().ok_or(Failure::Proc)?;
        Ok(Myself {
            pid: handler::sys::process_id(),
            proc_pid,
            threads,
            start_time,
            boot_id: boot_id.or_else(read_boot_id).ok_or(Failure::Proc)?,
            nonce: u64::from_le_bytes(nonce),
        })
    }

    /// The name of a file of this process, without directory.
    fn file_name(&self, extension: &str) -> Vec<u8> {
        format!("{}-{}-{:016x}.{extension}", self.proc_pid, self.start_time, self.nonce).into_bytes()
    }

    pub(crate) fn boot_id(&self) -> [u8; 16] {
        self.boot_id
    }
}

/// From /proc/self/stat: process id, number of threads (field 20), and when the process started, in clock ticks after
/// boot (field 22).
fn stat() -> Option<(u32, u64, u64)> {
    let mut buffer = [0u8; 1024];
    let stat = kernel::read_file(c"/proc/self/stat", &mut buffer).ok()?;
    let pid = crate::config::number(stat.split(|byte| *byte == b' ').next()?)?;
    // The second field is the name in parentheses, and may hold anything.
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = stat.get(name_end + 2..)?.split(|byte| *byte == b' ');
    let threads = crate::config::number(fields.nth(20 - 3)?)?;
    Some((pid as u32, threads, crate::config::number(fields.nth(1)?)?))
}

fn read_boot_id() -> Option<[u8; 16]> {
    let mut buffer = [0u8; 64];
    let text = kernel::read_file(c"/proc/sys/kernel/random/boot_id", &mut buffer).ok()?;
    let mut digits = text.iter().filter_map(|byte| char::from(*byte).to_digit(16));
    let mut id = [0u8; 16];
    for byte in &mut id {
        *byte = (digits.next()? << 4 | digits.next()?) as u8;
    }
    Some(id)
}

/// Three clocks at about one moment.
pub(crate) fn anchor() -> Anchor {
    let before = clock::now();
    let monotonic_ns = kernel::clock_ns(libc::CLOCK_MONOTONIC);
    let after = clock::now();
    let realtime_ns = kernel::clock_ns(libc::CLOCK_REALTIME);
    Anchor { ticks: before + after.saturating_sub(before) / 2, monotonic_ns, realtime_ns }
}

/// A directory that is this user's alone, as an absolute path without a slash at the end.
#[derive(Clone)]
pub(crate) struct Directory(Vec<u8>);

impl Directory {
    /// The directory of the configuration, or the flight recorder's.
    pub(crate) fn find(config: &Config) -> Result<Directory, Failure> {
        if let Some(path) = &config.directory {
            // Never made here: a recording that is over has removed it.
            return Directory::check(path.clone()).ok_or(Failure::Directory);
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

    /// Makes `path` if it is not there.
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

    /// The path of a file in the directory.
    fn file(&self, name: &[u8]) -> Option<CString> {
        CString::new([self.0.as_slice(), b"/", name].concat()).ok()
    }

    /// Removes the name of the region of `myself`; who has it mapped keeps it.
    pub(crate) fn remove_region(&self, myself: &Myself) {
        if let Some(path) = self.file(&myself.file_name("region")) {
            kernel::unlink(&path);
        }
    }

    /// Leaves a note why `myself` records nothing: a link that leads nowhere. Unlike a file, it takes no block of a full
    /// file system, and a limit on the size of files, which is enforced by a signal, does not apply to it.
    pub(crate) fn note_failure(&self, myself: &Myself, failure: &Failure) {
        if matches!(failure, Failure::Over) {
            return;
        }
        let Some(path) = self.file(&myself.file_name("failed")) else { return };
        if let Ok(text) = CString::new(failure.text()) {
            let _ = kernel::make_link(&path, &text);
        }
    }

    /// Maps the bell, if a reader has hung one up here.
    pub(crate) fn bell(&self) -> Option<Bell> {
        let file = File::open(&self.file(b"bell")?, libc::O_RDWR, 0).ok()?;
        let bytes = shm_format::layout::PAGE;
        if file.status().ok()?.size < bytes as u64 {
            return None;
        }
        let base = file.map(bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED).ok()?;
        // SAFETY: a shared mapping of this length that is never unmapped.
        unsafe { Bell::open(base, bytes) }.ok()
    }
}

/// Makes and maps this process's region.
pub(crate) fn create(
    config: &Config,
    directory: &Directory,
    myself: &Myself,
    is_fork: bool,
) -> Result<Region, Failure> {
    let path = directory.file(&myself.file_name("region")).ok_or(Failure::Directory)?;
    let file =
        File::open(&path, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, 0o600).map_err(Failure::Create)?;
    let made = lay_out(config, &file, myself, is_fork);
    if made.is_err() {
        kernel::unlink(&path);
    }
    made
}

/// Sizes, backs and maps the region file.
fn lay_out(config: &Config, file: &File, myself: &Myself, is_fork: bool) -> Result<Region, Failure> {
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

/// As [`lay_out`], with this much memory for chunks.
fn lay_out_with(pool: usize, config: &Config, file: &File, myself: &Myself) -> Result<Region, Failure> {
    let mut space = CHUNK_SPACE.max(pool);
    let address_limit = kernel::limit(libc::RLIMIT_AS);
    if address_limit != libc::RLIM_INFINITY {
        space = space.min((address_limit / ADDRESS_SPACE_PART) as usize).max(SMALLEST_CHUNK_SPACE);
    }
    let file_limit = kernel::limit(libc::RLIMIT_FSIZE);
    let (geometry, base) = loop {
        let geometry = geometry(space, pool, myself.threads);
        let bytes = geometry.total_len() + ANSWERS_LEN;
        // A file larger than the limit would be answered by a signal.
        let mapped = if bytes as u64 > file_limit {
            Err(Errno(libc::EFBIG))
        } else {
            file.set_len(bytes)
                .and_then(|()| file.map(bytes, libc::PROT_NONE, libc::MAP_SHARED | libc::MAP_NORESERVE))
        };
        match mapped {
            Ok(base) => break (geometry, base),
            Err(_) if space > SMALLEST_CHUNK_SPACE => space /= 2,
            Err(error @ Errno(libc::EFBIG)) => return Err(Failure::Room(error)),
            Err(error) => return Err(Failure::Map(error)),
        }
    };
    let bytes = geometry.total_len() + ANSWERS_LEN;
    let formatted = back(file, &geometry, base).map_err(Failure::Room).and_then(|()| {
        // SAFETY: a fork would share the mapping, but its child makes a region of its own; and a core dump is for
        // the program's memory.
        let _ = unsafe {
            kernel::advise(base.as_ptr(), bytes, libc::MADV_DONTFORK)
                .and_then(|()| kernel::advise(base.as_ptr(), bytes, libc::MADV_DONTDUMP))
        };
        let identity = identity(config, myself);
        let kind = if clock::is_counter() { ClockKind::Tsc } else { ClockKind::Monotonic };
        // SAFETY: a fresh shared mapping of a new file, of this length, which is never unmapped once this succeeds.
        unsafe { Region::format(base, bytes, &geometry, &identity, config.mode, kind, anchor()) }
            .map_err(|_| Failure::Format)
    });
    if formatted.is_err() {
        // SAFETY: nobody else knows the mapping.
        unsafe { kernel::unmap(base.as_ptr(), bytes) };
    }
    formatted
}

/// The largest sensible region within `space` bytes of chunks, with `pool` bytes of them backed, for a process that
/// has so many threads.
fn geometry(space: usize, pool: usize, threads: u64) -> Geometry {
    let default = Geometry::default();
    let is_small = pool < SMALL_POOL;
    let chunk_size = if is_small || threads >= MANY_THREADS { SMALL_CHUNK } else { default.chunk_size };
    let chunk = chunk_size as usize;
    let capacity = (space / chunk).clamp(1, 65_535);
    Geometry {
        chunk_capacity: capacity as u32,
        chunks_backed: (pool / chunk).clamp(1, capacity) as u32,
        durable_capacity: (capacity * chunk).min(DURABLE_SPACE) as u64,
        durable_backed: if is_small { SMALL_DURABLE_START } else { DURABLE_START },
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

/// Backs what the geometry says has memory, and makes it accessible. The rest of the mapping is not, so that a
/// program that locks all its memory does not fill the file.
fn back(file: &File, geometry: &Geometry, base: NonNull<u8>) -> Result<(), Errno> {
    let chunks = geometry.chunk_offset(0);
    let parts = [
        (0, geometry.durable_offset() + geometry.durable_backed as usize),
        (chunks, geometry.chunk_offset(geometry.chunks_backed) - chunks),
    ];
    for (offset, bytes) in parts {
        file.allocate(offset, bytes)?;
        // SAFETY: inside the new mapping, which nobody else knows.
        unsafe { kernel::make_accessible(base.as_ptr().add(offset), bytes) }?;
    }
    // Not backed: whoever asks for stacks backs the place for the answer first.
    // SAFETY: the end of the new mapping.
    unsafe { kernel::make_accessible(base.as_ptr().add(geometry.total_len()), ANSWERS_LEN) }
}

/// Backs `bytes` from `offset` on through the mapping, which works without a descriptor. None if the file system
/// has no room, or the kernel is older than 5.14.
fn populate(region: &Region, offset: usize, bytes: usize) -> Option<()> {
    const MADV_POPULATE_WRITE: i32 = 23;
    let _active = Active::enter()?;
    let base = NonNull::from(region.control()).cast::<u8>().as_ptr();
    // SAFETY: inside the region's own mapping; the advice only makes its pages present.
    unsafe {
        let start = base.sub(shm_format::layout::PAGE).add(offset);
        kernel::make_accessible(start, bytes).ok()?;
        kernel::advise(start, bytes, MADV_POPULATE_WRITE).ok()
    }
}

/// Chunks that `threads` threads want: one in use and one complete for each, and some for who comes next. Of very many
/// threads, few complete one at a time. A single thread has what the region started with.
fn chunks_for(threads: usize) -> usize {
    const BUSY: usize = 512;
    if threads > 1 { threads + threads.min(BUSY) + 32 } else { 0 }
}

/// True if `threads` threads want more chunks than the region has.
pub(crate) fn needs_room(region: &Region, threads: usize) -> bool {
    chunks_for(threads) > region.chunks_backed() as usize
        && region.chunks_backed() < region.geometry().chunk_capacity
}

/// Backs chunks for `threads` threads. One caller at a time.
pub(crate) fn grow_pool(region: &Region, threads: usize) {
    let geometry = region.geometry();
    let wanted = chunks_for(threads).min(geometry.chunk_capacity as usize) as u32;
    let backed = region.chunks_backed();
    if wanted <= backed {
        return;
    }
    // By a quarter more, so that not every new thread comes here.
    let mut more = (wanted + wanted / 4).min(geometry.chunk_capacity) - backed;
    let first = geometry.chunk_offset(backed);
    while more > 0 {
        if populate(region, first, geometry.chunk_offset(backed + more) - first).is_some() {
            return region.set_chunks_backed(backed + more);
        }
        more /= 2;
    }
}

/// Backs more of the durable log; false if there is no more. One caller at a time.
pub(crate) fn grow_durable(region: &Region) -> bool {
    let geometry = region.geometry();
    let backed = region.durable_backed();
    let wanted = (backed * 2).min(geometry.durable_capacity);
    if wanted <= backed {
        return false;
    }
    let first = geometry.durable_offset() + backed as usize;
    let grown = populate(region, first, (wanted - backed) as usize).is_some();
    if grown {
        region.set_durable_backed(wanted);
    }
    grown
}
