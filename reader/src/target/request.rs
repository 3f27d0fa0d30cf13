//! Requests the stacks of a running process's threads. Each thread walks its own stack at its next return to user mode, so the
//! process is not paused, and no profile is involved.
//!
//! A request must never harm the process. So the state of a thread is checked before each signal: one that cannot reach the agent's
//! handler now could be delivered to another handler later.

pub(crate) mod target;
pub(crate) mod thread;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

use nix::libc;
use shm_format::{AnswerHead, Nonce, Progress, REQUEST_SLOTS};

use crate::target::attach::request::send_request;
pub(crate) use target::{Target, TargetError};
use thread::ThreadState;

/// How long to wait for a free slot, unless the timeout for answers is longer.
const SLOT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to wait for an answer that a handler has begun to write.
const WRITING_TIMEOUT: Duration = Duration::from_millis(200);
/// When to first repeat a signal that may have been merged with another; the time doubles with each repetition.
const FIRST_REPEAT: Duration = Duration::from_millis(20);
/// How long to recheck a thread that seems to sleep with all signals blocked.
const RECHECK_FOR: Duration = Duration::from_millis(5);
/// Slots left to other requesters.
const SLOTS_SPARED: usize = 4;

/// How to request stacks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestOptions {
    /// Time to wait for a thread's answer.
    pub(crate) timeout: Duration,
    /// Skip threads in a system call that a signal ends with EINTR.
    pub(crate) gentle: bool,
}

/// The result for one thread.
#[derive(Debug)]
pub(crate) struct Report {
    /// The thread's state just before the request.
    pub(crate) thread: ThreadState,
    /// Where in the kernel it was waiting then.
    pub(crate) wait_channel: Option<String>,
    /// The system call in which it was waiting then.
    pub(crate) system_call: Option<i64>,
    /// Its stack, or why there is none.
    pub(crate) outcome: Result<Answer, NoStack>,
}

/// A thread's answer: its stack.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The request.
    pub(crate) nonce: Nonce,
    /// Thread, times, and how the walk ended.
    pub(crate) head: AnswerHead,
    /// Frames as in records, leaf first.
    pub(crate) frames: Vec<u64>,
    /// Time just before the signal was sent, in ticks.
    pub(crate) sent: u64,
    /// Time just after the signal was sent, in ticks.
    pub(crate) queued: u64,
    /// Time when the answer was seen, in ticks.
    pub(crate) seen: u64,
}

/// Why there is no stack of a thread.
#[derive(Debug)]
pub(crate) enum NoStack {
    /// It has ended.
    Ended,
    /// The process is about to execute another program or to end.
    Closed,
    /// It blocks the signal.
    Blocks(i32),
    /// It waits for this signal itself (sigwait).
    Awaits(i32),
    /// The process has no handler for the signal now.
    Unhandled(i32),
    /// It is stopped.
    Stopped,
    /// It is stopped by a tracer.
    Traced(u32),
    /// The kernel would drop the nonce: too many signals are queued.
    QueueFull(u64, u64),
    /// It is in a system call that a signal would end (`gentle`).
    Spared(&'static str),
    /// The kernel refused the signal.
    Refused(io::Error),
    /// No answer in time; what it was doing then.
    TimedOut(Duration, &'static str, Option<String>),
    /// It began to write an answer and did not finish.
    Unfinished,
    /// The answer is malformed.
    Garbled,
}

impl fmt::Display for NoStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => write!(f, "it has ended"),
            Self::Closed => write!(
                f,
                "its process takes no requests: it was detached (`selfwind attach -p PID` continues), forbids signal handlers to return (seccomp), or is about to end or to execute another program"
            ),
            Self::Blocks(signal) => write!(f, "it blocks signal {signal}, which asks for stacks"),
            Self::Awaits(signal) => write!(
                f,
                "it waits in sigwait (or sigtimedwait, sigwaitinfo) for signal {signal} too, and would take the request for a signal of its own"
            ),
            Self::Unhandled(signal) => {
                write!(f, "its process has no handler for signal {signal}, which would kill it")
            }
            Self::Stopped => write!(f, "it is stopped; it answers after SIGCONT"),
            Self::Traced(tracer) => write!(f, "its tracer, process {tracer}, has stopped it"),
            Self::QueueFull(queued, limit) => write!(
                f,
                "its user has {queued} of {limit} signals queued, and the kernel would drop the request's nonce; raise RLIMIT_SIGPENDING (ulimit -i)"
            ),
            Self::Spared(call) => {
                write!(f, "it waits in {call}, which a signal would end with EINTR (--gentle)")
            }
            Self::Refused(error) => write!(f, "the signal was refused: {error}"),
            Self::TimedOut(after, activity, channel) => {
                write!(f, "no answer within {} ms: it is {activity}", after.as_millis())?;
                channel.as_ref().map_or(Ok(()), |channel| write!(f, " in {channel}"))
            }
            Self::Unfinished => write!(f, "it began to answer and did not finish"),
            Self::Garbled => write!(f, "its answer is inconsistent"),
        }
    }
}

