//! A profile with everything that a conversion can get wrong, and what it must come to.

// Each test file takes what it needs.
#![allow(dead_code)]

pub(crate) mod consumers;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSymbol};
use selfwind_profile::output::{Format, Grouping, export, export_grouped};
use selfwind_profile::profile_file::{
    Cause, Counters, End, Event, ModuleInfo, ProcessEnd, ProcessInfo, ProfileWriter, Sample, SessionInfo,
    ThreadInfo,
};
use selfwind_profile::symbolize::SymbolSources;
use unwind::{FoundBy, Frame};

/// Where the program is mapped.
pub(crate) const BASE: u64 = 0x5555_0000_0000;
/// Nanoseconds per timer period.
pub(crate) const PERIOD: u64 = 10_000_000;
/// When the first sample was taken; the others follow, a nanosecond apart.
pub(crate) const FIRST_SAMPLE: u64 = 50;
pub(crate) const STARTED: u64 = 1_700_000_000_123_456_789;

/// Weight by `NAME-PID/TID;root;...;leaf`.
pub(crate) type Folded = BTreeMap<String, u64>;

/// A profile on disk.
pub(crate) struct Made {
    pub(crate) path: PathBuf,
    /// What the folded export says.
    pub(crate) folded: Folded,
    pub(crate) weight: u64,
}

impl Made {
    /// The profile in another format. Twice: equal profiles give equal bytes.
    pub(crate) fn export(&self, format: Format) -> Vec<u8> {
        let [first, second] = [(); 2].map(|()| {
            let mut out = Vec::new();
            let totals = export(format, &self.path, &mut out).unwrap();
            assert_eq!(totals.weight, self.weight);
            out
        });
        assert!(first == second, "{format:?}: the same profile gave different bytes");
        first
    }
}

/// An element of a folded stack.
pub(crate) fn element(name: &str) -> String {
    name.replace(';', ":")
}

/// Writes a profile of a program whose functions are inlined into each other.
pub(crate) fn make(test: &str) -> Made {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("export-{test}"));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    let program = compile(&directory);
    let path = directory.join("p.data");
    write(&path, &events(&program));
    let mut folded = Vec::new();
    let sources = SymbolSources::none();
    let totals = export_grouped(Format::Folded, Grouping::Thread, &path, &sources, &mut folded).unwrap();
    let mut map = Folded::new();
    for line in String::from_utf8(folded).unwrap().lines() {
        let (stack, weight) = line.rsplit_once(' ').unwrap();
        // Without a frame, folded stacks end at the thread.
        let bare = if stack.contains(';') { "" } else { ";[no frames]" };
        *map.entry(format!("{stack}{bare}")).or_default() += weight.parse::<u64>().unwrap();
    }
    assert_eq!(map.values().sum::<u64>(), totals.weight);
    assert!(totals.truncated > 0 && map.len() > 10, "{map:?}");
    Made { path, folded: map, weight: totals.weight }
}

/// A profile without a single sample.
pub(crate) fn make_empty(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("export-{test}-empty.data"));
    write(&path, &[Event::Session(SessionInfo::default())]);
    path
}

fn write(path: &Path, events: &[Event]) {
    let mut writer = ProfileWriter::new(File::create(path).unwrap()).unwrap();
    events.iter().for_each(|event| writer.push(event).unwrap());
    writer.finish().unwrap();
}

