//! `record --unwind`: unwinding stack copies in the recorder gives the same frames as the walks in the threads.

use std::process::Command;

use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::run;
use selfwind_tests::recording::{Recorder, Recording, read, record_unharmed};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;
use selfwind_tests::target::{Target, is_installed};

fn recorder(unwind: &str) -> Recorder {
    Recorder::at(1999).event("cpu").env("SELFWIND_UNWIND", unwind).env("SELFWIND_MAX_OVERHEAD", "100")
}

/// Asserts that every copy that contains the whole stack gives the same stack; returns the number of such copies.
fn assert_identical(recording: &Recording) -> u64 {
    let stats = recording.stats();
    let [identical, differ, cut] = ["identical", "differ", "cut"].map(|name| stats.detail(&["copy", name]));
    let compared = identical + differ + cut;
    println!("identical {identical}, differ {differ}, cut off {cut} of {} samples", stats.number("samples"));
    if differ > 0 {
        panic!("{}", read(&["report", "--differences"], &recording.file));
    }
    // Not compared: samples at the start and end of threads and process images, and torn copies.
    let samples = stats.number("samples");
    let apart = 2 * (stats.number("threads") + stats.detail(&["images"])) + 2;
    assert!(compared + apart >= samples, "{compared} of {samples} are compared");
    assert!(cut * 10 <= compared, "{cut} of {compared} were cut off");
    identical
}

#[test]
fn copies_lead_to_the_same_frames() {
    let job = Target::c("job").build();
    let recording = record_unharmed(&recorder("both"), &job, &[] as &[&str]);
    assert!(assert_identical(&recording) >= 50);
}

/// Landing pads, catch blocks, and the C++ exception unwinder itself.
#[test]
fn exceptions_are_unwound_from_copies() {
    let throw = Target::cpp("throw").build();
    let recording = record_unharmed(&recorder("both"), &throw, &[] as &[&str]);
    let stats = recording.stats();
    let [identical, differ] = ["identical", "differ"].map(|name| stats.detail(&["copy", name]));
    // During the jump to a landing pad libgcc's call frame information is wrong: the thread's own walk is wrong.
    let text = read(&["report", "--differences", "--json", "--limit", "0"], &recording.file);
    assert!(identical >= 50 && differ * 30 <= identical, "{text}");
    let told: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    for difference in told["differences"].as_array().expect("a list") {
        let leaf = difference["own"][0].as_str().expect("a frame");
        assert!(leaf.starts_with("libgcc_s"), "{difference:#}");
    }
}

/// Signal frames, on the thread's stack and on another one, which is not in the copy; and frames whose size is only
/// known at run time.
#[test]
fn odd_frames_are_unwound_from_copies() {
    let odd = Target::c("odd_frames").build();
    assert!(assert_identical(&record_unharmed(&recorder("both"), &odd, &[] as &[&str])) >= 50);
    let handled = Target::c("sigaltstack").build();
    let recording = recorder("both").record(&handled, &[] as &[&str]);
    let stats = recording.stats();
    let [identical, differ] = ["identical", "differ"].map(|name| stats.detail(&["copy", name]));
    assert!(identical > 0 && differ == 0, "{}", read(&["report", "--differences"], &recording.file));
}

/// The register that locates the frame is not an address.
#[test]
fn frames_sized_by_a_register_are_unwound_from_copies() {
    let counted = Target::c("counted_frame").build();
    let recording = record_unharmed(&recorder("both"), &counted, &[] as &[&str]);
    assert!(assert_identical(&recording) >= 50);
    let folded = recording.folded();
    let (worked, whole) = (folded.inclusive("counted_work"), folded.nested("main", "counted_work"));
    assert!(worked > 50 && 100 * whole >= 99 * worked, "{whole} of {worked}");
}

