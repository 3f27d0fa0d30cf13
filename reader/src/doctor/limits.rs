//! Examines resource limits and privileges.

use nix::libc;

use super::finding::Finding;
use super::value::{bytes, limit_text};
use crate::proc::{Status, number};
use crate::target::attach::request::resource_limit;

/// The relevant capabilities (include/uapi/linux/capability.h).
const CAPABILITIES: [(u32, &str); 5] = [
    (5, "CAP_KILL"),
    (14, "CAP_IPC_LOCK"),
    (19, "CAP_SYS_PTRACE"),
    (21, "CAP_SYS_ADMIN"),
    (38, "CAP_PERFMON"),
];

pub(super) fn examine() -> Vec<Finding> {
    let findings = [Some(capabilities()), pending_signals(), perf_memory(), yama(), seccomp(), preload()];
    findings.into_iter().flatten().collect()
}

/// The value of `key` in /proc/PID/status.
pub(super) fn status(pid: &str, key: &str) -> Option<String> {
    Status::of_process(pid).ok()?.field(key).map(str::to_owned)
}

/// True if this process has one of the capabilities.
pub(super) fn has_capability(numbers: &[u32]) -> bool {
    let effective =
        status("self", "CapEff").and_then(|text| u64::from_str_radix(&text, 16).ok()).unwrap_or(0);
    numbers.iter().any(|number| effective & 1 << number != 0)
}

fn capabilities() -> Finding {
    let held: Vec<&str> =
        CAPABILITIES.iter().filter(|(number, _)| has_capability(&[*number])).map(|(_, name)| *name).collect();
    let value = if held.is_empty() { "none of the relevant ones".into() } else { held.join(" ") };
    Finding::good("capabilities", value, "your own processes need none; kernel stacks need CAP_PERFMON")
}

fn pending_signals() -> Option<Finding> {
    let name = "pending-signals";
    let queued = status("self", "SigQ")?;
    let (used, limit) = queued.split_once('/')?;
    let (used, limit): (u64, u64) = (used.parse().ok()?, limit.parse().ok()?);
    let value = format!("{used} of {} (RLIMIT_SIGPENDING)", limit_text(limit));
    let free = limit.saturating_sub(used);
    Some(if free < 64 {
        Finding::limited(
            name,
            value,
            "each thread's timer uses one; when none is left, programs fall back to one timer per process (itimer), and `dump` gets no answers",
            "raise it with ulimit -i, or LimitSIGPENDING= of the service",
        )
    } else {
        Finding::good(name, value, format!("enough timers for about {free} threads"))
    })
}

fn perf_memory() -> Option<Finding> {
    let name = "perf-memory";
    let per_processor = number("/proc/sys/kernel/perf_event_mlock_kb")?;
    let (lock, _) = resource_limit(0, libc::RLIMIT_MEMLOCK).ok()?;
    let lock_text = if lock == libc::RLIM_INFINITY { "unlimited".into() } else { bytes(lock) };
    let value =
        format!("{per_processor} KiB per processor (perf_event_mlock_kb), RLIMIT_MEMLOCK {lock_text}");
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    // One ring: a header page and eight data pages.
    const RING: u64 = 9 * 4096;
    if lock == libc::RLIM_INFINITY || has_capability(&[14]) {
        return Some(Finding::good(name, value, "perf ring buffers are not limited"));
    }
    let rings = (per_processor.max(0) as u64 * 1024 * processors).saturating_add(lock) / RING;
    Some(if rings < 64 {
        Finding::limited(
            name,
            value,
            format!(
                "about {rings} threads can have a perf ring buffer; the others are sampled without kernel stacks"
            ),
            "raise RLIMIT_MEMLOCK (ulimit -l) or /proc/sys/kernel/perf_event_mlock_kb",
        )
    } else {
        Finding::good(name, value, format!("enough perf ring buffers for about {rings} threads"))
    })
}

fn yama() -> Option<Finding> {
    let name = "ptrace-scope";
    let Some(scope) = number("/proc/sys/kernel/yama/ptrace_scope") else {
        return Some(Finding::good(name, "no Yama", "your own processes can be attached to"));
    };
    let value = format!("{scope} (kernel.yama.ptrace_scope)");
    Some(match scope {
        0 => Finding::good(name, value, "your own processes can be attached to"),
        _ if has_capability(&[19]) => Finding::good(name, value, "any process can be attached to"),
        1 => Finding::limited(
            name,
            value,
            "only child processes can be attached to; programs started with the agent can be recorded",
            "run selfwind as root, or `sysctl kernel.yama.ptrace_scope=0`",
        ),
        _ => Finding::limited(
            name,
            value,
            "no process can be attached to; programs started with the agent can be recorded",
            "run selfwind as root",
        ),
    })
}

fn seccomp() -> Option<Finding> {
    let name = "seccomp";
    Some(match status("self", "Seccomp")?.as_str() {
        "0" => Finding::good(name, "none", "system calls are not filtered"),
        mode => Finding::limited(
            name,
            format!(
                "mode {mode}, {} filters",
                status("self", "Seccomp_filters").unwrap_or_else(|| "?".into())
            ),
            "system calls are filtered, as in containers; perf_event_open is often blocked (see perf-events)",
            "if a call is refused, use docker --security-opt seccomp=unconfined, or a profile that allows it",
        ),
    })
}

fn preload() -> Option<Finding> {
    let name = "preload";
    if std::env::var_os("SELFWIND_ENABLE").is_some_and(|value| value == "0" || value.is_empty()) {
        return Some(Finding::blocked(
            name,
            "SELFWIND_ENABLE=0",
            "the agent does nothing",
            "unset SELFWIND_ENABLE",
        ));
    }
    let others = std::env::var("LD_PRELOAD").ok().filter(|value| !value.is_empty())?;
    Some(Finding::good(name, format!("LD_PRELOAD={others}"), "`record` adds the agent before it"))
}
