//! Runs the hazard programs in rotation at 10 kHz: no crash, no hang, the same output and exit status as alone each
//! time, and an accounting that adds up. Ten seconds per source; with `SELFWIND_LONG` ten minutes, or that many.

use std::process::Command;
use std::time::{Duration, Instant};

use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::recording::Recorder;
use selfwind_tests::target::Target;

const FREQUENCY: u32 = 10_000;
const SOURCES: [&str; 3] = ["cpu", "itimer", "perf"];

/// Programs whose behaviour is the same each time, with one argument or none.
const PROGRAMS: [(&str, &str); 24] = [
    ("fork", ""),
    ("vfork", ""),
    ("posix_spawn", ""),
    ("shell_out", ""),
    ("exec", "chain"),
    ("exec", "threads"),
    ("thread_churn", ""),
    ("sigaltstack", ""),
    ("siglongjmp", ""),
    ("own_sigprof", "itimer"),
    ("own_sigprof", "raise"),
    ("close_all_fds", ""),
    ("seccomp", "errno"),
    ("coroutine", ""),
    ("coroutine_switch", ""),
    ("guarded_stacks", ""),
    ("raw_clone", ""),
    ("raw_clone", "own"),
    ("deep_changes", "300"),
    ("large_fork", ""),
    ("sigwait", ""),
    ("signalfd", ""),
    ("wild", ""),
    ("edges", ""),
];

fn duration() -> Duration {
    match std::env::var("SELFWIND_LONG") {
        Err(_) => Duration::from_secs(10),
        Ok(minutes) => Duration::from_secs(60 * minutes.parse().ok().filter(|m| *m > 1).unwrap_or(10)),
    }
}

#[test]
fn ten_thousand_times_a_second() {
    let end = Instant::now() + duration() * SOURCES.len() as u32;
    let mut alone: Vec<Option<Outcome>> = vec![None; PROGRAMS.len()];
    let (mut runs, mut samples) = ([0; SOURCES.len()], [0; SOURCES.len()]);
    for turn in 0.. {
        if Instant::now() > end {
            break;
        }
        let index = turn % PROGRAMS.len();
        let (name, argument) = PROGRAMS[index];
        let arguments: Vec<&str> = Some(argument).filter(|a| !a.is_empty()).into_iter().collect();
        let program = Target::c(name).build();
        let expected = alone[index].get_or_insert_with(|| run(Command::new(&program).args(&arguments)));
        // Each program runs with another source in each turn.
        let number = (turn + turn / PROGRAMS.len()) % SOURCES.len();
        let source = SOURCES[number];
        let recording = Recorder::at(FREQUENCY).event(source).record(&program, &arguments);
        assert_eq!(&recording.outcome, expected, "{name} {argument} ({source}), turn {turn}");
        recording.stats().assert_adds_up();
        samples[number] += recording.stats().number("samples");
        runs[number] += 1;
    }
    println!("{SOURCES:?}: {runs:?} runs, {samples:?} samples");
    assert!(samples.iter().all(|count| *count > 0));
}
