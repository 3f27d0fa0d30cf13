//! Files that are gone when the recording ends have names all the same.

use std::path::PathBuf;
use std::process::Command;

use nix::unistd::geteuid;
use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::run;
use selfwind_tests::recording::{Recorder, folded};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::{may_mount, skip};
use selfwind_tests::target::Target;

fn program() -> PathBuf {
    Target::c("fleeting_library").build()
}

fn library() -> PathBuf {
    Target::c("fleeting_library").named("fleeting.so", &["-DLIBRARY", "-shared", "-fPIC"]).build()
}

#[test]
fn libraries_that_a_program_unpacks_have_names() {
    let (program, library) = (program(), library());
    for how in ["end", "once", "memory"] {
        if how != "end" && !geteuid().is_root() {
            skip("only root reads files that have no name");
            continue;
        }
        let scratch = Scratch::new();
        let copy = scratch.join("copy.so");
        let recorder = Recorder::default().env("TMPDIR", scratch.path());
        let recording = recorder.record(&program, &[&library, &copy, &PathBuf::from(how)]);
        assert_eq!(recording.outcome.status, 0, "{how}: {:?}", recording.outcome);
        let folded = recording.folded();
        assert!(folded.inclusive("fleeting_work") * 10 >= folded.total() * 8, "{how}: {folded:#?}");
    }
}

/// As those of a disk image that an application mounts for itself.
#[test]
fn files_of_a_mount_that_is_gone_have_names() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let script = "mkdir \"$TMPDIR/mounted\" && mount -t tmpfs none \"$TMPDIR/mounted\" && cp \"$1\" \"$TMPDIR/mounted/spin\" \
        && touch -d yesterday \"$TMPDIR/mounted/spin\" && { \"$TMPDIR/mounted/spin\" 300; umount \"$TMPDIR/mounted\"; }";
    let mut command = Command::new("unshare");
    command.args(["-m"]).arg(selfwind()).args(["record", "-q", "-o"]).arg(scratch.join("x.data"));
    command.args(["--", "sh", "-c", script, "sh"]).arg(Target::c("spin").build());
    let outcome = run(command.env("TMPDIR", scratch.path()));
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let folded = folded(&scratch.join("x.data"));
    assert!(folded.inclusive("spin_second") > 0, "{folded:#?}");
}

/// Whoever walks the stacks: the program, or the recorder, which reads the files. The links are those of that root directory.
#[test]
fn libraries_behind_links_in_another_root_directory_have_names() {
    if !geteuid().is_root() {
        return skip("only root changes the root directory");
    }
    for how in ["--unwind self", "--unwind copy", "-e wall"] {
        let script = format!(
            "mkdir root && for file in $(ldd \"$3\" | grep -o '/[^ ]*'); do cp --parents \"$file\" root; done
            cp \"$3\" root/program && cp \"$4\" root/real.so
            exec \"$1\" record -q {how} -o x.data -- chroot root /program /real.so /link.so linked"
        );
        assert_recorded(&script, "fleeting_work");
    }
}

#[test]
fn libraries_of_another_mount_namespace_have_names() {
    if !may_mount() {
        return;
    }
    for how in ["--unwind self", "--unwind copy", "-e wall"] {
        let script = format!(
            "cp \"$2\" library.so && exec \"$1\" record -q {how} -o x.data -- unshare -m sh -c \
            'mount --bind \"$2\" library.so && exec \"$1\" \"$PWD/library.so\" \"$PWD/link.so\" linked' sh \"$3\" \"$4\""
        );
        assert_recorded(&script, "fleeting_work");
    }
}

/// Runs a script, which gets paths of the recorder, two programs and a library.
fn assert_recorded(script: &str, function: &str) {
    let scratch = Scratch::new();
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).args([
        &selfwind().into(),
        &Target::c("spin").build(),
        &program(),
        &library(),
    ]);
    let outcome = run(command.current_dir(scratch.path()));
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let folded = folded(&scratch.join("x.data"));
    assert!(folded.inclusive(function) * 5 >= folded.total(), "{script}: {folded:#?}");
    let below = folded.stacks.iter().filter(|(stack, _)| stack.iter().any(|name| name == function));
    let rooted = below.filter(|(stack, _)| stack.iter().any(|name| name == "_start" || name == "clone3"));
    let rooted: u64 = rooted.map(|(_, weight)| weight).sum();
    assert!(rooted * 10 >= folded.inclusive(function) * 9, "{script}: {folded:#?}");
}

#[test]
fn a_program_that_is_built_again_while_it_is_recorded_has_names() {
    let script = "cp \"$2\" program; cp \"$3\" new
        \"$1\" record -q -o x.data -- sh -c './program 1000 & sleep 0.3; mv new program; wait'";
    assert_recorded(script, "spin_second");
}

#[test]
fn a_library_that_was_built_again_before_its_process_is_recorded_has_names() {
    if !geteuid().is_root() {
        return skip("only root reads libraries that were replaced");
    }
    let script = "\"$3\" \"$4\" \"$PWD/library.so\" once 2000 & sleep 0.3
        cp \"$2\" library.so; \"$1\" record -q -o x.data -p $!";
    assert_recorded(script, "fleeting_work");
}
