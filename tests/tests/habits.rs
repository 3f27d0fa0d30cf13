//! What users expect of a command: Ctrl-C, a result that opens, output that fits the screen, colours that can be turned
//! off, completions, manual pages.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::run;
use selfwind_tests::recording::stats;
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;
use selfwind_tests::target::Target;
use selfwind_tests::terminal::Terminal;

/// Prints `caught` for each SIGINT and continues.
const STUBBORN: &str = "import signal
signal.signal(signal.SIGINT, lambda *_: print('caught', flush=True))
print('ready', flush=True)
while True: sum(range(1000))
";

/// Prints a line in two parts, a second apart.
const HALVES: &str = "import time
print('one ', end='', flush=True)
end = time.monotonic() + 1
while time.monotonic() < end: sum(range(1000))
print('line')
";

fn terminal(scratch: &Scratch) -> Terminal {
    let bin = selfwind().parent().expect("a file lies in a directory").display().to_string();
    let here = scratch.path().display();
    let path = format!("{here}:{bin}:{}", std::env::var("PATH").unwrap_or_default());
    Terminal::new(scratch.path(), 80, 24, &[("PATH", &path), ("LC_ALL", "C.UTF-8")])
}

fn script(scratch: &Scratch, name: &str, text: &str) {
    let path = scratch.join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("ours");
    fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("ours");
}

#[test]
fn one_interrupt_goes_to_the_program_two_end_the_recording() {
    let scratch = Scratch::new();
    fs::write(scratch.join("stubborn.py"), STUBBORN).expect("ours");
    let terminal = terminal(&scratch);
    terminal.run("selfwind record -o i.data -- python3 stubborn.py; echo status=$?");
    terminal.wait_for("the program", |screen| screen.contains("ready\n"));
    terminal.press(&["C-c"]);
    let screen = terminal.wait_for("the program's answer", |screen| screen.contains("caught\n"));
    assert!(!screen.contains("samples"), "one Ctrl-C does not end the recording:\n{screen}");
    // On a busy machine the kernel may merge two of them, or the recorder see them a second apart.
    let screen = terminal.wait_for("the end of the recording", |screen| {
        terminal.press(&["C-c"]);
        std::thread::sleep(Duration::from_millis(200));
        screen.contains("status=1")
    });
    assert!(screen.contains("samples, 0 lost"), "{screen}");
    assert!(screen.contains("status=143") || screen.contains("status=137"), "{screen}");
    stats(&scratch.join("i.data")).assert_adds_up();
}

#[test]
fn the_terminal_is_the_commands_while_it_runs() {
    let scratch = Scratch::new();
    fs::write(scratch.join("halves.py"), HALVES).expect("ours");
    let terminal = terminal(&scratch);
    // Events are refused: there is something to say about the process.
    let denied = Target::c("perf_denied").build();
    terminal.run(&format!("{} 1 selfwind record -o h.data -- python3 halves.py", denied.display()));
    let screen = terminal.wait_for("the summary", |screen| screen.contains(" samples, "));
    assert!(screen.contains("one line\n"), "{screen}");
    let (_, after) = screen.split_once("one line\n").expect("it is there");
    assert!(after.contains("cpu timers instead of perf"), "{screen}");
    assert!(!screen.contains("python: "), "nothing is wrong with this version:\n{screen}");
}

#[test]
fn a_signal_in_the_commands_first_moment_is_passed_on() {
    // Many at once: the command starts long before its recorder.
    let recorders: Vec<_> = (0..12)
        .map(|_| {
            let scratch = Scratch::new();
            let mut recorder = Command::new(selfwind());
            recorder.args(["record", "-q", "-o"]).arg(scratch.join("first.data"));
            recorder.args([
                "--",
                "/bin/sh",
                "-c",
                "trap 'exit 7' TERM; kill -TERM $PPID; i=0; while [ $i -lt 9000000 ]; do i=$((i+1)); done",
            ]);
            (recorder.spawn().expect("selfwind runs"), scratch)
        })
        .collect();
    for (mut recorder, scratch) in recorders {
        let status = recorder.wait().expect("our child");
        assert_eq!(status.code(), Some(7), "{status}");
        stats(&scratch.join("first.data")).assert_adds_up();
    }
}

