//! Lock profiles (`-e lock`) of programs that measure their own waits, and of programs that must not notice.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use selfwind_profile::profile_file::{Event, ProfileReader};
use selfwind_tests::folded::Folded;
use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::recording::{Recorder, Recording, read, record_unharmed};
use selfwind_tests::skip;
use selfwind_tests::target::{Target, is_installed};
use shm_format::LockNonce;

/// Permitted relative error of a wait.
const TOLERANCE: f64 = 0.03;
/// How long the function that waits may take besides: it spins, and its sample may be the first on a page.
const AROUND_NS: f64 = 100_000.0;
/// Share of waits that must be right. A thread that loses its CPU within the lock function may not be seen by the holder, or
/// may block for a page instead.
const MOST: f64 = 0.9;
/// How much a sample's time may differ from the program's clock.
const CLOCKS_DIFFER_NS: u64 = 20_000;
/// On a busy machine, a wait at an atomic may only yield: the program is run again.
const ATTEMPTS: usize = 4;

fn recorder(source: &str) -> Recorder {
    Recorder::at(99).event(source).env("SELFWIND_POOL", "16M")
}

fn folded(file: &Path, event: &str) -> Folded {
    Folded::parse(&read(&["export", "-f", "folded", "--event", event], file))
}

/// A program's own measurement of a wait.
struct Wait {
    kind: String,
    start: u64,
    ns: u64,
    /// How much of that the thread was runnable and had no processor, perhaps before or after the call that waits.
    unscheduled_ns: u64,
    has_blocked: bool,
}

fn said(outcome: &Outcome) -> Vec<Wait> {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let kind = words.next().expect("a kind").to_owned();
        let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
        Wait { kind, start: number(), ns: number(), unscheduled_ns: number(), has_blocked: number() == 1 }
    };
    outcome.stdout.lines().map(line).collect()
}

/// The recorded waits of the main thread: when each was recorded, and the time waited.
fn recorded(file: &Path) -> Vec<(u64, u64)> {
    let mut pid = 0;
    let mut waits = Vec::new();
    for event in ProfileReader::open(file).expect("a profile") {
        match event.expect("whole") {
            Event::Process(process) => pid = process.pid,
            Event::Sample(sample) if sample.tid == pid && !LockNonce(sample.nonce).is_holder() => {
                waits.push((sample.ns, LockNonce(sample.nonce).time()));
            }
            _ => {}
        }
    }
    waits
}