/// A pending request.
struct Pending {
    thread: usize,
    slot: usize,
    nonce: Nonce,
    sent: u64,
    queued: u64,
    since: Instant,
    repeat: Duration,
    writing: Option<Instant>,
}

/// A thread to send a request to.
struct QueuedThread {
    number: usize,
    tid: u32,
    since: Instant,
}

/// Requests the stacks of `tids`, several at a time. The reports are in the same order.
///
/// # Errors
/// If no slot is available. Failures of single threads are in their reports.
pub(crate) fn ask(
    target: &mut Target,
    tids: &[u32],
    options: RequestOptions,
) -> Result<Vec<Report>, TargetError> {
    let slots = claim(target, options.timeout.max(SLOT_TIMEOUT))?;
    let reports = tids.iter().map(|_| None).collect();
    let mut round = Round { target, options, free: slots, pending: Vec::new(), reports };
    let since = Instant::now();
    let mut waiting: VecDeque<QueuedThread> =
        tids.iter().enumerate().map(|(number, &tid)| QueuedThread { number, tid, since }).collect();
    let mut idle = 0u32;
    while !(waiting.is_empty() && round.pending.is_empty()) {
        let mut moved = false;
        // Each at most once per round: a thread that cannot be asked yet goes back to the end.
        for _ in 0..waiting.len() {
            let Some(slot) = round.free.pop() else { break };
            let Some(next) = waiting.pop_front() else { break };
            match round.begin(next, slot) {
                Some(later) => waiting.push_back(later),
                None => moved = true,
            }
        }
        moved |= round.collect();
        if round.free.is_empty() && round.pending.is_empty() && !waiting.is_empty() {
            return Err(TargetError::Busy(round.target.pid));
        }
        idle = if moved { 0 } else { idle.saturating_add(1) };
        pause(idle);
    }
    Ok(round.reports.into_iter().flatten().collect())
}

/// Lets the threads run: at first by yielding this CPU only.
fn pause(idle: u32) {
    match idle {
        0 => {}
        1..=20 => yield_now(),
        _ => sleep(Duration::from_micros(u64::from(idle.min(200)))),
    }
}

fn claim(target: &mut Target, timeout: Duration) -> Result<Vec<usize>, TargetError> {
    let deadline = Instant::now() + timeout;
    loop {
        let slots = target.channel.claim(REQUEST_SLOTS - SLOTS_SPARED).map_err(|error| {
            TargetError::Place { pid: target.pid, region: target.region.display().to_string(), error }
        })?;
        if !slots.is_empty() {
            return Ok(slots.to_vec());
        }
        if Instant::now() > deadline {
            return Err(TargetError::Busy(target.pid));
        }
        sleep(Duration::from_millis(1));
    }
}

