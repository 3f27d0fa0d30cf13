//! Names from elsewhere than the binary: split DWARF, shared debug files, servers, and the cache.

mod programs;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use programs::{addresses, build_id, c_program, directory, function, name, ours, run, split};
use selfwind_profile::symbolize::{Debuginfod, Origin, Request, SymbolCache, SymbolSources, symbolize};
use selfwind_tests::skip::skip;

fn own(name: &str) -> bool {
    ["main", "compare", "checksum", "scramble", "walk", "fill"].iter().any(|own| name.starts_with(own))
}

#[test]
fn split_units_say_what_whole_ones_say() {
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let base = directory(&format!("split{version}"));
        let nowhere = SymbolSources::none();
        let whole = c_program(&base, &["-g", "-O2", version]);
        let addresses = addresses(&whole, 1, 100_000, own);
        let (expected, _) = ours(&whole, &addresses, &nowhere);
        assert!(expected.iter().any(|calls| calls.len() >= 3));
        let program = c_program(&base, &["-g", "-O2", version, "-gsplit-dwarf"]);
        let (calls, symbols) = ours(&program, &addresses, &nowhere);
        assert_eq!(symbols.origin, Origin::Dwarf(program.clone()));
        assert_eq!(calls, expected, "{version}");

        // Moved together with its unit, whose recorded path leads nowhere then.
        let unit = base.join("mixer.dwo");
        let moved = base.join("moved");
        fs::create_dir(&moved).unwrap();
        fs::rename(&unit, moved.join("mixer.dwo")).unwrap();
        let copy = moved.join("mixer");
        fs::copy(&program, &copy).unwrap();
        assert_eq!(ours(&copy, &addresses, &nowhere).0, expected, "{version}: beside the program");

        // Packed.
        let tool = if version == "-gdwarf-4" { "dwp" } else { "llvm-dwp" };
        let package = base.join("mixer.dwp");
        let packed = Command::new(tool).arg(moved.join("mixer.dwo")).arg("-o").arg(&package).status();
        match packed {
            Ok(status) if status.success() => {
                assert_eq!(ours(&program, &addresses, &nowhere).0, expected, "{version}: package");
            }
            other => skip(format_args!("{tool}: {other:?}")),
        }

        // A unit of another build is not the one: functions remain, from the symbol table.
        let _ = fs::remove_file(&package);
        let other = base.join("other");
        fs::create_dir(&other).unwrap();
        c_program(&other, &["-g", "-O1", version, "-gsplit-dwarf", "-DOTHER"]);
        fs::rename(other.join("mixer.dwo"), &unit).unwrap();
        let (calls, _) = ours(&program, &addresses, &nowhere);
        assert!(calls.iter().all(|calls| calls.len() == 1), "{version}");
        assert!(calls.iter().any(|calls| calls[0].0 == "checksum"), "{version}");
    }
}

#[test]
fn what_debug_files_share_is_found() {
    let base = directory("altlink");
    let sources = SymbolSources::in_directories([base.join("debug")]);
    // dwz moves out what several files have in common: the same program twice, linked differently.
    let mut files: Vec<PathBuf> = Vec::new();
    for (name, link) in [("a", "-Wl,--build-id=0x0102030405"), ("b", "-Wl,--build-id=0x0a0b0c0d0e")] {
        let directory = base.join(name);
        fs::create_dir(&directory).unwrap();
        files.push(c_program(&directory, &["-g", "-O2", link]));
    }
    let addresses = addresses(&files[0], 1, 100_000, own);
    let (expected, _) = ours(&files[0], &addresses, &sources);
    let common = base.join("common.debug");
    match Command::new("dwz").arg("-m").arg(&common).args(&files).status() {
        Ok(status) if status.success() && common.exists() => {}
        other => return skip(format_args!("dwz: {other:?}")),
    }
    assert_eq!(ours(&files[0], &addresses, &sources).0, expected);
    // By its build-id, where its path leads nowhere.
    let id: String = build_id(&common).iter().map(|byte| format!("{byte:02x}")).collect();
    let filed = base.join("debug/.build-id").join(&id[..2]);
    fs::create_dir_all(&filed).unwrap();
    fs::rename(&common, filed.join(format!("{}.debug", &id[2..]))).unwrap();
    assert_eq!(ours(&files[0], &addresses, &sources).0, expected);
}

/// A script in place of `debuginfod-find`, which answers with a file and notes each question.
fn server(base: &Path, answer: &Path) -> (Debuginfod, PathBuf) {
    let (program, log) = (base.join("find"), base.join("asked"));
    let script = format!("#!/bin/sh\necho \"$@\" >> {}\necho {}\n", log.display(), answer.display());
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    (Debuginfod { program }, log)
}

