//! One thread and its time: how much of it was running, ready and blocked, and at which stacks it was blocked.

use std::fs::File;
use std::io;
use std::sync::Arc;

use super::blocked::{Blocked, Place};
use super::schedstat::Schedstat;
use super::stack::Stack;
use super::switches::Switches;

/// Times that a look is tried again because the thread ran meanwhile.
const ATTEMPTS: usize = 3;
/// The longest wait that is one sample: longer ones are told in parts, so that a profile can be read while it is written.
const LONGEST_NS: u64 = 1_000_000_000;
/// Least time that a thread was ready for it to be told: of one that is blocked, and of one that runs.
const LEAST_NS: u64 = 20_000;
const LEAST_RUNNING_NS: u64 = 1_000_000;

/// What a thread did not run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// It had no processor.
    Ready,
    /// It was in this system call; none: a page fault.
    Blocked(Option<u16>),
    /// It was blocked, and nobody may see where.
    Hidden,
}

/// Time of a thread at a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spell {
    /// When it was seen first.
    pub(super) ns: u64,
    pub(super) wait: Wait,
    pub(super) stack: Option<Arc<Stack>>,
    /// How long.
    pub(super) us: u32,
}

/// What a look found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    Lives,
    /// The thread has ended.
    Ended,
}

/// The files of a thread in /proc.
struct Files {
    schedstat: File,
    /// None: closed to us.
    syscall: Option<File>,
}

impl Files {
    fn place(&self) -> io::Result<Place> {
        self.syscall.as_ref().map_or_else(|| Err(io::ErrorKind::PermissionDenied.into()), Place::read)
    }
}

/// A thread that is looked at.
pub(super) struct Thread {
    pid: u32,
    tid: u32,
    files: Files,
    /// When it was opened, with what was counted then, if nobody has told yet when it began.
    untold: Option<(u64, Schedstat)>,
    /// Of the look at which it was blocked last: when, and what was counted then. At first, when it began.
    base: (u64, Schedstat),
    /// Ready time that was told, and how often it had been switched then.
    ready_told: (u64, Switches),
    /// What it was blocked at, if it was when it was looked at last, with what was counted then.
    last: Option<(Schedstat, Wait, Option<Arc<Stack>>)>,
    /// The wait that goes on: when it was seen first, nanoseconds that are not told.
    open: Option<(u64, u64)>,
    /// Time told as blocked that was ready: it was not counted yet.
    owed_ns: u64,
    /// Nanoseconds less than a microsecond, of both kinds.
    rest_ns: u64,
}

impl Thread {
    /// A thread of `pid` that began at `began_ns`, or that is looked at from then on.
    ///
    /// # Errors
    /// When it has ended.
    pub(super) fn open(pid: u32, tid: u32, began_ns: u64, now: u64) -> io::Result<Self> {
        let open = |name| File::open(format!("/proc/{pid}/task/{tid}/{name}"));
        let syscall = match open("syscall") {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            opened => Some(opened?),
        };
        let files = Files { schedstat: open("schedstat")?, syscall };
        let counts = Schedstat::read(&files.schedstat).ok_or(io::ErrorKind::NotFound)?;
        // What a thread has counted since long before is no part of this.
        let is_new = counts.running_ns + counts.ready_ns <= now.saturating_sub(began_ns);
        let base = if is_new { (began_ns, Schedstat::default()) } else { (now, counts) };
        let switches = if is_new { None } else { Switches::read(pid, tid) };
        let ready_told = (base.1.ready_ns, switches.unwrap_or_default());
        let untold = (!is_new).then_some(base);
        Ok(Self { pid, tid, files, untold, base, ready_told, last: None, open: None, owed_ns: 0, rest_ns: 0 })
    }

    /// Learns when it began, which may be told after it was seen.
    pub(super) fn begins(&mut self, began_ns: u64) {
        let Some((opened, counts)) = self.untold.take() else { return };
        let Some(blocked_ns) =
            opened.saturating_sub(began_ns).checked_sub(counts.used_since(Schedstat::default()))
        else {
            return;
        };
        match &mut self.open {
            Some((_, told_ns)) => *told_ns += blocked_ns,
            None => self.rest_ns += blocked_ns,
        }
        // Its ready time from before it was opened is still to be told.
        self.ready_told.0 = self.ready_told.0.saturating_sub(counts.ready_ns);
    }

