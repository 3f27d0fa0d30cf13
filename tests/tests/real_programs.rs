//! Everyday programs: they end as they do alone, their stacks reach the root, their functions have names, and all their
//! children are in the profile. A test whose program is not installed is skipped; `scripts/test` installs all.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use selfwind_tests::attacher::{Attacher, Guest};
use selfwind_tests::binary::{selfwind, target_dir, workspace};
use selfwind_tests::outcome::run;
use selfwind_tests::recording::{Recorder, Recording, folded, record_unharmed, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::{leave, skip};
use selfwind_tests::stats::Stats;
use selfwind_tests::target::is_installed;

/// Where PATH has `name`.
fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").expect("PATH is set");
    let mut found = std::env::split_paths(&path).map(|directory| directory.join(name));
    found.find(|file| file.exists()).unwrap_or_else(|| leave(format_args!("{name} is not installed")))
}

/// Asserts that at least 99 % of the stacks, or all but one, reach a root, and that at least `named` of the weight has
/// a named leaf.
fn assert_whole(recording: &Recording, named: f64) {
    let (stats, folded) = (recording.stats(), recording.folded());
    assert_rooted(&stats, 0.01);
    assert!(folded.named() >= named, "named {:.3}", folded.named());
}

/// Asserts that at most a share `missing` of the stacks, or one, reaches no root. The number of stacks depends on the
/// machine: a fast one finishes early, and a coarse clock merges several ticks.
fn assert_rooted(stats: &Stats, missing: f64) {
    let samples = stats.number("samples");
    assert!(samples >= 5, "too few samples: {:#}", stats.0);
    let rootless = samples - stats.rooted();
    assert!(
        rootless <= ((samples as f64 * missing) as u64).max(1),
        "{rootless} of {samples}: {:#}",
        stats.0["detail"]["ends"]
    );
}

fn assert_functions(recording: &Recording, functions: &[&str]) {
    let folded = recording.folded();
    for function in functions {
        assert!(folded.inclusive(function) > 0, "{function} is not in the profile: {folded:?}");
    }
}

const PYTHON: &str = "
import json, re, time, zlib
end = time.process_time() + 1
data = {str(i): [i] * 50 for i in range(500)}
while time.process_time() < end:
    text = json.dumps(data)
    zlib.compress(text.encode())
    re.findall(r'[0-9]+', text[:50000])
raise SystemExit(7)
";

#[test]
fn python_behind_a_shell_that_execs() {
    let scratch = Scratch::new();
    let shim = scratch.join("python3");
    let real = run(Command::new("python3").args(["-c", "import sys; print(sys.executable)"])).stdout;
    fs::write(&shim, format!("#!/bin/bash\nexec {} \"$@\"\n", real.trim())).unwrap();
    run(Command::new("chmod").arg("+x").arg(&shim));
    let recording = record_unharmed(&Recorder::at(199), &shim, &["-c", PYTHON]);
    assert_eq!(recording.outcome.status, 7);
    assert_whole(&recording, 0.6);
    assert_functions(&recording, &["<module> (<string>:1)_[py]"]);
    let names: Vec<String> = recording.stats().executables().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names[0], "bash");
    assert!(names.last().unwrap().starts_with("python3"), "{names:?}");
}

#[test]
fn gcc_and_all_its_children() {
    let scratch = Scratch::new();
    let source = scratch.join("big.c");
    let mut text = String::from("#include <string.h>\n");
    for n in 0..400 {
        text += &format!(
            "int f{n}(int a, const char *s) {{ int r = 0; for (int i = 0; i < a; i++) {{ r += s[i % 7] * {n}; \
             if (r % 3) r ^= i; else r += strlen(s); switch (r & 7) {{ case 1: r *= 3; break; case 5: r <<= 1; \
             break; default: r += 1; }} }} return r; }}\n"
        );
    }
    text += "int main(void) { return 0; }\n";
    fs::write(&source, text).unwrap();
    let output = scratch.join("big");
    let arguments = ["-O2", "-o", output.to_str().unwrap(), source.to_str().unwrap()];
    let recording = record_unharmed(&Recorder::at(199), &program("gcc"), &arguments);
    assert!(run(&mut Command::new(&output)).status == 0);
    assert_whole(&recording, 0.0); // Debian strips cc1.
    let names: Vec<String> = recording.stats().executables().into_iter().map(|(name, _)| name).collect();
    for child in ["cc1", "as", "collect2", "ld"] {
        assert!(
            names.iter().any(|name| name.ends_with(child) || name.contains(&format!("{child}."))),
            "{names:?}"
        );
    }
}

