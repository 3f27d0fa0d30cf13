//! Ways to profile a program: the command prefix, and the results.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use selfwind_tests::binary::selfwind;
use selfwind_tests::recording::stats;

/// One way.
#[derive(Clone, Debug)]
pub(crate) enum Method {
    /// The program alone: shows how much equal runs differ.
    Nothing,
    /// `selfwind record` at a frequency.
    Selfwind(u32),
    /// `perf record` at a frequency, with frame pointers or copied stacks.
    Perf(u32, &'static str),
    /// gperftools' libprofiler.
    Gperftools(u32, PathBuf),
}

/// What a profile holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Yield {
    /// Samples delivered.
    pub(crate) samples: f64,
    /// Periods they stand for.
    pub(crate) weight: f64,
    /// Bytes of the file.
    pub(crate) bytes: f64,
}

impl Method {
    /// Its name in the table.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Nothing => "nothing".into(),
            Self::Selfwind(hz) => format!("selfwind {hz}"),
            Self::Perf(hz, how) => format!("perf {how} {hz}"),
            Self::Gperftools(hz, _) => format!("gperftools {hz}"),
        }
    }

    /// The requested samples per second.
    pub(crate) fn frequency(&self) -> Option<u32> {
        match self {
            Self::Nothing => None,
            Self::Selfwind(hz) | Self::Perf(hz, _) | Self::Gperftools(hz, _) => Some(*hz),
        }
    }

    /// The words before the program's command; the profile goes to `file`.
    pub(crate) fn prefix(&self, file: &Path) -> String {
        let file = file.display();
        match self {
            Self::Nothing => String::new(),
            Self::Selfwind(hz) => format!("{} record -q -F {hz} -o {file} --", selfwind().display()),
            Self::Perf(hz, how) => format!("perf record -q -F {hz} --call-graph {how} -o {file} --"),
            Self::Gperftools(hz, library) => {
                format!("env LD_PRELOAD={} CPUPROFILE={file} CPUPROFILE_FREQUENCY={hz}", library.display())
            }
        }
    }

    /// What the profile in `file` holds; `said` is the standard error of the run.
    pub(crate) fn harvest(&self, file: &Path, said: &str) -> Yield {
        let bytes = fs::metadata(file).map_or(0, |metadata| metadata.len()) as f64;
        let (samples, weight) = match self {
            Self::Nothing => (0.0, 0.0),
            Self::Selfwind(_) => {
                let stats = stats(file);
                (stats.number("samples") as f64, stats.number("weight") as f64)
            }
            Self::Perf(..) => {
                let count = perf_samples(file);
                (count, count)
            }
            Self::Gperftools(..) => {
                // PROFILE: interrupts/evictions/bytes = 170/32/15800
                let count = said
                    .lines()
                    .filter_map(|line| {
                        line.strip_prefix("PROFILE: interrupts/evictions/bytes = ")?
                            .split('/')
                            .next()?
                            .parse::<f64>()
                            .ok()
                    })
                    .sum();
                (count, count)
            }
        };
        Yield { samples, weight, bytes }
    }
}

fn perf_samples(file: &Path) -> f64 {
    let output = Command::new("perf").args(["report", "--stats", "-i"]).arg(file).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let count = |line: &str| line.split_once("SAMPLE events:")?.1.split_whitespace().next()?.parse().ok();
    text.lines().find_map(count).unwrap_or(0.0)
}

/// Where libprofiler is, if it is installed.
pub(crate) fn libprofiler() -> Option<PathBuf> {
    let directory = Path::new("/usr/lib/x86_64-linux-gnu");
    ["libprofiler.so", "libprofiler.so.0"].iter().map(|name| directory.join(name)).find(|path| path.exists())
}
