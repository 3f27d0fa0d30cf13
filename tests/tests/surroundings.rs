//! Programs that change what surrounds them (user, root, namespaces, limits, environment), that bring their own allocator
//! or sanitizer, or that do things very early and very late: with the agent as without, from both sources.

use std::path::{Path, PathBuf};

use selfwind_tests::recording::{Recorder, Recording, record_unharmed};
use selfwind_tests::target::Target;

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
        println!("not root: left out");
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
            println!("{} is not installed", library.display());
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
