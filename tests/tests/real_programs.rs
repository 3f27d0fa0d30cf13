//! Programs people run: recorded with nearly all stacks whole and their functions named; and the programs that
//! other preloaded profilers break, unharmed.
//!
//! A program that is not installed is left out with a word: `scripts/test` installs them all.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::recording::{Recorder, Recording, record_unharmed};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::target::{Target, is_installed};

/// The path of a program, or a word that it is missing.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(program)).find(|p| p.exists());
    if found.is_none() {
        println!("{program} is not installed");
    }
    found
}

/// Records in `directory`, whole; asserts the share of whole stacks and that these functions are named.
fn record(program: &Path, arguments: &[&str], functions: &[&str]) -> Recording {
    let recording = record_unharmed(&Recorder::at(999), program, arguments);
    assert_whole(&recording, 0.95);
    let folded = recording.folded();
    for function in functions {
        assert!(folded.inclusive(function) > 0, "{function} is not in {:?}", hottest(&recording));
    }
    recording
}

fn assert_whole(recording: &Recording, share: f64) {
    let stats = recording.stats();
    assert!(stats.number("samples") >= 20, "{:#}", stats.0);
    let ends = &stats.0["detail"]["ends"];
    assert!(stats.complete() >= share, "whole {:.3}: {ends:#}\n{:?}", stats.complete(), hottest(recording));
}

fn hottest(recording: &Recording) -> Vec<(Vec<String>, u64)> {
    let mut stacks = recording.folded().stacks;
    stacks.sort_by_key(|(_, weight)| std::cmp::Reverse(*weight));
    stacks.truncate(20);
    stacks
}

const PYTHON_WORK: &str = "
import json, re, zlib, sys
data = [{'key%d' % i: list(range(i % 50))} for i in range(400)]
total = 0
for round in range(60):
    text = json.dumps(data)
    total += len(json.loads(text)) + len(zlib.compress(text.encode(), 6))
    total += len(re.findall(r'key(\\d+)\": \\[(\\d+, )*', text))
print(total)
sys.exit(7)
";

#[test]
fn python_through_a_shim_that_execs() {
    let Some(python) = real_python() else { return };
    let scratch = Scratch::new();
    let shim = scratch.join("python3");
    fs::write(&shim, format!("#!/bin/bash\nexec {} \"$@\"\n", python.display())).expect("ours");
    run(Command::new("chmod").arg("+x").arg(&shim));
    let recording = record(&shim, &["-c", PYTHON_WORK], &[]);
    assert_eq!(recording.outcome.status, 7);
    let folded = recording.folded();
    assert!(folded.named() >= 0.5, "named {:.2}: {:?}", folded.named(), hottest(&recording));
    let names = recording.stats().executables();
    assert!(names.iter().any(|(name, _)| name == "bash"), "{names:?}");
    assert!(names.iter().any(|(name, samples)| name.starts_with("python") && *samples > 0), "{names:?}");
}

/// The interpreter itself: version managers put shell scripts of the same name in front.
fn real_python() -> Option<PathBuf> {
    let python = find("python3")?;
    let outcome = run(Command::new(python).args(["-c", "import sys; print(sys.executable)"]));
    Some(PathBuf::from(outcome.stdout.trim()))
}

#[test]
fn python_with_threads_and_processes() {
    let Some(python) = real_python() else { return };
    let work = "
import threading, subprocess, multiprocessing, sys, zlib
def burn(n):
    return sum(len(zlib.compress(bytes(range(256)) * 200)) for _ in range(n))
if __name__ == '__main__':
    threads = [threading.Thread(target=burn, args=(60,)) for _ in range(4)]
    [t.start() for t in threads]; [t.join() for t in threads]
    with multiprocessing.get_context('fork').Pool(2) as pool:
        total = sum(pool.map(burn, [60] * 4))
    print(total, subprocess.run(['sh', '-c', 'exit 3']).returncode)
";
    record(&python, &["-c", work], &[]);
}

