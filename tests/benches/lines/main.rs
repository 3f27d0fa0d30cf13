//! What a sample of real programs touches: instructions of the handler, cache lines of code and of data. At ordinary rates
//! all of them are cold, and each is a wait for memory. Counted step by step, so that nothing else on the machine matters,
//! and on average over many samples, so that it matters little where they came: they are far apart, because the steps too
//! are time of the program's.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use selfwind_tests::handler_trace::watch;
use selfwind_tests::scratch::Scratch;
use selfwind_tests::target::Target;

/// Samples of each program, and in each second of its CPU time.
const SAMPLES: u64 = 200;
const RATE: &str = "19";

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
    let storm = Target::c("malloc_storm").build();
    let programs: [(&str, PathBuf, Vec<&OsStr>); 4] = [
        ("malloc_storm", storm, vec![]),
        ("python", "/usr/bin/python3".into(), vec![script]),
        (
            "gcc",
            compiler(),
            [source].into_iter().chain(words(["-quiet", "-O2"])).chain(words(["-o", "/dev/null"])).collect(),
        ),
        ("sqlite", "/usr/bin/sqlite3".into(), words([":memory:", SQL]).to_vec()),
    ];
    println!("| | samples | instructions | lines of code | lines of data |\n|---|---|---|---|---|");
    for (name, program, arguments) in &programs {
        row(name, program, arguments);
    }
}

/// gcc's compiler proper: the driver only starts it.
fn compiler() -> PathBuf {
    let output = Command::new("gcc").arg("-print-prog-name=cc1").output().expect("gcc");
    String::from_utf8(output.stdout).expect("a path").trim_end().into()
}

fn row(name: &str, program: &Path, arguments: &[&OsStr]) {
    let settings = [("SELFWIND_FREQ", RATE), ("SELFWIND_EVENT", "cpu")];
    let found = watch(program, arguments, &settings, SAMPLES).expect("ptrace");
    let [instructions, code, data] = found.average();
    println!("| {name} | {} | {instructions:.0} | {code:.1} | {data:.1} |", found.runs);
}
