//! `scripts/bench delivery`: the share of a program's CPU time that is in its profile, for every rate, number of
//! threads and stack depth, with each source; and the cost of the recorder per million samples, compared with `perf
//! record`.
//!
//! The program measures its CPU time itself. `--quick` uses fewer rates, threads and depths.

use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use selfwind_tests::binary::selfwind;
use selfwind_tests::recording::stats;
use selfwind_tests::scratch::Scratch;
use selfwind_tests::target::Target;

/// What one run took, in seconds of CPU time.
struct Taken {
    program: f64,
    recorder: f64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    if has("--test") {
        return; // `cargo test --benches` only asks whether it builds.
    }
    let program = Target::c("busy_stacks").build();
    let scratch = Scratch::new();
    shares(&program, &scratch, has("--quick"));
    recorders(&program, &scratch);
}

/// For each way of recording: the share of CPU time that the samples account for, and what was lost.
fn shares(program: &Path, scratch: &Scratch, quick: bool) {
    let rates: &[u32] = if quick { &[997, 9973] } else { &[99, 997, 4999, 9973] };
    let crowds: &[u32] = if quick { &[1, 16] } else { &[1, 2, 16, 200] };
    let depths: &[u32] = if quick { &[60] } else { &[20, 60, 500] };
    println!(
        "CPU time in the profile / CPU time of the program; samples lost; ticks left out by --max-overhead, of samples"
    );
    println!(
        "{:<10}{:>6}{:>9}{:>7}{:>10}{:>7}{:>10}{:>10}",
        "source", "Hz", "threads", "depth", "share", "lost", "left out", "samples"
    );
    for source in ["auto", "perf", "cpu"] {
        for &rate in rates {
            for &threads in crowds {
                for &depth in depths {
                    // At least ten periods per thread at 99 Hz: less than one is missing at a thread's end.
                    let milliseconds = (4000 / threads).max(100);
                    let file = scratch.join("delivery.data");
                    let mut command = ours(source, rate, &file);
                    let taken = run(&mut command, program, depth, threads, milliseconds);
                    let stats = stats(&file);
                    let weight = stats.number("weight") as f64;
                    let left_out = stats.detail(&["rate", "left_out"]);
                    println!(
                        "{source:<10}{rate:>6}{threads:>9}{depth:>7}{:>10.4}{:>7}{left_out:>10}{:>10}",
                        weight / f64::from(rate) / taken.program,
                        stats.number("lost"),
                        stats.number("samples"),
                    );
                }
            }
        }
    }
}

/// CPU time of the recorders for a million samples of two threads, median of three.
fn recorders(program: &Path, scratch: &Scratch) {
    const RATE: u32 = 9973;
    println!("\nCPU seconds of the recorder for a million samples (two threads at {RATE} Hz, 60 frames)");
    let file = scratch.join("delivery.data");
    let perf = |mode: &str| {
        let mut command = Command::new("perf");
        command
            .args(["record", "-q", "-F", &RATE.to_string(), "--call-graph", mode, "-o"])
            .arg(&file)
            .arg("--");
        command
    };
    type Way<'w> = (&'w str, Box<dyn Fn() -> Command + 'w>);
    let ways: [Way<'_>; 4] = [
        ("selfwind -e perf", Box::new(|| ours("perf", RATE, &file))),
        ("selfwind -e cpu", Box::new(|| ours("cpu", RATE, &file))),
        ("perf record --call-graph fp", Box::new(|| perf("fp"))),
        ("perf record --call-graph dwarf", Box::new(|| perf("dwarf"))),
    ];
    let mut seconds: [Vec<f64>; 4] = Default::default();
    for _ in 0..3 {
        for ((_, command), seconds) in ways.iter().zip(&mut seconds) {
            let taken = run(&mut command(), program, 60, 2, 5000);
            // Both take a sample per period of the program's time, as far as they can.
            seconds.push(taken.recorder / (taken.program * f64::from(RATE)) * 1e6);
        }
    }
    for ((name, _), mut seconds) in ways.into_iter().zip(seconds) {
        seconds.sort_by(f64::total_cmp);
        println!("{name:<34}{:>8.2}", seconds[1]);
    }
}

fn ours(source: &str, rate: u32, file: &Path) -> Command {
    let mut command = Command::new(selfwind());
    command
        .args(["record", "-q", "--no-names", "-e", source, "-F", &rate.to_string(), "-o"])
        .arg(file)
        .arg("--");
    command
}

fn run(recorder: &mut Command, program: &Path, depth: u32, threads: u32, milliseconds: u32) -> Taken {
    let before = children();
    let numbers = [depth, threads, milliseconds].map(|number| number.to_string());
    let output = recorder.arg(program).args(numbers).arg("clock").stderr(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{recorder:?}: {error}"));
    assert!(output.status.success(), "{recorder:?}: {output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let clock =
        text.lines().find_map(|line| line.strip_prefix("clock ")).expect("the program tells its CPU time");
    let program = clock.parse::<f64>().expect("nanoseconds") / 1e9;
    Taken { program, recorder: children() - before - program }
}

/// CPU time in seconds used by children and their children.
fn children() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("always known");
    (usage.user_time() + usage.system_time()).num_microseconds() as f64 / 1e6
}