    /// Looks at it. `walk` gives the stack of a blocked thread; what has been found goes to `found`. With `news` more of
    /// its process is known than at the last look.
    pub(super) fn look(
        &mut self,
        news: bool,
        clock: &mut dyn FnMut() -> u64,
        walk: &mut dyn FnMut(Blocked) -> Stack,
        found: &mut Vec<Spell>,
    ) -> Look {
        let Some(mut counts) = Schedstat::read(&self.files.schedstat) else {
            self.close(found);
            return Look::Ended;
        };
        let now = clock();
        if let Some((then, ..)) = &self.last
            && *then == counts
        {
            if news {
                self.walk_again(counts, walk);
            }
            self.goes_on(now, found);
            return Look::Lives;
        }
        self.take_back(now, counts);
        self.close(found);
        let woken_from = self.last.take().and_then(|(_, _, stack)| stack);
        for _ in 0..ATTEMPTS {
            let (wait, stack) = match self.files.place() {
                Ok(Place::Runs) => break,
                Ok(Place::Blocked(blocked)) if blocked.sp == 0 => break,
                Ok(Place::Blocked(blocked)) => (Wait::Blocked(blocked.call), Some(Arc::new(walk(blocked)))),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => (Wait::Hidden, None),
                Err(_) => break,
            };
            let Some(after) = Schedstat::read(&self.files.schedstat) else { break };
            // It has not run from before the place was read until after the walk: they are of one wait.
            if after == counts {
                let at = woken_from.or_else(|| stack.clone());
                self.ready(now, counts.ready_ns, LEAST_NS, at.as_ref(), found);
                self.blocked(clock(), counts, wait, stack);
                return Look::Lives;
            }
            counts = after;
        }
        self.ready(now, counts.ready_ns, LEAST_RUNNING_NS, woken_from.as_ref(), found);
        Look::Lives
    }

    /// Walks a stack once more that could not be walked to its end; it is that of the whole wait.
    fn walk_again(&mut self, counts: Schedstat, walk: &mut dyn FnMut(Blocked) -> Stack) {
        let Some((_, _, Some(stack))) = &mut self.last else { return };
        if stack.end.is_complete() {
            return;
        }
        let Ok(Place::Blocked(blocked)) = self.files.place() else { return };
        let again = walk(blocked);
        if Schedstat::read(&self.files.schedstat) == Some(counts) {
            *stack = Arc::new(again);
        }
    }

    /// It has not run since the last look, so it is still where it was.
    fn goes_on(&mut self, now: u64, found: &mut Vec<Spell>) {
        let passed = now.saturating_sub(self.base.0);
        self.base.0 = now;
        let (begun, ns) = self.open.unwrap_or((now, 0));
        self.open = Some((begun, ns + passed));
        if ns + passed >= LONGEST_NS {
            self.close(found);
            self.open = Some((now, 0));
        }
    }

    /// The thread has run since the last look. The kernel counts its time in the run queue only now: the part of it that was
    /// already told as waiting is taken off the wait.
    fn take_back(&mut self, now: u64, counts: Schedstat) {
        let Some((_, told_ns)) = &mut self.open else { return };
        let (since, before) = self.base;
        let passed = now.saturating_sub(since);
        let over = counts.used_since(before).saturating_sub(passed).min(*told_ns);
        *told_ns -= over;
        self.base.0 -= over;
    }

    /// It is blocked, and was not in the same wait at the last look.
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

    /// Tells of time that it was ready for a processor, if that is so much at least: woken from `stack`, or put aside while
    /// it ran. Which it was of one time is not known; how often each happened is.
    fn ready(
        &mut self,
        now: u64,
        ready_ns: u64,
        least_ns: u64,
        stack: Option<&Arc<Stack>>,
        found: &mut Vec<Spell>,
    ) {
        let (told_ns, before) = self.ready_told;
        let ns = ready_ns.saturating_sub(told_ns);
        if ns < least_ns {
            return;
        }
        let switches = Switches::read(self.pid, self.tid).unwrap_or(before);
        self.ready_told = (ready_ns - ns % 1000, switches);
        let whole = ns / 1000;
        let woken = if stack.is_some() { switches.woken_ns(before, whole) } else { 0 };
        for (time, stack) in [(woken, stack.cloned()), (whole - woken, None)] {
            let us = u32::try_from(time).unwrap_or(u32::MAX);
            if us > 0 {
                found.push(Spell { ns: now, wait: Wait::Ready, stack, us });
            }
        }
    }

