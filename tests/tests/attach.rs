//! `selfwind attach` at any moment does no damage: each program, whatever it was doing, is attached to within five
//! seconds, continues, and ends with the expected output. Also if the attaching process is killed meanwhile.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use selfwind_tests::attacher::{Attacher, Conversation, Guest, PATIENCE};
use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::recording::{folded, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;
use selfwind_tests::target::Target;

const MODES: [&str; 7] = ["heap", "loader", "fork", "spawn", "vectors", "signals", "waiting"];

fn is_long() -> bool {
    std::env::var_os("SELFWIND_LONG").is_some()
}

/// Pseudo-random numbers, the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn programs() -> Vec<(PathBuf, PathBuf)> {
    let plain = [Target::c("attach").with("lm", &["-lm"]), Target::c("attach").musl()];
    let plugins = [
        Target::c("plugin").shared("attach-plugin.so"),
        Target::c("plugin").musl().shared("attach-plugin-musl.so"),
    ];
    plain.into_iter().zip(plugins).map(|(program, plugin)| (program.build(), plugin.build())).collect()
}

#[test]
fn programs_are_attached_to_at_any_moment() {
    let (attacher, mut dice) = (Attacher::new(), Dice(1));
    let programs = programs();
    let milliseconds = "1200";
    let rounds = if is_long() { 200 } else { 20 };
    let (mut too_late, mut longest) = (0, Duration::ZERO);
    for round in 0..rounds {
        let mode = MODES[round % MODES.len()];
        let (program, plugin) = &programs[round / MODES.len() % programs.len()];
        let guest = Guest::start(program, &[mode, milliseconds, plugin.to_str().expect("UTF-8")]);
        let pid = guest.pid();
        std::thread::sleep(Duration::from_micros(dice.below(50_000)));
        let begin = Instant::now();
        let attached = attacher.run(&["attach", "-F", "997", "-p", &pid]);
        longest = longest.max(begin.elapsed());
        // On a busy machine the program may end before it is attached to.
        let mut is_late = |outcome: &Outcome| {
            let late = outcome.status == 1
                && (outcome.stderr.contains("does not exist") || outcome.stderr.contains("ended"));
            too_late += usize::from(late);
            late
        };
        let late = is_late(&attached);
        assert!(late || attached.status == 0, "{mode} {}: {}", program.display(), attached.stderr);
        if round % 3 == 1 {
            std::thread::sleep(Duration::from_micros(dice.below(200_000)));
            let detached = attacher.run(&["attach", "--detach", "-p", &pid]);
            assert!(is_late(&detached) || detached.status == 0, "{mode}: {}", detached.stderr);
        }
        if round % 3 == 2 {
            let again = attacher.run(&["attach", "-F", "499", "-p", &pid]);
            let known = again.status == 0 && again.stdout.contains("already");
            assert!(is_late(&again) || known, "{mode}: {again:?}");
        }
        assert_eq!(guest.end(), (Some(0), "ok\n".to_string()), "{mode} {} round {round}", program.display());
    }
    println!("{rounds} rounds, {too_late} too late, the longest attach took {longest:?}");
    assert!(too_late < rounds / 2 && longest < PATIENCE);
}

/// A stopped thread is neither running nor runnable, so a busy machine makes no difference.
#[test]
fn a_process_of_a_thousand_threads_continues_meanwhile() {
    let attacher = Attacher::new();
    for threads in ["1000", "2000"] {
        let mut guest = Conversation::start(&Target::c("pause").build(), &[threads, "idle"]);
        let pid = guest.child.id().to_string();
        let mut pauses = Vec::new();
        for _ in 0..if is_long() { 100 } else { 5 } {
            for arguments in [&["attach", "-p", &pid][..], &["attach", "--detach", "-p", &pid]] {
                guest.ask();
                let outcome = attacher.run(arguments);
                assert_eq!(outcome.status, 0, "{}", outcome.stderr);
                pauses.push(guest.ask());
            }
        }
        assert_eq!(guest.end(), "ok\n");
        println!("{threads} threads stood still for so many microseconds: {pauses:?}");
        // The kernel updates its times at ticks, so a time may be too small and the next one too large. One in a
        // hundred may be longer: a busy machine may preempt the attacher while a thread waits for it.
        let long = pauses.iter().filter(|pause| **pause > 10_000).count();
        assert!(long <= (pauses.len() / 100).max(1), "{threads}: {pauses:?}");
    }
}

