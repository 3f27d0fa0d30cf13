//! Heap profiles of processes that were started without the agent: what they allocate from the attach on.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use selfwind_tests::attacher::{Attacher, Conversation, Guest};
use selfwind_tests::recording::stats;
use selfwind_tests::sites::folded;
use selfwind_tests::target::Target;

/// A recorder of a running process, until it is interrupted.
struct Recording {
    child: Child,
    output: BufReader<ChildStderr>,
}

impl Recording {
    /// Returns once it records.
    fn start(attacher: &Attacher, source: &str, pid: u32, file: &Path) -> Self {
        let arguments = ["record", "-e", source, "-p", &pid.to_string(), "-o"];
        let mut command = attacher.command(&arguments);
        command.arg(file).env("SELFWIND_POOL", "64M").stderr(Stdio::piped());
        let mut child = command.spawn().expect("it is built");
        let mut output = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        while !line.contains("Ctrl-C ends the recording") {
            line.clear();
            assert!(output.read_line(&mut line).expect("readable") > 0, "it ended");
        }
        Self { child, output }
    }

    /// What it says in the end.
    fn end(mut self) -> String {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).expect("our child");
        let mut said = String::new();
        self.output.read_to_string(&mut said).expect("readable");
        assert!(self.child.wait().expect("our child").success(), "{said}");
        said
    }
}

#[test]
fn what_is_allocated_from_the_attach_on_is_counted() {
    let library = Target::c("heap_attached_library").shared("heap_attached_library.so").build();
    let source = Target::c("heap_attached").with("pthread", &["-pthread"]);
    for (name, flags) in [("now", &["-Wl,-z,now"][..]), ("lazy", &["-Wl,-z,lazy"]), ("noplt", &["-fno-plt"])]
    {
        let program = source.clone().with(name, flags).build();
        let attacher = Attacher::new();
        let mut guest = Conversation::start(&program, &[library.to_str().expect("UTF-8")]);
        assert_eq!(guest.ask(), 0, "{name}");
        let mut asked = 1;
        for file in ["first.data", "again.data"].map(|file| attacher.scratch.join(file)) {
            let recording = Recording::start(&attacher, "alloc:all", guest.child.id(), &file);
            let mut has_waited = false;
            let first = asked;
            for round in 0..21 {
                // What has been loaded is redirected within half a second, and stays until the end of this round.
                if round > 4 && asked % 4 == 3 && !has_waited {
                    std::thread::sleep(Duration::from_millis(1500));
                    has_waited = true;
                }
                assert_eq!(guest.ask(), 1, "{name}: redirected before the recorder says that it records");
                asked += 1;
            }
            let rounds = asked - first;
            let said = recording.end();
            assert_eq!(guest.ask(), 0, "{name}: restored at the end of the recording: {said}");
            asked += 1;
            let stats = stats(&file);
            stats.assert_adds_up();
            assert_eq!(stats.number("lost"), 0, "{name}: {said}");
            assert!(stats.complete() > 0.99, "{name}: {:#}", stats.0);
            let [objects, live] = ["alloc_objects", "inuse_objects"].map(|value| folded(&file, value));
            let bytes = folded(&file, "alloc_space");
            for (site, count, size, kept) in [
                ("site_kept", 100 * rounds, 3000, true),
                ("site_freed", 100 * rounds, 3500, false),
                ("site_thread", 400 * rounds, 500, false),
                ("site_old", 0, 1000, false),
                ("site_child", 0, 900, false),
            ] {
                let found = (objects.inclusive(site), bytes.inclusive(site), live.inclusive(site));
                let expected = (count, count * size, if kept { count } else { 0 });
                assert_eq!(found, expected, "{name}, {site}: {said}");
            }
            // In the round after the wait, and until it is redirected not at all.
            let found = objects.inclusive("site_library");
            assert!(has_waited && (100..100 * rounds).contains(&found), "{name}: {found} of the library");
            assert_eq!(live.inclusive("site_library"), 0);
        }
        assert_eq!(guest.end(), "done\n", "{name}");
    }
}

/// The regions of a process: how many files it has mapped, and the kilobytes that it has touched of them and of what was put in
/// their place.
fn regions(pid: &str) -> (usize, u64) {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("it runs");
    let (mut files, mut touched, mut is_region) = (BTreeSet::new(), 0, false);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Rss:") if is_region => {
                touched += words.next().map_or(0, |kb| kb.parse().expect("a number"))
            }
            Some(key) if !key.ends_with(':') => {
                let inode = words.nth(3).expect("a mapping");
                is_region = line.contains(".region") || line.contains("/dev/zero");
                files.extend(line.contains(".region").then_some(inode));
            }
            _ => {}
        }
    }
    (files.len(), touched)
}

