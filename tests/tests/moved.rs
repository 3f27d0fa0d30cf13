//! A profile moved to another machine gives the same output as where it was recorded: every export of it, byte for
//! byte, in a root directory with nothing but `selfwind` and its libraries.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::run;
use selfwind_tests::recording::Recorder;
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;
use selfwind_tests::target::{Target, is_installed};

const FORMATS: [&str; 8] =
    ["folded", "flamegraph", "jsonl", "pprof", "firefox", "speedscope", "perf", "parquet"];

/// Kernel functions, mapped files, generated code, and inlined and templated names.
const PYTHON: &str =
    "import json\nfor i in range(150): json.loads(json.dumps({str(k): [k] * 30 for k in range(300)}))";
const NODE: &str = "let t = 0; for (let r = 0; r < 30; r++) { const a = []; for (let i = 0; i < 20000; i++) \
                    a.push({k: 'x' + i * r % 997, v: i}); a.sort((x, y) => x.k < y.k ? -1 : 1); \
                    t += JSON.parse(JSON.stringify(a)).length }";
const SQL: &str = "create table t(a); with recursive c(x) as (values(1) union all select x + 1 from c where x < 99999) \
                   insert into t select hex(x) from c; select count(distinct a) from t;";
const KERNEL: &str = "dd if=/dev/zero of=/dev/null bs=64k count=30000 2>/dev/null; ls -lR /usr/share/doc";

/// A root directory with `selfwind` and its libraries, in a directory that no program looks into by itself.
struct Jail {
    root: PathBuf,
}

impl Jail {
    fn new(root: PathBuf) -> Self {
        for directory in ["bare", "profiles"] {
            fs::create_dir_all(root.join(directory)).expect("ours");
        }
        fs::copy(selfwind(), root.join("bare/selfwind")).expect("ours");
        let needed = run(Command::new("ldd").arg(selfwind()));
        for word in needed.stdout.split_whitespace().filter(|word| word.starts_with('/')) {
            let library = Path::new(word);
            fs::copy(library, root.join("bare").join(library.file_name().expect("a file"))).expect("ours");
        }
        Self { root }
    }

    /// `selfwind export` there.
    fn export(&self, profile: &Path, format: &str) -> Vec<u8> {
        let name = profile.file_name().expect("a file");
        fs::copy(profile, self.root.join("profiles").join(name)).expect("ours");
        let mut command = Command::new("chroot");
        command.arg(&self.root).arg("/bare/ld-linux-x86-64.so.2").args(["--library-path", "/bare"]);
        command.args(["/bare/selfwind", "export", "--no-symbol-cache", "-f", format, "-o", "/profiles/out"]);
        let outcome = run(command.arg(Path::new("/profiles").join(name)));
        assert_eq!(outcome.status, 0, "{format}: {outcome:?}");
        fs::read(self.root.join("profiles/out")).expect("it was written")
    }
}

#[test]
fn all_exports_are_the_same_where_nothing_is() {
    if !nix::unistd::geteuid().is_root() {
        skip("not root: no other root directory can be had");
        return;
    }
    let scratch = Scratch::new();
    let jail = Jail::new(scratch.join("jail"));
    let thrown = Target::cpp("throw").build();
    let inlined = Target::rust("inlined").build();
    let unloading = Target::c("dlopen_churn").build();
    let library = |n| Target::c("plugin").shared(&format!("moved-plugins/plugin{n}.so")).build();
    let libraries = [0, 1, 2].map(|n| library(n).display().to_string());
    let sqlite = ["-c", "sqlite3 :memory: \"$0\"", SQL];
    let programs: [(&str, &str, &Path, &[&str]); 7] = [
        ("cpp", "cpu", &thrown, &[]),
        ("rust", "cpu", &inlined, &[]),
        ("python", "cpu", Path::new("/usr/bin/python3"), &["-c", PYTHON]),
        ("node", "cpu", Path::new("/usr/bin/env"), &["node", "--perf-basic-prof", "-e", NODE]),
        ("kernel", "cpu", Path::new("/bin/sh"), &["-c", KERNEL]),
        ("unloading", "cpu", &unloading, &libraries.each_ref().map(String::as_str)),
        ("allocations", "alloc:all", Path::new("/bin/sh"), &sqlite),
    ];
    for (name, event, program, arguments) in programs {
        if name == "node" && !is_installed("node") {
            skip("node is not installed");
            continue;
        }
        let profile = scratch.join(&format!("{name}.data"));
        let mut record = Recorder::at(997).event(event).command(&profile, program, arguments);
        // Where node leaves a log.
        let outcome = run(record.current_dir(scratch.path()));
        // The tests' own programs tell by their status that they did all.
        assert!(outcome.status < 100, "{name}: {outcome:?}");
        for format in FORMATS {
            let here = scratch.join(&format!("{name}.{format}"));
            let mut export = Command::new(selfwind());
            export.args(["export", "-f", format, "-o"]).arg(&here).arg(&profile);
            assert_eq!(run(&mut export).status, 0, "{name} {format}");
            let here = fs::read(here).expect("it was written");
            assert!(here == jail.export(&profile, format), "{name}: {format} differs");
        }
    }
}
