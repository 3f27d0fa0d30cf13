//! LTTng-UST and babeltrace2: a separate session daemon in a temporary home, the same events, in overwrite mode without
//! a reader (as a flight recorder), and once as a trace on disk for comparing readers.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running session daemon and the program with the tracepoints.
pub(crate) struct Lttng {
    home: PathBuf,
    program: PathBuf,
    daemon: Child,
}

impl Lttng {
    /// Starts it, or says what is missing.
    pub(crate) fn start(directory: &Path) -> Result<Self, String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/ring");
        let program = directory.join("lttng-program");
        let built = Command::new("cc")
            .args(["-O2", "-o"])
            .arg(&program)
            .arg(source.join("lttng.c"))
            .arg("-I")
            .arg(&source)
            .args(["-llttng-ust", "-ldl"])
            .output()
            .map_err(|error| format!("cc: {error}"))?;
        if !built.status.success() {
            return Err("liblttng-ust-dev is missing".into());
        }
        let home = directory.join("lttng-home");
        std::fs::create_dir_all(&home).map_err(|error| error.to_string())?;
        let daemon = Command::new("lttng-sessiond")
            .args(["--no-kernel", "--quiet"])
            .envs(Self::environment(&home))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("lttng-sessiond: {error}"))?;
        let lttng = Self { home, program, daemon };
        let begin = Instant::now();
        while !lttng.control(&["list"]) {
            if begin.elapsed() > Duration::from_secs(60) {
                return Err("the session daemon does not answer".into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(lttng)
    }

    /// For a separate daemon, also as root: the home determines its sockets.
    fn environment(home: &Path) -> [(&'static str, PathBuf); 3] {
        [
            ("LTTNG_HOME", home.to_owned()),
            ("HOME", home.to_owned()),
            ("LTTNG_UST_REGISTER_TIMEOUT", PathBuf::from("-1")),
        ]
    }

    fn control(&self, arguments: &[&str]) -> bool {
        let mut command = Command::new("lttng");
        command.args(arguments).envs(Self::environment(&self.home));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    /// A session as a flight recorder, or into a directory.
    pub(crate) fn session(&self, output: Option<&Path>) -> Result<(), String> {
        let create = match output {
            None => self.control(&["create", "bench", "--snapshot"]),
            Some(path) => self.control(&["create", "bench", "--output", path.to_str().unwrap_or("")]),
        };
        let mode = if output.is_some() { "--discard" } else { "--overwrite" };
        let sizes = ["--subbuf-size", "1M", "--num-subbuf", "4"];
        let channel = self.control(&[&["enable-channel", "-u", "c", mode][..], &sizes].concat());
        let event = self.control(&["enable-event", "-u", "ring_bench:*", "-c", "c"]);
        let start = self.control(&["start"]);
        (create && channel && event && start).then_some(()).ok_or("lttng refuses the session".into())
    }

    /// Ends the session.
    pub(crate) fn end(&self) {
        self.control(&["destroy", "bench"]);
    }

    /// Thread CPU ns per event: a number, 16 frames, 40 frames.
    pub(crate) fn write(&self, events: u64) -> Option<[f64; 3]> {
        let output = Command::new(&self.program)
            .arg(events.to_string())
            .envs(Self::environment(&self.home))
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        let mut numbers = text.split_whitespace().map_while(|number| number.parse().ok());
        Some([numbers.next()?, numbers.next()?, numbers.next()?])
    }
}

impl Drop for Lttng {
    fn drop(&mut self) {
        self.end();
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// Events per second of CPU time that babeltrace2 counts in a trace.
pub(crate) fn babeltrace(trace: &Path) -> Result<f64, String> {
    let before = children_cpu();
    let output = Command::new("babeltrace2")
        .args(["convert", "--component", "sink.utils.counter"])
        .arg(trace)
        .output()
        .map_err(|error| format!("babeltrace2: {error}"))?;
    let spent = children_cpu() - before;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // "   600000 Event messages", with or without separators.
    let line = text.lines().find(|line| line.contains("Event message"));
    let digits: String = line.unwrap_or("").chars().filter(char::is_ascii_digit).collect();
    let events: f64 = digits.parse().map_err(|_| format!("babeltrace2 counts nothing: {text}"))?;
    Ok(events / spent)
}

/// Seconds of CPU time of children that were waited for.
fn children_cpu() -> f64 {
    // SAFETY: an all-zero value is valid, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
