//! Each hazard program behaves the same with and without the profiler: same output, same exit status; and its profile
//! shows what it did, and adds up.

use std::path::PathBuf;
use std::process::Command;

use selfwind_tests::outcome::run;
use selfwind_tests::recording::{Recorder, Recording, record_unharmed};
use selfwind_tests::target::{Target, directory};

/// Records `target` and asserts that these functions are in the profile.
fn hazard(target: &Target, arguments: &[&str], functions: &[&str]) -> Recording {
    hazard_by(&Recorder::default(), target, arguments, functions)
}

fn hazard_by(recorder: &Recorder, target: &Target, arguments: &[&str], functions: &[&str]) -> Recording {
    let recording = record_unharmed(recorder, &target.build(), arguments);
    assert_functions(&recording, functions);
    recording
}

fn assert_functions(recording: &Recording, functions: &[&str]) {
    let folded = recording.folded();
    for function in functions {
        assert!(folded.inclusive(function) > 0, "{function} is not in {folded:?}");
    }
}

/// Asserts the share of complete stacks, and that their outermost functions are those that threads begin with.
fn assert_complete(recording: &Recording, share: f64) {
    let (stats, folded) = (recording.stats(), recording.folded());
    assert!(stats.complete() >= share, "complete {:.3}: {:#}", stats.complete(), stats.0["detail"]["ends"]);
    assert!(folded.rooted() >= share, "rooted {:.3}: {:?}", folded.rooted(), folded.roots());
}

/// glibc and musl: the same program, the same promise.
fn both(name: &str) -> [Target; 2] {
    [Target::c(name), Target::c(name).musl()]
}

/// Asserts that `found` is within `by` of `expected`.
fn near(what: &str, found: f64, expected: f64, by: f64) {
    assert!((found - expected).abs() <= by, "{what}: {found:.3}, not {expected} within {by}");
}

#[test]
fn cpu_shares() {
    const SHARES: [(&str, f64); 4] =
        [("share_40", 40.0), ("share_30", 30.0), ("share_20", 20.0), ("share_10", 10.0)];
    for target in both("cpu_shares") {
        let recording = hazard(&target, &[], &SHARES.map(|(function, _)| function));
        let folded = recording.folded();
        for (function, percent) in SHARES {
            let found = 100.0 * folded.inclusive(function) as f64 / folded.total() as f64;
            near(function, found, percent, 3.0);
        }
        // One and a half seconds of CPU time at 499 Hz.
        near("weight", recording.stats().number("weight") as f64, 1.5 * 499.0, 0.1 * 1.5 * 499.0);
    }
    assert_complete(&Recorder::default().record(&Target::c("cpu_shares").build(), &[""; 0]), 0.99);
}

#[test]
fn fork() {
    for target in both("fork") {
        let recording = hazard(&target, &[], &["parent_work", "child_work", "grandchild_work"]);
        assert_eq!(recording.stats().number("processes"), 3);
        let folded = recording.folded();
        let share = |function| folded.inclusive(function) as f64 / folded.total() as f64;
        near("parent_work", share("parent_work"), 1.0 / 3.0, 0.05);
        near("child_work", share("child_work"), 1.0 / 3.0, 0.05);
        near("grandchild_work", share("grandchild_work"), 1.0 / 3.0, 0.05);
    }
}

#[test]
fn fork_storm() {
    for target in both("fork_storm") {
        let recording = hazard(&target, &[], &["background_work", "storm_child_work"]);
        assert_eq!(recording.stats().number("processes"), 201);
    }
}

#[test]
fn exec() {
    for target in both("exec") {
        for mode in ["chain", "threads", "raw", "fails"] {
            hazard(&target, &[mode], &["before_exec", "after_exec"]);
        }
        hazard(&target, &["pending"], &["after_exec"]);
        let image = Target::c("static_image").fixed().build();
        hazard(&target, &["static", &image.display().to_string()], &[]);
    }
}

#[test]
fn exec_storm_at_a_high_rate() {
    hazard_by(&Recorder::at(9999), &Target::c("exec"), &["chain"], &["before_exec", "after_exec"]);
}

