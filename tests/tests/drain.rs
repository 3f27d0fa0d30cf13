//! The recorder drains everything: at any rate and depth, from any number of threads. If it is prevented, it reports
//! for how long, and what would have helped; and it drains only the processes that it was told to.
//!
//! All combinations of rate, depth and number of threads with `SELFWIND_LONG=1`.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use selfwind_tests::binary::selfwind;
use selfwind_tests::flight::Flight;
use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::recording::{Recorder, read, record_unharmed, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::{may_mount, skip};
use selfwind_tests::target::Target;

/// Records `busy_stacks` with this depth and number of threads, and asserts that nothing is lost.
fn assert_whole(source: &str, frequency: u32, depth: u32, threads: u32) {
    let milliseconds = (1600 / threads.max(2)).to_string();
    let (depth, threads) = (depth.to_string(), threads.to_string());
    let recorder = Recorder::at(frequency).event(source);
    let program = Target::c("busy_stacks").build();
    let recording = record_unharmed(&recorder, &program, &[&depth, &threads, &milliseconds]);
    let stats = recording.stats();
    let what = format!("{source} at {frequency} Hz, {depth} frames, {threads} threads");
    assert!(stats.number("samples") > 0, "{what}: {:#}", stats.0);
    assert_eq!(stats.number("lost"), 0, "{what}: {:#}", stats.0);
}

#[test]
fn nothing_is_lost() {
    let long = std::env::var_os("SELFWIND_LONG").is_some();
    let frequencies: &[u32] = if long { &[99, 997, 4999, 9973] } else { &[997, 9973] };
    let crowds: &[u32] = if long { &[1, 2, 16, 200] } else { &[1, 16] };
    for source in ["perf", "cpu"] {
        for &frequency in frequencies {
            for depth in [20, 60, 500] {
                crowds.iter().for_each(|&threads| assert_whole(source, frequency, depth, threads));
            }
        }
    }
}

#[test]
fn a_recorder_keeps_up_with_a_crowd_of_busy_threads() {
    // Without the right to raise its priority it has an equal share of the CPU, which is not enough.
    if !geteuid().is_root() {
        return skip("a recorder's priority: needs root");
    }
    let program = Target::c("busy_stacks").build();
    let recorder = Recorder::at(9973).event("auto");
    let stats = record_unharmed(&recorder, &program, &["60", "200", "100"]).stats();
    assert!(stats.number("weight") > 100_000, "{:#}", stats.0);
    assert_eq!(stats.number("lost"), 0, "{:#}", stats.0);
}

/// CPU time in seconds of the only child of a process.
fn used_by_child(pid: Pid) -> f64 {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("it lives");
    let stat = fs::read_to_string(format!("/proc/{}/stat", children.trim())).expect("it lives");
    // After the name: user and system time, in hundredths of a second.
    let (_, fields) = stat.rsplit_once(") ").expect("a stat file");
    let ticks = fields.split(' ').skip(11).take(2).map(|field| field.parse::<f64>().expect("a number"));
    ticks.sum::<f64>() / 100.0
}

/// Records `busy_stacks` with `arguments`, with the recorder stopped for at least two seconds, and for as long as it
/// takes to sample 4 MB.
fn stopped_in_between(arguments: &[&str], file: &Path) -> Outcome {
    let program = Target::c("busy_stacks").build();
    let mut command = Command::new(selfwind());
    command.args(["record", "-F", "9973", "-e", "perf"]).args(arguments).arg("-o").arg(file).arg("--");
    command.arg(program).args(["60", "2", "8000"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let recorder = command.spawn().expect("selfwind runs");
    let pid = Pid::from_raw(recorder.id() as i32);
    sleep(Duration::from_millis(700));
    kill(pid, Signal::SIGSTOP).expect("our child");
    let used = used_by_child(pid);
    sleep(Duration::from_secs(2));
    while used_by_child(pid) < used + 5.0 {
        sleep(Duration::from_millis(20));
    }
    kill(pid, Signal::SIGCONT).expect("our child");
    let output = recorder.wait_with_output().expect("our child");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Outcome {
        status: output.status.code().unwrap_or(-1),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    }
}

#[test]
fn a_delayed_recorder_says_what_would_have_helped() {
    let scratch = Scratch::new();
    let file = scratch.join("small.data");
    let outcome = stopped_in_between(&["--buffer", "128K"], &file);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let stats = stats(&file);
    stats.assert_adds_up();
    assert!(stats.number("lost") > 0, "two seconds fit nowhere: {:#}", stats.0);
    assert!(outcome.stderr.contains(" lost: the recorder did not run for "), "{outcome:?}");
    let said = read(&["stats"], &file);
    assert!(said.contains("% were lost"), "{said}");
    let (_, rest) = outcome.stderr.split_once("--buffer ").unwrap_or_else(|| panic!("{outcome:?}"));
    let size = rest.split_whitespace().next().expect("a size");
    assert!(rest.contains("would have kept them"), "{outcome:?}");
    // And so it does.
    let file = scratch.join("large.data");
    let outcome = stopped_in_between(&["--buffer", size], &file);
    assert_eq!(selfwind_tests::recording::stats(&file).number("lost"), 0, "{size}: {outcome:?}");
}

#[test]
fn invalid_sizes_are_named() {
    let mut command = Command::new(selfwind());
    let outcome = run(command.args(["record", "--buffer", "4Q", "true"]));
    assert_eq!(outcome.status, 125, "{outcome:?}");
    assert!(
        outcome.stderr.contains("invalid size `4Q`: expected 64K to 1G, such as 512K or 16M"),
        "{outcome:?}"
    );
}

/// Records a little of `flight`.
fn record(flight: &Flight) -> Outcome {
    run(&mut flight.record(&["-d", "0.3"], "x.data"))
}

#[test]
fn the_agent_reports_an_invalid_size_and_accepts_units() {
    let flight = Flight::start(&[("SELFWIND_POOL", "4Q")]);
    let outcome = record(&flight);
    let wanted = "ignored SELFWIND_POOL=4Q (a size from 64K to 1G, such as 512K or 16M)";
    assert!(outcome.stderr.contains(wanted), "{outcome:?}");

    let flight = Flight::start(&[("SELFWIND_POOL", "4M")]);
    let blocks = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(flight.region()).expect("there"));
    assert!(blocks * 512 > 4 << 20, "{blocks} blocks");
    let outcome = record(&flight);
    assert!(!outcome.stderr.contains("ignored"), "{outcome:?}");
}

/// Another process had the same pid: its region does not belong to the living one.
#[test]
fn a_pid_alone_selects_no_region() {
    let (flight, former) = (Flight::start(&[]), Flight::start(&[]));
    sleep(Duration::from_millis(200));
    let mut bytes = fs::read(former.region()).expect("readable");
    // FORMAT.md: the pid is at offset 16, the start time at 24.
    bytes[16..20].copy_from_slice(&flight.pid().to_le_bytes());
    let start_and_nonce = |flight: &Flight| {
        let name = flight.region().file_name().expect("a file").to_string_lossy().into_owned();
        let (_, rest) = name.split_once('-').expect("PID-STARTTIME-NONCE");
        let (start, nonce) = rest.split_once('-').expect("PID-STARTTIME-NONCE");
        (start.parse::<u64>().expect("a number"), nonce.to_owned())
    };
    let (living, rest) = (start_and_nonce(&flight).0, start_and_nonce(&former).1);
    let earlier = living - 1;
    bytes[24..32].copy_from_slice(&earlier.to_le_bytes());
    let directory = flight.region().parent().expect("a directory").to_owned();
    let left = directory.join(format!("{}-{earlier}-{rest}", flight.pid()));
    fs::write(&left, &bytes).expect("our directory");
    fs::set_permissions(&left, fs::Permissions::from_mode(0o600)).expect("ours");

    let outcome = record(&flight);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let stats = stats(&flight.file("x.data"));
    assert_eq!((stats.number("processes"), stats.detail(&["images"])), (1, 1), "{:#}", stats.0);
    assert!(stats.number("samples") > 0, "{:#}", stats.0);
    assert!(left.exists(), "what another process left was removed");
}

/// Address space in KB of a program that prints its own.
fn address_space(recorded: bool) -> u64 {
    let scratch = Scratch::new();
    let mut command = Command::new(if recorded { selfwind() } else { Path::new("/usr/bin/env") });
    if recorded {
        command.args(["record", "-q", "-o"]).arg(scratch.join("x.data")).arg("--");
    }
    let outcome = run(command.args(["grep", "VmSize", "/proc/self/status"]));
    let number = outcome.stdout.split_whitespace().nth(1).unwrap_or_else(|| panic!("{outcome:?}"));
    number.parse().expect("a number")
}

#[test]
fn a_small_process_gets_a_small_mapping() {
    let (alone, recorded) = (address_space(false), address_space(true));
    assert!(recorded - alone < 40 << 10, "{alone} kB alone, {recorded} kB recorded");
}

/// Kernels before 5.14 cannot back a mapping without its file.
#[test]
fn pools_grow_where_the_kernel_cannot_populate() {
    let scratch = Scratch::new();
    let file = scratch.join("x.data");
    let mut command = Command::new("strace");
    command.args(["-f", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=madvise"]);
    command.args(["-e", "inject=madvise:error=EINVAL"]).arg(selfwind());
    command
        .env("SELFWIND_POOL", "65536")
        .args(["record", "-e", "cpu", "-F", "99", "-o"])
        .arg(&file)
        .arg("--");
    let outcome = run(command.arg(Target::c("busy_stacks").build()).args(["20", "200", "60"]));
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let stats = stats(&file);
    assert!(stats.number("samples") > 200, "{:#}", stats.0);
    assert_eq!(stats.number("lost"), 0, "{:#}", stats.0);
}

#[test]
fn processes_that_outlive_the_command_are_named() {
    let scratch = Scratch::new();
    let program = Target::c("spin").build();
    let script = format!("{} 60000 >/dev/null 2>&1 & echo $!; sleep 0.3", program.display());
    let mut command = Command::new(selfwind());
    command.args(["record", "-o"]).arg(scratch.join("x.data")).args(["--", "sh", "-c", &script]);
    let outcome = run(&mut command);
    let pid = outcome.stdout.trim();
    let _ = kill(Pid::from_raw(pid.parse().expect("a pid")), Signal::SIGKILL);
    let wanted =
        format!("1 process is still running, and sampling has stopped with the command: spin ({pid})");
    assert!(outcome.stderr.contains(&wanted), "{outcome:?}");
    assert!(outcome.stderr.contains(&format!("selfwind record -p {pid}")), "{outcome:?}");
}

/// Processes that outlive the command have a moment to notice that the recording is over; nobody waits for one that has ended.
#[test]
fn a_recording_ends_with_its_only_process() {
    let scratch = Scratch::new();
    let trace = scratch.join("trace");
    let mut command = Command::new("strace");
    command.args(["-e", "trace=nanosleep,clock_nanosleep", "-o"]).arg(&trace).arg(selfwind());
    command.args(["record", "-q", "-o"]).arg(scratch.join("x.data")).arg("--");
    let outcome = run(command.arg(Target::c("spin").build()).arg("200"));
    let waits = fs::read_to_string(trace).expect("written");
    assert!(waits.contains("exited with"), "{waits} {outcome:?}");
    // While a process is short of buffer the recorder sleeps for 2 ms at a time.
    let nanoseconds = |text: &str| text.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok();
    let longest = waits.split("tv_nsec=").skip(1).filter_map(nanoseconds).max();
    assert!(longest < Some(10_000_000), "{waits}");
}

/// `sh -c SCRIPT`, in which `$1` is selfwind, `$2` a file of this test and `$3` the busy program.
fn shell(script: &str, scratch: &Scratch) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(selfwind()).arg(scratch.join("x.data"));
    command.arg(Target::c("busy_stacks").build());
    command
}

#[test]
fn a_recorder_that_may_write_no_file_says_so() {
    let scratch = Scratch::new();
    let outcome = run(&mut shell("ulimit -f 0; \"$1\" record -o \"$2\" -- \"$3\" 20 1 50", &scratch));
    assert_eq!((outcome.status, outcome.stdout.as_str()), (125, ""), "{outcome:?}");
    assert!(outcome.stderr.contains("limited to 0 bytes (ulimit -f)"), "{outcome:?}");
}

#[test]
fn a_recorder_with_few_descriptors_says_so_or_needs_no_more() {
    for limit in 5..16 {
        let scratch = Scratch::new();
        let script = format!("ulimit -n {limit}; \"$1\" record -F 997 -o \"$2\" -- \"$3\" 20 1 100");
        let outcome = run(&mut shell(&script, &scratch));
        let said = outcome.stderr.contains("(ulimit -n)");
        let file = scratch.join("x.data");
        let samples = if outcome.status == 0 { stats(&file).number("samples") } else { 0 };
        assert!(samples > 0 || said || outcome.status == 127, "{limit}: {outcome:?}");
        assert!(!outcome.stderr.contains("still running"), "{limit}: {outcome:?}");
        assert!(!outcome.stderr.contains("too little CPU time"), "{limit}: {outcome:?}");
    }
}

/// Records on a file system that fills up, and later sends the recorder SIGTERM; the command then prints a line.
const FULL: &str = r#"
mkdir "$2.d" && mount -t tmpfs -o size=100k tmpfs "$2.d" || exit 9
"$1" record -e perf -F 9973 -o "$2.d/x.data" -- sh -c '"$1" 60 1 60000 & trap "echo told; kill $!; exit 7" TERM; wait' sh "$3" &
recorder=$!
while ! grep -q "recording stopped" "$2.said"; do sleep 0.1; done
cp "$2.d/x.data" "$2"
kill -TERM $recorder
wait $recorder
echo "status $?"
"#;

#[test]
fn a_file_system_that_fills_ends_the_recording_and_nothing_else() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let said = scratch.join("x.data.said");
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &format!("exec 2>\"$2.said\"\n{FULL}"), "sh"]).arg(selfwind());
    command.arg(scratch.join("x.data")).arg(Target::c("busy_stacks").build());
    let outcome = run(&mut command);
    let mut text = String::new();
    fs::File::open(said).expect("written").read_to_string(&mut text).expect("readable");
    assert!(outcome.stdout.contains("told") && outcome.stdout.contains("status 7"), "{outcome:?} {text}");
    for part in ["No space left on device", "free some space", "everything written before is intact"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(stats(&scratch.join("x.data")).number("samples") > 100);
}
