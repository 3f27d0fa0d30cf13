//! `selfwind tables`: builds, verifies, lists and prunes unwind tables; and builds them in the background of `record`. The crate
//! `unwind` defines tables; this module handles files, threads and messages.

pub(crate) mod builder;
pub(crate) mod cache;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use compilation::verify::{self, Report};
use memmap2::Mmap;
use offline::SourceFile;
use selfwind_profile::mapped_file::map_file;
use unwind::Table;

use cache::{Cache, Limits};

/// Compares every row of every FDE in `files` with another DWARF implementation. Prints a line per file and a total; succeeds if
/// there is no mismatch. Files without unwind information are skipped, and the reason is printed.
pub(crate) fn verify(files: &[PathBuf]) -> Result<ExitCode> {
    let mut total = Report::default();
    let mut verified = 0;
    let mut missing = 0;
    for_each_file(files, verify_file, |path, outcome| {
        match outcome {
            Ok(report) => {
                print_report(path, &report)?;
                verified += 1;
                total.rows += report.rows;
                total.mismatches += report.mismatches;
                total.table_bytes += report.table_bytes;
                total.eh_frame_bytes += report.eh_frame_bytes;
            }
            Err(reason) if !path.exists() => {
                missing += 1;
                eprintln!("selfwind: {}: {reason:#}", path.display());
            }
            Err(reason) => print(&format!("{}: skipped: {reason:#}\n", path.display()))?,
        }
        Ok(())
    })?;
    let percent = 100.0 * total.table_bytes as f64 / total.eh_frame_bytes.max(1) as f64;
    eprintln!("{verified} of {} files verified, tables are {percent:.1} % of .eh_frame", files.len());
    print(&format!("rows {} mismatches {}\n", total.rows, total.mismatches))?;
    Ok(if total.mismatches == 0 && missing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn verify_file(path: &Path) -> Result<Report> {
    Ok(verify::verify(&SourceFile::read(path)?.elf())?)
}

fn print_report(path: &Path, report: &Report) -> Result<()> {
    let path = path.display();
    let mut text = format!(
        "{path}: fdes {} rows {} complex {} table-rows {} table-bytes {} eh_frame-bytes {} refused {} mismatches {}\n",
        report.fdes,
        report.rows,
        report.complex_rows,
        report.table_rows,
        report.table_bytes,
        report.eh_frame_bytes,
        report.refused,
        report.mismatches
    );
    for mismatch in &report.described {
        text.push_str(&format!("{path}: {mismatch}\n"));
    }
    print(&text)
}

/// Builds a table for each of `files` in `cache`. Files without unwind information are skipped, the reason is
/// printed, and the exit status is 1.
pub(crate) fn build(files: &[PathBuf], cache: &Cache) -> Result<ExitCode> {
    let mut status = ExitCode::SUCCESS;
    for_each_file(
        files,
        |path| builder::build(cache, &SourceFile::read(path)?),
        |path, outcome| match outcome {
            Ok(table) => print(&format!("{} -> {}\n", path.display(), table.display())),
            Err(reason) => {
                status = ExitCode::FAILURE;
                print(&format!("{}: skipped: {reason:#}\n", path.display()))
            }
        },
    )?;
    Ok(status)
}

/// Prunes `cache` down to `limits`.
pub(crate) fn prune(cache: &Cache, limits: Limits) -> Result<ExitCode> {
    let pruned =
        cache.prune(limits).with_context(|| format!("cannot read {}", cache.directory().display()))?;
    print(&format!(
        "{}: removed {} bytes {}, kept {} bytes {}\n",
        cache.directory().display(),
        pruned.removed,
        pruned.removed_bytes,
        pruned.kept,
        pruned.kept_bytes
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Describes table files, the table files in directories, and the tables that would be built from ELF files. The exit status is 1
/// if a table is damaged.
pub(crate) fn list(files: &[PathBuf]) -> Result<ExitCode> {
    let mut status = ExitCode::SUCCESS;
    let mut all = Vec::new();
    for path in files {
        if path.is_dir() {
            let entries = fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
            let mut found: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
            found.retain(|path| path.extension().is_some_and(|extension| extension == "table"));
            found.sort();
            all.append(&mut found);
        } else {
            all.push(path.clone());
        }
    }
    for_each_file(&all, describe_file, |path, outcome| match outcome {
        Ok(description) => print(&format!("{}: {description}\n", path.display())),
        Err(reason) => {
            status = ExitCode::FAILURE;
            print(&format!("{}: {reason:#}\n", path.display()))
        }
    })?;
    Ok(status)
}

fn describe_file(path: &Path) -> Result<String> {
    let is_table = path.extension().is_some_and(|extension| extension == "table");
    if is_table {
        let file = map(path)?;
        return Ok(describe(&Table::from_bytes(&file)?));
    }
    let source = SourceFile::read(path)?;
    let bytes = source.table(&source.build_id)?;
    Ok(describe(&Table::from_bytes(&bytes)?))
}

fn describe(table: &Table<'_>) -> String {
    let build_id: String = table.build_id().iter().map(|byte| format!("{byte:02x}")).collect();
    let bytes = table.as_bytes().len();
    format!(
        "build-id {} machine {} fdes {} rows {} rules {} bytes {bytes} eh_frame-bytes {}",
        if build_id.is_empty() { "none" } else { &build_id },
        table.machine(),
        table.fde_count(),
        table.row_count(),
        table.rule_count(),
        table.eh_frame_length()
    )
}

fn map(path: &Path) -> Result<Mmap> {
    map_file(path).context("cannot map")
}

fn print(text: &str) -> Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")
}

/// Runs `work` on all files in parallel, and passes the results to `done` in the order of `files`.
fn for_each_file<T: Send>(
    files: &[PathBuf],
    work: impl Fn(&Path) -> Result<T> + Sync,
    mut done: impl FnMut(&Path, Result<T>) -> Result<()>,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let outcomes: Vec<_> = files.iter().map(|_| Mutex::new(None)).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work_off = || {
        while let Some((path, outcome)) = next_of(&next, files, &outcomes) {
            *outcome.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(work(path));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Where there can be no more threads, this one does it all.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work_off);
        }
        work_off();
    });
    for (path, outcome) in files.iter().zip(outcomes) {
        let outcome = outcome.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        done(path, outcome.context("not done")?)?;
    }
    Ok(())
}

fn next_of<'f, T>(
    next: &AtomicUsize,
    files: &'f [PathBuf],
    outcomes: &'f [Mutex<Option<T>>],
) -> Option<(&'f Path, &'f Mutex<Option<T>>)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    Some((files.get(index)?, outcomes.get(index)?))
}