#[test]
fn git() {
    let scratch = Scratch::new();
    let repository = scratch.join("r");
    let script = format!(
        "set -e; git init -q {0}; cd {0}; seq 500000 > a; git add a; \
         git -c user.name=t -c user.email=t@t commit -qm a; seq 200000 700000 > a; git diff --stat; git gc -q",
        repository.display()
    );
    let recording = Recorder::at(499).record(&program("bash"), &["-c", &script]);
    assert_eq!(recording.outcome.status, 0, "{:?}", recording.outcome);
    assert_whole(&recording, 0.0);
    assert!(recording.stats().executables().iter().filter(|(name, _)| name == "git").count() >= 4);
}

#[test]
fn sqlite3() {
    let query = "with recursive c(x) as (select 1 union all select x + 1 from c where x < 4000000) select sum(x % 7) from c";
    let recording = record_unharmed(&Recorder::at(499), &program("sqlite3"), &[":memory:", query]);
    assert_whole(&recording, 0.0);
    assert_functions(&recording, &["sqlite3_step"]);
}

#[test]
fn perl() {
    let script = "while ((times)[0] < 0.6) { my %h; $h{$_ % 1000} .= $_ for 1 .. 20000; my $s = join ',', sort keys %h; $s =~ s/\\d+/x/g }";
    let recording = record_unharmed(&Recorder::at(499), &program("perl"), &["-e", script]);
    assert_whole(&recording, 0.5);
    assert_functions(&recording, &["Perl_runops_standard"]);
}

#[test]
fn node_with_its_generated_code() {
    let script = "function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2) } \
                  const zlib = require('zlib'); let x = 0; \
                  while (process.cpuUsage().user < 800000) { x = fib(27); zlib.gzipSync(Buffer.alloc(200000, x & 255)) } console.log(x)";
    let recording = record_unharmed(&Recorder::at(499), &program("node"), &["-e", script]);
    assert_whole(&recording, 0.0);
    assert_functions(&recording, &["_start", "node::Start"]);
}

/// Builds a program of Go's among the targets.
fn build_go(sources: &[&str], cgo: &str, binary: &Path) {
    let mut go = Command::new(program("go"));
    let sources = sources.iter().map(|source| workspace().join("tests/targets").join(source));
    go.args(["build", "-o"]).arg(binary).args(sources);
    go.env("GO111MODULE", "off").env("CGO_ENABLED", cgo).env("GOCACHE", target_dir().join("go-cache"));
    let built = run(&mut go);
    assert_eq!(built.status, 0, "{built:?}");
}

/// Go's runtime aborts if a signal arrives on a stack that it does not expect.
#[test]
fn go_that_links_itself() {
    if !is_installed("go") {
        return skip("go is not installed (Debian: golang-go)");
    }
    let scratch = Scratch::new();
    let binary = scratch.join("go_links_itself");
    build_go(&["go_links_itself.go"], "1", &binary);
    for source in ["auto", "perf", "cpu", "itimer"] {
        let recording = Recorder::at(9973).event(source).record(&binary, &[""; 0]);
        assert_eq!(recording.outcome.status, 0, "{source}: {:?}", recording.outcome);
        assert_eq!(recording.outcome.stdout, "ok\n", "{source}: {:?}", recording.outcome);
        assert_functions(&recording, &["main.burn"]);
    }
}

/// Its unwind information is only in `.debug_frame`, which is not loaded: only a compiled table has it. Without it,
/// frame pointers lead to the root too.
#[test]
fn go_with_its_own_stacks_and_signals() {
    if !is_installed("go") {
        return skip("go is not installed (Debian: golang-go)");
    }
    let scratch = Scratch::new();
    let (binary, tables) = (scratch.join("go_routines"), scratch.join("tables"));
    build_go(&["go_routines.go"], "1", &binary);
    for (source, is_known) in [("cpu", false), ("cpu", true), ("itimer", true), ("perf", true)] {
        let recorder = Recorder::at(499).event(source);
        let recorder = if is_known {
            let built =
                run(Command::new(selfwind()).args(["tables", "build", "-o"]).args([&tables, &binary]));
            assert_eq!(built.status, 0, "{built:?}");
            recorder.env("SELFWIND_TABLES", &tables)
        } else {
            recorder.env("SELFWIND_TABLES", "0")
        };
        let recording = record_unharmed(&recorder, &binary, &[""; 0]);
        assert_eq!(recording.outcome.status, 43);
        assert_functions(&recording, &["main.leaf", "main.recovered", "runtime.gopanic"]);
        if is_known {
            // By frame pointers, the caller of a function without a frame of its own is missed.
            assert_functions(&recording, &["main.work"]);
        }
        let (stats, folded) = (recording.stats(), recording.folded());
        let (leaf, whole) = (folded.inclusive("main.leaf"), folded.nested("runtime.goexit", "main.leaf"));
        assert!(
            10 * whole >= 9 * leaf,
            "{source}: {whole} of {leaf} reach the root: {:#}",
            stats.0["detail"]["ends"]
        );
        assert!(stats.executables().iter().any(|(name, _)| name == "echo"), "{:#}", stats.0);
    }
}

