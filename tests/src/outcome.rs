//! Runs a program, and reports how it ended and what it printed.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Longer than any test program takes on a slow, shared machine; a program that takes longer is hung.
const PATIENCE: Duration = Duration::from_secs(240);

/// Runs that take longer are mentioned in the test's output.
const SLOW: Duration = Duration::from_secs(30);

/// The visible behaviour of one run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Exit status as a shell sees it: 128 + N for death by signal N.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Runs `command` to its end with empty input and collects its output; fails the test if it hangs.
///
/// The program runs in a process group of its own, so that a hung one is killed with its children.
pub fn run(command: &mut Command) -> Outcome {
    run_within(command, PATIENCE).unwrap_or_else(|said| panic!("{command:?} hung; {said:?}"))
}

/// Like [`run`], for programs that may never end: one that exceeds `limit` is killed, and its output so far is the
/// error.
pub fn run_within(command: &mut Command, limit: Duration) -> Result<Outcome, Outcome> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let group = Pid::from_raw(child.id() as i32);
    let stdout = drain(child.stdout.take().expect("piped"));
    let stderr = drain(child.stderr.take().expect("piped"));
    let begin = Instant::now();
    let ended = loop {
        if let Some(status) = child.try_wait().expect("our own child") {
            break Some(status);
        }
        if begin.elapsed() > limit {
            // The group may just have gone; then there is nothing to kill.
            let _ = killpg(group, Signal::SIGKILL);
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    if begin.elapsed() > SLOW {
        eprintln!("{command:?} took {:?}", begin.elapsed());
    }
    let outcome = Outcome {
        status: ended.map_or(-1, shell_status),
        stdout: stdout.join().expect("reader of standard output"),
        stderr: stderr.join().expect("reader of standard error"),
    };
    if ended.is_some() { Ok(outcome) } else { Err(outcome) }
}

/// The status a shell gives: 128 + N for death by signal N.
pub fn shell_status(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn drain(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // A broken pipe ends the output; what was read before counts.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
