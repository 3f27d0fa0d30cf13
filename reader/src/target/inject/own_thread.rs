//! Threads that trace: when one ends, the kernel detaches its tracees, in whatever state.

use std::thread;

use crate::target::inject::error::InjectError;

/// Runs `work`, which traces threads of `pid`, in a thread of its own.
pub(super) fn run<T: Send>(
    pid: i32,
    work: impl FnOnce() -> Result<T, InjectError> + Send,
) -> Result<T, InjectError> {
    thread::scope(|scope| match thread::Builder::new().spawn_scoped(scope, work) {
        Ok(running) => running.join().unwrap_or(Err(InjectError::Lost(pid))),
        Err(error) => Err(InjectError::NoThread { pid, error }),
    })
}