/// Attached to, without a table: by frame pointers, up to the functions that every goroutine and runtime thread begins
/// with.
#[test]
fn go_that_runs_already() {
    if !is_installed("go") {
        return skip("go is not installed (Debian: golang-go)");
    }
    let attacher = Attacher::new();
    for cgo in ["0", "1"] {
        let binary = attacher.scratch.join(&format!("go_runs_{cgo}"));
        let sources = ["go_runs.go", "go_runs_c.go"];
        build_go(if cgo == "0" { &sources[..1] } else { &sources }, cgo, &binary);
        let guest = Guest::start(&binary, &["3000"]);
        let file = attacher.scratch.join("go.data");
        let path = file.to_str().expect("UTF-8");
        let outcome = attacher.run(&["record", "-q", "-F", "199", "-d", "3", "-o", path, "-p", &guest.pid()]);
        assert_eq!(outcome.status, 0, "{}", outcome.stderr);
        let (stats, folded) = (stats(&file), folded(&file));
        stats.assert_adds_up();
        let (leaf, whole) = (folded.inclusive("main.leaf"), folded.nested("runtime.goexit", "main.leaf"));
        assert!(leaf > 5 && 100 * whole >= 98 * leaf, "cgo {cgo}: {whole} of {leaf}: {folded:?}");
        assert!(stats.complete() > 0.95, "cgo {cgo}: {:#} {folded:?}", stats.0["detail"]["ends"]);
        let _ = kill(Pid::from_raw(guest.child.id() as i32), Signal::SIGKILL);
        let _ = guest.end();
    }
}

#[test]
fn a_rust_program_with_inlined_frames() {
    let scratch = Scratch::new();
    let source = workspace().join("tests/targets/inlined.rs");
    let output = scratch.join("inlined");
    let built =
        run(Command::new("rustc").args(["-O", "-g", "--edition", "2024", "-o"]).arg(&output).arg(source));
    assert_eq!(built.status, 0, "{built:?}");
    let recording = record_unharmed(&Recorder::at(499), &output, &[""; 0]);
    assert_whole(&recording, 0.95);
    let folded = recording.folded();
    let all = folded.total();
    for (function, least) in
        [("inlined::busy", 0.9), ("inlined::inlined_mix", 0.05), ("inlined::inlined_rotate", 0.02)]
    {
        let share = folded.inclusive(function) as f64 / all as f64;
        assert!(share > least, "{function} {share:.2}: {folded:?}");
    }
}

#[test]
fn redis_under_load() {
    let scratch = Scratch::new();
    let file = scratch.join("redis.data");
    let socket = scratch.join("socket");
    let arguments = ["--port", "0", "--save", "", "--unixsocket", socket.to_str().unwrap()];
    let mut command = Recorder::at(499).command(&file, &program("redis-server"), &arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).current_dir(scratch.path());
    let mut server = command.spawn().expect("selfwind runs");
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("eady to accept connections")));
    let rest = std::thread::spawn(move || lines.count());
    let clients = |what: &[&str]| {
        let mut client = Command::new(program("redis-benchmark"));
        run(client.arg("-s").arg(&socket).args(["-q", "-n", "40000", "-t"]).args(what))
    };
    let load = clients(&["set,get,lpush"]);
    assert_eq!(load.status, 0, "{load:?}");
    let end = run(Command::new(program("redis-cli")).arg("-s").arg(&socket).args(["shutdown", "nosave"]));
    assert_eq!(end.status, 0, "{end:?}");
    assert!(server.wait().unwrap().success());
    rest.join().unwrap();
    let stats = selfwind_tests::recording::stats(&file);
    assert_rooted(&stats, 0.05);
    assert!(stats.number("threads") >= 4, "redis has background threads: {:#}", stats.0);
}

