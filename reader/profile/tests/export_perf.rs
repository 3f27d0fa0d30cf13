//! The perf.data export, read by perf itself.

mod export;

use std::path::Path;
use std::process::Command;

use export::{BASE, make, make_empty};
use selfwind_profile::output::{Format, export};
use selfwind_profile::profile_file::{Event, ProfileReader};
use selfwind_tests::skip::skip;
use unwind::Frame;

/// A sample: process, thread, weight, and the addresses that are looked up, leaf first.
type Seen = (u32, u32, u64, Vec<u64>);

/// What perf prints; none if there is no perf.
fn perf(arguments: &[&str], file: &Path) -> Option<String> {
    let output = match Command::new("perf").args(arguments).arg("-i").arg(file).output() {
        Ok(output) => output,
        Err(error) => {
            skip(format_args!("cannot run perf (Debian: linux-perf): {error}"));
            return None;
        }
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "perf {arguments:?}: {errors}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// `perf script -F pid,tid,period,ip`: a line for each sample, one for each address, and an empty one.
fn scripted(file: &Path) -> Option<Vec<Seen>> {
    let text = perf(&["script", "--no-inline", "-F", "pid,tid,period,ip"], file)?;
    let mut seen: Vec<Seen> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        if let Some((ids, period)) =
            line.trim().split_once(char::is_whitespace).filter(|(ids, _)| ids.contains('/'))
        {
            let (pid, tid) = ids.split_once('/').unwrap();
            let weight = period.trim().split(' ').next().unwrap().parse().unwrap();
            seen.push((pid.parse().unwrap(), tid.parse().unwrap(), weight, Vec::new()));
        } else {
            seen.last_mut().unwrap().3.push(u64::from_str_radix(line.trim(), 16).unwrap());
        }
    }
    Some(seen)
}

#[test]
fn perf_reads_every_sample() {
    let made = make("perf");
    let file = made.path.with_extension("perf.data");
    std::fs::write(&file, made.export(Format::Perf)).unwrap();
    let Some(mut seen) = scripted(&file) else { return };
    let mut expected: Vec<Seen> = Vec::new();
    for event in ProfileReader::open(&made.path).unwrap() {
        if let Event::Sample(sample) = event.unwrap() {
            let pid = if sample.process == 2 { 102 } else { 100 };
            // Within a file perf shows where in the file.
            let in_file =
                |address| if (BASE..BASE + 0x10_0000).contains(&address) { address - BASE } else { address };
            let addresses =
                sample.frames.iter().map(|&word| in_file(Frame::from_bits(word).lookup_address()));
            expected.push((pid, sample.tid, sample.weight.into(), addresses.collect()));
        }
    }
    assert_eq!(seen.iter().map(|sample| sample.2).sum::<u64>(), made.weight);
    seen.sort();
    expected.sort();
    assert_eq!(seen, expected);

    // perf finds the names: the mapping, its offset and its build-id are right.
    let report =
        perf(&["report", "--stdio", "--no-inline", "-g", "none", "--sort", "comm,dso,sym"], &file).unwrap();
    assert!(report.contains(&format!("Event count (approx.): {}", made.weight)), "{report}");
    assert!(report.contains("of event 'timer-periods'"), "{report}");
    let row = |parts: &[&str]| report.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(row(&["worker; 1", "mixer", "checksum"]) && row(&["child", "mixer", "main"]), "{report}");
    let listed = perf(&["report", "--header-only", "--stdio"], &file).unwrap();
    assert!(listed.contains("selfwind 9.9.9") && listed.contains("mixer a "), "{listed}");
}

#[test]
fn losses_are_told() {
    let made = make("perf-lost");
    let file = made.path.with_extension("perf.data");
    std::fs::write(&file, made.export(Format::Perf)).unwrap();
    let Some(dump) = perf(&["script", "--show-lost-events", "-F", "pid,tid,period,ip"], &file) else {
        return;
    };
    assert!(dump.contains("PERF_RECORD_LOST lost 6"), "{dump}");
}

#[test]
fn a_profile_without_samples_can_be_opened() {
    let path = make_empty("perf");
    let file = path.with_extension("perf.data");
    let mut out = Vec::new();
    export(Format::Perf, &path, &mut out).unwrap();
    std::fs::write(&file, out).unwrap();
    if let Some(seen) = scripted(&file) {
        assert!(seen.is_empty(), "{seen:?}");
    }
}