#[test]
fn vfork() {
    for target in both("vfork") {
        let recording = hazard(&target, &[], &["vfork_parent_work"]);
        // The children compute in the parent's memory and must not be counted for it: 200 of 500 ms are theirs.
        let parent = recording.folded().inclusive("vfork_parent_work") as f64 / 499.0;
        near("seconds of the parent", parent, 0.3, 0.06);
    }
}

#[test]
fn posix_spawn() {
    for target in both("posix_spawn") {
        let recording = hazard(&target, &[], &["spawner_work", "spawned_work"]);
        near(
            "seconds of the spawned",
            recording.folded().inclusive("spawned_work") as f64 / 499.0,
            0.3,
            0.04,
        );
    }
}

#[test]
fn shell_out() {
    for target in both("shell_out") {
        let recording = hazard(&target, &[], &["shell_out_work"]);
        let stats = recording.stats();
        let shells = stats.executables().iter().filter(|(name, _)| name == "dash" || name == "bash").count();
        assert!(shells >= 3, "{:?}", stats.executables());
    }
}

#[test]
fn dlopen_churn() {
    for (target, plugin) in [
        (Target::c("dlopen_churn"), Target::c("plugin")),
        (Target::c("dlopen_churn").musl(), Target::c("plugin").musl()),
    ] {
        let kind = target.build().file_name().expect("a file").to_string_lossy().into_owned();
        let plugins: Vec<String> = (0..3)
            .map(|n| {
                plugin.clone().shared(&format!("{kind}-plugins/plugin{n}.so")).build().display().to_string()
            })
            .collect();
        let plugins: Vec<&str> = plugins.iter().map(String::as_str).collect();
        let recording = hazard_by(&Recorder::at(10_000), &target, &plugins, &["host_work", "plugin_work"]);
        let folded = recording.folded();
        let (inside, all) = (folded.nested("churn", "plugin_work"), folded.inclusive("plugin_work"));
        assert!(inside * 100 >= all * 95, "{inside} of {all} stacks go from the plugin to its host");
    }
}

#[test]
fn dlopen_runpath() {
    let hidden = Target::c("runpath_hidden");
    hidden.clone().shared("runpath/program/libhidden_program.so").build();
    hidden.clone().shared("runpath/library/libhidden_library.so").build();
    hidden.clone().shared("runpath/library/libhidden_unreachable.so").build();
    let library = directory().join("runpath/library").display().to_string();
    let program = directory().join("runpath/program").display().to_string();
    let asker = Target::c("runpath_asker")
        .with("", &["-Wl,--enable-new-dtags", &format!("-Wl,-rpath,{library}"), "-Wl,-soname,libasker.so"])
        .shared("runpath/libasker.so")
        .build();
    let target = Target::c("dlopen_runpath").named(
        "runpath/dlopen_runpath",
        &[
            "-Wl,--enable-new-dtags",
            &format!("-Wl,-rpath,{program}"),
            &format!("-Wl,-rpath-link,{library}"),
            &asker.display().to_string(),
            &format!("-Wl,-rpath,{}", directory().join("runpath").display()),
        ],
    );
    let recording = hazard(&target, &[], &["hidden_work"]);
    assert_eq!(recording.outcome.stdout, "program 31\nlibrary 31\nunreachable 0\n");
}

#[test]
fn thread_churn() {
    for target in both("thread_churn") {
        let recording = hazard(&target, &[], &["churn_main_work"]);
        assert_eq!(recording.stats().number("threads"), 3001);
    }
}

#[test]
fn sigaltstack() {
    for target in both("sigaltstack") {
        let recording = hazard(&target, &[], &["altstack_work", "normal_work"]);
        if !target.is_musl() {
            // The handler's stack continues with the interrupted one.
            assert!(recording.folded().nested("main", "altstack_work") > 0, "{:?}", recording.folded());
        }
    }
}

