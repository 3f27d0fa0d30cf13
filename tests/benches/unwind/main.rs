//! `scripts/bench unwind`: the cost of taking one stack, for us and for the peers: the same stacks, in one process and
//! one run, every stack held against the truth. Rounds are interleaved and medians are printed, since machines drift;
//! only the ratios say something.

mod frame_pointer;
mod framehop;
mod libgcc;
mod libunwind;
mod method;
mod modules;
mod registers;
mod selfwind;
mod workload;

use method::{MOST, Method, Stack};
use std::ffi::c_void;
use std::path::Path;
use std::time::Instant;
use workload::{DEPTH, Random, Scenario, Walkway, Workload};

const SCENARIOS: [Scenario; 4] = [Scenario::Hot, Scenario::Rot, Scenario::Walk, Scenario::Cold];
const SEED: u64 = 0x5e1f_317d;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(position) = arguments.iter().position(|a| a == "--first") {
        first(arguments[position + 1].parse().expect("--first takes a method's number"));
        return;
    }
    if arguments.iter().any(|a| a == "--test") {
        return; // `cargo test --benches` only asks whether it builds.
    }
    let rounds = if arguments.iter().any(|a| a == "--long") { 15 } else { 7 };
    table(rounds);
}

/// All methods, all scenarios, and the first capture of a fresh process.
fn table(rounds: usize) {
    let (plain, framed) = load();
    let mut methods = method::all();
    let ns_per_tick = calibrate();
    let mut medians = vec![[0.0; SCENARIOS.len()]; methods.len()];
    for (column, &scenario) in SCENARIOS.iter().enumerate() {
        let mut rows = vec![Vec::new(); methods.len()];
        for round in 0..rounds {
            for (method, row) in methods.iter_mut().zip(&mut rows) {
                let workload = if method.needs_frame_pointers() { &framed } else { &plain };
                row.push(measure(workload, scenario, method.as_mut(), SEED + round as u64) * ns_per_tick);
            }
        }
        for (row, medians) in rows.iter_mut().zip(&mut medians) {
            medians[column] = median(row);
        }
    }
    let firsts: Vec<f64> =
        (0..methods.len()).map(|index| median(&mut first_captures(index, rounds))).collect();
    print(&methods, &medians, &firsts);
}

fn print(methods: &[Box<dyn Method>], medians: &[[f64; 4]], firsts: &[f64]) {
    println!(
        "ns per stack of {DEPTH} frames and those of the harness, medians; every stack checked against the truth"
    );
    println!("{:<28}{:>10}{:>10}{:>10}{:>10}{:>14}", "method", "HOT", "ROT", "WALK", "COLD", "first capture");
    for ((method, row), first) in methods.iter().zip(medians).zip(firsts) {
        print!("{:<28}", method.name());
        row.iter().for_each(|ns| print!("{ns:>10.0}"));
        println!("{first:>14.0}");
    }
    println!("\nratio to {} (above 1: it is slower than we are)", methods[0].name());
    for ((method, row), first) in methods.iter().zip(medians).zip(firsts).skip(1) {
        print!("{:<28}", method.name());
        row.iter().zip(medians[0]).for_each(|(ns, ours)| print!("{:>10.2}", ns / ours));
        println!("{:>14.2}", first / firsts[0]);
    }
}

/// Ticks per stack; panics on the first stack that is not the true one.
fn measure(workload: &Workload, scenario: Scenario, method: &mut dyn Method, seed: u64) -> f64 {
    let captures = if scenario == Scenario::Cold { 60 } else { 3000 };
    let (mut ticks, mut stack) = (0, [0; MOST]);
    let warm = captures / 10;
    let mut count = 0;
    workload.run(scenario, captures + warm, Random::new(seed), &mut |walkway, truth| {
        let taken = timed(method, walkway, &mut stack, truth);
        count += 1;
        if count > warm {
            ticks += taken;
        }
    });
    ticks as f64 / captures as f64
}

#[inline(never)]
fn timed(method: &mut dyn Method, walkway: &Walkway, stack: &mut Stack, truth: &[*const c_void]) -> u64 {
    let before = ticks();
    let depth = method.capture(walkway, stack);
    let after = ticks();
    let innermost = truth[DEPTH - 1] as u64;
    let start = stack[..depth].iter().position(|&address| address == innermost);
    let true_stack = truth.iter().rev().map(|&address| address as u64);
    let found = start.map_or(&[][..], |start| &stack[start..depth]);
    assert!(
        found.len() >= DEPTH && true_stack.eq(found[..DEPTH].iter().copied()),
        "{}: wrong stack: {found:x?} instead of {truth:x?}",
        method.name()
    );
    after - before
}

/// The first capture of a fresh process, in ns: this program runs itself with `--first`.
fn first_captures(index: usize, rounds: usize) -> Vec<f64> {
    let own = std::env::current_exe().expect("the path of this program");
    (0..rounds)
        .map(|_| {
            let output = std::process::Command::new(&own)
                .args(["--first", &index.to_string()])
                .output()
                .expect("this program runs itself");
            let text = String::from_utf8_lossy(&output.stdout);
            text.trim().parse().unwrap_or_else(|_| panic!("no figure from --first {index}: {text}"))
        })
        .collect()
}

fn first(index: usize) {
    let (plain, framed) = load();
    let mut method = method::all().into_iter().nth(index).expect("a method's number");
    let workload = if method.needs_frame_pointers() { &framed } else { &plain };
    let mut taken = 0;
    let mut stack = [0; MOST];
    workload.run(Scenario::Hot, 1, Random::new(SEED), &mut |walkway, truth| {
        taken = timed(method.as_mut(), walkway, &mut stack, truth);
    });
    println!("{}", taken as f64 * calibrate());
}

/// The workload without and with frame pointers.
fn load() -> (Workload, Workload) {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/unwind/workload.c"));
    let folder = std::env::temp_dir().join(format!("selfwind-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the compiled workload");
    let loaded = (Workload::load(source, &folder, false), Workload::load(source, &folder, true));
    // The loader keeps the mappings; the files are done with.
    std::fs::remove_dir_all(&folder).expect("the folder just made");
    loaded
}

fn ticks() -> u64 {
    // SAFETY: rdtscp exists on every x86-64 machine this bench is meant for; it waits for what came before.
    unsafe { core::arch::x86_64::__rdtscp(&mut 0) }
}

fn calibrate() -> f64 {
    let (start, from) = (Instant::now(), ticks());
    while start.elapsed().as_millis() < 50 {}
    start.elapsed().as_nanos() as f64 / (ticks() - from) as f64
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
