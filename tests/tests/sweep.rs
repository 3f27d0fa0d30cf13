//! Every program of /usr/bin and /usr/sbin that answers `--version` or `--help` gives the same output and exit status
//! with the agent as without: with timers at 1000 Hz, with perf events at the highest rate, and with all allocations
//! and lock waits recorded.
//!
//! Each program runs in a pid namespace of its own, so that whatever it starts or kills affects nothing else. Programs
//! that already differ between two runs alone prove nothing; they are left out and printed. The short form runs those
//! that preloaded profilers are known to break; `SELFWIND_LONG` runs all.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use selfwind_tests::binary::{selfwind, target_dir, workspace};
use selfwind_tests::outcome::{Outcome, run_within};
use selfwind_tests::scratch::Scratch;

/// A program that takes longer waits for something that will not come.
const PATIENCE: Duration = Duration::from_secs(10);
/// With the agent, on a machine that runs other tests too.
const PATIENCE_RECORDED: Duration = Duration::from_secs(60);
/// More runs alone, to tell a difference from a program that seldom says the same.
const MORE_RUNS: usize = 20;

/// Programs between two lines that say how far the long form is.
const PROGRESS: usize = 100;

/// Programs that are not asked, and why.
const NOT_ASKED: [(&str, &str); 12] = [
    ("halt", "stops the machine whatever it is asked"),
    ("init", "as above"),
    ("poweroff", "as above"),
    ("reboot", "as above"),
    ("shutdown", "as above"),
    ("telinit", "as above"),
    ("killall5", "has no options: kills every process"),
    ("uptime", "tells the time"),
    ("top", "tells the time"),
    ("w", "tells the time"),
    ("selfwind", "records itself"),
    ("script", "copies its session, with its time, into a file"),
];

/// Known to break under some preloaded profiler (killed across an exec, all descriptors closed, seccomp filters, an
/// unexpected signal handler), or of a kind that is easy to break.
const DELICATE: [&str; 62] = [
    "gs",
    "ps2pdf",
    "ps2ascii",
    "pdf2ps",
    "valgrind",
    "clusterdb",
    "createdb",
    "dropdb",
    "psql",
    "gdb",
    "gdbtui",
    "c89",
    "c99",
    "gcc",
    "g++",
    "cpp",
    "clang",
    "zfgrep",
    "zgrep",
    "zegrep",
    "xzgrep",
    "zcat",
    "lsof",
    "slogin",
    "ssh",
    "ssh-keygen",
    "sshd",
    "man",
    "mandb",
    "apropos",
    "bash",
    "dash",
    "sh",
    "env",
    "nice",
    "nohup",
    "timeout",
    "setsid",
    "xargs",
    "find",
    "sudo",
    "su",
    "python3",
    "perl",
    "node",
    "ruby",
    "java",
    "go",
    "git",
    "make",
    "cmake",
    "strace",
    "ltrace",
    "perf",
    "redis-server",
    "redis-cli",
    "sqlite3",
    "openssl",
    "curl",
    "systemctl",
    "ldconfig",
    "kmod",
];

