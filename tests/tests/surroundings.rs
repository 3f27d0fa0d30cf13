//! Programs that change their environment (user, root, namespaces, limits, variables), that bring their own allocator
//! or sanitizer, or that act very early or very late: they behave with the agent as without, with both sources.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use selfwind_tests::binary::selfwind;
use selfwind_tests::folded::Folded;
use selfwind_tests::outcome::run;
use selfwind_tests::recording::{Recorder, Recording, record_unharmed};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::{may_mount, skip};
use selfwind_tests::target::{Target, is_installed};

const SOURCES: [&str; 2] = ["cpu", "itimer"];

/// Records `target` at a rate from each source; each recording must show these functions.
fn hazard(target: &Target, arguments: &[&str], functions: &[&str]) -> Vec<Recording> {
    let program = target.build();
    let record = |source: &&str| {
        let recording = record_unharmed(&Recorder::at(997).event(source), &program, arguments);
        let folded = recording.folded();
        for function in functions {
            assert!(folded.inclusive(function) > 0, "{function} ({source}) is not in {folded:?}");
        }
        recording
    };
    SOURCES.iter().map(record).collect()
}

fn both(name: &str) -> [Target; 2] {
    [Target::c(name), Target::c(name).musl()]
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

#[test]
fn limits() {
    for target in both("privileges") {
        for how in ["nofile", "as", "sigpending", "fsize"] {
            let functions: &[&str] = if how == "sigpending" {
                // No timer for the new thread.
                &["before_change", "after_change"]
            } else {
                &["before_change", "after_change", "thread_after_change"]
            };
            hazard(&target, &[how], functions);
        }
    }
}

#[test]
fn another_user_root_or_namespace() {
    if !is_root() {
        skip("not root");
        return;
    }
    for target in both("privileges") {
        for how in ["setuid", "chroot", "userns"] {
            hazard(&target, &[how], &["before_change", "after_change", "thread_after_change"]);
        }
        for recording in hazard(&target, &["pidns"], &["before_change", "after_change"]) {
            assert_eq!(recording.stats().number("processes"), 2);
        }
    }
}

/// Start times and clocks of the process differ from the recorder's.
#[test]
fn another_time_namespace() {
    let new = ["--time", "--fork", "--boottime", "100000", "--monotonic", "5000"];
    let mut unshare = Command::new("unshare");
    if !is_root() || run(unshare.args(new).arg("true")).status != 0 {
        return skip("no new time namespaces for this user");
    }
    let program = Target::c("cpu_shares").build();
    let arguments: Vec<&str> = new.into_iter().chain([program.to_str().expect("UTF-8")]).collect();
    for source in ["cpu", "perf", "wall"] {
        let recording = record_unharmed(&Recorder::default().event(source), Path::new("unshare"), &arguments);
        let found = recording.folded().inclusive("share_40");
        // Of one and a half seconds at 499 Hz, or in microseconds.
        let least = if source == "wall" { 500_000 } else { 250 };
        assert!(found > least, "{source}: {found}: {:?}", recording.folded());
    }
}

/// A program started with a replaced environment gets the agent all the same, and otherwise the given environment.
#[test]
fn replaced_environments() {
    for target in both("environments") {
        for recording in hazard(&target, &[], &["starter_work", "started_work"]) {
            let stats = recording.stats();
            assert_eq!(stats.number("processes"), 9, "{:#}", stats.0);
            assert!(
                stats.executables().iter().all(|(name, _)| name.starts_with("environments")),
                "{:#}",
                stats.0
            );
        }
    }
}

/// In a sandbox without the agent's file the loader prints no error.
#[test]
fn out_of_reach() {
    for how in ["plain", "filter"] {
        for recording in hazard(&Target::c("out_of_reach"), &[how], &[]) {
            if recording.outcome.status == 77 {
                return skip("no name spaces for this user");
            }
            assert!(recording.folded().inclusive("outside_work") > 0);
        }
    }
}

/// A process of root changes its user and executes a program: no loader complains, and everything is recorded.
#[test]
fn another_user_after_an_exec() {
    if !is_root() {
        return skip("becoming another user takes root");
    }
    let reachable = Scratch::for_all_users();
    let program = reachable.copy(&Target::c("crowd").build());
    let program = program.to_str().expect("UTF-8");
    let setpriv = ["--reuid=65534", "--regid=65534", "--clear-groups", program, "threads", "2", "100"];
    let shell = format!("exec {program} threads 2 100");
    let su = ["nobody", "-s", "/bin/sh", "-c", shell.as_str()];
    for (tool, arguments) in [("/usr/bin/setpriv", &setpriv[..]), ("/bin/su", &su[..])] {
        let recording = record_unharmed(&Recorder::at(997), Path::new(tool), arguments);
        let folded = recording.folded();
        assert!(folded.inclusive("crowd_work") > 0, "{tool}: {folded:?}");
    }
}

#[test]
fn daemon() {
    for target in both("daemon") {
        for recording in hazard(&target, &[], &["launcher_work", "daemon_work"]) {
            assert_eq!(recording.outcome.stdout, "helper 5\n");
        }
    }
}

#[test]
fn early_and_late() {
    for target in both("edges") {
        hazard(&target, &[], &["constructor_work", "main_work", "key_destructor_work", "atexit_work"]);
    }
}

#[test]
fn signalfd() {
    for target in both("signalfd") {
        for recording in hazard(&target, &[], &["loop_work"]) {
            assert_eq!(recording.outcome.stdout, "expected 50 foreign 0\n");
        }
    }
}

#[test]
fn second_loader_namespace() {
    let plugin = Target::c("plugin").shared("namespaces-plugin.so").build();
    hazard(&Target::c("namespaces"), &[plugin.to_str().expect("UTF-8")], &[]);
}

/// At 10 kHz, from both sources.
fn at_a_high_rate(target: &Target, arguments: &[&str]) -> Vec<Recording> {
    let program = target.build();
    SOURCES
        .map(|source| record_unharmed(&Recorder::at(10_000).event(source), &program, arguments))
        .into_iter()
        .collect()
}

#[test]
fn churn_of_loader_namespaces() {
    let plugin = Target::c("plugin").shared("namespaces-plugin.so").build();
    at_a_high_rate(&Target::c("namespace_churn"), &[plugin.to_str().expect("UTF-8")]);
}

#[test]
fn forks_that_take_long() {
    for target in both("large_fork") {
        for recording in at_a_high_rate(&target, &[]) {
            assert_eq!(recording.stats().number("processes"), 13);
        }
    }
}

#[test]
fn thread_local_destructors() {
    hazard(&Target::cpp("thread_locals"), &[], &["thread_body_work", "local_destructor_work"]);
}

#[test]
fn split_stacks() {
    if !is_installed("ld.gold") {
        skip("ld.gold is not installed, which links split stacks");
        return;
    }
    hazard(&Target::c("split_stack").with("split", &["-fsplit-stack"]), &[], &["split_work"]);
}

/// The directory for regions is on a full file system: the program runs as usual, and the recorder says why there is no
/// profile.
#[test]
fn full_shared_memory() {
    if !is_root() {
        skip("not root");
        return;
    }
    let scratch = Scratch::new();
    let program = Target::c("spin").build();
    let alone = run(Command::new(&program).arg("100"));
    let line = "mount -t tmpfs -o size=32k none /dev/shm && unset XDG_RUNTIME_DIR && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", line, "sh"]).arg(selfwind()).args(["record", "-o"]);
    let outcome = run(command.arg(scratch.join("x.data")).arg("--").arg(&program).arg("100"));
    assert_eq!((outcome.status, &outcome.stdout), (alone.status, &alone.stdout), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("no space"), "{}", outcome.stderr);
}

