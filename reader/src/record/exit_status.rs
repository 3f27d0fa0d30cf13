//! Exit statuses as a shell tells them.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Our own failure, as `env`, `timeout` and others tell it.
pub(crate) const OWN_FAILURE: u8 = 125;

/// The exit status as a shell tells it.
pub(crate) fn shell_status(status: ExitStatus) -> u8 {
    status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .map_or(OWN_FAILURE, |code| code as u8)
}
