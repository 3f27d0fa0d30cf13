//! Events of the kernel in every format: the kernel's frames on top of the program's, and each weight under the name of
//! what it counts.

mod export;

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use export::BASE;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use selfwind_profile::output::{Export, Format, Grouping, export};
use selfwind_profile::profile_file::{
    Event, KernelSample, KernelSymbol, NO_ANSWER, ProcessInfo, ProfileWriter, Sample, SessionInfo,
    ThreadInfo, WAKE_LATENCY,
};
use selfwind_profile::symbolize::SymbolSources;
use selfwind_tests::skip::skip;
use serde_json::Value;
use unwind::{FoundBy, Frame};

const FAULT: u64 = 0xffff_ffff_8100_1000;
const ENTRY: u64 = 0xffff_ffff_8100_2000;
const MODULE: u64 = 0xffff_ffff_c000_1000;

/// A profile of one process with one stack, at which these events happened: number, weight, kernel frames.
fn profile(test: &str, source: &str, period_ns: u64, events: &[(u8, u32, &[u64])]) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("export-kernel-{test}"));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    let path = directory.join("p.data");
    let session =
        SessionInfo { source: source.into(), command: vec!["job".into()], ..SessionInfo::default() };
    let info =
        ProcessInfo { pid: 100, period_ns, source: "perf".into(), exe: "/job".into(), ..Default::default() };
    let mut all = vec![
        Event::Session(session),
        Event::Process(info),
        Event::Thread(ThreadInfo { tid: 100, name: "job".into(), ..ThreadInfo::default() }),
    ];
    for (start, name, module) in
        [(FAULT, "asm_exc_page_fault", ""), (ENTRY, "do_syscall_64", ""), (MODULE, "ext4_read", "ext4")]
    {
        let (name, module) = (name.into(), module.into());
        all.push(Event::KernelSymbol(KernelSymbol { start, end: start + 0x100, name, module }));
    }
    let kernel: Vec<KernelSample> = events
        .iter()
        .zip(1000..)
        .map(|(&(event, weight, frames), ns)| KernelSample { ns, weight, event, frames: frames.to_vec() })
        .collect();
    let weight = kernel.iter().map(|kernel| kernel.weight).sum();
    let frames = vec![Frame::new(BASE + 16, FoundBy::Cfi, true).bits()];
    all.push(Event::Sample(Sample { tid: 100, ns: 1000, weight, frames, kernel, ..Sample::default() }));
    let mut writer = ProfileWriter::new(File::create(&path).unwrap()).unwrap();
    all.iter().for_each(|event| writer.push(event).unwrap());
    writer.finish().unwrap();
    path
}

fn exported(format: Format, path: &Path) -> Vec<u8> {
    let mut out = Vec::new();
    export(format, path, &mut out).unwrap();
    out
}

fn text(format: Format, path: &Path) -> String {
    String::from_utf8(exported(format, path)).unwrap()
}

fn json(format: Format, path: &Path) -> Value {
    serde_json::from_slice(&exported(format, path)).unwrap()
}

fn faults(test: &str) -> PathBuf {
    profile(
        test,
        "perf:page-faults,cs@10",
        0,
        &[
            (0, 1, &[FAULT + 4]),
            (0, 1, &[MODULE + 8, ENTRY + 4]),
            // For which the kernel had no room: no frames.
            (0, 5, &[]),
            (1, 2, &[ENTRY + 4]),
        ],
    )
}

fn waits(test: &str) -> PathBuf {
    profile(test, "offcpu", 1000, &[(0, 900, &[ENTRY + 4]), (0, 100, &[WAKE_LATENCY, ENTRY + 4])])
}

