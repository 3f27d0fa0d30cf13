//! The doctor reports what this machine permits: each fact with its consequence and a remedy. It fails only if nothing
//! can be recorded.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use selfwind_tests::binary::{agent, selfwind};
use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::target::Target;
use serde_json::Value;

fn doctor(prepare: impl FnOnce(&mut Command)) -> Outcome {
    let mut command = Command::new(selfwind());
    command.arg("doctor");
    prepare(&mut command);
    run(&mut command)
}

fn json(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {outcome:?}"))
}

fn finding<'a>(findings: &'a Value, name: &str) -> &'a Value {
    let mut all = findings.as_array().expect("findings").iter();
    all.find(|finding| finding["name"] == name).unwrap_or_else(|| panic!("{name}: {findings:#}"))
}

#[test]
fn every_topic_is_there_and_nothing_blocks() {
    let outcome = doctor(|command| _ = command.arg("--json"));
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""));
    let machine = &json(&outcome)["machine"];
    for name in [
        "session-directory",
        "agent-file",
        "shared-memory",
        "table-cache",
        "capabilities",
        "pending-signals",
        "perf-memory",
        "ptrace-scope",
        "seccomp",
        "kernel",
        "tick",
        "clock",
        "perf-events",
        "deferred-callchains",
        "hardware-events",
        "tracepoints",
        "kernel-symbols",
        "container",
        "debug-files",
        "debuginfod",
    ] {
        let finding = finding(machine, name);
        assert_ne!(finding["grade"], "blocked", "{finding:#}");
        assert_eq!(finding["remedy"].is_string(), finding["grade"] == "limited", "{finding:#}");
    }
    let agent = finding(machine, "agent-file");
    let file = std::fs::metadata(agent["value"].as_str().expect("a path")).expect("the file");
    let whose = if file.permissions().mode() & 0o004 == 0 { "of this user" } else { "of all users" };
    assert!(agent["consequence"].as_str().expect("a text").contains(whose), "{agent:#}");
    let text = doctor(|_| ()).stdout;
    assert!(text.contains("session-directory") && text.contains("-> "), "{text}");
}

#[test]
fn what_prevents_recording_is_a_failure() {
    let outcome = doctor(|command| _ = command.arg("--json").env("SELFWIND_ENABLE", "0"));
    let told = json(&outcome);
    assert_eq!((outcome.status, &told["grade"]), (1, &Value::from("blocked")));
    assert!(
        finding(&told["machine"], "preload")["remedy"].as_str().is_some_and(|text| text.contains("unset"))
    );
}

#[test]
fn limits_are_noticed() {
    let outcome = doctor(|command| {
        command.arg("--json").env("DEBUGINFOD_URLS", "https://debuginfod.example");
        // SAFETY: setrlimit is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                let none = libc::rlimit { rlim_cur: 3, rlim_max: 3 };
                libc::setrlimit(libc::RLIMIT_SIGPENDING, &raw const none);
                Ok(())
            });
        }
    });
    let told = json(&outcome);
    assert_eq!(outcome.status, 0);
    assert_eq!(finding(&told["machine"], "pending-signals")["grade"], "limited", "{told:#}");
    assert_eq!(finding(&told["machine"], "debuginfod")["value"], "https://debuginfod.example");
}

/// Restrictions are found by trying: here a seccomp filter refuses.
#[test]
fn refused_perf_events_are_noticed() {
    let outcome = doctor(|command| {
        command.arg("--json");
        // SAFETY: the closure only makes system calls.
        unsafe { command.pre_exec(refuse_perf_event_open) };
    });
    let told = json(&outcome);
    assert_eq!(outcome.status, 0);
    let perf = finding(&told["machine"], "perf-events");
    assert!(
        perf["grade"] == "limited" && perf["consequence"].as_str().is_some_and(|t| t.contains("CPU timers"))
    );
    assert_eq!(finding(&told["machine"], "seccomp")["grade"], "limited", "{told:#}");
}

/// Makes this thread's perf_event_open fail with EACCES (seccomp, BPF).
fn refuse_perf_event_open() -> std::io::Result<()> {
    const LOAD_NUMBER: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const ALLOW: u32 = 0x7fff_0000;
    const ERRNO: u32 = 0x0005_0000;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(LOAD_NUMBER, 0, 0, 0),
        step(JUMP_IF_EQUAL, 0, 1, libc::SYS_perf_event_open as u32),
        step(RETURN, 0, 0, ERRNO | libc::EACCES as u32),
        step(RETURN, 0, 0, ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which is live.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if installed { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn a_process_is_examined() {
    let directory = Scratch::new();
    let mut child = Command::new(Target::c("spin").build())
        .env("LD_PRELOAD", agent())
        .env("SELFWIND_DIR", directory.join(""))
        .env("SELFWIND_FREQ", "bad")
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let mut said = String::new();
    let output = child.stdout.as_mut().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut said).expect("a line");
    let outcome = doctor(|command| _ = command.args(["--json", "-p", &child.id().to_string()]));
    child.kill().expect("our child");
    child.wait().expect("our child");
    let process = &json(&outcome)["process"];
    assert_eq!(finding(process, "agent")["grade"], "good");
    assert!(finding(process, "source")["value"].as_str().is_some_and(|text| text.contains("99 Hz")));
    assert!(
        finding(process, "settings")["value"].as_str().is_some_and(|text| text.contains("SELFWIND_FREQ"))
    );
    assert_eq!(finding(process, "signal")["grade"], "good");

    let mut plain = Command::new("sleep").arg("100").spawn().expect("sleep runs");
    let outcome = doctor(|command| _ = command.args(["--json", "-p", &plain.id().to_string()]));
    plain.kill().expect("our child");
    plain.wait().expect("our child");
    let told = json(&outcome);
    let agent = finding(&told["process"], "agent");
    assert!(agent["remedy"].as_str().is_some_and(|text| text.contains("LD_PRELOAD")), "{agent:#}");
    let outcome = doctor(|command| _ = command.args(["-p", &plain.id().to_string()]));
    assert!(outcome.status == 1 && outcome.stderr.contains("does not exist"), "{outcome:?}");
}
