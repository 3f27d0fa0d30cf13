//! Programs that other preloaded profilers break, wrappers that exec, and commands with closed descriptors behave at a high rate as
//! they do without the profiler.
//!
//! A program that is not installed is skipped.

use std::path::PathBuf;
use std::process::Command;

use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::recording::{Recorder, folded, record_unharmed};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;
use selfwind_tests::target::Target;

/// The path of a program; skips if it is missing.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(program)).find(|p| p.exists());
    if found.is_none() {
        skip(format_args!("{program} is not installed"));
    }
    found
}

#[test]
fn python_with_threads_and_processes() {
    let Some(python) = find("python3") else { return };
    // The interpreter itself: version managers put shell scripts of the same name in front.
    let outcome = run(Command::new(python).args(["-c", "import sys; print(sys.executable)"]));
    let work = "
import threading, subprocess, multiprocessing, sys, zlib
def burn(n):
    return sum(len(zlib.compress(bytes(range(256)) * 200)) for _ in range(n))
if __name__ == '__main__':
    threads = [threading.Thread(target=burn, args=(60,)) for _ in range(4)]
    [t.start() for t in threads]; [t.join() for t in threads]
    with multiprocessing.get_context('fork').Pool(2) as pool:
        total = sum(pool.map(burn, [60] * 4))
    print(total, subprocess.run(['sh', '-c', 'exit 3']).returncode)
";
    let recording = record_unharmed(&Recorder::at(999), &PathBuf::from(outcome.stdout.trim()), &["-c", work]);
    assert!(recording.stats().number("processes") >= 4);
    assert!(recording.stats().complete() >= 0.95, "{:#}", recording.stats().0);
}

/// Asserts that a program gives the same output and exit status alone and recorded.
fn unharmed(program: &str, arguments: &[&str]) -> Option<Outcome> {
    let path = find(program)?;
    let alone = run(Command::new(&path).args(arguments));
    // At a high rate: what survives this survives.
    let recording = Recorder::at(4999).record(&path, arguments);
    assert_eq!(
        recording.outcome.status, alone.status,
        "{program} {arguments:?}: {}",
        recording.outcome.stderr
    );
    assert_eq!(without_addresses(&recording.outcome.stderr), without_addresses(&alone.stderr), "{program}");
    recording.assert_adds_up();
    Some(recording.outcome)
}

/// Process ids and addresses differ from run to run.
fn without_addresses(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_hexdigit() { '#' } else { c }).collect()
}

fn unharmed_to_the_letter(program: &str, arguments: &[&str]) {
    let Some(recorded) = unharmed(program, arguments) else { return };
    let alone = run(Command::new(find(program).expect("just run")).args(arguments));
    assert_eq!(recorded.stdout, alone.stdout, "{program} {arguments:?}");
}

#[test]
fn lsof_closes_every_descriptor() {
    unharmed("lsof", &["-p", "1"]);
    unharmed_to_the_letter("lsof", &["-v"]);
}

#[test]
fn man_runs_under_seccomp() {
    for page in [&["-P", "cat", "ls"][..], &["-P", "cat", "printf"], &["--version"]] {
        unharmed_to_the_letter("man", page);
    }
}

#[test]
fn gdb_sees_no_foreign_handler() {
    unharmed_to_the_letter("gdb", &["--version"]);
    let program = Target::c("exit_status").build().display().to_string();
    unharmed_to_the_letter("gdb", &["-nx", "-batch", "-ex", "print 6*7", &program]);
    unharmed_to_the_letter("gdbtui", &["--version"]);
}

#[test]
fn valgrind_execs_its_tool() {
    unharmed_to_the_letter("valgrind", &["--version"]);
    let program = Target::c("static_image").build();
    let Some(valgrind) = find("valgrind") else { return };
    let arguments = ["-q", "--error-exitcode=3", program.to_str().expect("UTF-8")];
    let recording = Recorder::at(999).record(&valgrind, &arguments);
    assert_eq!(recording.outcome.status, 15, "{}", recording.outcome.stderr);
    assert_eq!(recording.outcome.stdout, "static done\n");
}