/// Every executable file of the two directories, by name once.
fn all_programs() -> Vec<PathBuf> {
    let mut seen = BTreeSet::new();
    let mut programs = Vec::new();
    for directory in ["/usr/bin", "/usr/sbin"] {
        for entry in fs::read_dir(directory).expect("readable").flatten() {
            let path = entry.path();
            let runs = fs::metadata(&path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
            if runs && seen.insert(entry.file_name()) {
                programs.push(path);
            }
        }
    }
    programs.sort();
    programs
}

/// How a program is run: by a shell that is the first process of a pid namespace, which is exempt from signals that end
/// others. It has a /tmp of its own, since the few pids of a namespace lead to equal file names there.
struct Asker {
    scratch: Scratch,
    isolated: bool,
    cache: PathBuf,
}

impl Asker {
    fn new() -> Self {
        let isolated = run_within(Command::new("unshare").args(ISOLATED).arg("true"), PATIENCE)
            .is_ok_and(|outcome| outcome.status == 0);
        let cache = target_dir().join("sweep-cache");
        fs::create_dir_all(&cache).expect("the target directory is writable");
        Self { scratch: Scratch::new(), isolated, cache }
    }

    fn ask(&self, words: &[&str], limit: Duration) -> Option<Outcome> {
        let home = self.scratch.join("home");
        let _ = fs::remove_dir_all(&home);
        fs::create_dir_all(&home).expect("the scratch directory is writable");
        let mut command = Command::new(if self.isolated { "unshare" } else { "setsid" });
        command.args(if self.isolated { &ISOLATED[..] } else { &["-w"] });
        command
            .args(["sh", "-c", if self.isolated { ASK_APART } else { ASK }, "sh"])
            .arg(workspace())
            .args(words)
            .current_dir(&home)
            .env_clear();
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin");
        command.env("HOME", &home).env("LC_ALL", "C.UTF-8").env("TERM", "dumb");
        command.env("XDG_CACHE_HOME", &self.cache).env("TMPDIR", &home);
        run_within(&mut command, limit).ok()
    }

    fn ask_recorded(&self, source: &str, words: &[&str]) -> Option<Outcome> {
        let binary = selfwind().to_str().expect("UTF-8");
        let data = self.scratch.join("x.data");
        let data = data.to_str().expect("UTF-8");
        let rate = if source == "perf" { "9973" } else { "1000" };
        let record = [binary, "record", "-q", "-F", rate, "-e", source, "-o", data, "--"];
        self.ask(&[&record, words].concat(), PATIENCE_RECORDED)
    }
}

const ASK: &str = "shift; \"$@\"; exit $?";
/// With an empty /tmp, in which there is nothing but the checkout, if it is there.
const ASK_APART: &str = r#"
case $1 in
/tmp/*) mount --bind "$1" /mnt && mount -t tmpfs none /tmp && mkdir -p "$1" && mount --move /mnt "$1" ;;
*) mount -t tmpfs none /tmp ;;
esac || exit 126
shift
cd "$HOME"
"$@"
exit $?"#;
const ISOLATED: [&str; 5] = ["--pid", "--fork", "--kill-child", "--mount-proc", "--"];

/// What came of one question.
enum Answer {
    Same,
    /// Not reproducible, or too slow: proves nothing.
    Unsteady,
    /// Static or setuid: the agent is not loaded.
    Refused,
    Different(String),
}

/// Masks long numbers (addresses, sizes of free memory, times) and process ids (`name[4]: message`, `pid=4`).
fn masked(outcome: &Outcome) -> (i32, String) {
    const LONG: usize = 7;
    let text = format!("{}\n{}", outcome.stdout, outcome.stderr);
    let mut masked = String::new();
    let mut digits = String::new();
    for c in text.chars().chain(['\n']) {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        let is_pid = c == ']' && masked.ends_with('[') || masked.ends_with("pid=");
        masked.push_str(if digits.len() >= LONG || is_pid && !digits.is_empty() { "#" } else { &digits });
        digits.clear();
        masked.push(c);
    }
    (outcome.status, masked)
}

/// What the program answers alone, if it answers the same twice.
fn ask_alone(asker: &Asker, words: &[&str]) -> Option<Outcome> {
    let alone = || asker.ask(words, PATIENCE);
    alone().filter(|first| alone().as_ref() == Some(first))
}

fn judge(asker: &Asker, source: &str, words: &[&str], first: &Outcome) -> Answer {
    let recorded = asker.ask_recorded(source, words);
    if recorded.as_ref().is_some_and(|recorded| masked(recorded) == masked(first)) {
        return Answer::Same;
    }
    if let Some(recorded) = &recorded
        && recorded.status == 125
        && recorded.stderr.contains("cannot be preloaded")
    {
        return Answer::Refused;
    }
    if (0..MORE_RUNS).any(|_| asker.ask(words, PATIENCE).as_ref() != Some(first)) {
        return Answer::Unsteady;
    }
    Answer::Different(format!("{words:?} ({source}):\n  alone    {first:?}\n  recorded {recorded:?}"))
}

/// Asks all `programs`; fails if one of them answers differently.
fn sweep(programs: &[PathBuf], sources: &[&str]) {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (counts, unsteady) = (Mutex::new([0usize; 4]), Mutex::new(BTreeSet::new()));
    let different = Mutex::new(Vec::new());
    let work = || {
        let asker = Asker::new();
        while let Some(path) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
            for option in ["--version", "--help"] {
                let words = [path.to_str().expect("UTF-8"), option];
                let first = ask_alone(&asker, &words);
                for source in sources {
                    let answer =
                        first.as_ref().map_or(Answer::Unsteady, |first| judge(&asker, source, &words, first));
                    counts.lock().unwrap()[match answer {
                        Answer::Same => 0,
                        Answer::Unsteady => 1,
                        Answer::Refused => 2,
                        Answer::Different(_) => 3,
                    }] += 1;
                    match answer {
                        Answer::Unsteady => drop(unsteady.lock().unwrap().insert(words.join(" "))),
                        Answer::Different(how) => {
                            eprintln!("{how}");
                            different.lock().unwrap().push(how);
                        }
                        Answer::Same | Answer::Refused => {}
                    }
                }
            }
            let asked = done.fetch_add(1, Ordering::Relaxed) + 1;
            if asked.is_multiple_of(PROGRESS) {
                eprintln!("{asked} of {} programs", programs.len());
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, |n| n.get()) {
            scope.spawn(work);
        }
    });
    let [same, _, refused, _] = *counts.lock().unwrap();
    let (unsteady, different) = (unsteady.into_inner().unwrap(), different.into_inner().unwrap());
    println!(
        "{} programs, {same} answers the same, {refused} refused (static, setuid), {} unsteady, {} different",
        programs.len(),
        unsteady.len(),
        different.len()
    );
    println!("unsteady: {unsteady:?}");
    assert!(same > programs.len() / 4, "hardly a program answered: is the machine isolated at all?");
    assert!(different.is_empty(), "{}", different.join("\n"));
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

#[test]
fn every_program_answers_as_without() {
    let long = std::env::var_os("SELFWIND_LONG").is_some();
    let mut programs = all_programs();
    programs.retain(|path| {
        let refused = NOT_ASKED.iter().any(|(program, _)| *program == name(path));
        !refused && (long || DELICATE.contains(&name(path)))
    });
    let all = ["cpu", "itimer", "perf", "cpu,alloc:all,lock:all"];
    sweep(&programs, if long { &all } else { &["cpu", "perf", "cpu,alloc:all,lock:all"] });
}
