//! One sampled thread: divides its time into running, runnable and blocked, with the stacks at which it was blocked.

use std::fs::File;
use std::io;
use std::sync::Arc;

use nix::libc;

use super::blocked::{Blocked, State};
use super::schedstat::Schedstat;
use super::stack::Stack;
use super::switches::Switches;
use crate::proc::Stat;

/// Maximum number of attempts if the thread runs during the check.
const ATTEMPTS: usize = 3;
/// Longer waits are split into several samples, so that a profile being written is up to date.
const MAX_SPAN_NS: u64 = 1_000_000_000;
/// Minimum runnable time for a sample: of a blocked thread, and of a running one.
const MIN_RUNNABLE_NS: u64 = 20_000;
const MIN_PREEMPTED_NS: u64 = 1_000_000;

/// Why a thread did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// It was runnable, but had no CPU.
    Ready,
    /// It was blocked in this system call; `None`: in a page fault.
    Blocked(Option<u16>),
    /// It was blocked, and where cannot be read.
    Hidden,
    /// It was stopped.
    Stopped,
    /// It has exited, and the kernel was still releasing what it had used.
    Exiting,
}

/// A period of time that a thread spent waiting at one stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WaitSpan {
    /// When it was first seen.
    pub(super) ns: u64,
    pub(super) wait: Wait,
    pub(super) stack: Option<Arc<Stack>>,
    /// Its length in microseconds.
    pub(super) us: u32,
}

/// The result of a check.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Check {
    Lives,
    /// The thread has ended.
    Ended,
}

/// The files of a thread in /proc.
struct Files {
    schedstat: File,
    /// `None` if permission is denied.
    syscall: Option<File>,
}

impl Files {
    fn state(&self) -> io::Result<State> {
        self.syscall.as_ref().map_or_else(|| Err(io::ErrorKind::PermissionDenied.into()), State::read)
    }
}

/// A sampled thread.
pub(super) struct Thread {
    pid: u32,
    tid: u32,
    files: Files,
    /// When it was opened, with the counts then, as long as its start time is unknown.
    unknown_start: Option<(u64, Schedstat)>,
    /// Time and counts when it was last found blocked; initially those of its start.
    base: (u64, Schedstat),
    /// Runnable time reported so far, and the switches by then.
    ready_reported: (u64, Switches),
    /// Where it was blocked at the last check, with the counts then; `None` if it was not.
    last: Option<(Schedstat, Wait, Option<Arc<Stack>>)>,
    /// The current wait: when it was first seen, and nanoseconds not reported yet.
    open: Option<(u64, u64)>,
    /// Time reported as blocked that turned out to be runnable, which the kernel had not counted yet.
    owed_ns: u64,
    /// Remainders below a microsecond.
    rest_ns: u64,
}

impl Thread {
    /// Opens a thread of `pid` that started at `began_ns`, or is sampled from then on.
    ///
    /// # Errors
    /// If it has ended.
    pub(super) fn open(pid: u32, tid: u32, began_ns: u64, now: u64) -> io::Result<Self> {
        let open = |name| File::open(format!("/proc/{pid}/task/{tid}/{name}"));
        let syscall = match open("syscall") {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            opened => Some(opened?),
        };
        let files = Files { schedstat: open("schedstat")?, syscall };
        let counts = Schedstat::read(&files.schedstat).ok_or(io::ErrorKind::NotFound)?;
        // Counts from before `began_ns` are not part of this recording.
        let is_new = counts.running_ns + counts.ready_ns <= now.saturating_sub(began_ns);
        let base = if is_new { (began_ns, Schedstat::default()) } else { (now, counts) };
        let switches = if is_new { None } else { Switches::read(pid, tid) };
        let ready_reported = (base.1.ready_ns, switches.unwrap_or_default());
        let unknown_start = (!is_new).then_some(base);
        Ok(Self {
            pid,
            tid,
            files,
            unknown_start,
            base,
            ready_reported,
            last: None,
            open: None,
            owed_ns: 0,
            rest_ns: 0,
        })
    }

