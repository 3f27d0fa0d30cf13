//! Scarce resources: small and full file systems, limits on files and memory, crowds of threads and processes. The
//! program never notices: no signal, same output, same exit status. Processes that are not recorded are named with the
//! cause.
//!
//! `CROWD_THREADS` sets the size (10,000 for the full form).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use selfwind_tests::attacher::Guest;
use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::recording::{folded, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::{may_mount, skip};
use selfwind_tests::stats::Stats;
use selfwind_tests::target::Target;

/// Provides session directories on new file systems of size `$1`, with `$2` bytes left free (if not empty).
const SMALL_DIRECTORIES: &str = r#"
set -e
for directory in "/dev/shm/selfwind-$(id -u)" "/tmp/selfwind-$(id -u)"; do
  mkdir -p -m 700 "$directory"
  mount -t tmpfs -o "size=$1,mode=700" tmpfs "$directory"
  if [ -n "$2" ]; then
    head -c "$(($(stat -f -c '%a * %S' "$directory") - $2))" /dev/zero >"$directory/filler"
  fi
done
unset XDG_RUNTIME_DIR
shift 2
exec "$@"
"#;

/// Records `crowd ARGUMENTS` with session directories in file systems of that size.
fn crowded(scratch: &Scratch, size: &str, free: &str, arguments: &[&str]) -> Outcome {
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", SMALL_DIRECTORIES, "sh", size, free]).arg(selfwind());
    command.args(["record", "-F", "997", "-o"]).arg(scratch.join("selfwind.data")).arg("--");
    run(command.arg(Target::c("crowd").build()).args(arguments).env("TMPDIR", scratch.path()))
}

/// Asserts that the program ended as it does alone; returns what else the recorder printed.
fn assert_unharmed(outcome: &Outcome) {
    assert_eq!((outcome.status, outcome.stdout.as_str()), (0, "crowd 0\n"), "{outcome:?}");
    assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
}

fn adds_up(file: &Path) -> Stats {
    let stats = stats(file);
    stats.assert_adds_up();
    assert_eq!(folded(file).total(), stats.number("weight"));
    stats
}

#[test]
fn a_file_system_of_64_mib_is_enough_for_a_hundred_processes() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let outcome = crowded(&scratch, "64m", "", &["children", "100"]);
    assert_unharmed(&outcome);
    assert!(!outcome.stderr.contains("not recorded"), "{outcome:?}");
    let stats = adds_up(&scratch.join("selfwind.data"));
    assert_eq!(stats.number("processes"), 101, "{:#}", stats.0);
}

#[test]
fn processes_that_do_not_fit_one_mebibyte_are_named_with_the_cause() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let outcome = crowded(&scratch, "1m", "", &["children", "30"]);
    assert_unharmed(&outcome);
    let cause = "is not recorded: no space for the shared memory file: the file system of the session directory is full";
    let named = outcome.stderr.matches(cause).count() as u64;
    let stats = adds_up(&scratch.join("selfwind.data"));
    let recorded = stats.number("processes");
    assert!(recorded >= 3 && named >= 1, "{recorded} recorded: {outcome:?}");
    assert_eq!(recorded + named, 31, "every process is recorded or named: {outcome:?}");
}

#[test]
fn losses_of_many_threads_in_one_mebibyte_are_named() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    assert_unharmed(&crowded(&scratch, "1m", "", &["threads", "150"]));
    let stats = adds_up(&scratch.join("selfwind.data"));
    assert!(stats.number("samples") > 0, "{:#}", stats.0);
}

#[test]
fn a_nearly_full_file_system_records_nothing_and_says_why() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let outcome = crowded(&scratch, "1m", "40960", &["threads", "3"]);
    assert_unharmed(&outcome);
    assert!(outcome.stderr.contains("the session directory is full"), "{outcome:?}");
    assert_eq!(adds_up(&scratch.join("selfwind.data")).number("samples"), 0);
}

#[test]
fn a_full_file_system_is_reported_before_the_program_runs() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let outcome = crowded(&scratch, "1m", "0", &["threads", "3"]);
    assert_eq!((outcome.status, outcome.stdout.as_str()), (125, ""), "{outcome:?}");
    for part in ["/dev/shm/selfwind", "/tmp/selfwind", "No space left", "XDG_RUNTIME_DIR"] {
        assert!(outcome.stderr.contains(part), "{part}: {outcome:?}");
    }
}

