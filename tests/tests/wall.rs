//! Wall-clock profiles (`-e wall`) of programs that know where their time goes, and that must not notice.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use selfwind_tests::binary::selfwind;
use selfwind_tests::flight::Flight;
use selfwind_tests::folded::Folded;
use selfwind_tests::outcome::run;
use selfwind_tests::recording::{Recorder, Recording, read, stats};
use selfwind_tests::skip::may_mount;
use selfwind_tests::target::Target;

/// Tolerance, as a share of a thread's lifetime, of what the kernel counts.
const TWO_POINTS: f64 = 0.02;
/// Tolerance of what is known by sampling only, which a busy machine may delay.
const THREE_POINTS: f64 = 0.03;

/// A thread's own account: microseconds of its lifetime, of CPU time, runnable, blocked in its first and in its second
/// place; and the number of context switches.
fn said(recording: &Recording) -> BTreeMap<String, [u64; 6]> {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next().expect("a name").to_owned();
        let numbers: Vec<u64> = words.map(|word| word.parse().expect("a number")).collect();
        (name, numbers.try_into().expect("six numbers"))
    };
    recording.outcome.stdout.lines().map(line).collect()
}

/// The stacks of one thread, by its name.
fn of_thread(folded: &Folded, name: &str) -> Folded {
    let own = |(stack, _): &&(Vec<String>, u64)| stack[0].starts_with(&format!("{name}-"));
    Folded { stacks: folded.stacks.iter().filter(own).cloned().collect() }
}

/// The weight of stacks whose innermost element begins so.
fn ending(folded: &Folded, beginning: &str) -> u64 {
    let ends =
        |(stack, _): &&(Vec<String>, u64)| stack.last().is_some_and(|leaf| leaf.starts_with(beginning));
    folded.stacks.iter().filter(ends).map(|(_, weight)| weight).sum()
}

fn assert_near(found: u64, expected: u64, (points, whole): (f64, u64), what: &str, folded: &Folded) {
    let off = (found as f64 - expected as f64).abs() / whole as f64;
    assert!(off <= points, "{what}: {found} us instead of {expected} of {whole}: {folded:#?}");
}

#[test]
fn a_thread_that_waits_in_vfork_has_its_callers() {
    let folded =
        Recorder::at(997).event("wall").record(&Target::c("vfork_wait").build(), &[] as &[&str]).folded();
    let waits =
        folded.stacks.iter().filter(|(stack, _)| stack.last().is_some_and(|leaf| leaf == "[blocked: vfork]"));
    let called = |stack: &[String]| {
        ["_start", "main", "start_child"].iter().all(|name| stack.iter().any(|at| at == name))
    };
    let called: u64 = waits.filter(|(stack, _)| called(stack)).map(|(_, weight)| weight).sum();
    assert!(called > 800_000, "{folded:#?}");
}

#[test]
fn a_stopped_process_is_shown_as_stopped() {
    let folded =
        Recorder::at(997).event("wall").record(&Target::c("stopped").build(), &[] as &[&str]).folded();
    let stopped = ending(&folded, "[stopped]");
    assert!(
        (550_000..800_000).contains(&stopped) && ending(&folded, "[blocked: page fault]") < 50_000,
        "{folded:#?}"
    );
}

/// A thread that has exited has no stack, which does not count as a truncated one.
#[test]
fn an_exit_that_takes_long_is_shown_as_such() {
    let recording = Recorder::at(997).event("wall").record(&Target::c("exit_waits").build(), &[""; 0]);
    assert_eq!(recording.outcome.status, 0, "{}", recording.outcome.stderr);
    assert_eq!(recording.stats().number("truncated"), 0);
    let folded = recording.folded();
    let exiting = ending(&folded, "[exiting]");
    println!("{exiting} us");
    assert!(exiting > 1000, "{exiting} us in {folded:?}");
}

