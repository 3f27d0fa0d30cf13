//! The two parts of a recording's cost, each measured in isolation: start and end, with a program that does nothing;
//! and one second, with a program that sleeps. In addition, the cost of the samples themselves.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use selfwind_tests::recording::stats;

use super::method::Method;
use super::{median, run};

/// Pairs for a program that does nothing.
const SHORT_ROUNDS: usize = 41;
/// Pairs for one that sleeps.
const LONG_ROUNDS: usize = 9;
/// Duration of its sleep, in seconds.
const ASLEEP: u32 = 4;

/// Additional milliseconds of CPU time of `line` with `method`: the median of alternating pairs.
fn added(method: &Method, line: &str, rounds: usize, directory: &Path) -> f64 {
    let once = |method: &Method| {
        let file = directory.join("profile");
        let _ = std::fs::remove_file(&file);
        let mut command = Command::new("sh");
        command.args(["-c", line]).env("RUN", method.prefix(&file));
        1e3 * run(&mut command).0
    };
    let pair = |round: usize| {
        let alone = round.is_multiple_of(2).then(|| once(&Method::Nothing));
        let with = once(method);
        with - alone.unwrap_or_else(|| once(&Method::Nothing))
    };
    median((0..rounds).map(pair).collect())
}

/// Prints the parts of all `methods`.
pub(crate) fn print(methods: &[Method], directory: &Path) {
    println!("\nadded milliseconds of CPU time, medians of {SHORT_ROUNDS} and {LONG_ROUNDS} pairs");
    println!("{:16} {:>14} {:>16}", "", "start and end", "a second asleep");
    for method in methods {
        let fixed = added(method, "$RUN /bin/true", SHORT_ROUNDS, directory);
        let long = added(method, &format!("$RUN sleep {ASLEEP}"), LONG_ROUNDS, directory);
        println!("{:16} {fixed:14.2} {:16.2}", method.name(), (long - fixed) / f64::from(ASLEEP));
    }
    handlers(directory);
}

/// The cost of a signal to the own thread with an empty handler, in microseconds.
fn signal() -> f64 {
    const SIGNALS: u32 = 20_000;
    extern "C" fn nothing(_: i32) {}
    // SAFETY: the handler does nothing, and nobody else here uses this signal.
    unsafe { libc::signal(libc::SIGUSR1, nothing as extern "C" fn(i32) as libc::sighandler_t) };
    let before = Instant::now();
    for _ in 0..SIGNALS {
        // SAFETY: sends a signal that has a handler.
        unsafe { libc::raise(libc::SIGUSR1) };
    }
    before.elapsed().as_secs_f64() * 1e6 / f64::from(SIGNALS)
}

/// The cost of samples of a computing program, by the handler's own measurement.
fn handlers(directory: &Path) {
    let file = directory.join("profile");
    let line = "$RUN $W/sort >/dev/null";
    let mut command = Command::new("sh");
    command.args(["-c", line]).env("RUN", Method::Selfwind(99).prefix(&file)).env("W", directory);
    let (cpu, _) = run(&mut command);
    let stats = stats(&file);
    let handler = &stats.0["detail"]["handler_ns"];
    let (count, p50) = (handler["count"].as_f64().unwrap_or(0.0), handler["p50"].as_f64().unwrap_or(0.0));
    let (handler, signal, rate) = (p50 / 1e3, signal(), count / cpu);
    let second = rate * (handler + signal) / 1e3;
    println!(
        "selfwind 99: {handler:.1} us in the handler and {signal:.1} us for the signal, {rate:.0} times a second of CPU time: {second:.2} ms"
    );
}