#[test]
fn texts() {
    let folded = text(Format::Folded, &faults("folded"));
    let expected = "\
[unknown] 5
[unknown];asm_exc_page_fault_[k] 1
[unknown];do_syscall_64_[k];ext4_read_[k] 1
";
    assert_eq!(folded, expected, "faults are not added to switches");
    let mut of_switches = Export::read(Format::Folded, &faults("folded"), &SymbolSources::none()).unwrap();
    assert_eq!(of_switches.left_out(), ["cs"]);
    of_switches.choose("cs").unwrap();
    let mut folded = Vec::new();
    of_switches.write(Grouping::None, &mut folded).unwrap();
    assert_eq!(String::from_utf8_lossy(&folded), "[unknown];do_syscall_64_[k] 2\n");
    let folded = text(Format::Folded, &waits("folded-waits"));
    assert_eq!(folded, "[unknown];do_syscall_64_[k] 900\n[unknown];do_syscall_64_[k];[wake latency] 100\n");
    let svg = text(Format::Flamegraph, &faults("svg"));
    for part in ["ext4_read [kernel] (1 page-faults", "7 page-faults", "blue: kernel"] {
        assert!(svg.contains(part), "{part}: {svg}");
    }
    let svg = text(Format::Flamegraph, &waits("svg-waits"));
    for part in ["[wake latency] (100 us", "1,000 us off the CPU"] {
        assert!(svg.contains(part), "{part}: {svg}");
    }
}

#[test]
fn json_lines() {
    let lines: Vec<Value> = text(Format::Jsonl, &faults("jsonl"))
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let weight = |event: &str| -> u64 {
        lines.iter().filter(|line| line["event"] == event).map(|line| line["weight"].as_u64().unwrap()).sum()
    };
    assert_eq!((weight("page-faults"), weight("cs"), lines.len()), (7, 2, 4));
    let deep = lines.iter().find(|line| line["frames"].as_array().unwrap().len() == 3).unwrap();
    let of = |at: usize, key: &str| deep["frames"][at][key].as_str().unwrap();
    assert_eq!((of(0, "function"), of(0, "module"), of(0, "found_by")), ("ext4_read", "[ext4]", "kernel"));
    assert_eq!((of(1, "function"), of(1, "module"), of(2, "found_by")), ("do_syscall_64", "[kernel]", "cfi"));
}

#[test]
fn parquet_rows() {
    let path = faults("parquet");
    let file = path.with_extension("parquet");
    fs::write(&file, exported(Format::Parquet, &path)).unwrap();
    let reader = SerializedFileReader::new(File::open(&file).unwrap()).unwrap();
    let (mut kernel, mut switches) = (0, 0);
    for row in reader.get_row_iter(None).unwrap() {
        let row = row.unwrap();
        let index_of = |name: &str| row.get_column_iter().position(|(column, _)| column == name).unwrap();
        let text = |name: &str| row.get_string(index_of(name)).unwrap().as_str();
        kernel += usize::from(text("found_by") == "kernel" && text("module").starts_with('['));
        if text("event") == "cs" {
            assert_eq!((text("unit"), row.get_long(index_of("period_ns")).unwrap()), ("samples", 0));
            switches += usize::from(row.get_long(index_of("depth")).unwrap() == 0);
        }
    }
    assert_eq!((kernel, switches), (4, 1));
}

/// The texts of a pprof file.
fn pprof(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&*exported(Format::Pprof, path)).read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn pprof_values_have_the_names_of_the_events() {
    let has = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    let several = pprof(&faults("pprof"));
    for text in ["page-faults", "cs", "count", "ext4_read", "[ext4]", "do_syscall_64", "[kernel]"] {
        assert!(has(&several, text), "{text} is missing");
    }
    assert!(!has(&several, "nanoseconds"), "no event is a time");
    let waits = pprof(&waits("pprof-waits"));
    for text in ["offcpu", "microseconds", "[wake latency]"] {
        assert!(has(&waits, text), "{text} is missing");
    }
    assert!(!has(&waits, "nanoseconds") && !has(&waits, "cpu\u{1}"), "waiting is no CPU time");
}

