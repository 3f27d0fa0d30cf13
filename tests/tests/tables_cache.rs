//! The shared table cache: filled by the first recording, used by the next, and trusted only if nobody else could have
//! written a table and it has not changed since.
//!
//! The stacks show which table was used: the forged table says that every function is the outermost one.

use std::ffi::OsStr;
use std::fs::{self, FileTimes, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use compilation::set_source;
use object::Object;
use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::run;
use selfwind_tests::recording::{Recorder, folded, read};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;
use selfwind_tests::target::Target;
use unwind::{Rule, Source, Table, table_file};

/// A program, a cache for it, and the table it should have.
struct Case {
    scratch: Scratch,
    program: PathBuf,
    /// The file in the cache.
    path: PathBuf,
    good: Vec<u8>,
    forged: Vec<u8>,
}

/// Which rules the walks used.
#[derive(Debug, PartialEq, Eq)]
enum Rules {
    Right,
    Forged,
}

impl Case {
    fn new() -> Self {
        Self::of(Scratch::new(), Target::c("spin").build())
    }

    fn of(scratch: Scratch, program: PathBuf) -> Self {
        let cache = scratch.join("cache");
        let built = run(Command::new(selfwind()).args(["tables", "build", "-o"]).args([&cache, &program]));
        assert_eq!(built.status, 0, "{built:?}");
        let (_, path) = built.stdout.trim().split_once(" -> ").expect("`FILE -> TABLE`");
        let path = PathBuf::from(path);
        let good = fs::read(&path).unwrap();
        Self { program, forged: forge(&good), good, path, scratch }
    }

    fn cache(&self) -> &Path {
        self.path.parent().unwrap()
    }

    /// Puts the forged table, or what `change` makes of it, in place.
    fn put(&self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut table = self.forged.clone();
        change(&mut table);
        let _ = fs::remove_file(&self.path);
        fs::write(&self.path, table).unwrap();
        fs::set_permissions(&self.path, Permissions::from_mode(0o600)).unwrap();
    }

    fn record(&self) -> Rules {
        self.record_with(self.cache().as_os_str())
    }

    fn record_with(&self, tables: &OsStr) -> Rules {
        let recording = Recorder::at(997).env("SELFWIND_TABLES", tables).record(&self.program, &["60"]);
        assert_eq!((recording.outcome.status, recording.outcome.stderr.as_str()), (39, ""));
        recording.assert_adds_up();
        let folded = recording.folded();
        let (leaf, nested) = (folded.inclusive("spin_first"), folded.nested("main", "spin_first"));
        assert!(leaf >= 3, "{leaf} samples of spin_first");
        match nested {
            _ if nested == leaf => Rules::Right,
            0 => Rules::Forged,
            _ => panic!("of {leaf} stacks with spin_first {nested} reach main"),
        }
    }

    /// Records until the table has been made: on a busy machine the recorder may end before that.
    fn record_until(&self, is_made: impl Fn() -> bool, what: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            assert_eq!(self.record(), Rules::Right, "{what}");
            if is_made() {
                return;
            }
            assert!(Instant::now() < deadline, "{what}: not made");
        }
    }

    /// Asserts that the table in place is refused and replaced.
    fn is_refused_and_replaced(&self, what: &str) {
        self.record_until(|| fs::read(&self.path).is_ok_and(|table| table == self.good), what);
        assert!(fs::symlink_metadata(&self.path).unwrap().is_file(), "{what}");
        let metadata = fs::metadata(&self.path).unwrap();
        assert_eq!(
            (metadata.mode() & 0o777, metadata.uid()),
            (0o400, nix::unistd::geteuid().as_raw()),
            "{what}"
        );
    }
}

/// `table` with every rule replaced by "outermost function", and a correct checksum.
fn forge(table: &[u8]) -> Vec<u8> {
    let mut forged = table.to_vec();
    let (rules, source) = Table::from_bytes(table).map(|table| (table.rule_count(), table.source())).unwrap();
    let header = usize::from(u16::from_le_bytes([table[14], table[15]]));
    forged[header..header + 8 * rules].as_chunks_mut().0.fill(Rule::ROOT.bits().to_le_bytes());
    set_source(&mut forged, &source);
    assert!(Table::from_bytes(&forged).is_ok() && source != Source::default());
    forged
}

