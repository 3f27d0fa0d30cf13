//! What it takes to look at large profiles: time, CPU time and greatest size of `stats`, `report`, `export` and `diff`
//! on ten million samples of either shape.
//!
//! usage: cargo bench -p selfwind --bench report [-- SAMPLES]

#[path = "../../tests/large_profile/mod.rs"]
mod large_profile;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use large_profile::{Shape, write};

/// What a run of the reader took.
struct Cost {
    wall: Duration,
    cpu: Duration,
    /// Greatest resident size, KiB.
    peak: u64,
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (wall, cpu) = (self.wall.as_secs_f64(), self.cpu.as_secs_f64());
        write!(f, "{wall:>8.1} {cpu:>8.1} {:>8}", self.peak >> 10)
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|text| text != "--bench");
    let samples: u64 = arguments.next().map_or(10_000_000, |text| text.parse().expect("a number of samples"));
    let program = Path::new(env!("CARGO_BIN_EXE_selfwind"));
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-report");
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    for shape in [Shape::Typical, Shape::Scattered] {
        let file = directory.join(format!("{shape:?}.data"));
        write(&file, program, samples, shape);
        let bytes = file.metadata().unwrap().len();
        println!("{shape:?}: {samples} samples, {} MB", bytes / 1_000_000);
        println!("{:<34} {:>8} {:>8} {:>8}", "", "wall s", "CPU s", "MiB");
        let commands: [(&str, &[&str]); 8] = [
            ("stats", &["stats"]),
            ("report, the first time", &["report"]),
            ("report", &["report"]),
            ("report --json", &["report", "--json", "--limit", "100"]),
            ("report --no-children", &["report", "--no-children"]),
            ("export -f folded", &["export", "-f", "folded", "-o", "/dev/null"]),
            ("export -f flamegraph", &["export", "-f", "flamegraph", "-o", "/dev/null"]),
            ("export -f pprof", &["export", "-f", "pprof", "-o", "/dev/null"]),
        ];
        for (name, arguments) in commands {
            println!("{name:<34} {}", run(program, arguments, &[&file], &directory));
        }
        println!("{:<34} {}", "diff, with itself", run(program, &["diff"], &[&file, &file], &directory));
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Runs the reader alone, so that its size is its own.
fn run(program: &Path, arguments: &[&str], files: &[&Path], cache: &Path) -> Cost {
    use nix::sys::resource::{UsageWho, getrusage};
    let cpu = || {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
        let micros = [usage.user_time(), usage.system_time()].map(|t| t.tv_sec() * 1_000_000 + t.tv_usec());
        Duration::from_micros(micros.iter().sum::<i64>() as u64)
    };
    let (before, started) = (cpu(), Instant::now());
    let mut reader = Command::new(program);
    reader
        .args(arguments)
        .args(files)
        .env("XDG_CACHE_HOME", cache)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let mut child = reader.spawn().unwrap();
    let peak = peak(child.id());
    assert!(child.wait().unwrap().success());
    Cost { wall: started.elapsed(), cpu: cpu() - before, peak }
}

/// Watches a process until it has ended; gives its greatest size in KiB.
fn peak(pid: u32) -> u64 {
    let mut peak = 0;
    while let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) {
        let Some(line) = status.lines().find(|line| line.starts_with("VmHWM:")) else { break };
        peak = line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(peak);
        std::thread::sleep(Duration::from_millis(5));
    }
    peak
}