#[test]
fn firefox_has_a_track_for_each_event() {
    let document = json(Format::Firefox, &faults("firefox"));
    let threads = document["threads"].as_array().unwrap();
    let names: Vec<_> = threads.iter().map(|thread| thread["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["job (page-faults)", "job (cs)"]);
    for thread in threads {
        assert_eq!(thread["samples"]["weightType"], "samples");
        assert!(thread["samples"]["threadCPUDelta"].is_null(), "no event is CPU time");
    }
    let frames = &document["shared"]["frameTable"];
    let functions = &document["shared"]["funcTable"]["name"];
    let strings = document["shared"]["stringArray"].as_array().unwrap();
    let mut in_kernel = Vec::new();
    for (func, category) in
        frames["func"].as_array().unwrap().iter().zip(frames["category"].as_array().unwrap())
    {
        if document["meta"]["categories"][category.as_u64().unwrap() as usize]["name"] == "Kernel" {
            let name = functions[func.as_u64().unwrap() as usize].as_u64().unwrap();
            in_kernel.push(strings[name as usize].as_str().unwrap());
        }
    }
    in_kernel.sort_unstable();
    assert_eq!(in_kernel, ["asm_exc_page_fault", "do_syscall_64", "ext4_read"]);
    let document = json(Format::Firefox, &waits("firefox-waits"));
    let samples = &document["threads"][0]["samples"];
    assert_eq!((&samples["weightType"], &samples["weight"][0]), (&"tracing-ms".into(), &0.9.into()));
    assert!(samples["threadCPUDelta"].is_null(), "waiting is no CPU time");
}

#[test]
fn speedscope_has_a_profile_for_each_event() {
    let document = json(Format::Speedscope, &faults("speedscope"));
    let profiles = document["profiles"].as_array().unwrap();
    let names: Vec<_> = profiles.iter().map(|profile| profile["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["job-100/100 (page-faults)", "job-100/100 (cs)"]);
    assert_eq!((&profiles[0]["unit"], &profiles[0]["endValue"]), (&"none".into(), &7.into()));
    let frames = document["shared"]["frames"].as_array().unwrap();
    assert!(
        frames.iter().any(|frame| frame["name"] == "ext4_read" && frame["file"] == "[ext4]"),
        "{frames:?}"
    );
    let document = json(Format::Speedscope, &waits("speedscope-waits"));
    assert_eq!(document["profiles"][0]["unit"], "microseconds");
}

#[test]
fn perf_shows_kernel_frames_and_each_event() {
    let path = faults("perf");
    let file = path.with_extension("perf.data");
    fs::write(&file, exported(Format::Perf, &path)).unwrap();
    let script = ["script", "--no-inline", "-F", "event,period,ip", "-i"];
    let Ok(output) = Command::new("perf").args(script).arg(&file).output() else {
        return skip("cannot run perf (Debian: linux-perf)");
    };
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let samples: Vec<Vec<&str>> =
        told.split("\n\n").map(|sample| sample.split_whitespace().collect()).collect();
    let find = |period: &str, event: &str| -> Vec<Vec<&str>> {
        let wanted = samples.iter().filter(|sample| sample.starts_with(&[period, event]));
        wanted.map(|sample| sample[2..].to_vec()).collect()
    };
    let user = format!("{:x}", BASE + 16);
    let hex = |address: u64| format!("{address:x}");
    let [fault, module, entry] = [FAULT + 4, MODULE + 8, ENTRY + 4].map(hex);
    assert_eq!(find("1", "page-faults:"), [vec![&*fault, &*user], vec![&*module, &*entry, &*user]], "{told}");
    assert_eq!(find("5", "page-faults:"), [[&*user]], "{told}");
    assert_eq!(find("2", "cs:"), [[&*entry, &*user]], "{told}");
}

#[test]
fn who_did_not_answer_is_named() {
    let path = profile("silent", "perf", 1_000_000, &[(0, 1, &[ENTRY + 4])]);
    let mut events: Vec<Event> = selfwind_profile::profile_file::ProfileReader::open(&path)
        .unwrap()
        .map(|event| event.unwrap())
        .collect();
    for event in &mut events {
        if let Event::Sample(sample) = event {
            sample.end = NO_ANSWER;
        }
    }
    let mut writer = ProfileWriter::new(File::create(&path).unwrap()).unwrap();
    events.iter().for_each(|event| writer.push(event).unwrap());
    writer.finish().unwrap();
    let line: Value = serde_json::from_str(&text(Format::Jsonl, &path)).unwrap();
    assert_eq!(
        (&line["end"], &line["event"], &line["unit"]),
        (&"no-answer".into(), &"cpu".into(), &"periods".into())
    );
    assert!(text(Format::Folded, &path).starts_with("[truncated: no-answer];[unknown];do_syscall_64_[k] 1"));
}
