//! Processes with a seccomp filter, as in most containers and many services: attached to if the filter permits the
//! agent's system calls, left alone if not.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::unistd::geteuid;
use selfwind_tests::attacher::{Attacher, Guest};
use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::run;
use selfwind_tests::recording::{folded, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;
use selfwind_tests::target::Target;

const NOBODY: u32 = 65534;

fn program() -> PathBuf {
    Target::c("filtered").with("threads", &["-pthread"]).build()
}

/// The program's filter kills for every system call that is not on its list.
#[test]
fn a_process_whose_filter_permits_it_is_recorded() {
    if !geteuid().is_root() {
        return skip("reading a filter takes root");
    }
    let attacher = Attacher::new();
    let guest = Guest::start(&program(), &["4"]);
    let pid = guest.pid();
    let file = attacher.scratch.join("filtered.data");
    let path = file.to_str().expect("UTF-8");
    let record = attacher.run(&["record", "-q", "-F", "199", "-d", "1", "-o", path, "-p", &pid]);
    assert_eq!(record.status, 0, "{}", record.stderr);
    let recorded = stats(&file);
    recorded.assert_adds_up();
    let work = folded(&file).inclusive("filtered_work");
    assert!(work * 10 >= recorded.number("weight") * 9 && work > 20, "{:?}", folded(&file));
    assert_eq!(recorded.number("threads"), 2);
    for arguments in [&["attach", "-p"][..], &["dump", "-p"], &["attach", "--detach", "-p"]] {
        let arguments = [arguments, &[&pid]].concat();
        let outcome = attacher.run(&arguments);
        assert_eq!(outcome.status, 0, "{arguments:?}: {}", outcome.stderr);
    }
    assert_eq!(guest.end(), (Some(0), "done\n".to_owned()));
}

#[test]
fn a_process_whose_filter_forbids_it_is_left_alone() {
    if !geteuid().is_root() {
        return skip("reading a filter takes root");
    }
    let attacher = Attacher::new();
    for (number, name) in [(libc::SYS_timer_create, "timer_create"), (libc::SYS_mremap, "mremap")] {
        let guest = Guest::start(&program(), &["2", &number.to_string()]);
        let outcome = attacher.run(&["record", "-p", &guest.pid()]);
        assert_eq!(outcome.status, 125, "{outcome:?}");
        assert!(outcome.stderr.contains(&format!("does not allow {name}, which")), "{outcome:?}");
        assert_eq!(guest.end(), (Some(0), "done\n".to_owned()));
    }
}

/// The agent's system calls would be delivered to the program.
#[test]
fn a_process_that_has_its_calls_delivered_is_left_alone() {
    let program = Target::c("dispatched_calls").build();
    let alone = run(&mut Command::new(&program)).stdout;
    if alone.starts_with("unsupported") {
        return skip("the kernel has no Syscall User Dispatch");
    }
    let kernel = nix::sys::utsname::uname().expect("a kernel");
    let mut release = kernel.release().to_str().expect("ASCII").split('.').map(str::parse::<u32>);
    if [release.next(), release.next()].map(|part| part.and_then(Result::ok)) < [Some(6), Some(4)] {
        return skip("before Linux 6.4 a process cannot be asked whether it has its calls delivered");
    }
    let guest = Guest::start(&program, &[]);
    let outcome = Attacher::new().run(&["record", "-p", &guest.pid()]);
    assert_eq!(outcome.status, 125, "{outcome:?}");
    assert!(outcome.stderr.contains("has its system calls delivered as signals"), "{outcome:?}");
    assert_eq!(
        (guest.end(), &*alone),
        ((Some(0), "50 own, 0 other; 0\n".into()), "ready\n50 own, 0 other; 0\n")
    );
}

#[test]
fn reading_a_filter_needs_root() {
    let attacher = Attacher::new();
    let reachable = Scratch::for_all_users();
    let mut command = Command::new(reachable.copy(&program()));
    command.arg("1").stdin(Stdio::null()).stdout(Stdio::null());
    let mut attach = Command::new(reachable.copy(selfwind()));
    attach.arg("attach").env("XDG_RUNTIME_DIR", attacher.scratch.path());
    if geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
        attach.uid(NOBODY).gid(NOBODY).env("XDG_RUNTIME_DIR", "/nonexistent");
    }
    let mut guest = command.spawn().expect("it was just built");
    // It installs its filter once it is working.
    while !std::fs::read_to_string(format!("/proc/{}/status", guest.id()))
        .expect("our child")
        .contains("Seccomp:\t2")
    {
        std::thread::yield_now();
    }
    let outcome = run(attach.args(["-p", &guest.id().to_string()]));
    assert_eq!(outcome.status, 1, "{outcome:?}");
    assert!(outcome.stderr.contains("only root can see"), "{outcome:?}");
    assert!(guest.wait().expect("our child").success());
}