/// Threads that have set the same stack are sampled on others, which the program does not see.
#[test]
fn shared_signal_stack() {
    for target in both("shared_signal_stack") {
        for event in ["perf", "cpu", "itimer", "wall"] {
            for frequency in [199, 9973] {
                let recorder = Recorder::at(frequency).event(event);
                let recording =
                    hazard_by(&recorder, &target, &[], &["thread_work", "handler_work", "nested_work"]);
                if !target.is_musl() {
                    let folded = recording.folded();
                    let nested = folded.nested("work", "handler_work") + folded.nested("work", "nested_work");
                    let all = folded.inclusive("handler_work") + folded.inclusive("nested_work");
                    assert!(nested * 10 >= all * 9, "{event}: {nested} of {all}: {folded:?}");
                }
            }
        }
    }
}

/// The agent needs no space on the program's stacks, and its own stacks are invisible to the program.
#[test]
fn stack_end() {
    for target in both("stack_end") {
        for event in ["cpu", "itimer", "perf"] {
            let recorder = Recorder::at(9973).event(event);
            for mode in ["thread", "main", "coroutine"] {
                hazard_by(&recorder, &target, &[mode], &["spin_at"]);
            }
            hazard_by(&recorder, &target, &["small"], &[]);
            hazard_by(&recorder, &target, &["belief"], &["spin_at"]);
            hazard_by(&recorder, &target, &["handlers"], &["spin_at"]);
        }
    }
}

#[test]
fn siglongjmp() {
    for target in both("siglongjmp") {
        hazard(&target, &[], &["between_jumps", "after_jumps"]);
        hazard_by(&Recorder::at(4999), &target, &[], &["after_jumps"]);
    }
}

#[test]
fn own_sigprof() {
    for target in both("own_sigprof") {
        for mode in ["itimer", "timer", "query", "reset", "raise"] {
            hazard(&target, &[mode], &["own_work"]);
        }
        hazard(&target, &["raw"], &[]);
    }
}

#[test]
fn own_sigprof_under_the_process_timer() {
    for mode in ["itimer", "timer", "query", "reset", "raise"] {
        hazard_by(&Recorder::default().event("itimer"), &Target::c("own_sigprof"), &[mode], &[]);
    }
}

#[test]
fn close_all_fds() {
    for target in both("close_all_fds") {
        hazard(&target, &[], &["before_close", "after_close"]);
    }
}

#[test]
fn seccomp() {
    for mode in ["errno", "kill", "tsync", "strict"] {
        hazard(&Target::c("seccomp"), &[mode], &["unfiltered_work"]);
    }
    // A process-wide timer would survive the exec and kill a program without a handler.
    let image = Target::c("static_image").fixed().build().display().to_string();
    for source in ["cpu", "itimer"] {
        let recorder = Recorder::default().event(source);
        hazard_by(&recorder, &Target::c("seccomp"), &["exec", &image], &["unfiltered_work"]);
    }
}

/// Its forked child does not inherit what it does to its system calls.
#[test]
fn dispatched_calls() {
    for mode in ["", "raw"] {
        for source in ["cpu", "itimer", "perf", "cpu,alloc,lock"] {
            let recorder = Recorder::default().event(source);
            let target = Target::c("dispatched_calls");
            hazard_by(&recorder, &target, &[mode], &["before_work", "child_work"]);
        }
    }
}

/// A handler returns by a system call, for which a filter may kill.
#[test]
fn no_return() {
    let target = Target::c("no_return");
    for source in ["cpu", "itimer", "perf"] {
        let recorder = Recorder::at(4999).event(source);
        // Whether a sample of the other thread is under way is a matter of chance.
        for mode in ["kill", "tsync", "tsync", "tsync", "mask", "second"] {
            let recording = hazard_by(&recorder, &target, &[mode], &["before_filter"]);
            assert_eq!(recording.folded().inclusive("after_filter"), 0, "{source} {mode}");
        }
        let on: &[_] =
            if source == "itimer" { &["before_filter"] } else { &["before_filter", "after_filter"] };
        hazard_by(&recorder, &target, &["offered"], on);
        hazard_by(&recorder, &target, &["refused"], &["before_filter", "after_filter"]);
    }
}