/// The register that locates the frame is an address below the stack pointer.
#[test]
fn frames_that_are_being_probed_are_unwound_from_copies() {
    let probed = Target::c("probed_frame").with("stack_clash", &["-fstack-clash-protection"]).build();
    let recording = recorder("both").record(&probed, &[] as &[&str]);
    assert_eq!(recording.outcome.status, 38, "{}", recording.outcome.stderr);
    assert!(assert_identical(&recording) >= 50);
}

/// The interrupted program counter in generated code follows no call, but must be copied as well.
#[test]
fn traps_in_generated_code_are_unwound_from_copies() {
    let trap = Target::c("trap_in_generated").build();
    let recording = recorder("both").record(&trap, &[] as &[&str]);
    assert_eq!(recording.outcome.status, 36, "{}", recording.outcome.stderr);
    assert!(assert_identical(&recording) >= 50);
    let folded = recording.folded();
    let (worked, whole) = (folded.inclusive("handler_work"), folded.nested("run", "handler_work"));
    assert!(worked > 50 && 100 * whole >= 99 * worked, "{whole} of {worked}");
}

/// What lies below the stack pointer says nothing about the return address at it.
#[test]
fn jumps_to_generated_code_are_unwound_from_copies() {
    let jump = Target::c("jump_to_generated").build();
    let recording = recorder("both").record(&jump, &[] as &[&str]);
    assert_eq!(recording.outcome.status, 37, "{}", recording.outcome.stderr);
    assert!(assert_identical(&recording) >= 50);
}

/// Code without call frame information is read page by page: in place by the thread, from the file by the recorder.
#[test]
fn deep_code_without_cfi_is_unwound_from_copies() {
    let flags = ["-fno-asynchronous-unwind-tables", "-fno-omit-frame-pointer", "-g0"];
    let bare = Target::c("bare_pages").with("no_cfi", &flags).build();
    let recording = recorder("both").record(&bare, &[] as &[&str]);
    assert_eq!(recording.outcome.status, 35, "{}", recording.outcome.stderr);
    assert!(assert_identical(&recording) >= 50);
    let (burnt, whole) = {
        let folded = recording.folded();
        (folded.inclusive("innermost"), folded.nested("page_99", "innermost"))
    };
    assert!(burnt > 50 && 100 * whole >= 99 * burnt, "{whole} of {burnt}: {:#}", recording.stats().0);
}

/// `.debug_frame`, compressed or not, is used from the first recording on, for walks as well as for copies.
#[test]
fn debug_frames_count_from_the_first_recording_on() {
    let bare = ["-fno-asynchronous-unwind-tables", "-fomit-frame-pointer"];
    for (variant, compression) in [("debug_frame", "none"), ("packed_debug_frame", "zlib")] {
        let compress = format!("-Wl,--compress-debug-sections={compression}");
        let job = Target::c("job").with(variant, &[bare[0], bare[1], &compress]).build();
        let scratch = Scratch::new();
        for time in ["first", "second"] {
            let with_tables = recorder("both").env("SELFWIND_TABLES", scratch.join("tables"));
            let recording = record_unharmed(&with_tables, &job, &[] as &[&str]);
            assert!(assert_identical(&recording) >= 50, "{variant}, {time}");
            assert!(recording.stats().complete() > 0.99, "{variant}, {time}: {:#}", recording.stats().0);
        }
    }
}

#[test]
fn programs_are_copied_as_they_walk() {
    for (program, arguments) in [
        (
            "python3",
            &[
                "-c",
                "import json\nfor i in range(60): json.loads(json.dumps([list(range(k % 50)) for k in range(2000)]))",
            ][..],
        ),
        ("perl", &["-e", "my %h; for my $i (1 .. 4000000) { $h{$i % 5003} .= $i } print scalar keys %h"]),
    ] {
        if !is_installed(program) {
            skip(format_args!("{program} is not installed"));
            continue;
        }
        let found = run(Command::new("sh").args(["-c", &format!("command -v {program}")])).stdout;
        // The first recording makes the tables that code without call frame information needs.
        let recordings = [(); 2].map(|()| recorder("both").record(found.trim().as_ref(), arguments));
        let [_, recording] = recordings;
        assert_eq!(recording.outcome.status, 0, "{}", recording.outcome.stderr);
        assert!(assert_identical(&recording) >= 50, "{program}");
    }
}