fn compile(directory: &Path) -> PathBuf {
    let (source, program) = (directory.join("mixer.c"), directory.join("mixer"));
    fs::write(&source, include_str!("../symbolize/mixer.c")).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-g", "-O2", "-Wl,--build-id", "-o"]).arg(&program).arg(&source);
    let output = compiler.output().expect("a C compiler is needed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

fn sample(process: u32, tid: u32, weight: u32, end: unwind::End, frames: Vec<u64>) -> Event {
    let thread_seq = tid % 10;
    Event::Sample(Sample {
        process,
        tid,
        thread_seq,
        ns: 50,
        weight,
        end: end as u8,
        frames,
        ..Default::default()
    })
}

fn process(id: u32, pid: u32, period_ns: u64, program: &Path, build_id: &[u8]) -> [Event; 2] {
    let exe = program.to_owned();
    let module = ModuleInfo {
        process: id,
        module: 1,
        start: BASE,
        end: BASE + 0x10_0000,
        bias: BASE,
        path: exe.clone(),
        build_id: build_id.to_vec(),
        ..ModuleInfo::default()
    };
    [Event::Process(ProcessInfo { id, pid, period_ns, exe, ..Default::default() }), Event::Module(module)]
}

/// Two images of one process and a child of it, three threads, stacks whole, cut and empty, and losses.
fn events(program: &Path) -> Vec<Event> {
    let bytes = fs::read(program).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let build_id = file.build_id().unwrap().unwrap();
    let find = |name: &str| {
        let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name)).unwrap();
        (symbol.address(), symbol.size())
    };
    let (main, _) = find("main");
    let (checksum, size) = find("checksum");
    let caller = Frame::new(BASE + main + 5, FoundBy::Cfi, false).bits();
    let jit = Frame::new(0x7000_1234_5678, FoundBy::Guess, true).bits();
    let mut events = vec![Event::Session(SessionInfo {
        version: "9.9.9".into(),
        command: vec!["mixer".into(), "a \"b\"\n".into()],
        started_realtime_ns: STARTED,
        frequency: 200,
        source: "cpu".into(),
        ..SessionInfo::default()
    })];
    events.extend(process(0, 100, PERIOD, program, build_id));
    events.extend(process(1, 100, PERIOD, program, build_id));
    // A process that did not say its period: that of the session counts.
    events.extend(process(2, 102, 0, program, build_id));
    for (process, tid, name) in [(0, 100, "main"), (0, 101, "worker; 1"), (1, 100, ""), (2, 102, "child")] {
        let name = name.into();
        events.push(Event::Thread(ThreadInfo { process, tid, seq: tid % 10, name, start_ns: 1 }));
    }
    // Every instruction of a function with inlined ones, so that all depths are met.
    for (step, address) in (checksum..checksum + size).enumerate() {
        let leaf = Frame::new(BASE + address, FoundBy::Cfi, true).bits();
        events.push(sample(
            0,
            100 + (step as u32 & 1),
            1 + step as u32 % 3,
            unwind::End::Root,
            vec![leaf, caller],
        ));
    }
    let leaf = Frame::new(BASE + checksum, FoundBy::Cfi, true).bits();
    events.push(sample(0, 101, 7, unwind::End::NoCfi, vec![leaf, caller]));
    events.push(sample(0, 101, 2, unwind::End::DepthLimit, vec![jit, leaf, caller]));
    events.push(sample(1, 100, 3, unwind::End::Root, vec![jit]));
    events.push(sample(1, 100, 4, unwind::End::Root, vec![]));
    events.push(sample(2, 102, 1, unwind::End::NoModule, vec![]));
    events.push(sample(2, 102, 5, unwind::End::Root, vec![leaf, caller]));
    let lost = vec![Cause { name: "pool_full".into(), count: 6, weight: 11 }];
    let counters = Counters { fired: 6, lost, ..Counters::default() };
    // One after the other, and told out of order.
    let samples = events.iter_mut().filter_map(|event| match event {
        Event::Sample(sample) => Some(sample),
        _ => None,
    });
    samples.enumerate().for_each(|(step, sample)| sample.ns = FIRST_SAMPLE + (step as u64 ^ 1));
    events.push(Event::ProcessEnd(ProcessEnd { process: 2, ns: 90, counters, ..ProcessEnd::default() }));
    events.push(Event::End(End { ns: 99, wall_ns: 99, status: Some(0) }));
    events
}
