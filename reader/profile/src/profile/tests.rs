//! Aggregation: weights, trees, threads and processes, on a made-up profile.

use unwind::{End, Frame};

use super::fixture;
use super::*;
use crate::profile_file::{Event, GeneratedCode, GeneratedFunction, ProcessInfo, Sample, SessionInfo};
use crate::symbolize::SymbolSources;

/// Every stack as `root;...;leaf`, with its weight by thread id.
fn stacks(profile: &Profile) -> Vec<(u32, String, u64)> {
    let mut stacks: Vec<_> = profile
        .buckets
        .iter()
        .map(|bucket| {
            let stack = &profile.stacks[bucket.stack as usize];
            let names: Vec<_> =
                profile.functions_from_root(stack).map(|f| profile.function_name(f)).collect();
            (profile.threads[bucket.thread as usize].tid, names.join(";"), bucket.weight)
        })
        .collect();
    stacks.sort();
    stacks
}

#[test]
fn stacks_are_named_at_their_time_and_summed_by_thread() {
    let profile = fixture::loaded("stacks");
    let expected = [
        (100, "_start;main;[unknown]", 1),
        (100, "_start;main;app::parse", 5),
        (100, "_start;main;app::parse;space::foo(int)", 2),
        (100, "_start;main;new_plugin", 4),
        (100, "_start;main;old_plugin", 2),
        (101, "[truncated: depth-limit];main;worker;loop;worker;loop", 1),
        (101, "[truncated: no-cfi];worker;loop;app::parse;[unknown]", 3),
        (200, "_start;main;app::parse", 2),
    ];
    assert_eq!(stacks(&profile), expected.map(|(tid, stack, weight)| (tid, stack.to_owned(), weight)));
    let totals = Totals { samples: 9, weight: 20, truncated: 2, frames: 29, frame_pointer: 1, guessed: 1 };
    assert_eq!(profile.totals, totals);
    // The forked child maps the same file: one binary, one stack.
    assert_eq!(profile.binaries.len(), 3);
    assert_eq!(profile.stacks.len(), 7);
    assert_eq!(profile.processes[1].info.parent, Some(0));
    assert_eq!(profile.notes, Vec::<String>::new());
}