#[test]
fn a_delay_skips_the_beginning_and_accounts_for_it() {
    let scratch = Scratch::new();
    let spin = Target::c("spin").build();
    let record = |name: &str, delay: &[&str]| {
        let file = scratch.join(name);
        let mut command = Command::new(selfwind());
        command
            .args(["record", "-F", "999"])
            .args(delay)
            .arg("-o")
            .arg(&file)
            .arg("--")
            .arg(&spin)
            .arg("200");
        let outcome = run(&mut command);
        assert_eq!(outcome.status, 39);
        (stats(&file), outcome.stderr)
    };
    let (late, said) = record("late.data", &["--delay", "3600"]);
    late.assert_adds_up();
    assert_eq!((late.number("samples"), late.number("lost")), (0, 0), "all of it came too early");
    assert!(said.contains("ended before the delay"), "{said}");
    let (soon, said) = record("soon.data", &["--delay", "0.05"]);
    soon.assert_adds_up();
    assert!(soon.number("samples") > 0 && soon.number("lost") == 0 && !said.contains("delay"), "{said}");
}

#[test]
fn the_result_is_opened_or_its_path_is_printed() {
    let scratch = Scratch::new();
    let spin = Target::c("spin").build();
    let record = |path: &Path| {
        let mut command = Command::new(selfwind());
        command.args(["record", "-F", "999", "--open", "-o", "o.data", "--"]).arg(&spin).arg("60");
        run(command.current_dir(scratch.path()).env("PATH", path))
    };
    let outcome = record(Path::new("/nonexistent"));
    assert_eq!(outcome.status, 39, "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("xdg-open is not installed") && outcome.stderr.contains("/o.svg"),
        "{}",
        outcome.stderr
    );
    let svg = fs::read_to_string(scratch.join("o.svg")).expect("the flame graph is there");
    assert!(svg.contains("spin_first"));
    script(&scratch, "xdg-open", "echo \"$1\" > opened");
    let outcome = record(scratch.path());
    assert_eq!(outcome.status, 39);
    let opened = fs::read_to_string(scratch.join("opened")).expect("xdg-open was called");
    assert_eq!(Path::new(opened.trim()), scratch.join("o.svg"));
}

#[test]
fn a_report_fits_the_screen_and_has_colours_only_if_wanted() {
    let scratch = Scratch::new();
    let terminal = terminal(&scratch);
    let program =
        "import json, re\nfor i in range(300): json.dumps(re.findall('[a-z]+', 'some words to find' * 50))\n";
    fs::write(scratch.join("words.py"), program).expect("ours");
    terminal.run("selfwind record -q -F 999 -- python3 words.py; echo recorded=$?");
    terminal.wait_for("the recording", |screen| screen.contains("recorded=0\n"));
    terminal.run("selfwind record -q -e auto,wall -o many.data -- python3 words.py; echo events=$?");
    terminal.wait_for("the recording", |screen| screen.contains("events=0\n"));
    let views =
        ["report", "report --threads", "report --flat", "report --no-children", "stats", "stats many.data"];
    for (number, command) in views.iter().enumerate() {
        // Before the prompt instead of on a line of its own, which a user would not have.
        terminal.run(&format!("clear; selfwind {command}; printf 'shown{number}=%s' $?"));
        let screen =
            terminal.wait_for("the report", |screen| screen.contains(&format!("shown{number}=0shell>")));
        println!("{screen}");
        let first = if command.starts_with("stats") { "samples " } else { "selfwind.data: python3" };
        assert!(screen.starts_with(first), "the first line is still there:\n{screen}");
    }
    let coloured = |command: &str| {
        terminal.run(&format!("clear; {command}; echo coloured=$?"));
        terminal.wait_for("the report", |screen| screen.contains("coloured=0\n"));
        terminal.coloured_screen().contains("\x1b[")
    };
    assert!(coloured("selfwind report"));
    assert!(!coloured("NO_COLOR=1 selfwind report"));
    assert!(!coloured("CLICOLOR=0 selfwind report"));
}

#[test]
fn slow_symbolization_shows_a_progress_bar() {
    let scratch = Scratch::new();
    script(&scratch, "debuginfod-find", "sleep 3; exit 1");
    let terminal = terminal(&scratch);
    terminal.run("export XDG_CACHE_HOME=$PWD/cache DEBUGINFOD_URLS=http://localhost:1");
    terminal.run("selfwind record -q -F 999 -- sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'");
    terminal.run("clear; selfwind report --debuginfod > report.txt; echo shown=$?");
    terminal.wait_for("a bar", |screen| screen.contains("selfwind: naming functions"));
    let screen = terminal.wait_for("the end", |screen| screen.contains("shown=0\n"));
    assert!(!screen.contains("naming functions"), "the bar is gone:\n{screen}");
}