/// Records `crowd ARGUMENTS` started by a shell that runs `before`.
fn limited(scratch: &Scratch, before: &str, arguments: &[&str]) -> Outcome {
    let mut command = Command::new(selfwind());
    command.args(["record", "-F", "997", "-o"]).arg(scratch.join("selfwind.data"));
    command.args(["--", "sh", "-c", &format!("{before} && exec \"$@\""), "sh"]);
    run(command.arg(Target::c("crowd").build()).args(arguments))
}

#[test]
fn a_limit_on_the_size_of_files_costs_the_profile_not_the_program() {
    for blocks in ["0", "4", "100", "1000", "100000"] {
        let scratch = Scratch::new();
        let outcome = limited(&scratch, &format!("ulimit -f {blocks}"), &["threads", "8"]);
        assert_unharmed(&outcome);
        let stats = adds_up(&scratch.join("selfwind.data"));
        let recorded = stats.executables().iter().any(|(name, samples)| name == "crowd" && *samples > 0);
        let said = outcome.stderr.contains("RLIMIT_FSIZE");
        assert!(recorded != said, "{blocks} blocks: recorded {recorded}: {outcome:?}");
        assert!(recorded || blocks != "100000", "{outcome:?}");
        assert!(!recorded || blocks != "0", "{outcome:?}");
    }
}

#[test]
fn a_cause_that_was_named_is_not_contradicted() {
    let scratch = Scratch::new();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 10 && exec \"$@\"", "sh"]).arg(selfwind());
    command.args(["record", "-o"]).arg(scratch.join("small.data")).args(["--", "true"]);
    let outcome = run(&mut command);
    assert!(outcome.status == 0 && outcome.stderr.contains("ulimit -f"), "{outcome:?}");
    assert!(!outcome.stderr.contains("SELFWIND_ENABLE"), "{outcome:?}");
}

#[test]
fn a_limit_on_address_space_is_not_used_up() {
    let scratch = Scratch::new();
    // In KiB. Eight threads of 64 KiB, and what they allocate.
    let outcome = limited(&scratch, "ulimit -v 400000", &["threads", "8"]);
    assert_unharmed(&outcome);
    assert!(adds_up(&scratch.join("selfwind.data")).number("samples") > 0, "{outcome:?}");
}

#[test]
fn a_recorder_without_address_space_attaches_to_nothing() {
    let mut guest = Guest::start(&Target::c("spin").build(), &[]);
    let pid = guest.pid();
    // In KiB.
    for limit in ["25000", "60000", "300000", "500000"] {
        let line = format!("ulimit -v {limit}; exec \"$0\" record -q -o /dev/null -p {pid} --duration 0.1");
        let outcome = run(Command::new("sh").arg("-c").arg(line).arg(selfwind()));
        assert_eq!(outcome.status, 125, "{limit}: {outcome:?}");
        assert!(
            outcome.stderr.contains("not recorded") && outcome.stderr.contains("ulimit -v"),
            "{outcome:?}"
        );
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it is alive");
        assert!(!maps.contains("selfwind"), "{limit}: {maps}");
    }
    guest.child.kill().expect("our child");
    guest.child.wait().expect("our child");
}

#[test]
fn a_crowd_of_threads_is_recorded() {
    let count = std::env::var("CROWD_THREADS").unwrap_or_else(|_| "1000".into());
    let scratch = Scratch::new();
    // Two milliseconds of work each.
    let outcome = limited(&scratch, "true", &["threads", &count, "2"]);
    if outcome.status == 77 {
        println!("not tried: {}", outcome.stdout);
        return;
    }
    assert_unharmed(&outcome);
    let stats = adds_up(&scratch.join("selfwind.data"));
    let (weight, lost) = (stats.number("weight"), stats.number("lost"));
    println!("{count} threads: weight {weight}, lost {lost}, {} bytes", stats.number("bytes"));
    assert_eq!(lost, 0, "{:#}", stats.0);
    assert!(stats.number("threads") >= count.parse().expect("a number"), "{:#}", stats.0);
}

/// A control group with a limit on its memory, removed at the end.
struct MemoryGroup {
    path: PathBuf,
    /// The file with the peak memory use; not in all kernels.
    peak: &'static str,
}

