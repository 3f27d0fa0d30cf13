//! `scripts/bench unwind`: the cost of taking one stack, for selfwind and for its peers: the same stacks, in one
//! process and one run, every result compared with the true stack. Rounds are interleaved and medians are printed,
//! since machines drift; only the ratios are meaningful.

mod frame_pointer;
mod framehop;
mod libgcc;
mod libunwind;
mod method;
mod modules;
mod registers;
mod selfwind;
mod verdict;
mod workload;

use method::{MOST, Method, Stack};
use std::ffi::c_void;
use std::path::Path;
use std::time::Instant;
use verdict::Figures;
use workload::{DEPTH, Random, Scenario, Walkway, Workload};

/// What a method does in one turn.
const TURNS: [&[Scenario]; 3] = [&[Scenario::Hot], &[Scenario::Rot], &[Scenario::Walk, Scenario::Cold]];
const SEED: u64 = 0x5e1f_317d;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let position = arguments.iter().position(|argument| argument == name)?;
        Some(arguments.get(position + 1).unwrap_or_else(|| panic!("{name} takes a value")).as_str())
    };
    if let Some(index) = value("--first") {
        let libraries = Path::new(value("--libraries").expect("--first needs --libraries"));
        first(index.parse().expect("--first takes a method's number"), libraries);
        return;
    }
    if arguments.iter().any(|argument| argument == "--test") {
        return; // `cargo test --benches` only asks whether it builds.
    }
    let long = arguments.iter().any(|argument| argument == "--long");
    let rounds =
        value("--rounds").map_or(if long { 63 } else { 15 }, |n| n.parse().expect("a number of rounds"));
    let libraries = std::env::temp_dir().join(format!("selfwind-bench-{}", std::process::id()));
    compile(&libraries);
    let figures = measure_all(&libraries, rounds);
    std::fs::remove_dir_all(&libraries).expect("the folder just made");
    verdict::print(&figures);
}

/// All methods, all scenarios, and the first capture of a fresh process: the results of every round.
///
/// Within a round all methods take turns at a scenario, for a millisecond (selfwind) to a quarter of a second (the
/// slowest), so that other load of the CPU (such as a virtual machine's neighbours) is mostly the same for all.
fn measure_all(libraries: &Path, rounds: usize) -> Vec<Figures> {
    let (plain, framed) = load(libraries);
    let mut methods = method::all();
    let ns_per_tick = calibrate();
    let count = methods.len();
    let mut all: Vec<Figures> = methods.iter().map(|method| Figures::none(method.name())).collect();
    for round in 0..rounds {
        // Each round begins with another one, since what ran just before has an effect.
        let order = (0..count).map(|turn| (round + turn) % count);
        for scenarios in TURNS {
            for index in order.clone() {
                let method = methods[index].as_mut();
                let workload = if method.on_framed_code() { &framed } else { &plain };
                for &scenario in scenarios {
                    let ticks = measure(workload, scenario, method, SEED + round as u64);
                    all[index].note(scenario as usize, ticks * ns_per_tick);
                }
            }
        }
        for index in order {
            all[index].note(verdict::FIRST, first_capture(index, libraries));
        }
    }
    all
}

/// Ticks per stack, the mean of the middle half; panics on the first stack that is not the true one.
fn measure(workload: &Workload, scenario: Scenario, method: &mut dyn Method, seed: u64) -> f64 {
    let captures = if scenario == Scenario::Cold { 60 } else { 3000 };
    let mut stack = [0; MOST];
    let warm = captures / 10;
    let mut taken = Vec::with_capacity(captures + warm);
    workload.run(scenario, captures + warm, Random::new(seed), &mut |walkway, truth| {
        taken.push(timed(method, walkway, &mut stack, truth) as f64);
    });
    let taken = &mut taken[warm..];
    taken.sort_by(f64::total_cmp);
    // A median would be a multiple of the clock's tick, which is a third of the shortest captures.
    let middle = &taken[captures / 4..captures - captures / 4];
    middle.iter().sum::<f64>() / middle.len() as f64
}

#[inline(always)]
fn timed(method: &mut dyn Method, walkway: &Walkway, stack: &mut Stack, truth: &[*const c_void]) -> u64 {
    let before = ticks();
    let depth = method.capture(walkway, stack);
    let after = ticks();
    method.finish(stack, depth);
    check(method.name(), &stack[..depth], truth);
    (after - before).saturating_sub(clock_ticks())
}

#[inline(never)]
fn check(name: &str, stack: &[u64], truth: &[*const c_void]) {
    let innermost = truth[DEPTH - 1] as u64;
    let start = stack.iter().position(|&address| address == innermost);
    let true_stack = truth.iter().rev().map(|&address| address as u64);
    let found = start.map_or(&[][..], |start| &stack[start..]);
    assert!(
        found.len() >= DEPTH && true_stack.eq(found[..DEPTH].iter().copied()),
        "{name}: wrong stack: {found:x?} instead of {truth:x?}"
    );
}

/// The first capture of a fresh process, in ns: this program runs itself with `--first`.
fn first_capture(index: usize, libraries: &Path) -> f64 {
    let own = std::env::current_exe().expect("the path of this program");
    let output = std::process::Command::new(&own)
        .args(["--first", &index.to_string(), "--libraries"])
        .arg(libraries)
        .output()
        .expect("this program runs itself");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().unwrap_or_else(|_| panic!("no figure from --first {index}: {output:?}"))
}

fn first(index: usize, libraries: &Path) {
    let (plain, framed) = load(libraries);
    let mut method = method::nth(index);
    let workload = if method.on_framed_code() { &framed } else { &plain };
    let mut taken = 0;
    let mut stack = [0; MOST];
    workload.run(Scenario::Hot, 1, Random::new(SEED), &mut |walkway, truth| {
        taken = timed(method.as_mut(), walkway, &mut stack, truth);
    });
    println!("{}", taken as f64 * calibrate());
}

/// Compiles the workload into `folder`, without and with frame pointers.
fn compile(folder: &Path) {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/unwind/workload.c"));
    std::fs::create_dir_all(folder).expect("a folder for the compiled workload");
    workload::compile(source, folder);
}

/// The workload without and with frame pointers.
fn load(folder: &Path) -> (Workload, Workload) {
    (Workload::load(folder, false), Workload::load(folder, true))
}

fn ticks() -> u64 {
    // SAFETY: rdtscp exists on every x86-64 machine this bench is meant for; it waits for what came before.
    unsafe { core::arch::x86_64::__rdtscp(&mut 0) }
}

/// The cost of reading the clock twice, which is subtracted from every method.
fn clock_ticks() -> u64 {
    static TICKS: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *TICKS.get_or_init(|| {
        let taken = std::iter::repeat_with(|| {
            let before = ticks();
            (ticks() - before) as f64
        });
        verdict::median(taken.take(1001)) as u64
    })
}

fn calibrate() -> f64 {
    let (start, from) = (Instant::now(), ticks());
    while start.elapsed().as_millis() < 50 {}
    start.elapsed().as_nanos() as f64 / (ticks() - from) as f64
}
