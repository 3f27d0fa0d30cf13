//! Receives files from the recorder: that of a region, and this process's directory in /proc.
//!
//! In a mount namespace or under a user for whom the recorder's directories are inaccessible, an attached process
//! cannot create a region's file itself, and in another root directory it may have no /proc. So this process makes a socket
//! pair, the recorder obtains one end (pidfd_getfd(2)) and sends the descriptors through it (unix(7), SCM_RIGHTS). None stays
//! open.

use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

use crate::kernel::{self, Errno, File};

/// Where the recorder reads the descriptor to obtain, plus 1; null without a recorder.
static HANDED_FD: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the word that the recorder reads; it must stay mapped.
pub(crate) fn publish_at(word: &'static AtomicU64) {
    HANDED_FD.store(core::ptr::from_ref(word).cast_mut(), Ordering::Release);
}

/// Control message with up to two descriptors (`struct cmsghdr` and two `int`s).
#[repr(C)]
struct Control {
    len: usize,
    level: i32,
    kind: i32,
    region: i32,
    process_directory: i32,
}

/// Size of a control message without descriptors.
const EMPTY: usize = 16;

/// Descriptor of the region's file that has been received and not used yet, or -1.
static REGION: AtomicI32 = AtomicI32::new(-1);

/// The file of the region; the error says why there is none.
pub(crate) fn region() -> Result<File, Errno> {
    if REGION.load(Ordering::Relaxed) < 0 {
        receive()?;
    }
    Ok(File::own(REGION.swap(-1, Ordering::Relaxed) as usize))
}

/// Closes the file of a region that was not made.
pub(crate) fn close_unused() {
    let descriptor = REGION.swap(-1, Ordering::Relaxed);
    if descriptor >= 0 {
        drop(File::own(descriptor as usize));
    }
}

/// Receives the files. The process directory is used from now on if this process has no /proc.
pub(crate) fn receive() -> Result<(), Errno> {
    /// Receive timeout. The recorder polls every half millisecond, unless it has been killed.
    static PATIENCE: libc::timeval = libc::timeval { tv_sec: 5, tv_usec: 0 };
    // SAFETY: only ever set to a word that stays mapped.
    let word = unsafe { HANDED_FD.load(Ordering::Acquire).as_ref() }.ok_or(Errno(libc::ENOENT))?;
    let mut pair = [0i32; 2];
    let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as usize;
    let arguments = [libc::AF_UNIX as usize, kind, 0, pair.as_mut_ptr() as usize, 0, 0];
    // SAFETY: the kernel writes two descriptors.
    unsafe { kernel::call(libc::SYS_socketpair, arguments) }?;
    let [own, other] = pair.map(|descriptor| File::own(descriptor as usize));
    let arguments = [
        own.descriptor(),
        libc::SOL_SOCKET as usize,
        libc::SO_RCVTIMEO as usize,
        (&raw const PATIENCE) as usize,
        size_of::<libc::timeval>(),
        0,
    ];
    // SAFETY: the kernel reads one `timeval`.
    unsafe { kernel::call(libc::SYS_setsockopt, arguments) }?;
    word.store(other.descriptor() as u64 + 1, Ordering::Release);
    let received = message(&own);
    word.store(0, Ordering::Release);
    received
}

fn message(socket: &File) -> Result<(), Errno> {
    let mut byte = 0u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = Control { len: 0, level: 0, kind: 0, region: -1, process_directory: -1 };
    // SAFETY: zeroes are a `msghdr`.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of::<Control>();
    let flags = libc::MSG_CMSG_CLOEXEC as usize;
    let arguments = [socket.descriptor(), (&raw mut header) as usize, flags, 0, 0, 0];
    // SAFETY: the kernel writes the byte, the control message and the header, all live, of these sizes.
    unsafe { kernel::call(libc::SYS_recvmsg, arguments) }?;
    let count = control.len.saturating_sub(EMPTY) / size_of::<i32>();
    if control.level != libc::SOL_SOCKET || control.kind != libc::SCM_RIGHTS || count == 0 {
        return Err(Errno(libc::EPROTO));
    }
    REGION.store(control.region, Ordering::Relaxed);
    let process_directory = (count > 1).then(|| File::own(control.process_directory as usize));
    if !has_proc() {
        kernel::set_process_directory(process_directory);
    }
    Ok(())
}

/// Whether the process can read what /proc says of it.
pub(crate) fn has_proc() -> bool {
    File::read_only(c"/proc/self/stat").is_ok()
}
