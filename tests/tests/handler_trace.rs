//! Every instruction of the sampling handler is code of the agent (or the kernel's vdso), its system calls are the
//! probe that cannot fault, now and then the question how many threads there are, and, under ITIMER_PROF, one for the
//! CPU time; and its stack is small.

use std::ffi::OsStr;

use selfwind_tests::binary::agent;
use selfwind_tests::handler_trace::{HandlerTrace, trace};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::single_step::tracee::Tracee;
use selfwind_tests::target::Target;

/// DESIGN: it runs on stacks of Go routines and coroutines.
const STACK: u64 = 2048;

fn watch(target: &Target, arguments: &[&str], event: &str, runs: u64) -> HandlerTrace {
    let scratch = Scratch::new();
    let agent = agent();
    let runtime = scratch.path().to_str().expect("UTF-8");
    let environment = [
        ("LD_PRELOAD", agent.to_str().expect("UTF-8")),
        ("XDG_RUNTIME_DIR", runtime),
        ("SELFWIND_FREQ", "499"),
        ("SELFWIND_EVENT", event),
        // Step by step a run takes for ever.
        ("SELFWIND_MAX_OVERHEAD", "100"),
    ];
    let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
    let tracee = Tracee::start(&target.build(), &arguments, &environment).expect("ptrace");
    let name = agent.file_name().expect("a file").to_str().expect("UTF-8");
    let found = trace(&tracee, name, runs).expect("ptrace");
    println!(
        "{event}: {} runs, {} instructions each, longest {}, {} bytes of stack, calls {:?}",
        found.runs,
        found.instructions / found.runs.max(1),
        found.longest,
        found.stack,
        found.calls
    );
    found
}

/// The probe of unknown memory.
const PROBE: i64 = libc::SYS_rt_sigprocmask;
/// The process's CPU clock: what a tick of ITIMER_PROF stands for.
const CLOCK: i64 = libc::SYS_clock_gettime;

/// How many threads the process has.
const THREADS: i64 = libc::SYS_newfstatat;
/// Now and then, if there are more than have slots (one that ends has given it back): which, and a slot and a timer for
/// one that is seen again.
const NEWCOMERS: [i64; 8] = [
    libc::SYS_openat,
    libc::SYS_getdents64,
    libc::SYS_close,
    libc::SYS_getpid,
    libc::SYS_tgkill,
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_delete,
];

fn assert_clean(found: &HandlerTrace, runs: u64, allowed: &[i64]) {
    assert!(found.runs >= runs, "{} runs", found.runs);
    assert!(found.outside.is_empty(), "runs code that is not the agent's: {:#?}", found.outside);
    let (rare, strange): (Vec<(&i64, &u64)>, Vec<_>) = found
        .calls
        .iter()
        .filter(|(call, _)| **call != THREADS && !allowed.contains(call))
        .partition(|(call, _)| NEWCOMERS.contains(call));
    assert!(strange.is_empty(), "system calls in the handler: {strange:?}");
    let looks: u64 = rare.iter().map(|(_, count)| **count).sum();
    assert!(looks <= found.runs / 2, "looks for threads too often: {rare:?} in {} runs", found.runs);
    assert!(found.stack <= STACK, "{} bytes of stack", found.stack);
}

#[test]
fn under_malloc_and_locks() {
    assert_clean(&watch(&Target::c("malloc_storm"), &[], "cpu", 200), 150, &[PROBE]);
}

#[test]
fn under_the_process_timer() {
    assert_clean(&watch(&Target::c("malloc_storm"), &[], "itimer", 200), 100, &[PROBE, CLOCK]);
}

#[test]
fn on_deep_and_odd_stacks() {
    assert_clean(&watch(&Target::c("odd_frames"), &[], "cpu", 100), 20, &[PROBE]);
    assert_clean(&watch(&Target::c("deep_recursion"), &[], "cpu", 40), 20, &[PROBE]);
    assert_clean(&watch(&Target::cpp("throw"), &[], "cpu", 100), 30, &[PROBE]);
    assert_clean(&watch(&Target::c("coroutine"), &[], "cpu", 100), 20, &[PROBE]);
}
