//! Processes of a recorded command that cannot load the agent: the recorder injects it, and they behave as without.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use selfwind_tests::binary::workspace;
use selfwind_tests::outcome::run;
use selfwind_tests::recording::{Recorder, Recording, record_unharmed};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::{may_mount, skip};
use selfwind_tests::target::{Target, is_installed};

const HZ: f64 = 499.0;

/// Fails unless each thread of `spin` has nearly this many seconds of CPU time, with complete stacks.
fn assert_spun(what: &str, recording: &Recording, seconds: f64) {
    let folded = recording.folded();
    for function in ["spin_first", "spin_second", "spin_third"] {
        let found = folded.inclusive(function) as f64 / HZ;
        // Something passes until the process is found, and more on a busy machine.
        assert!(
            (0.6 * seconds..1.05 * seconds).contains(&found),
            "{what}: {function} {found} s: {folded:#?}"
        );
    }
    assert!(recording.stats().complete() > 0.95, "{what}: {folded:#?}");
}

fn path(file: &Path) -> &str {
    file.to_str().expect("UTF-8")
}

#[test]
fn static_programs() {
    for target in [Target::c("spin").fixed(), Target::c("spin").musl().fixed()] {
        let program = target.build();
        for source in ["auto", "cpu", "itimer"] {
            let recording = record_unharmed(&Recorder::default().event(source), &program, &["1000"]);
            assert_spun(&format!("{} {source}", program.display()), &recording, 1.0);
        }
    }
}

/// As Free Pascal's: nothing has set a thread pointer.
#[test]
fn a_program_without_a_c_library() {
    let program = Target::c("no_libc").with("alone", &["-static", "-nostdlib"]).build();
    let recording = record_unharmed(&Recorder::default(), &program, &[] as &[&str]);
    assert_spun("alone", &recording, 0.5);
}

/// The loader preloads nothing if a program's effective user is not its real one, as in daemons that give up privileges in part.
#[test]
fn a_program_in_secure_mode() {
    if !nix::unistd::geteuid().is_root() {
        return skip("becoming another user takes root");
    }
    let reachable = Scratch::for_all_users();
    let program = reachable.copy(&Target::c("spin").build());
    let arguments = ["--euid=65534", path(&program), "1000"];
    let recording = record_unharmed(&Recorder::default(), Path::new("/usr/bin/setpriv"), &arguments);
    assert_spun("secure", &recording, 1.0);
}

#[test]
fn static_programs_that_others_start() {
    let program = Target::c("spin").fixed().build();
    let program = path(&program);
    for script in [
        "\"$0\" 1000 && :".to_owned(),
        "exec \"$0\" 1000".into(),
        // Without anything that says what it belongs to.
        "exec env -i \"$0\" 1000".into(),
        // Its parent ends first.
        "mkfifo $1; (\"$0\" 1000 > $1 &); cat $1; rm $1".into(),
    ] {
        let scratch = Scratch::new();
        let fifo = scratch.join("fifo");
        let arguments = ["-c", script.as_str(), program, path(&fifo)];
        let recording = record_unharmed(&Recorder::default(), Path::new("sh"), &arguments);
        assert_spun(&script, &recording, 1.0);
    }
}

/// A raw system call starts it, so that the agent of the one before cannot add itself to the environment.
#[test]
fn a_program_without_its_environment() {
    const SCRIPT: &str = "import ctypes, sys
text = sys.argv[1].encode()
words = (ctypes.c_char_p * 3)(text, b'1000', None)
ctypes.CDLL(None).syscall(59, text, words, (ctypes.c_char_p * 1)(None))";
    let program = Target::c("spin").build();
    let recorder = Recorder::default().event("cpu");
    let recording = record_unharmed(&recorder, Path::new("python3"), &["-c", SCRIPT, path(&program)]);
    assert_spun("execve", &recording, 1.0);
}

/// Each program needs the agent anew, and may be executing the next one while it is injected.
#[test]
fn static_programs_that_execute_each_other() {
    let program = Target::c("exec_again").with("static", &["-static"]).build();
    let often = Recorder::at(997).record(&program, &["200", "10"]);
    assert!(!often.outcome.stderr.contains("is not recorded"), "{}", often.outcome.stderr);
    let recording = record_unharmed(&Recorder::at(997), &program, &["40", "50"]);
    let computing = recording.folded().inclusive("compute") as f64 / 997.0;
    assert!((0.6..=2.2).contains(&computing), "{computing} of 2.05 s: {}", recording.outcome.stderr);
}

#[test]
fn a_static_go_program() {
    if !is_installed("go") {
        return skip("go is not installed (Debian: golang-go)");
    }
    let scratch = Scratch::new();
    let recording = record_unharmed(&Recorder::default(), &build_go("go_runs", &scratch), &["500"]);
    let (stats, folded) = (recording.stats(), recording.folded());
    let (leaf, whole) = (folded.inclusive("main.leaf"), folded.nested("runtime.goexit", "main.leaf"));
    assert!(leaf > 50 && 100 * whole >= 98 * leaf, "{whole} of {leaf}: {folded:#?}");
    assert!(stats.complete() > 0.95, "{folded:#?}");
}

