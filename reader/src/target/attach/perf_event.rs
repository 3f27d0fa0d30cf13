//! Tests which perf events the kernel permits.

use std::os::fd::{FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;

/// What an event counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PerfScope {
    /// Time in user mode only.
    User,
    /// Time in the kernel too.
    UserAndKernel,
}

/// Opens a task clock on this thread, and closes it at once.
///
/// # Errors
/// The kernel's error.
pub(crate) fn probe_perf_event(scope: PerfScope) -> Result<(), Errno> {
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    open(0, if scope == PerfScope::User { EXCLUDE_KERNEL } else { 0 })
}

/// Tests whether the kernel supports deferred user stacks with cookies (Linux 6.19: `defer_callchain` and
/// `defer_output` of include/uapi/linux/perf_event.h).
///
/// # Errors
/// The kernel's error; EINVAL if it does not support them.
pub(crate) fn probe_deferred_callchains() -> Result<(), Errno> {
    const SAMPLE_CALLCHAIN: u64 = 1 << 5;
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    const DEFER: u64 = 1 << 38 | 1 << 39;
    open(SAMPLE_CALLCHAIN, EXCLUDE_KERNEL | DEFER)
}

fn open(sample_type: u64, flags: u64) -> Result<(), Errno> {
    /// `struct perf_event_attr` as of its first version (PERF_ATTR_SIZE_VER0, 64 bytes).
    #[repr(C)]
    struct Attributes {
        kind: u32,
        size: u32,
        config: u64,
        period: u64,
        sample_type: u64,
        read_format: u64,
        flags: u64,
        rest: [u64; 2],
    }
    const SOFTWARE: u32 = 1;
    const TASK_CLOCK: u64 = 1;
    const DISABLED: u64 = 1;
    const EXCLUDE_HV: u64 = 1 << 6;
    const CLOSE_ON_EXEC: libc::c_ulong = 8;
    let attributes = Attributes {
        kind: SOFTWARE,
        size: size_of::<Attributes>() as u32,
        config: TASK_CLOCK,
        period: 0,
        sample_type,
        read_format: 0,
        flags: DISABLED | EXCLUDE_HV | flags,
        rest: [0; 2],
    };
    // SAFETY: the kernel reads `size` bytes of the attributes, which are live; thread 0 is this one, any processor, no
    // group.
    let descriptor =
        unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attributes, 0, -1, -1, CLOSE_ON_EXEC) };
    let descriptor = Errno::result(descriptor)?;
    // SAFETY: a new descriptor that nobody else has.
    drop(unsafe { OwnedFd::from_raw_fd(descriptor as i32) });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_is_allowed_where_more_is() {
        if probe_perf_event(PerfScope::UserAndKernel).is_ok() {
            assert_eq!(probe_perf_event(PerfScope::User), Ok(()));
        }
        assert_ne!(probe_perf_event(PerfScope::User), Err(Errno::EINVAL), "the attributes are sound");
    }
}
