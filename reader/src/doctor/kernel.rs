//! Examines kernel and CPU: clocks, perf events, kernel symbols, namespaces.

use std::fs;
use std::path::Path;

use nix::errno::Errno;
use nix::time::{ClockId, clock_getres};
use nix::unistd::geteuid;

use super::finding::Finding;
use super::limits::has_capability;
use crate::proc::{line, number};
use crate::target::attach::{PerfScope, probe_deferred_callchains, probe_perf_event};

pub(super) fn examine() -> Vec<Finding> {
    let findings = [
        Some(release()),
        tick(),
        clock(),
        Some(perf_events()),
        Some(deferred_callchains()),
        Some(hardware_events()),
        Some(tracepoints()),
        Some(kernel_symbols()),
        Some(container()),
    ];
    findings.into_iter().flatten().collect()
}

fn release() -> Finding {
    let release = line("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into());
    let mut parts = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version < (5, 14) {
        return Finding::limited(
            "kernel",
            release,
            "shared memory cannot grow (needs Linux 5.14): programs with many threads lose samples",
            "set SELFWIND_POOL to a size above its default, or use a newer kernel",
        );
    }
    Finding::good("kernel", release, "has everything that recording needs")
}

fn tick() -> Option<Finding> {
    // The coarse clock moves with the tick: its resolution is the tick's period (kernel/time/posix-timers.c).
    let period = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).ok()?;
    let hz = 1_000_000_000 / u64::try_from(period.tv_nsec()).ok().filter(|&ns| ns > 0)?;
    let consequence = format!(
        "CPU timers give at most {hz} samples per second and thread; a late sample has the weight of those it replaces"
    );
    Some(Finding::good("tick", format!("{hz} Hz"), consequence))
}

fn clock() -> Option<Finding> {
    let source = line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let source = source.unwrap_or_else(|| "unknown".into());
    let processor = fs::read_to_string("/proc/cpuinfo").ok()?;
    let flags = processor.lines().find(|line| line.starts_with("flags"))?;
    let has = |flag: &str| flags.split_ascii_whitespace().any(|word| word == flag);
    let invariant = has("constant_tsc") && has("nonstop_tsc");
    let value =
        format!("{source}, time-stamp counter {}", if invariant { "invariant" } else { "not invariant" });
    Some(if invariant {
        Finding::good("clock", value, "reading the time takes about 10 ns")
    } else {
        Finding::limited(
            "clock",
            value,
            "the time is read with clock_gettime, which takes 2 to 40 times as long",
            "use a CPU or virtual machine with an invariant counter (nonstop_tsc)",
        )
    })
}

/// Opens events to find out, because settings, capabilities and filters all matter.
fn perf_events() -> Finding {
    let name = "perf-events";
    let paranoid = number("/proc/sys/kernel/perf_event_paranoid");
    let value = |what: &str| match paranoid {
        Some(level) => format!("{what} (kernel.perf_event_paranoid={level})"),
        None => format!("{what} (no kernel.perf_event_paranoid)"),
    };
    let remedy = "run as root, give selfwind CAP_PERFMON (setcap cap_perfmon+ep), or `sysctl kernel.perf_event_paranoid=1`";
    match (probe_perf_event(PerfScope::UserAndKernel), probe_perf_event(PerfScope::User)) {
        (Ok(()), _) => Finding::good(
            name,
            value("user and kernel"),
            "`record` uses them: any rate, kernel and user stacks",
        ),
        (Err(_), Ok(())) => Finding::limited(
            name,
            value("user only"),
            "`record` uses them: any rate in user mode; time in the kernel at the rate of the kernel's tick, without kernel stacks",
            remedy,
        ),
        (_, Err(Errno::ENOSYS)) => Finding::limited(
            name,
            value("not available"),
            "samples come from CPU timers, at most one per tick; no kernel stacks",
            "use a kernel with CONFIG_PERF_EVENTS, or a seccomp profile that allows perf_event_open",
        ),
        (_, Err(error)) => Finding::limited(
            name,
            value(&format!("refused: {}", error.desc())),
            "samples come from CPU timers, at most one per tick; no kernel stacks",
            format!("{remedy}; in a container, use a seccomp profile that allows perf_event_open"),
        ),
    }
}

