//! A profile brings its names along: it shows the same where its programs are gone, and never those of another build.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SELFWIND: &str = env!("CARGO_BIN_EXE_selfwind");
const FORMATS: [&str; 8] =
    ["folded", "flamegraph", "jsonl", "pprof", "firefox", "speedscope", "perf", "parquet"];

/// A program that works for a while in an inlined function; `NAME` is that of the function it is inlined into.
const WORK: &str = r"
#include <time.h>
static inline unsigned mix(unsigned x) { for (int i = 0; i < 1000; i++) x = x * 2654435761u ^ x >> 15; return x; }
PADDING
__attribute__((noinline)) unsigned NAME(unsigned x) { for (int i = 0; i < 100; i++) x += mix(x + i); return x; }
int main(void) {
    volatile unsigned x = 1;
    struct timespec t;
    do { x = NAME(x); clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); } while (t.tv_sec == 0 && t.tv_nsec < 200000000);
    return 3;
}
";

/// A directory of one test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stored-names-{test}"));
        let _ = fs::remove_dir_all(&path);
        for directory in ["run", "cache", "bin"] {
            fs::create_dir_all(path.join(directory)).unwrap();
            fs::set_permissions(path.join(directory), fs::Permissions::from_mode(0o700)).unwrap();
        }
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Builds the program with a name for its function.
    fn build(&self, program: &str, name: &str, flags: &[&str]) -> PathBuf {
        let (source, program) = (self.path(&format!("{name}.c")), self.path(program));
        let padding = format!("int pad_{name}(int x) {{ return x * {}; }}", name.len());
        fs::write(&source, WORK.replace("NAME", name).replace("PADDING", &padding)).unwrap();
        run(Command::new("cc").args(["-O1", "-g"]).args(flags).arg("-o").args([&program, &source]));
        program
    }

    /// `selfwind` in `directory`, with a cache of this test's own.
    fn selfwind(&self, directory: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(SELFWIND);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SELFWIND_")) {
            command.env_remove(name);
        }
        command.env_remove("DEBUGINFOD_URLS").args(arguments).current_dir(self.path(directory));
        command.env("XDG_RUNTIME_DIR", self.path("run")).env("XDG_CACHE_HOME", self.path("cache"));
        command
    }

    fn record(&self, arguments: &[&str], program: &Path) {
        let mut record = self.selfwind("", &["record", "-q", "-F", "500", "-o", "p.data"]);
        let status = record.args(arguments).arg("--").arg(program).status().unwrap();
        assert_eq!(status.code(), Some(3), "{status}");
    }

    fn folded(&self, arguments: &[&str], file: &str) -> String {
        let mut export = self.selfwind("", &["export", "-f", "folded"]);
        text(export.args(arguments).arg(file).output().unwrap())
    }

    /// Every output of a profile, from a directory in which it is `p.data`.
    fn outputs(&self, directory: &str) -> Vec<(String, Vec<u8>)> {
        let mut commands: Vec<Vec<&str>> = Vec::new();
        commands.extend(FORMATS.map(|format| vec!["export", "-f", format, "p.data"]));
        commands.push(vec!["report", "p.data"]);
        commands.push(vec!["report", "--json", "p.data"]);
        commands.push(vec!["report", "--lines", "p.data"]);
        commands.push(vec!["diff", "p.data", "p.data"]);
        let outputs = commands.into_iter().map(|command| {
            let output = self.selfwind(directory, &command).output().unwrap();
            assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
            (command.join(" "), output.stdout)
        });
        outputs.collect()
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn text(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn assert_same(before: &[(String, Vec<u8>)], after: &[(String, Vec<u8>)]) {
    for ((command, before), (_, after)) in before.iter().zip(after) {
        assert!(before == after, "{command}: {} and {} bytes differ", before.len(), after.len());
    }
}

#[test]
fn a_profile_shows_the_same_where_its_programs_are_gone() {
    let scratch = Scratch::new("gone");
    let program = scratch.build("bin/program", "toil", &[]);
    for (arguments, resolve) in [(&["--no-names"][..], true), (&[], false)] {
        let program = scratch.path("bin/program").exists().then_some(&program).unwrap();
        scratch.record(arguments, program);
        let before = scratch.outputs("");
        let folded = String::from_utf8_lossy(&before[0].1).into_owned();
        assert!(folded.contains("main;toil;mix "), "{folded}");
        if resolve {
            text(scratch.selfwind("", &["resolve", "-q", "p.data"]).output().unwrap());
            assert_same(&before, &scratch.outputs(""));
        }
        fs::rename(scratch.path("bin"), scratch.path("elsewhere")).unwrap();
        fs::remove_dir_all(scratch.path("cache")).unwrap();
        fs::create_dir_all(scratch.path("empty")).unwrap();
        fs::rename(scratch.path("p.data"), scratch.path("empty/p.data")).unwrap();
        assert_same(&before, &scratch.outputs("empty"));
        // Looked up again in vain, they are those of before.
        let again =
            scratch.selfwind("empty", &["export", "--fresh-names", "-f", "folded", "p.data"]).output();
        assert_eq!(text(again.unwrap()), folded);
        fs::rename(scratch.path("elsewhere"), scratch.path("bin")).unwrap();
    }
}

#[test]
fn another_build_without_a_build_id_gives_no_names() {
    let scratch = Scratch::new("rebuilt");
    let flags = ["-Wl,--build-id=none"];
    let program = scratch.build("program", "toil", &flags);
    scratch.record(&["--no-names"], &program);
    assert!(scratch.folded(&[], "p.data").contains("main;toil;mix "));
    fs::copy(scratch.path("p.data"), scratch.path("q.data")).unwrap();
    text(scratch.selfwind("", &["resolve", "-q", "q.data"]).output().unwrap());
    scratch.build("program", "another_name_of_another_length", &flags);
    let folded = scratch.folded(&[], "p.data");
    assert!(!folded.contains("another_name") && folded.contains("program+0x"), "{folded}");
    let report = text(scratch.selfwind("", &["report", "p.data"]).output().unwrap());
    assert!(report.contains("the file has changed since"), "{report}");
    assert!(scratch.folded(&[], "q.data").contains("main;toil;mix "));
}

#[test]
fn files_are_found_below_directories_by_their_build_ids() {
    let scratch = Scratch::new("trees");
    let program = scratch.build("bin/program", "toil", &["-Wl,--build-id=sha1"]);
    let debug = scratch.path("debug");
    run(Command::new("objcopy").arg("--only-keep-debug").args([&program, &debug]));
    run(Command::new("strip").arg(&program));
    scratch.record(&["--no-names"], &program);
    let stripped = scratch.folded(&[], "p.data");
    assert!(!stripped.contains("toil"), "{stripped}");
    // A root directory that has the program at its place, and the debug file anywhere.
    let image = scratch.path("image");
    let inside = image.join(program.strip_prefix("/").unwrap());
    fs::create_dir_all(inside.parent().unwrap()).unwrap();
    fs::rename(&program, &inside).unwrap();
    // Beside it, files that are no ELF files or other ones.
    fs::write(image.join("notes.txt"), "\x7fELFnot").unwrap();
    fs::create_dir_all(image.join("a/b/c")).unwrap();
    fs::rename(&debug, image.join("a/b/c/any name.dbg")).unwrap();
    std::os::unix::fs::symlink("..", image.join("a/round")).unwrap();
    let directory = image.to_str().unwrap();
    for option in ["--debug-dir", "--sysroot"] {
        let folded = scratch.folded(&[option, directory], "p.data");
        assert!(folded.contains("main;toil;mix "), "{option}: {folded}");
    }
    // Both found by looking through the tree.
    fs::rename(&inside, image.join("a/b/it")).unwrap();
    assert!(scratch.folded(&["--debug-dir", directory], "p.data").contains("main;toil;mix "));
    // What was found goes into the profile.
    let again = scratch.selfwind("", &["resolve", "-q", "--debug-dir", directory, "p.data"]).output();
    text(again.unwrap());
    fs::remove_dir_all(&image).unwrap();
    assert!(scratch.folded(&[], "p.data").contains("main;toil;mix "));
}

/// A recorder that takes for ever to find names: a server does not answer.
fn slow_recorder(scratch: &Scratch, program: &Path) -> Child {
    let client = scratch.path("debuginfod-find");
    fs::write(&client, "#!/bin/sh\n: > asked\nexec sleep 1000\n").unwrap();
    fs::set_permissions(&client, fs::Permissions::from_mode(0o755)).unwrap();
    run(Command::new("strip").arg(program));
    let mut record = scratch.selfwind("", &["record", "--debuginfod", "-F", "500", "-o", "p.data", "--"]);
    let path = format!("{}:{}", scratch.0.display(), std::env::var("PATH").unwrap());
    record.arg(program).env("PATH", path).env("DEBUGINFOD_URLS", "http://localhost:1");
    let recorder = record.stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while !scratch.path("asked").exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "the server was not asked");
        std::thread::sleep(Duration::from_millis(10));
    }
    recorder
}

