//! Which of the standard descriptors were closed when selfwind was started.
//!
//! Before `main`, Rust's runtime opens /dev/null on each of them, so that no file opened later is taken for standard output. The
//! command must not inherit that: a program that would fail to write must not succeed because it is recorded.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, fcntl_getfd};

static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

ctor::declarative::ctor! {
    /// Looks at the descriptors; called by the loader, before the runtime starts.
    // SAFETY: it needs nothing that the runtime sets up: three system calls, and the lazily made handles of the standard library.
    #[ctor(unsafe)]
    fn look() {
        let states = [fcntl_getfd(io::stdin()), fcntl_getfd(io::stdout()), fcntl_getfd(io::stderr())];
        for (closed, state) in CLOSED.iter().zip(states) {
            closed.store(state == Err(Errno::BADF), Ordering::Relaxed);
        }
    }
}

/// The descriptors from 0 to 2 that selfwind's caller had closed.
pub(super) fn closed_by_caller() -> impl Iterator<Item = RawFd> {
    (0..).zip(&CLOSED).filter(|(_, closed)| closed.load(Ordering::Relaxed)).map(|(number, _)| number)
}
