//! The program under test: the one release binary `selfwind`, with the agent inside.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The workspace's root.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests live in the workspace")
}

/// The target directory this test was built into.
pub fn target_dir() -> PathBuf {
    let test = std::env::current_exe().expect("a running program has a path");
    // target/PROFILE/deps/TEST
    test.ancestors().nth(3).expect("tests lie three levels below the target directory").to_path_buf()
}

/// Path of `selfwind`: `SELFWIND_BIN`, or the release build, made first if need be.
pub fn selfwind() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| match std::env::var_os("SELFWIND_BIN") {
        Some(path) => {
            let path = PathBuf::from(path);
            assert!(
                path.is_absolute() && path.exists(),
                "SELFWIND_BIN is no absolute path of a file: {path:?}"
            );
            path
        }
        None => build(),
    })
}

fn build() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = target_dir();
    let mut command = Command::new(cargo);
    command.args([
        "build",
        "--release",
        "--quiet",
        "--package",
        "selfwind",
        "--bin",
        "selfwind",
        "--target-dir",
    ]);
    command.arg(&target).current_dir(workspace());
    let status = command.status().expect("cargo runs");
    assert!(status.success(), "cargo build --release: {status}");
    target.join("release/selfwind")
}

/// The agent's shared object, as the program under test hands it out.
pub fn agent() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let output = Command::new(selfwind()).arg("agent-path").output().expect("selfwind runs");
        assert!(output.status.success(), "selfwind agent-path: {output:?}");
        let path = PathBuf::from(String::from_utf8(output.stdout).expect("a path in UTF-8").trim_end());
        assert!(path.is_absolute() && path.exists(), "agent-path printed {path:?}");
        path
    })
}
