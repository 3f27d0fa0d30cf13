//! Programs that change how the processor computes, or what it may be asked: with the agent they behave as without.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use selfwind_tests::attacher::{Attacher, Guest};
use selfwind_tests::recording::{Recorder, folded, record_unharmed};
use selfwind_tests::skip::{not_on_this_processor, skip};
use selfwind_tests::target::Target;

fn record_with(events: &[&str], name: &str) {
    for target in [Target::c(name), Target::c(name).musl()] {
        let program = target.build();
        for event in events {
            record_unharmed(&Recorder::at(997).event(event), &program, &[""; 0]);
        }
    }
}

/// Where the handler and the interposed functions make unaligned accesses, these do not fault.
#[test]
fn alignment_check() {
    let events = ["cpu", "itimer", "perf", "wall", "alloc:4k", "alloc:all", "lock:all", "mmap"];
    record_with(&events, "alignment_check");
}

/// Thread-local storage is accessed only if it is a thread's, and such samples are taken, too.
#[test]
fn thread_pointer() {
    for target in [Target::c("thread_pointer"), Target::c("thread_pointer").musl()] {
        let program = target.build();
        for event in ["cpu", "itimer", "perf", "wall"] {
            for mode in ["nothing", "forbidden", "memory"] {
                let recording = record_unharmed(&Recorder::at(997).event(event), &program, &[mode]);
                let found = recording.folded().inclusive("foreign_work");
                assert!(found > 0, "{event}, {mode}: {:?}", recording.folded());
            }
        }
    }
}

/// The agent computes with whole numbers.
#[test]
fn inexact_faults() {
    record_with(&["cpu", "perf", "alloc", "alloc:4k", "alloc:all", "lock"], "inexact_faults");
}

#[test]
fn code_32() {
    record_with(&["cpu", "itimer", "perf", "wall", "alloc:all"], "code_32");
    running_process_is_recorded("code_32", "until SIGTERM");
}

/// What would kill it is not done there: the agent asks the kernel first.
#[test]
fn running_processes_that_forbid_themselves_the_counter_or_questions() {
    for what in ["counter", "cpuid"] {
        match Guest::is_unsupported(&Target::c("forbids_itself").build(), &[what]) {
            // AMD's processors cannot make it fault.
            true if what == "cpuid" => not_on_this_processor("cpuid cannot be forbidden"),
            true => skip(format_args!("the kernel cannot forbid it: {what}")),
            false => running_process_is_recorded("forbids_itself", what),
        }
    }
}

/// Records the program, which runs with `argument` until SIGTERM, by every source.
fn running_process_is_recorded(name: &str, argument: &str) {
    let program = Target::c(name).build();
    for event in ["cpu", "wall", "alloc:all"] {
        let guest = Guest::start(&program, &[argument]);
        let attacher = Attacher::new();
        let file = attacher.scratch.join("x.data");
        let path = file.to_str().expect("UTF-8");
        let record = ["record", "-q", "-e", event, "-d", "500ms", "-o", path, "-p", &guest.pid()];
        let recorded = attacher.run(&record);
        assert_eq!(recorded.status, 0, "{argument}, {event}: {}", recorded.stderr);
        let found = folded(&file).inclusive("main");
        assert!(found > 0 || event == "alloc:all", "{argument}, {event}: {:?}", folded(&file));
        kill(Pid::from_raw(guest.child.id() as i32), Signal::SIGTERM).expect("our child");
        assert_eq!(guest.end(), (Some(0), "done\n".to_owned()), "{argument}, {event}");
    }
}
