//! Tracepoints (`-e tp:...`) in programs that count their own events and know their contents.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use selfwind_profile::profile_file::{Event, ProfileReader, Sample};
use selfwind_profile::tracepoint::{FieldValue, Tracepoint};
use selfwind_tests::outcome::run;
use selfwind_tests::recording::{Recorder, Recording, read, record_unharmed};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::target::Target;
use serde_json::Value;

/// A recorder that loses nothing while it is preempted.
fn recorder(source: &str) -> Recorder {
    Recorder::at(99).event(source).env("SELFWIND_POOL", "128M")
}

/// The same for programs that repeat their events.
fn record(source: &str, arguments: &[&str]) -> Recording {
    record_unharmed(&recorder(source), &Target::c("tracepoints").build(), arguments)
}

/// The program's own count of each event.
fn said(text: &str) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let (name, count) = line.split_once(' ').expect("a name and a number");
        (name.to_owned(), count.parse().expect("a number"))
    };
    text.lines().map(line).collect()
}

/// The lines of `export -f jsonl`.
fn lines(file: &Path) -> Vec<Value> {
    let text = read(&["export", "-f", "jsonl"], file);
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Weight by event, without the provider.
fn weights(lines: &[Value]) -> BTreeMap<String, u64> {
    let mut weights = BTreeMap::new();
    for line in lines {
        let event = line["event"].as_str().expect("a name");
        let (_, name) = event.split_once(':').expect("provider and name");
        *weights.entry(name.to_owned()).or_default() += line["weight"].as_u64().expect("a number");
    }
    weights
}

fn assert_nothing_lost(recording: &Recording) {
    let stats = recording.stats();
    stats.assert_adds_up();
    assert_eq!((stats.number("lost"), stats.causes("skipped")), (0, 0), "{:#}", stats.0["detail"]);
}

/// Passes the events of a profile to `each`, in order, with the name of the tracepoint and the fields.
fn each_event(file: &Path, mut each: impl FnMut(&str, &[FieldValue], &Sample)) {
    let read = || ProfileReader::open(file).expect("a profile").map(|event| event.expect("whole"));
    let known: BTreeMap<(u32, u32), Tracepoint> = read()
        .filter_map(|event| match event {
            Event::Tracepoint(tracepoint) => Some(((tracepoint.process, tracepoint.id), tracepoint)),
            _ => None,
        })
        .collect();
    for event in read() {
        let Event::Sample(sample) = event else { continue };
        let Some(fields) = &sample.fields else { continue };
        each(&known[&(sample.process, fields.tracepoint)].name, &fields.values, &sample);
    }
}

/// Name, values and sample of each event, by process and thread.
type ByThread = BTreeMap<(u32, u32), Vec<(String, Vec<FieldValue>, Sample)>>;

/// The same by thread.
fn events(file: &Path) -> ByThread {
    let mut events: BTreeMap<_, Vec<_>> = BTreeMap::new();
    each_event(file, |name, values, sample| {
        let thread = (sample.process, sample.thread_seq);
        events.entry(thread).or_default().push((name.to_owned(), values.to_vec(), sample.clone()));
    });
    events
}

/// Number of `app:work` events of each thread. Asserts that the numbers in them are unique. Their order is that of time only
/// while the recorder keeps up.
fn numbered(file: &Path) -> BTreeMap<i64, u64> {
    let mut seen: BTreeMap<i64, Vec<bool>> = BTreeMap::new();
    each_event(file, |_, values, _| {
        let [thread, n] = [0, 1].map(|field| values[field].number().expect("a number"));
        let (seen, at) = (seen.entry(thread).or_default(), usize::try_from(n).expect("not negative"));
        seen.resize(seen.len().max(at + 1), false);
        assert!(!std::mem::replace(&mut seen[at], true), "event {n} of thread {thread} is there twice");
    });
    seen.into_iter()
        .map(|(thread, seen)| (thread, seen.iter().filter(|seen| **seen).count() as u64))
        .collect()
}

#[test]
fn the_header_compiles_everywhere_without_a_warning() {
    let strict = ["-Wextra", "-Wpedantic", "-Werror"];
    for (variant, flags) in [
        ("c99", &["-std=c99"][..]),
        ("c17", &["-std=c17"]),
        ("O0", &["-std=c99", "-O0"]),
        ("no-pie", &["-std=c99", "-no-pie", "-fno-pie"]),
        ("fixed", &["-std=c99", "-static"]),
    ] {
        let program = Target::c("tracepoints").with(variant, &strict).with("", flags).build();
        let outcome = run(Command::new(program).args(["count", "3"]));
        assert_eq!((outcome.status, outcome.stdout.as_str()), (0, "tick 3\n"), "{variant}");
    }
    for standard in ["-std=c++11", "-std=c++17", "-std=c++20"] {
        let name = format!("strict{}", &standard[5..]);
        let program = Target::cpp("tracepoints_inline").with(&name, &strict).with("", &[standard]).build();
        assert_eq!(run(&mut Command::new(program)).status, 0, "{standard}");
    }
}

#[test]
fn every_event_is_there_with_its_fields() {
    const EVENTS: i64 = 20_000;
    for source in ["tp:app:*", "tp:app:*,nostack"] {
        let recording = record(source, &["count", &EVENTS.to_string()]);
        assert_nothing_lost(&recording);
        let mut ticks = BTreeSet::new();
        for line in lines(&recording.file) {
            let fields = &line["fields"];
            match line["event"].as_str().expect("a name") {
                "app:tick" => {
                    let i = -fields["minus"].as_i64().expect("a number");
                    assert_eq!(fields["square"], (i * i) as u64);
                    assert_eq!(fields["half"], i as f64 / 2.0);
                    assert_eq!(fields["name"], ["zero", "one", "two", "three"][i as usize % 4]);
                    assert_eq!((&line["weight"], &line["samples"]), (&1.into(), &1.into()));
                    assert!(ticks.insert(i), "event {i} is there twice");
                }
                "app:texts" => {
                    assert_eq!(fields["text"], format!("{}…", "x".repeat(256)));
                    assert_eq!((&fields["none"], &fields["empty"]), (&Value::Null, &"".into()));
                }
                "app:bare" => assert_eq!(*fields, Value::Null),
                other => panic!("{other} was not asked for"),
            }
            let frames = line["frames"].as_array().expect("a list");
            let has_stack = frames.iter().any(|frame| frame["function"] == "main");
            assert_eq!(has_stack, !source.ends_with("nostack"), "{line}");
        }
        assert_eq!(ticks, (0..EVENTS).collect());
    }
}

#[test]
fn names_are_chosen_by_patterns() {
    for (source, expected) in [
        ("tp:other:tick", &["other:tick"][..]),
        ("tp:*:tick", &["app:tick", "other:tick"]),
        ("tp:app:t?xts,tp:app:bare,nostack", &["app:bare", "app:texts"]),
        ("tp:app:*", &["app:bare", "app:texts", "app:tick"]),
    ] {
        let recording = record(source, &["count", "5"]);
        let lines = lines(&recording.file);
        let found: BTreeSet<&str> = lines.iter().filter_map(|line| line["event"].as_str()).collect();
        assert_eq!(found, expected.iter().copied().collect(), "{source}");
    }
}

#[test]
fn tracepoints_not_asked_for_are_disabled() {
    let recording = record("tp:nobody:*", &["count", "5"]);
    assert_eq!(recording.stats().number("samples"), 0);
    // With another source there are no events.
    let recording = record("cpu", &["count", "5"]);
    assert!(events(&recording.file).is_empty());
}

#[test]
fn threads_lose_no_event() {
    let long = std::env::var_os("SELFWIND_LONG").is_some();
    let each: u64 = if long { 2_500_000 } else { 100_000 };
    let recording = recorder("tp:app:work,nostack")
        .record(&Target::c("tracepoints").build(), &["threads", "4", &each.to_string()]);
    let stats = recording.stats();
    stats.assert_adds_up();
    // Recorded, or counted as lost.
    let accounting = |name| stats.detail(&["accounting", name]);
    assert_eq!(accounting("fired"), 4 * each);
    assert_eq!(stats.number("samples") + stats.number("lost") + accounting("skipped"), 4 * each);
    if !long {
        assert_eq!(stats.number("lost") + accounting("skipped"), 0, "{:#}", stats.0["detail"]);
    }
    let counts = numbered(&recording.file);
    assert_eq!(counts.values().sum::<u64>(), stats.number("samples"));
    assert_eq!(counts.into_keys().collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn threads_that_are_sampled_lose_no_event_either() {
    let long = std::env::var_os("SELFWIND_LONG").is_some();
    let each: u64 = if long { 2_500_000 } else { 50_000 };
    let recorder = Recorder::at(9973).event("auto,tp:app:work").env("SELFWIND_POOL", "128M");
    let recording = recorder.record(&Target::c("tracepoints").build(), &["threads", "4", &each.to_string()]);
    recording.assert_adds_up();
    let events: u64 = numbered(&recording.file).values().sum();
    let lost = recording.stats().number("lost");
    assert!(events <= 4 * each && events + lost >= 4 * each, "{events} and {lost} lost");
    // The clock's samples are there, too.
    let report: Value = serde_json::from_str(&read(&["report", "--json"], &recording.file)).expect("JSON");
    assert!(report["samples"].as_u64().is_some_and(|samples| samples > 0), "{report:#}");
    let by = read(&["report", "--json", "--event", "tracepoints"], &recording.file);
    let by: Value = serde_json::from_str(&by).expect("JSON");
    assert_eq!(by["samples"].as_u64(), Some(events));
}

#[test]
fn events_nested_in_signal_handlers_are_recorded() {
    for source in ["tp:app:*", "tp:app:*,nostack", "tp:app:outer,tp:app:*,nostack"] {
        let recording = recorder(source).record(&Target::c("tracepoints").build(), &["signals", "300"]);
        assert_eq!(recording.outcome.status, 0, "{}", recording.outcome.stderr);
        assert_nothing_lost(&recording);
        let expected = said(&recording.outcome.stdout);
        let found = events(&recording.file);
        let main = found.values().find(|events| events.len() > 300).expect("the main thread");
        for name in ["outer", "inner"] {
            let numbers: BTreeSet<i64> =
                main.iter().filter(|event| event.0 == name).filter_map(|event| event.1[0].number()).collect();
            assert_eq!(numbers, (0..expected[name] as i64).collect(), "{source}: {name}");
        }
        // Nested or not, no two have the same time. A recorder that cannot keep up with millions may store some out of order.
        let times: BTreeSet<u64> = main.iter().map(|event| event.2.ns).collect();
        assert_eq!(times.len(), main.len(), "{source}");
    }
}

#[test]
fn a_handler_that_leaves_by_longjmp_costs_one_event() {
    for source in ["tp:app:*", "tp:app:*,nostack"] {
        let recording = recorder(source).record(&Target::c("tracepoints").build(), &["jumps", "300"]);
        assert_eq!(recording.outcome.status, 0, "{}", recording.outcome.stderr);
        let expected = said(&recording.outcome.stdout);
        let found = events(&recording.file);
        let all: Vec<_> = found.values().flatten().collect();
        let cut: BTreeSet<i64> =
            all.iter().filter(|event| event.0 == "cut").filter_map(|event| event.1[0].number()).collect();
        assert!(cut.len() as u64 >= expected["ended"], "{} of {}", cut.len(), expected["ended"]);
        assert!(cut.len() as u64 <= expected["begun"]);
        let after: Vec<_> = all.iter().filter(|event| event.0 == "after").collect();
        assert_eq!(after.len(), 10);
        // The thread's stack chain continues.
        if source == "tp:app:*" {
            assert!(after.iter().all(|event| event.2.frames.len() > 1), "{:?}", after[0].2);
        }
    }
}

#[test]
fn libraries_come_and_go_with_their_tracepoints() {
    let libraries: Vec<String> = (0..3)
        .map(|number| {
            let file = format!("tracepoints_library_{number}.so");
            Target::c("tracepoints_library").shared(&file).build().to_string_lossy().into_owned()
        })
        .collect();
    let mut arguments = vec!["libraries", "30"];
    arguments.extend(libraries.iter().map(String::as_str));
    let recording = record("tp:app:*", &arguments);
    assert_nothing_lost(&recording);
    assert_eq!(weights(&lines(&recording.file)), said(&recording.outcome.stdout));
}

#[test]
fn children_record_their_own_events() {
    let recording = record("tp:app:*", &["forks", "50"]);
    assert_nothing_lost(&recording);
    assert_eq!(weights(&lines(&recording.file)), said(&recording.outcome.stdout));
}

#[test]
fn events_of_inline_functions_and_templates_are_recorded() {
    let recording =
        record_unharmed(&recorder("tp:cxx:*"), &Target::cpp("tracepoints_inline").build(), &[""; 0]);
    assert_nothing_lost(&recording);
    assert_eq!(weights(&lines(&recording.file)), said(&recording.outcome.stdout));
}

#[test]
fn the_stack_of_an_event_is_correct() {
    let recording = record("tp:app:deep", &["stacks"]);
    assert_nothing_lost(&recording);
    let lines = lines(&recording.file);
    let mut seen = BTreeSet::new();
    for line in &lines {
        let n = line["fields"]["n"].as_i64().expect("a number");
        let functions: Vec<&str> = line["frames"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|frame| frame["function"].as_str())
            .collect();
        let own: Vec<&str> = functions.iter().copied().take_while(|name| *name != "main").collect();
        let deeper = vec!["deeper"; n as usize + 1];
        if n < 99 {
            assert_eq!(own, [&["innermost"][..], &deeper, &["stacks"]].concat(), "{n}");
        } else {
            // On the alternate stack, and beyond the signal frame.
            assert_eq!(own[..2], ["innermost", "on_stack_of_its_own"], "{own:?}");
            assert_eq!(own.last(), Some(&"stacks"), "{own:?}");
        }
        assert_eq!((&line["end"], functions.contains(&"main")), (&"root".into(), true), "{line}");
        seen.insert(n);
    }
    assert_eq!(seen.len(), 41);
}

#[test]
fn weights_by_field_and_by_event() {
    let recording = record("tp:*:*", &["count", "1000"]);
    let by = |field: &str| -> BTreeMap<String, u64> {
        let report = read(&["report", "--by", field, "--json"], &recording.file);
        let report: Value = serde_json::from_str(&report).expect("JSON");
        let rows = report["by"].as_array().expect("a list").clone();
        let row = |row: &Value| {
            (row["value"].as_str().expect("a text").to_owned(), row["weight"].as_u64().expect("a number"))
        };
        rows.iter().map(row).collect()
    };
    let expected = [("zero", 250), ("one", 250), ("two", 250), ("three", 250), ("(without the field)", 3)];
    assert_eq!(by("name"), expected.map(|(name, weight)| (name.to_owned(), weight)).into());
    let expected = [("app:tick", 1000), ("app:texts", 1), ("app:bare", 1), ("other:tick", 1)];
    assert_eq!(by("event"), expected.map(|(name, weight)| (name.to_owned(), weight)).into());
    let text = read(&["report", "--by", "name"], &recording.file);
    assert!(text.contains("VALUE") && text.contains("24.9%  three"), "{text}");
    let refused = run(Command::new(selfwind_tests::binary::selfwind())
        .args(["report", "--by", "color"])
        .arg(&recording.file));
    assert_ne!(refused.status, 0);
    assert!(refused.stderr.contains("half, minus, name"), "{}", refused.stderr);
}

#[test]
fn other_programs_get_the_fields() {
    let recording = record("tp:app:tick", &["count", "4"]);
    let scratch = Scratch::new();
    let out = scratch.join("fields.pb.gz");
    let exported = Command::new(selfwind_tests::binary::selfwind())
        .args(["export", "-o"])
        .arg(&out)
        .arg(&recording.file)
        .output()
        .expect("selfwind runs");
    assert!(exported.status.success());
    let unpacked = run(Command::new("gzip").arg("-dc").arg(&out).env("LC_ALL", "C"));
    for name in ["minus", "square", "half", "three", "app:tick"] {
        assert!(unpacked.stdout.contains(name), "{name} is not in the pprof file");
    }
}