#[test]
fn a_server_is_asked_when_told_and_believed_by_build_id() {
    let base = directory("debuginfod");
    let program = c_program(&base, &["-g", "-O2", "-Wl,--build-id"]);
    let (id, checksum) = (build_id(&program), function(&program, "checksum"));
    let debug = base.join("elsewhere.debug");
    split(&program, &debug, false);
    let (client, log) = server(&base, &debug);
    let sources = SymbolSources { debuginfod: Some(client), ..SymbolSources::none() };
    assert_eq!(sources.debuginfod.as_ref().unwrap().problem(), None);
    let offset = format!("mixer+{checksum:#x}");
    assert_eq!(name(&program, &id, checksum, &SymbolSources::none()), (offset.clone(), Origin::Stripped));
    assert!(!log.exists(), "asked without being told to");
    let expected = ("checksum".to_owned(), Origin::Dwarf(debug.clone()));
    assert_eq!(name(&program, &id, checksum, &sources), expected);
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(fs::read_to_string(&log).unwrap(), format!("debuginfo {hex}\n"));
    // The file of another build-id is no answer.
    let other = base.join("other");
    fs::create_dir(&other).unwrap();
    fs::copy(c_program(&other, &["-g", "-O1", "-Wl,--build-id"]), &debug).unwrap();
    assert_eq!(name(&program, &id, checksum, &sources), (offset, Origin::Stripped));
    // No program, no answer, and a word on why.
    let nothing = Debuginfod { program: base.join("missing") };
    assert!(nothing.problem().unwrap().contains("not installed"));
}

#[test]
fn the_cache_answers_like_the_files() {
    let base = directory("cache");
    let cache = SymbolCache { directory: base.join("cache") };
    let sources = SymbolSources { cache: Some(cache.clone()), ..SymbolSources::none() };
    let program = c_program(&base, &["-g", "-O2", "-Wl,--build-id"]);
    let all = addresses(&program, 1, 100_000, |_| true);
    let (expected, read) = ours(&program, &all, &SymbolSources::none());
    assert!(read.read);
    let half: Vec<u64> = all.iter().copied().step_by(2).collect();
    let (calls, first) = ours(&program, &half, &sources);
    assert!(first.read && calls == expected.iter().step_by(2).cloned().collect::<Vec<_>>());
    let (calls, again) = ours(&program, &half, &sources);
    assert!(!again.read && calls == expected.iter().step_by(2).cloned().collect::<Vec<_>>());
    // Some known, some not; then all known.
    for known in [false, true] {
        let (calls, symbols) = ours(&program, &all, &sources);
        assert_eq!((symbols.read, &symbols.origin), (!known, &Origin::Dwarf(program.clone())));
        assert_eq!(calls, expected);
    }
    // Rebuilt in its place: the recorded program is gone, and so are its names.
    let request =
        Request { path: program.clone(), build_id: build_id(&program), file: None, addresses: half };
    c_program(&base, &["-g", "-O1", "-Wl,--build-id"]);
    let symbols = symbolize(std::slice::from_ref(&request), &sources).pop().unwrap();
    assert!(matches!(symbols.origin, Origin::Changed(_)), "{:?}", symbols.origin);
    // A damaged cache costs time only.
    for entry in fs::read_dir(&cache.directory).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    c_program(&base, &["-g", "-O2", "-Wl,--build-id"]);
    let (calls, symbols) = ours(&program, &all, &sources);
    assert!(symbols.read && calls == expected);
}

#[test]
fn linker_names_are_kept() {
    let base = directory("linkage");
    let source = base.join("name.cpp");
    fs::write(
        &source,
        "namespace space { __attribute__((noinline)) int foo(int a) { return a * 7; } }\n\
        int main(int argc, char **) { return space::foo(argc); }\n",
    )
    .unwrap();
    let program = base.join("name");
    // With all names, with lines alone, with no more than the symbol table.
    for flags in [&["-g", "-O1"][..], &["-g1", "-O1"], &["-O1"]] {
        run(Command::new("c++").args(flags).arg("-o").arg(&program).arg(&source));
        let address = function(&program, "_ZN5space3fooEi");
        let request =
            Request { path: program.clone(), build_id: Vec::new(), file: None, addresses: vec![address] };
        let symbols = symbolize(&[request], &SymbolSources::none()).pop().unwrap();
        let line = symbols.lines[0];
        let names = (symbols.names.get(line.function), symbols.names.get(line.linkage));
        assert_eq!(names, ("space::foo(int)", "_ZN5space3fooEi"));
    }
}
