//! Aggregation: weights, trees, threads and processes, on a made-up profile.

use super::fixture;
use super::tree::{CallTree, Direction, function_weights};
use super::*;
use crate::profile_file::{Event, Sample};
use crate::symbolize::DebugDirectories;

fn loaded(test: &str) -> Profile {
    let directory = fixture::directory(test);
    let file = directory.join("p.data");
    fixture::write(&file, &fixture::events(&directory));
    let profile = load(&file, &DebugDirectories(Vec::new())).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    profile
}

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
    let profile = loaded("stacks");
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
fn weights_of_functions_and_trees_add_up() {
    let profile = loaded("weights");
    let weights = function_weights(&profile);
    let of = |name: &str| {
        let found = weights.iter().filter(|w| profile.function_name(w.function) == name);
        found.fold((0, 0), |sum, w| (sum.0 + w.own, sum.1 + w.total))
    };
    assert_eq!(of("app::parse"), (7, 12));
    assert_eq!(of("main"), (0, 17));
    assert_eq!(of("worker;loop"), (1, 4), "a recursive function counts once per stack");
    assert_eq!(weights.iter().map(|w| w.own).sum::<u64>(), profile.totals.weight);
    for (direction, grouped) in
        [(Direction::Callees, false), (Direction::Callers, false), (Direction::Callees, true)]
    {
        let tree = CallTree::new(&profile, direction, grouped);
        assert_eq!(tree.nodes[0].total, profile.totals.weight);
        for node in &tree.nodes {
            let below: u64 = node.children.iter().map(|&child| tree.nodes[child as usize].total).sum();
            assert_eq!(node.total, node.own + below);
        }
    }
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
    let profile = load(&file, &DebugDirectories(Vec::new())).unwrap();
    assert_eq!(stacks(&profile), [(1, "caller;next".to_owned(), 1)]);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn samples_without_any_record_still_count() {
    let directory = fixture::directory("bare");
    let file = directory.join("p.data");
    let sample = |frames: Vec<u64>| {
        Event::Sample(Sample { process: 7, tid: 3, weight: 2, end: 200, frames, ..Sample::default() })
    };
    fixture::write(&file, &[sample(vec![]), sample(vec![1]), sample(vec![u64::MAX])]);
    let profile = load(&file, &DebugDirectories(Vec::new())).unwrap();
    assert_eq!((profile.totals.samples, profile.totals.weight, profile.totals.truncated), (3, 6, 3));
    assert!(stacks(&profile).iter().all(|(_, stack, _)| stack.starts_with("[truncated: reason 200]")));
    std::fs::remove_dir_all(&directory).unwrap();
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
    let profile = load(&file, &DebugDirectories(Vec::new())).unwrap();
    let expected = [(1, "JS:~render app.js:7", 1), (1, "[unknown]", 1), (2, "[unknown]", 1)];
    assert_eq!(stacks(&profile), expected.map(|(tid, stack, weight)| (tid, stack.to_owned(), weight)));
    std::fs::remove_file(&map).unwrap();
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
    assert_eq!(name("", &[]), "?");
}