#[test]
fn completions_complete() {
    let scratch = Scratch::new();
    let complete = "source <(\"$SELFWIND\" completions bash)
        COMP_WORDS=(selfwind rec); COMP_CWORD=1; _selfwind selfwind rec selfwind; echo \"${COMPREPLY[@]}\"
        COMP_WORDS=(selfwind report --no); COMP_CWORD=2; _selfwind selfwind --no report; echo \"${COMPREPLY[@]}\"
        COMP_WORDS=(selfwind export -f fl); COMP_CWORD=3; _selfwind selfwind fl -f; echo \"${COMPREPLY[@]}\"
        COMP_WORDS=(selfwind record -e off); COMP_CWORD=3; _selfwind selfwind off -e; echo \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    let outcome = run(bash.args(["-c", complete]).env("SELFWIND", selfwind()).current_dir(scratch.path()));
    let mut lines = outcome.stdout.lines();
    assert_eq!(lines.next(), Some("record"), "{outcome:?}");
    assert!(lines.next().is_some_and(|line| line.contains("--no-children")), "{outcome:?}");
    assert_eq!((lines.next(), lines.next()), (Some("flamegraph"), Some("offcpu")), "{outcome:?}");
    for (shell, part) in [("zsh", "#compdef selfwind"), ("fish", "complete -c selfwind")] {
        let outcome = run(Command::new(selfwind()).args(["completions", shell]));
        assert!(outcome.status == 0 && outcome.stdout.contains(part), "{shell}: {}", outcome.stderr);
    }
    let outcome = run(Command::new(selfwind()).args(["completions", "tcsh"]));
    assert!(outcome.status == 2 && outcome.stderr.contains("bash"), "{}", outcome.stderr);
}

/// What a shell answers to a script, with the completions of `shell` in the file `name` of the directory it runs in;
/// none if it is not installed.
fn loaded_by(shell: &str, name: &str, arguments: &[&str]) -> Option<String> {
    let scratch = Scratch::new();
    let completions = run(Command::new(selfwind()).args(["completions", shell])).stdout;
    fs::write(scratch.join(name), completions).expect("ours");
    let path = std::env::var_os("PATH").expect("PATH is set");
    if !std::env::split_paths(&path).any(|directory| directory.join(shell).exists()) {
        skip(format_args!("no {shell} (Debian: {shell}); scripts/test installs it as root"));
        return None;
    }
    let mut command = Command::new(shell);
    command.args(arguments).current_dir(scratch.path()).env("HOME", scratch.path());
    let outcome = run(&mut command);
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{shell}: {}", outcome.stdout);
    Some(outcome.stdout)
}

#[test]
fn completions_are_loaded_by_zsh() {
    let script = "fpath=($PWD $fpath); autoload -U compinit; compinit -u -d $PWD/dump
        print -r -- ${_comps[selfwind]}; autoload +X _selfwind && print loaded; functions _selfwind | grep -o -- --no-children | head -n 1";
    if let Some(answer) = loaded_by("zsh", "_selfwind", &["-f", "-c", script]) {
        assert_eq!(answer.lines().collect::<Vec<_>>(), ["_selfwind", "loaded", "--no-children"]);
    }
}

#[test]
fn completions_complete_in_fish() {
    let script = "source selfwind.fish; complete -C 'selfwind rec'; complete -C 'selfwind report --no'";
    if let Some(answer) = loaded_by("fish", "selfwind.fish", &["--no-config", "-c", script]) {
        let words: Vec<&str> = answer.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(words, ["record", "--no-children", "--no-symbol-cache"], "{answer}");
    }
}

#[test]
fn manual_pages_render_without_a_warning() {
    let scratch = Scratch::new();
    let outcome = run(Command::new(selfwind()).arg("man").arg(scratch.path()));
    assert_eq!(outcome.status, 0, "{}", outcome.stderr);
    let mut pages = 0;
    for page in fs::read_dir(scratch.path()).expect("ours").flatten() {
        let mut man = Command::new("man");
        man.args(["--warnings", "-E", "UTF-8", "-l"])
            .arg(page.path())
            .env("MANWIDTH", "80")
            .env("MANPAGER", "cat");
        let outcome = run(&mut man);
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{:?}", page.path());
        if page.file_name() == "selfwind-record.1" {
            assert!(
                outcome.stdout.contains("--freq") && outcome.stdout.contains("selfwind record -- make -j8"),
                "{}",
                outcome.stdout
            );
        }
        for section in ["EXIT STATUS", "ENVIRONMENT", "SEE ALSO"] {
            let found = outcome.stdout.lines().any(|line| line == section);
            assert!(found, "{:?} has no {section}", page.path());
        }
        if ["selfwind-record.1", "selfwind-diff.1"].iter().any(|name| page.file_name() == *name) {
            assert!(outcome.stdout.contains("\nEXAMPLES\n"), "{}", outcome.stdout);
        }
        pages += 1;
    }
    assert!(pages > 10, "a page for each command");
    let outcome = run(Command::new(selfwind()).args(["man", "/proc/none"]));
    assert!(outcome.status == 1 && outcome.stderr.contains("/proc/none"), "{}", outcome.stderr);
}

