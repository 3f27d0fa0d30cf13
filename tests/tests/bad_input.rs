//! Bad input gives one clear line with the cause and a remedy, its own exit status, and never a panic.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::recording::Recorder;
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;
use selfwind_tests::target::Target;

/// Runs `selfwind` in `directory` and asserts that it reports an error properly.
fn refuse(directory: &Path, arguments: &[&str], status: i32, naming: &str) -> Outcome {
    let outcome = run(Command::new(selfwind()).args(arguments).current_dir(directory));
    assert_eq!(outcome.status, status, "{arguments:?}: {}", outcome.stderr);
    assert_orderly(arguments, &outcome);
    assert!(outcome.stderr.contains(naming), "{arguments:?} does not name {naming:?}: {}", outcome.stderr);
    outcome
}

fn assert_orderly(arguments: &[&str], outcome: &Outcome) {
    let said = &outcome.stderr;
    assert!(!said.contains("panicked") && outcome.status != 101, "{arguments:?} panics: {said}");
    assert_eq!(outcome.stdout, "", "{arguments:?}: data on standard output");
    let first = said.lines().next().unwrap_or_default();
    assert!(first.starts_with("selfwind: ") || first.starts_with("error: "), "{arguments:?}: {said}");
}

/// As [`refuse`], and the message is one line.
fn refuse_in_one_line(directory: &Path, arguments: &[&str], status: i32, naming: &str) {
    let outcome = refuse(directory, arguments, status, naming);
    assert_eq!(outcome.stderr.lines().count(), 1, "{arguments:?}: {}", outcome.stderr);
}

#[test]
fn usage() {
    let scratch = Scratch::new();
    refuse(scratch.path(), &["record", "--bogus", "--", "true"], 125, "--bogus");
    refuse(scratch.path(), &["nonsense"], 2, "nonsense");
    refuse(scratch.path(), &["record", "-F", "0", "--", "true"], 125, "the rate must be at least 1");
    refuse(scratch.path(), &["record", "-F", "many", "--", "true"], 125, "many");
    refuse(scratch.path(), &["record", "-e", "nonsense", "--", "true"], 125, "cpu");
    refuse(scratch.path(), &["record", "-e", "perf:nonsense", "--", "true"], 125, "nonsense");
    refuse(scratch.path(), &["export", "-f", "nonsense", "x"], 2, "folded");
    assert_eq!(fs::read_dir(scratch.path()).expect("ours").count(), 0, "nothing was written");
}

#[test]
fn programs_that_cannot_run() {
    let scratch = Scratch::new();
    let at = scratch.path();
    refuse_in_one_line(at, &["record", "--", "./missing"], 127, "./missing");
    refuse_in_one_line(at, &["record", "--", "no-such-program-anywhere"], 127, "no-such-program-anywhere");
    refuse_in_one_line(at, &["record", "--", "/etc/passwd"], 126, "/etc/passwd");
    refuse_in_one_line(at, &["record", "--", "/tmp"], 126, "/tmp");
    let text = scratch.join("text");
    fs::write(&text, "neither ELF nor script\n").expect("ours");
    fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).expect("ours");
    // Shells execute a file without `#!` as a shell script, and so must the recorder.
    let outcome = run(Command::new(selfwind()).args(["record", "-q", "--"]).arg(&text).current_dir(at));
    assert_eq!(outcome, run(Command::new("sh").arg("-c").arg(&text)));
    let truncated = scratch.join("truncated");
    fs::write(&truncated, b"\x7fELF\x02\x01\x01").expect("ours");
    fs::set_permissions(&truncated, fs::Permissions::from_mode(0o755)).expect("ours");
    refuse_in_one_line(at, &["record", "--", "./truncated"], 126, "./truncated");
    let script = scratch.join("script");
    fs::write(&script, "#!/nonexistent/interpreter\n").expect("ours");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("ours");
    refuse_in_one_line(at, &["record", "--", "./script"], 126, "./script");
}

#[test]
fn a_static_program_has_cpu_timers_only() {
    let scratch = Scratch::new();
    for target in [Target::c("static_image").fixed(), Target::c("static_image").musl().fixed()] {
        let program = target.build().display().to_string();
        refuse_in_one_line(scratch.path(), &["record", "-e", "perf", "--", &program], 125, "static");
    }
}

#[test]
fn outputs_that_cannot_be_written() {
    let scratch = Scratch::new();
    let at = scratch.path();
    refuse_in_one_line(
        at,
        &["record", "-o", "/nonexistent/x.data", "--", "true"],
        125,
        "/nonexistent/x.data",
    );
    refuse_in_one_line(at, &["record", "-o", "/", "--", "true"], 125, "/");
    refuse_in_one_line(at, &["record", "-o", "/proc/version", "--", "true"], 125, "/proc/version");
}

