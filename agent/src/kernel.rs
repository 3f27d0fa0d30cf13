//! System calls that the agent makes outside the handler, each with plain arguments and results.
//!
//! No file descriptor may stay open after a call into this library: a program that closes all descriptors, or counts
//! them, must not see any of the agent's.

use core::ffi::{CStr, c_char};
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, Ordering};

use platform::clock::SECOND_NS;
use platform::sys;
use unwind::Source;

/// A kernel error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

/// Makes a system call and separates result and error.
///
/// # Safety
/// As for [`sys::call`].
pub(crate) unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the caller fulfils the contract of `sys::call`.
    let result = unsafe { sys::call(number, arguments) };
    if (-4095..0).contains(&result) { Err(Errno(-result as i32)) } else { Ok(result as usize) }
}

/// An open file, closed when dropped.
pub(crate) struct File(i32);

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and is not used again.
        let _ = unsafe { call(libc::SYS_close, [self.0 as usize, 0, 0, 0, 0, 0]) };
    }
}

impl File {
    /// Opens `path` with `flags` (close-on-exec and no-follow are added) and with `mode` for a new file.
    pub(crate) fn open(path: &CStr, flags: i32, mode: u32) -> Result<File, Errno> {
        let flags = flags | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NOCTTY;
        Self::open_at(path, flags, mode)
    }

    /// Opens `path` for reading; must not be a symbolic link. Does not block on FIFOs or devices.
    pub(crate) fn strict(path: &CStr) -> Result<File, Errno> {
        Self::open(path, libc::O_RDONLY | libc::O_NONBLOCK, 0)
    }

    /// Takes ownership of a descriptor that was just opened.
    pub(crate) fn own(descriptor: usize) -> File {
        File(descriptor as i32)
    }

    /// Its number.
    pub(crate) fn descriptor(&self) -> usize {
        self.0 as usize
    }

    /// `ioctl` for requests whose argument is a number or memory that the kernel only reads.
    pub(crate) fn control(&self, request: usize, argument: usize) -> Result<(), Errno> {
        // SAFETY: the callers' requests write no memory, and what they read is live.
        unsafe { call(libc::SYS_ioctl, [self.0 as usize, request, argument, 0, 0, 0]) }.map(drop)
    }

    /// Opens `path` for reading, following links: for /proc.
    pub(crate) fn read_only(path: &CStr) -> Result<File, Errno> {
        Self::open_at(path, libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOCTTY, 0)
    }

    #[inline(never)]
    fn open_at(path: &CStr, flags: i32, mode: u32) -> Result<File, Errno> {
        let (directory, path) = place(path);
        let arguments = [directory, path as usize, flags as usize, mode as usize, 0, 0];
        // SAFETY: the path is a live C string.
        unsafe { call(libc::SYS_openat, arguments) }.map(|descriptor| File(descriptor as i32))
    }