#[test]
fn gcc_with_all_its_children() {
    if !is_installed("gcc") {
        println!("gcc is not installed");
        return;
    }
    let scratch = Scratch::new();
    let mut source = fs::File::create(scratch.join("big.c")).expect("ours");
    for n in 0..1500 {
        writeln!(
            source,
            "int f{n}(int *p, int k) {{ int s = {n}; for (int i = 0; i < k; i++) {{ s += p[i] * {n} + i; \
             if (s & {n}) s ^= p[k - i - 1]; switch (s % 7) {{ case 0: s += 3; break; case 1: s *= 5; break; \
             default: s -= {n}; }} }} return s; }}"
        )
        .expect("ours");
    }
    writeln!(source, "int main(void) {{ int a[4] = {{1, 2, 3, 4}}; return f7(a, 4) & 1; }}").expect("ours");
    let (source, output) = (scratch.join("big.c").display().to_string(), scratch.join("big").display().to_string());
    let gcc = find("gcc").expect("installed");
    let recording = record(&gcc, &["-O2", &source, "-o", &output], &[]);
    let images = recording.stats().executables();
    for name in ["cc1", "as", "collect2"] {
        assert!(images.iter().any(|(image, _)| image.contains(name)), "{name} is not among {images:?}");
    }
    let compiler = images.iter().filter(|(name, _)| name == "cc1").map(|(_, n)| n).sum::<u64>();
    assert!(compiler > 50, "{images:?}");
}

#[test]
fn git() {
    let Some(git) = find("git") else { return };
    let repository = selfwind_tests::binary::workspace();
    let scratch = Scratch::new();
    let copy = scratch.join("copy");
    let at = ["-c", "safe.directory=*", "-C"];
    let init = format!("init -q {}", copy.display());
    assert_eq!(run(Command::new(&git).args(init.split(' '))).status, 0);
    // A repository of its own, the same on every machine: the workspace's files, many times over.
    for round in 0..25 {
        for room in ["tests", "unwind", "reader"] {
            let from = repository.join(room);
            run(Command::new("cp").arg("-r").arg(from).arg(copy.join(format!("{room}{round}"))));
        }
    }
    let path = copy.display().to_string();
    let arguments: Vec<&str> = at.iter().copied().chain([path.as_str(), "add", "-A"]).collect();
    let recording = Recorder::at(1999).record(&git, &arguments);
    assert_eq!(recording.outcome.status, 0, "{}", recording.outcome.stderr);
    recording.assert_adds_up();
    assert_whole(&recording, 0.95);
}

#[test]
fn sqlite3() {
    let Some(sqlite) = find("sqlite3") else { return };
    let work = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<400000) \
                SELECT sum(x*x % 97), count(DISTINCT x % 1000) FROM c; \
                CREATE TABLE t(a,b); INSERT INTO t SELECT value, value*7%1000 FROM generate_series(1,100000); \
                CREATE INDEX i ON t(b); SELECT count(*) FROM t a JOIN t b ON a.b=b.a;";
    record(&sqlite, &[":memory:", work], &["sqlite3_step"]);
}

#[test]
fn perl() {
    let Some(perl) = find("perl") else { return };
    let work = "my %h; for my $i (1..700000) { $h{$i % 1000} .= chr(65 + $i % 26) if $i =~ /[13579]$/; } \
                my $n = 0; $n += length for values %h; print \"$n\\n\"; exit 5";
    let recording = record(&perl, &["-e", work], &["Perl_runops_standard"]);
    assert_eq!(recording.outcome.status, 5);
}