    /// Tells of the wait that went on until now.
    pub(super) fn close(&mut self, found: &mut Vec<Spell>) {
        let (Some((ns, time)), Some((_, wait, stack))) = (self.open.take(), &self.last) else { return };
        self.rest_ns += time % 1000;
        let us = u32::try_from(time / 1000).unwrap_or(u32::MAX);
        if us > 0 {
            found.push(Spell { ns, wait: *wait, stack: stack.clone(), us });
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
            untold: None,
            base,
            ready_told: Default::default(),
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
        thread.ready(10_000_000, 1_000_000, LEAST_NS, None, &mut found);
        thread.blocked(10_000_000, counts(2, 1), futex, stack());
        thread.goes_on(15_000_000, &mut found);
        thread.close(&mut found);
        let told: Vec<_> = found.iter().map(|spell| (spell.wait, spell.us)).collect();
        assert_eq!(told, [(Wait::Ready, 1000), (futex, 12_000)]);
    }

    #[test]
    fn what_was_ready_without_being_counted_is_taken_off_the_next_wait() {
        let (mut thread, mut found) = (thread((0, counts(0, 0))), Vec::new());
        let futex = Wait::Blocked(Some(202));
        thread.blocked(1_000_000, counts(0, 0), futex, stack());
        // Woken here; it gets a processor only 10 ms later.
        thread.goes_on(11_000_000, &mut found);
        thread.close(&mut found);
        thread.blocked(12_000_000, counts(0, 10), futex, stack());
        thread.close(&mut found);
        thread.blocked(32_000_000, counts(0, 10), futex, stack());
        thread.close(&mut found);
        assert_eq!(found.iter().map(|spell| spell.us).sum::<u32>(), 22_000, "{found:?}");
    }

    #[test]
    fn what_was_ready_without_being_counted_is_no_part_of_the_wait_before() {
        let (mut thread, mut found) = (thread((0, counts(0, 0))), Vec::new());
        let (futex, read) = (Wait::Blocked(Some(202)), Wait::Blocked(Some(0)));
        thread.blocked(1_000_000, counts(0, 0), futex, stack());
        // Woken here; it gets a processor 10 ms later, and runs for 3.
        thread.goes_on(11_000_000, &mut found);
        thread.take_back(12_000_000, counts(1, 10));
        thread.close(&mut found);
        thread.blocked(15_000_000, counts(3, 10), read, stack());
        thread.close(&mut found);
        let told: Vec<_> = found.iter().map(|spell| (spell.wait, spell.us)).collect();
        assert_eq!(told, [(futex, 1000), (read, 1000)]);
    }

    #[test]
    fn the_time_before_a_thread_was_seen_is_told_when_its_beginning_is() {
        let futex = Wait::Blocked(Some(202));
        for is_open in [false, true] {
            let (mut thread, mut found) = (thread((10_000_000, counts(1, 2))), Vec::new());
            thread.ready_told.0 = 2_000_000;
            thread.untold = Some(thread.base);
            let begins = |thread: &mut Thread| thread.begins(4_000_000);
            if !is_open {
                begins(&mut thread);
            }
            thread.blocked(11_000_000, counts(1, 2), futex, stack());
            begins(&mut thread);
            thread.close(&mut found);
            thread.ready(11_000_000, 2_000_000, LEAST_NS, None, &mut found);
            let told =
                |wait| found.iter().filter(|spell| spell.wait == wait).map(|spell| spell.us).sum::<u32>();
            assert_eq!((told(futex), told(Wait::Ready)), (4000, 2000), "{is_open}");
        }
    }

    #[test]
    fn a_long_wait_is_told_in_parts() {
        let (mut thread, mut found) = (thread((0, counts(0, 0))), Vec::new());
        thread.blocked(1000, counts(0, 0), Wait::Blocked(None), stack());
        for second in 1..4 {
            thread.goes_on(1000 + second * LONGEST_NS, &mut found);
        }
        assert_eq!(found.iter().map(|spell| spell.us).sum::<u32>(), 3_000_001);
        assert_eq!(found.len(), 3);
    }
}