#[test]
fn wrappers_that_exec() {
    for (program, arguments) in [
        ("c99", &["--version"][..]),
        ("c89", &["--version"]),
        ("zfgrep", &["x", "/dev/null"]),
        ("zgrep", &["--version"]),
        ("xzgrep", &["--version"]),
        ("ldd", &["/bin/ls"]),
        ("env", &["true"]),
        ("nice", &["sh", "-c", "exit 9"]),
        ("timeout", &["10", "sh", "-c", "exit 8"]),
        ("nohup", &["true"]),
        ("setsid", &["-w", "sh", "-c", "exit 6"]),
        ("xargs", &["--version"]),
        ("find", &["/etc/hostname", "-exec", "echo", "{}", ";"]),
        ("ps2ascii", &["--version"]),
        ("which", &["sh"]),
        ("bash", &["-c", "for i in 1 2 3; do (exit $i); echo $?; done; exec sh -c 'exit 11'"]),
        ("dash", &["-c", "echo one | cat | tr a-z A-Z; exit 12"]),
    ] {
        unharmed(program, arguments);
    }
}

#[test]
fn descriptors_that_the_caller_closed_are_closed_in_the_command() {
    let scratch = Scratch::new();
    let status = |recorder: &str, command: &str| {
        let mut shell = Command::new("/bin/sh");
        shell
            .args(["-c", &format!("exec {recorder} {command}")])
            .arg(selfwind())
            .arg(scratch.join("closed.data"));
        run(&mut shell).status
    };
    // With whether they fail alone.
    let commands = [
        ("cat <&-", true),
        ("cat /etc/passwd >&-", true),
        ("sh -c 'echo x >&2' 2>&-", true),
        ("sh -c 'echo x' <&- >&- 2>&-", true),
        ("cat /etc/passwd", false),
    ];
    for (command, fails) in commands {
        let alone = status("", command);
        assert_eq!(alone != 0, fails, "{command}");
        assert_eq!(status("\"$0\" record -q -o \"$1\" --", command), alone, "{command}");
    }
}

#[test]
fn a_graph_of_a_command_without_samples_is_no_failure() {
    let scratch = Scratch::new();
    let graph = scratch.join("none.svg");
    let outcome =
        run(Command::new(selfwind()).args(["record", "-F", "1", "-o"]).arg(&graph).args(["--", "true"]));
    assert_eq!(outcome.status, 0, "{}", outcome.stderr);
    assert!(std::fs::read_to_string(graph).expect("it was written").trim_end().ends_with("</svg>"));
}

/// Ticks of 10 ms in the histograms of a profile that a program compiled with `-pg` leaves (gmon_out.h): a header of 20 bytes, then
/// records, of which a histogram has the tag 0, 8 bytes each of its lowest and highest address, 4 of the number of its counters
/// and 20 more, and the counters of 2 bytes.
fn gprof_ticks(file: &[u8]) -> u64 {
    assert_eq!((file.get(..4), file.get(20)), (Some(&b"gmon"[..]), Some(&0)), "no histogram comes first");
    let record = &file[21..];
    let counters = u32::from_le_bytes(record[16..20].try_into().expect("four bytes")) as usize;
    let counters = &record[40..40 + 2 * counters];
    counters.as_chunks().0.iter().map(|counter| u64::from(u16::from_le_bytes(*counter))).sum()
}

#[test]
fn gprofs_own_profile_stays_as_it_is() {
    let program = Target::c("gprof").with("pg", &["-pg"]).build();
    for event in ["cpu", "itimer", "perf", "wall"] {
        let scratch = Scratch::new();
        let mut record = Command::new(selfwind());
        record.args(["record", "-q", "-F", "997", "-e", event, "-o", "x.data", "--"]).arg(&program);
        let outcome = run(record.current_dir(scratch.path()));
        assert_eq!((outcome.status, &*outcome.stdout), (0, "done\n"), "{event}: {}", outcome.stderr);
        let ticks = gprof_ticks(&std::fs::read(scratch.join("gmon.out")).expect("a profile"));
        assert!((20..=60).contains(&ticks), "{event}: {ticks} ticks in half a second");
        let own = folded(&scratch.join("x.data")).inclusive("profiled_work");
        // ITIMER_PROF is the program's.
        assert!(own > 0 || event == "itimer", "{event}");
    }
}
