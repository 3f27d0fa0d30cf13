//! Requests to the threads of a process: the request slots of its region, and the signal.
//!
//! The reader's lock is not needed, so a recording continues undisturbed. Several requesters share the slots through locks on
//! single bytes of the file, which the kernel releases when a requester dies.

use std::io;
use std::mem::MaybeUninit;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::unistd::{getpid, getuid};
use rustix::fs::{FallocateFlags, fallocate};
use shm_format::{ANSWER_BYTES, Identity, Nonce, REQUEST_SLOTS, Requests};

use super::{AttachError, Attached, open_region};

/// File offset of the bytes that stand for slots, in locks only (FORMAT.md).
const LOCKS: i64 = 1 << 62;

/// A region mapped for sending requests.
pub(crate) struct RequestChannel {
    attached: Attached,
    slots: Vec<usize>,
}

impl RequestChannel {
    /// Maps the region at `path`, without slots yet.
    pub(crate) fn open(path: &Path) -> Result<Self, AttachError> {
        let attached = Attached::map(open_region(path)?)?;
        if attached.read(|reader| reader.requests().is_none()) {
            return Err(AttachError::Refused(
                "its agent does not support requests; use the agent of this selfwind",
            ));
        }
        Ok(Self { attached, slots: Vec::new() })
    }

    /// Claims up to `most` slots that no other requester has, with memory for their answers. Returns all slots claimed so far.
    ///
    /// # Errors
    /// If the file system has no room for an answer, or no locks.
    pub(crate) fn claim(&mut self, most: usize) -> io::Result<&[usize]> {
        let answers = self.attached.geometry().total_len();
        for slot in 0..REQUEST_SLOTS {
            if self.slots.len() >= most {
                break;
            }
            if self.slots.contains(&slot) || !self.lock(slot)? {
                continue;
            }
            let (offset, bytes) = ((answers + slot * ANSWER_BYTES) as u64, ANSWER_BYTES as u64);
            fallocate(&self.attached.file, FallocateFlags::KEEP_SIZE, offset, bytes)?;
            self.slots.push(slot);
        }
        Ok(&self.slots)
    }

    /// Locks one slot; false if another requester has it.
    fn lock(&self, slot: usize) -> io::Result<bool> {
        let lock = libc::flock {
            l_type: libc::F_WRLCK as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: LOCKS + slot as i64,
            l_len: 1,
            l_pid: 0,
        };
        match fcntl(&self.attached.file, FcntlArg::F_OFD_SETLK(&lock)) {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Runs `use_them` on the slots and answers.
    pub(crate) fn requests<T>(&self, use_them: impl FnOnce(&Requests<'_>) -> T) -> T {
        self.attached.read(|reader| {
            use_them(&reader.requests().expect("checked in `open`, and the mapping stays as it is"))
        })
    }

    /// Who wrote the region.
    pub(crate) fn identity(&self) -> Identity {
        self.attached.identity()
    }

    /// The region.
    pub(crate) fn region(&mut self) -> &mut Attached {
        &mut self.attached
    }
}

/// Sends `signal` with `nonce` to one thread.
///
/// # Errors
/// ESRCH if the thread has ended, EPERM if it belongs to another user.
pub(crate) fn send_request(pid: u32, tid: u32, signal: i32, nonce: Nonce) -> io::Result<()> {
    /// The head of the kernel's `siginfo` for SI_QUEUE.
    #[repr(C)]
    struct Info {
        signal: i32,
        errno: i32,
        code: i32,
        padding: i32,
        pid: i32,
        uid: u32,
        value: u64,
        rest: [u64; 12],
    }
    const _: () = assert!(size_of::<Info>() == size_of::<libc::siginfo_t>());
    let info = Info {
        signal,
        errno: 0,
        code: libc::SI_QUEUE,
        padding: 0,
        pid: getpid().as_raw(),
        uid: getuid().as_raw(),
        value: nonce.0,
        rest: [0; 12],
    };
    // SAFETY: the kernel reads one `siginfo`, which is live; it writes nothing of ours.
    let result = unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, &raw const info) };
    Errno::result(result).map(drop).map_err(io::Error::from)
}

/// The soft and hard limit of `resource` (RLIMIT_...) of process `pid`, 0 for this one.
pub(crate) fn resource_limit(pid: u32, resource: u32) -> io::Result<(u64, u64)> {
    let mut limit = MaybeUninit::<libc::rlimit64>::zeroed();
    // SAFETY: with no new limit the call only writes one `rlimit64`, for which zeroes are valid too.
    let limit = unsafe {
        let result = libc::prlimit64(pid as i32, resource as _, std::ptr::null(), limit.as_mut_ptr());
        Errno::result(result)?;
        limit.assume_init()
    };
    Ok((limit.rlim_cur, limit.rlim_max))
}