/// Its own SIGPROF reaches it, and no other.
#[test]
fn a_static_go_program_that_profiles_itself() {
    if !is_installed("go") {
        return skip("go is not installed (Debian: golang-go)");
    }
    let scratch = Scratch::new();
    let program = build_go("go_profiles_itself", &scratch);
    let recording = record_unharmed(&Recorder::at(997), &program, &[] as &[&str]);
    assert!(recording.folded().inclusive("main.spin") > 300, "{:#?}", recording.folded());
}

fn build_go(name: &str, scratch: &Scratch) -> PathBuf {
    let program = scratch.join(name);
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(workspace().join(format!("tests/targets/{name}.go")));
    let built = run(build.env("CGO_ENABLED", "0").env("GO111MODULE", "off"));
    assert_eq!(built.status, 0, "{built:?}");
    program
}

/// Which reach neither the session directory nor, some of them, the agent's file.
#[test]
fn sandboxes() {
    if !is_installed("bwrap") {
        return skip("bwrap is not installed (Debian: bubblewrap)");
    }
    let program = Target::c("spin").build();
    let directory = program.parent().map(path).expect("a directory");
    let whole: &[&str] = &["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"];
    let bare: &[&str] =
        &["--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"];
    let own: &[&str] =
        &["--ro-bind", directory, directory, "--proc", "/proc", "--dev", "/dev", "--unshare-all"];
    for options in [whole.to_vec(), [whole, &["--unshare-pid"]].concat(), [bare, own].concat()] {
        let arguments = [&options[..], &[path(&program), "1000"]].concat();
        let tried = run(Command::new("bwrap").args(&options).arg(&program).arg("1"));
        if tried.status != 39 {
            return skip(format_args!("bwrap cannot make a sandbox here: {tried:?}"));
        }
        let recording = record_unharmed(&Recorder::default(), Path::new("bwrap"), &arguments);
        assert_spun(&format!("{options:?}"), &recording, 1.0);
    }
}

#[test]
fn another_root_directory() {
    if !may_mount() {
        return;
    }
    let root = Scratch::new();
    fs::copy(Target::c("spin").fixed().build(), root.join("spin")).expect("room");
    fs::create_dir(root.join("proc")).expect("room");
    let script = format!("mount -t proc none {0}/proc && exec chroot {0} /spin 1000", root.path().display());
    let arguments = ["--mount", "sh", "-c", &script];
    let recording = record_unharmed(&Recorder::default(), Path::new("unshare"), &arguments);
    assert_spun("chroot", &recording, 1.0);
}

/// Their parent's agent does not see them being made.
#[test]
fn children_of_a_bare_clone() {
    for target in [Target::c("raw_fork"), Target::c("raw_fork").musl(), Target::c("raw_fork").fixed()] {
        let recording = record_unharmed(&Recorder::default(), &target.build(), &[] as &[&str]);
        let folded = recording.folded();
        for (function, seconds) in [("parent_work", 0.3), ("child_work", 1.6), ("executed_work", 0.3)] {
            let found = folded.inclusive(function) as f64 / HZ;
            assert!((0.6 * seconds..1.05 * seconds).contains(&found), "{function} {found} s: {folded:#?}");
        }
    }
}

/// Its loader is about to load the agent, so it must not get another one.
#[test]
fn a_program_that_starts_slowly_has_one_agent() {
    let slow = Target::c("slow_constructor").shared("slow_constructor.so").build();
    let recorder = Recorder::default().env("LD_PRELOAD", slow);
    let recording = record_unharmed(&recorder, &Target::c("spin").build(), &["500"]);
    assert_eq!(recording.stats().number("processes"), 1, "{:#}", recording.stats().0);
    assert_spun("slow", &recording, 0.5);
}

#[test]
fn a_program_that_must_not_be_recorded_is_left_alone() {
    for program in [Target::c("spin").build(), Target::c("spin").fixed().build()] {
        let script = "SELFWIND_ENABLE=0 \"$0\" 300";
        let recording = Recorder::default().record(Path::new("sh"), &["-c", script, path(&program)]);
        assert_eq!(recording.stats().number("processes"), 1, "{:#}", recording.stats().0);
    }
}

/// The process goes on, and nothing is left that samples it.
#[test]
fn one_that_outlives_the_command_is_released() {
    let program = Target::c("spin").fixed().build();
    // Until its threads have used 1.5 s of CPU time.
    let script = "\"$0\" > /dev/null 2>&1 & echo $!; \
        until [ $(cut -d ' ' -f 14 /proc/$!/stat) -ge 150 ]; do sleep 0.1; done";
    let recording = Recorder::default().record(Path::new("sh"), &["-c", script, path(&program)]);
    let pid: i32 = recording.outcome.stdout.trim().parse().expect("its id");
    let timers = fs::read_to_string(format!("/proc/{pid}/timers"));
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it is still running");
    assert_eq!(timers.expect("its timers"), "");
    let folded = recording.folded();
    assert!(folded.inclusive("spin_first") > 50, "{folded:#?}");
}
