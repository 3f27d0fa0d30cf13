//! A region's file that the recorder hands over.
//!
//! A process that was attached to may live where the recorder's directories cannot be seen, or belong to a user to whom
//! they are closed. Then the recorder makes the file, and this process makes a pair of sockets, whose one end the recorder
//! takes (pidfd_getfd(2)) to send the open file through (unix(7), SCM_RIGHTS). Nothing stays open.

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::kernel::{self, Errno, File};

/// Where the recorder looks for the descriptor that it may take, plus 1; null where no recorder is there.
static PLACE: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());

/// The recorder looks at `place`, which stays mapped.
pub(crate) fn set_place(place: &'static AtomicU64) {
    PLACE.store(core::ptr::from_ref(place).cast_mut(), Ordering::Release);
}

/// A message of one byte with one descriptor (`struct cmsghdr` and an `int`).
#[repr(C)]
struct Control {
    len: usize,
    level: i32,
    kind: i32,
    descriptor: i32,
    padding: i32,
}

/// The file, or why it does not come.
pub(crate) fn receive() -> Result<File, Errno> {
    /// The recorder looks every half millisecond; if it has been killed nobody comes.
    static PATIENCE: libc::timeval = libc::timeval { tv_sec: 5, tv_usec: 0 };
    // SAFETY: set to a word that stays mapped.
    let place = unsafe { PLACE.load(Ordering::Acquire).as_ref() }.ok_or(Errno(libc::ENOENT))?;
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
    place.store(other.descriptor() as u64 + 1, Ordering::Release);
    let received = message(&own);
    place.store(0, Ordering::Release);
    received
}

fn message(socket: &File) -> Result<File, Errno> {
    let mut byte = 0u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = Control { len: 0, level: 0, kind: 0, descriptor: -1, padding: 0 };
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
    if control.level != libc::SOL_SOCKET || control.kind != libc::SCM_RIGHTS || control.descriptor < 0 {
        return Err(Errno(libc::EPROTO));
    }
    Ok(File::own(control.descriptor as usize))
}