    /// Reads until `buffer` is full or the file ends; returns the number of bytes.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let mut done = 0;
        while done < buffer.len() {
            let rest = &mut buffer[done..];
            let arguments = [self.0 as usize, rest.as_mut_ptr() as usize, rest.len(), 0, 0, 0];
            // SAFETY: the kernel writes at most `rest.len()` bytes into `rest`.
            match unsafe { call(libc::SYS_read, arguments) } {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno(libc::EINTR)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Reads once; returns the number of bytes.
    pub(crate) fn read_some(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let arguments = [self.0 as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0];
        // SAFETY: the kernel writes at most `buffer.len()` bytes into `buffer`.
        unsafe { call(libc::SYS_read, arguments) }
    }

    /// Reads directory entries in the kernel's `linux_dirent64` format; 0 bytes at the end.
    pub(crate) fn entries(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let arguments = [self.0 as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0];
        // SAFETY: the kernel writes at most `buffer.len()` bytes into `buffer`.
        unsafe { call(libc::SYS_getdents64, arguments) }
    }

    /// Sets the size, without allocating storage.
    pub(crate) fn set_len(&self, bytes: usize) -> Result<(), Errno> {
        // SAFETY: no memory is involved.
        unsafe { call(libc::SYS_ftruncate, [self.0 as usize, bytes, 0, 0, 0, 0]) }.map(drop)
    }

    /// Allocates storage for `bytes` bytes from `offset`, so that later stores cannot run into a full file system.
    pub(crate) fn allocate(&self, offset: usize, bytes: usize) -> Result<(), Errno> {
        // SAFETY: no memory is involved.
        unsafe { call(libc::SYS_fallocate, [self.0 as usize, 0, offset, bytes, 0, 0]) }.map(drop)
    }

    /// Maps the first `bytes` bytes of the file.
    pub(crate) fn map(&self, bytes: usize, protection: i32, flags: i32) -> Result<NonNull<u8>, Errno> {
        self.map_from(0, bytes, protection, flags)
    }

    /// Maps `bytes` bytes of the file from `offset`, a multiple of the page size.
    pub(crate) fn map_from(
        &self,
        offset: usize,
        bytes: usize,
        protection: i32,
        flags: i32,
    ) -> Result<NonNull<u8>, Errno> {
        let arguments = [0, bytes, protection as usize, flags as usize, self.0 as usize, offset];
        // SAFETY: a new mapping at an address the kernel chooses overlaps nothing.
        let address = unsafe { call(libc::SYS_mmap, arguments) }?;
        NonNull::new(address as *mut u8).ok_or(Errno(libc::ENOMEM))
    }

    /// Size, owner, mode and modification time.
    pub(crate) fn status(&self) -> Result<Status, Errno> {
        let mut raw = MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: the kernel writes one `stat` of its own layout, which is libc's on x86-64.
        unsafe {
            call(libc::SYS_fstat, [self.0 as usize, raw.as_mut_ptr() as usize, 0, 0, 0, 0])?;
            Ok(Status::from(&raw.assume_init()))
        }
    }
}

/// Like [`File::status`], for a path, which must not be a symbolic link and need not be readable.
pub(crate) fn status_of(path: &CStr) -> Result<Status, Errno> {
    let mut raw = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the path is a live C string; the kernel writes one `stat` of its own layout, which is libc's on x86-64.
    unsafe {
        call(libc::SYS_lstat, [path.as_ptr() as usize, raw.as_mut_ptr() as usize, 0, 0, 0, 0])?;
        Ok(Status::from(&raw.assume_init()))
    }
}

impl From<&libc::stat> for Status {
    fn from(raw: &libc::stat) -> Status {
        let modified = raw.st_mtime.wrapping_mul(SECOND_NS as i64).wrapping_add(raw.st_mtime_nsec);
        Status {
            size: raw.st_size as u64,
            device: raw.st_dev,
            inode: raw.st_ino,
            owner: raw.st_uid,
            mode: raw.st_mode,
            modified,
        }
    }
}

/// Result of `fstat`.
pub(crate) struct Status {
    pub(crate) size: u64,
    device: u64,
    inode: u64,
    pub(crate) owner: u32,
    pub(crate) mode: u32,
    /// Modification time, in nanoseconds since 1970.
    pub(crate) modified: i64,
}

impl Status {
    /// The identity of the file.
    pub(crate) fn source(&self) -> Source {
        Source { device: self.device, inode: self.inode, size: self.size, modified_ns: self.modified as u64 }
    }
}

/// Descriptor of /proc/self where the process has no /proc, or -1.
static PROCESS_DIRECTORY: AtomicI32 = AtomicI32::new(-1);

/// Sets what /proc/self is until the next call, and closes what it was.
pub(crate) fn set_process_directory(directory: Option<File>) {
    let descriptor = directory.map_or(-1, |file| core::mem::ManuallyDrop::new(file).0);
    let before = PROCESS_DIRECTORY.swap(descriptor, Ordering::Relaxed);
    if before >= 0 {
        drop(File(before));
    }
}

/// What `path` is relative to, and where it is there.
fn place(path: &CStr) -> (usize, *const c_char) {
    let directory = PROCESS_DIRECTORY.load(Ordering::Relaxed);
    match path.to_bytes_with_nul().strip_prefix(b"/proc/self/") {
        Some(rest) if directory >= 0 => (directory as usize, rest.as_ptr().cast()),
        _ => (libc::AT_FDCWD as usize, path.as_ptr()),
    }
}

/// Makes a zeroed mapping.
#[inline(never)]
fn map_zeros(bytes: usize, protection: i32, flags: i32) -> Option<NonNull<u8>> {
    let arguments = [0, bytes, protection as usize, (flags | libc::MAP_ANONYMOUS) as usize, usize::MAX, 0];
    // SAFETY: a new mapping at an address the kernel chooses overlaps nothing.
    let address = unsafe { call(libc::SYS_mmap, arguments) }.ok()?;
    NonNull::new(address as *mut u8)
}

/// Makes a private, zeroed mapping.
pub(crate) fn map_private(bytes: usize) -> Option<NonNull<u8>> {
    map_zeros(bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE)
}

/// Maps the part of a shared file that is mapped at `base` again elsewhere, `bytes` in all, including what follows it
/// in the file. Needs no descriptor (mremap(2), `old_size` 0).
///
/// # Safety
/// `base` must be a page of a shared mapping that belongs to the caller.
pub(crate) unsafe fn map_on(base: *mut u8, bytes: usize) -> Result<NonNull<u8>, Errno> {
    let arguments = [base as usize, 0, bytes, libc::MREMAP_MAYMOVE as usize, 0, 0];
    // SAFETY: the old mapping is unchanged, and the kernel chooses a free address for the new one.
    let address = unsafe { call(libc::SYS_mremap, arguments) }?;
    NonNull::new(address as *mut u8).ok_or(Errno(libc::ENOMEM))
}

/// Makes a private, zeroed mapping for which no memory is reserved before it is touched.
pub(crate) fn map_sparse(bytes: usize) -> Option<NonNull<u8>> {
    map_zeros(bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_NORESERVE)
}

/// Lets the kernel copy this process's memory from `address` to `bytes`; false if it is not readable.
pub(crate) fn copy_own(address: u64, bytes: &mut [u8]) -> bool {
    let to = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let from = libc::iovec { iov_base: address as *mut _, iov_len: bytes.len() };
    let process = sys::process_id() as usize;
    let arguments = [process, (&raw const to) as usize, 1, (&raw const from) as usize, 1, 0];
    // SAFETY: the kernel checks the source, and writes at most `bytes.len()` bytes into `bytes`.
    match unsafe { call(libc::SYS_process_vm_readv, arguments) } {
        Ok(count) => count == bytes.len(),
        // A kernel without it (CONFIG_CROSS_MEMORY_ATTACH).
        Err(Errno(libc::ENOSYS | libc::EPERM)) => {
            let Ok(memory) = File::read_only(c"/proc/self/mem") else { return false };
            let arguments =
                [memory.0 as usize, bytes.as_mut_ptr() as usize, bytes.len(), address as usize, 0, 0];
            // SAFETY: the kernel checks the source, and writes at most `bytes.len()` bytes into `bytes`.
            let count = unsafe { call(libc::SYS_pread64, arguments) };
            count == Ok(bytes.len())
        }
        Err(_) => false,
    }
}

/// Whether the four bytes at `address`, a multiple of 4, can be written. They stay the same.
#[cfg(feature = "allocations")]
pub(crate) fn is_writable(address: u64) -> bool {
    /// `FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, 0)`.
    const ADD_NOTHING: usize = 1 << 28;
    static NOBODY_WAITS: u32 = 0;
    let operation = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    let arguments =
        [(&raw const NOBODY_WAITS) as usize, operation as usize, 0, 0, address as usize, ADD_NOTHING];
    // SAFETY: the kernel adds 0 to the word in one step, or reports that it cannot be written.
    unsafe { call(libc::SYS_futex, arguments) }.is_ok()
}

/// Sleeps.
pub(crate) fn sleep(nanoseconds: u32) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds.into() };
    // SAFETY: the kernel reads one `timespec`.
    let _ = unsafe { call(libc::SYS_nanosleep, [(&raw const time) as usize, 0, 0, 0, 0, 0]) };
}

