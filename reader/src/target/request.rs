//! Asking a running process for the stacks of its threads, each of which answers by itself at its next return to user
//! mode: nobody is stopped, and no profile is touched.
//!
//! A request never harms who is asked. So before each signal the thread is looked at: a signal that would not reach
//! our handler now might meet another program's later.

pub(crate) mod target;
pub(crate) mod thread;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

use nix::libc;
use shm_format::{AnswerHead, Nonce, Progress, REQUEST_SLOTS};

use crate::target::attach::send_request;
pub(crate) use target::{Target, TargetError};
use thread::ThreadState;

/// How long to wait for a slot that others use, or as long as for an answer.
const SLOT_PATIENCE: Duration = Duration::from_secs(2);
/// How long a handler may take to finish an answer that it has begun.
const WRITING_PATIENCE: Duration = Duration::from_millis(200);
/// The first repetition of a signal that may have been merged with another; later ones after twice the time.
const FIRST_REPEAT: Duration = Duration::from_millis(20);
/// How long a thread that seems to sleep with every signal blocked is looked at again.
const SECOND_LOOKS: Duration = Duration::from_millis(5);
/// Slots left to others.
const SLOTS_SPARED: usize = 4;

/// How to ask.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestOptions {
    /// Time to wait for a thread's answer.
    pub(crate) timeout: Duration,
    /// Threads are left out that wait in a call which a signal ends with EINTR.
    pub(crate) gentle: bool,
}

/// What one thread said.
#[derive(Debug)]
pub(crate) struct Report {
    /// The thread just before it was asked.
    pub(crate) thread: ThreadState,
    /// Where in the kernel it waited then.
    pub(crate) wait_channel: Option<String>,
    /// The system call in which it waited then.
    pub(crate) system_call: Option<i64>,
    /// Its stack, or why there is none.
    pub(crate) outcome: Result<Answer, Silence>,
}

/// A stack that a thread gave.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The request.
    pub(crate) nonce: Nonce,
    /// Who answered, when, and how the walk ended.
    pub(crate) head: AnswerHead,
    /// Frames as in records, leaf first.
    pub(crate) frames: Vec<u64>,
    /// Ticks before the signal was sent.
    pub(crate) sent: u64,
    /// Ticks after the signal was sent.
    pub(crate) queued: u64,
    /// Ticks when the answer was seen.
    pub(crate) seen: u64,
}