#[test]
fn a_recording_makes_the_tables_of_the_next() {
    let case = Case::new();
    fs::remove_dir_all(case.cache()).unwrap();
    // Not only the program's own: at least the C library's and the loader's too.
    let are_made = || case.path.exists() && fs::read_dir(case.cache()).unwrap().count() >= 3;
    case.record_until(are_made, "without a table");
    assert_eq!(fs::metadata(case.cache()).unwrap().mode() & 0o777, 0o700);
    assert_eq!(fs::read(&case.path).unwrap(), case.good);
    case.put(|_| {});
    assert_eq!(case.record(), Rules::Forged, "a table in place is used");
    assert_eq!(case.record_with(OsStr::new("0")), Rules::Right, "SELFWIND_TABLES=0");
}

/// The linker adds no build-id.
const NO_BUILD_ID: (&str, &[&str]) = ("no-build-id", &["-Wl,--build-id=none"]);

#[test]
fn a_file_without_a_build_id_has_a_table_while_it_is_the_same() {
    let (scratch, (variant, flags)) = (Scratch::new(), NO_BUILD_ID);
    let program = scratch.join("spin");
    fs::copy(Target::c("spin").with(variant, flags).build(), &program).unwrap();
    let case = Case::of(scratch, program);
    fs::remove_dir_all(case.cache()).unwrap();
    case.record_until(|| case.path.exists(), "without a table");
    assert_eq!(fs::read(&case.path).unwrap(), case.good);
    case.put(|_| {});
    assert_eq!(case.record(), Rules::Forged, "a table in place is used");
    let recording = Recorder::at(997).env("SELFWIND_TABLES", case.cache()).record(&case.program, &["60"]);
    let name = case.path.file_name().and_then(OsStr::to_str).expect("hexadecimal digits");
    let (key, _) = name.split_once('.').expect("a suffix");
    let samples = read(&["export", "-f", "jsonl"], &recording.file);
    assert!(samples.contains("spin_first") && !samples.contains(key), "what names the table is no build-id");
    let changed = FileTimes::new().set_modified(SystemTime::now() - Duration::from_secs(1));
    OpenOptions::new().write(true).open(&case.program).unwrap().set_times(changed).unwrap();
    assert_eq!(case.record(), Rules::Right, "of another time it is another file");
}

