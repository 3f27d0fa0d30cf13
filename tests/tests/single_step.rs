//! After every instruction, the stack the unwinder finds equals the shadow stack.

use std::ffi::OsStr;

use nix::sys::signal::Signal;
use selfwind_tests::single_step::oracle::{Hole, Oracle, Verdict};
use selfwind_tests::single_step::stepper::{Plan, Stepper, Summary};
use selfwind_tests::single_step::tracee::Tracee;
use selfwind_tests::single_step::walker::{Rules, Walker};
use selfwind_tests::target::Target;

const HOLES: &[Hole] = &[
    Hole {
        file: "libc.so.6",
        function: "clone3",
        code: &[&[0x48, 0x85, 0xc0], &[0x7c], &[0x74]],
        reason: "between the system call and its branch the child runs under the parent's rows",
    },
    Hole {
        file: "libc.so.6",
        function: "__start_context",
        code: &[],
        reason: "entered by a return: nothing describes the byte before it, and its rows claim a caller",
    },
    Hole {
        file: "steps",
        function: "realigned_alloca",
        code: &[&[0x49, 0x8d, 0x62, 0xf8], &[0xc3]],
        reason: "gcc 12: behind `pop %rbp` of a realigned frame the rows still look for rbp at (rbp)",
    },
];

fn step(target: &Target, arguments: &[&str], rules: Rules) -> (Summary, Verdict) {
    let program = target.build();
    let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
    let mut tracee = Tracee::start(&program, &arguments, &[("LD_BIND_NOT", "1")]).unwrap();
    let plan = Plan { limit: u64::MAX, inject: Some((Signal::SIGUSR1, 997)) };
    let mut oracle = Oracle::new(Walker::new(rules), HOLES);
    let begin = std::time::Instant::now();
    let summary = Stepper::new(&tracee, plan).run(&mut oracle).unwrap();
    let verdict = oracle.finish();
    println!("{summary:?} {:?}", begin.elapsed());
    println!("{}", tracee.output().unwrap());
    println!("compared {} frames {} wrong {} places {} holes {:?} landings {:?} rewritten {}", verdict.compared, verdict.frames, verdict.wrong(),verdict.mismatches.len(), verdict.holes, (&verdict.undescribed, &verdict.landings), verdict.rewritten);
    (summary, verdict)
}

#[test]
fn c_optimised() {
    let target = Target::c("steps").named("steps-lazy", &["-lm", "-Wl,-z,lazy"]);
    let (summary, verdict) = step(&target, &["fljsatc", "1"], Rules::Cached);
    assert!(summary.unexplained.is_empty());
    assert_eq!(verdict.wrong(), 0, "{}", verdict.report(60));
}