#[test]
fn a_full_disk_is_reported_and_the_program_continues() {
    let scratch = Scratch::new();
    let program = Target::c("cpu_shares").build();
    let mut command = Command::new(selfwind());
    command.args(["record", "-F", "9999", "-o", "/dev/full", "--"]).arg(&program).current_dir(scratch.path());
    let outcome = run(&mut command);
    assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("/dev/full"), "{}", outcome.stderr);
    if outcome.status == 0 {
        assert_eq!(outcome.stdout, "shares done\n");
    } else {
        assert_eq!(outcome.status, 125, "{}", outcome.stderr);
    }
}

#[test]
fn a_setuid_program_runs_and_is_reported_as_not_recorded() {
    if !nix::unistd::geteuid().is_root() {
        skip("making a setuid program of another user takes root");
        return;
    }
    let scratch = Scratch::new();
    let program = scratch.join("setuid");
    fs::copy(Target::c("exit_status").build(), &program).expect("ours");
    // The user nobody may not search /work or /home: ids change at exec, after paths have been resolved.
    chown(&program, Some(65534), Some(65534)).expect("root");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("root");
    let recording = Recorder::default().record(&program, &["return"]);
    let outcome = recording.outcome;
    assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
    // Either refused with the cause, or run normally with a profile without samples.
    if outcome.status == 42 {
        assert_eq!(outcome.stdout, "at exit\n");
    } else {
        assert_eq!(outcome.status, 125, "{}", outcome.stderr);
        assert!(
            outcome.stderr.contains("setuid") || outcome.stderr.contains("set-user-ID"),
            "{}",
            outcome.stderr
        );
    }
}

#[test]
fn files_that_are_no_profiles() {
    let scratch = Scratch::new();
    let at = scratch.path();
    fs::write(scratch.join("empty"), "").expect("ours");
    fs::write(scratch.join("text"), "just text\n".repeat(1000)).expect("ours");
    for verb in [&["stats"][..], &["stats", "--json"], &["report"], &["export", "-f", "folded"]] {
        for file in ["missing", "empty", "text", "/dev/null", "/"] {
            let arguments: Vec<&str> = verb.iter().copied().chain([file]).collect();
            refuse_in_one_line(at, &arguments, 1, file);
        }
    }
}

#[test]
fn missing_files_fail_verification() {
    let outcome = run(Command::new(selfwind()).args(["tables", "verify", "/nonexistent/file"]));
    assert_ne!(outcome.status, 0, "{} {}", outcome.stdout, outcome.stderr);
    assert!(!outcome.stderr.contains("panicked"));
}

/// Damaged profiles: with any truncation or flipped byte, the intact part is read, or the file is refused in one line.
#[test]
fn damaged_profiles() {
    let recording = Recorder::default().record(&Target::c("fork").build(), &[""; 0]);
    let whole = fs::read(&recording.file).expect("the profile");
    let weight = recording.stats().number("weight");
    let scratch = Scratch::new();
    let damaged = scratch.join("damaged.data");
    let check = |what: &str| {
        for verb in [&["stats", "--json"][..], &["report"], &["export", "-f", "folded"]] {
            let outcome = run(Command::new(selfwind()).args(verb).arg(&damaged));
            assert!(outcome.status == 0 || outcome.status == 1, "{what}, {verb:?}: {outcome:?}");
            assert!(!outcome.stderr.contains("panicked"), "{what}, {verb:?}: {}", outcome.stderr);
            assert!(outcome.status == 0 || outcome.stderr.lines().count() == 1, "{what}: {}", outcome.stderr);
            if outcome.status == 0 && verb[0] == "export" {
                let total = selfwind_tests::folded::Folded::parse(&outcome.stdout).total();
                assert!(total <= weight, "{what}: {total} of {weight}");
            }
        }
    };
    let cuts = (0..24).map(|n| whole.len() * n / 24).chain([1, 7, 8, 15, 16, 31, 32, 64, whole.len() - 1]);
    for cut in cuts {
        fs::write(&damaged, &whole[..cut]).expect("ours");
        check(&format!("cut at {cut}"));
    }
    // A fixed sequence: a failure can be repeated.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..60 {
        let mut bytes = whole.clone();
        for _ in 0..1 + round % 3 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] ^= 1 << (state >> 60 & 7);
        }
        fs::write(&damaged, &bytes).expect("ours");
        check(&format!("flips of round {round}"));
    }
}

#[test]
fn a_profile_of_another_version_is_refused() {
    let recording = Recorder::default().record(&Target::c("spin").build(), &["20"]);
    let mut bytes = fs::read(&recording.file).expect("the profile");
    let scratch = Scratch::new();
    let other = scratch.join("other.data");
    // The version follows the magic; whatever its width, a changed first byte is another version.
    bytes[8] ^= 0x40;
    fs::write(&other, &bytes).expect("ours");
    refuse_in_one_line(scratch.path(), &["stats", "other.data"], 1, "version");
}