#[test]
fn node() {
    let Some(node) = find("node") else { return };
    let work = "let s=0; for (let r=0;r<30;r++){ const a=[...Array(20000).keys()].map(x=>(x*7919)%20000); \
                a.sort((x,y)=>x-y); s+=JSON.stringify(a).length; } console.log(s); process.exit(4)";
    let recording = record_unharmed(&Recorder::at(999), &node, &["-e", work]);
    assert_eq!(recording.outcome.status, 4);
    // Code that node generates has no call frame information; everything else must be whole.
    let stats = recording.stats();
    assert!(stats.number("samples") >= 10, "{:#}", stats.0);
    println!("whole {:.3} {}", stats.complete(), stats.0["detail"]["ends"]);
    assert!(stats.complete() >= 0.5, "{:#}", stats.0["detail"]["ends"]);
}

/// A server that is killed with its owner.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn redis() {
    let (Some(redis), Some(benchmark)) = (find("redis-server"), find("redis-benchmark")) else { return };
    let scratch = Scratch::new();
    let socket = scratch.join("redis.sock").display().to_string();
    let file = scratch.join("redis.data");
    let arguments = ["--port", "0", "--unixsocket", &socket, "--save", "", "--dir", &scratch.path().display().to_string()];
    let mut command = Recorder::at(499).command(&file, &redis, &arguments);
    let mut server = Server(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("selfwind runs"));
    for _ in 0..2000 {
        if Path::new(&socket).exists() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let load = run(Command::new(benchmark).args(["-s", &socket, "-q", "-n", "60000", "-P", "4", "-t", "set,get,lpush,zadd"]));
    assert_eq!(load.status, 0, "{load:?}");
    let cli = find("redis-cli").expect("comes with the benchmark");
    run(Command::new(cli).args(["-s", &socket, "shutdown", "nosave"]));
    let status = server.0.wait().expect("our child");
    assert!(status.success(), "{status}");
    let stats = selfwind_tests::recording::stats(&file);
    stats.assert_adds_up();
    assert!(stats.number("samples") >= 50, "{:#}", stats.0);
    assert!(stats.complete() >= 0.95, "{:#}", stats.0["detail"]["ends"]);
}

#[test]
fn rust_with_inlined_functions() {
    let recording = record(&Target::rust("inlined").build(), &[], &[]);
    assert_eq!(recording.outcome.status, 51);
    let folded = recording.folded();
    for function in ["inlined::inlined_mix", "inlined::sorted_strings", "inlined::busy"] {
        assert!(folded.inclusive(function) > 0, "{function} is not in {:?}", hottest(&recording));
    }
    // The inlined function lies inside the one it was inlined into.
    let (mix, mixer) = ("inlined::inlined_mix", "<inlined::Mixer as inlined::Work>::work");
    assert!(folded.nested(mixer, mix) > 0, "{:?}", hottest(&recording));
    let report = selfwind_tests::recording::read(&["report"], &recording.file);
    assert!(report.contains("inlined_mix"), "{report}");
}

/// Alone and recorded, a program says the same and ends the same.
fn unharmed(program: &str, arguments: &[&str]) -> Option<Outcome> {
    let path = find(program)?;
    let alone = run(Command::new(&path).args(arguments));
    // At a high rate: what survives this survives.
    let recording = Recorder::at(4999).record(&path, arguments);
    assert_eq!(recording.outcome.status, alone.status, "{program} {arguments:?}: {}", recording.outcome.stderr);
    assert_eq!(without_addresses(&recording.outcome.stderr), without_addresses(&alone.stderr), "{program}");
    recording.assert_adds_up();
    Some(recording.outcome)
}

/// Process ids and addresses differ from run to run.
fn without_addresses(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_hexdigit() { '#' } else { c }).collect()
}

fn unharmed_to_the_letter(program: &str, arguments: &[&str]) {
    let Some(recorded) = unharmed(program, arguments) else { return };
    let alone = run(Command::new(find(program).expect("just run")).args(arguments));
    assert_eq!(recorded.stdout, alone.stdout, "{program} {arguments:?}");
}

#[test]
fn lsof_closes_every_descriptor() {
    unharmed("lsof", &["-p", "1"]);
    unharmed_to_the_letter("lsof", &["-v"]);
}

