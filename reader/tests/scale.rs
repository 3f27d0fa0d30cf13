//! Profiles that are far larger than what is shown of them: memory is bounded by distinct stacks, not by samples.
//!
//! The long form has ten million samples.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use object::{Object, ObjectSection};
use selfwind::profile_file::{
    End, Event, ModuleInfo, ProcessInfo, ProfileWriter, Sample, SessionInfo, ThreadInfo,
};
use unwind::{FoundBy, Frame};

const BASE: u64 = 0x5555_0000_0000;
const PROCESSES: u32 = 8;
const THREADS: u32 = 8;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

/// The program whose functions are hit: the one that is built for tests anyway.
fn program() -> PathBuf {
    std::env::var_os("SELFWIND_BIN").map_or_else(|| env!("CARGO_BIN_EXE_selfwind").into(), PathBuf::from)
}

/// Stacks of a call tree: they share their outer frames, as real ones do.
fn stacks(count: u64, text: std::ops::Range<u64>, random: &mut Random) -> Vec<Vec<u64>> {
    let mut address = |exact| {
        let place = text.start + random.below((text.end - text.start) / 256) * 256 + random.below(16);
        Frame::new(BASE + place, FoundBy::Cfi, exact).bits()
    };
    let mut chain: Vec<u64> = (0..40).map(|_| address(false)).collect();
    let mut stacks = Vec::new();
    for number in 0..count {
        // Leaf first: the inner frames change often, the outer ones seldom.
        for (depth, frame) in chain.iter_mut().enumerate() {
            if number % (1 << depth.min(20)) == 0 {
                *frame = address(depth == 0);
            }
        }
        let depth = 20 + (number % 20) as usize;
        stacks.push(chain[..depth].to_vec());
    }
    stacks
}

fn write(path: &Path, samples: u64) {
    let program = program();
    let bytes = fs::read(&program).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let text = file.section_by_name(".text").unwrap();
    let mut random = Random(0x5eed_1234_5678_9abc);
    // Many for a program, few beside the samples.
    let distinct = samples / 100;
    let stacks = stacks(distinct, text.address()..text.address() + text.size(), &mut random);
    let mut writer = ProfileWriter::new(BufWriter::new(File::create(path).unwrap())).unwrap();
    writer.push(&Event::Session(SessionInfo { frequency: 99, ..SessionInfo::default() })).unwrap();
    let end = BASE + text.address() + text.size();
    for process in 0..PROCESSES {
        let info =
            ProcessInfo { id: process, pid: 1000 + process, exe: program.clone(), ..ProcessInfo::default() };
        writer.push(&Event::Process(info)).unwrap();
        let build_id = file.build_id().unwrap().unwrap_or_default().to_vec();
        let (start, bias, path) = (BASE, BASE, program.clone());
        let module =
            ModuleInfo { process, module: 1, start, end, bias, path, build_id, ..ModuleInfo::default() };
        writer.push(&Event::Module(module)).unwrap();
        for seq in 0..THREADS {
            let tid = 1000 + process + 100 * seq;
            writer.push(&Event::Thread(ThreadInfo { process, tid, seq, ..ThreadInfo::default() })).unwrap();
        }
    }
    for number in 0..samples {
        let (process, seq) = (random.below(PROCESSES.into()) as u32, random.below(THREADS.into()) as u32);
        // Most samples are in few stacks.
        let limit = if random.below(4) == 0 { distinct } else { distinct / 50 };
        let frames = stacks[random.below(limit) as usize].clone();
        let tid = 1000 + process + 100 * seq;
        let (ns, weight) = (number * 1000, 1);
        let sample = Sample { process, tid, thread_seq: seq, ns, weight, frames, ..Sample::default() };
        writer.push(&Event::Sample(sample)).unwrap();
    }
    writer.push(&Event::End(End { ns: samples * 1000, wall_ns: samples * 1000, status: Some(0) })).unwrap();
    writer.finish().unwrap();
}

/// Runs the reader; gives the greatest resident size of all runs in KiB, the CPU time of this one, and its output.
fn measured(arguments: &[&str], file: &Path, cache: &Path) -> (i64, Duration, Vec<u8>) {
    use nix::sys::resource::{UsageWho, getrusage};
    let cpu = || {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
        let micros = [usage.user_time(), usage.system_time()].map(|t| t.tv_sec() * 1_000_000 + t.tv_usec());
        Duration::from_micros(micros.iter().sum::<i64>() as u64)
    };
    let before = cpu();
    let mut reader = Command::new(program());
    reader.args(arguments).arg(file).env("XDG_CACHE_HOME", cache).stdin(Stdio::null());
    let output = reader.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss(), cpu() - before, output.stdout)
}

#[test]
fn memory_is_bounded_by_stacks() {
    let long = std::env::var_os("SELFWIND_LONG").is_some();
    let samples = if long { 10_000_000 } else { 100_000 };
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scale");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    let file = directory.join("p.data");
    write(&file, samples);
    println!("{} samples, {} MiB", samples, file.metadata().unwrap().len() >> 20);
    for what in ["first", "again"] {
        let started = Instant::now();
        let (peak, cpu, text) = measured(&["report", "--json", "--limit", "5"], &file, &directory);
        println!("{what}: {:.1?}, CPU {cpu:.1?}, greatest size so far {} MiB", started.elapsed(), peak >> 10);
        let report: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!((report["samples"].as_u64(), report["weight"].as_u64()), (Some(samples), Some(samples)));
        // Eight processes have one binary, which is read once; the second time its names are known.
        let binaries = &report["binaries"];
        let read = u64::from(what == "first");
        assert_eq!((binaries["hit"].as_u64(), binaries["read"].as_u64()), (Some(1), Some(read)));
        // The debug build of the reader, which is symbolized, has its DWARF in memory too.
        assert!(peak < 1 << 20, "{what}: {peak} KiB for {samples} samples");
    }
    fs::remove_dir_all(&directory).unwrap();
}
