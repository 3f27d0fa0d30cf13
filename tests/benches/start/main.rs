//! `scripts/bench start`: what the agent adds to the run time of a program that does nothing, with and without its
//! unwind tables in the cache.
//!
//! Each run starts `/bin/true` and waits for it. Runs of all ways are interleaved. Printed are medians, and the median
//! difference to the plain run of the same round, which drifts less than the difference of medians.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use selfwind_tests::binary::{agent, selfwind};

const PROGRAM: &str = "/bin/true";

/// How the program is started.
struct Way {
    name: &'static str,
    environment: Vec<(&'static str, OsString)>,
    /// Microseconds of each run.
    runs: Vec<f64>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == "--test") {
        return; // `cargo test --benches` only asks whether it builds.
    }
    let rounds = if arguments.iter().any(|argument| argument == "--long") { 2000 } else { 400 };
    let root = PathBuf::from(format!("/dev/shm/selfwind-bench-{}", std::process::id()));
    let (session, cache, empty) = (root.join("session"), root.join("cache"), root.join("empty"));
    for directory in [&root, &session, &cache, &empty] {
        private(directory);
    }
    fill(&cache, &root);
    let with = |name, tables: &Path| Way {
        name,
        environment: vec![
            ("LD_PRELOAD", agent().into()),
            ("SELFWIND_DIR", session.clone().into()),
            ("SELFWIND_TABLES", tables.into()),
        ],
        runs: Vec::new(),
    };
    let plain = Way { name: "plain", environment: Vec::new(), runs: Vec::new() };
    let inert = Way {
        name: "inert agent",
        environment: vec![("LD_PRELOAD", agent().into()), ("SELFWIND_ENABLE", "0".into())],
        runs: Vec::new(),
    };
    let mut ways = [
        plain,
        inert,
        with("no tables", Path::new("0")),
        with("cold: empty cache", &empty),
        with("cached tables", &cache),
    ];
    for round in 0..rounds {
        for turn in 0..ways.len() {
            let index = (round + turn) % ways.len();
            let taken = run(&ways[index].environment);
            ways[index].runs.push(taken);
        }
        for left in fs::read_dir(&session).expect("the session directory").flatten() {
            let _ = fs::remove_file(left.path());
        }
    }
    let _ = fs::remove_dir_all(&root);
    print(&ways);
}

fn print(ways: &[Way]) {
    println!("start and end of {PROGRAM}, {} runs each, us", ways[0].runs.len());
    println!("{:<20}{:>10}{:>10}{:>16}", "", "median", "10th %", "median added");
    for way in ways {
        let added = way.runs.iter().zip(&ways[0].runs).map(|(run, plain)| run - plain).collect();
        let (median, low) = (part(way.runs.clone(), 2), part(way.runs.clone(), 10));
        println!("{:<20}{median:>10.0}{low:>10.0}{:>16.0}", way.name, part(added, 2));
    }
}

/// Microseconds from the start of the program to its end.
fn run(environment: &[(&'static str, OsString)]) -> f64 {
    let mut command = Command::new(PROGRAM);
    command.env_clear().envs(environment.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
    let before = Instant::now();
    let status = command.status().expect("the program starts");
    let taken = before.elapsed().as_secs_f64() * 1e6;
    assert!(status.success());
    taken
}

/// A first recording makes the tables.
fn fill(cache: &Path, directory: &Path) {
    let mut command = Command::new(selfwind());
    command.args(["record", "-q", "-o"]).arg(directory.join("profile")).args(["--", PROGRAM]);
    let status = command.env("SELFWIND_TABLES", cache).status().expect("selfwind runs");
    let made = fs::read_dir(cache).map_or(0, Iterator::count);
    assert!(status.success() && made >= 3, "{made} tables in {}", cache.display());
}

fn private(directory: &Path) {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().mode(0o700).create(directory).expect("/dev/shm is writable");
}

/// The 1/`parts` quantile.
fn part(mut values: Vec<f64>, parts: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / parts]
}
