//! The recorder's own scheduling priority.

use rustix::process::{getpriority_process, setpriority_process};

/// The highest priority of ordinary threads.
const HIGHEST: i32 = -20;

/// The calling thread's priority is above that of the recorded threads until this is dropped. Looking up names, which may
/// take seconds, must not keep other programs from a processor.
pub(super) struct RaisedPriority {
    /// The nice value before, if it could be changed.
    before: Option<i32>,
}

impl RaisedPriority {
    /// Raises the priority where that is allowed (root), also that of threads started meanwhile. Among hundreds of busy
    /// threads, an equal share of the CPU would not be enough to drain all their samples. A failure is ignored.
    pub(super) fn begin() -> Self {
        let before = getpriority_process(None).ok().filter(|nice| *nice > HIGHEST);
        Self { before: before.filter(|_| setpriority_process(None, HIGHEST).is_ok()) }
    }
}

impl Drop for RaisedPriority {
    fn drop(&mut self) {
        if let Some(nice) = self.before {
            let _ = setpriority_process(None, nice);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_priority_is_raised_for_a_time() {
        let before = getpriority_process(None).expect("our own");
        let raised = RaisedPriority::begin();
        if rustix::process::geteuid().is_root() {
            assert_eq!(getpriority_process(None), Ok(HIGHEST));
        }
        drop(raised);
        assert_eq!(getpriority_process(None), Ok(before));
    }
}
