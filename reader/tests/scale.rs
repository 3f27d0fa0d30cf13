//! Profiles that are far larger than what is shown of them: memory is bounded by distinct stacks, not by samples.
//!
//! The long form has ten million samples.

mod large_profile;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use large_profile::{Shape, write};

/// The program whose functions are hit: the one that is built for tests anyway.
fn program() -> PathBuf {
    std::env::var_os("SELFWIND_BIN").map_or_else(|| env!("CARGO_BIN_EXE_selfwind").into(), PathBuf::from)
}

/// Runs the reader; gives the greatest resident size of all runs in KiB, the CPU time of this one, and its output.
fn measured(arguments: &[&str], file: &Path, cache: &Path) -> (i64, Duration, Vec<u8>) {
    use nix::sys::resource::{UsageWho, getrusage};
    let cpu = || {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
        let micros = [usage.user_time(), usage.system_time()].map(|t| t.tv_sec() * 1_000_000 + t.tv_usec());
        Duration::from_micros(micros.iter().sum::<i64>() as u64)
    };
    let before = cpu();
    let mut reader = Command::new(program());
    reader.args(arguments).arg(file).env("XDG_CACHE_HOME", cache).stdin(Stdio::null());
    let output = reader.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss(), cpu() - before, output.stdout)
}

fn check(shape: Shape) {
    let long = std::env::var_os("SELFWIND_LONG").is_some();
    let samples = if long { 10_000_000 } else { 100_000 };
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("scale-{shape:?}"));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    let file = directory.join("p.data");
    write(&file, &program(), samples, shape);
    println!("{shape:?}: {samples} samples, {} MiB", file.metadata().unwrap().len() >> 20);
    for what in ["first", "again"] {
        let started = Instant::now();
        let (peak, cpu, text) = measured(&["report", "--json", "--limit", "5"], &file, &directory);
        println!("{what}: {:.1?}, CPU {cpu:.1?}, greatest size so far {} MiB", started.elapsed(), peak >> 10);
        let report: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!((report["samples"].as_u64(), report["weight"].as_u64()), (Some(samples), Some(samples)));
        // Eight processes have one binary, which is read once; the second time its names are known.
        let binaries = &report["binaries"];
        let read = u64::from(what == "first");
        assert_eq!((binaries["hit"].as_u64(), binaries["read"].as_u64()), (Some(1), Some(read)));
        // The debug build of the reader, which is symbolized, has its DWARF in memory too.
        assert!(peak < 1 << 20, "{what}: {peak} KiB for {samples} samples");
    }
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn memory_is_bounded_by_stacks_that_repeat() {
    check(Shape::Typical);
}

#[test]
fn memory_is_bounded_by_stacks_that_hardly_repeat() {
    check(Shape::Scattered);
}
