//! Skips tests that need something which the machine lacks or forbids: the only way to leave something out.
//!
//! Each skip is printed, and appended to the file that SELFWIND_SKIPS names, so that `scripts/test` counts and lists
//! them. With SELFWIND_REQUIRE_ALL=1, as in CI, it is a failure, unless the processor cannot do it.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::process::Command;

/// Reports that the rest of a test, or a part of it, is skipped, and why.
///
/// # Panics
/// With SELFWIND_REQUIRE_ALL=1.
pub fn skip(why: impl Display) {
    assert!(set("SELFWIND_REQUIRE_ALL").is_none(), "skipped although SELFWIND_REQUIRE_ALL is set: {why}");
    report(why);
}

/// The same for what the processor cannot do: nothing that could be installed or permitted would help. Never a failure.
pub fn not_on_this_processor(why: impl Display) {
    report(format_args!("not on this processor: {why}"));
}

fn set(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty() && *value != "0")
}

fn report(why: impl Display) {
    let why = why.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let test = std::env::var("NEXTEST_TEST_NAME")
        .unwrap_or_else(|_| std::thread::current().name().unwrap_or("a thread of a test").to_owned());
    // Bypasses the test harness, which hides the output of passing tests.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {why}");
    if let Some(file) = set("SELFWIND_SKIPS") {
        let opened = OpenOptions::new().create(true).append(true).open(&file);
        let written = opened.and_then(|mut file| file.write_all(format!("{test}: {why}\n").as_bytes()));
        written.unwrap_or_else(|error| panic!("{file:?}: {error}"));
    }
}

/// Ends a test that cannot continue, from any call depth. If each test has a process of its own (nextest), the process
/// exits successfully; otherwise the test fails, since other tests must continue.
///
/// # Panics
/// Without nextest, and with SELFWIND_REQUIRE_ALL=1.
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