#[test]
fn a_signal_ends_the_look_up_and_the_profile_is_whole_without_names() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let scratch = Scratch::new(&format!("interrupted-{signal}"));
        let program = scratch.build("program", "toil", &[]);
        let recorder = slow_recorder(&scratch, &program);
        // A profile that is being recorded is not replaced.
        let resolve = scratch.selfwind("", &["resolve", "p.data"]).output().unwrap();
        let error = String::from_utf8_lossy(&resolve.stderr);
        assert!(!resolve.status.success() && error.contains("being recorded"), "{error}");
        kill(Pid::from_raw(recorder.id() as i32), signal).unwrap();
        let output = recorder.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        if signal == Signal::SIGKILL {
            assert_eq!(output.status.signal(), Some(Signal::SIGKILL as i32));
        } else {
            assert_eq!(output.status.code(), Some(3), "{told}");
            assert!(told.contains("`selfwind resolve p.data`") && told.contains("0 lost"), "{told}");
        }
        let report = text(scratch.selfwind("", &["report", "p.data"]).output().unwrap());
        assert!(!report.contains("ends early") && report.contains("program+0x"), "{report}");
        // With the program that was not stripped: another build-id would not do.
        text(scratch.selfwind("", &["resolve", "-q", "p.data"]).output().unwrap());
        assert!(scratch.folded(&[], "p.data").contains("program+0x"));
    }
}