#[test]
fn a_table_made_later_is_used_after_the_next_load() {
    let scratch = Scratch::new();
    let program = Target::c("late_table").with("dl", &["-ldl"]).build();
    let (cache, file) = (scratch.join("cache"), scratch.join("profile"));
    let recorder = Recorder::at(997).env("SELFWIND_TABLES", &cache);
    let mut command = recorder.command::<&str>(&file, &program, &[]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("selfwind runs");
    // The recorder makes the right table; a forged one shows that it is used.
    let path = cache
        .join(table_file::name(&build_id(&program), &mut [0; table_file::FILE_NAME_MAX]).expect("short"));
    let deadline = Instant::now() + Duration::from_secs(60);
    let good = loop {
        match fs::read(&path) {
            Ok(table) => break table,
            Err(_) => assert!(Instant::now() < deadline, "no table of {} came", program.display()),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let forged = cache.join("forged");
    fs::write(&forged, forge(&good)).unwrap();
    fs::set_permissions(&forged, Permissions::from_mode(0o600)).unwrap();
    fs::rename(&forged, &path).unwrap();
    child.stdin.take().expect("a pipe").write_all(b"\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(41));
    let folded = folded(&file);
    for (function, reaches) in [("early_burn", true), ("late_burn", false)] {
        let (all, nested) = (folded.inclusive(function), folded.nested("main", function));
        assert!(all >= 3, "{all} samples of {function}");
        assert_eq!(nested, if reaches { all } else { 0 }, "{function}");
    }
}

#[test]
fn a_table_made_later_is_used_where_nothing_else_tells_how_to_go_on() {
    let scratch = Scratch::new();
    let [bare, described] = Target::bare_and_described();
    let program = Target::c("late_adoption").with("dl", &["-ldl"]).build();
    let (cache, file, child) = (scratch.join("cache"), scratch.join("profile"), Target::c("spin").build());
    let case = Case::of(Scratch::new(), described);
    let recorder = Recorder::at(997).env("SELFWIND_TABLES", &cache);
    let mut command = recorder.command(&file, &program, &[&bare, &child]);
    let mut running = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("selfwind runs");
    let mut input = running.stdin.take().expect("a pipe");
    let deadline = Instant::now() + Duration::from_secs(60);
    let wait_for = |program: &Path| {
        let mut buffer = [0; table_file::FILE_NAME_MAX];
        let table = cache.join(table_file::name(&build_id(program), &mut buffer).expect("short"));
        while !table.exists() {
            assert!(Instant::now() < deadline, "no table of {} came", program.display());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait_for(&program);
    // The process is told of that one within a quarter of a second.
    std::thread::sleep(Duration::from_secs(1));
    let name = case.path.file_name().expect("a name");
    assert!(!cache.join(name).exists(), "the recorder cannot find the library");
    // Of a table that says that every function is the outermost one, the stacks show whether it is used.
    let forged = cache.join("forged");
    fs::write(&forged, &case.forged).unwrap();
    fs::set_permissions(&forged, Permissions::from_mode(0o600)).unwrap();
    fs::rename(&forged, cache.join(name)).unwrap();
    // The recorder makes another table and tells of it.
    input.write_all(b"\n").unwrap();
    wait_for(&child);
    std::thread::sleep(Duration::from_secs(1));
    input.write_all(b"\n").unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(41));
    let folded = folded(&file);
    let (early, late) = (folded.inclusive("early_caller"), folded.inclusive("late_caller"));
    assert!(early >= 50, "{early} samples of early_caller");
    assert!(late <= early / 5, "with the table {late} of some {early} stacks reach late_caller");
    assert!(folded.total() >= 3 * early / 2, "{} samples, {early} of early_caller", folded.total());
}

fn build_id(program: &Path) -> Vec<u8> {
    let file = fs::read(program).unwrap();
    let object = object::File::parse(&*file).unwrap();
    object.build_id().unwrap().expect("this compiler gives build-ids").to_vec()
}

#[test]
fn damaged_tables_are_refused_and_replaced() {
    let case = Case::new();
    let length = case.forged.len();
    case.put(|table| table[length - 9] ^= 1);
    assert_eq!(case.record(), Rules::Right, "a flipped bit among the rows: refused at once");
    // Old enough for the contents to be checked, so it is replaced.
    let two_days_ago = FileTimes::new().set_modified(SystemTime::now() - Duration::from_secs(48 * 60 * 60));
    OpenOptions::new().write(true).open(&case.path).unwrap().set_times(two_days_ago).unwrap();
    case.is_refused_and_replaced("a flipped bit among the rows");
    case.put(|table| table[8] += 1);
    case.is_refused_and_replaced("another version");
    case.put(|table| table.truncate(length / 2));
    case.is_refused_and_replaced("half a file");
    case.put(|table| table.truncate(20));
    case.is_refused_and_replaced("a part of the header");
    case.put(Vec::clear);
    case.is_refused_and_replaced("an empty file");
    case.put(|table| {
        // The build-id is behind its length, at 68.
        table[68] ^= 1;
        let source = Source::default();
        set_source(table, &source);
    });
    case.is_refused_and_replaced("the table belongs to another build-id");
}

#[test]
fn tables_of_untrusted_origin_are_refused_and_replaced() {
    let case = Case::new();
    for mode in [0o620, 0o602, 0o666] {
        case.put(|_| {});
        fs::set_permissions(&case.path, Permissions::from_mode(mode)).unwrap();
        case.is_refused_and_replaced(&format!("mode {mode:o}"));
    }
    if nix::unistd::geteuid().is_root() {
        case.put(|_| {});
        chown(&case.path, Some(65534), None).unwrap();
        case.is_refused_and_replaced("owned by somebody else");
    } else {
        skip("giving a file to somebody else takes root");
    }
    case.put(|_| {});
    let elsewhere = case.scratch.join("elsewhere");
    fs::rename(&case.path, &elsewhere).unwrap();
    symlink(&elsewhere, &case.path).unwrap();
    case.is_refused_and_replaced("a symbolic link");
    assert_eq!(fs::read(&elsewhere).unwrap(), case.forged, "what the link led to is left alone");
    fs::remove_file(&case.path).unwrap();
    nix::unistd::mkfifo(&case.path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    case.is_refused_and_replaced("a pipe that nobody writes to");
}

#[test]
fn a_directory_that_others_can_write_to_is_not_used() {
    let case = Case::new();
    case.put(|_| {});
    fs::set_permissions(case.cache(), Permissions::from_mode(0o777)).unwrap();
    let recording = Recorder::at(997).env("SELFWIND_TABLES", case.cache()).record(&case.program, &["60"]);
    assert_eq!(recording.outcome.status, 39);
    let folded = recording.folded();
    assert!(folded.inclusive("spin_first") > 0);
    assert_eq!(folded.nested("main", "spin_first"), folded.inclusive("spin_first"));
    assert_eq!(fs::read(&case.path).unwrap(), case.forged, "it is left alone");
    let pruned = run(Command::new(selfwind()).args(["tables", "prune"]).arg(case.cache()));
    assert_ne!(pruned.status, 0);
    assert!(pruned.stderr.contains("only this user or root can write to"), "{pruned:?}");
}
