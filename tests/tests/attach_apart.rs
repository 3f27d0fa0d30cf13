//! Root attaches to everything: processes of other users, and those in other namespaces and root directories.

use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use selfwind_tests::attacher::{Attacher, Guest};
use selfwind_tests::recording::{folded, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;
use selfwind_tests::target::Target;

/// Attaches to the program that `wrapper` starts, records it, and looks for its function `work`.
fn is_recorded(what: &str, wrapper: &[&str], program: &str, work: Option<&str>) {
    let command: Vec<&str> = wrapper.iter().copied().chain([program, "heap", "60000"]).collect();
    command_is_recorded(what, &command, work);
}

fn command_is_recorded(what: &str, command: &[&str], work: Option<&str>) {
    let attacher = Attacher::new();
    let (first, rest) = command.split_first().expect("a command");
    let mut guest = Guest::start(first.as_ref(), rest);
    let pid = own_pid(guest.child.id());
    let file = attacher.scratch.join("apart.data");
    let path = file.to_str().expect("UTF-8");
    // On a busy machine it may hardly run in a second.
    let found = (0..4).any(|_| {
        let outcome = attacher.run(&["record", "-q", "-F", "199", "-d", "1", "-o", path, "-p", &pid]);
        assert_eq!(outcome.status, 0, "{what}: {}", outcome.stderr);
        stats(&file).assert_adds_up();
        let complete = stats(&file).complete();
        assert!(complete > 0.98 || work.is_none(), "{what}: {complete}: {:?}", folded(&file));
        work.map_or(stats(&file).number("samples"), |work| folded(&file).inclusive(work)) > 5
    });
    assert!(found, "{what}: {:?}", folded(&file));
    let attached = attacher.run(&["attach", "-p", &pid]);
    assert_eq!(attached.status, 0, "{what}: {}", attached.stderr);
    let list = attacher.run(&["list"]);
    assert!(list.stdout.contains("flight"), "{what}: {list:?}");
    let dump = attacher.run(&["dump", "-p", &pid]);
    assert!(dump.status == 0 && dump.stdout.contains(work.unwrap_or("thread")), "{what}: {dump:?}");
    let detached = attacher.run(&["attach", "--detach", "-p", &pid]);
    assert_eq!(detached.status, 0, "{what}: {}", detached.stderr);
    assert!(guest.child.try_wait().expect("our child").is_none(), "{what}: it ran on");
    let own = pid.parse().expect("a number");
    kill(Pid::from_raw(own), Signal::SIGKILL).expect("ours");
    let _ = guest.end();
}

/// The process, or its child if a new pid namespace needs one.
fn own_pid(pid: u32) -> String {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().next().map_or(pid.to_string(), str::to_owned)
}

#[test]
fn another_user_or_another_namespace_is_no_obstacle() {
    if !nix::unistd::geteuid().is_root() {
        return skip("attaching to processes in other surroundings takes root");
    }
    let program = Target::c("attach").with("lm", &["-lm"]).build();
    let program = program.to_str().expect("UTF-8");
    is_recorded(
        "user",
        &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"],
        program,
        Some("heap_work"),
    );
    is_recorded("mounts", &["unshare", "--mount"], program, Some("heap_work"));
    is_recorded("processes", &["unshare", "--pid", "--fork", "--mount-proc"], program, Some("heap_work"));
    is_recorded("users", &["unshare", "--user", "--map-root-user"], program, Some("heap_work"));
    is_recorded("network", &["unshare", "--net", "--ipc", "--uts"], program, Some("heap_work"));
    let hidden = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /dev/shm && exec \"$0\" \"$@\""];
    is_recorded("no common file system", &hidden, program, Some("heap_work"));
}

#[test]
fn another_root_directory_is_no_obstacle() {
    if !nix::unistd::geteuid().is_root() {
        return skip("attaching to processes in other surroundings takes root");
    }
    let root = Scratch::new();
    let fixed = Target::c("attach").with("lm", &["-lm"]).fixed().build();
    std::fs::copy(fixed, root.join("program")).expect("room");
    std::fs::create_dir(root.join("proc")).expect("room");
    let path = root.path().to_str().expect("UTF-8");
    let mount = format!("mount -t proc none {path}/proc && exec \"$0\" \"$@\"");
    let wrapper = ["unshare", "--mount", "sh", "-c", &mount, "chroot", "--userspec=65534:65534", path];
    // The file is not at the path that the process reports.
    is_recorded("root directory", &wrapper, "/program", None);
    let _ = Command::new("umount").arg(root.join("proc")).output();
}

#[test]
fn a_process_that_may_not_read_what_proc_says_of_it_is_recorded() {
    if !nix::unistd::geteuid().is_root() {
        return skip("giving up privileges takes root");
    }
    let program = Target::c("drops_privileges").with("pthread", &["-pthread"]).build();
    let empty = Scratch::for_all_users();
    let (program, empty) = (program.to_str().expect("UTF-8"), empty.path().to_str().expect("UTF-8"));
    command_is_recorded("privileges", &[program, "60000"], Some("serve"));
    command_is_recorded("root directory without /proc", &[program, "60000", empty], Some("serve"));
}

/// It cannot create the shared memory file: the recorder does.
#[test]
fn a_process_that_may_write_nothing_is_recorded() {
    let confined = Target::c("confined").build();
    if Guest::is_unsupported(&confined, &["/bin/true"]) {
        return skip("the kernel has no Landlock");
    }
    let program = Target::c("attach").with("lm", &["-lm"]).build();
    let (program, confined) = (program.to_str().expect("UTF-8"), confined.to_str().expect("UTF-8"));
    is_recorded("confined", &[confined], program, Some("heap_work"));
}