#[test]
fn fork_server() {
    for recording in hazard(&Target::c("fork_server"), &[], &["server_work", "request_work"]) {
        assert_eq!(recording.stats().number("processes"), 61);
    }
}

#[test]
fn small_stacks_by_swapcontext() {
    hazard(&Target::c("coroutine_switch"), &[], &["tiny_stack_work"]);
}

#[test]
fn beside_other_allocators() {
    let directory = Path::new("/usr/lib/x86_64-linux-gnu");
    for library in ["libjemalloc.so.2", "libtcmalloc.so.4", "libmimalloc.so.2.0"] {
        let library: PathBuf = directory.join(library);
        if !library.exists() {
            skip(format_args!("{} is not installed", library.display()));
            continue;
        }
        for name in ["malloc_storm", "thread_churn", "fork_server"] {
            let program = Target::c(name).build();
            for source in SOURCES {
                let recorder = Recorder::at(4999).event(source).env("LD_PRELOAD", &library);
                record_unharmed(&recorder, &program, &[""; 0]);
            }
        }
    }
}

#[test]
fn under_a_sanitizer() {
    for (variant, flag) in
        [("asan", "-fsanitize=address"), ("tsan", "-fsanitize=thread"), ("ubsan", "-fsanitize=undefined")]
    {
        let target = Target::cpp("sanitized").with(variant, &[flag]);
        hazard(&target, &[], &["sanitized_work"]);
    }
}

/// Whose files are gone when the recording ends.
#[test]
fn functions_of_files_that_only_the_process_has_are_named() {
    if !may_mount() {
        return;
    }
    for (name, flags) in
        [("identified", &["-Wl,--build-id=sha1"]), ("unidentified", &["-Wl,--build-id=none"])]
    {
        let program = Target::c("spin").with(name, flags).build();
        // A file that stayed open would keep it mounted.
        let own_mnt =
            "mount -t tmpfs none /mnt && cp \"$0\" /mnt/elsewhere && { /mnt/elsewhere \"$@\"; umount /mnt; }";
        let arguments = ["--mount", "sh", "-c", own_mnt, program.to_str().expect("UTF-8"), "300"];
        let recording = Recorder::at(997).record(Path::new("unshare"), &arguments);
        assert_eq!(recording.outcome.status, 0, "{name}: {}", recording.outcome.stderr);
        let folded = recording.folded();
        let named = folded.inclusive("spin_first");
        assert!(named > 100, "{name}: {named} of {}: {folded:#?}", folded.total());

        let (scratch, mut command) = (Scratch::new(), Command::new(selfwind()));
        let exported = scratch.join("x.folded");
        command.args(["record", "-q", "-F", "997", "-o"]).arg(&exported).arg("--").arg("unshare");
        let outcome = run(command.args(arguments));
        assert_eq!(outcome.status, 0, "{name}: {}", outcome.stderr);
        let folded = Folded::parse(&fs::read_to_string(&exported).expect("an export"));
        assert!(folded.inclusive("spin_first") > 100, "{name}: {folded:#?}");
    }
}

/// There, the processes name themselves by pids that mean others outside.
#[test]
fn pid_namespaces_with_a_proc_of_their_own() {
    if !may_mount() {
        return;
    }
    let program = Target::c("job").build();
    let twice = format!("{0} && {0}", program.display());
    let arguments = ["-fpm", "--mount-proc", "sh", "-c", &twice];
    let recording = record_unharmed(&Recorder::default(), Path::new("unshare"), &arguments);
    let parse = recording.folded().inclusive("parse") as f64 / 499.0;
    // Twice 160 ms of CPU time.
    assert!((0.25..0.4).contains(&parse), "{parse} s: {:?}", recording.folded());
}
