//! Files that commands read and write: pipes work as well as files, and no output destroys a profile or is left
//! incomplete.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use selfwind_tests::binary::{agent, selfwind};
use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::recording::{Recorder, read, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::target::Target;
use selfwind_tests::terminal::Terminal;

/// Makes a recording `s.data` of a computing program; returns its bytes.
fn recorded(scratch: &Scratch) -> Vec<u8> {
    let recording = Recorder::default().record(&Target::c("spin").build(), &["20"]);
    let bytes = fs::read(&recording.file).expect("the profile");
    fs::write(scratch.join("s.data"), &bytes).expect("ours");
    bytes
}

fn in_directory(scratch: &Scratch, arguments: &[&str]) -> Outcome {
    run(Command::new(selfwind()).args(arguments).current_dir(scratch.path()))
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("ours").flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn no_output_replaces_its_own_profile() {
    let scratch = Scratch::new();
    let before = recorded(&scratch);
    std::os::unix::fs::symlink("s.data", scratch.join("link")).expect("ours");
    for arguments in [
        &["export", "-f", "folded", "-o", "s.data", "s.data"][..],
        &["export", "-f", "perf", "-o", "link", "s.data"],
        &["diff", "-o", "s.data", "s.data", "s.data"],
    ] {
        let outcome = in_directory(&scratch, arguments);
        let status = if arguments[0] == "diff" { 2 } else { 1 };
        assert_eq!(outcome.status, status, "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains("choose another file with -o"), "{arguments:?}: {}", outcome.stderr);
        assert!(
            fs::read(scratch.join("s.data")).expect("kept") == before,
            "{arguments:?} changed the profile"
        );
    }
}

#[test]
fn a_failed_export_keeps_the_previous_file() {
    let scratch = Scratch::new();
    recorded(&scratch);
    let in_shell = |script: &str| {
        run(Command::new("sh").args(["-c", script]).arg(selfwind()).current_dir(scratch.path()))
    };
    fs::write(scratch.join("old.svg"), "before").expect("ours");
    let listed = names(scratch.path());
    for output in ["new.svg", "old.svg"] {
        let outcome = in_shell(&format!("ulimit -f 1; exec \"$0\" export -o {output} s.data"));
        assert_eq!(outcome.status, 1, "{outcome:?}");
    }
    assert_eq!(names(scratch.path()), listed, "a failed export leaves a file");
    assert_eq!(fs::read_to_string(scratch.join("old.svg")).expect("kept"), "before");
    // The same if a recording is exported immediately. The recorder's limit then leaves space for the profile alone.
    let command = "\"$1\" 20; prlimit --pid=$PPID --fsize=8192";
    let mut recorder = Command::new(selfwind());
    recorder.args(["record", "-q", "-o", "none.svg", "--", "sh", "-c", command, "sh"]);
    let outcome = run(recorder.arg(Target::c("spin").build()).current_dir(scratch.path()));
    assert!(outcome.stderr.contains("kept in none.svg.selfwind.data"), "{outcome:?}");
    assert!(!scratch.join("none.svg").exists(), "half a flame graph is left");
    assert!(stats(&scratch.join("none.svg.selfwind.data")).number("samples") > 0);
}

#[test]
fn a_dash_and_pipes_are_standard_input_and_output() {
    let scratch = Scratch::new();
    recorded(&scratch);
    let file = scratch.join("s.data");
    let folded = read(&["export", "-f", "folded"], &file);
    let outcome = in_directory(&scratch, &["export", "-f", "folded", "-o", "-", "s.data"]);
    assert_eq!((outcome.status, &outcome.stdout), (0, &folded), "{}", outcome.stderr);
    assert!(!scratch.join("-").exists(), "a file named `-`");
    let diff = in_directory(&scratch, &["diff", "-o", "-", "s.data", "s.data"]);
    assert!(diff.status == 0 && diff.stdout.contains("FUNCTION") && !scratch.join("-").exists(), "{diff:?}");

    for (verb, expected) in [
        (&["export", "-f", "folded"][..], folded.as_str()),
        (&["stats", "--json"], &read(&["stats", "--json"], &file)),
        (&["report"], "piped profile"),
    ] {
        let from_stdin = Command::new(selfwind())
            .args(verb)
            .arg("-")
            .stdin(File::open(&file).expect("ours"))
            .stderr(Stdio::inherit())
            .output();
        let output = from_stdin.expect("selfwind runs");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success() && text.contains(expected), "{verb:?} -: {text}");
        let script = format!("{} {} <(cat s.data)", selfwind().display(), verb.join(" "));
        let piped = run(Command::new("bash").args(["-c", &script]).current_dir(scratch.path()));
        assert!(piped.status == 0 && piped.stdout.contains(expected), "{verb:?} <(): {piped:?}");
    }
    let refused = in_directory(&scratch, &["record", "-o", "-", "--", "true"]);
    assert!(refused.status == 125 && refused.stderr.contains("standard output"), "{refused:?}");
    assert!(!scratch.join("-").exists());
}

#[test]
fn binary_formats_stay_off_the_terminal() {
    let scratch = Scratch::new();
    recorded(&scratch);
    let terminal = Terminal::new(scratch.path(), 100, 24, &[("LC_ALL", "C.UTF-8")]);
    let bin = selfwind().display();
    for (format, advice) in
        [("pprof", "selfwind.pb.gz"), ("perf", "selfwind.perf.data"), ("parquet", "selfwind.parquet")]
    {
        terminal.run(&format!("clear; {bin} export -f {format} s.data; echo {format}=$?"));
        let screen = terminal.wait_for("its end", |screen| screen.contains(&format!("{format}=1\n")));
        assert!(screen.replace('\n', "").contains(advice), "{screen}");
    }
    // A pipe accepts them.
    let script = format!("{bin} export -f pprof s.data | wc -c");
    let piped = run(Command::new("sh").args(["-c", &script]).current_dir(scratch.path()));
    assert!(piped.stdout.trim().parse::<u64>().expect("a count") > 100, "{piped:?}");
}

#[test]
fn a_perf_data_file_is_recognised() {
    let scratch = Scratch::new();
    let program = Target::c("spin").build();
    let mut record = Command::new(selfwind());
    record.args(["record", "-F", "499", "-o", "perf.data", "--"]).arg(&program).arg("20");
    let recorded = run(record.current_dir(scratch.path()));
    assert!(recorded.stderr.contains("perf report -i perf.data"), "{}", recorded.stderr);
    let refused = in_directory(&scratch, &["report", "perf.data"]);
    assert_eq!(refused.status, 1);
    assert!(
        refused.stderr.contains("a perf.data file") && refused.stderr.contains("perf report -i perf.data"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_damaged_profile_is_read_up_to_the_damage() {
    let scratch = Scratch::new();
    // Long enough for several blocks of events, without names after them.
    let recording =
        Recorder::at(2000).env("SELFWIND_NO_NAMES", "1").record(&Target::c("deep_changes").build(), &[""; 0]);
    let mut bytes = fs::read(&recording.file).expect("the profile");
    let whole = recording.stats();
    let at = bytes.len() - 40;
    bytes[at] ^= 1;
    let file = scratch.join("damaged.data");
    fs::write(&file, &bytes).expect("ours");
    let part = stats(&file);
    assert!(part.number("samples") > 0 && part.number("samples") <= whole.number("samples"), "{part:?}");
    assert_eq!(part.0["detail"]["complete"], false);
    let report = read(&["report"], &file).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(report.contains("damaged at byte") && report.contains("bytes were skipped"), "{report}");
    for format in ["folded", "perf"] {
        let exported = in_directory(&scratch, &["export", "-f", format, "-o", "out", "damaged.data"]);
        assert_eq!(exported.status, 0, "{exported:?}");
        assert!(exported.stderr.contains("bytes were skipped"), "{format}: {}", exported.stderr);
    }
}

#[test]
fn reaping_reports_what_it_removes() {
    let scratch = Scratch::new();
    let directory = scratch.path().display().to_string();
    // A flight recorder whose process was killed.
    let mut spin = Command::new(Target::c("spin").build())
        .env("LD_PRELOAD", agent())
        .env("SELFWIND_DIR", &directory)
        .stdout(Stdio::null())
        .spawn()
        .expect("it was built");
    let region = || fs::read_dir(scratch.path()).expect("ours").flatten().map(|file| file.path()).next();
    while region().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    spin.kill().expect("our child");
    spin.wait().expect("our child");
    let region = region().expect("it is still there");
    let reaped = run(Command::new(selfwind()).args(["list", "--reap"]).env("SELFWIND_DIR", &directory));
    assert_eq!(reaped.status, 0, "{reaped:?}");
    assert!(!region.exists());
    let name = region.display().to_string();
    assert!(
        reaped.stderr.contains(&name) && reaped.stderr.contains(&format!("process {}", spin.id())),
        "{reaped:?}"
    );
}
