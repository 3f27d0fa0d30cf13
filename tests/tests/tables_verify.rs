//! Every row of every table equals an independent evaluation of the same DWARF, on this machine's own files.

use std::path::PathBuf;
use std::process::Command;

use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::run;

fn verify(files: &[PathBuf]) -> (u64, u64) {
    let outcome = run(Command::new(selfwind()).args(["tables", "verify"]).args(files));
    let last = outcome.stdout.lines().last().unwrap_or_default();
    let words: Vec<&str> = last.split_whitespace().collect();
    let ["rows", rows, "mismatches", mismatches] = words[..] else {
        panic!("the last line is `rows N mismatches M`: {last:?} {}", outcome.stderr)
    };
    let (rows, mismatches) = (rows.parse().expect("a number"), mismatches.parse().expect("a number"));
    let wrong: Vec<&str> = outcome.stdout.lines().filter(|l| !l.ends_with("mismatches 0")).take(40).collect();
    assert_eq!(outcome.status == 0, mismatches == 0, "{last} with status {}", outcome.status);
    assert_eq!(mismatches, 0, "{wrong:#?}");
    (rows, mismatches)
}

/// The regular files in `directory` whose name contains `part`.
fn files(directory: &str, part: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|e| panic!("{directory}: {e}"));
    let paths = entries.filter_map(|e| Some(e.ok()?.path()));
    let mut files: Vec<PathBuf> = paths
        .filter(|p| p.is_file() && p.to_string_lossy().contains(part))
        .filter_map(|p| p.canonicalize().ok())
        .collect();
    files.sort();
    files.dedup();
    files
}

/// All of them with `SELFWIND_TABLES_ALL`; else enough to meet every kind of row without an hour's work.
fn some(files: Vec<PathBuf>, count: usize) -> Vec<PathBuf> {
    if std::env::var_os("SELFWIND_TABLES_ALL").is_some() {
        return files;
    }
    let step = files.len().div_ceil(count).max(1);
    files.into_iter().step_by(step).collect()
}

#[test]
fn the_c_library_and_the_loader() {
    let mut chosen = files("/lib/x86_64-linux-gnu", "libc.so.6");
    chosen.extend(files("/lib/x86_64-linux-gnu", "ld-linux"));
    chosen.extend(files("/lib/x86_64-linux-gnu", "libgcc_s"));
    let (rows, _) = verify(&chosen);
    assert!(rows > 20_000, "{rows} rows");
}

#[test]
fn shared_objects_of_this_machine() {
    let (rows, _) = verify(&some(files("/lib/x86_64-linux-gnu", ".so"), 60));
    assert!(rows > 100_000, "{rows} rows");
}

#[test]
fn programs_of_this_machine() {
    let (rows, _) = verify(&some(files("/usr/bin", ""), 80));
    assert!(rows > 100_000, "{rows} rows");
}

#[test]
fn hand_written_assembly() {
    let chosen = files("/usr/lib/x86_64-linux-gnu", "libcrypto.so");
    if chosen.is_empty() {
        println!("no libcrypto");
        return;
    }
    assert!(verify(&chosen).0 > 50_000);
}