/// Why a thread gave no stack.
#[derive(Debug)]
pub(crate) enum Silence {
    /// It was gone by then.
    Ended,
    /// The process is about to execute another program or to end.
    Closed,
    /// It blocks the signal.
    Blocks(i32),
    /// It waits for the signal to be given to it.
    Awaits(i32),
    /// The process has no handler for the signal now.
    Unhandled(i32),
    /// It is stopped.
    Stopped,
    /// It is stopped by a tracer.
    Traced(u32),
    /// The kernel would drop the nonce: too many signals are queued.
    QueueFull(u64, u64),
    /// It waits in a call that a signal would end.
    Spared(&'static str),
    /// The kernel refused the signal.
    Refused(io::Error),
    /// No answer in time; what it did then.
    TimedOut(Duration, &'static str, Option<String>),
    /// It began to answer and did not finish.
    Unfinished,
    /// The answer is none.
    Garbled,
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => write!(f, "it has ended"),
            Self::Closed => write!(f, "its process is about to end or to execute another program"),
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

/// A request under way.
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

/// A thread that is to be asked.
struct QueuedThread {
    number: usize,
    tid: u32,
    since: Instant,
}

/// Asks `tids`, several at a time; the reports have their order.
///
/// # Errors
/// When no slot can be had. What single threads cannot do is in their reports.
pub(crate) fn ask(
    target: &mut Target,
    tids: &[u32],
    options: RequestOptions,
) -> Result<Vec<Report>, TargetError> {
    let slots = claim(target, options.timeout.max(SLOT_PATIENCE))?;
    let reports = tids.iter().map(|_| None).collect();
    let mut round = Round { target, options, free: slots, pending: Vec::new(), reports };
    let since = Instant::now();
    let mut waiting: VecDeque<QueuedThread> =
        tids.iter().enumerate().map(|(number, &tid)| QueuedThread { number, tid, since }).collect();
    let mut idle = 0u32;
    while !(waiting.is_empty() && round.pending.is_empty()) {
        let mut moved = false;
        // Each at most once: who cannot be asked yet comes back to the end.
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

/// Lets the asked threads run: at first only if they wait for this processor.
fn pause(idle: u32) {
    match idle {
        0 => {}
        1..=20 => yield_now(),
        _ => sleep(Duration::from_micros(u64::from(idle.min(200)))),
    }
}

fn claim(target: &mut Target, patience: Duration) -> Result<Vec<usize>, TargetError> {
    let deadline = Instant::now() + patience;
    loop {
        let slots = target.asker.claim(REQUEST_SLOTS - SLOTS_SPARED).map_err(|error| TargetError::Place {
            pid: target.pid,
            region: target.region.display().to_string(),
            error,
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
    /// Looks at a thread and asks it, unless that would be in vain or do harm. Gives it back if it must be asked later.
    fn begin(&mut self, next: QueuedThread, slot: usize) -> Option<QueuedThread> {
        let (pid, tid) = (self.target.pid, next.tid);
        let Ok(thread) = ThreadState::read(pid, tid) else {
            let thread = ThreadState { tid, inner_tid: tid, state: 'X', ..ThreadState::default() };
            let outcome = Err(Silence::Ended);
            self.free.push(slot);
            self.reports[next.number] =
                Some(Report { thread, wait_channel: None, system_call: None, outcome });
            return None;
        };
        // The file is not of one moment: a thread seen asleep may have been in its handler when its mask was read.
        let patience = if thread.state == 'S' { SECOND_LOOKS } else { self.options.timeout };
        if thread.blocks_everything() && next.since.elapsed() < patience {
            self.free.push(slot);
            return Some(next);
        }
        let system_call = thread::system_call(pid, tid);
        let wait_channel = thread::wait_channel(pid, tid);
        let begun = match self.objection(&thread, system_call) {
            Some(silence) => Err(silence),
            None => self.send(&thread, slot, next.number),
        };
        let outcome = match begun {
            Ok(pending) => {
                self.pending.push(pending);
                // Stands until the answer comes.
                Err(Silence::Ended)
            }
            Err(silence) => {
                self.free.push(slot);
                Err(silence)
            }
        };
        self.reports[next.number] = Some(Report { thread, wait_channel, system_call, outcome });
        None
    }

    /// Why the thread must not or need not be sent the signal.
    fn objection(&self, thread: &ThreadState, system_call: Option<i64>) -> Option<Silence> {
        let signal = self.target.signal;
        let bit = 1u64 << (signal - 1).clamp(0, 63);
        let spared = || {
            let (name, ends) = system_call.and_then(thread::waiting_call)?;
            (self.options.gentle && ends && thread.state == 'S').then_some(Silence::Spared(name))
        };
        match thread.state {
            'Z' | 'X' => Some(Silence::Ended),
            't' => Some(Silence::Traced(thread.tracer)),
            'T' => Some(Silence::Stopped),
            _ if self.target.asker.requests(|requests| requests.is_closed()) => Some(Silence::Closed),
            _ if thread.caught & bit == 0 => Some(Silence::Unhandled(signal)),
            _ if thread.blocked & bit != 0 => Some(Silence::Blocks(signal)),
            'S' if system_call == Some(libc::SYS_rt_sigtimedwait)
                && thread::awaited(self.target.pid, thread.tid) & bit != 0 =>
            {
                Some(Silence::Awaits(signal))
            }
            // The queue is the user's: others fill it at the same time.
            _ => match thread.queued {
                Some((queued, limit)) if queued.saturating_add(REQUEST_SLOTS as u64) >= limit => {
                    Some(Silence::QueueFull(queued, limit))
                }
                _ => spared(),
            },
        }
    }

    fn send(&self, thread: &ThreadState, slot: usize, number: usize) -> Result<Pending, Silence> {
        let asker = &self.target.asker;
        let asked = asker.requests(|requests| requests.ask(slot, thread.inner_tid));
        let nonce = asked.ok_or(Silence::Unfinished)?;
        let sent = self.target.ticks();
        if let Err(silence) = self.signal(thread.tid, nonce) {
            asker.requests(|requests| requests.withdraw(nonce));
            return Err(silence);
        }
        let (queued, since) = (self.target.ticks(), Instant::now());
        Ok(Pending { thread: number, slot, nonce, sent, queued, since, repeat: FIRST_REPEAT, writing: None })
    }

    /// Sends the signal, as long as the process is open to it.
    fn signal(&self, tid: u32, nonce: Nonce) -> Result<(), Silence> {
        let Target { pid, signal, asker, .. } = &*self.target;
        let send = || send_request(*pid, tid, *signal, nonce);
        match asker.requests(|requests| requests.send(nonce, send)) {
            None => Err(Silence::Closed),
            Some(Err(error)) if error.raw_os_error() == Some(libc::ESRCH) => Err(Silence::Ended),
            Some(sent) => sent.map_err(Silence::Refused),
        }
    }

    /// Looks at every request under way; true if one came to its end.
    fn collect(&mut self) -> bool {
        let before = self.pending.len();
        for mut pending in std::mem::take(&mut self.pending) {
            match self.look(&mut pending) {
                None => self.pending.push(pending),
                Some(outcome) => {
                    // A handler may still write there.
                    if !matches!(outcome, Err(Silence::Unfinished)) {
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
    fn look(&self, pending: &mut Pending) -> Option<Result<Answer, Silence>> {
        let asker = &self.target.asker;
        match asker.requests(|requests| requests.progress(pending.nonce)) {
            Progress::Answered => {
                let seen = self.target.ticks();
                let mut frames = [0; AnswerHead::MAX_FRAMES];
                let head = asker.requests(|requests| requests.take(pending.nonce, &mut frames));
                Some(head.ok_or(Silence::Garbled).map(|head| Answer {
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
                (since.elapsed() > WRITING_PATIENCE).then_some(Err(Silence::Unfinished))
            }
            Progress::Lost => Some(Err(Silence::Garbled)),
        }
    }

    /// Repeats the signal of a request that may have been merged with another, and gives up in the end.
    fn wait(&self, pending: &mut Pending) -> Option<Result<Answer, Silence>> {
        let waited = pending.since.elapsed();
        if waited < pending.repeat.min(self.options.timeout) {
            return None;
        }
        let tid = self.reports.get(pending.thread)?.as_ref()?.thread.tid;
        let thread = ThreadState::read(self.target.pid, tid);
        let objection = match &thread {
            Err(_) => Some(Silence::Ended),
            Ok(thread) if thread.blocks_everything() => None,
            Ok(thread) => self.objection(thread, thread::system_call(self.target.pid, tid)),
        };
        let silence = match (objection, thread) {
            (None, Ok(thread)) if waited < self.options.timeout => {
                pending.repeat *= 2;
                let bit = 1u64 << (self.target.signal - 1).clamp(0, 63);
                if thread.pending & bit == 0 && thread.blocked & bit == 0 {
                    let _ = self.signal(tid, pending.nonce);
                }
                return None;
            }
            (None, thread) => Silence::TimedOut(
                self.options.timeout,
                thread.map_or("gone", |thread| thread.activity()),
                thread::wait_channel(self.target.pid, tid),
            ),
            (Some(objection), _) => objection,
        };
        // Lost against an answer that comes just now: it is taken at the next look.
        let withdrawn = self.target.asker.requests(|requests| requests.withdraw(pending.nonce));
        withdrawn.then_some(Err(silence))
    }
}