/// Each has a region of its own, with tables of some megabytes.
#[test]
fn many_recordings_leave_no_more_than_one() {
    let program = Target::c("heap_attached").with("pthread", &["-pthread"]).build();
    let attacher = Attacher::new();
    let mut guest = Conversation::start(&program, &[]);
    let pid = guest.child.id().to_string();
    let file = attacher.scratch.join("heap.data");
    let mut most = 0;
    for round in 0..12 {
        let source = if round % 4 < 2 { "alloc:all" } else { "cpu,alloc:16K" };
        let mut recording = Recording::start(&attacher, source, guest.child.id(), &file);
        assert_eq!(guest.ask(), 1);
        if round % 3 == 2 {
            recording.child.kill().expect("our child");
            recording.child.wait().expect("our child");
        } else {
            let said = recording.end();
            assert_eq!(guest.ask(), 0, "{said}");
            assert!(folded(&file, "alloc_objects").inclusive("site_kept") > 0, "{said}");
        }
        let (files, touched) = regions(&pid);
        assert_eq!(files, 1, "round {round}: {touched} KB");
        // Both sources. Which pages of their tables are touched is up to the addresses of the blocks, and how much of the
        // buffer to how fast it is emptied; if each round left its own memory, the last would have four times as much.
        if round < 3 {
            most = most.max(3 * touched);
        }
        assert!(touched <= most, "round {round}: {touched} KB, at most {most} expected");
    }
    assert_eq!(guest.end(), "done\n");
}

/// Such a thread is in the agent nearly always, and leaves it for each end of a recording. What it needs of its stack is known
/// after the first allocation, so that the others are only counted.
#[test]
fn a_program_that_only_allocates_is_left_at_once() {
    let program = Target::c("heap_only").with("pthread", &["-pthread"]).build();
    let attacher = Attacher::new();
    for place in ["main", "thread"] {
        let mut guest = std::process::Command::new(&program).arg(place).spawn().expect("it is built");
        let pid = guest.id().to_string();
        let file = attacher.scratch.join("only.data");
        let name = file.to_str().expect("UTF-8");
        for round in 0..6 {
            let began = Instant::now();
            let arguments = ["record", "-e", "alloc:all", "-p", &pid, "-d", "0.2", "-o", name];
            let outcome = attacher.run(&arguments);
            let took = began.elapsed();
            assert!(
                outcome.status == 0 && !outcome.stderr.contains("still"),
                "{place}, {round}: {outcome:?}"
            );
            assert!(took < Duration::from_secs(5), "{place}, {round}: {took:?}");
            let stats = stats(&file);
            let samples = stats.number("samples");
            let records = stats.detail(&["ring_records"]);
            assert!(samples > 1000 && records * 50 < samples, "{place}, {round}: {samples}, {records}");
        }
        assert_eq!(guest.try_wait().expect("our child"), None, "{place}");
        guest.kill().expect("our child");
        guest.wait().expect("our child");
    }
}

/// Kilobytes of address space of a process.
fn address_space(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("proc(5)");
    line.trim().trim_end_matches(" kB").parse().expect("proc(5)")
}

/// Nobody tells the agent that a thread has ended. What a thread needs is some megabytes of address space.
#[test]
fn threads_that_end_leave_room_for_others() {
    let program = Target::c("heap_churn").with("pthread", &["-pthread"]).build();
    let attacher = Attacher::new();
    let mut guest = std::process::Command::new(program).arg("60000").spawn().expect("it is built");
    let pid = guest.id().to_string();
    let file = attacher.scratch.join("churn.data");
    let file = file.to_str().expect("UTF-8");
    let outcome = attacher.run(&["record", "-q", "-e", "alloc:all", "-p", &pid, "-d", "3", "-o", file]);
    let grown = address_space(guest.id());
    guest.kill().expect("our child");
    guest.wait().expect("our child");
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let stats = stats(file.as_ref());
    stats.assert_adds_up();
    assert_eq!(stats.number("lost"), 0, "{:#}", stats.0);
    assert!(stats.number("threads") > 300, "{:#}", stats.0);
    assert!(grown < 1 << 20, "{grown} kB");
}

