//! `scripts/bench copy`: the cost of stack copies, whether they lead to the same frames, and what is lost by copying
//! less.
//!
//! Every program is recorded once in each way, and with `--unwind both` repeatedly until enough stacks have been
//! compared: that shows, stack by stack, the result of the copy, of code addresses alone, and of guessing. `--keep DIR`
//! keeps these profiles; `--compare` only compares, without measuring the cost in the ring and in the handler. Other
//! arguments are names of programs.

mod program;

use std::fs;
use std::path::{Path, PathBuf};

use selfwind_tests::binary::selfwind;
use selfwind_tests::recording::stats;
use selfwind_tests::scratch::Scratch;
use selfwind_tests::stats::Stats;

use program::{ALL, Program, prepare};

/// Samples per second of CPU time: enough samples in a few seconds.
const RATE: &str = "9973";
/// Stacks compared per program, if that many can be recorded.
const LEAST: u64 = 10_000;
const RECORDINGS: usize = 20;
/// The ways to record, except `both`.
const WAYS: [&str; 4] = ["self", "copy", "copy-code", "guess"];

/// Result of the comparison for one program, or for all.
#[derive(Clone, Copy, Default)]
struct Compared {
    samples: u64,
    identical: u64,
    differ: u64,
    cut: u64,
    raw: u64,
    kept: u64,
    recorded: u64,
    frames: u64,
    code_only: Found,
    guess: Found,
}

#[derive(Clone, Copy, Default)]
struct Found {
    identical: u64,
    frames: u64,
    right: u64,
}

impl Found {
    fn read(stats: &Stats, name: &str) -> Self {
        let number = |part| stats.detail(&["copy", name, part]);
        Self { identical: number("identical"), frames: number("frames"), right: number("right") }
    }

    fn add(&mut self, other: Self) {
        self.identical += other.identical;
        self.frames += other.frames;
        self.right += other.right;
    }
}

impl Compared {
    fn read(stats: &Stats) -> Self {
        let number = |part| stats.detail(&["copy", part]);
        Self {
            samples: stats.number("samples"),
            identical: number("identical"),
            differ: number("differ"),
            cut: number("cut"),
            raw: number("stack_bytes"),
            kept: number("kept_bytes"),
            recorded: number("recorded_bytes"),
            frames: number("frames"),
            code_only: Found::read(stats, "code_only"),
            guess: Found::read(stats, "guess"),
        }
    }

    fn add(&mut self, other: &Self) {
        self.samples += other.samples;
        self.identical += other.identical;
        self.differ += other.differ;
        self.cut += other.cut;
        self.raw += other.raw;
        self.kept += other.kept;
        self.recorded += other.recorded;
        self.frames += other.frames;
        self.code_only.add(other.code_only);
        self.guess.add(other.guess);
    }

    fn compared(&self) -> u64 {
        self.identical + self.differ + self.cut
    }
}

/// One program.
struct Row {
    name: &'static str,
    compared: Compared,
    costs: Option<Costs>,
}

/// Costs of the ways to record it.
struct Costs {
    /// Bytes of a sample in the ring, by [`WAYS`].
    ring: [f64; 4],
    /// Median and 99th percentile of the handler time in ns, by [`WAYS`] and for `both`.
    handler: [(u64, u64); 5],
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--test") {
        return; // `cargo test --benches` only asks whether it builds.
    }
    let keep =
        arguments.iter().position(|argument| argument == "--keep").and_then(|at| arguments.get(at + 1));
    let chosen = |name: &str| {
        let named = ALL.iter().any(|program| arguments.iter().any(|argument| argument == program.name));
        !named || arguments.iter().any(|argument| argument == name)
    };
    // In a directory that others may enter: some servers refuse to run as root.
    let scratch = Scratch::new();
    prepare(scratch.path());
    let mut rows = Vec::new();
    for program in ALL.iter().filter(|program| chosen(program.name)) {
        if !program.is_there() {
            println!("{}: not installed", program.name);
            continue;
        }
        let compares = arguments.iter().any(|argument| argument == "--compare");
        match record(program, scratch.path(), keep.map(Path::new), compares) {
            Some(row) => rows.push(row),
            None => println!("{}: could not be recorded", program.name),
        }
    }
    print(&rows);
}

/// Records it in all ways, or only for the comparison.
fn record(program: &Program, directory: &Path, keep: Option<&Path>, compares: bool) -> Option<Row> {
    let (mut compared, mut last) = (Compared::default(), None);
    for number in 1..=RECORDINGS {
        let both = record_one(program, "both", directory)?;
        if let Some(keep) = keep {
            fs::create_dir_all(keep).ok()?;
            fs::copy(file(directory, "both"), keep.join(format!("{}-{number}.data", program.name))).ok()?;
        }
        compared.add(&Compared::read(&both));
        last = Some(both);
        if compared.compared() >= LEAST {
            break;
        }
    }
    let costs = if compares { None } else { Some(costs(program, &last?, directory)?) };
    Some(Row { name: program.name, compared, costs })
}

