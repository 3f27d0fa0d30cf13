//! Examines a process: whether it runs the agent, and what would prevent sampling it.

use std::ffi::OsStr;
use std::fs;
use std::thread;
use std::time::Duration;

use nix::libc;
use selfwind_profile::digits::counted;
use selfwind_profile::events::Events;
use selfwind_profile::profile_file::{Event, SessionInfo};
use shm_format::Mode;

use super::finding::Finding;
use super::limits::status;
use super::value::{bytes, limit_text};
use crate::proc::line;
use crate::proc::threads;
use crate::record::program;
use crate::target::attach::request::resource_limit;
use crate::target::inject;
use crate::target::request::thread::ThreadState;
use crate::target::request::{Target, TargetError};

/// Examines process `pid`.
///
/// # Errors
/// If there is no such process.
pub(super) fn examine(pid: u32) -> Result<Vec<Finding>, TargetError> {
    let text = pid.to_string();
    if line(&format!("/proc/{pid}/comm")).is_none() {
        return Err(TargetError::NoProcess(pid));
    }
    let mut findings = Vec::new();
    let target = Target::find(pid);
    match target {
        Ok(mut target) => {
            findings.extend(source(&mut target));
            findings.push(signal(&target));
        }
        Err(error) => findings.push(no_agent(pid, &error)),
    }
    findings.extend([user(&text), tracer(&text)].into_iter().flatten());
    findings.extend(restrictions(&text));
    findings.extend(namespace(&text));
    findings.extend(limits(pid));
    Ok(findings)
}

fn source(target: &mut Target) -> Vec<Finding> {
    let info = target.events.iter().rev().find_map(|event| match event {
        Event::Process(info) => Some(info),
        _ => None,
    });
    let (source, period, note) = info.map_or_else(
        || ("unknown".into(), 0, String::new()),
        |info| (info.source.clone(), info.period_ns, info.note.clone()),
    );
    let session = SessionInfo::default();
    let events = Events::new(&session, [(&source, period)].into_iter());
    let sampled = match events.measures().get(events.main()) {
        Some(measure) if !measure.is_cpu_time() => format!("{source}: {}", measure.name),
        _ => format!("{source} at {} Hz", 1_000_000_000u64.checked_div(period).unwrap_or(0)),
    };
    let counters = target.channel.region().counters();
    let mode = match target.channel.region().mode() {
        Mode::Discard => "being recorded",
        Mode::Overwrite => "a flight recorder",
    };
    let region = target.region.display().to_string();
    let mut findings = vec![
        Finding::good(
            "agent",
            region,
            format!("it is {mode}; `selfwind dump -p {}` shows its stacks", target.pid),
        ),
        Finding::good(
            "source",
            sampled,
            format!(
                "{} recorded, {} truncated, {} started",
                counted(counters.recorded.count, "sample", "samples"),
                counters.truncated,
                counted(counters.threads_started, "thread", "threads")
            ),
        ),
    ];
    if !note.is_empty() {
        let remedy = "correct the setting where the program is started";
        findings.push(Finding::limited("settings", note, "the defaults are used instead", remedy));
    }
    findings
}

/// How often to look whether a thread blocks the signal. One that handles a signal blocks others for a moment.
const LOOKS: usize = 5;
/// Time between two looks.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Those of the threads in `found`, which block the signal, that always do when one looks again.
fn always_block(mut found: Vec<u32>, mut still_blocks: impl FnMut(u32) -> bool) -> usize {
    for _ in 1..LOOKS {
        if found.is_empty() {
            break;
        }
        thread::sleep(BETWEEN_LOOKS);
        found.retain(|tid| still_blocks(*tid));
    }
    found.len()
}

fn signal(target: &Target) -> Finding {
    let name = "signal";
    let bit = 1u64 << (target.signal - 1).clamp(0, 63);
    let state = |tid| ThreadState::read(target.pid, tid).ok();
    let states: Vec<_> = threads(target.pid).unwrap_or_default().into_iter().filter_map(state).collect();
    let blocks = |state: &ThreadState| state.blocked & bit != 0;
    let found = states.iter().filter(|state| blocks(state)).map(|state| state.tid).collect();
    let blocking = always_block(found, |tid| state(tid).is_some_and(|state| blocks(&state)));
    let value = format!(
        "{blocking} of {} {} signal {}",
        counted(states.len() as u64, "thread", "threads"),
        if blocking == 1 { "blocks" } else { "block" },
        target.signal
    );
    if states.iter().any(|state| state.caught & bit == 0) {
        return Finding::limited(
            name,
            format!("no handler for signal {}", target.signal),
            "the program has replaced the agent's handler through a raw system call: no samples, no answers to `dump`",
            "use another source, `record -e`",
        );
    }
    if blocking > 0 {
        return Finding::limited(
            name,
            value,
            "these threads are not sampled and do not answer `dump`",
            "change the program: it blocks the signal through raw system calls",
        );
    }
    Finding::good(name, value, "every thread can be sampled and answers `dump`")
}

