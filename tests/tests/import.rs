//! `selfwind import`: files of `perf record`, compared with perf's own output.
//!
//! The imported profile is exported as perf.data again, so that one program, perf, prints the addresses of both:
//! without names and inlining, the bare stacks.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::recording::{folded, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::leave;
use selfwind_tests::target::{Target, is_installed};

const FREQUENCY: u64 = 997;
/// The import ends a call chain at a value from here on: it is no address of a program.
const ADDRESS_END: u64 = 1 << 56;

/// Records `command` with perf.
fn perf_record(scratch: &Scratch, options: &[&str], command: &[&str]) {
    if !is_installed("perf") {
        leave("perf is not installed");
    }
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-e", "cpu-clock", "-F", &FREQUENCY.to_string(), "-o", "perf.data"]);
    let recorded = run(perf.args(options).arg("--").args(command).current_dir(scratch.path()));
    if recorded.status != 0 && recorded.stderr.contains("perf_event_paranoid") {
        leave("perf may not record here");
    }
    assert_eq!(recorded.status, 0, "{}", recorded.stderr);
}

fn import(scratch: &Scratch, file: &str) -> Outcome {
    let mut command = Command::new(selfwind());
    run(command.args(["import", "-o", "imported.data", file]).current_dir(scratch.path()))
}

/// Exports the imported profile as perf.data.
fn exported(scratch: &Scratch) {
    let mut command = Command::new(selfwind());
    command.args(["export", "-f", "perf", "-o", "again.perf.data", "imported.data"]);
    let outcome = run(command.current_dir(scratch.path()));
    assert_eq!(outcome.status, 0, "{}", outcome.stderr);
}

/// Addresses of the program, leaf first, by thread and time.
fn stacks(scratch: &Scratch, file: &str) -> BTreeMap<(String, String), Vec<u64>> {
    let mut command = Command::new("perf");
    command.args(["script", "--ns", "--no-inline", "--max-stack", "1024", "-F", "tid,time,ip", "-i", file]);
    let outcome = run(command.current_dir(scratch.path()));
    assert_eq!(outcome.status, 0, "{}", outcome.stderr);
    let mut stacks = BTreeMap::new();
    for block in outcome.stdout.split("\n\n") {
        let mut lines = block.lines().filter(|line| !line.trim().is_empty());
        let Some((tid, time)) = lines.next().and_then(|line| {
            line.split_once(char::is_whitespace).or_else(|| line.trim().split_once(char::is_whitespace))
        }) else {
            continue;
        };
        let addresses = lines.map(|line| u64::from_str_radix(line.trim(), 16).expect("an address"));
        let user = addresses.filter(|address| address >> 63 == 0);
        stacks.insert((tid.trim().to_owned(), time.trim().to_owned()), user.collect());
    }
    stacks
}

/// perf prints the address of the call, or the one after it.
fn is_same(a: &[u64], b: &[u64]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.abs_diff(*b) <= 1)
}

/// The total of `perf report`.
fn event_count(scratch: &Scratch) -> u64 {
    let mut command = Command::new("perf");
    command.args(["script", "-F", "period", "-G", "-i", "perf.data"]);
    let outcome = run(command.current_dir(scratch.path()));
    outcome
        .stdout
        .lines()
        .map(|line| line.trim().trim_end_matches(':').parse::<u64>().expect("a period"))
        .sum()
}

fn assert_sums(scratch: &Scratch) -> u64 {
    let stats = stats(&scratch.join("imported.data"));
    let period = 1_000_000_000 / FREQUENCY;
    assert_eq!(stats.number("weight") * period, event_count(scratch), "the weights are perf's periods");
    stats.assert_adds_up();
    assert_eq!(folded(&scratch.join("imported.data")).total(), stats.number("weight"));
    stats.number("samples")
}

#[test]
fn copied_stacks_agree_with_perf() {
    let scratch = Scratch::new();
    let job = Target::c("job").build();
    let job = job.to_str().expect("UTF-8");
    for options in [&["--call-graph", "dwarf,16384"][..], &["-z", "--call-graph", "dwarf,16384"]] {
        perf_record(&scratch, options, &[job]);
        let imported = import(&scratch, "perf.data");
        assert_eq!(imported.status, 0, "{}", imported.stderr);
        let samples = assert_sums(&scratch);
        assert!(samples >= 50, "{samples} samples");
        exported(&scratch);
        let (theirs, ours) = (stacks(&scratch, "perf.data"), stacks(&scratch, "again.perf.data"));
        assert_eq!(theirs.len(), ours.len());
        let (mut same, mut longer, mut differ) = (0, 0, Vec::new());
        for (key, theirs) in &theirs {
            let ours = ours.get(key).unwrap_or_else(|| panic!("no sample of {key:?}"));
            match ours.len().cmp(&theirs.len()) {
                std::cmp::Ordering::Equal if is_same(ours, theirs) => same += 1,
                std::cmp::Ordering::Greater if is_same(ours, theirs) => longer += 1,
                _ => differ.push(format!("{key:?}: ours {ours:x?}, perf's {theirs:x?}")),
            }
        }
        println!("{same} the same, {longer} longer, {} differ", differ.len());
        assert!(differ.len() * 100 <= theirs.len(), "{differ:#?}");
        assert!((same + longer) * 100 >= theirs.len() * 99);
    }
}