/// Removes a mapping.
///
/// # Safety
/// The mapping must belong to the caller, and nothing may use it any more.
#[inline(never)]
pub(crate) unsafe fn unmap(base: *mut u8, bytes: usize) {
    // SAFETY: the caller fulfils this function's contract.
    let _ = unsafe { call(libc::SYS_munmap, [base as usize, bytes, 0, 0, 0, 0]) };
}

/// Puts zeros in place of a mapping, which take memory only where they are written to. For others who access it this is one
/// step. If the kernel has no memory for that, the mapping stays.
///
/// # Safety
/// The mapping must belong to the caller, and nobody may need its contents any more.
#[inline(never)]
pub(crate) unsafe fn replace_by_zeros(base: *mut u8, bytes: usize) {
    // First without access: of a program that locks its memory, this would take memory at once.
    let zeros = map_zeros(bytes, libc::PROT_NONE, libc::MAP_SHARED | libc::MAP_NORESERVE);
    let Some(zeros) = zeros.map(NonNull::as_ptr) else { return };
    let mode = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: a new mapping that nobody else uses yet takes the place of one of the caller's.
    unsafe {
        let _ = advise(zeros, bytes, libc::MADV_DONTDUMP);
        if make_accessible(zeros, bytes).is_ok() {
            let _ = call(libc::SYS_mremap, [zeros as usize, bytes, bytes, mode as usize, base as usize, 0]);
        }
    }
}