#[test]
fn a_call_at_the_end_of_a_function_belongs_to_it() {
    let directory = fixture::directory("boundary");
    let app = directory.join("app");
    fixture::binary(&app, &["caller", "next"]);
    // The first instruction of `next`: where a call that ends `caller` returns to, and where a signal may strike.
    let boundary = fixture::BASE + 0x200;
    let at = |exact| Frame::new(boundary, unwind::FoundBy::Cfi, exact).bits();
    let frames = vec![at(true), at(false)];
    let file = directory.join("p.data");
    let sample = fixture::sample(0, 1, 5, 1, End::Root, frames);
    fixture::write(&file, &[fixture::module(0, 1, &app, fixture::BASE, 0), sample]);
    let profile = load(&file, &SymbolSources::none()).unwrap();
    assert_eq!(stacks(&profile), [(1, "caller;next".to_owned(), 1)]);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn the_call_injected_to_preempt_a_goroutine_is_left_out() {
    for injected in ["runtime.asyncPreempt", "runtime.asyncPreempt.abi0"] {
        let directory = fixture::directory("preempted");
        let app = directory.join("app");
        fixture::binary(&app, &["main.main", "main.spin", injected]);
        let entry = fixture::leaf(2);
        let inside = Frame::new(fixture::BASE + 0x310, unwind::FoundBy::Cfi, true).bits();
        let sample = |tid, frames| fixture::sample(0, tid, 5, 1, End::Root, frames);
        let events = [
            fixture::module(0, 1, &app, fixture::BASE, 0),
            sample(1, vec![entry, fixture::caller(1), fixture::caller(0)]),
            sample(1, vec![fixture::caller(1), fixture::caller(0)]),
            // Its own time, and a stack of nothing else.
            sample(2, vec![inside, fixture::caller(1), fixture::caller(0)]),
            sample(3, vec![entry]),
        ];
        let file = directory.join("p.data");
        fixture::write(&file, &events);
        let profile = load(&file, &SymbolSources::none()).unwrap();
        let below = "main.main;main.spin".to_owned();
        let expected =
            [(1, below.clone(), 2), (2, format!("{below};{injected}"), 1), (3, injected.to_owned(), 1)];
        assert_eq!(stacks(&profile), expected);
        assert_eq!(profile.stacks.len(), 3);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}

#[test]
fn samples_without_any_record_still_count() {
    let directory = fixture::directory("bare");
    let file = directory.join("p.data");
    let sample = |frames: Vec<u64>| {
        Event::Sample(Sample { process: 7, tid: 3, weight: 2, end: 200, frames, ..Sample::default() })
    };
    fixture::write(&file, &[sample(vec![]), sample(vec![1]), sample(vec![u64::MAX])]);
    let profile = load(&file, &SymbolSources::none()).unwrap();
    assert_eq!((profile.totals.samples, profile.totals.weight, profile.totals.truncated), (3, 6, 3));
    assert!(stacks(&profile).iter().all(|(_, stack, _)| stack.starts_with("[truncated: reason 200]")));
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Equal stacks of processes in which the same is mapped are found once.
#[test]
fn generated_code_of_one_process_is_not_that_of_its_twin() {
    let functions =
        vec![GeneratedFunction { since_ns: 0, start: 0x1000, len: 0x100, name: "generated".into() }];
    let sample = |process, tid| fixture::sample(process, tid, 5, 1, End::Root, vec![0x1010]);
    let events = vec![
        sample(2, 3),
        sample(1, 1),
        sample(1, 2),
        sample(0, 0),
        Event::Generated(GeneratedCode { process: 1, source: "/tmp/map".into(), functions }),
    ];
    let names = ["[unknown]", "generated", "generated", "[unknown]"];
    let expected: Vec<_> = (0..4).zip(names).map(|(tid, name)| (tid, name.to_owned(), 1)).collect();
    assert_eq!(stacks(&of_events(events, &SymbolSources::none())), expected);
}

#[test]
fn generated_code_has_the_names_its_process_gave() {
    let directory = fixture::directory("generated");
    let file = directory.join("p.data");
    // A pid that no kernel gives out.
    let pid = 3_000_000_000 + std::process::id();
    let map = format!("/tmp/perf-{pid}.map");
    std::fs::write(&map, "20000 100 JS:~render app.js:7\n").unwrap();
    let uid = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&map).unwrap());
    let process = |id, pid| Event::Process(ProcessInfo { id, pid, uid, ..ProcessInfo::default() });
    let sample = |process, address| {
        let frames = vec![Frame::new(address, unwind::FoundBy::Cfi, true).bits()];
        Event::Sample(Sample { process, tid: 1 + process, weight: 1, frames, ..Sample::default() })
    };
    let session = Event::Session(SessionInfo { started_realtime_ns: 1, ..SessionInfo::default() });
    let events =
        [session, process(0, pid), process(1, 0), sample(0, 0x20010), sample(0, 0x30000), sample(1, 0x20010)];
    fixture::write(&file, &events);
    let profile = load(&file, &SymbolSources::none()).unwrap();
    let expected = [(1, "JS:~render app.js:7", 1), (1, "[unknown]", 1), (2, "[unknown]", 1)];
    assert_eq!(stacks(&profile), expected.map(|(tid, stack, weight)| (tid, stack.to_owned(), weight)));
    std::fs::remove_file(&map).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn generated_code_told_in_the_profile_has_its_names_at_its_times() {
    let directory = fixture::directory("told");
    let file = directory.join("p.data");
    let function =
        |since_ns, start, len, name: &str| GeneratedFunction { since_ns, start, len, name: name.into() };
    let functions = vec![
        function(0, 0x20000, 0x100, "old"),
        function(40, 0x20080, 0x100, "new"),
        function(0, 0x50000, 0, "empty"),
        function(0, u64::MAX - 5, 100, "wild"),
    ];
    let code = GeneratedCode { process: 0, source: "/tmp/perf-1.map".into(), functions };
    let sample = |ns, address| {
        let frames = vec![Frame::new(address, unwind::FoundBy::Cfi, true).bits()];
        Event::Sample(Sample { process: 0, tid: ns as u32, ns, weight: 1, frames, ..Sample::default() })
    };
    let events = [
        sample(10, 0x20090),
        sample(41, 0x20090),
        sample(42, 0x20190),
        sample(43, 0x50000),
        sample(44, 0x2017f),
        Event::Generated(code),
    ];
    fixture::write(&file, &events);
    let profile = load(&file, &SymbolSources::none()).unwrap();
    let names: Vec<String> = stacks(&profile).into_iter().map(|(_, stack, _)| stack).collect();
    assert_eq!(names, ["old", "new", "[unknown]", "[unknown]", "new"]);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn processes_have_the_name_they_were_called_by() {
    let name = |exe: &str, argv: &[&str]| {
        let argv = argv.iter().map(|argument| argument.to_string()).collect();
        Process { info: ProcessInfo { exe: exe.into(), argv, ..ProcessInfo::default() } }.name()
    };
    assert_eq!(name("/usr/bin/redis-check-rdb", &["/usr/bin/redis-server", "*:6379"]), "redis-server");
    assert_eq!(name("/bin/bash", &["-bash"]), "bash");
    assert_eq!(name("/bin/bash", &[""]), "bash");
    assert_eq!(name("/usr/sbin/sshd", &["sshd: root@pts/0"]), "sshd: root@pts/0");
    assert_eq!(
        name("/opt/chromium", &["/opt/chromium --type=renderer --user-data-dir=/tmp/scoped --x"]),
        "chromium"
    );
    assert_eq!(name("/opt/chromium", &["/proc/self/exe", "--type=gpu-process"]), "chromium");
    assert_eq!(name("", &[]), "?");
}
