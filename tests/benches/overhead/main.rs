//! The cost of profiling: CPU time (user and system, of the whole process tree including the recorder) of real programs
//! with a profiler, as a ratio to that without.
//!
//! A ratio comes from two runs, with the profiler and without, at the same time on one CPU: the scheduler alternates
//! between them every few milliseconds, so that whatever slows the machine down affects both. (Equal runs one after the
//! other differed by 6 % on a virtual machine.) The table shows medians. "nothing" is the noise: smaller differences
//! are meaningless. The cost of a sample is the additional CPU time divided by the samples delivered. `--quick`: about
//! a hundred samples a second only; `--parts`: only the cost of start, end and a second.

mod method;
mod parts;
mod program;

use std::io::Read;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use method::{Method, Yield};
use program::Program;
use selfwind_tests::scratch::Scratch;
use selfwind_tests::target::is_installed;

/// One run.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    cpu: f64,
    harvest: Yield,
}

fn seconds(time: libc::timeval) -> f64 {
    time.tv_sec as f64 + time.tv_usec as f64 / 1e6
}

/// Runs `command` to its end. Returns the CPU seconds of everything that it waited for, and its standard error.
fn run(command: &mut Command) -> (f64, String) {
    end(start(command))
}

fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("sh runs")
}

/// Waits for the end of what was started, as [`run`] does.
fn end(mut child: Child) -> (f64, String) {
    let mut said = String::new();
    let _ = child.stderr.take().expect("piped").read_to_string(&mut said);
    let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: the kernel writes one `int` and one `rusage`; the child is ours, and nobody else waits for it.
    let waited = unsafe { libc::wait4(child.id() as i32, &raw mut status, 0, usage.as_mut_ptr()) };
    // SAFETY: any bytes are a `rusage`.
    let usage = unsafe { usage.assume_init() };
    assert!(waited > 0 && status == 0, "status {status}\n{said}");
    (seconds(usage.ru_utime) + seconds(usage.ru_stime), said)
}

/// A directory to run a program in, and the profiler used there.
struct Setup<'a> {
    method: &'a Method,
    directory: &'a Path,
}

