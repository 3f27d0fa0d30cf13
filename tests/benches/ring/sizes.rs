//! Bytes per sample for CPython's stacks: selfwind's ring compared with the files of `perf record`.

use std::path::Path;
use std::process::Command;

use selfwind_tests::binary::selfwind;

const SECONDS: &str = "3";
const FREQUENCY: &str = "997";

/// Records the same program by each and prints what a sample takes.
pub(crate) fn print(directory: &Path) {
    let work = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/ring/work.py");
    println!("\nbytes per sample of CPython");
    let file = directory.join("selfwind.data");
    let recorded = Command::new(selfwind())
        .args(["record", "-q", "-F", FREQUENCY, "-o"])
        .arg(&file)
        .args(["--", "python3"])
        .arg(&work)
        .arg(SECONDS)
        .status();
    match recorded {
        Ok(status) if status.success() => {
            let stats = selfwind_tests::recording::stats(&file);
            let detail = &stats.0["detail"];
            let bytes = detail["ring_bytes_per_sample"].as_f64().unwrap_or(f64::NAN);
            let frames = detail["frames_per_sample"].as_f64().unwrap_or(f64::NAN);
            println!("{:<44}{bytes:>10.1}   ({frames:.1} frames)", "selfwind, in the ring");
        }
        other => println!("selfwind: {other:?}"),
    }
    for (name, graph) in [("perf record -g", "fp"), ("perf record --call-graph dwarf", "dwarf")] {
        match perf(directory, &work, graph) {
            Ok(bytes) => println!("{name:<44}{bytes:>10.1}"),
            Err(reason) => println!("{name:<44}         - ({reason})"),
        }
    }
}

fn perf(directory: &Path, work: &Path, graph: &str) -> Result<f64, String> {
    let file = directory.join(format!("perf-{graph}.data"));
    let output = Command::new("perf")
        .args(["record", "-q", "-e", "cpu-clock:u", "-F", FREQUENCY, "--call-graph", graph, "-o"])
        .arg(&file)
        .args(["--", "python3"])
        .arg(work)
        .arg(SECONDS)
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(said.lines().next().unwrap_or("it fails").to_owned());
    }
    let script = Command::new("perf").args(["script", "-F", "tid", "-G", "-i"]).arg(&file).output();
    let script = script.map_err(|error| error.to_string())?;
    let samples =
        String::from_utf8_lossy(&script.stdout).lines().filter(|line| !line.trim().is_empty()).count();
    let bytes = std::fs::metadata(&file).map_err(|error| error.to_string())?.len();
    Ok(bytes as f64 / samples as f64)
}