/// A thread may end while it is being registered.
#[test]
fn threads_that_end_during_an_attach_are_no_failure() {
    let program = Target::c("heap_churn").with("pthread", &["-pthread"]).build();
    let attacher = Attacher::new();
    let file = attacher.scratch.join("churn.data");
    let file = file.to_str().expect("UTF-8");
    for _ in 0..8 {
        let mut guest =
            std::process::Command::new(&program).args(["60000", "20"]).spawn().expect("it is built");
        let pid = guest.id().to_string();
        std::thread::sleep(Duration::from_millis(200));
        let outcome = attacher.run(&["record", "-e", "cpu", "-p", &pid, "-d", "200ms", "-o", file]);
        guest.kill().expect("our child");
        guest.wait().expect("our child");
        assert!(outcome.status == 0 && !outcome.stderr.contains("failed"), "{outcome:?}");
    }
}

#[test]
fn a_running_process_gets_the_buffer_that_was_asked_for() {
    let program = Target::c("heap_attached").with("pthread", &["-pthread"]).build();
    let attacher = Attacher::new();
    let guest = Conversation::start(&program, &[]);
    let pid = guest.child.id().to_string();
    let file = attacher.scratch.join("buffer.data");
    let file = file.to_str().expect("UTF-8");
    for source in ["alloc", "cpu,alloc"] {
        let before = address_space(guest.child.id());
        let arguments =
            ["record", "-q", "-e", source, "--buffer", "256M", "-p", &pid, "-d", "500ms", "-o", file];
        let outcome = attacher.run(&arguments);
        assert_eq!(outcome.status, 0, "{outcome:?}");
        let grown = address_space(guest.child.id()) - before;
        assert!(grown >= 256 << 10, "{source}: {grown} kB");
    }
    assert_eq!(guest.end(), "done\n");
}

/// Records one round of a program with these arguments, some 850 KB.
fn assert_few_are_there(arguments: &[&str]) {
    let program = Target::c("heap_attached").with("pthread", &["-pthread"]).build();
    let attacher = Attacher::new();
    let mut guest = Conversation::start(&program, arguments);
    let file = attacher.scratch.join("heap.data");
    let recording = Recording::start(&attacher, "alloc:64K", guest.child.id(), &file);
    assert_eq!(guest.ask(), 1);
    let said = recording.end();
    let stats = stats(&file);
    stats.assert_adds_up();
    assert!((1..64).contains(&stats.number("samples")), "{said}: {:#}", stats.0);
    assert_eq!(guest.end(), "done\n");
}

/// What a killed recorder has left has its settings, which are not those of the next one. Those of a living one cannot be changed.
#[test]
fn each_recording_has_the_rate_that_was_asked_for() {
    let program = Target::c("heap_attached").with("pthread", &["-pthread"]).build();
    let attacher = Attacher::new();
    let mut guest = Conversation::start(&program, &[]);
    let file = attacher.scratch.join("rate.data");
    let other = attacher.scratch.join("other.data");
    let mut killed = Recording::start(&attacher, "alloc:64K", guest.child.id(), &file);
    assert_eq!(guest.ask(), 1);
    let pid = guest.child.id().to_string();
    let refused = attacher.run(&["record", "-e", "alloc", "-p", &pid, "-o", other.to_str().expect("UTF-8")]);
    assert!(refused.status == 125 && refused.stderr.contains("another selfwind samples it"), "{refused:?}");
    killed.child.kill().expect("our child");
    killed.child.wait().expect("our child");
    let leaks = attacher.run(&["report", "--leaks", file.to_str().expect("UTF-8")]);
    assert!(leaks.stdout.contains("not known what was in use"), "{leaks:?}");
    let recording = Recording::start(&attacher, "alloc:all", guest.child.id(), &file);
    assert_eq!(guest.ask(), 1);
    let said = recording.end();
    assert_eq!(folded(&file, "alloc_objects").inclusive("site_kept"), 100, "{said}");
    assert_eq!(guest.end(), "done\n");
}

#[test]
fn a_few_allocations_are_there_too() {
    assert_few_are_there(&[]);
}

/// The loader's hook jumps to the agent, which must be within reach.
#[test]
fn a_loader_without_room_below_it_is_hooked() {
    assert_few_are_there(&["crowded"]);
}