#[test]
fn callchains_are_imported_unchanged() {
    let scratch = Scratch::new();
    let job = Target::c("job").with("frame_pointers", &["-fno-omit-frame-pointer"]).build();
    perf_record(&scratch, &["-g"], &[job.to_str().expect("UTF-8")]);
    let imported = import(&scratch, "perf.data");
    assert_eq!(imported.status, 0, "{}", imported.stderr);
    assert!(assert_sums(&scratch) >= 50);
    exported(&scratch);
    let (theirs, ours) = (stacks(&scratch, "perf.data"), stacks(&scratch, "again.perf.data"));
    assert_eq!(theirs.len(), ours.len());
    for (key, theirs) in &theirs {
        let ours = &ours[key];
        // Before the C library sets it, the frame pointer register has any value.
        let end = theirs.iter().position(|address| *address >= ADDRESS_END).unwrap_or(theirs.len());
        let theirs = &theirs[..end];
        assert!(ours.len() == theirs.len() && is_same(ours, theirs), "{key:?}: {ours:x?} {theirs:x?}");
    }
}

/// A function that uses the frame pointer register for something else has a caller that is no address.
#[test]
fn callchains_end_at_values_that_are_no_addresses() {
    let scratch = Scratch::new();
    let program = Target::c("text_in_frame_pointer").build();
    perf_record(&scratch, &["-g"], &[program.to_str().expect("UTF-8")]);
    let imported = import(&scratch, "perf.data");
    assert_eq!(imported.status, 0, "{}", imported.stderr);
    let samples = assert_sums(&scratch);
    let theirs = stacks(&scratch, "perf.data");
    let cut = theirs.values().filter(|stack| stack.iter().any(|address| *address >= ADDRESS_END)).count();
    assert!(samples >= 50 && cut as u64 * 10 >= samples * 9, "{cut} of {samples}");
    assert_eq!(stats(&scratch.join("imported.data")).number("truncated"), cut as u64);
    exported(&scratch);
    for (key, ours) in stacks(&scratch, "again.perf.data") {
        assert!(ours.iter().all(|address| *address < ADDRESS_END), "{key:?}: {ours:x?}");
    }
}

/// Forked and executed programs are separate processes, as for perf.
#[test]
fn processes_are_distinguished() {
    let scratch = Scratch::new();
    let job = Target::c("job").build();
    for name in ["first", "second"] {
        fs::copy(&job, scratch.join(name)).expect("ours");
    }
    perf_record(&scratch, &["--call-graph", "dwarf"], &["sh", "-c", "./first & ./second; wait"]);
    let imported = import(&scratch, "perf.data");
    assert_eq!(imported.status, 0, "{}", imported.stderr);
    assert_sums(&scratch);
    let script = run(Command::new("perf")
        .args(["script", "-G", "-F", "comm,pid", "-i", "perf.data"])
        .current_dir(scratch.path()));
    let mut theirs = BTreeMap::new();
    for line in script.stdout.lines() {
        *theirs.entry(line.split_whitespace().next().expect("a name").to_owned()).or_insert(0u64) += 1;
    }
    for name in ["first", "second"] {
        let ours = stats(&scratch.join("imported.data")).executables();
        let ours: u64 = ours.iter().filter(|(exe, _)| exe.ends_with(name)).map(|(_, samples)| samples).sum();
        assert!(ours > 0, "no sample of {name}: {theirs:?}");
        // Before its exec the process is still `sh`.
        assert_eq!(Some(&ours), theirs.get(name), "{theirs:?}");
    }
    let stacks = folded(&scratch.join("imported.data"));
    assert!(stacks.nested("parser", "parse") > 0 && stacks.nested("evaluator", "evaluate") > 0, "{stacks:?}");
}

/// Files left by a killed `perf record`, or by a full disk.
#[test]
fn truncated_files_give_what_they_have() {
    let scratch = Scratch::new();
    let job = Target::c("job").build();
    perf_record(&scratch, &["--call-graph", "dwarf,1024"], &[job.to_str().expect("UTF-8")]);
    let whole = fs::read(scratch.join("perf.data")).expect("recorded");
    assert_eq!(import(&scratch, "perf.data").status, 0);
    let all = stats(&scratch.join("imported.data")).number("samples");
    let mut last = 0;
    for len in (4096..whole.len()).step_by(4096) {
        fs::write(scratch.join("cut.data"), &whole[..len]).expect("ours");
        let mut command = Command::new(selfwind());
        command.args(["import", "--no-names", "-o", "imported.data", "cut.data"]);
        let imported = run(command.current_dir(scratch.path()));
        assert_eq!(imported.status, 0, "{len}: {}", imported.stderr);
        let samples = stats(&scratch.join("imported.data")).number("samples");
        // What follows the records is not needed.
        assert!(samples == all || imported.stderr.contains("truncated; the"), "{len}: {samples} of {all}");
        assert!(samples >= last, "{len}: {samples} after {last}");
        last = samples;
    }
    assert!(last >= 50 && last <= all, "{last} of {all}");
}

#[test]
fn files_that_cannot_be_imported_are_named() {
    let scratch = Scratch::new();
    let refuse = |arguments: &[&str], naming: &str| {
        let outcome = run(Command::new(selfwind()).arg("import").args(arguments).current_dir(scratch.path()));
        assert_eq!(outcome.status, 1, "{arguments:?}: {}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
        assert!(outcome.stderr.contains(naming), "{arguments:?}: {}", outcome.stderr);
        assert!(!Path::new(&scratch.join("selfwind.data")).exists(), "nothing is written");
    };
    refuse(&[], "perf.data: cannot open it");
    fs::write(scratch.join("text"), "no such file").expect("ours");
    refuse(&["text"], "it does not begin with PERFILE2");
    fs::write(scratch.join("big"), b"2ELIFREP").expect("ours");
    refuse(&["big"], "big-endian");
    fs::write(scratch.join("pipe"), b"PERFILE2\x10\0\0\0\0\0\0\0").expect("ours");
    refuse(&["pipe"], "perf inject");
    fs::create_dir(scratch.join("directory")).expect("ours");
    refuse(&["directory"], "--threads");
}
