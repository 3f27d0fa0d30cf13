//! The numbers that threads have in their own PID namespace, by which their agent and their interpreter know them.

use std::collections::HashMap;

use crate::proc::Status;

/// Those of the threads of a process.
#[derive(Default)]
pub(super) struct ThreadIds {
    pid: u32,
    /// Its namespace is not the recorder's.
    is_inner: bool,
    /// By the recorder's numbers; only if they differ.
    inner: HashMap<u32, u32>,
}

impl ThreadIds {
    /// For the process that has this pid here.
    pub(super) fn of(pid: u32) -> Self {
        let is_inner = Status::of_process(pid).is_ok_and(|status| status.is_in_inner_namespace());
        Self { pid, is_inner, inner: HashMap::new() }
    }

    /// The thread's own number.
    pub(super) fn inner(&mut self, tid: u32) -> u32 {
        if !self.is_inner {
            return tid;
        }
        let read = || Status::of_thread(self.pid, tid).ok()?.inner_id();
        *self.inner.entry(tid).or_insert_with(|| read().unwrap_or(tid))
    }

    /// The recorder's number of a thread that has been asked for.
    pub(super) fn outer(&self, inner: u32) -> u32 {
        let found = self.inner.iter().find(|(_, own)| **own == inner);
        found.map_or(inner, |(tid, _)| *tid)
    }

    /// Forgets a thread that has ended.
    pub(super) fn forget(&mut self, tid: u32) {
        self.inner.remove(&tid);
    }
}
