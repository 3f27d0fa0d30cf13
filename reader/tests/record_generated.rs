//! Code that no loader tells of has its names: made by the program itself, though it removes the files that hold them,
//! or mapped by it from a file.

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
    own_weights("jit", how, &[how, "."])
}

/// The same of any program of these tests.
fn own_weights(program: &str, test: &str, arguments: &[&str]) -> BTreeMap<String, u64> {
    let directory = directory(test);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/record/{program}.c"));
    let program = directory.join(program);
    let built = Command::new("cc").args(["-O1", "-o"]).args([&program, &source]).status();
    assert!(built.expect("a C compiler is needed: cc").success());
    let profile = directory.join("p.data");
    let selfwind = || Command::new(env!("CARGO_BIN_EXE_selfwind"));
    let mut record = selfwind();
    record.args(["record", "-q", "-F", "500", "-o"]).arg(&profile).arg("--");
    let status = record.arg(&program).args(arguments).current_dir(&directory).status().unwrap();
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

#[test]
fn code_that_a_program_maps_a_second_time_has_its_names() {
    // Seen in the living process; and told by a process that ends before anybody looks.
    for milliseconds in ["700", "60"] {
        let own = own_weights("second", &format!("second-{milliseconds}"), &[milliseconds]);
        let total: u64 = own.values().sum();
        let toil = own.get("toil").copied().unwrap_or_default();
        assert!(toil > 10 && toil * 10 > total * 8, "{milliseconds}: {own:?}");
    }
}