impl Setup<'_> {
    fn file(&self) -> PathBuf {
        self.directory.join("profile")
    }

    fn start(&self, program: &Program) -> Child {
        let _ = std::fs::remove_file(self.file());
        start(&mut program.command(&self.method.prefix(&self.file()), self.directory))
    }

    fn run(&self, (cpu, said): (f64, String)) -> Run {
        Run { cpu, harvest: self.method.harvest(&self.file(), &said) }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The same number of pairs for all.
const ROUNDS: usize = 9;

fn methods(quick: bool) -> Vec<Method> {
    let mut methods = vec![Method::Nothing, Method::Selfwind(99)];
    if is_installed("perf") {
        methods.push(Method::Perf(99, "fp"));
    } else {
        println!("perf is not installed: its rows are missing (apt-get install linux-perf)");
    }
    let libprofiler = method::libprofiler();
    if libprofiler.is_none() {
        println!("gperftools is not installed: its rows are missing (apt-get install libgoogle-perftools4)");
    }
    methods.extend(libprofiler.iter().map(|library| Method::Gperftools(100, library.clone())));
    if quick {
        return methods;
    }
    methods.extend([Method::Selfwind(997), Method::Selfwind(9973)]);
    if is_installed("perf") {
        methods.extend([Method::Perf(997, "fp"), Method::Perf(99, "dwarf"), Method::Perf(997, "dwarf")]);
    }
    methods.extend(libprofiler.map(|library| Method::Gperftools(1000, library)));
    methods
}

/// A run with a profiler, and one without at the same time.
#[derive(Clone, Copy)]
struct Pair {
    alone: Run,
    with: Run,
}

impl Pair {
    fn measure(program: &Program, alone: &Setup<'_>, with: &Setup<'_>, alone_first: bool) -> Self {
        let before = alone_first.then(|| alone.start(program));
        let with_it = with.start(program);
        let without = before.unwrap_or_else(|| alone.start(program));
        // Read the profile when both have ended.
        let (without, with_it) = (end(without), end(with_it));
        Self { alone: alone.run(without), with: with.run(with_it) }
    }

    fn ratio(&self) -> f64 {
        self.with.cpu / self.alone.cpu
    }
}

/// The table of one program; gives the ratio of each method.
fn table(program: &Program, methods: &[Method], directories: &[PathBuf; 2]) -> Vec<f64> {
    let alone = Setup { method: &Method::Nothing, directory: &directories[0] };
    let mut pairs = vec![Vec::new(); methods.len()];
    for round in 0..ROUNDS {
        for turn in 0..methods.len() {
            let index = (turn + round) % methods.len();
            let with = Setup { method: &methods[index], directory: &directories[1] };
            pairs[index].push(Pair::measure(program, &alone, &with, round % 2 == 0));
        }
    }
    let used = median(pairs.iter().flatten().map(|pair| pair.alone.cpu).collect());
    println!("\n{} ({used:.2} s of CPU time, {ROUNDS} rounds)", program.name);
    println!(
        "{:16} {:>9} {:>9} {:>9} {:>9} {:>13}",
        "", "CPU ratio", "samples", "of asked", "us/sample", "bytes/sample"
    );
    methods.iter().zip(&pairs).map(|(method, pairs)| row(method, pairs)).collect()
}

/// One line of the table; gives the ratio.
fn row(method: &Method, pairs: &[Pair]) -> f64 {
    let of = |value: &dyn Fn(&Pair) -> f64| median(pairs.iter().map(value).collect());
    let ratio = of(&Pair::ratio);
    let Some(frequency) = method.frequency() else {
        println!("{:16} {ratio:9.4}", method.name());
        return ratio;
    };
    let samples = of(&|pair| pair.with.harvest.samples);
    let asked = of(&|pair| pair.with.harvest.weight / (pair.alone.cpu * f64::from(frequency)));
    let cost = of(&|pair| 1e6 * (pair.with.cpu - pair.alone.cpu) / pair.with.harvest.samples.max(1.0));
    let bytes = of(&|pair| pair.with.harvest.bytes / pair.with.harvest.samples.max(1.0));
    let (name, asked) = (method.name(), 100.0 * asked);
    println!("{name:16} {ratio:9.4} {samples:9.0} {asked:8.0}% {cost:9.1} {bytes:13.0}");
    ratio
}

/// For this process and everything that it starts from now on.
fn stay_on_one_processor() {
    let own = Pid::this();
    let allowed = sched_getaffinity(own).expect("our own");
    // The last one: interrupts tend to go to the first.
    let last = (0..CpuSet::count()).rev().find(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let mut one = CpuSet::new();
    one.set(last.expect("we run")).expect("a processor of the set");
    sched_setaffinity(own, &one).expect("a part of what is allowed");
}

fn main() {
    let given = |name: &str| std::env::args().any(|argument| argument == name);
    let (quick, only_parts) = (given("--quick") || given("--parts"), given("--parts"));
    let scratch = Scratch::new();
    let directories = ["alone", "with"].map(|name| scratch.join(name));
    for directory in &directories {
        std::fs::create_dir(directory).expect("a new directory is writable");
        program::prepare(directory);
    }
    let methods = methods(quick);
    parts::print(&methods, &directories[0]);
    if only_parts {
        return;
    }
    stay_on_one_processor();
    let mut ratios = vec![Vec::new(); methods.len()];
    for program in &program::ALL {
        if !program.is_there() {
            println!("{}: not installed", program.name);
            continue;
        }
        // Warm caches, and make the tables that are made once.
        for method in &methods {
            end(Setup { method, directory: &directories[1] }.start(program));
        }
        for (all, ratio) in ratios.iter_mut().zip(table(program, &methods, &directories)) {
            all.push(ratio);
        }
    }
    println!("\nmedian over the programs");
    for (method, ratios) in methods.iter().zip(ratios) {
        println!("{:16} {:9.4}", method.name(), median(ratios));
    }
}