/// Gives the kernel `advice` about a mapping.
///
/// # Safety
/// The range must belong to the caller, and the advice must not discard what others still use.
#[inline(never)]
pub(crate) unsafe fn advise(base: *mut u8, bytes: usize, advice: i32) -> Result<(), Errno> {
    // SAFETY: the caller fulfils this function's contract.
    unsafe { call(libc::SYS_madvise, [base as usize, bytes, advice as usize, 0, 0, 0]) }.map(drop)
}

/// Backs a part of a mapping of a file, for writing. Before Linux 5.14 that is EINVAL.
///
/// # Safety
/// The range must belong to the caller.
pub(crate) unsafe fn populate(base: *mut u8, bytes: usize) -> Result<(), Errno> {
    const MADV_POPULATE_WRITE: i32 = 23;
    // SAFETY: the caller fulfils the contract; this advice only populates pages.
    unsafe { advise(base, bytes, MADV_POPULATE_WRITE) }
}

/// Makes a part of a mapping readable only.
///
/// # Safety
/// Nobody must write to it any more.
#[cfg(feature = "allocations")]
pub(crate) unsafe fn make_read_only(base: *mut u8, bytes: usize) -> Result<(), Errno> {
    // SAFETY: the caller promises that nobody writes to it.
    unsafe { call(libc::SYS_mprotect, [base as usize, bytes, libc::PROT_READ as usize, 0, 0, 0]) }.map(drop)
}

/// Makes a part of a mapping readable and writable.
///
/// # Safety
/// The range must belong to the caller.
#[inline(never)]
pub(crate) unsafe fn make_accessible(base: *mut u8, bytes: usize) -> Result<(), Errno> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    // SAFETY: the caller fulfils this function's contract.
    unsafe { call(libc::SYS_mprotect, [base as usize, bytes, protection, 0, 0, 0]) }.map(drop)
}

/// Creates a directory that only its owner can enter.
pub(crate) fn make_directory(path: &CStr) -> Result<(), Errno> {
    // SAFETY: the path is a live C string.
    unsafe { call(libc::SYS_mkdirat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, 0o700, 0, 0, 0]) }
        .map(drop)
}

/// Whether the effective user may read the file.
pub(crate) fn is_readable_file(path: &CStr) -> bool {
    File::open(path, libc::O_RDONLY, 0).is_ok()
}

/// Looks for a file at this path, which may be a bad address.
pub(crate) fn find(path: *const c_char) -> Result<(), Errno> {
    let arguments = [libc::AT_FDCWD as usize, path as usize, libc::F_OK as usize, 0, 0, 0];
    // SAFETY: the kernel only reads the path, and checks that it can.
    unsafe { call(libc::SYS_faccessat, arguments) }.map(drop)
}

