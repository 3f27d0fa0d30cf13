//! The detector, a library preloaded with the agent, aborts if the allocator, a lock, the loader or stdio runs inside
//! the sampling handler. Nothing of that happens at a high rate, in programs that spend their time in exactly these.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use selfwind_tests::binary::agent;
use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::recording::Recorder;
use selfwind_tests::scratch::Scratch;
use selfwind_tests::target::Target;

/// Runs with LD_PRELOAD set to `first` and the detector.
fn watched(first: &str, offence: &str, program: &PathBuf, scratch: &Scratch) -> Outcome {
    let detector = Target::preload("detector").build();
    run(Command::new(program)
        .env("LD_PRELOAD", format!("{first}:{}", detector.display()))
        .env("SELFWIND_DETECT", first)
        .env("SELFWIND_DETECT_COUNT", scratch.join("count"))
        .env("SELFWIND_OFFENCE", offence))
}

/// Number of checked calls, and of calls made with all signals blocked.
fn counts(scratch: &Scratch) -> (u64, u64) {
    let text = fs::read_to_string(scratch.join("count")).expect("the detector's words");
    let line = text.lines().next().expect("a line");
    let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().expect("a number")).collect();
    assert_eq!(numbers[2], 1, "the detector did not find the agent");
    (numbers[0], numbers[1])
}

#[test]
fn it_catches_every_offender() {
    let offender = Target::preload("offender").build().display().to_string();
    let program = Target::c("malloc_storm").build();
    for offence in ["malloc", "lock", "dl_iterate_phdr", "getspecific", "deep"] {
        let scratch = Scratch::new();
        let outcome = watched(&offender, offence, &program, &scratch);
        assert_eq!(outcome.status, 134, "{offence}: {outcome:?}");
        assert!(outcome.stderr.contains("detector: called inside the sampling handler"), "{outcome:?}");
    }
}

#[test]
fn it_does_not_catch_harmless_calls() {
    let offender = Target::preload("offender").build().display().to_string();
    let scratch = Scratch::new();
    let outcome = watched(&offender, "none", &Target::c("malloc_storm").build(), &scratch);
    assert_eq!((outcome.status, outcome.stdout.as_str()), (49, "storm done\n"), "{outcome:?}");
    let (looked, blocked) = counts(&scratch);
    assert!(looked > 10_000, "{looked} calls looked at");
    println!("{looked} calls, {blocked} with all signals blocked");
}

fn survives(target: &Target, frequency: u32, source: &str) {
    let scratch = Scratch::new();
    let detector = Target::preload("detector").build();
    let recorder = Recorder::at(frequency)
        .event(source)
        .env("LD_PRELOAD", &detector)
        .env("SELFWIND_DETECT", agent().file_name().expect("a file"))
        .env("SELFWIND_DETECT_COUNT", scratch.join("count"));
    let program = target.build();
    let recording = recorder.record(&program, &[""; 0]);
    let alone = run(&mut Command::new(&program));
    assert_eq!(recording.outcome, alone, "left: recorded under the detector, right: alone");
    let (looked, _) = counts(&scratch);
    assert!(looked > 1000, "{looked} calls looked at");
    let samples = recording.stats().number("samples");
    assert!(samples >= 20, "{samples} samples");
    recording.assert_adds_up();
}

#[test]
fn the_handler_is_clean_under_malloc() {
    survives(&Target::c("malloc_storm"), 20_000, "cpu");
    survives(&Target::c("malloc_storm"), 20_000, "itimer");
}

#[test]
fn the_handler_is_clean_under_thread_churn() {
    survives(&Target::c("thread_churn"), 20_000, "cpu");
}

#[test]
fn the_handler_is_clean_under_exceptions() {
    survives(&Target::cpp("throw"), 20_000, "cpu");
}

#[test]
fn the_handler_is_clean_under_library_churn() {
    let plugins: Vec<String> = (0..3)
        .map(|n| {
            Target::c("plugin")
                .shared(&format!("detector-plugins/plugin{n}.so"))
                .build()
                .display()
                .to_string()
        })
        .collect();
    let scratch = Scratch::new();
    let recorder = Recorder::at(20_000)
        .env("LD_PRELOAD", Target::preload("detector").build())
        .env("SELFWIND_DETECT", agent().file_name().expect("a file"))
        .env("SELFWIND_DETECT_COUNT", scratch.join("count"));
    let recording = recorder.record(&Target::c("dlopen_churn").build(), &plugins);
    assert_eq!(recording.outcome.stdout, "missing 0, error 1\nbad 0\n", "{:?}", recording.outcome);
    recording.assert_adds_up();
}
