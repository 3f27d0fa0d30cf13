//! Every command in `docs/` does what its page says.
//!
//! The pages use two programs: `./job`, which computes for a while, and `./server`, which runs until it is stopped;
//! `selfwind.h` is provided, too.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use selfwind_tests::binary::{selfwind, workspace};
use selfwind_tests::doc_page::{run_page, unrun_blocks};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::target::Target;

fn check(page: &str) {
    let text = fs::read_to_string(workspace().join("docs").join(page)).expect("the page is there");
    for line in unrun_blocks(&text) {
        println!("{page}:{line}: not run: put commands into a `console` block, with `$ ` before each");
    }
    let scratch = Scratch::new();
    fs::create_dir(scratch.join("run")).expect("ours");
    fs::set_permissions(scratch.join("run"), Permissions::from_mode(0o700)).expect("ours");
    fs::copy(Target::c("job").build(), scratch.join("job")).expect("ours");
    fs::copy(workspace().join("agent/include/selfwind.h"), scratch.join("selfwind.h")).expect("ours");
    fs::copy(Target::c("spin").build(), scratch.join("server")).expect("ours");
    let bin = selfwind().parent().expect("a file lies in a directory");
    run_page(page, &text, scratch.path(), bin);
}

/// A test per page, and one that checks that no page is missing.
macro_rules! pages {
    ($($test:ident $page:literal)*) => {
        $(#[test]
        fn $test() {
            check($page);
        })*

        /// Pages without a test of their own.
        #[test]
        fn all_others() {
            let files = fs::read_dir(workspace().join("docs")).expect("docs are there").flatten();
            let pages = files.filter(|file| file.path().extension().is_some_and(|extension| extension == "md"));
            let pages: BTreeSet<String> = pages.map(|page| page.file_name().to_string_lossy().into_owned()).collect();
            pages.difference(&BTreeSet::from([$($page.to_owned()),*])).for_each(|page| check(page));
        }

        #[test]
        fn commands_are_in_console_blocks() {
            for page in [$($page),*] {
                let text = fs::read_to_string(workspace().join("docs").join(page)).expect("the page is there");
                assert!(unrun_blocks(&text).is_empty(), "{page}: commands outside `console` blocks");
            }
        }
    };
}

pages! {
    index "README.md"
    dump "dump.md"
    locks "profile-locks.md"
    kernel_protocol "kernel-protocol.md"
    program "profile-a-program.md"
    python "profile-python.md"
    generated_code "profile-generated-code.md"
    service "profile-a-service.md"
    heap "profile-heap.md"
    tracepoints "tracepoints.md"
    container "profile-in-a-container.md"
    ci "profile-in-ci.md"
    reading "read-a-profile.md"
    sources "choose-a-source.md"
    troubleshooting "troubleshooting.md"
    offline "offline.md"
    formats "file-formats.md"
    limits "limits.md"
    profile_file "profile-file.md"
    table_file "table-file.md"
}