impl MemoryGroup {
    /// Or the reason why there is none. A directory that the kernel does not populate is no cgroup, even if it is
    /// writable.
    fn new(bytes: u64) -> Result<Self, String> {
        let root = Path::new("/sys/fs/cgroup");
        let unified = root.join("cgroup.controllers").exists();
        let (root, limit, peak) = match unified {
            true => (root.to_owned(), "memory.max", "memory.peak"),
            false => (root.join("memory"), "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
        };
        if !root.join("cgroup.procs").exists() {
            return Err(format!("{} is no control group with memory", root.display()));
        }
        let path = root.join(format!("selfwind-test-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let group = Self { path, peak };
        let file = group.path.join(limit);
        if !file.exists() {
            return Err(format!("{} is not there: the memory controller is off", file.display()));
        }
        fs::write(&file, bytes.to_string()).map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(group)
    }

    fn peak(&self) -> Option<u64> {
        fs::read_to_string(self.path.join(self.peak)).ok()?.trim().parse().ok()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Its processes may still be exiting; an empty group does no harm.
        let _ = fs::remove_dir(&self.path);
    }
}

#[test]
fn a_limit_on_memory_kills_nobody_because_of_the_agent() {
    let limit = 48 << 20;
    let group = match MemoryGroup::new(limit) {
        Ok(group) => group,
        Err(reason) => return println!("not tried: {reason}"),
    };
    let scratch = Scratch::new();
    let join = format!("echo $$ >{}/cgroup.procs", group.path.display());
    let outcome = limited(&scratch, &join, &["threads", "200"]);
    assert_unharmed(&outcome);
    let samples = adds_up(&scratch.join("selfwind.data")).number("samples");
    assert!(samples > 0, "{outcome:?}");
    if let Some(peak) = group.peak() {
        println!("{peak} bytes of {limit} used");
        assert!(peak > 1 << 20, "the program was not in the group: {peak}");
    }
}

#[test]
fn programs_started_as_another_user_are_recorded() {
    if !nix::unistd::geteuid().is_root() {
        skip("becoming another user takes root");
        return;
    }
    let (scratch, reachable) = (Scratch::new(), Scratch::for_all_users());
    let program = reachable.copy(&Target::c("crowd").build());
    let mut command = Command::new(selfwind());
    command.args(["record", "-F", "997", "-o"]).arg(scratch.join("selfwind.data")).arg("--");
    let outcome = run(command.arg(&program).arg("stranger"));
    assert_eq!((outcome.status, outcome.stdout.as_str()), (0, "child done\ncrowd 0\n"), "{outcome:?}");
    let stats = adds_up(&scratch.join("selfwind.data"));
    assert!(stats.number("samples") > 0);
    assert!(!outcome.stderr.contains("not recorded"), "{outcome:?}");
    assert!(!outcome.stderr.contains("ld.so"), "{outcome:?}");
    assert_eq!(stats.number("processes"), 2, "{:#}", stats.0);
}

#[test]
fn a_user_who_may_have_no_more_threads_reads_profiles_all_the_same() {
    if !nix::unistd::geteuid().is_root() {
        skip("becoming another user takes root");
        return;
    }
    let reachable = Scratch::for_all_users();
    let reader = reachable.copy(selfwind());
    let file = reachable.join("selfwind.data");
    let recorded = run(Command::new(selfwind())
        .args(["record", "-q", "-F", "499", "-o"])
        .arg(&file)
        .arg("--")
        .arg(Target::c("spin").build())
        .arg("200"));
    assert_eq!(recorded.stderr, "");
    for arguments in [&["report"][..], &["export", "-f", "folded"], &["export", "-f", "firefox"]] {
        let alone = |command: &mut Command| {
            run(command
                .args(arguments)
                .args(["--no-symbol-cache", "selfwind.data"])
                .current_dir(reachable.path()))
        };
        let mut crowded = Command::new("setpriv");
        crowded.args(["--reuid=64999", "--clear-groups", "prlimit", "--nproc=1"]).arg(&reader);
        let (found, expected) = (alone(&mut crowded), alone(&mut Command::new(&reader)));
        assert_eq!((found.status, found.stderr.as_str()), (0, ""), "{arguments:?}");
        assert_eq!(found.stdout, expected.stdout, "{arguments:?}");
    }
}