fn costs(program: &Program, both: &Stats, directory: &Path) -> Option<Costs> {
    let [own, copy, copy_code, guess] = WAYS.map(|way| record_one(program, way, directory));
    let (own, copy, copy_code, guess) = (own?, copy?, copy_code?, guess?);
    let of = |stats: &Stats| (stats.detail(&["handler_ns", "p50"]), stats.detail(&["handler_ns", "p99"]));
    let bytes = |stats: &Stats| {
        // A copy may be several records.
        let per_record = stats.0["detail"]["ring_bytes_per_sample"].as_f64().unwrap_or(0.0);
        per_record * records(stats) / stats.number("samples").max(1) as f64
    };
    Some(Costs {
        ring: [bytes(&own), bytes(&copy), bytes(&copy_code), bytes(&guess)],
        handler: [of(&own), of(&copy), of(&copy_code), of(&guess), of(both)],
    })
}

fn records(stats: &Stats) -> f64 {
    stats.0["detail"]["ring_records"].as_u64().unwrap_or(0) as f64
}

fn file(directory: &Path, way: &str) -> PathBuf {
    directory.join(format!("{way}.data"))
}

fn record_one(program: &Program, way: &str, directory: &Path) -> Option<Stats> {
    let file = file(directory, way);
    let _ = fs::remove_file(&file);
    let recorder = format!(
        "{} record -q -F {RATE} --max-overhead 100 --native-only --buffer 64M --no-names --unwind {way} -o {} --",
        selfwind().display(),
        file.display()
    );
    // Some exit with another status, such as a browser that is stopped.
    program.run(&recorder, directory);
    file.exists().then(|| stats(&file))
}

fn print(rows: &[Row]) {
    let mut all = Compared::default();
    println!("Stacks beside what came of their copies (--unwind both, {RATE} Hz, at most 32 KiB)");
    println!(
        "{:<10}{:>9}{:>10}{:>10}{:>8}{:>9}{:>12}",
        "", "samples", "compared", "identical", "differ", "cut off", "identical"
    );
    for row in rows {
        all.add(&row.compared);
        verdicts(row.name, &row.compared);
    }
    verdicts("all", &all);
    println!(
        "\nBytes of a stack: copied, of the words that are kept, as they are recorded; of a sample in the ring"
    );
    println!(
        "{:<10}{:>9}{:>9}{:>10}{:>8}{:>9}{:>9}{:>11}{:>8}",
        "", "raw", "kept", "recorded", "ratio", "self", "copy", "copy-code", "guess"
    );
    for row in rows {
        let of = |bytes: u64| bytes as f64 / row.compared.compared().max(1) as f64;
        print!(
            "{:<10}{:>9.0}{:>9.0}{:>10.0}{:>8.3}",
            row.name,
            of(row.compared.raw),
            of(row.compared.kept),
            of(row.compared.recorded),
            row.compared.recorded as f64 / row.compared.raw.max(1) as f64
        );
        if let Some(Costs { ring: [own, copy, code, guess], .. }) = row.costs {
            print!("{own:>9.0}{copy:>9.0}{code:>11.0}{guess:>8.0}");
        }
        println!();
    }
    println!(
        "\nOf 100 stacks, those whose frames are found; of 100 frames, those that are found, and wrong ones beside them"
    );
    println!("{:<10}{:>24}{:>30}", "", "addresses of code only", "guess");
    println!(
        "{:<10}{:>8}{:>8}{:>8}{:>12}{:>9}{:>9}",
        "", "stacks", "frames", "wrong", "stacks", "frames", "wrong"
    );
    for row in rows {
        losses(row.name, &row.compared);
    }
    losses("all", &all);
    print_handler(rows);
}

fn print_handler(rows: &[Row]) {
    println!("\nThe handler, ns: median, 99th percentile");
    println!("{:<10}{:>14}{:>16}{:>16}{:>16}{:>16}", "", "self", "copy", "copy-code", "guess", "both");
    for row in rows {
        let Some(Costs { handler, .. }) = row.costs else { continue };
        let [own, copy, code, guess, both] = handler.map(|(median, most)| format!("{median} {most}"));
        println!("{:<10}{own:>14}{copy:>16}{code:>16}{guess:>16}{both:>16}", row.name);
    }
}

fn verdicts(name: &str, compared: &Compared) {
    let whole = compared.identical + compared.differ;
    let share = 100.0 * compared.identical as f64 / whole.max(1) as f64;
    println!(
        "{name:<10}{:>9}{:>10}{:>10}{:>8}{:>9}{share:>11.4}%",
        compared.samples,
        compared.compared(),
        compared.identical,
        compared.differ,
        compared.cut
    );
}

fn losses(name: &str, compared: &Compared) {
    let of = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    let row = |found: Found| {
        [
            of(found.identical, compared.compared()),
            of(found.right, compared.frames),
            of(found.frames - found.right, compared.frames),
        ]
    };
    let ([a, b, c], [d, e, f]) = (row(compared.code_only), row(compared.guess));
    println!("{name:<10}{a:>8.1}{b:>8.1}{c:>8.1}{d:>12.1}{e:>9.1}{f:>9.1}");
}
