//! The source `perf`: kernel and user stacks are joined exactly, no system call is interrupted, no child is killed.
//!
//! What this machine does not permit is skipped.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use selfwind_tests::asked::Asked;
use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::recording::{Recorder, Recording, folded, read, record_unharmed, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;
use selfwind_tests::stats::Stats;
use selfwind_tests::target::Target;
use serde_json::Value;

/// Whether the recording includes the kernel; otherwise skips, with the reason.
fn sees_kernel(recording: &Recording) -> bool {
    let source = recording.stats().source();
    let sees = source.contains("kernel and user stacks");
    if !sees {
        skip(format_args!("{source}"));
    }
    sees
}

/// Asserts that the weight is the CPU time of the program's threads by their own clocks, which it prints, within
/// `periods` periods.
fn assert_weighs(recording: &Recording, hertz: f64, periods: f64) {
    let cpu_ns: f64 = recording.outcome.stdout.trim().parse().expect("nanoseconds");
    let (stats, due) = (recording.stats(), cpu_ns * hertz / 1e9);
    let weight = (stats.number("weight") + stats.causes("lost_weight")) as f64;
    assert!((weight - due).abs() <= 0.01 * due + periods, "{weight} periods, due {due}: {:#}", stats.0);
}

/// Asserts that all events are accounted for.
fn assert_all_counted(stats: &Stats) {
    let parts = [
        "exact",
        "restarted",
        "stepped",
        "deeper",
        "returned",
        "overhead",
        "blocked",
        "unmatched",
        "unanswered",
        "not_waiting",
    ];
    let sum: u64 = parts.iter().map(|part| stats.kernel(part)).sum();
    assert_eq!(sum, stats.kernel("events"), "{:#}", stats.0["detail"]["kernel"]);
    assert_eq!(
        stats.kernel("missing_bytes") + stats.kernel("malformed"),
        0,
        "{:#}",
        stats.0["detail"]["kernel"]
    );
}

/// The share of the program's events that have the stack at which they occurred.
fn stitched(stats: &Stats) -> f64 {
    let good =
        ["exact", "restarted", "deeper", "returned"].iter().map(|name| stats.kernel(name)).sum::<u64>();
    good as f64 / (stats.kernel("events") - stats.kernel("overhead")).max(1) as f64
}

#[test]
fn every_period_of_cpu_time_has_its_sample_and_its_stack() {
    let program = Target::c("kernel_work").build();
    let recording = record_unharmed(&Recorder::at(997).event("perf"), &program, &["3", "500"]);
    if !sees_kernel(&recording) {
        return;
    }
    let recording = Recorder::at(997).event("perf").record(&program, &["3", "500", "0", "tell"]);
    let stats = recording.stats();
    assert_all_counted(&stats);
    // Of the CPU time that the threads had by their own clocks, each but a period or so.
    assert_weighs(&recording, 997.0, 3.0);
    assert!(stitched(&stats) >= 0.995, "{:#}", stats.0["detail"]["kernel"]);
    assert_eq!(stats.kernel("unmatched"), 0, "{:#}", stats.0["detail"]["kernel"]);
    let folded = recording.folded();
    assert!(folded.rooted() > 0.99, "{:?}", folded.roots());
    assert!(folded.nested("fault_work", "asm_exc_page_fault_[k]") > 0, "{folded:?}");
    assert!(folded.nested("call_work", "do_syscall_64_[k]") > 0, "{folded:?}");
}

/// The kernel delivers no signal in the C library's calls around `clone`, nor in a return from a signal handler. When it does, the
/// function that the event happened in has returned.
#[test]
fn events_of_functions_that_have_returned_have_their_stacks() {
    let program = Target::c("blocked_signals").build();
    let recording = record_unharmed(&Recorder::at(1999).event("perf"), &program, &[] as &[&str]);
    if !sees_kernel(&recording) {
        return;
    }
    let (stats, stacks) = (recording.stats(), recording.folded());
    assert_all_counted(&stats);
    assert!(stats.kernel("returned") * 30 > stats.kernel("events"), "{:#}", stats.0["detail"]["kernel"]);
    assert!(stitched(&stats) >= 0.99, "{:#}", stats.0["detail"]["kernel"]);
    // What the program does, each with what it calls.
    let calls = [
        ("creating", &["pthread_create", "pthread_join", "pthread_clockjoin"][..]),
        ("spawning", &["posix_spawn", "spawn", "wait"]),
        ("signalling", &["raise", "gsignal", "pthread_kill", "sigaction", "on_signal", "restore_rt"]),
        ("blocking", &["mapped", "mmap", "munmap", "sigprocmask", "pthread_sigmask"]),
    ];
    for (function, called) in calls {
        let mut weight = 0;
        for (stack, count) in &stacks.stacks {
            let Some(at) = stack.iter().position(|element| element == function) else { continue };
            assert_eq!(stack.get(at - 1).map(String::as_str), Some("main"), "{stack:#?}");
            let is_kernel = |element: &&String| element.ends_with("_[k]");
            let Some(callee) = stack.get(at + 1).filter(|element| !is_kernel(element)) else { continue };
            // Without a name in the library's symbols, or on the way to a function of it.
            let is_other =
                ["libc", "[plt]", "_dl_runtime_resolve"].iter().any(|name| callee.starts_with(name));
            assert!(is_other || called.iter().any(|name| callee.contains(name)), "{stack:#?}");
            weight += count;
        }
        assert!(weight > 10, "{function}: {weight}: {stacks:#?}");
    }
}

/// What is left of returned functions is no stack once others have written to it.
#[test]
fn no_stack_is_made_up_of_what_several_functions_have_left() {
    let program = Target::c("blocked_at_random").build();
    let recorder = Recorder::at(9973).event("perf").env("SELFWIND_MAX_OVERHEAD", "100");
    let recording = record_unharmed(&recorder, &program, &["8000"]);
    if !sees_kernel(&recording) {
        return;
    }
    let (stats, stacks) = (recording.stats(), recording.folded());
    assert!(stats.kernel("returned") * 30 > stats.kernel("events"), "{:#}", stats.0["detail"]["kernel"]);
    assert!(stitched(&stats) > 0.7, "{:#}", stats.0["detail"]["kernel"]);
    let number = |element: &String| element.strip_prefix('f').and_then(|digits| digits.parse::<u32>().ok());
    for (stack, _) in &stacks.stacks {
        let called: Vec<u32> = stack.iter().filter_map(number).collect();
        let is_possible = |pair: &[u32]| [1, 2, 4].map(|more| (3 * pair[0] + more) % 12).contains(&pair[1]);
        assert!(called.windows(2).all(is_possible), "{stack:#?}");
        let is_whole = stack.iter().any(|element| element == "main");
        assert!(!is_whole || called.first().is_none_or(|first| *first == 0), "{stack:#?}");
    }
}

#[test]
fn a_foreign_handler_on_top_does_not_hide_the_stack() {
    let program = Target::c("kernel_work").build();
    let recording = record_unharmed(&Recorder::at(1999).event("perf"), &program, &["2", "500", "300"]);
    if sees_kernel(&recording) {
        let stats = recording.stats();
        assert_all_counted(&stats);
        assert!(stitched(&stats) >= 0.98, "{:#}", stats.0["detail"]["kernel"]);
    }
}

#[test]
fn many_faults_of_one_call_share_one_walk() {
    let program = Target::c("faults_in_read").build();
    // Its output says that both reads were complete.
    let recording = record_unharmed(&Recorder::at(99).event("perf:page-faults"), &program, &[""; 0]);
    if !sees_kernel(&recording) {
        return;
    }
    let stats = recording.stats();
    assert_all_counted(&stats);
    assert_eq!(recording.folded().inclusive("one_read"), 64, "{:?}", recording.folded());
    assert!(stats.detail(&["unwinds"]) < 40, "{:#}", stats.0);
    assert_eq!(stats.0["detail"]["weights"][0]["event"], "page-faults", "{:#}", stats.0);
    // The ring has no space for all 4096 faults of the second read: they are counted all the same, with that stack.
    let read = recording.folded().nested("main", "read");
    assert!(read >= 64 + 4000, "{read}: {:?}", recording.folded());
    let main = recording.folded().inclusive("main");
    assert!(main >= 64 + 4096, "{main}: {:#}", stats.0["detail"]["kernel"]);
}

#[test]
fn calls_are_not_interrupted() {
    record_unharmed(&Recorder::at(997).event("perf"), &Target::c("eintr").build(), &[""; 0]);
}

#[test]
fn children_are_not_killed() {
    let rounds = if std::env::var_os("SELFWIND_LONG").is_some() { "334" } else { "25" };
    let program = Target::c("spawn_storm").build();
    let recording = record_unharmed(&Recorder::at(997).event("perf"), &program, &[rounds]);
    assert_eq!(recording.outcome.stdout, "0 bad\n");
}

#[test]
fn the_signal_stays_the_programs() {
    for event in ["perf", "cpu"] {
        record_unharmed(&Recorder::at(997).event(event), &Target::c("own_sigtrap").build(), &[""; 0]);
    }
}

#[test]
fn programs_of_every_hazard_are_unharmed() {
    for name in [
        "fork",
        "vfork",
        "posix_spawn",
        "close_all_fds",
        "siglongjmp",
        "sigaltstack",
        "own_sigprof",
        "sigwait",
        "thread_churn",
        "coroutine",
        "seccomp",
    ] {
        let recording = record_unharmed(&Recorder::at(997).event("perf"), &Target::c(name).build(), &[""; 0]);
        eprintln!("{name}: {:#}", recording.stats().0["detail"]["kernel"]);
    }
}

#[test]
fn no_event_reaches_the_image_that_an_exec_starts() {
    let program = Target::c("exec").build();
    for mode in ["chain", "threads", "fails"] {
        record_unharmed(&Recorder::at(997).event("perf"), &program, &[mode]);
    }
}

#[test]
fn a_program_that_filters_its_calls_and_executes_another_lives() {
    let program = Target::c("filter_exec").build();
    for call in ["prctl", "seccomp"] {
        let recorder = Recorder::at(9973).event("perf").env("SELFWIND_MAX_OVERHEAD", "100");
        let recording = record_unharmed(&recorder, &program, &["25", call]);
        assert_eq!(recording.outcome.stdout, "0 bad\n", "{call}");
        // Sampled before and after the filter, afterwards by timers, which have a lower rate.
        let folded = recording.folded();
        let (before, behind) = (folded.inclusive("before_filter"), folded.inclusive("behind_filter"));
        assert!(before > 100 && behind > 0, "{call}: {before} {behind}");
    }
}

#[test]
fn off_cpu_time_is_attributed_to_functions() {
    let program = Target::c("off_processor").build();
    let recording = Recorder::at(99).event("offcpu").record(&program, &["15"]);
    if recording.outcome.status == 125 {
        skip(format_args!("{}", recording.outcome.stderr));
        return;
    }
    let told: Vec<f64> =
        recording.outcome.stdout.split_whitespace().map(|ns| ns.parse().expect("nanoseconds")).collect();
    let folded = recording.folded();
    assert_eq!(folded.total(), recording.stats().number("weight"));
    for (function, ns) in [("sleeping", told[0]), ("waiting", told[1])] {
        // The program's clocks include the way into and out of the wait, and preemption there.
        let us = folded.inclusive(function) as f64;
        let wall = 15.0 * 100_000.0;
        let preempted = recording.stats().kernel("preempted_us") as f64;
        let off = (us - ns / 1000.0).abs();
        assert!(off < 0.03 * wall + preempted, "{function}: {us} us of {ns} ns: {folded:?}");
    }
    assert_eq!(folded.inclusive("burning"), 0, "{folded:?}");
}

#[test]
fn every_call_of_git_has_its_stack() {
    let scratch = Scratch::new();
    let file = scratch.join("git.data");
    let source = env!("CARGO_MANIFEST_DIR");
    let script = "{ [ -e /sys/kernel/tracing/events ] || mount -t tracefs tracefs /sys/kernel/tracing; } && exec \"$0\" \"$@\"";
    let outcome = run(Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .arg(selfwind())
        .args(["record", "-q", "--max-overhead", "100", "-e", "perf:raw_syscalls:sys_enter", "-o"])
        .arg(&file)
        .args(["--", "git", "-C", source, "status"]));
    if outcome.status != 0 {
        skip(format_args!("{}", outcome.stderr));
        return;
    }
    let stats = stats(&file);
    assert_all_counted(&stats);
    let (events, overhead) = (stats.kernel("events"), stats.kernel("overhead"));
    assert!(events - overhead > 100, "{:#}", stats.0);
    assert!(stitched(&stats) >= 0.99, "{:#}", stats.0["detail"]["kernel"]);
    assert_eq!(folded(&file).total(), stats.number("weight"));
}

/// Two threads of 200 ms each.
#[test]
fn threads_of_a_process_that_became_another_user_have_events_in_user_mode() {
    let program = Target::c("privileges").build();
    let recording = record_unharmed(&Recorder::at(997).event("perf"), &program, &["setuid"]);
    if !sees_kernel(&recording) {
        return;
    }
    let stats = recording.stats();
    assert_eq!((stats.kernel("rings"), stats.kernel("user_only_rings")), (2, 1), "{:#}", stats.0);
    let note = "user mode only, without kernel stacks, for threads begun since privileges changed its user";
    assert!(stats.source().contains(note), "{}", stats.source());
    assert!(recording.folded().inclusive("thread_after_change") > 50, "{:?}", recording.folded());
    assert!(read(&["report"], &recording.file).contains("user mode only"));
}

#[test]
fn threads_of_a_process_that_became_another_user_have_no_kernel_events_and_it_says_so() {
    let program = Target::c("privileges").build();
    let note =
        "context switches and other events of the kernel, of threads begun since privileges changed its user";
    for source in ["offcpu", "perf:cs", "perf:task-clock,cs"] {
        let recording = record_unharmed(&Recorder::at(997).event(source), &program, &["setuid"]);
        let said = recording.stats().0["detail"]["settings"]["not sampled"].to_string();
        assert!(!sees_kernel(&recording) || said.contains(note), "{source}: {said}");
    }
}

#[test]
fn a_fork_has_the_stack_it_was_called_from() {
    let recorder = Recorder::at(9973).event("perf").env("SELFWIND_MAX_OVERHEAD", "100");
    let recording = record_unharmed(&recorder, &Target::c("large_fork").build(), &[""; 0]);
    if sees_kernel(&recording) {
        let stats = recording.stats();
        assert_all_counted(&stats);
        assert!(stitched(&stats) > 0.95, "{:#}", stats.0["detail"]["kernel"]);
    }
}

/// The kernel programs an event's timer at each switch: 2 to 12 us in virtual machines, which such a program would notice.
#[test]
fn threads_that_switch_often_continue_with_timers_by_default() {
    const NONE: [&str; 0] = [];
    let said = |recording: &Recording| {
        recording.stats().0["detail"]["settings"]["threads that switch often"].to_string()
    };
    let program = Target::c("frequent_switches").build();
    let insisting = Recorder::at(997).event("perf").record(&program, &NONE);
    if !sees_kernel(&insisting) {
        return;
    }
    assert_eq!(said(&insisting), "null");
    // Little enough for machines without virtualisation.
    let limited = Recorder::at(997).env("SELFWIND_MAX_OVERHEAD", "0.1");
    let recording = limited.record(&program, &NONE);
    assert!(said(&recording).contains("cpu timers instead of perf"), "{:#}", recording.stats().0);
    recording.assert_adds_up();
    assert_weighs(&recording, 997.0, 8.0);
    let stats = recording.stats();
    let by = |source: &str| stats.0["detail"]["sources"][source].as_u64().unwrap_or(0);
    assert!(by("perf") >= 1 && by("cpu") > by("perf"), "{:#}", stats.0["detail"]["sources"]);
    let unlimited = Recorder::at(997).env("SELFWIND_MAX_OVERHEAD", "100").record(&program, &NONE);
    assert_eq!(said(&unlimited), "null");
    let limited = Recorder::at(997).env("SELFWIND_MAX_OVERHEAD", "5");
    let busy = limited.record(&Target::c("early_switches").build(), &NONE);
    assert_eq!(said(&busy), "null", "{:#}", busy.stats().0);
}

/// `selfwind record -p`, for a short while; what it said.
fn record_running(asked: &Asked, event: &str, file: &Path) -> Outcome {
    let pid = asked.pid().to_string();
    run(Command::new(selfwind())
        .args(["record", "-d", "0.3", "-e", event, "-p", &pid, "-o"])
        .arg(file)
        .env("SELFWIND_DIR", asked.directory()))
}

#[test]
fn a_running_process_keeps_its_source() {
    let scratch = Scratch::new();
    let file = scratch.join("running.data");
    let mut own = Asked::sampled_by("perf", &["threads", "4"]);
    let outcome = record_running(&own, "perf", &file);
    assert_eq!(outcome.status, 0, "{}", outcome.stderr);
    let recorded = stats(&file);
    recorded.assert_adds_up();
    let timers = recorded.source().contains("cpu timers");
    assert_eq!(recorded.0["detail"]["weights"][0]["event"], "cpu", "{:#}", recorded.0);
    if !timers {
        let outcome = record_running(&own, "offcpu", &scratch.join("other.data"));
        assert!(outcome.status == 125 && outcome.stderr.contains("was started with -e perf"), "{outcome:?}");
    }
    assert_eq!(own.end(), ("4 threads ended, 0 reads went wrong\n".into(), 0));

    let mut by_timers = Asked::sampled_by("cpu", &["threads", "4"]);
    let outcome = record_running(&by_timers, "perf", &scratch.join("other.data"));
    assert!(outcome.status == 125 && outcome.stderr.contains("was started with -e cpu"), "{outcome:?}");
    let outcome = record_running(&by_timers, "cpu", &scratch.join("cpu.data"));
    assert_eq!(outcome.status, 0, "{}", outcome.stderr);
    assert_eq!(by_timers.end(), ("4 threads ended, 0 reads went wrong\n".into(), 0));

    // This one would need an injection, after which it could execute another program.
    let mut plain = Command::new("sleep").arg("1000").spawn().expect("sleep runs");
    let pid = plain.id().to_string();
    let outcome = run(Command::new(selfwind()).args(["record", "-d", "0.3", "-e", "perf", "-p", &pid]));
    plain.kill().expect("our child");
    plain.wait().expect("our child");
    assert!(outcome.status == 125 && outcome.stderr.contains("CPU timers only"), "{outcome:?}");
}

#[test]
fn samples_printed_live_have_kernel_frames() {
    let mut asked = Asked::sampled_by("perf", &["threads", "4"]);
    let scratch = Scratch::new();
    let file = scratch.join("running.data");
    record_running(&asked, "perf", &file);
    let told = stats(&file).source();
    if !told.contains("kernel and user stacks") {
        return skip(format_args!("{told}"));
    }
    let mut tail = Command::new(selfwind())
        .args(["tail", "--json", "-p", &asked.pid().to_string()])
        .env("SELFWIND_DIR", asked.directory())
        .stdout(Stdio::piped())
        .spawn()
        .expect("selfwind runs");
    let lines = BufReader::new(tail.stdout.take().expect("piped")).lines();
    // A thread that reads its clock continually spends a good part of its time in the kernel.
    let found = lines.map_while(Result::ok).take(5000).any(|line| {
        let sample: Value = serde_json::from_str(&line).expect("JSON");
        let frames = sample["frames"].as_array().expect("frames");
        let kernel = frames.iter().take_while(|frame| frame["module"] == "[kernel]").count();
        let user = frames.iter().any(|frame| frame["function"] == "asked_spins");
        kernel > 0 && user && frames[kernel..].iter().all(|frame| frame["module"] != "[kernel]")
    });
    tail.kill().expect("our child");
    tail.wait().expect("our child");
    assert!(found, "no sample with kernel frames on top of the program's");
    asked.end();
}

#[test]
fn run_queue_delay_is_separate_from_waiting() {
    let program = Target::c("wake_latency").build();
    let recording = Recorder::at(99).event("offcpu").record(&program, &["200"]);
    if recording.outcome.status == 125 {
        return skip(format_args!("{}", recording.outcome.stderr));
    }
    let (folded, stats) = (recording.folded(), recording.stats());
    assert_eq!(folded.total(), stats.number("weight"));
    assert_eq!(stats.0["detail"]["weights"][0]["unit"], "microseconds", "{:#}", stats.0);
    let delay: u64 = recording.outcome.stdout.trim().parse().expect("microseconds");
    if delay < 2000 {
        return skip(format_args!("the kernel tells of {delay} us of run delay"));
    }
    let told = folded.nested("often_woken", "[wake latency]");
    // That of the first wait is unknown; preemption on the way is not part of a wait.
    let preempted = stats.kernel("preempted_us");
    assert!(told + preempted > delay / 2, "{told} us of {delay}, {preempted} preempted: {folded:?}");
    assert!(told < delay + delay / 10 + 1000, "{told} us of {delay}: {folded:?}");
    assert!(folded.inclusive("often_woken") > told, "{folded:?}");
}

#[test]
fn events_that_do_not_exist_are_explained() {
    for (event, part) in [("perf:nonsense", "unknown event"), ("perf:a:b:c", "is not a tracepoint")] {
        let outcome = run(Command::new(selfwind()).args(["record", "-e", event, "true"]));
        assert_eq!(outcome.status, 125, "{event}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(part), "{event}: {}", outcome.stderr);
    }
}
