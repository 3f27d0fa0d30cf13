//! Dumps of a running process: every thread answers, threads that cannot are named, and the process never notices,
//! whichever signals it is sent.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use selfwind_tests::asked::Asked;
use selfwind_tests::binary::{agent, selfwind};
use selfwind_tests::dump_times::DumpTimes;
use selfwind_tests::outcome::{Outcome, run, shell_status};
use selfwind_tests::recording::{Recorder, folded, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::target::Target;
use serde_json::Value;

/// Number of dumps; a thousand with `SELFWIND_LONG`.
fn rounds() -> usize {
    if std::env::var_os("SELFWIND_LONG").is_some() { 1000 } else { 50 }
}

fn selfwind_says(arguments: &[&str]) -> Outcome {
    run(Command::new(selfwind()).args(arguments))
}

/// `selfwind dump --json`, which must succeed.
fn dump(pid: u32, more: &[&str]) -> Value {
    let pid = pid.to_string();
    let outcome = selfwind_says(&[&["dump", "--timeout", "20", "--json", "-p", &pid], more].concat());
    assert_eq!(outcome.status, 0, "{}", outcome.stderr);
    serde_json::from_str(&outcome.stdout).expect("JSON")
}

fn threads(dump: &Value) -> &[Value] {
    dump["threads"].as_array().expect("threads")
}

fn functions(thread: &Value) -> Vec<&str> {
    let frames = thread["frames"].as_array().expect("frames").iter();
    frames.map(|frame| frame["function"].as_str().expect("a name")).collect()
}

/// Sends SIGPROF with a value, as another program might.
fn queue(pid: u32, value: u64) {
    #[repr(C)]
    struct Info {
        head: [i32; 4],
        pid: i32,
        uid: u32,
        value: u64,
        rest: [u64; 12],
    }
    let info = Info { head: [libc::SIGPROF, 0, libc::SI_QUEUE, 0], pid: 1, uid: 0, value, rest: [0; 12] };
    // SAFETY: the kernel reads one `siginfo` of 128 bytes.
    let sent =
        unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, pid, libc::SIGPROF, &raw const info) };
    assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn every_thread_answers_repeatedly_and_continues() {
    let mut asked = Asked::program(&["threads", "100"]);
    let mut times = DumpTimes::default();
    for _ in 0..rounds() {
        let dump = times.time(|| {
            let dump = dump(asked.pid(), &[]);
            (Duration::from_nanos(dump["elapsed_ns"].as_u64().expect("a time")), dump)
        });
        let silent: Vec<_> = threads(&dump).iter().filter(|thread| !thread["silent"].is_null()).collect();
        assert!(silent.is_empty() && threads(&dump).len() == 101, "{silent:#?}");
        for thread in threads(&dump) {
            let name = thread["name"].as_str().expect("a name");
            let expected = match name {
                "asked" => "until_end_of_input".to_owned(),
                name => format!("asked_{name}"),
            };
            // A computing thread occasionally goes to sleep or wakes up.
            let found = functions(thread);
            assert!(found.contains(&expected.as_str()) || name == "spins", "{name}: {found:?}");
            assert_eq!(thread["end"], "root", "{thread:#}");
        }
    }
    println!("101 threads: {times}");
    assert_eq!(asked.end(), ("100 threads ended, 0 reads went wrong\n".into(), 0));
}

#[test]
fn one_thread_can_be_asked() {
    let mut asked = Asked::program(&["threads", "8"]);
    let all = dump(asked.pid(), &[]);
    let tid = threads(&all)[3]["tid"].as_u64().expect("a thread id");
    let one = dump(asked.pid(), &["-t", &tid.to_string()]);
    assert_eq!(threads(&one).len(), 1);
    assert_eq!(threads(&one)[0]["tid"], tid);
    let text = selfwind_says(&["dump", "-p", &asked.pid().to_string(), "-t", &tid.to_string()]).stdout;
    assert!(text.contains(&format!("thread {tid} ")) && text.contains("start_thread"), "{text}");
    let steps = selfwind_says(&["request", "-p", &asked.pid().to_string(), "-n", "25"]).stdout;
    assert!(steps.contains("25 of 25 requests answered"), "{steps}");
    let none = selfwind_says(&["dump", "-p", &asked.pid().to_string(), "-t", "1"]);
    assert!(none.status == 1 && none.stderr.contains("has no thread 1"), "{}", none.stderr);
    asked.end();
}

/// Whether the process, or every thread that could answer, had ended by then.
fn said_to_be_over(outcome: &Outcome) -> bool {
    let over = ["does not exist", "sampling has stopped", "about to end", "runs without the agent"];
    outcome.status != 0
        && over.iter().any(|text| outcome.stderr.contains(text) || outcome.stdout.contains(text))
}

