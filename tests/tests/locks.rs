//! Lock profiles (`-e lock`) of programs that measure their own waits, and of programs that must not notice.

use std::path::Path;
use std::process::Command;

use selfwind_tests::folded::Folded;
use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::recording::{Recorder, Recording, read, record_unharmed};
use selfwind_tests::skip;
use selfwind_tests::target::{Target, is_installed};

/// Permitted relative error of waits.
const TOLERANCE: f64 = 0.03;
/// Share of waits whose holder must be the right one.
const RIGHT: f64 = 0.99;
/// On a busy machine, a wait at an atomic may only yield: the program is run again.
const ATTEMPTS: usize = 4;

fn recorder(source: &str) -> Recorder {
    Recorder::at(99).event(source).env("SELFWIND_POOL", "16M")
}

fn folded(file: &Path, event: &str) -> Folded {
    Folded::parse(&read(&["export", "-f", "folded", "--event", event], file))
}

/// A program's own measurement of one kind of wait.
struct Said {
    kind: String,
    waits: u64,
    /// How many of them blocked.
    blocked: u64,
    /// The duration of those.
    ns: u64,
    /// How much of that the thread was runnable and had no processor, perhaps before or after the call that waits.
    unscheduled_ns: u64,
}

fn said(outcome: &Outcome) -> Vec<Said> {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let kind = words.next().expect("a kind").to_owned();
        let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
        Said { kind, waits: number(), blocked: number(), ns: number(), unscheduled_ns: number() }
    };
    outcome.stdout.lines().map(line).collect()
}

/// Compares a recording with the program's own measurements: `wait_KIND` waits for `hold_KIND`. Returns the errors.
fn errors(recording: &Recording) -> Vec<String> {
    let stats = recording.stats();
    stats.assert_adds_up();
    assert_eq!(stats.number("lost"), 0, "lost samples");
    let [waits, delay, held] =
        ["contentions", "delay", "held_delay"].map(|event| folded(&recording.file, event));
    let mut errors = Vec::new();
    let mut check = |name: &str, found: u64, least: u64, most: u64, tolerance: f64| {
        let range = least as f64 * (1.0 - tolerance)..=most as f64 * (1.0 + tolerance);
        if !range.contains(&(found as f64)) {
            errors.push(format!("{name}: {found} instead of {least} to {most}"));
        }
    };
    for Said { kind, waits: count, blocked, ns, unscheduled_ns } in said(&recording.outcome) {
        let (waiter, holder) = (format!("wait_{kind}"), format!("hold_{kind}"));
        // A futex or condition variable may wake its waiter spuriously.
        check(&format!("waits in {waiter}"), waits.inclusive(&waiter), blocked, count, 0.05);
        let waited = delay.inclusive(&waiter);
        check(&format!("delay in {waiter}"), waited, ns.saturating_sub(unscheduled_ns), ns, TOLERANCE);
        check(&format!("delay held by {holder}"), held.inclusive(&holder), waited, waited, 1.0 - RIGHT);
    }
    errors
}

fn assert_times(program: &Path, arguments: &[&str], source: &str) {
    let recording = recorder(source).record(program, arguments);
    assert_eq!(recording.outcome.status, 0, "{}", recording.outcome.stderr);
    let errors = errors(&recording);
    assert!(errors.is_empty(), "{source}:\n{}\n{}", errors.join("\n"), recording.outcome.stdout);
}

#[test]
fn waits_take_as_long_as_the_program_says_and_have_their_holders() {
    for source in ["lock:all", "lock"] {
        assert_times(&Target::c("lock_sites").build(), &["20"], source);
    }
}

/// Waits much shorter than the mean distance between samples: their sum is estimated.
#[test]
fn rare_samples_stand_for_all_waits() {
    let program = Target::c("lock_sites").build();
    let recording = recorder("lock:5ms").record(&program, &["60"]);
    let expected: u64 = said(&recording.outcome).iter().map(|said| said.ns).sum();
    let kinds = said(&recording.outcome).len();
    let delay = folded(&recording.file, "delay");
    let found: u64 =
        said(&recording.outcome).iter().map(|said| delay.inclusive(&format!("wait_{}", said.kind))).sum();
    // N waits of 1.6 ms on average, each sampled with p = 1 - exp(-1.6/5).
    let (waits, p) = (60.0 * kinds as f64, 1.0 - (-0.32f64).exp());
    let deviation = ((1.0 - p) / (p * waits)).sqrt();
    let off = (found as f64 / expected as f64 - 1.0).abs();
    assert!(
        off < 4.5 * deviation,
        "{found} instead of {expected}: off by {off:.3}, deviation {deviation:.3}"
    );
}