/// A profile made from copies is like one made from walks.
#[test]
fn copies_make_a_profile() {
    let job = Target::c("job").build();
    let own = record_unharmed(&recorder("self"), &job, &[] as &[&str]);
    let share = |recording: &Recording| {
        let (stats, folded) = (recording.stats(), recording.folded());
        assert!(stats.complete() > 0.99 && folded.rooted() > 0.99, "{:#}", stats.0);
        folded.inclusive("parse") as f64 / stats.number("weight") as f64
    };
    let expected = share(&own);
    for unwind in ["copy", "both"] {
        let found = share(&record_unharmed(&recorder(unwind), &job, &[] as &[&str]));
        assert!((found - expected).abs() < 0.1, "{unwind}: {found}, self: {expected}");
    }
}

/// Guessed frames are marked, and every stack has some.
#[test]
fn guessed_frames_are_marked() {
    let job = Target::c("job").build();
    for unwind in ["guess", "copy-code"] {
        let recording = record_unharmed(&recorder(unwind), &job, &[] as &[&str]);
        let report = read(&["report", "--limit", "0"], &recording.file);
        assert!(report.contains("start_thread"), "{report}");
        assert_eq!(report.contains("start_thread ?"), unwind == "guess", "{report}");
    }
}

/// A limit truncates copies, and truncated copies are reported as such.
#[test]
fn a_limit_truncates_deep_stacks() {
    let deep = Target::c("deep_recursion").build();
    let recording = recorder("both").env("SELFWIND_COPY_LIMIT", "1K").record(&deep, &[] as &[&str]);
    let stats = recording.stats();
    let [differ, cut] = ["differ", "cut"].map(|name| stats.detail(&["copy", name]));
    assert!(differ == 0 && cut > 0, "{:#}", stats.0);
    let text = read(&["report", "--differences"], &recording.file);
    assert!(text.contains("cut off") && text.contains("end: unreadable"), "{text}");
    let copied = recorder("copy").env("SELFWIND_COPY_LIMIT", "1K").record(&deep, &[] as &[&str]);
    let stats = copied.stats();
    assert!(stats.number("truncated") > 0 && stats.number("samples") > 0, "{:#}", stats.0);
    stats.assert_adds_up();
}

#[test]
fn the_kernel_s_clock_copies_too() {
    let job = Target::c("job").build();
    let recorder = Recorder::at(1999).env("SELFWIND_UNWIND", "copy").env("SELFWIND_MAX_OVERHEAD", "100");
    let recording = record_unharmed(&recorder, &job, &[] as &[&str]);
    let stats = recording.stats();
    assert!(stats.number("samples") >= 50 && stats.complete() > 0.99, "{:#}", stats.0);
}

#[test]
fn bad_values_are_reported() {
    let scratch = Scratch::new();
    for (arguments, wanted) in [
        (&["--unwind", "dwarf"][..], "self, copy, copy-code, guess, both"),
        (&["--unwind", "copy", "--copy-limit", "2M"], "invalid size `2M`: expected 1K to 1M"),
        (&["--unwind", "copy", "-e", "alloc"], "-e cpu,alloc"),
    ] {
        let mut command = Command::new(selfwind());
        command.arg("record").args(arguments).args(["--", "true"]).current_dir(scratch.path());
        let outcome = run(&mut command);
        assert!(outcome.status != 0 && outcome.stderr.contains(wanted), "{arguments:?}: {}", outcome.stderr);
    }
    let job = Target::c("job").build();
    let recording = Recorder::default().record(&job, &[] as &[&str]);
    let outcome = run(Command::new(selfwind()).args(["report", "--differences"]).arg(&recording.file));
    assert!(outcome.status != 0 && outcome.stderr.contains("record --unwind both"), "{}", outcome.stderr);
}
