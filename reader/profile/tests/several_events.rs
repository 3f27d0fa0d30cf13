//! A recording of several events: each has its own weights in every view, and no two are ever added up.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use selfwind_profile::output::{Export, Format, Grouping};
use selfwind_profile::profile;
use selfwind_profile::profile_file::{
    Event, LiveBlocks, ProcessInfo, ProfileReader, ProfileWriter, Sample, SessionInfo, ThreadInfo,
};
use selfwind_profile::stats::{Stats, Tally};
use selfwind_profile::symbolize::SymbolSources;
use serde_json::Value;
use shm_format::AllocationNonce;

const TIMER: u8 = 2;
const ALLOCATION: u8 = 4;

/// Two ticks of three periods, and blocks of 64 and 100 bytes, of which the second is live.
fn recorded(test: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("several-events-{test}"));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    let path = directory.join("p.data");
    let session = SessionInfo {
        source: "cpu,alloc:all".into(),
        frequency: 100,
        command: vec!["job".into()],
        ..SessionInfo::default()
    };
    let info = ProcessInfo {
        pid: 100,
        period_ns: 10_000_000,
        source: "cpu".into(),
        exe: "/job".into(),
        ..ProcessInfo::default()
    };
    let sample = |source, weight, nonce, ns| {
        Event::Sample(Sample { tid: 100, ns, weight, source, nonce, ..Sample::default() })
    };
    let block = |size, serial| sample(ALLOCATION, 1, AllocationNonce::new(size, serial).0, 2000 + serial);
    let live = AllocationNonce::new(100, 2).id(0).0;
    let events = [
        Event::Session(session),
        Event::Process(info),
        Event::Thread(ThreadInfo { tid: 100, name: "job".into(), ..ThreadInfo::default() }),
        sample(TIMER, 1, 0, 1000),
        block(64, 1),
        block(100, 2),
        sample(TIMER, 2, 0, 3000),
        Event::LiveBlocks(LiveBlocks { process: 0, blocks: vec![live] }),
    ];
    let mut writer = ProfileWriter::new(File::create(&path).unwrap()).unwrap();
    events.iter().for_each(|event| writer.push(event).unwrap());
    writer.finish().unwrap();
    path
}

/// What all events weigh.
fn truth() -> BTreeMap<&'static str, u64> {
    BTreeMap::from([
        ("cpu", 3),
        ("alloc_objects", 2),
        ("alloc_space", 164),
        ("inuse_objects", 1),
        ("inuse_space", 100),
    ])
}

fn stats(path: &Path) -> Stats {
    let mut tally = Tally::default();
    for event in ProfileReader::open(path).unwrap().without_samples() {
        tally.add(&event.unwrap());
    }
    let samples = ProfileReader::open(path).unwrap();
    samples.for_each_sample(|sample_ref| tally.sample(sample_ref)).unwrap();
    tally.finish(1)
}

fn exported(path: &Path, format: Format, event: Option<&str>) -> Vec<u8> {
    let mut export = Export::read(format, path, &SymbolSources::none()).unwrap();
    event.into_iter().for_each(|event| export.choose(event).unwrap());
    let mut out = Vec::new();
    export.write(Grouping::None, &mut out).unwrap();
    out
}

fn json(path: &Path, format: Format) -> Value {
    serde_json::from_slice(&exported(path, format, None)).unwrap()
}

#[test]
fn the_numbers_are_by_event() {
    let stats = stats(&recorded("stats"));
    let by_event: BTreeMap<&str, u64> =
        stats.detail.weights.iter().map(|weighed| (weighed.event.as_str(), weighed.weight)).collect();
    assert_eq!(by_event, truth());
    assert_eq!((stats.samples, stats.weight, stats.detail.event.as_str()), (4, 3, "cpu"));
    assert_eq!(stats.detail.cpu_ns, 30_000_000, "blocks are no CPU time");
    assert_eq!(stats.detail.sources, BTreeMap::from([("alloc".into(), 2), ("cpu".into(), 2)]));
    let text = stats.text(None, 0);
    assert!(text.contains("event        alloc_space: 2 samples, 164 bytes, alloc_space"), "{text}");
}

#[test]
fn a_view_is_of_one_event() {
    let path = recorded("view");
    for (event, weight) in truth() {
        let mut profile = profile::load(&path, &SymbolSources::none()).unwrap();
        profile.choose(profile.event(event).unwrap());
        assert_eq!(profile.totals.weight, weight, "{event}");
        let others: Vec<&str> = profile.other_events().map(|other| other.event.as_str()).collect();
        assert!(others.len() == 4 && !others.contains(&event), "{event}: {others:?}");
        let folded = exported(&path, Format::Folded, Some(event));
        assert_eq!(String::from_utf8_lossy(&folded), format!("[no frames] {weight}\n"), "{event}");
    }
    let folded = exported(&path, Format::Folded, None);
    assert_eq!(String::from_utf8_lossy(&folded), "[no frames] 3\n", "the clock's");
    let profile = profile::load(&path, &SymbolSources::none()).unwrap();
    let error = profile.event("lock").unwrap_err().to_string();
    assert!(error.contains("it has cpu, alloc_objects"), "{error}");
}

#[test]
fn formats_that_tell_events_apart_have_all() {
    let path = recorded("formats");
    let lines = String::from_utf8(exported(&path, Format::Jsonl, None)).unwrap();
    let mut found = BTreeMap::new();
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        *found.entry(line["event"].as_str().unwrap().to_owned()).or_insert(0) +=
            line["weight"].as_u64().unwrap();
    }
    let expected: BTreeMap<String, u64> = truth().into_iter().map(|(name, w)| (name.into(), w)).collect();
    assert_eq!(found, expected);
    let tracks = |document: &Value, list: &str| -> Vec<String> {
        let tracks = document[list].as_array().unwrap();
        tracks.iter().map(|track| track["name"].as_str().unwrap().to_owned()).collect()
    };
    let firefox = json(&path, Format::Firefox);
    assert_eq!(tracks(&firefox, "threads").len(), 5);
    let units = firefox["threads"].as_array().unwrap().iter().map(|thread| &thread["samples"]["weightType"]);
    let mut units: Vec<&str> = units.map(|unit| unit.as_str().unwrap()).collect();
    units.sort_unstable();
    assert_eq!(units, ["bytes", "bytes", "samples", "samples", "samples"]);
    let speedscope = json(&path, Format::Speedscope);
    assert_eq!(tracks(&speedscope, "profiles")[0], "job-100/100 (cpu)");
    assert_eq!(speedscope["activeProfileIndex"], 0, "the clock's, though bytes are more");
}