/// What an agent needs at its start may be forbidden to the program that a recorded one executes.
#[test]
fn filtered_exec() {
    let target = Target::c("filtered_exec");
    let calls = [
        libc::SYS_timer_create,
        libc::SYS_prctl,
        libc::SYS_getpid,
        libc::SYS_ftruncate,
        libc::SYS_sigaltstack,
        libc::SYS_rt_sigreturn,
        libc::SYS_faccessat,
    ];
    for source in ["cpu", "itimer", "perf", "alloc"] {
        for call in calls {
            hazard_by(&Recorder::default().event(source), &target, &[call.to_string().as_str()], &[]);
        }
    }
    let events = libc::SYS_perf_event_open.to_string();
    hazard_by(&Recorder::default(), &target, &[events.as_str()], &[]);
    // The second filter counts as well, and a child's.
    let (reboot, getpid) = (libc::SYS_reboot.to_string(), libc::SYS_getpid.to_string());
    for source in ["cpu", "perf"] {
        let recorder = Recorder::default().event(source);
        hazard_by(&recorder, &target, &[&reboot, &getpid], &[]);
        hazard_by(&recorder, &target, &[&getpid, &reboot], &[]);
        hazard_by(&recorder, &target, &[&reboot, "fork", &getpid], &[]);
    }
    // And what it does not need may be.
    let recorder = Recorder::default().event("cpu");
    hazard_by(&recorder, &target, &[reboot.as_str()], &["launched_work"]);
    hazard_by(&recorder, &target, &[&reboot, &reboot], &["launched_work"]);
}

#[test]
fn no_counter() {
    let target = Target::c("no_counter");
    for source in ["cpu", "itimer", "perf", "alloc", "lock"] {
        for mode in ["forbidden", "enabled"] {
            hazard_by(&Recorder::default().event(source), &target, &[mode], &[]);
        }
    }
}

#[test]
fn coroutine() {
    let recording = hazard(&Target::c("coroutine"), &[], &["coroutine_work", "scheduler_work"]);
    let folded = recording.folded();
    let (below, all) =
        (folded.nested("coroutine_body", "coroutine_work"), folded.inclusive("coroutine_work"));
    assert_eq!(below, all, "{folded:?}");
    assert_complete_stats(&recording, 0.95);
}

#[test]
fn guarded_stacks() {
    let recording = hazard(&Target::c("guarded_stacks"), &[], &["guarded_work"]);
    assert_complete_stats(&recording, 0.95);
    // Samples at the return from system calls: above an abandoned stack there is only the next one's guard page.
    for _ in 0..5 {
        hazard_by(&Recorder::at(10_000).event("perf"), &Target::c("guarded_stacks"), &[], &["guarded_work"]);
    }
}

fn assert_complete_stats(recording: &Recording, share: f64) {
    let stats = recording.stats();
    assert!(stats.complete() >= share, "complete {:.3}: {:#}", stats.complete(), stats.0["detail"]["ends"]);
}

#[test]
fn odd_frames() {
    let recording = hazard(&Target::c("odd_frames"), &[], &["alloca_work", "vla_work", "realigned_work"]);
    assert_complete(&recording, 0.99);
    for (outer, inner) in
        [("with_alloca", "alloca_work"), ("with_vla", "vla_work"), ("with_realignment", "realigned_work")]
    {
        let folded = recording.folded();
        assert_eq!(folded.nested(outer, inner), folded.inclusive(inner), "{folded:?}");
    }
}