#[test]
fn a_recording_that_was_cut_short_can_be_completed() {
    let scratch = Scratch::new("cut");
    let program = scratch.build("program", "toil", &[]);
    scratch.record(&[], &program);
    let whole = fs::read(scratch.path("p.data")).unwrap();
    let folded = scratch.folded(&[], "p.data");
    fs::rename(&program, scratch.path("moved")).unwrap();
    // Cut off anywhere in the names, it has none.
    let names = whole.len() - 40;
    fs::write(scratch.path("p.data"), &whole[..names]).unwrap();
    assert!(!scratch.folded(&[], "p.data").contains("toil"));
    fs::rename(scratch.path("moved"), &program).unwrap();
    fs::set_permissions(scratch.path("p.data"), fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("p.data", scratch.path("link.data")).unwrap();
    text(scratch.selfwind("", &["resolve", "link.data"]).output().unwrap());
    fs::remove_file(&program).unwrap();
    assert_eq!(scratch.folded(&[], "p.data"), folded);
    let metadata = fs::symlink_metadata(scratch.path("p.data")).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o640);
    assert!(fs::symlink_metadata(scratch.path("link.data")).unwrap().is_symlink());
    // Nothing is left beside it, and what cannot be replaced stays as it was.
    let names: Vec<_> = fs::read_dir(&scratch.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().contains("part")), "{names:?}");
}