#[test]
fn threads_have_their_shares_of_computing_and_waiting() {
    let recording = Recorder::at(997).event("wall").record(&Target::c("wall_shares").build(), &["4"]);
    assert_eq!(recording.outcome.status, 0, "{}", recording.outcome.stderr);
    let folded = read(&["export", "-f", "folded", "--event", "wall", "--per-thread"], &recording.file);
    let (folded, said) = (Folded::parse(&folded), said(&recording));
    assert_eq!(folded.total(), recording.stats().number("weight"));
    recording.assert_adds_up();
    for (name, [life, cpu, delayed, first, second, _]) in &said {
        let own = of_thread(&folded, name);
        let (blocked, ready) = (ending(&own, "[blocked: "), ending(&own, "[ready]"));
        let running = own.total() - blocked - ready;
        let counted = (TWO_POINTS, *life);
        assert_near(own.total(), *life, counted, name, &own);
        assert_near(running, *cpu, counted, &format!("{name} running"), &own);
        assert_near(ready, *delayed, counted, &format!("{name} ready"), &own);
        let functions = match name.as_str() {
            "computes" => ["compute", "compute"],
            "mixes" => ["sleep_shortly", "sleep_longer"],
            "waits" => ["wait_for_the_end", "nowhere"],
            "reads" => ["read_to_the_end", "nowhere"],
            _ => panic!("{name}"),
        };
        for (function, expected) in functions.into_iter().zip([first, second]).filter(|_| name != "computes")
        {
            let what = format!("{name} in {function}");
            assert_near(blocked_in(&own, function), *expected, (THREE_POINTS, *life), &what, &own);
        }
    }
    for (name, call) in [("waits", "[blocked: futex]"), ("reads", "[blocked: read]")] {
        let own = of_thread(&folded, name);
        assert!(ending(&own, call) > own.total() * 9 / 10, "{name}: {own:#?}");
    }
}

fn blocked_in(folded: &Folded, function: &str) -> u64 {
    let stacks = folded
        .stacks
        .iter()
        .filter(|(stack, _)| stack.last().is_some_and(|leaf| leaf.starts_with("[blocked")));
    Folded { stacks: stacks.cloned().collect() }.inclusive(function)
}

/// Regardless of the frame pointer, which the kernel does not report.
#[test]
fn stacks_of_blocked_threads_reach_their_roots() {
    for (variant, flags) in [
        ("O0", &["-O0"][..]),
        ("pointers", &["-O2", "-fno-omit-frame-pointer"]),
        ("none", &["-O2", "-fomit-frame-pointer"]),
    ] {
        let program = Target::c("wall_shares").with(variant, flags).build();
        let recording = Recorder::at(499).event("wall").record(&program, &["0.5"]);
        let mut blocked = recording.folded();
        blocked.stacks.retain(|(stack, _)| stack.last().is_some_and(|leaf| leaf.starts_with("[blocked")));
        assert!(blocked.rooted() > 0.99, "{variant}: {blocked:#?}");
        for site in ["sleep_shortly", "sleep_longer", "wait_for_the_end", "read_to_the_end"] {
            assert!(blocked.inclusive(site) > 0, "{variant}, {site}: {blocked:#?}");
        }
    }
}

/// A program shorter than the recorder's usual interval between two passes has the stacks of its waits all the same.
#[test]
fn stacks_of_a_short_program_reach_their_roots() {
    let program = Target::c("wall_shares").with("pointers", &["-O2", "-fno-omit-frame-pointer"]).build();
    for round in 0..10 {
        let recording = Recorder::at(499).event("wall").record(&program, &["0.1"]);
        let mut blocked = recording.folded();
        blocked.stacks.retain(|(stack, _)| stack.last().is_some_and(|leaf| leaf.starts_with("[blocked")));
        assert!(blocked.rooted() > 0.95, "{round}: {blocked:#?}");
        for site in ["sleep_shortly", "sleep_longer", "wait_for_the_end", "read_to_the_end"] {
            assert!(blocked.inclusive(site) > 0, "{round}, {site}: {blocked:#?}");
        }
    }
}

