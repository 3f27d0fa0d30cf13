//! Programs that change how the processor computes: with the agent they behave as without.

use selfwind_tests::recording::{Recorder, record_unharmed};
use selfwind_tests::target::Target;

fn record_with(events: &[&str], name: &str) {
    for target in [Target::c(name), Target::c(name).musl()] {
        let program = target.build();
        for event in events {
            record_unharmed(&Recorder::at(997).event(event), &program, &[""; 0]);
        }
    }
}

/// Neither the handler nor the interposed functions rely on unaligned accesses.
#[test]
fn alignment_check() {
    record_with(&["cpu", "itimer", "perf", "wall", "alloc:4k", "alloc:all", "lock:all"], "alignment_check");
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
