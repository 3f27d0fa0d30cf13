//! Common flags of `perf record`, and what to use instead.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Advice for an unknown flag of `record`; `None` if perf has no such flag either.
pub(crate) fn advice(error: &clap::Error) -> Option<String> {
    let (ErrorKind::UnknownArgument, Some(ContextValue::String(flag))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    else {
        return None;
    };
    let flag = flag.split('=').next().unwrap_or(flag);
    let advice = match flag {
        "-a" | "--all-cpus" | "-C" | "--cpu" => {
            "selfwind samples programs, not the whole machine; give a command (`selfwind record -- CMD`) or a process (-p PID)"
        }
        "-g" | "--call-graph" => "stacks are always recorded; leave it out",
        "-c" | "--count" => "give the period with the event: -e perf:EVENT@PERIOD",
        "-t" | "--tid" => "record the process with -p PID; `selfwind report --thread REGEX` shows one thread",
        "-u" | "--uid" => {
            "give a command or a process (-p PID); `selfwind list` shows those that can be recorded"
        }
        "-k" | "--clockid" | "-T" | "--timestamp" | "-i" | "--no-inherit" | "-m" | "--mmap-pages" | "-z" => {
            "that is a flag of `perf record`; leave it out"
        }
        _ => return None,
    };
    Some(format!("record has no {flag}: {advice}"))
}