    /// Sets its start time, which may be reported after it was first seen.
    pub(super) fn begins(&mut self, began_ns: u64) {
        let Some((opened, counts)) = self.unknown_start.take() else { return };
        let Some(blocked_ns) =
            opened.saturating_sub(began_ns).checked_sub(counts.used_since(Schedstat::default()))
        else {
            return;
        };
        match &mut self.open {
            Some((_, told_ns)) => *told_ns += blocked_ns,
            None => self.rest_ns += blocked_ns,
        }
        // Its runnable time from before it was opened is still to be reported.
        self.ready_reported.0 = self.ready_reported.0.saturating_sub(counts.ready_ns);
    }

    /// Checks the thread. `walk` walks the stack of a blocked thread if its process has memory, and `is_stopped` tells whether its
    /// process is stopped; results go to `found`. With `has_new_modules`, the process has new modules since the last check.
    pub(super) fn check(
        &mut self,
        has_new_modules: bool,
        clock: &mut dyn FnMut() -> u64,
        walk: &mut dyn FnMut(Blocked) -> Option<Stack>,
        is_stopped: &mut dyn FnMut() -> bool,
        found: &mut Vec<WaitSpan>,
    ) -> Check {
        let Some(mut counts) = Schedstat::read(&self.files.schedstat) else {
            self.close(found);
            return Check::Ended;
        };
        let now = clock();
        if let Some((then, ..)) = &self.last
            && *then == counts
        {
            if has_new_modules || self.waits_in_vfork() {
                self.walk_again(counts, walk);
            }
            self.continue_wait(now, found);
            return Check::Lives;
        }
        self.correct_wait(now, counts);
        self.close(found);
        let woken_from = self.last.take().and_then(|(_, _, stack)| stack);
        for _ in 0..ATTEMPTS {
            let (wait, stack) = match self.files.state() {
                Ok(State::Runs) => break,
                Ok(State::Blocked(blocked)) if blocked.sp == 0 => break,
                Ok(State::Blocked(blocked)) => {
                    let wait = self.wait(blocked, is_stopped);
                    match walk(blocked) {
                        Some(stack) => (wait, Some(Arc::new(stack))),
                        None if self.is_exiting() => (Wait::Exiting, None),
                        // It executes another program.
                        None => break,
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => (Wait::Hidden, None),
                Err(_) => break,
            };
            let Some(after) = Schedstat::read(&self.files.schedstat) else { break };
            // It has not run between reading its state and the end of the walk, so both belong to the same wait.
            if after == counts {
                let at = woken_from.or_else(|| stack.clone());
                self.ready(now, counts.ready_ns, MIN_RUNNABLE_NS, at.as_ref(), found);
                self.blocked(clock(), counts, wait, stack);
                return Check::Lives;
            }
            counts = after;
        }
        self.ready(now, counts.ready_ns, MIN_PREEMPTED_NS, woken_from.as_ref(), found);
        Check::Lives
    }

    /// Why it does not run. A debugger may have stopped it alone; a system call that it was in at the stop shows nothing.
    fn wait(&self, blocked: Blocked, is_stopped: &mut dyn FnMut() -> bool) -> Wait {
        let alone = || Stat::of_thread(self.pid, self.tid).is_some_and(|stat| stat.is_stopped());
        if is_stopped() || blocked.call.is_none() && alone() {
            return Wait::Stopped;
        }
        Wait::Blocked(blocked.call)
    }

    fn is_exiting(&self) -> bool {
        Stat::of_thread(self.pid, self.tid).is_some_and(|stat| stat.is_exiting())
    }

    /// Whether it waits in `vfork`: meanwhile the child runs on the same stack.
    fn waits_in_vfork(&self) -> bool {
        const VFORK: u16 = libc::SYS_vfork as u16;
        matches!(self.last, Some((_, Wait::Blocked(Some(VFORK)), _)))
    }

    /// Walks a stack again that is incomplete or guessed; the result applies to the whole wait.
    fn walk_again(&mut self, counts: Schedstat, walk: &mut dyn FnMut(Blocked) -> Option<Stack>) {
        let Some((_, _, Some(stack))) = &mut self.last else { return };
        if stack.is_certain() {
            return;
        }
        let Ok(State::Blocked(blocked)) = self.files.state() else { return };
        let Some(again) = walk(blocked) else { return };
        if Schedstat::read(&self.files.schedstat) == Some(counts) {
            *stack = Arc::new(again);
        }
    }

    /// Handles a thread that has not run since the last check: it is still in the same wait.
    fn continue_wait(&mut self, now: u64, found: &mut Vec<WaitSpan>) {
        let passed = now.saturating_sub(self.base.0);
        self.base.0 = now;
        let (begun, ns) = self.open.unwrap_or((now, 0));
        self.open = Some((begun, ns + passed));
        if ns + passed >= MAX_SPAN_NS {
            self.close(found);
            self.open = Some((now, 0));
        }
    }

    /// Handles a thread that has run since the last check. Only now has the kernel counted its time in the run queue; the part that
    /// was already reported as waiting is subtracted from the wait.
    fn correct_wait(&mut self, now: u64, counts: Schedstat) {
        let Some((_, told_ns)) = &mut self.open else { return };
        let (since, before) = self.base;
        let passed = now.saturating_sub(since);
        let over = counts.used_since(before).saturating_sub(passed).min(*told_ns);
        *told_ns -= over;
        self.base.0 -= over;
    }

    /// Handles a thread that is blocked in a new wait.
    fn blocked(&mut self, now: u64, counts: Schedstat, wait: Wait, stack: Option<Arc<Stack>>) {
        let (since, before) = self.base;
        let used = counts.used_since(before);
        let passed = now.saturating_sub(since) + self.rest_ns;
        let (used, owed) = (used + self.owed_ns, used + self.owed_ns);
        let ns = passed.saturating_sub(used);
        (self.owed_ns, self.rest_ns) = (owed.saturating_sub(passed), 0);
        self.base = (now, counts);
        self.last = Some((counts, wait, stack));
        self.open = Some((now, ns));
    }

    /// Reports runnable time if it is long enough: after a wake-up at `stack`, or after preemption. The kernel counts how often each
    /// occurred, but not how long each took.
    fn ready(
        &mut self,
        now: u64,
        ready_ns: u64,
        least_ns: u64,
        stack: Option<&Arc<Stack>>,
        found: &mut Vec<WaitSpan>,
    ) {
        let (told_ns, before) = self.ready_reported;
        let ns = ready_ns.saturating_sub(told_ns);
        if ns < least_ns {
            return;
        }
        let switches = Switches::read(self.pid, self.tid).unwrap_or(before);
        self.ready_reported = (ready_ns - ns % 1000, switches);
        let whole = ns / 1000;
        let woken = if stack.is_some() { switches.woken_ns(before, whole) } else { 0 };
        for (time, stack) in [(woken, stack.cloned()), (whole - woken, None)] {
            let us = u32::try_from(time).unwrap_or(u32::MAX);
            if us > 0 {
                found.push(WaitSpan { ns: now, wait: Wait::Ready, stack, us });
            }
        }
    }

    /// Reports the current wait, which lasted until now.
    pub(super) fn close(&mut self, found: &mut Vec<WaitSpan>) {
        let (Some((ns, time)), Some((_, wait, stack))) = (self.open.take(), &self.last) else { return };
        self.rest_ns += time % 1000;
        let us = u32::try_from(time / 1000).unwrap_or(u32::MAX);
        if us > 0 {
            found.push(WaitSpan { ns, wait: *wait, stack: stack.clone(), us });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unwind::End;

    fn thread(base: (u64, Schedstat)) -> Thread {
        let own = |name| File::open(format!("/proc/thread-self/{name}")).unwrap();
        let files = Files { schedstat: own("schedstat"), syscall: Some(own("syscall")) };
        let (pid, tid) = (std::process::id(), nix::unistd::gettid().as_raw() as u32);
        Thread {
            pid,
            tid,
            files,
            unknown_start: None,
            base,
            ready_reported: Default::default(),
            last: None,
            open: None,
            owed_ns: 0,
            rest_ns: 0,
        }
    }

    fn counts(running_ms: u64, ready_ms: u64) -> Schedstat {
        Schedstat { running_ns: running_ms * 1_000_000, ready_ns: ready_ms * 1_000_000, turns: running_ms }
    }

    fn stack() -> Option<Arc<Stack>> {
        Some(Arc::new(Stack { frames: vec![1], end: End::Root }))
    }

    #[test]
    fn time_is_divided_as_the_kernel_counts_it() {
        let (mut thread, mut found) = (thread((0, counts(0, 0))), Vec::new());
        let futex = Wait::Blocked(Some(202));
        // Of 10 ms it ran 2 and was ready for 1.
        thread.ready(10_000_000, 1_000_000, MIN_RUNNABLE_NS, None, &mut found);
        thread.blocked(10_000_000, counts(2, 1), futex, stack());
        thread.continue_wait(15_000_000, &mut found);
        thread.close(&mut found);
        let told: Vec<_> = found.iter().map(|span| (span.wait, span.us)).collect();
        assert_eq!(told, [(Wait::Ready, 1000), (futex, 12_000)]);
    }

    #[test]
    fn what_was_ready_without_being_counted_is_taken_off_the_next_wait() {
        let (mut thread, mut found) = (thread((0, counts(0, 0))), Vec::new());
        let futex = Wait::Blocked(Some(202));
        thread.blocked(1_000_000, counts(0, 0), futex, stack());
        // Woken here; it gets a processor only 10 ms later.
        thread.continue_wait(11_000_000, &mut found);
        thread.close(&mut found);
        thread.blocked(12_000_000, counts(0, 10), futex, stack());
        thread.close(&mut found);
        thread.blocked(32_000_000, counts(0, 10), futex, stack());
        thread.close(&mut found);
        assert_eq!(found.iter().map(|span| span.us).sum::<u32>(), 22_000, "{found:?}");
    }

    #[test]
    fn what_was_ready_without_being_counted_is_no_part_of_the_wait_before() {
        let (mut thread, mut found) = (thread((0, counts(0, 0))), Vec::new());
        let (futex, read) = (Wait::Blocked(Some(202)), Wait::Blocked(Some(0)));
        thread.blocked(1_000_000, counts(0, 0), futex, stack());
        // Woken here; it gets a processor 10 ms later, and runs for 3.
        thread.continue_wait(11_000_000, &mut found);
        thread.correct_wait(12_000_000, counts(1, 10));
        thread.close(&mut found);
        thread.blocked(15_000_000, counts(3, 10), read, stack());
        thread.close(&mut found);
        let told: Vec<_> = found.iter().map(|span| (span.wait, span.us)).collect();
        assert_eq!(told, [(futex, 1000), (read, 1000)]);
    }

    #[test]
    fn the_time_before_a_thread_was_seen_is_told_when_its_beginning_is() {
        let futex = Wait::Blocked(Some(202));
        for is_open in [false, true] {
            let (mut thread, mut found) = (thread((10_000_000, counts(1, 2))), Vec::new());
            thread.ready_reported.0 = 2_000_000;
            thread.unknown_start = Some(thread.base);
            let begins = |thread: &mut Thread| thread.begins(4_000_000);
            if !is_open {
                begins(&mut thread);
            }
            thread.blocked(11_000_000, counts(1, 2), futex, stack());
            begins(&mut thread);
            thread.close(&mut found);
            thread.ready(11_000_000, 2_000_000, MIN_RUNNABLE_NS, None, &mut found);
            let told = |wait| found.iter().filter(|span| span.wait == wait).map(|span| span.us).sum::<u32>();
            assert_eq!((told(futex), told(Wait::Ready)), (4000, 2000), "{is_open}");
        }
    }

    #[test]
    fn a_long_wait_is_told_in_parts() {
        let (mut thread, mut found) = (thread((0, counts(0, 0))), Vec::new());
        thread.blocked(1000, counts(0, 0), Wait::Blocked(None), stack());
        for second in 1..4 {
            thread.continue_wait(1000 + second * MAX_SPAN_NS, &mut found);
        }
        assert_eq!(found.iter().map(|span| span.us).sum::<u32>(), 3_000_001);
        assert_eq!(found.len(), 3);
    }
}
