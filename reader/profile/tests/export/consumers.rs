//! Programs of others that open what is exported. `scripts/test` installs them where npm and PyPI can be reached.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use selfwind_tests::skip::skip;

/// A file or directory that `scripts/test` installed; none, and said why, where it did not.
pub(crate) fn installed(path: &str) -> Option<PathBuf> {
    let Some(directory) = std::env::var_os("SELFWIND_CONSUMERS") else {
        skip(format_args!("{path}: SELFWIND_CONSUMERS names no directory; scripts/test installs it"));
        return None;
    };
    let path = Path::new(&directory).join(path);
    if !path.exists() {
        skip(format_args!("{} is not installed: npm or PyPI was not reached", path.display()));
        return None;
    }
    Some(path)
}

/// What a node script prints; none if there is no node.
pub(crate) fn node(script: &[&str], file: &Path) -> Option<String> {
    output(Command::new("node").args(script).arg(file), "node (Debian: nodejs)")
}

/// Python that finds what was installed from PyPI.
pub(crate) fn python(script: &str, arguments: &[&Path]) -> Option<String> {
    let mut python = Command::new("python3");
    python.args(["-c", script]).args(arguments);
    python.env("PYTHONPATH", installed("python")?);
    output(&mut python, "python3")
}

/// Opens a page in a headless Chromium with a window of this size. With `picture`, takes one; else gives the page as it
/// is after its scripts.
pub(crate) fn chromium(url: &str, size: (u32, u32), picture: Option<&Path>) -> Option<String> {
    // Two browsers cannot share one.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let directory =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("chromium-{}-{number}", std::process::id()));
    let mut browser = Command::new("chromium");
    browser.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--allow-file-access-from-files",
        "--hide-scrollbars",
        "--virtual-time-budget=60000",
    ]);
    browser.arg(format!("--window-size={},{}", size.0, size.1));
    browser.arg(option("--user-data-dir=", &directory));
    match picture {
        Some(picture) => browser.arg(option("--screenshot=", picture)),
        None => browser.arg("--dump-dom"),
    };
    let page = output(browser.arg(url), "chromium (Debian: chromium)");
    let _ = std::fs::remove_dir_all(directory);
    page
}

fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push(path);
    option
}

/// What a program prints; none if it is not installed.
pub(crate) fn output(command: &mut Command, what: &str) -> Option<String> {
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) => {
            skip(format_args!("cannot run {what}: {error}"));
            return None;
        }
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}