/// Only a minor limitation if missing: the agent's stacks take precedence in any case.
fn deferred_callchains() -> Finding {
    let name = "deferred-callchains";
    match probe_deferred_callchains() {
        Ok(()) => Finding::good(
            name,
            "there",
            "with SELFWIND_DEFER=1 and `-e perf`, the kernel unwinds threads that block the agent's signal, by frame pointers",
        ),
        Err(Errno::EINVAL) => Finding::good(
            name,
            "not available (needs Linux 6.19)",
            "with `-e perf`, an event whose signal is blocked has kernel frames but no user stack",
        ),
        Err(error) => Finding::good(name, format!("unknown: {}", error.desc()), "perf events are refused"),
    }
}

fn hardware_events() -> Finding {
    let name = "hardware-events";
    if Path::new("/sys/bus/event_source/devices/cpu").exists() {
        return Finding::good(
            name,
            "available",
            "hardware events such as cycles and cache misses can be used",
        );
    }
    Finding::limited(
        name,
        "none",
        "no hardware events such as cycles and cache misses; sampling by time does not need them",
        "use bare metal, or a virtual machine with a virtual PMU",
    )
}

fn tracepoints() -> Finding {
    let name = "tracepoints";
    let found = ["/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"]
        .into_iter()
        .find(|path| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()));
    match found {
        Some(path) => Finding::good(name, path, "tracepoints can be used"),
        None => {
            const MOUNT: &str = "`mount -t tracefs none /sys/kernel/tracing`";
            let refused = fs::read_dir("/sys/kernel/tracing/events").err();
            let refused = refused.filter(|error| error.kind() != std::io::ErrorKind::NotFound);
            let (value, remedy): (String, String) = match (refused, geteuid().is_root()) {
                (None, true) => ("tracefs is not mounted".into(), MOUNT.into()),
                (Some(error), true) => (
                    format!("not readable: {error}"),
                    "permit it: a security module or kernel lockdown forbids it".into(),
                ),
                (_, false) => ("not readable".into(), format!("run as root; {MOUNT} if it is not mounted")),
            };
            Finding::limited(name, value, "no tracepoints (sched:..., syscalls:...)", remedy)
        }
    }
}

fn kernel_symbols() -> Finding {
    let name = "kernel-symbols";
    let restrict = number("/proc/sys/kernel/kptr_restrict").unwrap_or(0);
    let value = |what| format!("{what} (kernel.kptr_restrict={restrict})");
    let shown = line("/proc/kallsyms").is_some_and(|first| !first.starts_with("0000000000000000"));
    if shown {
        return Finding::good(name, value("readable"), "kernel frames have names");
    }
    let remedy = if has_capability(&[21, 38]) {
        "`sysctl kernel.kptr_restrict=0`"
    } else {
        "run as root, or `sysctl kernel.kptr_restrict=0 kernel.perf_event_paranoid=1`"
    };
    Finding::limited(name, value("hidden"), "kernel frames have no names", remedy)
}

fn container() -> Finding {
    let name = "container";
    let mut hints = Vec::new();
    if Path::new("/.dockerenv").exists() {
        hints.push("docker");
    }
    if Path::new("/run/.containerenv").exists() {
        hints.push("podman");
    }
    let mapped = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if !mapped.split_ascii_whitespace().eq(["0", "0", "4294967295"]) {
        hints.push("user namespace");
    }
    // Kernel threads are visible in the initial pid namespace only.
    if line("/proc/2/comm").is_none_or(|name| name != "kthreadd") {
        hints.push("pid namespace");
    }
    if hints.is_empty() {
        return Finding::good(name, "none", "process ids are those of the host");
    }
    Finding::good(
        name,
        hints.join(", "),
        "processes in this namespace can be recorded; record those in another namespace from inside it",
    )
}