/// At the default rate, by the program's own clock.
#[test]
fn waits_of_short_threads_and_in_new_libraries_have_their_stacks() {
    let library = Target::c("waiting_library").shared("waiting_library.so").build();
    let library = library.to_str().expect("UTF-8");
    let recording =
        Recorder::at(199).event("wall").record(&Target::c("short_waits").build(), &["25", library]);
    let folded = recording.folded();
    let mut said = recording.outcome.stdout.split_whitespace();
    for function in ["thread_waits", "library_waits"] {
        let time: u64 = said.next().expect("two numbers").parse().expect("a number");
        let found = folded.inclusive(function);
        assert!(found > time * 3 / 4, "{function}: {found} us of {time}: {folded:#?}");
        assert!(found < time * 11 / 10, "{function}: {found} us of {time}: {folded:#?}");
    }
}

/// Where the process's number means another process to the recorder.
#[test]
fn waits_in_another_pid_namespace_are_its_own() {
    if !may_mount() {
        return;
    }
    let program = Target::c("wall_shares").build();
    let program = program.to_str().expect("UTF-8");
    for flags in [&["--mount-proc"][..], &[]] {
        let arguments = [&["--pid", "--fork"], flags, &[program, "1"]].concat();
        let recording = Recorder::at(499).event("wall").record(Path::new("unshare"), &arguments);
        assert_eq!(recording.outcome.status, 0, "{}", recording.outcome.stderr);
        let (folded, said) = (recording.folded(), said(&recording));
        for (name, function) in [("waits", "wait_for_the_end"), ("reads", "read_to_the_end")] {
            let counted = (THREE_POINTS, said[name][0]);
            let what = format!("{flags:?} {function}");
            assert_near(blocked_in(&folded, function), said[name][3], counted, &what, &folded);
        }
        // Beside its threads there are two that wait for them: its first one, and unshare's.
        let lives: u64 = said.values().map(|numbers| numbers[0]).sum();
        assert!(folded.total() < lives * 7 / 4, "{flags:?}: {} us of {lives}: {folded:#?}", folded.total());
    }
}

/// Whose program is in a file system that the recorder does not have.
#[test]
fn stacks_in_another_mount_namespace_reach_their_roots() {
    if !may_mount() {
        return;
    }
    let program = Target::c("wall_shares").with("none", &["-O2", "-fomit-frame-pointer"]).build();
    let own_mnt = "mount -t tmpfs none /mnt && cp \"$0\" /mnt/elsewhere && exec /mnt/elsewhere \"$@\"";
    let arguments = ["--mount", "sh", "-c", own_mnt, program.to_str().expect("UTF-8"), "0.5"];
    let recording = Recorder::at(499).event("wall").record(Path::new("unshare"), &arguments);
    assert_eq!(recording.outcome.status, 0, "{}", recording.outcome.stderr);
    let mut blocked = recording.folded();
    let is_of_it = |(stack, _): &(Vec<String>, u64)| {
        stack.iter().any(|element| element == "start_thread")
            && stack.last().is_some_and(|leaf| leaf.starts_with("[blocked"))
    };
    blocked.stacks.retain(is_of_it);
    assert!(blocked.total() > 1_000_000 && blocked.rooted() > 0.99, "{blocked:#?}");
    // The thread's function, the one that waits, and what it calls: nothing that was guessed.
    let reading =
        |(stack, _): &&(Vec<String>, u64)| stack.last().is_some_and(|leaf| leaf == "[blocked: read]");
    let stacks: Vec<_> = blocked.stacks.iter().filter(reading).collect();
    assert!(stacks.iter().all(|(stack, _)| stack.len() == 6), "{stacks:#?}");
}

/// By the kernel's count of voluntary context switches: a sleeping thread is never woken. At this rate it
/// would be 2,000 times. (On a loaded machine a recorded thread once had three switches more; why is not known.)
#[test]
fn sleeping_threads_are_not_woken() {
    let program = Target::c("wall_shares").build();
    let alone = run(Command::new(&program).arg("2"));
    let recording = Recorder::at(997).event("wall").record(&program, &["2"]);
    let switches = |text: &str, name: &str| -> u64 {
        let line = text.lines().find(|line| line.starts_with(name)).expect("the thread's line");
        line.rsplit(' ').next().expect("a number").parse().expect("a number")
    };
    for name in ["waits", "reads"] {
        let (recorded, alone) = (switches(&recording.outcome.stdout, name), switches(&alone.stdout, name));
        assert!(recorded <= alone + 10, "{name}: {recorded} switches, alone {alone}");
    }
}

