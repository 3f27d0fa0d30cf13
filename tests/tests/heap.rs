//! Heap profiles (`-e alloc`) of programs that count their own allocations, and of programs that must not notice.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use selfwind_tests::memory_group::MemoryGroup;
use selfwind_tests::outcome::run;
use selfwind_tests::recording::{Recorder, read, record_unharmed, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::sites::{ALLOCATED, assert_exact, counted, folded, killed_after};
use selfwind_tests::skip;
use selfwind_tests::target::Target;

/// Permitted relative error of a value.
const TOLERANCE: f64 = 0.03;

/// A recorder that loses nothing while it is preempted.
fn recorder(source: &str) -> Recorder {
    Recorder::at(99).event(source).env("SELFWIND_POOL", "128M")
}

/// Asserts that nothing was lost.
fn assert_all_there(file: &Path) {
    let stats = stats(file);
    stats.assert_adds_up();
    assert_eq!(stats.number("lost"), 0, "lost samples");
}

/// Compares all four values of all sites with the program's own counts; `mean` is the mean number of bytes between
/// samples.
///
/// For N blocks of S bytes, each sampled with probability p = 1 - exp(-S/mean), the estimate has the relative standard
/// deviation sqrt((1 - p) / (p N)). Where few blocks are live that exceeds the tolerance.
fn assert_sites(file: &Path, said: &str, mean: f64) {
    let profiles = ALLOCATED.map(|value| folded(file, value));
    let sites = counted(said);
    assert_eq!(sites.len(), 10);
    for (site, expected) in sites {
        for (index, (value, profile)) in ALLOCATED.iter().zip(&profiles).enumerate() {
            let size = expected[1] as f64 / expected[0] as f64;
            let (found, expected, objects) = (profile.inclusive(&site), expected[index], expected[index & 2]);
            let probability = -(-size / mean).exp_m1();
            let deviation = ((1.0 - probability) / (probability * objects.max(1) as f64)).sqrt();
            let off = (found as f64 - expected as f64).abs() / expected.max(1) as f64;
            let allowed = TOLERANCE.max(4.5 * deviation);
            assert!(
                off <= allowed,
                "{site}, {value}: {found} instead of {expected}: off by {:.2}%",
                off * 100.0
            );
        }
    }
}

#[test]
fn sites_have_their_share_and_only_the_leak_is_live() {
    let recording = recorder("alloc:1024").record(&Target::c("heap_sites").build(), &["10000"]);
    assert_eq!(recording.outcome.status, 0, "{}", recording.outcome.stderr);
    assert_all_there(&recording.file);
    assert_sites(&recording.file, &recording.outcome.stdout, 1024.0);
    let leaks = read(&["report", "--leaks", "--json"], &recording.file);
    let leaks: serde_json::Value = serde_json::from_str(&leaks).expect("JSON");
    let functions = leaks["functions"].as_array().expect("a list");
    let sites: Vec<&str> = functions
        .iter()
        .filter_map(|row| row["function"].as_str())
        .filter(|name| name.starts_with("site_"))
        .collect();
    assert_eq!(sites, ["site_9"]);
}

/// free(NULL) frees nothing, and is nobody's block.
#[test]
fn freeing_null_leaves_the_blocks_of_others_alone() {
    let recording = recorder("alloc:8").record(&Target::c("heap_frees_null").build(), &[""; 0]);
    assert_eq!(recording.outcome.status, 0, "{}", recording.outcome.stderr);
    assert_all_there(&recording.file);
    let [allocated, in_use] =
        ["alloc_objects", "inuse_objects"].map(|value| folded(&recording.file, value).inclusive("site"));
    assert!(allocated > 0 && in_use == 0, "{in_use} of {allocated} blocks are in use");
}

#[test]
fn live_blocks_have_their_sites() {
    let recording = recorder("alloc:1024").record(&Target::c("heap_sites").build(), &["10000", "hold"]);
    assert_all_there(&recording.file);
    assert_sites(&recording.file, &recording.outcome.stdout, 1024.0);
}

#[test]
fn a_killed_program_leaves_its_live_blocks() {
    let scratch = Scratch::new();
    let file = scratch.join("selfwind.data");
    let program = Target::c("heap_sites").build();
    let said = killed_after(recorder("alloc:all").command(&file, &program, &["300", "hold", "wait"]), 10);
    assert_all_there(&file);
    assert_exact(&file, &said, ALLOCATED);
}

/// Equal allocations are one sample, whose block has the id of the first: the numbers are exact, and the profile is small.
#[test]
fn equal_allocations_share_a_sample() {
    let recording = recorder("alloc:all").record(&Target::c("heap_sites").build(), &["20000", "hold"]);
    assert_all_there(&recording.file);
    let said = &recording.outcome.stdout;
    assert_exact(&recording.file, said, ALLOCATED);
    let stats = stats(&recording.file);
    let allocations: u64 = counted(said).values().map(|numbers| numbers[0]).sum();
    assert!(stats.number("samples") >= allocations, "{} of {allocations}", stats.number("samples"));
    let bytes = stats.number("bytes");
    assert!(bytes < allocations, "{bytes} bytes for {allocations} allocations");
}

/// More than the first part of the table of live blocks holds.
#[test]
fn many_live_blocks_have_their_sites() {
    let recording = recorder("alloc:all").record(&Target::c("heap_sites").build(), &["70000", "hold"]);
    assert_all_there(&recording.file);
    assert_exact(&recording.file, &recording.outcome.stdout, ALLOCATED);
}

/// The same, where the process may not back memory once it allocates.
#[test]
fn many_live_blocks_behind_a_filter_of_system_calls() {
    const BLOCKS: u64 = 300_000;
    let recording = recorder("alloc:all").record(&Target::c("heap_filtered").build(), &[BLOCKS.to_string()]);
    assert_eq!(recording.outcome.status, 0, "{}", recording.outcome.stderr);
    assert_all_there(&recording.file);
    assert_eq!(folded(&recording.file, "inuse_objects").inclusive("site"), BLOCKS);
}

fn many_paths() -> PathBuf {
    Target::c("heap_many_paths").with("dl", &["-pthread", "-ldl"]).build()
}

/// More stacks than are remembered, more sizes than are told apart: each path has its own allocations.
#[test]
fn every_path_has_its_allocations() {
    let program = many_paths();
    for (depth, rounds, changes) in [(11u32, 40, "0"), (11, 100, "1"), (15, 6, "0")] {
        let recording =
            recorder("alloc:all").record(&program, &[&depth.to_string(), &rounds.to_string(), changes]);
        assert_all_there(&recording.file);
        let paths = 1 << depth;
        for (value, each) in [("alloc_objects", rounds + 1), ("inuse_objects", 1), ("inuse_space", 48)] {
            let profile = folded(&recording.file, value);
            let is_path =
                |stack: &[String]| stack.last().is_some_and(|leaf| leaf == "left" || leaf == "right");
            let weights =
                profile.stacks.iter().filter(|(stack, _)| is_path(stack)).map(|(_, weight)| *weight);
            let weights: Vec<u64> = weights.collect();
            let wrong = weights.iter().filter(|weight| **weight != each).count();
            assert_eq!((weights.len(), wrong), (paths, 0), "{value} at depth {depth}");
        }
        let bytes: u64 = recording.outcome.stdout.trim().parse().expect("bytes");
        let space = folded(&recording.file, "alloc_space");
        assert_eq!(space.inclusive("left"), bytes + 48 * paths as u64, "depth {depth}");
    }
}

/// A program with many stacks: its allocations are counted nevertheless, and what it loads and starts later has a name, also
/// if there is little address space for the log.
#[test]
fn many_stacks_leave_room_for_what_comes_later() {
    let library = Target::c("heap_attached_library").shared("heap-many-paths/library.so").build();
    let program = format!("exec {} 15 40 0 {}", many_paths().display(), library.display());
    for (limit, is_small) in [("", false), ("ulimit -v 400000;", true)] {
        let command = format!("{limit} {program}");
        let recording = recorder("alloc:all").record(Path::new("/bin/sh"), &["-c", &command]);
        assert_eq!(recording.outcome.status, 0, "{limit} {:?}", recording.outcome);
        assert_all_there(&recording.file);
        assert_eq!(folded(&recording.file, "alloc_objects").inclusive("site_library"), 1000, "{limit}");
        let threads = read(&["export", "-f", "folded", "--per-thread"], &recording.file);
        let is_late = |line: &str| line.starts_with("late-") && line.contains(";site_library");
        assert!(threads.lines().any(is_late), "{limit} no thread `late`");
        let stats = recording.stats();
        let (bytes, samples) = (stats.number("bytes"), stats.number("samples"));
        println!("{limit} {bytes} bytes for {samples} samples");
        assert!(is_small || bytes < 8 * samples, "{bytes} bytes for {samples} samples");
    }
}

/// Half a million stacks, each of which recurs: they are in the log, so their allocations are counted.
#[test]
fn stacks_that_differ_little_take_little_room() {
    let program = Target::c("heap_new_stacks").build();
    let recording = recorder("alloc:all").record(&program, &["19", "16"]);
    assert_all_there(&recording.file);
    let allocations: u64 = recording.outcome.stdout.trim().parse().expect("a number");
    let stats = recording.stats();
    let (bytes, samples) = (stats.number("bytes"), stats.number("samples"));
    println!("{bytes} bytes for {samples} samples");
    assert!(samples >= allocations, "{samples} samples of {allocations} allocations");
    // The first allocation of a stack is a sample of its own.
    assert!(bytes < 64 * allocations / 16, "{bytes} bytes for {samples} samples");
}

/// Limits on addresses (KiB) and on the size of files (512 bytes) leave room for the tables.
#[test]
fn all_allocations_are_recorded_under_limits() {
    let program = Target::c("heap_sites").build();
    for limit in ["ulimit -v 100000", "ulimit -f 60000"] {
        let command = format!("{limit}; exec {} 300 hold", program.display());
        let recording = Recorder::at(99).event("alloc:all").record(Path::new("/bin/sh"), &["-c", &command]);
        assert_eq!(recording.outcome.status, 0, "{limit} {:?}", recording.outcome);
        assert_all_there(&recording.file);
        assert_exact(&recording.file, &recording.outcome.stdout, ALLOCATED);
    }
}

/// What has been counted when a library is unloaded has the names of that library.
#[test]
fn allocations_of_unloaded_libraries_have_their_names() {
    let sites: Vec<String> = (0..8).map(|number| format!("site_of_library_{number}")).collect();
    let library = |site: &String| {
        let flag = format!("-Dsite_library={site}");
        let file = format!("heap-unloaded/{site}.so");
        Target::c("heap_attached_library").with(site, &[&flag]).shared(&file).build()
    };
    let libraries: Vec<_> = sites.iter().map(library).collect();
    let recording =
        recorder("alloc:all").record(&Target::c("heap_unloaded").with("dl", &["-ldl"]).build(), &libraries);
    assert_eq!(recording.outcome.status, 0, "{}", recording.outcome.stdout);
    assert_all_there(&recording.file);
    let addresses: BTreeSet<&str> = recording.outcome.stdout.lines().collect();
    assert!(addresses.len() < libraries.len(), "no library had the place of another");
    let profile = folded(&recording.file, "alloc_objects");
    for site in &sites {
        assert_eq!(profile.inclusive(site), 1000, "{site}");
    }
}

/// What was allocated before the recording began is neither lost nor in use.
#[test]
fn a_delayed_recording_has_no_earlier_blocks() {
    let recorder = recorder("alloc:all").env("SELFWIND_DELAY", "1");
    let recording = recorder.record(&Target::c("heap_keeps_some").build(), &["2"]);
    assert_all_there(&recording.file);
    let [allocated, in_use] = ["alloc_objects", "inuse_objects"]
        .map(|value| folded(&recording.file, value).inclusive("site") as f64);
    assert!(allocated > 10_000.0, "{allocated} allocations");
    let share = in_use / allocated;
    assert!((0.0095..0.0105).contains(&share), "{in_use} of {allocated} in use");
}

/// A program killed by the OOM killer cannot report anything; its table of live blocks can.
#[test]
fn a_program_killed_for_lack_of_memory_leaves_its_live_blocks() {
    const LIMIT: u64 = 400 << 20;
    let group = match MemoryGroup::new(LIMIT) {
        Ok(group) => group,
        Err(why) => skip::leave(why),
    };
    let scratch = Scratch::new();
    let (file, counts) = (scratch.join("selfwind.data"), scratch.join("counts"));
    std::fs::write(&counts, [0; 4096]).expect("a file");
    let program = Target::c("heap_until_killed").build();
    let outcome = run(&mut recorder("alloc:all").command(&file, &program, &[&counts, &group.members()]));
    assert_eq!(outcome.status, 137, "not killed: {}", outcome.stderr);
    assert_all_there(&file);
    let counts = std::fs::read(&counts).expect("the program's counts");
    let words = counts.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")));
    let words: Vec<u64> = words.collect();
    let (objects, bytes) = (folded(&file, "inuse_objects"), folded(&file, "inuse_space"));
    for (site, held) in ["held_small", "held_large", "held_cleared", "hog"].iter().zip(words.chunks_exact(2))
    {
        assert!(held[0] > 50, "{site}: {held:?}");
        assert_eq!([objects.inclusive(site), bytes.inclusive(site)], [held[0], held[1]], "{site}");
    }
    assert_eq!(objects.inclusive("passing"), 0, "what was freed is held");
    let hogged = bytes.inclusive("hog") as f64 / bytes.total() as f64;
    assert!(hogged > 0.8, "the hog holds {hogged} of what is held");
}

/// Rounds of each of four threads: a million allocations in total; with `SELFWIND_LONG`, `long` rounds.
fn rounds(long: &'static str) -> &'static str {
    if std::env::var_os("SELFWIND_LONG").is_some() { long } else { "150000" }
}

/// Ten million allocations of each thread.
const LONG: &str = "6000000";
/// Two million, all of which are recorded.
const LONG_OF_ALL: &str = "1200000";

/// The counts that `heap_threads` prints, in the order of [`ALLOCATED`].
fn said_by_threads(line: &str) -> [u64; 4] {
    let said: Vec<u64> = line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    said.try_into().expect("four numbers")
}

/// Blocks shared, resized and freed between threads, at the default rate and at higher ones: the estimates match the
/// program's counts.
#[test]
fn threads_that_share_blocks_balance_with_the_programs_count() {
    for (source, mean) in [("alloc", 524_288.0_f64), ("alloc:16K", 16384.0), ("alloc:1024", 1024.0)] {
        let recording = recorder(source).record(&Target::c("heap_threads").build(), &[rounds(LONG)]);
        assert_all_there(&recording.file);
        for (value, said) in ALLOCATED.iter().zip(said_by_threads(&recording.outcome.stdout)) {
            let found = folded(&recording.file, value).inclusive("make");
            // For N blocks of 2 KiB the estimate has the relative deviation sqrt((1 - p) / (p N)); varying sizes up to
            // double that. A thousand are live.
            let objects = match *value {
                "alloc_objects" => said as f64,
                "alloc_space" => said as f64 / 2048.0,
                _ => 1024.0,
            };
            let probability = -(-2048.0 / mean).exp_m1();
            let deviation = 2.0 * ((1.0 - probability) / (probability * objects)).sqrt();
            let off = (found as f64 / said as f64 - 1.0).abs();
            let allowed = TOLERANCE.max(4.5 * deviation);
            assert!(off <= allowed, "{source}, {value}: {found} instead of {said}");
        }
    }
}

/// Asserts that a profile of all allocations of `heap_threads` and what it lost add up to the program's counts:
/// exactly, if nothing was lost. The report must say how much was lost. Returns that number.
fn assert_balance(file: &Path, said: &str) -> u64 {
    /// Allocations by the C library, for threads and for output.
    const OTHERS: u64 = 16;
    /// No block of the program's is larger.
    const LARGEST: u64 = 16 + 4095 + 1000;
    let (stats, said) = (stats(file), said_by_threads(said));
    stats.assert_adds_up();
    let (fired, lost) = (stats.detail(&["accounting", "fired"]), stats.number("lost"));
    assert!((said[0]..said[0] + OTHERS).contains(&fired), "{fired} counted, {said:?} said");
    let missed = lost + stats.detail(&["accounting", "skipped"]);
    let found = ALLOCATED.map(|value| folded(file, value).inclusive("make"));
    for (index, most) in [1, LARGEST, 1, LARGEST].into_iter().enumerate() {
        let possible = said[index].saturating_sub(missed * most)..=said[index];
        assert!(possible.contains(&found[index]), "{found:?} of {said:?}, {missed} missed");
    }
    let (told, report) = (format!("  lost {}  ", with_commas(lost)), read(&["report"], file));
    assert!(report.contains(&told), "no{told}in {report}");
    lost
}

fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let parts = digits.as_bytes().rchunks(3).rev();
    parts.map(|part| str::from_utf8(part).expect("digits")).collect::<Vec<_>>().join(",")
}

/// All allocations: the numbers are exact. (In the long form no buffer is large enough.)
#[test]
fn blocks_that_pass_between_threads_are_counted_once() {
    let recording = recorder("alloc:all").record(&Target::c("heap_threads").build(), &[rounds(LONG_OF_ALL)]);
    let lost = assert_balance(&recording.file, &recording.outcome.stdout);
    assert!(lost == 0 || std::env::var_os("SELFWIND_LONG").is_some(), "{lost} lost");
}

/// A recorder that is stopped while the program runs: each allocation is in the profile or counted as lost, and no
/// freed block is live.
#[test]
fn lost_allocations_are_counted() {
    let (scratch, program) = (Scratch::new(), Target::c("heap_threads").build());
    let file = scratch.join("heap.data");
    let recorder = Recorder::at(99).event("alloc:all").env("SELFWIND_POOL", "64K");
    let mut command = recorder.command(&file, &program, &["50000", "wait"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("selfwind runs");
    let pid = Pid::from_raw(child.id() as i32);
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = || {
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        line
    };
    assert_eq!(line(), "ready\n");
    kill(pid, Signal::SIGSTOP).expect("our child");
    child.stdin.take().expect("piped").write_all(b"x").expect("a pipe");
    let said = line();
    kill(pid, Signal::SIGCONT).expect("our child");
    assert!(child.wait().expect("our child").success());
    assert!(assert_balance(&file, &said) > 100_000, "hardly anything was lost");
}

/// A recording interposes what it needs; the program calls everything else directly.
#[test]
fn only_what_is_recorded_is_interposed() {
    let program = Target::c("bound_names").build();
    for (event, interposed) in [
        ("alloc", &["malloc", "free"][..]),
        ("lock", &["pthread_mutex_lock", "pthread_cond_wait", "sem_wait"]),
        ("mmap", &["mmap", "munmap"]),
        ("cpu,alloc,mmap", &["malloc", "free", "mmap", "munmap"]),
        ("cpu", &[]),
    ] {
        let recording = Recorder::at(99).event(event).record(&program, &[] as &[&str]);
        let bound =
            recording.outcome.stdout.lines().map(|line| line.split_once(' ').expect("a name and a file"));
        let ours: Vec<&str> =
            bound.filter(|(_, file)| file.contains("/agent-")).map(|(name, _)| name).collect();
        assert_eq!(ours, interposed, "{event}: {}", recording.outcome.stdout);
    }
}

/// Beside CPU time, what it takes to record allocations is seen as one function.
#[test]
fn the_agents_functions_have_one_name() {
    let recording =
        Recorder::at(997).event("cpu,alloc:all").record(&Target::c("malloc_storm").build(), &[] as &[&str]);
    let folded = recording.folded();
    let names = folded.stacks.iter().flat_map(|(stack, _)| stack);
    assert!(
        folded.inclusive("[selfwind]") > 0 && !names.clone().any(|name| name.starts_with("agent-")),
        "{folded:#?}"
    );
}

#[test]
fn pprof_has_the_four_values_of_heap_profiles() {
    let recording = recorder("alloc:4096").record(&Target::c("heap_sites").build(), &["500", "hold"]);
    let scratch = Scratch::new();
    let out = scratch.join("heap.pb.gz");
    let outcome = run(Command::new(selfwind_tests::binary::selfwind())
        .args(["export", "-o"])
        .args([&out, &recording.file]));
    assert_eq!(outcome.status, 0, "{}", outcome.stderr);
    let mut text = Vec::new();
    let unzipped = Command::new("gzip").args(["-dc"]).arg(&out).stdout(Stdio::piped()).spawn();
    unzipped.expect("gzip runs").stdout.expect("piped").read_to_end(&mut text).expect("a pipe");
    let has = |word: &str| text.windows(word.len()).any(|part| part == word.as_bytes());
    for word in ALLOCATED.into_iter().chain(["site_9"]) {
        assert!(has(word), "no {word} in the profile");
    }
}

#[test]
fn a_profile_of_time_has_no_values_of_allocations() {
    let recording = Recorder::default().event("cpu").record(Path::new("/bin/true"), &[] as &[&str]);
    let outcome = run(Command::new(selfwind_tests::binary::selfwind())
        .args(["report", "--leaks"])
        .arg(&recording.file));
    assert_eq!(outcome.status, 1);
    assert!(
        outcome.stderr.contains("no event inuse_space: it has cpu; `record -e alloc`"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn hazards_are_unharmed() {
    for name in
        ["fork", "exec", "vfork", "posix_spawn", "dlopen_churn", "thread_churn", "malloc_storm", "siglongjmp"]
    {
        for source in ["alloc", "alloc:all"] {
            record_unharmed(&Recorder::at(99).event(source), &Target::c(name).build(), &[] as &[&str]);
        }
    }
    for name in ["throw", "thread_locals"] {
        record_unharmed(&recorder("alloc:all"), &Target::cpp(name).build(), &[] as &[&str]);
    }
}

#[test]
fn calls_before_the_start_and_after_the_end_work() {
    let recording =
        record_unharmed(&recorder("alloc:all"), &Target::cpp("heap_hazards").build(), &[] as &[&str]);
    let objects = folded(&recording.file, "alloc_objects");
    for function in
        ["in_constructor", "in_main", "in_handler", "in_exit_handler", "in_destructor", "in_child"]
    {
        assert!(objects.inclusive(function) > 0, "no allocation in {function}");
    }
    let held = folded(&recording.file, "inuse_objects");
    assert_eq!(held.inclusive("in_main"), 0, "what was freed is held");
    assert!(held.inclusive("in_handler") > 0, "what was not freed is not held");
}

/// Real programs, each with a small task.
#[test]
fn programs_are_unharmed() {
    let scratch = Scratch::new();
    let source = scratch.join("a.c");
    std::fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 3; }\n")
        .expect("a file");
    let (source, object) = (source.display().to_string(), scratch.join("a.o").display().to_string());
    let programs: [(&str, &[&str]); 4] = [
        ("gcc", &["-O2", "-c", &source, "-o", &object]),
        ("python3", &["-c", "print(sum(len(str(i) * 50) for i in range(20000)))"]),
        (
            "sqlite3",
            &[
                ":memory:",
                "create table t(a); with recursive c(x) as (values(1) union all select x+1 from c where x<20000) insert into t select x from c; select sum(a), count(*) from t;",
            ],
        ),
        ("perl", &["-e", "my %h; $h{$_} = \"x\" x $_ for 1..2000; print scalar(keys %h), \"\\n\"; exit 4"]),
    ];
    for (name, arguments) in programs {
        let Some(program) = which(name) else {
            skip::leave(format_args!("{name} is not installed"));
        };
        for source in ["alloc", "alloc:all"] {
            record_unharmed(&Recorder::at(99).event(source), &program, arguments);
        }
    }
}

/// Other allocators define the same functions, or their own C++ operators.
#[test]
fn other_allocators_are_counted_once() {
    for library in ["libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2"] {
        let found = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"]
            .map(|directory| Path::new(directory).join(library));
        let Some(library) = found.into_iter().find(|path| path.exists()) else {
            skip::leave(format_args!("{library} is not installed"));
        };
        let recorder = recorder("alloc:all").env("LD_PRELOAD", &library);
        let recording = recorder.record(&Target::c("heap_sites").build(), &["20", "hold"]);
        assert_eq!(recording.outcome.status, 0, "{}: {}", library.display(), recording.outcome.stderr);
        assert_exact(&recording.file, &recording.outcome.stdout, ALLOCATED);
        let recording = recorder.record(&Target::cpp("heap_hazards").build(), &["no-throw"]);
        assert_eq!(recording.outcome.status, 0, "{}: {}", library.display(), recording.outcome.stderr);
        assert_eq!(
            folded(&recording.file, "alloc_objects").inclusive("in_new"),
            100,
            "{}",
            library.display()
        );
        assert_eq!(folded(&recording.file, "inuse_objects").inclusive("in_new"), 1, "{}", library.display());
    }
}

/// Calls of libraries are recorded, whenever these were loaded; each library keeps its allocator. Those of the program to its own
/// functions cannot be, and the profile says so.
#[test]
fn a_program_that_defines_malloc_has_the_allocations_of_its_libraries() {
    let library = Target::c("heap_attached_library").shared("heap-defines/library.so").build();
    let flags = ["-Wl,-z,lazy", "-Dsite_library=site_of_other"];
    let other =
        Target::c("heap_attached_library").with("lazy", &flags).shared("heap-defines/other.so").build();
    let program = Target::c("defines_malloc").with("dl", &["-ldl"]).build();
    let recording = recorder("alloc:all").record(&program, &[&library, &other]);
    assert_eq!(recording.outcome.status, 0, "{}", recording.outcome.stdout);
    let note = "defines_malloc-dl): the program defines malloc;";
    assert!(read(&["stats"], &recording.file).contains(note));
    assert_all_there(&recording.file);
    let profile = folded(&recording.file, "alloc_objects");
    let sites = ["in_the_program", "in_the_c_library", "site_library"];
    assert_eq!(sites.map(|site| profile.inclusive(site)), [0, 1000, 1000]);
    // The library frees its blocks.
    assert_eq!(folded(&recording.file, "inuse_objects").inclusive("site_library"), 0);
    let recording = recorder("alloc:all").record(&Target::c("heap_sites").build(), &["1", "hold"]);
    assert!(!read(&["stats"], &recording.file).contains("defines malloc"));
}

fn which(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// Its runtime notes who called the allocator by frame pointers, for which the agent must have a frame.
#[test]
fn reports_of_a_sanitizer_name_who_allocated() {
    let program = Target::cpp("use_after_free")
        .with("asan", &["-fsanitize=address", "-fno-omit-frame-pointer"])
        .build();
    for source in ["alloc", "alloc:all"] {
        let recording = Recorder::default().event(source).record(&program, &[] as &[&str]);
        let said = &recording.outcome.stderr;
        let (_, allocated) = said.split_once("previously allocated by").expect("the report of the sanitizer");
        assert!(allocated.contains(" in make_block") && allocated.contains(" in main "), "{source}: {said}");
    }
}
