//! The CPython interpreters of this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::outcome::run;
use crate::skip::skip;

/// Names the interpreter of 3.14 that `scripts/test` has installed; empty if there was none to install.
const NEWEST: &str = "SELFWIND_PYTHON_3_14";

/// The installed interpreters of the supported minor versions, 3.9 to 3.14: builds by pyenv, the system's own, and a 3.14.
pub fn pythons() -> Vec<(u32, PathBuf)> {
    let home = std::env::var_os("HOME").unwrap_or_default();
    let versions = fs::read_dir(Path::new(&home).join(".pyenv/versions")).into_iter().flatten().flatten();
    let built = versions.map(|version| version.path().join("bin/python3"));
    let newest = std::env::var_os(NEWEST);
    let others = ["/usr/bin/python3", "/usr/bin/python3.14", "/usr/local/bin/python3.14"];
    let others = others.map(PathBuf::from).into_iter().chain(newest.as_ref().map(PathBuf::from));
    let known: Vec<(u32, PathBuf)> = built.chain(others).filter_map(supported).collect();
    for wanted in 9..=14 {
        // `scripts/test` lists it as left out.
        let is_nowhere = wanted == 14 && newest.as_ref().is_some_and(|path| path.is_empty());
        if !is_nowhere && !known.iter().any(|(minor, _)| *minor == wanted) {
            match wanted {
                14 => skip(format!("no Python 3.14: {NEWEST} names none; scripts/test installs it")),
                _ => skip(format!("no Python 3.{wanted} in ~/.pyenv/versions")),
            }
        }
    }
    assert!(!known.is_empty(), "no Python 3.9 to 3.14 at all");
    known
}

/// The minor version of a program, if it is a CPython that the agent reads.
fn supported(program: PathBuf) -> Option<(u32, PathBuf)> {
    let print = "import sys; print(sys.version_info[1] if sys.version_info[0] == 3 and 't' not in sys.abiflags else 0)";
    let outcome = program.exists().then(|| run(Command::new(&program).args(["-c", print])))?;
    let minor = outcome.stdout.trim().parse().ok()?;
    (9..=14).contains(&minor).then_some((minor, program))
}