/// Removes a file name.
pub(crate) fn unlink(path: &CStr) {
    // SAFETY: the path is a live C string.
    let _ =
        unsafe { call(libc::SYS_unlinkat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// Creates a symbolic link.
pub(crate) fn make_link(path: &CStr, target: &CStr) -> Result<(), Errno> {
    let arguments = [target.as_ptr() as usize, libc::AT_FDCWD as usize, path.as_ptr() as usize, 0, 0, 0];
    // SAFETY: both are live C strings.
    unsafe { call(libc::SYS_symlinkat, arguments) }.map(drop)
}

/// Reads a whole small file into `buffer`; returns the bytes read.
pub(crate) fn read_file<'a>(path: &CStr, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let count = File::read_only(path)?.read(buffer)?;
    Ok(&buffer[..count])
}

/// The target of a symbolic link.
pub(crate) fn read_link<'a>(path: &CStr, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let (directory, path) = place(path);
    let arguments = [directory, path as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0];
    // SAFETY: the kernel writes at most `buffer.len()` bytes into `buffer`.
    let count = unsafe { call(libc::SYS_readlinkat, arguments) }?;
    Ok(&buffer[..count])
}

/// The current directory, without the NUL.
pub(crate) fn current_directory(buffer: &mut [u8]) -> &[u8] {
    // SAFETY: the kernel writes at most `buffer.len()` bytes into `buffer`.
    let count = unsafe { call(libc::SYS_getcwd, [buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0, 0]) };
    match count {
        Ok(count) if count > 0 => &buffer[..count - 1],
        _ => &[],
    }
}

/// Yields the CPU.
pub(crate) fn yield_now() {
    // SAFETY: no arguments, no effect but on scheduling.
    let _ = unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// What the kernel says for a user that has no id in this user namespace.
pub(crate) const UNMAPPED_USER: u32 = 65534;

/// Longest thread name, with its NUL (kernel: TASK_COMM_LEN).
pub(crate) const THREAD_NAME: usize = 16;

/// The name of the calling thread.
pub(crate) fn thread_name(buffer: &mut [u8; THREAD_NAME]) -> &[u8] {
    let arguments = [libc::PR_GET_NAME as usize, buffer.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes 16 bytes.
    let _ = unsafe { call(libc::SYS_prctl, arguments) };
    let end = buffer.iter().position(|byte| *byte == 0).unwrap_or(THREAD_NAME);
    &buffer[..end]
}

/// The effective user id.
pub(crate) fn user_id() -> u32 {
    // SAFETY: geteuid has no arguments and cannot fail.
    unsafe { sys::call(libc::SYS_geteuid, [0; 6]) as u32 }
}

/// The parent process id.
pub(crate) fn parent_id() -> u32 {
    // SAFETY: getppid has no arguments and cannot fail.
    unsafe { sys::call(libc::SYS_getppid, [0; 6]) as u32 }
}

/// Start and end of this library's code, from linker symbols.
pub(crate) fn own_code() -> (u64, u64) {
    unsafe extern "C" {
        static __ehdr_start: u8;
        static etext: u8;
    }
    (&raw const __ehdr_start as u64, &raw const etext as u64)
}

/// Fills `bytes` with random bytes; false if the kernel's generator is not ready yet.
pub(crate) fn random(bytes: &mut [u8]) -> bool {
    let arguments = [bytes.as_mut_ptr() as usize, bytes.len(), libc::GRND_NONBLOCK as usize, 0, 0, 0];
    // SAFETY: the kernel writes at most `bytes.len()` bytes into `bytes`.
    let result = unsafe { call(libc::SYS_getrandom, arguments) };
    result == Ok(bytes.len())
}

/// Nanoseconds of `clock`.
pub(crate) fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `timespec`.
    let _ = unsafe { call(libc::SYS_clock_gettime, [clock as usize, (&raw mut time) as usize, 0, 0, 0, 0]) };
    time.tv_sec as u64 * SECOND_NS + time.tv_nsec as u64
}

/// The soft limit of `resource`.
pub(crate) fn limit(resource: u32) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: prlimit64 on this process (0) writes one `rlimit` and reads none.
    let _ = unsafe { call(libc::SYS_prlimit64, [0, resource as usize, 0, (&raw mut limit) as usize, 0, 0]) };
    limit.rlim_cur
}

/// Writes a message to standard error, for SELFWIND_VERBOSE.
pub(crate) fn say(parts: &[&[u8]]) {
    for part in parts {
        // SAFETY: the kernel reads `part.len()` bytes from `part`.
        let _ = unsafe { call(libc::SYS_write, [2, part.as_ptr() as usize, part.len(), 0, 0, 0]) };
    }
}