#[test]
fn locks_of_rust_are_seen() {
    if !is_installed("rustc") {
        skip::leave("rustc is not installed");
    }
    assert_times(&Target::rust("lock_rust").build(), &[], "lock:all");
}

/// libstdc++ yields its CPU several times before it waits: on a busy machine much of the time is spent there, or all of
/// it.
#[test]
fn waits_at_atomics_are_seen() {
    let program = Target::cpp("lock_atomic").with("20", &["-std=c++20"]).build();
    for _ in 0..ATTEMPTS {
        let recording = recorder("lock:all").record(&program, &[] as &[&str]);
        let said = said(&recording.outcome);
        let [waits, delay, held] =
            ["contentions", "delay", "held_delay"].map(|event| folded(&recording.file, event));
        let (delay, waits) = (delay.inclusive("wait_atomic"), waits.inclusive("wait_atomic"));
        if waits == 0 {
            continue;
        }
        assert!(waits <= said[0].waits + 2, "{waits} waits of {}", said[0].waits);
        assert!(delay as f64 <= said[0].ns as f64 * 1.01, "{delay} ns of {}", said[0].ns);
        assert!(held.inclusive("hold_atomic") as f64 >= delay as f64 * RIGHT, "held: {held:?}");
        return;
    }
    panic!("no wait at an atomic in {ATTEMPTS} recordings");
}

#[test]
fn musl_has_the_same_waits() {
    if !is_installed("musl-gcc") {
        skip::leave("musl-gcc is not installed");
    }
    // It has no clocklock.
    let flags = ["-DNO_CLOCKLOCK"];
    assert_times(&Target::c("lock_sites").with("musl", &flags).musl().build(), &["20"], "lock:all");
}

#[test]
fn lock_functions_behave_as_without_the_agent() {
    for source in ["lock", "lock:all"] {
        record_unharmed(&recorder(source), &Target::c("lock_rules").build(), &[] as &[&str]);
    }
}

#[test]
fn hazards_are_unharmed() {
    for name in
        ["fork", "exec", "vfork", "posix_spawn", "dlopen_churn", "thread_churn", "malloc_storm", "siglongjmp"]
    {
        for source in ["lock", "lock:all"] {
            record_unharmed(&Recorder::at(99).event(source), &Target::c(name).build(), &[] as &[&str]);
        }
    }
    for name in ["throw", "thread_locals"] {
        record_unharmed(&recorder("lock:all"), &Target::cpp(name).build(), &[] as &[&str]);
    }
}

#[test]
fn a_profile_of_time_has_no_waits_for_locks() {
    let recording = Recorder::default().event("cpu").record(Path::new("/bin/true"), &[] as &[&str]);
    let outcome = run(Command::new(selfwind_tests::binary::selfwind())
        .args(["report", "--event", "delay"])
        .arg(&recording.file));
    assert_eq!(outcome.status, 1);
    assert!(outcome.stderr.contains("no event delay"), "{}", outcome.stderr);
}

#[test]
fn the_report_says_who_waits_for_whom() {
    let recording = recorder("lock:all").record(&Target::c("lock_sites").build(), &["3"]);
    let report = read(&["report", "--limit", "0"], &recording.file);
    let heading = report.find("Waits, and who ended them").expect("the heading");
    for kind in ["first", "writer", "semaphore", "futex"] {
        let wait = report[heading..]
            .find(&format!("wait_{kind}"))
            .unwrap_or_else(|| panic!("no wait_{kind}: {report}"));
        let next = &report[heading + wait..];
        let line: String = next.lines().take(4).collect::<Vec<_>>().join("\n");
        assert!(line.contains(&format!("hold_{kind}")), "wait_{kind} without hold_{kind}: {line}");
    }
}