/// Programs that run for seconds at nearly 1 kHz: at most one stack in a thousand may miss its root.
#[test]
fn a_thousand_stacks_of_each_are_whole() {
    if std::env::var_os("SELFWIND_LONG").is_none() {
        return println!("in the long form only; the other tests are the short one");
    }
    let scratch = Scratch::new();
    let here = scratch.path().to_str().expect("UTF-8");
    let functions: String = (0..900)
        .map(|n| {
            format!(
                "int f{n}(int a, const char *s) {{ int r = {n}; while (a--) r ^= s[r & 7] * a; return r; }}\n"
            )
        })
        .collect();
    fs::write(scratch.join("big.c"), functions).unwrap();
    let unwind = workspace().join("unwind/src/lib.rs");
    let programs = [
        (
            "python3",
            "exec python3 -c 'import json, re\nfor i in range(900): re.findall(\"[0-9]+\", json.dumps(list(range(20000))))'",
        ),
        (
            "node",
            "exec node -e 'let x = 0; for (let i = 0; i < 1300; i++) x += JSON.parse(JSON.stringify([...Array(30000).keys()])).length; console.log(x)'",
        ),
        (
            "perl",
            "exec perl -e 'for (1 .. 1700) { my %h; $h{$_ % 1000} .= $_ for 1 .. 20000; join q(,), sort keys %h }'",
        ),
        (
            "sqlite3",
            "exec sqlite3 :memory: 'with recursive c(x) as (select 1 union all select x + 1 from c where x < 20000000) select sum(x % 7) from c'",
        ),
        (
            "git",
            "git init -q r; cd r; for i in $(seq 16); do seq ${i}000 ${i}99999 > a; git add a; git -c user.name=t -c user.email=t@t commit -qm $i; done; git gc -q; git log -p | wc -l",
        ),
        ("gcc", "for i in 1 2 3 4; do gcc -O2 -c big.c; done"),
        ("clang", "for i in 1 2 3 4; do clang -O2 -c big.c; done"),
        ("openssl", "openssl speed -seconds 1 -bytes 1024 sha256 aes-128-cbc rsa2048"),
        ("bash", "x=0; for i in {1..900000}; do x=$((x + i)); [[ $x == *7* ]] && y=${x//1/2}; done; true"),
        ("rustc", "for i in 1 2 3; do rustc -O --edition 2024 --crate-type lib -o u.rlib \"$UNWIND\"; done"),
        ("sort", "seq 900000 | sort -R | sort -n | xz -2 | wc -c"),
    ];
    for (name, script) in programs {
        let file = scratch.join(name);
        let mut command = Recorder::at(997).command(&file, &program("bash"), &["-c", script]);
        let outcome = run(command.current_dir(here).env("UNWIND", &unwind));
        assert_eq!(outcome.status, 0, "{name}: {outcome:?}");
        let stats = selfwind_tests::recording::stats(&file);
        let ends = &stats.0["detail"]["ends"];
        println!("{name}: {} samples, complete {:.5}, {ends}", stats.number("samples"), stats.complete());
        assert!(stats.complete() >= 0.999, "{name}: {ends}");
    }
}

/// What broke programs under earlier signal-based profilers: killed across exec, aborted after closing every
/// descriptor, output lost under a seccomp filter, an unexpected signal handler.
#[test]
fn programs_that_other_profilers_break() {
    let programs: [(&str, &[&str]); 7] = [
        ("lsof", &["-v"]),
        ("man", &["-P", "cat", "-w", "ls"]),
        ("gdb", &["--version"]),
        ("gdb", &["-batch", "-ex", "run", "-ex", "info threads", "--args", "/bin/echo", "hello"]),
        ("valgrind", &["-q", "/bin/echo", "hello"]),
        ("c99", &["--version"]),
        ("zgrep", &["--version"]),
    ];
    for (name, arguments) in programs {
        for frequency in [99, 4999] {
            let recording = Recorder::at(frequency).record(&program(name), arguments);
            let alone = run(Command::new(program(name)).args(arguments));
            let seen = (recording.outcome.status, without_numbers(&recording.outcome.stdout));
            assert_eq!(seen, (alone.status, without_numbers(&alone.stdout)), "{name} {arguments:?}");
            let said = without_numbers(&recording.outcome.stderr);
            assert_eq!(said, without_numbers(&alone.stderr), "{name} {arguments:?}");
        }
    }
}

/// Process ids and addresses differ between any two runs.
fn without_numbers(text: &str) -> String {
    text.chars().filter(|character| !character.is_ascii_digit()).collect()
}

#[test]
fn the_readme_s_first_command() {
    let scratch = Scratch::new();
    let file = scratch.join("rustc.data");
    let library = scratch.join("unwind.rlib");
    let source = workspace().join("unwind/src/lib.rs");
    let arguments = [
        "-O",
        "--edition",
        "2024",
        "--crate-type",
        "lib",
        "-o",
        library.to_str().unwrap(),
        source.to_str().unwrap(),
    ];
    let outcome = run(&mut Recorder::at(499).command(&file, Path::new("rustc"), &arguments));
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let report = run(Command::new(selfwind()).arg("report").arg(&file));
    assert_eq!(report.status, 0, "{report:?}");
    assert!(report.stdout.contains("rustc_"), "{}", report.stdout);
    assert_rooted(&selfwind_tests::recording::stats(&file), 0.05);
}
