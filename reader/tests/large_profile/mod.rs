//! Profiles far larger than what is shown of them, written by the real writer: walks through a call graph laid over
//! the functions of a real program, so that stacks repeat and share their outer frames as those of programs do.
//!
//! How much they repeat was measured on recordings of single programs at 4999 Hz, as frame words:
//!
//! | | samples | distinct stacks | frames that they do not share | mean depth |
//! |---|---|---|---|---|
//! | python3: parsing, compiling, regular expressions, JSON | 16,000 | 10,240 | 42,034 | 25.6 |
//! | cc1plus: a file of templates, -O2 -g | 16,000 | 13,653 | 147,687 | 42.6 |
//! | the same, longer | 126,935 | 82,909 | 1,276,007 | 55.0 |
//! | [`Shape::Typical`] | 16,000 | 10,073 | 67,026 | 25.9 |
//! | the same, longer | 1,000,000 | 307,930 | 2,006,726 | 25.9 |
//! | [`Shape::Scattered`] | 1,000,000 | 197,124 | 772,309 | 20.0 |
//!
//! So the typical shape is as hard as an interpreter's, and easier than that of a compiler that never does the same
//! thing twice.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use object::{Object, ObjectSection};
use selfwind_profile::profile_file::{
    End, Event, ModuleInfo, ProcessInfo, ProfileWriter, Sample, SessionInfo, ThreadInfo,
};
use unwind::{FoundBy, Frame};

const BASE: u64 = 0x5555_0000_0000;
const PROCESSES: u64 = 8;
const THREADS: u64 = 8;
/// Functions of the call graph.
const FUNCTIONS: u64 = 4000;
/// Frames that all stacks of a thread have: its start, its loop.
const OUTER: usize = 14;
const DEEPEST: usize = 70;

/// How much stacks repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// As in programs that have something to do: deep, and the first calls of a function are the most likely.
    Typical,
    /// Less deep, and every call is as likely as any other.
    Scattered,
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

fn mixed(a: u64, b: u64) -> u64 {
    let product =
        u128::from(a ^ 0x5eed_1234_5678_9abc) * u128::from(b.wrapping_mul(2) ^ 0x9e37_79b9_7f4a_7c15);
    product as u64 ^ (product >> 64) as u64
}

/// A call graph.
struct Graph {
    text: u64,
    /// Bytes of a function.
    size: u64,
    shape: Shape,
}

impl Graph {
    fn address(&self, function: u64, offset: u64) -> u64 {
        BASE + self.text + function * self.size + offset % self.size
    }

    /// One of the calls in a function: where it returns to, and the function called.
    fn call(&self, function: u64, random: &mut Random) -> (u64, u64) {
        let sites = 1 + mixed(function, 1) % 3;
        let site = match self.shape {
            Shape::Typical => {
                // The first calls of a function are the most likely.
                [(); 3].map(|()| random.below(sites)).into_iter().min().unwrap_or(0)
            }
            Shape::Scattered => random.below(sites),
        };
        (self.address(function, 9 + 12 * site), mixed(function, 2 + site) % FUNCTIONS)
    }

    /// A stack of a thread that began in `function`, leaf first.
    fn stack(&self, mut function: u64, random: &mut Random, frames: &mut Vec<u64>) {
        frames.clear();
        let further = if self.shape == Shape::Typical { 12 } else { 6 };
        while frames.len() < DEEPEST && (frames.len() < OUTER || random.below(further) > 0) {
            let (address, callee) = if frames.len() < OUTER {
                (self.address(function, 9), mixed(function, 2) % FUNCTIONS)
            } else {
                self.call(function, random)
            };
            frames.push(Frame::new(address, FoundBy::Cfi, false).bits());
            function = callee;
        }
        let instruction = match self.shape {
            Shape::Typical => random.below(6).min(random.below(6)),
            Shape::Scattered => random.below(4),
        };
        frames.push(Frame::new(self.address(function, 4 * instruction), FoundBy::Cfi, true).bits());
        frames.reverse();
    }
}

/// Writes a profile of `program` with so many samples.
pub(crate) fn write(path: &Path, program: &Path, samples: u64, shape: Shape) {
    let bytes = std::fs::read(program).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let text = file.section_by_name(".text").unwrap();
    let graph = Graph { text: text.address(), size: text.size() / FUNCTIONS, shape };
    let build_id = file.build_id().unwrap().unwrap_or_default();
    let mut writer = ProfileWriter::new(BufWriter::new(File::create(path).unwrap())).unwrap();
    let mut put = |event: Event| writer.push(&event).unwrap();
    put(Event::Session(SessionInfo { frequency: 99, ..SessionInfo::default() }));
    let end = BASE + text.address() + text.size();
    for process in 0..PROCESSES as u32 {
        let pid = 1000 + process;
        let exe = program.to_owned();
        put(Event::Process(ProcessInfo {
            id: process,
            pid,
            exe,
            source: "cpu".into(),
            ..ProcessInfo::default()
        }));
        let (start, bias, path, build_id) = (BASE, BASE, program.to_owned(), build_id.to_vec());
        put(Event::Module(ModuleInfo {
            process,
            module: 1,
            start,
            end,
            bias,
            path,
            build_id,
            ..ModuleInfo::default()
        }));
        for seq in 0..THREADS as u32 {
            let tid = pid + 100 * seq;
            put(Event::Thread(ThreadInfo { process, tid, seq, ..ThreadInfo::default() }));
        }
    }
    let mut random = Random(0x5eed_1234_5678_9abc);
    let mut frames = Vec::new();
    for number in 0..samples {
        let (process, seq) = (random.below(PROCESSES) as u32, random.below(THREADS) as u32);
        // Half the threads of a process do the same work.
        graph.stack(u64::from(seq / 4), &mut random, &mut frames);
        let (tid, ns, frames) = (1000 + process + 100 * seq, number * 1000, frames.clone());
        put(Event::Sample(Sample {
            process,
            tid,
            thread_seq: seq,
            ns,
            weight: 1,
            frames,
            ..Sample::default()
        }));
    }
    put(Event::End(End { ns: samples * 1000, wall_ns: samples * 1000, status: Some(0) }));
    writer.finish().unwrap();
}
