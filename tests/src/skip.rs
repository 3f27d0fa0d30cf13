//! What a test does where the machine does not have, or does not allow, what it needs: the only way to leave something
//! out.
//!
//! Each is said, and written to the file that SELFWIND_SKIPS names, so that `scripts/test` counts and lists them.
//! With SELFWIND_REQUIRE_ALL=1, as in CI, it is a failure.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::process::Command;

/// Says that the rest of a test, or a part of it, is left out and why.
///
/// # Panics
/// Where everything is required.
pub fn skip(why: impl Display) {
    let why = why.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty() && *value != "0");
    assert!(set("SELFWIND_REQUIRE_ALL").is_none(), "skipped although SELFWIND_REQUIRE_ALL is set: {why}");
    let test = std::env::var("NEXTEST_TEST_NAME")
        .unwrap_or_else(|_| std::thread::current().name().unwrap_or("a thread of a test").to_owned());
    // Past the harness, which hides what passing tests print.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {why}");
    if let Some(file) = set("SELFWIND_SKIPS") {
        let opened = OpenOptions::new().create(true).append(true).open(&file);
        let written = opened.and_then(|mut file| file.write_all(format!("{test}: {why}\n").as_bytes()));
        written.unwrap_or_else(|error| panic!("{file:?}: {error}"));
    }
}

/// Leaves a test that cannot go on without something, from however deep. Where each test has a process of its own
/// (nextest) the process ends well; else the test fails, for the others must go on.
///
/// # Panics
/// Without nextest, and where everything is required.
pub fn leave(why: impl Display) -> ! {
    let why = why.to_string();
    skip(&why);
    if std::env::var_os("NEXTEST").is_some() {
        std::process::exit(0);
    }
    panic!("{why}; with cargo-nextest this test would be left out");
}

/// Whether this process may mount; the reason why not is printed.
pub fn may_mount() -> bool {
    let tried = Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]).output();
    let may = tried.as_ref().is_ok_and(|output| output.status.success());
    if !may {
        println!("not tried: small file systems take a mount namespace: {tried:?}");
    }
    may
}