/// Compares a recording with the program's own measurements: `wait_KIND` waits for `hold_KIND`. Returns the errors.
fn errors(recording: &Recording) -> Vec<String> {
    let stats = recording.stats();
    stats.assert_adds_up();
    assert_eq!(stats.number("lost"), 0, "lost samples");
    let [contentions, delay, held] =
        ["contentions", "delay", "held_delay"].map(|event| folded(&recording.file, event));
    let said = said(&recording.outcome);
    // A futex or condition variable may wake its waiter spuriously: one wait may be recorded as several.
    let mut found = vec![(0, 0); said.len()];
    for (ns, waited) in recorded(&recording.file) {
        let number = said.partition_point(|wait| wait.start <= ns + CLOCKS_DIFFER_NS).max(1) - 1;
        found[number] = (found[number].0 + 1, found[number].1 + waited);
    }
    let mut errors = Vec::new();
    for kind in said.iter().map(|wait| &wait.kind).collect::<BTreeSet<_>>() {
        let of_kind = || said.iter().zip(&found).filter(|(wait, _)| wait.kind == *kind);
        let [mut right, mut records, mut waited, mut blocked] = [0; 4];
        for (wait, (number, ns)) in of_kind() {
            let least = if wait.has_blocked { wait.ns.saturating_sub(wait.unscheduled_ns) } else { 0 };
            let range = least as f64 * (1.0 - TOLERANCE) - AROUND_NS..=wait.ns as f64 * (1.0 + TOLERANCE);
            right += u64::from(range.contains(&(*ns as f64)));
            (records, waited) = (records + number, waited + ns);
            blocked += if wait.has_blocked { *ns } else { 0 };
        }
        let mut check = |name: String, found: u64, least: f64, most: f64| {
            if !(least..=most).contains(&(found as f64)) {
                errors.push(format!("{name}: {found} instead of {least} to {most}"));
            }
        };
        let (waiter, holder) = (format!("wait_{kind}"), format!("hold_{kind}"));
        let count = of_kind().count() as f64;
        check(format!("right times of {kind}"), right, count * MOST, count);
        for (named, total) in [(&contentions, records), (&delay, waited)] {
            check(waiter.clone(), named.inclusive(&waiter), total as f64 * 0.99, total as f64 * 1.01);
        }
        check(holder.clone(), held.inclusive(&holder), blocked as f64 * MOST, waited as f64 * 1.01);
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

/// What `lock_ping_pong` prints: CPU time, number of waits, time of the waits.
fn used_and_waited(recording: &Recording) -> [f64; 3] {
    let numbers: Vec<f64> =
        recording.outcome.stdout.split_whitespace().map(|number| number.parse().expect("a number")).collect();
    numbers.try_into().expect("three numbers")
}

/// Where recording all waits would take too much time, few are recorded, and stand for the others.
#[test]
fn frequent_waits_are_thinned_out_to_stay_below_the_limit() {
    let program = Target::c("lock_ping_pong").build();
    let limited = |source: &str| recorder(source).env("SELFWIND_MAX_OVERHEAD", "0.3");
    let thinned = limited("lock:1us").record(&program, &["400000"]);
    thinned.assert_adds_up();
    let [_, waits, waited] = used_and_waited(&thinned);
    let stats = thinned.stats();
    let samples = stats.number("samples") as f64;
    assert!((100.0..waits / 4.0).contains(&samples), "{samples} of {waits}: {:#}", stats.0);
    // A sample stands for its wait or the mean distance between samples, whichever is longer.
    let found = folded(&thinned.file, "delay").inclusive("wait_for_turn") as f64;
    assert!((0.75..=1.25).contains(&(found / waited)), "{found} of {waited} ns: {:#}", stats.0);
    let unlimited = limited("lock:all").record(&program, &[] as &[&str]);
    let [_, waits, _] = used_and_waited(&unlimited);
    assert!(folded(&unlimited.file, "contentions").total() as f64 >= 0.99 * waits, "{waits}");
}

/// Ticks of the clock that arrive while a wait is recorded are left to the next sample, and must not come twice.
#[test]
fn cpu_time_is_counted_once_beside_waits() {
    let program = Target::c("lock_ping_pong").build();
    for source in ["cpu,lock:all", "auto,lock:all"] {
        let recording =
            Recorder::at(997).event(source).env("SELFWIND_POOL", "16M").record(&program, &[] as &[&str]);
        let [used, ..] = used_and_waited(&recording);
        let stats = recording.stats();
        let share = stats.detail(&["cpu_ns"]) as f64 / used;
        assert!((0.93..=1.03).contains(&share), "{source}: {share} of {used} ns: {:#}", stats.0);
    }
}

/// Waits much shorter than the mean distance between samples: their sum is estimated.
#[test]
fn rare_samples_stand_for_all_waits() {
    let program = Target::c("lock_sites").build();
    let recording = recorder("lock:5ms").record(&program, &["60"]);
    let said = said(&recording.outcome);
    let expected: u64 = said.iter().map(|wait| wait.ns).sum();
    let kinds: BTreeSet<_> = said.iter().map(|wait| &wait.kind).collect();
    let delay = folded(&recording.file, "delay");
    let found: u64 = kinds.iter().map(|kind| delay.inclusive(&format!("wait_{kind}"))).sum();
    // Waits of 1.6 ms on average, each sampled with p = 1 - exp(-1.6/5).
    let (waits, p) = (said.len() as f64, 1.0 - (-0.32f64).exp());
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
        let ns: u64 = said.iter().map(|wait| wait.ns).sum();
        assert!(waits as usize <= said.len() + 2, "{waits} waits of {}", said.len());
        assert!(delay as f64 <= ns as f64 * 1.01, "{delay} ns of {ns}");
        assert!(held.inclusive("hold_atomic") as f64 >= delay as f64 * 0.99, "held: {held:?}");
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