/// Nothing called the code, and the stack above it holds return addresses of other calls.
#[test]
fn haskell_stack() {
    for source in ["cpu", "perf"] {
        let recording =
            Recorder::at(997).event(source).record(&Target::c("haskell_stack").build(), &[] as &[&str]);
        assert_eq!(recording.outcome.status, 0, "{source}: {:?}", recording.outcome);
        let folded = recording.folded();
        let is_whole = |stack: &[String]| {
            let inner = stack.iter().skip_while(|function| *function != "main").map(String::as_str);
            // Preempted by another program.
            let inner: Vec<&str> = inner.filter(|function| !function.ends_with("_[k]")).collect();
            let code = ["compiled", "compiled_next"];
            matches!(inner[..], ["main", "schedule", function] if code.contains(&function))
                || inner == ["main", "schedule", "compiled_next", "burn"]
        };
        let whole = folded.stacks.iter().filter(|(stack, _)| is_whole(stack)).map(|(_, weight)| weight);
        assert!(
            whole.sum::<u64>() * 20 > folded.total() * 19 && folded.rooted() > 0.98,
            "{source}: {folded:#?}"
        );
    }
}

#[test]
fn raw_clone() {
    for target in both("raw_clone") {
        for arguments in [&[][..], &["own"]] {
            // Discovered by the ticks of the thread that created it.
            hazard(&target, arguments, &["creator_work", "raw_clone_work"]);
            hazard_by(&Recorder::default().event("itimer"), &target, arguments, &["raw_clone_work"]);
        }
    }
}

#[test]
fn errno_guard() {
    for target in both("errno_guard") {
        hazard_by(&Recorder::at(20_000), &target, &[], &["watch_errno"]);
        hazard_by(&Recorder::at(20_000).event("itimer"), &target, &[], &["watch_errno"]);
    }
}

#[test]
fn eintr() {
    for target in both("eintr") {
        hazard_by(&Recorder::at(1999), &target, &[], &["eintr_work"]);
    }
}

#[test]
fn deep_recursion() {
    for target in both("deep_recursion") {
        let recording = hazard(&target, &[], &["deep_leaf", "descend"]);
        let stats = recording.stats();
        let end = |name| stats.0["detail"]["ends"][name].as_u64().unwrap_or(0);
        let blocked = stats.kernel("blocked");
        // Only events while the C library blocked all signals have no answer.
        let (deep, unanswered) = (end("depth-limit"), end("no-answer"));
        assert!(unanswered <= blocked, "{:#}", stats.0);
        // At the end of a thread in musl, which has no CFI, the stack is guessed from stale words of the recursion.
        let guessed = end("no-cfi") + end("no-module") + end("no-code");
        assert!(guessed <= if target.is_musl() { 3 } else { 0 }, "{:#}", stats.0);
        assert!(deep > 0 && deep + unanswered + guessed == stats.number("truncated"), "{:#}", stats.0);
    }
}

/// Without a flag, a stack is as deep as a record can be.
#[test]
fn recursion_within_the_limit() {
    let recording = hazard(&Target::c("deep_recursion"), &["900"], &["deep_leaf", "descend"]);
    assert_eq!(recording.stats().number("truncated"), 0, "{:#}", recording.stats().0);
    let folded = recording.folded();
    assert_eq!(folded.nested("main", "deep_leaf"), folded.inclusive("deep_leaf"), "{folded:?}");
}

/// Samples need no room on the signal stack of the program, and the handler that ends the process runs on it.
#[test]
fn exit_on_small_stack() {
    let target = Target::c("exit_on_small_stack").with("bound", &["-Wl,-z,now"]);
    for source in ["auto", "cpu"] {
        let recording = hazard_by(&Recorder::at(997).event(source), &target, &[], &["compute"]);
        assert_eq!(recording.outcome.status, 7, "{source}: {:?}", recording.outcome);
    }
}

#[test]
fn exit_status() {
    for target in both("exit_status") {
        for how in [
            "return",
            "exit",
            "_exit",
            "raw",
            "thread",
            "main-exits",
            "abort",
            "term",
            "kill",
            "segv",
            "sigprof",
        ] {
            let recording = hazard(&target, &[how], &["exit_work"]);
            assert_eq!(
                recording.stats().0["detail"]["exit_status"].as_i64(),
                Some(i64::from(recording.outcome.status))
            );
        }
    }
}

#[test]
fn sigwait() {
    for target in both("sigwait") {
        hazard(&target, &[], &["open_work"]);
    }
}

