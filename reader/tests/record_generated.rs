//! Code that a program makes itself keeps its names, though the program removes the files that hold them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn directory(test: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("generated-{test}"));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// Own weight of each function of a recorded run.
fn recorded(how: &str) -> BTreeMap<String, u64> {
    let directory = directory(how);
    let program = directory.join("jit");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/record/jit.c");
    let built = Command::new("cc").args(["-O1", "-o"]).args([&program, &source]).status();
    assert!(built.expect("a C compiler is needed: cc").success());
    let profile = directory.join("p.data");
    let selfwind = || Command::new(env!("CARGO_BIN_EXE_selfwind"));
    let mut record = selfwind();
    record.args(["record", "-q", "-F", "500", "-o"]).arg(&profile).arg("--");
    let status = record.arg(&program).args([how, "."]).current_dir(&directory).status().unwrap();
    assert!(status.success(), "{status}");
    assert!(
        !directory.read_dir().unwrap().any(|e| e.unwrap().file_name().to_string_lossy().contains("dump"))
    );
    let folded = selfwind().args(["export", "-f", "folded"]).arg(&profile).output().unwrap();
    let mut own = BTreeMap::new();
    for line in String::from_utf8(folded.stdout).unwrap().lines() {
        let (stack, weight) = line.rsplit_once(' ').unwrap();
        let leaf = stack.rsplit(';').next().unwrap().to_owned();
        *own.entry(leaf).or_default() += weight.parse::<u64>().unwrap();
    }
    own
}

#[test]
fn a_removed_map_is_not_lost() {
    let own = recorded("map");
    let total: u64 = own.values().sum();
    assert!(own.get("made:by:hand").is_some_and(|&weight| weight * 2 > total && weight > 50), "{own:?}");
}

#[test]
fn a_dump_tells_which_function_was_there_when() {
    let own = recorded("dump");
    let [first, second] = ["first", "second"].map(|name| own.get(name).copied().unwrap_or_default());
    assert!(first > 50 && second > 50, "{own:?}");
}
