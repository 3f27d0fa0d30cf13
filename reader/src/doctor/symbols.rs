//! Examines the sources of function names: debug files and debuginfod.

use std::path::Path;

use super::finding::Finding;

pub(super) fn examine() -> Vec<Finding> {
    vec![debug_files(), debuginfod()]
}

fn debug_files() -> Finding {
    let name = "debug-files";
    let path = "/usr/lib/debug";
    if Path::new(path).join(".build-id").exists() {
        return Finding::good(name, path, "separate debug files are found by build-id");
    }
    Finding::limited(
        name,
        "none in /usr/lib/debug",
        "stripped binaries have only their dynamic symbols, without source lines",
        "install the debug packages (Debian: NAME-dbgsym, libc6-dbg; Fedora: dnf debuginfo-install), or use debuginfod",
    )
}

fn debuginfod() -> Finding {
    let name = "debuginfod";
    let urls = std::env::var("DEBUGINFOD_URLS").ok().filter(|urls| !urls.trim().is_empty());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let client = std::env::split_paths(&path).any(|directory| directory.join("debuginfod-find").exists());
    match (urls, client) {
        (Some(urls), true) => Finding::good(name, urls, "missing debug files are fetched"),
        (Some(urls), false) => Finding::limited(
            name,
            urls,
            "servers are set, but debuginfod-find is not installed",
            "install it (Debian: debuginfod; Fedora: elfutils-debuginfod-client)",
        ),
        (None, _) => Finding::limited(
            name,
            "DEBUGINFOD_URLS is not set",
            "missing debug files are not fetched",
            "set it, for example to https://debuginfod.elfutils.org",
        ),
    }
}
