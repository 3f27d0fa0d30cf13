//! Dumps everyday programs again and again; they must not notice.
//!
//! A thousand times each with SELFWIND_LONG; `--nocapture` shows how long it took.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use selfwind_tests::asked::Asked;
use selfwind_tests::binary::{agent, selfwind};
use selfwind_tests::dump_times::DumpTimes;
use selfwind_tests::outcome::{run, shell_status};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;
use serde_json::Value;

fn rounds() -> usize {
    if std::env::var_os("SELFWIND_LONG").is_some() { 1000 } else { 20 }
}

fn is_installed(program: &str) -> bool {
    let there = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if there.is_err() {
        skip(format_args!("{program} is not installed"));
    }
    there.is_ok()
}

/// Dumps all threads of `pid` many times: every thread must answer each time, and one of `functions` must occur.
fn ask(name: &str, pid: u32, functions: &[&str]) {
    let (mut times, mut latencies, mut threads) = (DumpTimes::default(), Vec::new(), 0);
    for _ in 0..rounds() {
        let pid = pid.to_string();
        let (outcome, dump) = times.time(|| {
            let outcome =
                run(Command::new(selfwind()).args(["dump", "--timeout", "30", "--json", "-p", &pid]));
            assert_eq!(outcome.status, 0, "{name}: {}", outcome.stderr);
            let dump: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
            (Duration::from_nanos(dump["elapsed_ns"].as_u64().expect("a time")), (outcome, dump))
        });
        let all = dump["threads"].as_array().expect("threads");
        threads = threads.max(all.len());
        for thread in all {
            // jemalloc creates its threads bypassing the agent, with all signals blocked: they are reported as silent.
            let silent = thread["silent"].as_str().unwrap_or("");
            if thread["name"] == "jemalloc_bg_thd" && silent.contains("blocks signal") {
                continue;
            }
            assert_eq!(silent, "", "{name}: {thread:#}");
            latencies.push(thread["latency_ns"].as_u64().expect("a time"));
        }
        let found = |function: &str| outcome.stdout.contains(&format!("\"{function}"));
        assert!(functions.iter().any(|function| found(function)), "{name}: none of {functions:?}: {dump:#}");
    }
    latencies.sort_unstable();
    let us = |part: usize| latencies[(latencies.len() * part / 100).min(latencies.len() - 1)] / 1000;
    println!("{name}, up to {threads} threads: {times}; a thread: p50 {} us, p99 {} us", us(50), us(99));
}

#[test]
fn python() {
    if !is_installed("python3") {
        return;
    }
    let script = "import sys, threading, time\n\
        over = threading.Event()\n\
        def work():\n    while not over.wait(0.01): sum(range(1000))\n\
        threads = [threading.Thread(target=work) for _ in range(4)]\n\
        for t in threads: t.start()\n\
        print('ready', flush=True)\n\
        sys.stdin.read()\n\
        over.set()\n\
        for t in threads: t.join()\n\
        print('ended')";
    let mut command = Command::new("python3");
    command.args(["-c", script]);
    let mut asked = Asked::start(command);
    ask("python3", asked.pid(), &["work (<string>:3)"]);
    assert_eq!(asked.end(), ("ended\n".into(), 0));
}

#[test]
fn node() {
    if !is_installed("node") {
        return;
    }
    let script = "process.stdin.on('end', () => { clearInterval(timer); console.log('ended'); });\n\
        process.stdin.resume();\n\
        const timer = setInterval(() => { let x = 0; for (let i = 0; i < 1e5; i++) x += i; }, 5);\n\
        console.log('ready');";
    let mut command = Command::new("node");
    command.args(["-e", script]);
    let mut asked = Asked::start(command);
    ask("node", asked.pid(), &["uv_run", "node::", "main", "v8::"]);
    assert_eq!(asked.end(), ("ended\n".into(), 0));
}

/// A server, killed when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn redis(socket: &Path, command: &[&str]) -> (i32, String) {
    let outcome = run(Command::new("redis-cli").arg("-s").arg(socket).args(command));
    (outcome.status, outcome.stdout)
}

#[test]
fn redis_server() {
    if !is_installed("redis-server") || !is_installed("redis-cli") {
        return;
    }
    let scratch = Scratch::new();
    // The path of a socket is short.
    let socket = std::env::temp_dir().join(format!("selfwind-asked-{}.sock", std::process::id()));
    let child = Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--dir"])
        .arg(scratch.path())
        .arg("--unixsocket")
        .arg(&socket)
        .env("LD_PRELOAD", agent())
        .env("SELFWIND_DIR", scratch.join(""))
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server runs");
    let mut server = Server(child);
    let begin = Instant::now();
    while redis(&socket, &["ping"]).1 != "PONG\n" {
        assert!(begin.elapsed() < Duration::from_secs(60), "redis-server does not answer");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(redis(&socket, &["set", "key", "value"]).1, "OK\n");
    ask("redis-server", server.0.id(), &["aeMain", "main"]);
    assert_eq!(redis(&socket, &["get", "key"]).1, "value\n");
    redis(&socket, &["shutdown", "nosave"]);
    assert_eq!(shell_status(server.0.wait().expect("our child")), 0);
    let _ = std::fs::remove_file(&socket);
}