#[test]
fn a_child_that_is_forked_meanwhile_is_recorded_too() {
    let program = Target::c("heap_attached").with("pthread", &["-pthread"]).build();
    let attacher = Attacher::new();
    let mut guest = Conversation::start(&program, &["fork"]);
    let file = attacher.scratch.join("heap.data");
    let recording = Recording::start(&attacher, "cpu,alloc:64K", guest.child.id(), &file);
    assert_eq!(guest.ask(), 1);
    let said = recording.end();
    assert_eq!(guest.ask(), 0, "{said}");
    let stats = stats(&file);
    stats.assert_adds_up();
    assert!(stats.complete() > 0.98, "{:#}", stats.0);
    assert!(folded(&file, "cpu").inclusive("site_forked") > 0, "{said}: {:#}", stats.0);
    assert!(folded(&file, "alloc_objects").inclusive("site_forked") > 10_000, "{said}: {:#}", stats.0);
    assert_eq!(guest.end(), "done\n");
}

#[test]
fn a_busy_program_stays_whole_while_its_allocations_are_redirected() {
    let attempts = if std::env::var_os("SELFWIND_LONG").is_some() { 30 } else { 2 };
    let program = Target::c("attach").with("lm", &["-lm"]).build();
    let library = Target::c("plugin").shared("attach-plugin.so").build();
    let library = library.to_str().expect("UTF-8");
    for mode in ["heap", "loader", "fork", "spawn", "signals"] {
        for attempt in 0..attempts {
            let what = format!("{mode} {attempt}");
            let attacher = Attacher::new();
            let guest = Guest::start(&program, &[mode, "2500", library]);
            let file = attacher.scratch.join("heap.data");
            let path = file.to_str().expect("UTF-8");
            for source in ["cpu,alloc:64K", "alloc:all"] {
                let arguments = ["record", "-q", "-e", source, "-d", "300ms", "-o", path, "-p", &guest.pid()];
                let outcome = attacher.run(&arguments);
                assert_eq!(outcome.status, 0, "{what}: {}", outcome.stderr);
                let stats = stats(&file);
                stats.assert_adds_up();
                let allocated = folded(&file, "alloc_objects");
                assert!(mode != "heap" || allocated.inclusive("heap_work") > 0, "{what}: {:#}", stats.0);
                assert!(mode != "heap" || stats.complete() > 0.98, "{what}: {:#}", stats.0);
            }
            let (status, words) = guest.end();
            assert_eq!((status, words.as_str()), (Some(0), "ok\n"), "{what}");
        }
    }
}

/// The memory of one recording's region is given back when the next begins, whatever its threads are doing.
#[test]
fn a_busy_program_stays_whole_in_many_recordings() {
    let rounds = if std::env::var_os("SELFWIND_LONG").is_some() { 300 } else { 30 };
    let program = Target::c("attach").with("lm", &["-lm"]).build();
    let attacher = Attacher::new();
    let guest = Guest::start(&program, &["heap", "1000000"]);
    let file = attacher.scratch.join("heap.data");
    let path = file.to_str().expect("UTF-8");
    for round in 0..rounds {
        let source = ["alloc:all", "cpu,alloc:64K", "alloc:16"][round % 3];
        let arguments = ["record", "-q", "-e", source, "-d", "50ms", "-o", path, "-p", &guest.pid()];
        let outcome = attacher.run(&arguments);
        assert_eq!(outcome.status, 0, "round {round}: {}", outcome.stderr);
        let stats = stats(&file);
        stats.assert_adds_up();
        assert!(folded(&file, "alloc_objects").inclusive("heap_work") > 0, "round {round}: {:#}", stats.0);
        assert_eq!(regions(&guest.pid()).0, 1, "round {round}");
    }
    kill(Pid::from_raw(guest.child.id() as i32), Signal::SIGUSR2).expect("our child");
    let (status, words) = guest.end();
    assert_eq!((status, words.as_str()), (Some(0), "ok\n"));
}

#[test]
fn programs_whose_allocations_cannot_be_redirected_are_refused() {
    let source = Target::c("attach").with("lm", &["-lm"]);
    for program in [source.clone().fixed().build(), source.musl().build()] {
        let attacher = Attacher::new();
        let guest = Guest::start(&program, &["heap", "3000"]);
        let file = attacher.scratch.join("heap.data");
        let path = file.to_str().expect("UTF-8");
        let outcome = attacher.run(&["record", "-e", "alloc", "-d", "1", "-o", path, "-p", &guest.pid()]);
        assert!(
            outcome.status != 0 && outcome.stderr.contains("cannot be redirected while it runs"),
            "{outcome:?}"
        );
        // The clock alone is no obstacle.
        let outcome = attacher.run(&["record", "-q", "-d", "500ms", "-o", path, "-p", &guest.pid()]);
        assert_eq!(outcome.status, 0, "{}", outcome.stderr);
        assert_eq!(guest.end().0, Some(0));
    }
}