#[test]
fn a_recording_continues_during_dumps() {
    let scratch = Scratch::new();
    let file = scratch.join("selfwind.data");
    let program = Target::c("spin").build();
    let mut recorder = Recorder::at(999)
        .command(&file, &program, &["1500"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("selfwind runs");
    let mut output = BufReader::new(recorder.stdout.take().expect("piped"));
    let mut said = String::new();
    output.read_line(&mut said).expect("a line");
    let children = format!("/proc/{0}/task/{0}/children", recorder.id());
    let target: u32 = std::fs::read_to_string(children)
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .expect("the recorder's child");
    let mut dumps = 0;
    for _ in 0..20 {
        let pid = target.to_string();
        let outcome = selfwind_says(&["dump", "--timeout", "20", "--json", "-p", &pid]);
        // On a slow machine the program may end first.
        if said_to_be_over(&outcome) {
            break;
        }
        let dump: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        let unexplained = threads(&dump).iter().find(|thread| {
            thread["silent"]
                .as_str()
                .is_some_and(|text| !text.contains("ended") && !text.contains("about to end"))
        });
        assert!(unexplained.is_none(), "{dump:#}");
        dumps += 1;
    }
    assert!(dumps > 0, "the program ended before it was asked");
    output.read_to_string(&mut said).expect("text");
    assert_eq!((said.as_str(), shell_status(recorder.wait().expect("our child"))), ("ready\nspun\n", 39));
    let stats = stats(&file);
    stats.assert_adds_up();
    assert_eq!(folded(&file).total(), stats.number("weight"));
}

#[test]
fn concurrent_dumps_all_succeed() {
    let mut asked = Asked::program(&["threads", "20"]);
    let pid = asked.pid();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..rounds() / 10 {
                    assert_eq!(dump(pid, &[])["answered"], 21);
                }
            });
        }
    });
    assert_eq!(asked.end(), ("20 threads ended, 0 reads went wrong\n".into(), 0));
}

#[test]
fn a_signal_without_a_request_is_passed_to_the_program() {
    for value in [0, 1, 0x8000_0000_0000_0010, u64::MAX] {
        let mut own = Asked::program(&["handler"]);
        dump(own.pid(), &[]);
        queue(own.pid(), value);
        assert_eq!(own.end(), ("1 queued, 0 others\n".into(), 0), "{value:#x}");
        let mut ignoring = Asked::program(&["ignore"]);
        queue(ignoring.pid(), value);
        assert_eq!(ignoring.end(), ("ended\n".into(), 0), "{value:#x}");
        let mut mortal = Asked::program(&["default"]);
        queue(mortal.pid(), value);
        assert_eq!(mortal.end(), (String::new(), 128 + libc::SIGPROF), "{value:#x}");
    }
}

/// Offsets of FORMAT.md.
const REGION_NONCE: u64 = 56;
const SLOTS: u64 = 6528;

fn word(file: &File, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, offset).expect("a region");
    u64::from_le_bytes(bytes)
}

#[test]
fn late_requests_never_reach_the_program() {
    let mut asked = Asked::program(&["default"]);
    let file = File::options().read(true).write(true).open(asked.region()).expect("our region");
    let nonce = word(&file, REGION_NONCE);
    let tag = (nonce >> 32 ^ nonce) << 32 | 1 << 63;
    // Slot 2 has had seven requests; the last one was withdrawn.
    file.write_at(&(tag | 7 << 4).to_le_bytes(), SLOTS + 2 * 16).expect("our region");
    for serial in 1..=7 {
        queue(asked.pid(), tag | serial << 4 | 2);
    }
    dump(asked.pid(), &[]);
    // The eighth was never made.
    queue(asked.pid(), tag | 20 << 4 | 2);
    assert_eq!(asked.end(), (String::new(), 128 + libc::SIGPROF));
}

/// Waits until no thread has a request pending or in its handler.
fn wait_until_all_are_served(asked: &Asked) {
    const SIGNAL: u64 = 1 << (libc::SIGPROF - 1);
    let busy = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let of = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or("0").trim();
        ["SigPnd:", "SigBlk:"]
            .iter()
            .any(|key| u64::from_str_radix(of(key), 16).is_ok_and(|signals| signals & SIGNAL != 0))
    };
    let (begin, mut quiet) = (Instant::now(), 0);
    while quiet < 2 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", asked.pid())).expect("it runs");
        quiet = if tasks.flatten().any(busy) { 0 } else { quiet + 1 };
        assert!(begin.elapsed() < Duration::from_secs(120), "a signal stays pending");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn hostile_slots_hurt_nobody() {
    let mut asked = Asked::program(&["threads", "12"]);
    let file = File::options().read(true).write(true).open(asked.region()).expect("our region");
    let mut state = 0x1234_5678_9abc_def1_u64;
    let end = Instant::now() + Duration::from_millis(500);
    while Instant::now() < end {
        for offset in (6400..6400 + 384).step_by(8) {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Except `closed`, which would stop all requests.
            if offset != 6408 {
                file.write_at(&(state ^ state >> 31).to_le_bytes(), offset).expect("our region");
            }
        }
        let pid = asked.pid().to_string();
        let outcome = selfwind_says(&["dump", "--timeout", "0.02", "-p", &pid]);
        assert!(outcome.status == 0 || outcome.status == 1, "{outcome:?}");
        // Only the slot itself distinguishes a late request from a signal of the program.
        wait_until_all_are_served(&asked);
    }
    assert_eq!(asked.end(), ("12 threads ended, 0 reads went wrong\n".into(), 0));
}

