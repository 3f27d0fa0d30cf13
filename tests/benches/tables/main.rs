//! `scripts/bench tables`: the cost of compiling the tables of real files, compared with gimli evaluating the same
//! rows.
//!
//! Two programs use gimli: one only evaluates the rows and reads the three relevant columns; the other also converts
//! them to packed rules, merged, deduplicated and sorted. All read the same bytes in memory, in interleaved rounds on
//! one thread; times are the thread's CPU time.

mod by_gimli;

use std::fs::{self, File};
use std::hint::black_box;
use std::path::{Path, PathBuf};

use compilation::compile;
use object::{Object, ObjectSection, ReadCache};
use unwind::{Section, Table};

/// Where the files may be; of each kind the first that exists counts.
const FILES: [(&str, &[&str]); 7] = [
    ("libc.so.6", &["/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib64/libc.so.6", "/usr/lib/libc.so.6"]),
    ("python3", &["/usr/bin/python3"]),
    ("libcrypto.so.3", &["/usr/lib/x86_64-linux-gnu/libcrypto.so.3", "/usr/lib64/libcrypto.so.3"]),
    ("node", &["/usr/bin/node"]),
    ("cc1plus", &["/usr/lib/gcc/x86_64-linux-gnu/"]),
    ("libLLVM", &["/usr/lib/x86_64-linux-gnu/", "/usr/lib64/"]),
    ("librustc_driver", &[]),
];

/// selfwind, a table by gimli, gimli's evaluation alone.
const WAYS: usize = 3;

/// `.eh_frame` of one file.
struct Input {
    name: &'static str,
    bytes: Vec<u8>,
    address: u64,
}

/// What one file gave.
struct Row {
    input: Input,
    rows: u64,
    merged: usize,
    table_bytes: usize,
    /// Times of each way, in ns.
    times: [Vec<f64>; WAYS],
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == "--test") {
        return; // `cargo test --benches` only asks whether it builds.
    }
    let rounds = if arguments.iter().any(|argument| argument == "--long") { 21 } else { 7 };
    let mut files: Vec<Row> = FILES.iter().filter_map(|(name, paths)| find(name, paths)).map(first).collect();
    for round in 0..rounds {
        for row in &mut files {
            // The second one finds warmer caches, so they take turns.
            for turn in 0..WAYS {
                let way = (round + turn) % WAYS;
                row.times[way].push(time(|| match way {
                    0 => drop(black_box(ours(&row.input))),
                    1 => drop(black_box(by_gimli::table(&row.input))),
                    _ => assert_eq!(by_gimli::evaluate(&row.input), row.rows),
                }));
            }
        }
    }
    print(&mut files);
}

fn print(files: &mut [Row]) {
    println!("compiling tables: medians of CPU time, ns per DWARF row; the ratios are gimli's time to ours");
    println!(
        "{:<17}{:>10}{:>9}{:>9}{:>9}{:>7}{:>7}{:>8}{:>10}{:>7}{:>9}{:>10}",
        "file",
        ".eh_frame",
        "rows",
        "merged",
        "ours ms",
        "ns/row",
        "MB/s",
        "table %",
        "by gimli",
        "ratio",
        "evaluate",
        "ratio"
    );
    let (mut tables, mut sections, mut total) = (0, 0, [0.0; WAYS]);
    for file in files {
        let [ours, made, evaluated] = [0, 1, 2].map(|way| median(&mut file.times[way]));
        let length = file.input.bytes.len();
        tables += file.table_bytes;
        sections += length;
        total = [total[0] + ours, total[1] + made, total[2] + evaluated];
        let rows = file.rows as f64;
        println!(
            "{:<17}{:>10}{:>9}{:>9}{:>9.3}{:>7.1}{:>7.0}{:>8.1}{:>10.1}{:>7.2}{:>9.1}{:>10.2}",
            file.input.name,
            length,
            file.rows,
            file.merged,
            ours / 1e6,
            ours / rows,
            length as f64 * 1e3 / ours,
            100.0 * file.table_bytes as f64 / length as f64,
            made / rows,
            made / ours,
            evaluated / rows,
            evaluated / ours
        );
    }
    println!("all: a table by gimli {:.2}, its rows alone {:.2}", total[1] / total[0], total[2] / total[0]);
    println!("all tables together: {:.1} % of .eh_frame", 100.0 * tables as f64 / sections.max(1) as f64);
}

/// The file called `name`: at one of the paths, or somewhere in a directory that is one of them.
fn find(name: &'static str, paths: &[&str]) -> Option<Input> {
    if name == "librustc_driver" {
        return beginning_with(name, &sysroot()?.join("lib")).iter().find_map(|path| read(name, path));
    }
    let candidates = paths.iter().flat_map(|path| match path.ends_with('/') {
        true => beginning_with(name, Path::new(path)),
        false => vec![PathBuf::from(path)],
    });
    let input = candidates.filter_map(|path| read(name, &path)).max_by_key(|input| input.bytes.len());
    if input.is_none() {
        eprintln!("{name}: not found");
    }
    input
}

/// Of the compiler that built this.
fn sysroot() -> Option<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = std::process::Command::new(rustc).args(["--print", "sysroot"]).output().ok()?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
}

fn beginning_with(name: &str, directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with(name) {
            found.push(path);
        } else if path.join(name).is_file() {
            found.push(path.join(name));
        }
    }
    found
}

fn read(name: &'static str, path: &Path) -> Option<Input> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let file = object::File::parse(&cache).ok()?;
    let section = file.section_by_name(".eh_frame")?;
    Some(Input { name, bytes: section.data().ok()?.to_vec(), address: section.address() })
}

fn first(input: Input) -> Row {
    let bytes = ours(&input);
    let table = Table::from_bytes(&bytes).expect("our own table");
    let rows = by_gimli::evaluate(&input);
    Row {
        rows,
        merged: table.row_count(),
        table_bytes: table.as_bytes().len(),
        input,
        times: Default::default(),
    }
}

fn ours(input: &Input) -> Vec<u8> {
    let section = Section { bytes: &input.bytes, address: input.address };
    compile(section, 0, &[]).expect("real files compile")
}

/// CPU time of this thread, in ns.
fn time(work: impl FnOnce()) -> f64 {
    let now = || {
        let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock");
        time.tv_sec() as f64 * 1e9 + time.tv_nsec() as f64
    };
    let before = now();
    work();
    now() - before
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