#[test]
fn man_runs_under_seccomp() {
    for page in [&["-P", "cat", "ls"][..], &["-P", "cat", "printf"], &["--version"]] {
        unharmed_to_the_letter("man", page);
    }
}

#[test]
fn gdb_sees_no_foreign_handler() {
    unharmed_to_the_letter("gdb", &["--version"]);
    let program = Target::c("exit_status").build().display().to_string();
    unharmed_to_the_letter("gdb", &["-nx", "-batch", "-ex", "print 6*7", &program]);
    unharmed_to_the_letter("gdbtui", &["--version"]);
}

#[test]
fn valgrind_execs_its_tool() {
    unharmed_to_the_letter("valgrind", &["--version"]);
    let program = Target::c("static_image").build();
    let Some(valgrind) = find("valgrind") else { return };
    let arguments = ["-q", "--error-exitcode=3", program.to_str().expect("UTF-8")];
    let recording = Recorder::at(999).record(&valgrind, &arguments);
    assert_eq!(recording.outcome.status, 15, "{}", recording.outcome.stderr);
    assert_eq!(recording.outcome.stdout, "static done\n");
}

#[test]
fn wrappers_that_exec() {
    for (program, arguments) in [
        ("c99", &["--version"][..]),
        ("c89", &["--version"]),
        ("zfgrep", &["x", "/dev/null"]),
        ("zgrep", &["--version"]),
        ("xzgrep", &["--version"]),
        ("ldd", &["/bin/ls"]),
        ("env", &["true"]),
        ("nice", &["sh", "-c", "exit 9"]),
        ("timeout", &["10", "sh", "-c", "exit 8"]),
        ("nohup", &["true"]),
        ("setsid", &["-w", "sh", "-c", "exit 6"]),
        ("xargs", &["--version"]),
        ("find", &["/etc/hostname", "-exec", "echo", "{}", ";"]),
        ("ps2ascii", &["--version"]),
        ("which", &["sh"]),
        ("bash", &["-c", "for i in 1 2 3; do (exit $i); echo $?; done; exec sh -c 'exit 11'"]),
        ("dash", &["-c", "echo one | cat | tr a-z A-Z; exit 12"]),
    ] {
        unharmed(program, arguments);
    }
}

#[test]
fn every_program_answers_as_without() {
    // A slice of /usr/bin by default; all of it with SELFWIND_ALL_PROGRAMS.
    let mut programs: Vec<PathBuf> =
        fs::read_dir("/usr/bin").expect("readable").filter_map(|e| Some(e.ok()?.path())).collect();
    programs.sort();
    let step = if std::env::var_os("SELFWIND_ALL_PROGRAMS").is_some() { 1 } else { 13 };
    let mut different = Vec::new();
    for program in programs.iter().step_by(step).filter(|p| p.is_file()) {
        let name = program.file_name().expect("a file").to_string_lossy().into_owned();
        if INTERACTIVE.contains(&name.as_str()) {
            continue;
        }
        let scratch = Scratch::new();
        let once = || run(Command::new("timeout").arg("20").arg(program).arg("--version").current_dir(scratch.path()));
        let (first, second) = (once(), once());
        if first != second || first.status == 124 {
            continue; // says something else each time: proves nothing
        }
        let recorded = run(Command::new("timeout")
            .arg("40")
            .arg(selfwind_tests::binary::selfwind())
            .args(["record", "-q", "-F", "4999", "-o"])
            .arg(scratch.join("x.data"))
            .arg("--")
            .arg(program)
            .arg("--version")
            .current_dir(scratch.path()));
        let refused = recorded.status == 125 && recorded.stderr.starts_with("selfwind: ");
        if recorded != first && !refused {
            different.push((name, first, recorded));
        }
    }
    assert!(different.is_empty(), "{different:#?}");
}

/// Programs that change the machine, wait for a terminal or answer by the time of day.
const INTERACTIVE: [&str; 12] =
    ["reset", "tset", "login", "su", "sg", "newgrp", "top", "uptime", "w", "who", "script", "ischroot"];