/// Waits until all threads are stopped, or none is.
fn wait_for_state(asked: &Asked, stopped: bool) {
    let tasks = format!("/proc/{}/task", asked.pid());
    let is_stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    let begin = Instant::now();
    while std::fs::read_dir(&tasks).expect("it runs").flatten().any(|task| is_stopped(task) != stopped) {
        assert!(begin.elapsed() < Duration::from_secs(60), "stopped or not: {stopped}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn threads_that_cannot_answer_are_named() {
    let silence = |asked: &Asked, name: &str, timeout: &str| {
        let pid = asked.pid().to_string();
        let outcome = selfwind_says(&["dump", "--timeout", timeout, "--json", "-p", &pid]);
        let dump: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        let thread = threads(&dump).iter().find(|thread| thread["name"] == name).expect("the thread").clone();
        thread["silent"].as_str().unwrap_or_else(|| panic!("{thread:#}")).to_owned()
    };
    let mut asked = Asked::program(&["blocks"]);
    assert!(silence(&asked, "blocks", "1").contains("blocks signal 27"));
    let pid = nix::unistd::Pid::from_raw(asked.pid() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).expect("our child");
    wait_for_state(&asked, true);
    assert!(silence(&asked, "asked", "1").contains("it is stopped"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).expect("our child");
    wait_for_state(&asked, false);
    // A thread with all signals blocked is in a handler or the like, and is asked once it has left it.
    for _ in 0..5 {
        assert_eq!(dump(asked.pid(), &[])["answered"], 2);
    }
    assert_eq!(asked.end(), ("ended\n".into(), 0));

    let mut waiting = Asked::program(&["vfork"]);
    let text = silence(&waiting, "asked", "0.1");
    assert!(text.contains("no answer within 100 ms: it is in uninterruptible sleep"), "{text}");
    // The late answer arrives when the child has ended, and does no harm.
    assert_eq!(waiting.end(), ("child 7\n".into(), 0));

    let mut sleeping = Asked::program(&["threads", "3"]);
    let gentle = dump(sleeping.pid(), &["--gentle"]);
    let silent =
        threads(&gentle).iter().find(|thread| thread["name"] == "sleeps").expect("it sleeps").clone();
    assert!(silent["silent"].as_str().is_some_and(|text| text.contains("EINTR")), "{silent:#}");
    sleeping.end();
}

/// The kernel drops the nonce of a signal when its user has too many queued.
#[test]
fn a_full_signal_queue_kills_nobody() {
    let mut command = Command::new(Target::c("asked").build());
    command.arg("default");
    // SAFETY: setrlimit is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            if libc::setrlimit(libc::RLIMIT_SIGPENDING, &raw const none) == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
    let mut asked = Asked::start(command);
    let outcome = selfwind_says(&["dump", "-p", &asked.pid().to_string()]);
    assert!(outcome.stdout.contains("RLIMIT_SIGPENDING"), "{outcome:?}");
    assert_eq!(asked.end(), ("ended\n".into(), 0));
}

#[test]
fn a_process_may_execute_while_it_is_asked() {
    // Whether it is asked between two of its execs depends on the scheduler: on a busy machine it may take several
    // runs.
    let answered = (0..5).map(|_| answers_between_execs()).find(|&answered| answered > 0);
    assert!(answered.is_some(), "never asked in time");
}

/// Dumps a program that executes itself continually; returns how often it answered.
fn answers_between_execs() -> usize {
    let program = Target::c("asked").build();
    let directory = Scratch::new();
    let mut child = Command::new(program)
        .args(["exec", &(rounds() * 4).to_string()])
        .env("LD_PRELOAD", agent())
        .env("SELFWIND_DIR", directory.join(""))
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let (pid, mut answered, mut refused) = (child.id().to_string(), 0, 0);
    while child.try_wait().expect("our child").is_none() {
        let outcome = selfwind_says(&["request", "--timeout", "0.02", "-p", &pid]);
        if outcome.status == 0 { answered += 1 } else { refused += 1 }
    }
    let mut said = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut said).expect("text");
    assert_eq!((said.as_str(), shell_status(child.wait().expect("our child"))), ("executed\n", 0));
    println!("{answered} times answered, {refused} times not");
    answered
}

#[test]
fn processes_that_cannot_be_asked_are_named() {
    let mut plain = Command::new("sleep").arg("100").spawn().expect("sleep runs");
    let outcome = selfwind_says(&["dump", "-p", &plain.id().to_string()]);
    assert!(outcome.status == 1 && outcome.stderr.contains("runs without the agent"), "{outcome:?}");
    plain.kill().expect("our child");
    let pid = plain.id().to_string();
    plain.wait().expect("our child");
    let outcome = selfwind_says(&["dump", "-p", &pid]);
    assert!(outcome.status == 1 && outcome.stderr.contains("does not exist"), "{outcome:?}");
}
