//! What `record` and its neighbours promise, seen from outside: exit statuses, files, and who survives whom.
//!
//! Nothing here depends on how long something takes: loads are measured in CPU time, and waiting is for events.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use selfwind_profile::profile_file::{Event, ProfileReader};
use serde_json::Value;

const SELFWIND: &str = env!("CARGO_BIN_EXE_selfwind");

/// A directory of one test: its outputs, its sessions, its programs.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("selfwind-record-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("run")).unwrap();
        fs::set_permissions(path.join("run"), fs::Permissions::from_mode(0o700)).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn selfwind(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(SELFWIND);
        command.args(arguments).current_dir(&self.0).env("XDG_RUNTIME_DIR", self.path("run"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SELFWIND_")) {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.selfwind(arguments).output().unwrap()
    }

    fn spin(&self) -> String {
        let program = self.path("spin");
        if !program.exists() {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/record/spin.c");
            let status = Command::new("cc")
                .args(["-O1", "-g", "-pthread", "-o"])
                .args([&program, &source])
                .status()
                .expect("a C compiler is needed: cc");
            assert!(status.success());
        }
        program.to_str().unwrap().to_owned()
    }

    fn stats(&self, file: &str) -> Value {
        let output = self.run(&["stats", "--json", file]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Waits until a profile has samples, that is: the recorder has written some out.
    fn wait_for_samples(&self, file: &str) {
        wait_until("samples in the profile", || {
            let output = self.run(&["stats", "--json", file]);
            let stats: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            stats["samples"].as_u64().unwrap_or(0) > 0
        });
    }

    fn sessions(&self) -> usize {
        fs::read_dir(self.path("run/selfwind")).map_or(0, Iterator::count)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Kills its process at the end, however the test ends.
struct Target(Child);

impl Target {
    fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id() as i32)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(120), "no {what} after two minutes");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The process id that a target wrote to a file in the directory.
fn pid_in(path: &Path) -> Pid {
    wait_until("process id", || fs::read_to_string(path).is_ok_and(|text| text.ends_with('\n')));
    Pid::from_raw(fs::read_to_string(path).unwrap().trim().parse().unwrap())
}

#[test]
fn the_exit_status_is_that_of_the_command() {
    let scratch = Scratch::new("status");
    fs::write(scratch.path("plain"), "no program").unwrap();
    let mut elf = vec![0u8; 120];
    elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
    (elf[18], elf[32], elf[54], elf[56], elf[64]) = (62, 64, 56, 1, 1);
    fs::write(scratch.path("static"), elf).unwrap();
    fs::set_permissions(scratch.path("static"), fs::Permissions::from_mode(0o755)).unwrap();
    for (command, status, message) in [
        // A sample or none, by chance.
        (&["true"][..], 0, " sample"),
        (&["false"], 1, " sample"),
        (&["sh", "-c", "exit 42"], 42, " sample"),
        (&["sh", "-c", "kill -9 $$"], 137, " sample"),
        (&["sh", "-c", "kill -TERM $$"], 143, " sample"),
        (&["no-such-command-anywhere"], 127, "command not found"),
        (&["./plain"], 126, "permission denied"),
        (&["-e", "perf", "./static"], 125, "statically linked"),
        (&["-o", "/nonexistent/x", "true"], 125, "/nonexistent/x"),
        (&["-e", "moonlight", "true"], 125, "auto, cpu, itimer"),
        (&["--no-such-flag", "true"], 125, "--no-such-flag"),
    ] {
        let output = scratch.run(&[&["record"], command].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{command:?}: {stderr}");
        assert!(stderr.contains(message), "{command:?}: {stderr}");
        assert!(output.stdout.is_empty());
        assert_eq!(scratch.sessions(), 0, "{command:?} left a session behind");
    }
}

#[test]
fn stdin_stdout_and_arguments_pass_through() {
    let scratch = Scratch::new("through");
    let mut child = scratch
        .selfwind(&["record", "--", "sh", "-c", "cat; echo \"$@\"", "sh", "-F", "--", "a b"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"in\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), "in\n-F -- a b\n");
}

#[test]
fn an_unwritable_output_is_found_before_the_program_starts() {
    let scratch = Scratch::new("unwritable");
    let output = scratch.run(&["record", "-o", "/nonexistent/x.svg", "--", "touch", "started"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(!scratch.path("started").exists());
}

#[test]
fn a_threaded_program_adds_up() {
    let scratch = Scratch::new("adds-up");
    let spin = scratch.spin();
    let output = scratch.run(&["record", "-F", "200", "-o", "a.data", "--", &spin, "0.4", "4"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{stderr}");
    assert!(stderr.contains("selfwind report a.data"), "{stderr}");
    let stats = scratch.stats("a.data");
    assert_eq!(stats["detail"]["accounting"]["adds_up"], true, "{stats}");
    assert_eq!(stats["detail"]["complete"], true);
    assert_eq!(stats["detail"]["exit_status"], 5);
    assert_eq!((&stats["threads"], &stats["processes"]), (&4.into(), &1.into()), "{stats}");
    assert_eq!(stats["detail"]["threads_sampled"], 4, "{stats}");
    // Four threads of 0.4 s are 320 periods of 5 ms; what a late signal stands for is in its weight.
    let weight = stats["weight"].as_u64().unwrap();
    assert!((280..=360).contains(&weight), "{stats}");
    let samples = stats["samples"].as_u64().unwrap();
    assert!(stats["truncated"].as_u64().unwrap() * 20 <= samples, "{stats}");
    let folded = text(&scratch.run(&["export", "-f", "folded", "a.data"]).stdout);
    let total: u64 =
        folded.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(total, weight, "the folded output adds up to the weight");
    assert!(folded.contains("burn"), "{folded}");
}

#[test]
fn events_come_in_an_order_that_can_be_read_in_one_go() {
    let scratch = Scratch::new("order");
    let script = format!("{spin} 0.1 2 & {spin} 0.1; wait", spin = scratch.spin());
    scratch.run(&["record", "-F", "250", "-o", "a.data", "--", "sh", "-c", &script]);
    let (mut living, mut spinning, mut sampled) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let (mut started, mut ended, mut times) = (None, None, Vec::new());
    for event in ProfileReader::open(scratch.path("a.data")).unwrap() {
        assert_eq!(ended, None, "nothing follows the end");
        match event.unwrap() {
            Event::Session(session) => assert_eq!(started.replace(session.started_ns), None),
            Event::Process(process) => {
                assert!(process.parent.is_none_or(|parent| parent < process.id), "{process:?}");
                assert!(living.insert(process.id), "a process is introduced once: {process:?}");
                if process.exe.ends_with("spin") {
                    spinning.insert(process.id);
                }
            }
            Event::Module(module) => assert!(living.contains(&module.process), "{module:?}"),
            Event::Sample(sample) => {
                assert!(living.contains(&sample.process), "{sample:?}");
                sampled.insert(sample.process);
                times.push(sample.ns);
            }
            Event::ProcessEnd(end) => assert!(living.remove(&end.process), "{end:?}"),
            Event::End(end) => ended = Some(end.ns),
            _ => assert!(started.is_some(), "the session comes first"),
        }
    }
    // The shell may take the time of a period as well.
    assert!(living.is_empty() && spinning.len() == 2, "{living:?} {spinning:?}");
    assert!(spinning.is_subset(&sampled), "{spinning:?} {sampled:?}");
    // The clocks of the processors may differ a little, and the agent starts before the file does.
    let slack = 1_000_000_000;
    let (first, last) = (started.unwrap() - slack, ended.unwrap() + slack);
    assert!(times.iter().all(|ns| (first..last).contains(ns)), "{first} {last} {times:?}");
}

#[test]
fn every_image_of_a_chain_of_execs_is_one_process() {
    let scratch = Scratch::new("exec");
    let spin = scratch.spin();
    let script = format!("exec sh -c 'exec {spin} 0.2'");
    let output = scratch.run(&["record", "-F", "200", "-o", "a.data", "--", "sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(5));
    let stats = scratch.stats("a.data");
    assert_eq!((&stats["processes"], &stats["detail"]["images"]), (&1.into(), &3.into()), "{stats}");
    assert_eq!(stats["threads"], 1, "{stats}");
    let last = &stats["detail"]["by_process"][2];
    assert!(last["exe"].as_str().unwrap().ends_with("/spin"), "{stats}");
    assert!(last["samples"].as_u64().unwrap() > 0, "{stats}");
    assert_eq!(stats["detail"]["accounting"]["adds_up"], true, "{stats}");
}

/// A recorder that has samples of a program whose process id is in `pid`.
fn recorder_of_spin(scratch: &Scratch) -> Target {
    let script = format!("echo $$ > pid; exec {}", scratch.spin());
    let mut recorder = scratch.selfwind(&["record", "-F", "500", "-o", "a.data", "--", "sh", "-c", &script]);
    let recorder = Target(recorder.stderr(Stdio::null()).spawn().unwrap());
    scratch.wait_for_samples("a.data");
    recorder
}

#[test]
fn a_killed_target_is_drained() {
    let scratch = Scratch::new("killed-target");
    let mut recorder = recorder_of_spin(&scratch);
    kill(pid_in(&scratch.path("pid")), Signal::SIGKILL).unwrap();
    assert_eq!(recorder.0.wait().unwrap().code(), Some(137));
    let stats = scratch.stats("a.data");
    let target = &stats["detail"]["by_process"][1];
    assert_eq!(target["fate"], "vanished", "{stats}");
    assert_eq!(stats["lost"], 0, "{stats}");
    assert_eq!(stats["detail"]["accounting"]["adds_up"], true, "{stats}");
    assert_eq!(scratch.sessions(), 0);
}

#[test]
fn a_killed_recorder_leaves_a_readable_file_and_an_unharmed_target() {
    let scratch = Scratch::new("killed-recorder");
    let mut recorder = recorder_of_spin(&scratch);
    recorder.0.kill().unwrap();
    assert_eq!(recorder.0.wait().unwrap().signal(), Some(9));
    let pid = pid_in(&scratch.path("pid"));
    let stats = scratch.stats("a.data");
    assert!(stats["samples"].as_u64().unwrap() > 0);
    assert_eq!(
        (&stats["detail"]["complete"], &stats["detail"]["exit_status"]),
        (&false.into(), &Value::Null)
    );
    assert!(text(&scratch.run(&["report", "a.data"]).stdout).contains("burn"));
    // It still runs, `list` knows it, and another recorder can take over.
    kill(pid, None).expect("the target lives");
    let list = text(&scratch.run(&["list", "--json"]).stdout);
    let entries: Vec<Value> = list.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let entry =
        entries.iter().find(|entry| entry["pid"] == pid.as_raw() && entry["state"] == "live").unwrap();
    assert_eq!(entry["kind"], "left");
    let output = scratch.run(&["record", "-p", &pid.to_string(), "-d", "0.2", "-o", "b.data"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(scratch.stats("b.data")["samples"].as_u64().unwrap() > 0);
    kill(pid, Signal::SIGKILL).unwrap();
    wait_until("end of the target", || kill(pid, None).is_err());
    scratch.run(&["list", "--reap"]);
    assert_eq!(scratch.sessions(), 0);
}

#[test]
fn a_duration_ends_the_command() {
    let scratch = Scratch::new("duration");
    let spin = scratch.spin();
    let output = scratch.run(&["record", "-F", "500", "-d", "0.5", "--", &spin]);
    assert_eq!(output.status.code(), Some(143), "{}", text(&output.stderr));
    assert!(scratch.stats("selfwind.data")["samples"].as_u64().unwrap() > 0);
}

#[test]
fn signals_sent_to_the_recorder_reach_the_command() {
    let scratch = Scratch::new("signals");
    let script = "trap 'exit 9' TERM; echo $$ > pid; while :; do sleep 0.05; done";
    let mut recorder = Target(
        scratch.selfwind(&["record", "--", "sh", "-c", script]).stderr(Stdio::null()).spawn().unwrap(),
    );
    pid_in(&scratch.path("pid"));
    // The recorder holds its signals since it writes the profile.
    wait_until("profile", || scratch.run(&["stats"]).status.success());
    kill(recorder.pid(), Signal::SIGTERM).unwrap();
    assert_eq!(recorder.0.wait().unwrap().code(), Some(9));
    assert_eq!(scratch.stats("selfwind.data")["detail"]["complete"], true);
}

#[test]
fn the_last_profile_is_kept_and_names_take_the_process_id() {
    let scratch = Scratch::new("names");
    for code in ["1", "2"] {
        let exit = format!("exit {code}");
        assert_eq!(scratch.run(&["record", "sh", "-c", &exit]).status.code(), code.parse().ok());
    }
    assert_eq!(scratch.stats("selfwind.data.old")["detail"]["exit_status"], 1);
    assert_eq!(scratch.stats("selfwind.data")["detail"]["exit_status"], 2);
    scratch.run(&["record", "no-such-command-anywhere"]);
    assert_eq!(scratch.stats("selfwind.data")["detail"]["exit_status"], 2);
    scratch.run(&["record", "-o", "x.%p", "--", "sh", "-c", "echo $$ > pid"]);
    let pid = pid_in(&scratch.path("pid"));
    assert!(scratch.path(&format!("x.{pid}")).exists());
}

#[test]
fn an_extension_asks_for_another_format() {
    let scratch = Scratch::new("extension");
    let spin = scratch.spin();
    let output = scratch.run(&["record", "-F", "200", "-o", "a.folded", "--", &spin, "0.2"]);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    assert!(fs::read_to_string(scratch.path("a.folded")).unwrap().contains("burn"));
    assert!(!scratch.path("a.folded.selfwind.data").exists());
}

#[test]
fn a_process_preloaded_by_hand_is_found_followed_and_taken_exactly_once() {
    let scratch = Scratch::new("by-hand");
    let agent = text(&scratch.run(&["agent-path"]).stdout);
    let target = Target(
        Command::new(scratch.spin())
            .env("LD_PRELOAD", agent.trim())
            .env("XDG_RUNTIME_DIR", scratch.path("run"))
            .env("SELFWIND_FREQ", "500")
            .spawn()
            .unwrap(),
    );
    let pid = target.pid().to_string();
    wait_until("region", || text(&scratch.run(&["list"]).stdout).contains("live"));
    // Two recorders at once: the second one is refused.
    let mut first = Target(
        scratch.selfwind(&["record", "-p", &pid, "-o", "a.data"]).stderr(Stdio::null()).spawn().unwrap(),
    );
    scratch.wait_for_samples("a.data");
    let second = scratch.run(&["record", "-p", &pid, "-o", "b.data"]);
    assert_eq!(second.status.code(), Some(125));
    assert!(text(&second.stderr).contains("stop that one first"), "{}", text(&second.stderr));
    kill(first.pid(), Signal::SIGINT).unwrap();
    assert_eq!(first.0.wait().unwrap().code(), Some(0));
    kill(target.pid(), None).expect("the target keeps running");
    // A live view, then the rest after its death: nothing twice, nothing lost.
    let mut tail =
        Target(scratch.selfwind(&["tail", "--json", "-p", &pid]).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(tail.0.stdout.take().unwrap()));
    let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(line["pid"], target.pid().as_raw());
    kill(tail.pid(), Signal::SIGINT).unwrap();
    let tailed = 1 + lines.count() as u64;
    assert_eq!(tail.0.wait().unwrap().code(), Some(0));
    drop(target);
    assert!(scratch.run(&["record", "-p", &pid, "-o", "c.data"]).status.success());
    let (a, c) = (scratch.stats("a.data"), scratch.stats("c.data"));
    assert_eq!(a["lost"], 0, "{a}");
    assert_eq!(c["lost"], 0, "{c}");
    let accounting = &c["detail"]["accounting"];
    assert_eq!(accounting["adds_up"], true, "{c}");
    // Unless the recorder was slower than the flight recorder's pool, which it is not at this rate.
    let before = a["samples"].as_u64().unwrap() + tailed;
    assert_eq!(accounting["earlier"].as_u64().unwrap(), before, "{a} {c}");
}

#[test]
fn a_process_without_the_agent_is_named() {
    let scratch = Scratch::new("no-agent");
    let target = Target(Command::new("sleep").arg("1000").spawn().unwrap());
    let output = scratch.run(&["tail", "-p", &target.pid().to_string()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("LD_PRELOAD=$(selfwind agent-path)"));
    let output = scratch.run(&["record", "-p", "999999999"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("does not exist"));
    assert!(!scratch.path("selfwind.data").exists());
    let output = scratch.run(&["tail", "-p", "999999999"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("does not exist"));
}
