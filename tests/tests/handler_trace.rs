//! Traces the sampling handler: every instruction is in the agent or the kernel's vdso; its system calls are the probe
//! that cannot fault, memory for a thread's first sample and, under ITIMER_PROF, the CPU clock; and its stack use is
//! small.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::Command;

use selfwind_tests::binary::selfwind;
use selfwind_tests::handler_trace::{self, HandlerTrace};
use selfwind_tests::outcome::run;
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;
use selfwind_tests::target::Target;

/// Without a stack of its own (Go, attached processes) it runs on the program's.
const STACK: u64 = 2048;
/// With an interpreter's frames, on threads whose stacks are the interpreter's. Naming a function, which a trace does not always
/// meet, takes the most: 2,592 bytes.
const PYTHON_STACK: u64 = 2624;

fn watch(target: &Target, event: &str, unwind: &str, runs: u64) -> HandlerTrace {
    watch_program(&target.build(), &[], event, unwind, runs)
}

fn watch_program(program: &Path, arguments: &[&OsStr], event: &str, unwind: &str, runs: u64) -> HandlerTrace {
    let settings = [
        ("SELFWIND_FREQ", "499"),
        ("SELFWIND_EVENT", event),
        ("SELFWIND_UNWIND", unwind),
        ("SELFWIND_COPY_LIMIT", "4K"),
    ];
    let found = handler_trace::watch(program, arguments, &settings, 1, runs).expect("ptrace");
    println!(
        "{event}, {unwind}: {} runs, {} instructions, most {}, {} bytes of stack, calls {:?}",
        found.runs,
        found.usual_instructions(),
        found.instructions.iter().max().unwrap_or(&0),
        found.stack,
        found.calls
    );
    let (code, data) = found.usual_lines();
    println!("{event}: {code} cache lines of code, {} of data: {data:?}", data.values().sum::<usize>());
    found
}

/// Probes and copies of unknown memory.
const PROBES: [i64; 4] =
    [libc::SYS_rt_sigprocmask, libc::SYS_prctl, libc::SYS_getpid, libc::SYS_process_vm_readv];
/// The process's CPU clock, for the weight of an ITIMER_PROF tick.
const CLOCK: i64 = libc::SYS_clock_gettime;

/// Memory for a thread's first sample.
const FIRST: [i64; 3] = [libc::SYS_mmap, libc::SYS_munlock, libc::SYS_mprotect];
/// Threads of any program here.
const THREADS: u64 = 8;

/// Limit of code and data cache lines for a sample of a few frames. Each one is a memory access if caches are cold.
const LINES: (usize, usize) = (100, 58);

fn assert_small(found: &HandlerTrace) {
    let (code, data) = found.first_quartile_lines();
    assert!(code <= LINES.0 && data <= LINES.1, "{code} lines of code, {data} of data");
}

fn assert_clean(found: &HandlerTrace, runs: u64, allowed: &[i64]) {
    assert_only(found, runs, allowed);
    assert_shallow(found, STACK);
}

fn assert_only(found: &HandlerTrace, runs: u64, allowed: &[i64]) {
    assert!(found.runs >= runs, "{} runs", found.runs);
    assert!(found.outside.is_empty(), "runs code that is not the agent's: {:#?}", found.outside);
    let (first, strange): (Vec<(&i64, &u64)>, Vec<_>) = found
        .calls
        .iter()
        .filter(|(call, _)| !allowed.contains(call))
        .partition(|(call, _)| FIRST.contains(call));
    assert!(strange.is_empty(), "system calls in the handler: {strange:?}");
    assert!(first.iter().all(|(_, count)| **count <= THREADS), "memory is asked for again: {first:?}");
}

fn assert_shallow(found: &HandlerTrace, most: u64) {
    assert!(found.stack <= most, "{} bytes of stack", found.stack);
}

/// What a look for a table takes; it maps the table like a thread's first memory.
const LOOK: [i64; 4] = [libc::SYS_openat, libc::SYS_fstat, libc::SYS_geteuid, libc::SYS_close];

#[test]
fn where_a_table_is_adopted() {
    let scratch = Scratch::new();
    let [bare, described] = Target::bare_and_described();
    let (made, cache) = (scratch.join("made"), scratch.join("cache"));
    DirBuilder::new().mode(0o700).create(&cache).unwrap();
    let built = run(Command::new(selfwind()).args(["tables", "build", "-o"]).args([&made, &described]));
    let (_, table) = built.stdout.trim().split_once(" -> ").expect("`FILE -> TABLE`");
    let place = cache.join(Path::new(table).file_name().expect("a name"));
    let arguments = [bare.as_os_str(), OsStr::new(table), place.as_os_str()];
    let tables = cache.to_str().expect("UTF-8");
    let program = Target::c("adopts").with("dl", &["-ldl"]).build();
    // Rarely, so that the program gets on between two runs that are single-stepped.
    let settings = [("SELFWIND_FREQ", "8"), ("SELFWIND_EVENT", "cpu"), ("SELFWIND_TABLES", tables)];
    let found = handler_trace::watch(&program, &arguments, &settings, 1, 60).expect("ptrace");
    println!("{} runs, {} bytes of stack, calls {:?}", found.runs, found.stack, found.calls);
    assert_clean(&found, 10, &[&PROBES[..], &LOOK].concat());
    assert!(LOOK.iter().all(|call| found.calls.get(call) == Some(&1)), "{:?}", found.calls);
}

#[test]
fn under_malloc_and_locks() {
    let found = watch(&Target::c("malloc_storm"), "cpu", "self", 200);
    assert_clean(&found, 100, &PROBES);
    assert_small(&found);
}

#[test]
fn under_the_process_timer() {
    let found = watch(&Target::c("malloc_storm"), "itimer", "self", 200);
    assert_clean(&found, 100, &[&PROBES[..], &[CLOCK]].concat());
    assert_small(&found);
}

#[test]
fn on_deep_and_odd_stacks() {
    assert_clean(&watch(&Target::c("odd_frames"), "cpu", "self", 100), 20, &PROBES);
    assert_clean(&watch(&Target::c("counted_frame"), "cpu", "self", 40), 20, &PROBES);
    assert_clean(&watch(&Target::c("deep_recursion"), "cpu", "self", 40), 20, &PROBES);
    assert_clean(&watch(&Target::cpp("throw"), "cpu", "self", 100), 30, &PROBES);
    assert_clean(&watch(&Target::c("coroutine"), "cpu", "self", 100), 20, &PROBES);
}

/// Reading an interpreter's frames keeps these properties. (Single-stepping sees little more than its start.)
#[test]
fn among_python_frames() {
    let python = Path::new("/usr/bin/python3");
    if !python.exists() {
        return skip("no Python");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/targets/python_graph.py");
    let found = watch_program(python, &[script.as_ref(), "60".as_ref()], "cpu", "self", 100);
    assert_only(&found, 50, &PROBES);
    assert_shallow(&found, PYTHON_STACK);
}

/// Unwinding in the recorder does not change the handler's properties.
#[test]
fn with_copies_and_guesses() {
    for unwind in ["copy", "guess", "both"] {
        assert_clean(&watch(&Target::c("malloc_storm"), "cpu", unwind, 20), 10, &PROBES);
        assert_clean(&watch(&Target::c("odd_frames"), "cpu", unwind, 10), 5, &PROBES);
    }
}
