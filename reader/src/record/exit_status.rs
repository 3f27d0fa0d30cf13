//! Exit statuses as a shell reports them.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// A failure of selfwind itself, as `env`, `timeout` and others report theirs.
pub(crate) const OWN_FAILURE: u8 = 125;

/// The exit status as a shell reports it: 128 and the signal number for a killed program.
pub(crate) fn shell_status(status: ExitStatus) -> u8 {
    status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .map_or(OWN_FAILURE, |code| code as u8)
}
