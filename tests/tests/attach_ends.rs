//! After an attach has ended, in whichever way, nothing of it samples or can do harm.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use selfwind_tests::attacher::{Attacher, Conversation, Guest};
use selfwind_tests::recording::stats;
use selfwind_tests::target::Target;

const PROFILING: u32 = 27;

fn guest() -> Conversation {
    Conversation::start(&Target::c("pause").build(), &["4", "idle"])
}

/// What is left in a process: the number of timers, and whether it has a handler for the signal.
fn left(pid: &str) -> (usize, bool) {
    let read = |name| fs::read_to_string(format!("/proc/{pid}/{name}")).expect("it runs");
    let timers = read("timers").lines().filter(|line| line.starts_with("ID:")).count();
    let status = read("status");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a set");
    let caught = u64::from_str_radix(caught.trim(), 16).expect("hexadecimal");
    (timers, caught >> (PROFILING - 1) & 1 != 0)
}

fn number_of(pid: &str, key: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let value = status.lines().find_map(|line| line.strip_prefix(key)).expect("a number");
    value.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn a_recording_that_cannot_be_written_leaves_nothing() {
    let attacher = Attacher::new();
    let guest = guest();
    let pid = guest.child.id().to_string();
    assert_eq!(left(&pid), (0, false));
    let outcome = attacher.run(&["record", "-o", "/nonexistent/x", "-p", &pid]);
    assert_ne!(outcome.status, 0, "{outcome:?}");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    assert!(left(&pid) == (0, false) && !maps.contains(".region"), "{:?} {}", left(&pid), outcome.stderr);
    if Path::new("/dev/full").exists() {
        let outcome = attacher.run(&["record", "-d", "1", "-o", "/dev/full", "-p", &pid]);
        assert_ne!(outcome.status, 0, "{outcome:?}");
        assert_eq!(left(&pid), (0, false), "{}", outcome.stderr);
    }
    assert_eq!(guest.end(), "ok\n");
}

/// A file size limit leaves no space for the region.
#[test]
fn a_refusal_leaves_nothing() {
    let attacher = Attacher::new();
    let program = Target::c("pause").build();
    let program = program.to_str().expect("UTF-8");
    let guest = Conversation::start("prlimit".as_ref(), &["--fsize=4096", program, "4", "idle"]);
    let pid = guest.child.id().to_string();
    let maps = || fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs").lines().count();
    let before = maps();
    for _ in 0..3 {
        let outcome = attacher.run(&["attach", "-p", &pid]);
        assert!(outcome.status == 1 && outcome.stderr.contains("RLIMIT_FSIZE"), "{outcome:?}");
        assert_eq!((left(&pid), maps()), ((0, false), before));
    }
    assert_eq!(guest.end(), "ok\n");
}

#[test]
fn the_next_recording_cleans_up_after_a_killed_one() {
    let attacher = Attacher::new();
    let guest = guest();
    let pid = guest.child.id().to_string();
    let file = attacher.scratch.join("left.data");
    let path = file.to_str().expect("UTF-8");
    let mut killed = attacher.command(&["record", "-o", path, "-p", &pid]);
    let mut killed = killed.stderr(Stdio::piped()).spawn().expect("selfwind runs");
    let mut line = String::new();
    BufReader::new(killed.stderr.take().expect("piped")).read_line(&mut line).expect("readable");
    assert!(line.contains("recording process"), "{line}");
    killed.kill().expect("our child");
    killed.wait().expect("our child");
    assert_ne!(left(&pid), (0, false));
    let outcome = attacher.run(&["record", "-q", "-d", "0.2", "-o", path, "-p", &pid]);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    assert_eq!(left(&pid), (0, false));
    // Continues what `attach` began.
    for arguments in [&["attach", "-p", &pid][..], &["record", "-q", "-d", "0.2", "-o", path, "-p", &pid]] {
        let outcome = attacher.run(arguments);
        assert_eq!(outcome.status, 0, "{outcome:?}");
        assert!(left(&pid).1);
    }
    assert_eq!(guest.end(), "ok\n");
}

/// What the process of a finished recording holds in shared memory is removed by a later one, once the process has ended.
#[test]
fn recorded_processes_leave_no_files() {
    let attacher = Attacher::new();
    let file = attacher.scratch.join("left.data");
    let path = file.to_str().expect("UTF-8");
    let [recorded, attached, other] = [guest(), guest(), guest()];
    let [pid, kept, next] = [&recorded, &attached, &other].map(|guest| guest.child.id().to_string());
    let run = |arguments: &[&str]| {
        let outcome = attacher.run(arguments);
        assert_eq!(outcome.status, 0, "{outcome:?}");
        outcome.stdout
    };
    run(&["record", "-q", "-d", "0.2", "-o", path, "-p", &pid]);
    run(&["attach", "-p", &kept]);
    assert!(run(&["list"]).contains(&pid));
    assert_eq!((recorded.end(), attached.end()), ("ok\n".into(), "ok\n".into()));
    run(&["record", "-q", "-d", "0.2", "-o", path, "-p", &next]);
    let list = run(&["list"]);
    assert!(!list.contains(&pid), "{list}");
    // Nobody has what that process has recorded.
    assert!(list.contains(&kept), "{list}");
    assert_eq!(other.end(), "ok\n");
}

#[test]
fn a_dump_comes_back_to_a_process_that_was_recorded() {
    let attacher = Attacher::new();
    let guest = guest();
    let pid = guest.child.id().to_string();
    let file = attacher.scratch.join("before.data");
    let path = file.to_str().expect("UTF-8");
    let outcome = attacher.run(&["record", "-q", "-F", "199", "-d", "0.2", "-o", path, "-p", &pid]);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let list = attacher.run(&["list"]);
    let own: Vec<_> =
        list.stdout.lines().filter(|line| line.split_whitespace().next() == Some(&pid)).collect();
    assert!(own.len() == 1 && own[0].contains("detached"), "{own:?} of {list:?}");
    for _ in 0..3 {
        let dump = attacher.run(&["dump", "-p", &pid]);
        assert!(dump.status == 0 && dump.stdout.contains("6 of 6 threads"), "{dump:?}");
        assert_eq!(left(&pid), (0, false));
    }
    assert_eq!(guest.end(), "ok\n");
}

/// Preloaded or injected, it has lost its region with the recording.
#[test]
fn what_outlives_its_recording_can_be_dumped_after_an_attach() {
    let attacher = Attacher::new();
    let file = attacher.scratch.join("over.data");
    let path = file.to_str().expect("UTF-8");
    for program in [Target::c("spin").build(), Target::c("spin").fixed().build()] {
        let script = format!("{} 60000 >/dev/null 2>&1 & echo $!; sleep 1", program.display());
        let recorded = attacher.run(&["record", "-o", path, "--", "sh", "-c", &script]);
        let pid = recorded.stdout.trim();
        let refused = attacher.run(&["dump", "-p", pid]);
        let attached = attacher.run(&["attach", "-p", pid]);
        let dumped = attacher.run(&["dump", "-p", pid]);
        let killed = kill(Pid::from_raw(pid.parse().expect("a pid")), Signal::SIGKILL);
        assert!(
            refused.stderr.contains(&format!("start it again with `selfwind attach -p {pid}`")),
            "{refused:?}"
        );
        assert_eq!(attached.status, 0, "{attached:?}");
        assert!(dumped.status == 0 && dumped.stdout.contains("3 of 3 threads"), "{dumped:?}");
        assert!(killed.is_ok());
    }
}

#[test]
fn many_attaches_leave_no_more_than_one() {
    let attacher = Attacher::new();
    let guest = guest();
    let pid = guest.child.id().to_string();
    let rounds = if std::env::var_os("SELFWIND_LONG").is_some() { 200 } else { 30 };
    let mut before = (0, 0, 0);
    for round in 0..rounds {
        for arguments in [&["attach", "-p", &pid][..], &["attach", "--detach", "-p", &pid]] {
            let outcome = attacher.run(arguments);
            assert_eq!(outcome.status, 0, "{outcome:?}");
        }
        let files = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count();
        let now = (number_of(&pid, "VmSize:"), number_of(&pid, "VmRSS:"), files);
        if round == 2 {
            before = now;
        }
        // The agent's heap grows by a quarter of a MiB at a time, and the first sample takes 300 KB; few of these pages
        // are touched.
        let grown = now.0 > before.0 + 256 + 300 || now.1 > before.1 + 256 || now.2 > before.2;
        assert!(round < 2 || !grown, "round {round}: {before:?} {now:?}");
        assert_eq!(left(&pid), (0, false));
    }
    assert_eq!(guest.end(), "ok\n");
}

#[test]
fn a_thread_that_takes_all_signals_is_not_asked() {
    let attacher = Attacher::new();
    let mut guest = Conversation::start(&Target::c("takes_signals").build(), &[]);
    let pid = guest.child.id().to_string();
    let outcome = attacher.run(&["attach", "-p", &pid]);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let dump = attacher.run(&["dump", "-p", &pid]);
    assert!(dump.stdout.contains("it waits in sigwait"), "{dump:?}");
    assert_eq!(guest.ask(), 0, "{dump:?}");
    let outcome = attacher.run(&["attach", "--detach", "-p", &pid]);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    drop(guest.input);
    guest.child.kill().expect("our child");
    guest.child.wait().expect("our child");
}

/// Two recorders begin at the same moment: one records, and the other takes nothing away from it.
#[test]
fn of_two_recorders_one_records_to_its_end() {
    let attacher = Attacher::new();
    let mut guest = Guest::start(&Target::c("spin").build(), &["60000"]);
    let pid = guest.pid();
    for round in 0..6 {
        let files = ["a", "b"].map(|name| attacher.scratch.join(&format!("{name}{round}.data")));
        let recorders = files.each_ref().map(|file| {
            let file = file.to_str().expect("UTF-8");
            let mut command = attacher.command(&["record", "-F", "199", "-d", "1.5", "-p", &pid, "-o", file]);
            command.stderr(Stdio::piped()).spawn().expect("it starts")
        });
        let ended = recorders.map(|recorder| recorder.wait_with_output().expect("it ends"));
        let recorded: Vec<_> = (0..2).filter(|&number| ended[number].status.success()).collect();
        assert_eq!(recorded.len(), 1, "round {round}: {ended:?}");
        let refused = String::from_utf8_lossy(&ended[1 - recorded[0]].stderr);
        assert!(refused.contains("another selfwind is recording it"), "round {round}: {refused}");
        let stats = stats(&files[recorded[0]]);
        // Some 300 periods on a quiet machine; a busy one has less, and one that was detached early next to nothing.
        assert!(stats.number("weight") > 10, "round {round}: {stats:?}: {ended:?}");
        assert_eq!(left(&pid), (0, false), "round {round}: {ended:?}");
    }
    guest.child.kill().expect("our child");
    guest.child.wait().expect("our child");
}