#[test]
fn no_wait_is_interrupted() {
    let waits = "1000000";
    let recording = Recorder::at(997).event("wall").record(&Target::c("wall_waits").build(), &[waits]);
    assert_eq!(recording.outcome.stdout, format!("{waits} 0\n"), "{}", recording.outcome.stderr);
    let folded = recording.folded();
    assert!(folded.inclusive("[blocked: poll]") > 0, "{folded:#?}");
}

/// The wall clock observes from outside and interposes nothing, nor do tracepoints.
#[test]
fn the_wall_clock_interposes_no_function() {
    for (event, interposes) in [("wall", false), ("tp:a:b", false), ("wall,lock", true)] {
        let recording = Recorder::at(99).event(event).record(Path::new("/bin/cat"), &["/proc/self/maps"]);
        let maps = &recording.outcome.stdout;
        assert!(maps.contains("/agent-"), "{event}: no agent:\n{maps}");
        assert_eq!(maps.contains("/agent-probes-"), interposes, "{event}:\n{maps}");
    }
    let recording = Recorder::at(499).event("wall").record(&Target::c("wall_shares").build(), &["0.5"]);
    let mut waiting = recording.folded();
    waiting.stacks.retain(|(stack, _)| stack.iter().any(|frame| frame.contains("pthread_cond_wait")));
    assert!(waiting.inclusive("wait_for_the_end") > 0, "{waiting:#?}");
    let ours = |(stack, _): &(Vec<String>, u64)| stack.iter().any(|frame| frame.starts_with("agent-"));
    assert!(!waiting.stacks.iter().any(ours), "frames of the agent: {waiting:#?}");
}

#[test]
fn one_recording_has_both_clocks() {
    let recording = Recorder::at(199).event("cpu,wall").record(&Target::c("wall_shares").build(), &["1"]);
    let weight = |event: &str| {
        Folded::parse(&read(&["export", "-f", "folded", "--event", event], &recording.file)).total()
    };
    let said = said(&recording);
    let cpu: u64 = said.values().map(|numbers| numbers[1]).sum();
    let life: u64 = said.values().map(|numbers| numbers[0]).sum();
    let (periods, wall) = (weight("cpu"), weight("wall"));
    assert!(periods * 1_000_000 / 199 < cpu * 5 / 4, "{periods} periods for {cpu} us");
    // The first thread waits for the others.
    assert!(wall > life, "{wall} us of {life}");
    let outcome = run(Command::new(selfwind()).args(["report", "--event", "wall"]).arg(&recording.file));
    assert!(outcome.stdout.contains("wait_for_the_end"), "{}", outcome.stdout);
}

/// A recording of a running process has the waits of its own time, not those since the agent began.
#[test]
fn the_wall_clock_of_a_running_process_begins_with_the_recording() {
    let flight = Flight::start(&[]);
    std::thread::sleep(Duration::from_secs(3));
    let outcome = run(&mut flight.record(&["-e", "wall", "-d", "1"], "x.data"));
    assert_eq!(outcome.status, 0, "{}", outcome.stderr);
    let stats = stats(&flight.file("x.data"));
    let seconds = stats.detail(&["duration_ns"]) as f64 / 1e9;
    // It has three threads, which compute.
    let wall = Folded::parse(&read(&["export", "-f", "folded"], &flight.file("x.data"))).total() as f64 / 1e6;
    assert!(wall < 3.0 * seconds * 1.1, "{wall} s of wall-clock time in {seconds} s");
    assert!(wall > 2.0 * seconds, "{wall} s of wall-clock time in {seconds} s");
}