#[test]
fn malloc_storm() {
    hazard_by(&Recorder::at(9999), &Target::c("malloc_storm"), &[], &["storm_heap", "storm_loader"]);
}

#[test]
fn throw() {
    let recording = hazard_by(&Recorder::at(1999), &Target::cpp("throw"), &[], &["throw_work", "climb"]);
    assert_complete(&recording, 0.95);
}

#[test]
fn wild() {
    for target in both("wild") {
        hazard_by(&Recorder::at(4999), &target, &[], &["tame_work"]);
        hazard_by(&Recorder::at(4999).event("itimer"), &target, &[], &["tame_work"]);
    }
}

#[test]
fn beside_another_preload() {
    let other = Target::c("other_preload").shared("other_preload.so").build();
    for target in [Target::c("malloc_storm"), Target::c("thread_churn"), Target::c("fork")] {
        hazard_by(&Recorder::default().env("LD_PRELOAD", &other), &target, &[], &[]);
    }
}

#[test]
fn exec_shim() {
    let real = Target::c("cpu_shares").build();
    let shim = directory().join("exec_shim.sh");
    std::fs::write(&shim, format!("#!/bin/bash\nexec {} \"$@\"\n", real.display())).expect("writable");
    run(Command::new("chmod").arg("+x").arg(&shim));
    let recording = record_unharmed(&Recorder::default(), &shim, &[""; 0]);
    assert_functions(&recording, &["share_40", "share_10"]);
    let names: Vec<String> = recording.stats().executables().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["bash", "cpu_shares"]);
}

#[test]
fn inert_when_disabled() {
    let target = Target::c("spin").build();
    let recording = record_unharmed(&Recorder::default().env("SELFWIND_ENABLE", "0"), &target, &["50"]);
    assert_eq!(recording.stats().number("samples"), 0);
}

#[test]
fn bad_settings_never_break_the_program() {
    let target = Target::c("spin").build();
    let agent: PathBuf = selfwind_tests::binary::agent().to_path_buf();
    let alone = run(Command::new(&target).arg("30"));
    for (name, value) in [
        ("SELFWIND_DIR", "/nonexistent/nowhere"),
        ("SELFWIND_DIR", "relative"),
        ("SELFWIND_DIR", "/dev/null"),
        ("SELFWIND_DIR", "/proc"),
        ("SELFWIND_FREQ", "0"),
        ("SELFWIND_FREQ", "-3"),
        ("SELFWIND_FREQ", "99999999999999999999"),
        ("SELFWIND_EVENT", "nonsense"),
        ("SELFWIND_MODE", "sideways"),
        ("SELFWIND_MAX_STACK", "0"),
        ("SELFWIND_MAX_STACK", "1000000000"),
        ("SELFWIND_MAX_OVERHEAD", "0"),
        ("SELFWIND_MAX_OVERHEAD", "1.234"),
        ("SELFWIND_POOL", "1"),
        ("SELFWIND_POOL", "18446744073709551615"),
        ("SELFWIND_SESSION", "xyz"),
        ("SELFWIND_TABLES", "/nonexistent/tables"),
    ] {
        let scratch = selfwind_tests::scratch::Scratch::new();
        let mut command = Command::new(&target);
        command.arg("30").env("LD_PRELOAD", &agent).env("XDG_RUNTIME_DIR", scratch.path()).env(name, value);
        assert_eq!(run(&mut command), alone, "{name}={value}");
    }
}

/// A signal of the program that comes together with a sample ends a wait as it does alone: always, or never with SA_RESTART.
#[test]
fn waits_end_with_the_program_s_signals() {
    let program = Target::c("interrupted_wait").build();
    // SIGUSR1, and a real-time signal.
    for (source, signal) in [("perf", "10"), ("perf", "34"), ("cpu", "10"), ("itimer", "10")] {
        let recorder = Recorder::at(9973).event(source);
        let recording = record_unharmed(&recorder, &program, &["4000", signal]);
        assert_eq!(recording.outcome.stdout, "4000 0\n", "{source}, {signal}");
    }
}
