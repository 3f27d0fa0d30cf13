//! The footprint of a sample in real programs: instructions of the handler, and cache lines of code and of data. At
//! ordinary rates all of these are cold, so each line is a memory access. Counted by single-stepping, so that the
//! machine's load does not matter, and averaged over many samples, so that their positions hardly do. Most samples are
//! not stepped, since stepping takes CPU time of the program, which would make no progress between two of them. Unwind
//! tables exist, as in all but a first recording.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use selfwind_tests::binary::selfwind;
use selfwind_tests::handler_trace::watch;
use selfwind_tests::scratch::Scratch;

/// Samples stepped per program, and one in how many is stepped.
const SAMPLES: u64 = 200;
const EVERY: u64 = 10;

/// JSON below some 20 frames of Python.
const PYTHON: &str = "
import json
d = [{'a': i, 'b': str(i)} for i in range(1000)]
def f(n): return f(n - 1) if n else [json.loads(json.dumps(x)) for x in d]
while True: f(20)
";
const SQL: &str = "with recursive c(x) as (select 1 union all select x + 1 from c where x < 90000000) \
                   select sum(length(hex(x) || printf('%d', x))) from c;";

fn main() {
    let scratch = Scratch::new();
    let (script, source) = (scratch.join("w.py"), scratch.join("large.c"));
    fs::write(&script, PYTHON).expect("writable");
    let functions = (0..60000).map(|i| format!("int f{i}(int a) {{ return a * {i} + (a >> {}); }}\n", i % 7));
    fs::write(&source, functions.collect::<String>()).expect("writable");
    let (script, source) = (script.as_os_str(), source.as_os_str());
    let words = |words: [&'static str; 2]| words.map(OsStr::new);
    let programs: [(&str, PathBuf, Vec<&OsStr>); 3] = [
        ("python", "/usr/bin/python3".into(), vec![script]),
        (
            "gcc",
            compiler(),
            [source].into_iter().chain(words(["-quiet", "-O2"])).chain(words(["-o", "/dev/null"])).collect(),
        ),
        ("sqlite", "/usr/bin/sqlite3".into(), words([":memory:", SQL]).to_vec()),
    ];
    println!("| | samples | instructions | lines of code | lines of data |\n|---|---|---|---|---|");
    let tables = scratch.join("tables");
    for (name, program, arguments) in &programs {
        build_tables(&tables, program, arguments, &scratch.join("x.data"));
        row(name, program, arguments, tables.to_str().expect("UTF-8"));
    }
}

/// For everything that the program maps in its first seconds, as a recording does.
fn build_tables(tables: &Path, program: &Path, arguments: &[&OsStr], profile: &Path) {
    let mut command = Command::new(selfwind());
    command.env("SELFWIND_TABLES", tables).args(["record", "-q", "--no-names", "-o"]).arg(profile);
    command.args(["--", "timeout", "3"]).arg(program).args(arguments).stdout(Stdio::null());
    // Ended by the signal, as it should be.
    command.status().expect("selfwind runs");
}

/// gcc's compiler proper, which the driver starts.
fn compiler() -> PathBuf {
    let output = Command::new("gcc").arg("-print-prog-name=cc1").output().expect("gcc");
    String::from_utf8(output.stdout).expect("a path").trim_end().into()
}

fn row(name: &str, program: &Path, arguments: &[&OsStr], tables: &str) {
    let settings = [("SELFWIND_FREQ", "199"), ("SELFWIND_EVENT", "cpu"), ("SELFWIND_TABLES", tables)];
    let found = watch(program, arguments, &settings, EVERY, SAMPLES).expect("ptrace");
    let [instructions, code, data] = found.average();
    println!("| {name} | {} | {instructions:.0} | {code:.1} | {data:.1} |", found.runs);
}