/// Each library is loaded at the address of the previous one.
#[test]
fn libraries_that_come_and_go_keep_their_names() {
    const LIBRARIES: usize = 12;
    let attacher = Attacher::new();
    for musl in [false, true] {
        let of = |target: Target| if musl { target.musl() } else { target.with("dl", &["-ldl"]) };
        let names: Vec<String> = (0..LIBRARIES).map(|number| format!("churn_work_{number}")).collect();
        let libraries: Vec<PathBuf> = names
            .iter()
            .map(|name| {
                let flag = format!("-DWORK={name}");
                let kind = if musl { "musl" } else { "glibc" };
                of(Target::c("churned"))
                    .with(name, &[&flag])
                    .shared(&format!("churned-{kind}/{name}.so"))
                    .build()
            })
            .collect();
        let program = of(Target::c("library_churn")).build();
        let libraries: Vec<&str> = libraries.iter().map(|path| path.to_str().expect("UTF-8")).collect();
        let mut guest = Conversation::start(&program, &libraries);
        let file = attacher.scratch.join("churn.data");
        let path = file.to_str().expect("UTF-8");
        // In parallel with other tests a handler may be preempted, and ticks be skipped because of that.
        let mut record = attacher.command(&["record", "-F", "199", "--max-overhead", "100", "-o", path]);
        record.args(["-p", &guest.child.id().to_string()]);
        let mut record = record.stderr(Stdio::piped()).spawn().expect("selfwind runs");
        let mut said = BufReader::new(record.stderr.take().expect("piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("readable");
        assert!(line.contains("recording process"), "{line}");
        writeln!(guest.input).expect("it reads");
        let words = guest.end();
        assert!(words.ends_with("ok\n"), "{words}");
        assert!(record.wait().expect("our child").success());
        stats(&file).assert_adds_up();
        let folded = folded(&file);
        for name in &names {
            // 20 ticks each; on a busy machine some are late and stand for earlier ones, too.
            assert!(folded.inclusive(name) >= 3, "musl {musl} {name}: {folded:?}");
        }
        let of_all: u64 = names.iter().map(|name| folded.inclusive(name)).sum();
        assert!(of_all >= 18 * LIBRARIES as u64, "musl {musl}: {folded:?}");
    }
}

#[test]
fn stopped_waits_resume_before_the_first_tick() {
    let attacher = Attacher::new();
    let guest = Guest::start(&Target::c("attached_wait").with("pthread", &["-pthread"]).build(), &[]);
    // A period of 100 us.
    let attached = attacher.run(&["attach", "-F", "9973", "-p", &guest.pid()]);
    assert_eq!(attached.status, 0, "{}", attached.stderr);
    let (status, words) = guest.end();
    assert_eq!(status, Some(0));
    let first_expiries = words.split_whitespace().filter_map(|word| word.parse().ok());
    let late = first_expiries.filter(|microseconds: &u64| *microseconds > 500).count();
    assert!(late >= 4, "{words}");
}

/// Each gets a stack of its own before it is sampled, whatever becomes of the attaching process.
#[test]
fn threads_that_share_a_signal_stack_continue() {
    let (attacher, mut dice) = (Attacher::new(), Dice(3));
    let file = attacher.scratch.join("shared.data");
    for target in [Target::c("shared_signal_stack"), Target::c("shared_signal_stack").musl()] {
        let program = target.build();
        for event in ["cpu", "wall"] {
            let guest = Guest::start(&program, &["busy"]);
            let path = file.to_str().expect("UTF-8");
            let pid = guest.pid();
            let record = ["record", "-F", "997", "-e", event, "-d", "0.5", "-o", path, "-p", &pid];
            let recorded = attacher.run(&record);
            assert_eq!(recorded.status, 0, "{}", recorded.stderr);
            assert_eq!(guest.end(), (Some(0), "ok\n".to_string()), "{event}");
            assert!(folded(&file).inclusive("thread_work") > 50, "{event}: {:?}", folded(&file));
        }
        for round in 0..if is_long() { 200 } else { 10 } {
            let guest = Guest::start(&program, &["busy"]);
            let mut attach = attacher.command(&["attach", "-p", &guest.pid()]);
            let mut attach =
                attach.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("selfwind runs");
            std::thread::sleep(Duration::from_micros(dice.below(40_000)));
            attach.kill().expect("our child");
            attach.wait().expect("our child");
            assert_eq!(guest.end(), (Some(0), "ok\n".to_string()), "round {round}");
        }
    }
}

#[test]
fn a_killed_attacher_leaves_the_program_whole() {
    let (attacher, mut dice) = (Attacher::new(), Dice(2));
    let (program, plugin) = programs().swap_remove(0);
    for round in 0..if is_long() { 200 } else { 14 } {
        // All but the waits: `epoll_wait` ends early if the kill happens between a thread's stop and its restart.
        let mode = MODES[round % (MODES.len() - 1)];
        let guest = Guest::start(&program, &[mode, "400", plugin.to_str().expect("UTF-8")]);
        let mut attach = attacher.command(&["attach", "-p", &guest.pid()]);
        let mut attach = attach.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("selfwind runs");
        std::thread::sleep(Duration::from_micros(dice.below(12_000)));
        attach.kill().expect("our child");
        attach.wait().expect("our child");
        assert_eq!(guest.end(), (Some(0), "ok\n".to_string()), "{mode} round {round}");
    }
}

#[test]
fn a_recording_of_a_process_without_the_agent() {
    let attacher = Attacher::new();
    let fixed = Target::c("attach").with("lm", &["-lm"]).fixed();
    for (program, mode, function) in [
        (Target::c("attach").with("lm", &["-lm"]).build(), "heap", "heap_work"),
        (Target::c("attach").musl().build(), "vectors", "vector_sum"),
        (fixed.build(), "heap", "heap_work"),
    ] {
        let guest = Guest::start(&program, &[mode, "9000"]);
        for part in 0..2 {
            let file = attacher.scratch.join("x.data");
            let path = file.to_str().expect("UTF-8");
            // On a busy machine it may hardly run in half a second.
            let found = (0..4).any(|_| {
                let arguments = ["record", "-q", "-F", "499", "-d", "0.5", "-o", path, "-p", &guest.pid()];
                let outcome = attacher.run(&arguments);
                assert_eq!(outcome.status, 0, "{}", outcome.stderr);
                stats(&file).assert_adds_up();
                folded(&file).inclusive(function) > 10
            });
            assert!(found, "{} {mode} part {part}: {:?}", program.display(), folded(&file));
        }
        let idle = attacher.run(&["attach", "--detach", "-p", &guest.pid()]);
        assert!(idle.status == 1 && idle.stderr.contains("not attached"), "{idle:?}");
        assert_eq!(guest.end(), (Some(0), "ok\n".to_string()), "{mode}");
    }
}

#[test]
fn threads_and_libraries_after_the_attach_are_recorded() {
    let attacher = Attacher::new();
    for (target, plugin) in [
        (Target::c("attach_later").with("dl", &["-ldl"]), Target::c("plugin").shared("attach-plugin.so")),
        (Target::c("attach_later").musl(), Target::c("plugin").musl().shared("attach-plugin-musl.so")),
    ] {
        let (program, plugin) = (target.build(), plugin.build());
        for (mode, function) in
            [("thread", "later_work"), ("clone", "later_work"), ("library", "plugin_work")]
        {
            let guest = Guest::start(&program, &[mode, plugin.to_str().expect("UTF-8")]);
            let file = attacher.scratch.join("later.data");
            let path = file.to_str().expect("UTF-8");
            // Wait for the end, however long a busy machine takes.
            let mut record = attacher.command(&["record", "-q", "-F", "499", "-o", path, "-p", &guest.pid()]);
            let outcome = run(&mut record);
            assert_eq!(outcome.status, 0, "{}", outcome.stderr);
            assert_eq!(guest.end(), (Some(0), "ok\n".to_string()), "{mode} {}", program.display());
            stats(&file).assert_adds_up();
            let folded = folded(&file);
            assert!(folded.inclusive(function) > 0, "{} {mode}: {folded:?}", program.display());
        }
    }
}

#[test]
fn a_process_keeps_its_sampling_rate() {
    let attacher = Attacher::new();
    let guest = Guest::start(&Target::c("attach").with("lm", &["-lm"]).build(), &["heap", "6000"]);
    let file = attacher.scratch.join("rate.data");
    let path = file.to_str().expect("UTF-8");
    for (attached, said) in [("997", true), ("499", true), ("199", false)] {
        let outcome = attacher.run(&["attach", "-F", attached, "-p", &guest.pid()]);
        assert_eq!(outcome.status, 0, "{}", outcome.stderr);
        let outcome = attacher.run(&["record", "-d", "0.3", "-o", path, "-p", &guest.pid()]);
        assert_eq!(outcome.status, 0, "{}", outcome.stderr);
        let stats = stats(&file);
        assert_eq!(stats.detail(&["frequency"]).to_string(), attached);
        assert_eq!(outcome.stderr.contains("is already being sampled"), said, "{}", outcome.stderr);
        stats.assert_adds_up();
    }
    assert_eq!(guest.end(), (Some(0), "ok\n".to_string()));
}

#[test]
fn refusals_name_cause_and_remedy() {
    let attacher = Attacher::new();
    let refused = |pid: &str, part: &str| {
        let outcome = attacher.run(&["attach", "-p", pid]);
        assert_eq!(outcome.status, 1, "{outcome:?}");
        assert!(outcome.stderr.starts_with("selfwind: ") && outcome.stderr.contains(part), "{outcome:?}");
    };
    refused("4194303", "does not exist");
    let sleeper = |command: &mut Command| command.stdin(Stdio::null()).spawn().expect("it runs");
    let mut stopped = sleeper(Command::new("sleep").arg("100"));
    let pid = Pid::from_raw(stopped.id() as i32);
    kill(pid, Signal::SIGSTOP).expect("our child");
    std::thread::sleep(Duration::from_millis(50));
    refused(&pid.to_string(), "kill -CONT");
    kill(pid, Signal::SIGCONT).expect("our child");
    let detach = attacher.run(&["attach", "--detach", "-p", &pid.to_string()]);
    assert!(detach.status == 1 && detach.stderr.contains("not attached"), "{detach:?}");
    stopped.kill().expect("our child");
    stopped.wait().expect("our child");
    refused(&pid.to_string(), "does not exist");

    let mut preloaded = sleeper(
        Command::new("sleep")
            .arg("100")
            .env("LD_PRELOAD", selfwind_tests::binary::agent())
            .env("XDG_RUNTIME_DIR", attacher.scratch.path()),
    );
    std::thread::sleep(Duration::from_millis(300));
    refused(&preloaded.id().to_string(), "started with the agent");
    preloaded.kill().expect("our child");
    preloaded.wait().expect("our child");

    if nix::unistd::geteuid().is_root() {
        // A process of a user who is neither root nor the attacher.
        let mut other = sleeper(Command::new("sleep").arg("100"));
        let reachable = Scratch::for_all_users();
        let mut command = Command::new(reachable.copy(selfwind()));
        command.args(["attach", "-p", &other.id().to_string()]);
        let outcome = run(command.uid(65534).env("XDG_RUNTIME_DIR", "/nonexistent"));
        assert!(outcome.status == 1 && outcome.stderr.contains("run it as root"), "{outcome:?}");
        other.kill().expect("our child");
        other.wait().expect("our child");
    } else {
        skip("attaching to other users' processes and to other namespaces takes root");
    }
}