/// One round of requests.
struct Round<'a> {
    target: &'a mut Target,
    options: RequestOptions,
    free: Vec<usize>,
    pending: Vec<Pending>,
    reports: Vec<Option<Report>>,
}

impl Round<'_> {
    /// Checks a thread and sends it a request, unless that would be useless or harmful. Returns it if it has to be asked later.
    fn begin(&mut self, next: QueuedThread, slot: usize) -> Option<QueuedThread> {
        let (pid, tid) = (self.target.pid, next.tid);
        let Ok(thread) = ThreadState::read(pid, tid) else {
            let thread = ThreadState { tid, inner_tid: tid, state: 'X', ..ThreadState::default() };
            let outcome = Err(NoStack::Ended);
            self.free.push(slot);
            self.reports[next.number] =
                Some(Report { thread, wait_channel: None, system_call: None, outcome });
            return None;
        };
        // The file is not an atomic snapshot: a thread seen asleep may have been in its handler when its mask was read.
        let timeout = if thread.state == 'S' { RECHECK_FOR } else { self.options.timeout };
        if thread.blocks_everything() && next.since.elapsed() < timeout {
            self.free.push(slot);
            return Some(next);
        }
        let system_call = thread::system_call(pid, tid);
        let wait_channel = thread::wait_channel(pid, tid);
        let begun = match self.reason_to_skip(&thread, system_call) {
            Some(no_stack) => Err(no_stack),
            None => self.send(&thread, slot, next.number),
        };
        let outcome = match begun {
            Ok(pending) => {
                self.pending.push(pending);
                // Placeholder until the answer arrives.
                Err(NoStack::Ended)
            }
            Err(no_stack) => {
                self.free.push(slot);
                Err(no_stack)
            }
        };
        self.reports[next.number] = Some(Report { thread, wait_channel, system_call, outcome });
        None
    }

    /// Why the thread must not be sent the signal, or need not.
    fn reason_to_skip(&self, thread: &ThreadState, system_call: Option<i64>) -> Option<NoStack> {
        let signal = self.target.signal;
        let bit = 1u64 << (signal - 1).clamp(0, 63);
        let spared = || {
            let (name, ends) = system_call.and_then(thread::waiting_call)?;
            (self.options.gentle && ends && thread.state == 'S').then_some(NoStack::Spared(name))
        };
        match thread.state {
            'Z' | 'X' => Some(NoStack::Ended),
            't' => Some(NoStack::Traced(thread.tracer)),
            'T' => Some(NoStack::Stopped),
            _ if self.target.channel.requests(|requests| requests.is_closed()) => Some(NoStack::Closed),
            _ if thread.caught & bit == 0 => Some(NoStack::Unhandled(signal)),
            _ if thread.blocked & bit != 0 => Some(NoStack::Blocks(signal)),
            'S' if system_call == Some(libc::SYS_rt_sigtimedwait)
                && thread::awaited(self.target.pid, thread.tid) & bit != 0 =>
            {
                Some(NoStack::Awaits(signal))
            }
            // The queue is per user, so other processes may fill it at the same time.
            _ => match thread.queued {
                Some((queued, limit)) if queued.saturating_add(REQUEST_SLOTS as u64) >= limit => {
                    Some(NoStack::QueueFull(queued, limit))
                }
                _ => spared(),
            },
        }
    }

    fn send(&self, thread: &ThreadState, slot: usize, number: usize) -> Result<Pending, NoStack> {
        let channel = &self.target.channel;
        let asked = channel.requests(|requests| requests.ask(slot, thread.inner_tid));
        let nonce = asked.ok_or(NoStack::Unfinished)?;
        let sent = self.target.ticks();
        if let Err(no_stack) = self.signal(thread.tid, nonce) {
            channel.requests(|requests| requests.withdraw(nonce));
            return Err(no_stack);
        }
        let (queued, since) = (self.target.ticks(), Instant::now());
        Ok(Pending { thread: number, slot, nonce, sent, queued, since, repeat: FIRST_REPEAT, writing: None })
    }

    /// Sends the signal, if the region still accepts requests.
    fn signal(&self, tid: u32, nonce: Nonce) -> Result<(), NoStack> {
        let Target { pid, signal, channel, .. } = &*self.target;
        let send = || send_request(*pid, tid, *signal, nonce);
        match channel.requests(|requests| requests.send(nonce, send)) {
            None => Err(NoStack::Closed),
            Some(Err(error)) if error.raw_os_error() == Some(libc::ESRCH) => Err(NoStack::Ended),
            Some(sent) => sent.map_err(NoStack::Refused),
        }
    }

    /// Checks every pending request; true if one has finished.
    fn collect(&mut self) -> bool {
        let before = self.pending.len();
        for mut pending in std::mem::take(&mut self.pending) {
            match self.look(&mut pending) {
                None => self.pending.push(pending),
                Some(outcome) => {
                    // A handler may still write there.
                    if !matches!(outcome, Err(NoStack::Unfinished)) {
                        self.free.push(pending.slot);
                    }
                    if let Some(Some(report)) = self.reports.get_mut(pending.thread) {
                        report.outcome = outcome;
                    }
                }
            }
        }
        self.pending.len() < before
    }

    /// The outcome of a request, if there is one by now.
    fn look(&self, pending: &mut Pending) -> Option<Result<Answer, NoStack>> {
        let channel = &self.target.channel;
        match channel.requests(|requests| requests.progress(pending.nonce)) {
            Progress::Answered => {
                let seen = self.target.ticks();
                let mut frames = [0; AnswerHead::MAX_FRAMES];
                let head = channel.requests(|requests| requests.take(pending.nonce, &mut frames));
                Some(head.ok_or(NoStack::Garbled).map(|head| Answer {
                    nonce: pending.nonce,
                    head,
                    frames: frames[..usize::from(head.depth).min(frames.len())].to_vec(),
                    sent: pending.sent,
                    queued: pending.queued,
                    seen,
                }))
            }
            Progress::Waiting => self.wait(pending),
            Progress::Writing => {
                let since = *pending.writing.get_or_insert_with(Instant::now);
                (since.elapsed() > WRITING_TIMEOUT).then_some(Err(NoStack::Unfinished))
            }
            Progress::Lost => Some(Err(NoStack::Garbled)),
        }
    }

    /// Repeats the signal if it may have been merged with another, and gives up at the timeout.
    fn wait(&self, pending: &mut Pending) -> Option<Result<Answer, NoStack>> {
        let waited = pending.since.elapsed();
        if waited < pending.repeat.min(self.options.timeout) {
            return None;
        }
        let tid = self.reports.get(pending.thread)?.as_ref()?.thread.tid;
        let thread = ThreadState::read(self.target.pid, tid);
        let objection = match &thread {
            Err(_) => Some(NoStack::Ended),
            Ok(thread) if thread.blocks_everything() => None,
            Ok(thread) => self.reason_to_skip(thread, thread::system_call(self.target.pid, tid)),
        };
        let no_stack = match (objection, thread) {
            (None, Ok(thread)) if waited < self.options.timeout => {
                pending.repeat *= 2;
                let bit = 1u64 << (self.target.signal - 1).clamp(0, 63);
                if thread.pending & bit == 0 && thread.blocked & bit == 0 {
                    let _ = self.signal(tid, pending.nonce);
                }
                return None;
            }
            (None, thread) => NoStack::TimedOut(
                self.options.timeout,
                thread.map_or("gone", |thread| thread.activity()),
                thread::wait_channel(self.target.pid, tid),
            ),
            (Some(objection), _) => objection,
        };
        // If an answer arrives just now, withdrawing fails, and the next check takes it.
        let withdrawn = self.target.channel.requests(|requests| requests.withdraw(pending.nonce));
        withdrawn.then_some(Err(no_stack))
    }
}