#[test]
fn flags_of_perf_get_a_hint() {
    for (arguments, advice) in [
        (&["record", "-a", "--", "true"][..], "-p PID"),
        (&["record", "-g", "true"], "always recorded"),
        (&["record", "--call-graph=dwarf", "true"], "always recorded"),
        (&["record", "-e", "cycles", "true"], "-e perf:cycles"),
    ] {
        let outcome = run(Command::new(selfwind()).args(arguments));
        assert_eq!(outcome.status, 125, "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains(advice) && !outcome.stderr.contains("tip:"), "{}", outcome.stderr);
    }
}

#[test]
fn a_program_that_waits_gets_a_hint_to_wall_clock_sampling() {
    let scratch = Scratch::new();
    let recorded =
        run(Command::new(selfwind()).args(["record", "--", "sleep", "0.2"]).current_dir(scratch.path()));
    assert!(recorded.stderr.contains("-e wall"), "{}", recorded.stderr);
}

#[test]
fn tables_in_a_pipe_have_120_columns() {
    let scratch = Scratch::new();
    let argument = "long/".repeat(60);
    let program = Target::c("spin").build();
    let mut record = Command::new(selfwind());
    record.args(["record", "-q", "-F", "499", "--"]).arg(&program).args(["20", &argument]);
    run(record.current_dir(scratch.path()));
    let show = |columns: Option<&str>, arguments: &[&str]| {
        let mut command = Command::new(selfwind());
        command.args(arguments).current_dir(scratch.path()).env_remove("COLUMNS");
        command.envs(columns.map(|columns| ("COLUMNS", columns)));
        let outcome = run(&mut command);
        assert_eq!(outcome.status, 0, "{outcome:?}");
        outcome.stdout.lines().map(|line| line.chars().count()).max().expect("lines")
    };
    for arguments in [&["report"][..], &["diff", "selfwind.data", "selfwind.data"]] {
        assert!(show(None, arguments) <= 120, "{arguments:?}");
        assert!(show(Some("60"), arguments) <= 62, "{arguments:?}");
    }
}

/// A process that does not outlive its test.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended, and is our child until it is waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn foreign_names_cannot_move_the_cursor() {
    let scratch = Scratch::new();
    // A program whose name would clear the screen, set the window's title and begin a line, and is no UTF-8.
    let program = scratch.path().join(OsStr::from_bytes(b"a\x1b[2J\x1b]0;x\x07b\nc\xff"));
    fs::copy(Target::c("spin").build(), &program).expect("ours");
    let directory = scratch.join("regions");
    fs::create_dir(&directory).expect("ours");
    fs::set_permissions(&directory, Permissions::from_mode(0o700)).expect("ours");
    let spin = Command::new(&program)
        .env("LD_PRELOAD", selfwind_tests::binary::agent())
        .env("SELFWIND_DIR", &directory)
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("it was copied");
    let pid = spin.id().to_string();
    let mut spin = Some(Killed(spin));
    while fs::read_dir(&directory).expect("ours").next().is_none() {
        std::thread::sleep(Duration::from_millis(20));
    }
    for arguments in [
        &["list"][..],
        &["dump", "-p", &pid],
        &["doctor", "-p", &pid],
        &["record", "-v", "-d", "0.2", "-o", "x.data", "-p", &pid],
        &["report", "x.data"],
        &["stats", "x.data"],
        &["stats", "--json", "x.data"],
        &["list", "--json"],
        &["dump", "--json", "-p", &pid],
        &["list", "--reap"],
    ] {
        if arguments == ["list", "--reap"] {
            drop(spin.take());
        }
        let mut command = Command::new(selfwind());
        command.args(arguments).current_dir(scratch.path()).env("SELFWIND_DIR", &directory);
        let outcome = run(&mut command);
        let said = outcome.stdout + &outcome.stderr;
        let control = said.chars().find(|&c| c.is_control() && c != '\n');
        assert_eq!(control, None, "{arguments:?}: {said:?}");
        assert!(!said.is_empty(), "{arguments:?} says nothing");
        assert!(!said.lines().any(|line| line.starts_with("c\u{fffd}")), "{arguments:?}: {said}");
        if arguments.contains(&"--json") {
            assert!(outcome.status == 0 && said.contains("\\nc\u{fffd}"), "{arguments:?}: {said}");
        }
    }
}