fn no_agent(pid: u32, error: &TargetError) -> Finding {
    let exe = format!("/proc/{pid}/exe");
    let remedy = match program::find(OsStr::new(&exe), None) {
        Err(refused) => refused.to_string(),
        Ok(_) if inject::RunningProgram::of(pid).is_some_and(|program| !program.has_loader()) => {
            format!("`selfwind attach -p {pid}`: it is statically linked, so no loader loads the agent")
        }
        Ok(_) => {
            let preloaded = fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
                environment.split(|&byte| byte == 0).any(|entry| {
                    entry.starts_with(b"LD_PRELOAD=") && entry.windows(8).any(|part| part == b"selfwind")
                })
            });
            if preloaded {
                "it was started with LD_PRELOAD, but another user may not open the agent's file, or SELFWIND_ENABLE=0 was set; SELFWIND_VERBOSE=1 says why".into()
            } else {
                format!("`selfwind attach -p {pid}`, or start it with LD_PRELOAD=$(selfwind agent-path)")
            }
        }
    };
    Finding::limited("agent", "none", error.to_string(), remedy)
}

fn user(pid: &str) -> Option<Finding> {
    let own = status("self", "Uid")?;
    let theirs = status(pid, "Uid")?;
    let effective = |ids: &str| ids.split_ascii_whitespace().nth(1).map(str::to_owned);
    let (own, theirs) = (effective(&own)?, effective(&theirs)?);
    if own == theirs {
        return Some(Finding::good("user", theirs, "it is this user's"));
    }
    if own == "0" {
        return Some(Finding::good("user", theirs, "root may attach to it, in any namespace"));
    }
    Some(Finding::limited(
        "user",
        theirs,
        format!("it belongs to another user (you are {own}), and only that user may read its samples"),
        "run selfwind as root",
    ))
}

fn tracer(pid: &str) -> Option<Finding> {
    let tracer = status(pid, "TracerPid").filter(|tracer| tracer != "0")?;
    Some(Finding::limited(
        "tracer",
        format!("process {tracer}"),
        "the tracer sees every signal first, the agent's too, and may stop the process",
        "detach the debugger or strace for accurate times",
    ))
}

fn restrictions(pid: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(mode) = status(pid, "Seccomp").filter(|mode| mode != "0") {
        findings.push(Finding::limited(
            "system-calls",
            format!("filtered (Seccomp: {mode})"),
            "since the filter was installed the agent makes no system calls: new threads get no timers",
            "nothing; older threads are sampled, and all threads answer `dump`",
        ));
    }
    if status(pid, "NoNewPrivs").is_some_and(|value| value == "1") {
        findings.push(Finding::good(
            "no-new-privs",
            "1",
            "setuid programs that it executes keep the agent, as they gain no privileges",
        ));
    }
    findings
}

fn namespace(pid: &str) -> Vec<Finding> {
    let Some(inner) = status(pid, "NSpid") else { return Vec::new() };
    let mut numbers = inner.split_ascii_whitespace();
    match (numbers.next(), numbers.next_back()) {
        (Some(_), Some(last)) => vec![Finding::good(
            "pid-namespace",
            format!("its pid is {last} in its own namespace"),
            "use the outer pid with `dump`, the inner one with `list`, `tail -p` and `record -p`",
        )],
        _ => Vec::new(),
    }
}

fn limits(pid: u32) -> Vec<Finding> {
    let mut findings = Vec::new();
    let pending = status(&pid.to_string(), "SigQ");
    if let Some((used, limit)) = pending.as_deref().and_then(|queued| queued.split_once('/')) {
        let (used, limit): (u64, u64) = (used.parse().unwrap_or(0), limit.parse().unwrap_or(u64::MAX));
        let value = format!("{used} of {} (RLIMIT_SIGPENDING)", limit_text(limit));
        findings.push(if limit.saturating_sub(used) < 64 {
            Finding::limited(
                "pending-signals",
                value,
                "new threads may get no timer, and `dump` gets no answers",
                "raise it where the program is started: ulimit -i",
            )
        } else {
            Finding::good("pending-signals", value, "enough for timers and requests")
        });
    }
    let kinds = [("address-space", libc::RLIMIT_AS), ("file-size", libc::RLIMIT_FSIZE)];
    for (name, resource) in kinds {
        if let Ok((limit, _)) = resource_limit(pid, resource)
            && limit != libc::RLIM_INFINITY
        {
            findings.push(Finding::good(name, bytes(limit), "the shared memory is made smaller to fit"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_blocks_for_a_moment_does_not_count() {
        let mut looks = 0;
        let blocking = always_block(vec![1, 2, 3], |tid| {
            looks += 1;
            tid == 3 || tid == 2 && looks < 5
        });
        assert_eq!((blocking, looks), (1, 3 + 2 + 2 + 1));
        assert_eq!(always_block(Vec::new(), |_| unreachable!("nothing to look at")), 0);
    }
}
