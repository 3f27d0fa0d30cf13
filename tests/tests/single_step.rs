//! After every instruction, the stack found by the unwinder equals the shadow stack.
//!
//! The walker uses the previous-walk cache across `longjmp`, coroutine switches and threads: what it splices must be as
//! correct as what it looks up.
//!
//! `SELFWIND_LONG` runs every part of every workload several times, with each source of rules.

use std::ffi::OsStr;

use nix::sys::signal::Signal;
use selfwind_tests::single_step::oracle::{Hole, Oracle, Verdict};
use selfwind_tests::single_step::stepper::{Plan, Stepper, Summary};
use selfwind_tests::single_step::tracee::Tracee;
use selfwind_tests::single_step::walker::{Rules, Walker};
use selfwind_tests::skip::skip;
use selfwind_tests::target::{Target, is_installed};

/// lea -8(%r10),%rsp; ret
const REALIGNED_EPILOGUE: &[&[u8]] = &[&[0x49, 0x8d, 0x62, 0xf8], &[0xc3]];
const REALIGNED: &str = "gcc 12: behind `pop %rbp` of a realigned frame the rows still look for rbp at (rbp)";

/// All known errors in the files' own call frame information.
const HOLES: &[Hole] = &[
    Hole {
        file: "libc.so.6",
        function: "clone3",
        // test %rax,%rax; jl; je
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
        file: "libc.so.6",
        function: "swapcontext",
        // From the load of rsp to the return: mov disp(%rdx),%reg; push %rcx; xor %eax,%eax; ret
        code: &[
            &[0x48, 0x8b, 0x9a],
            &[0x48, 0x8b, 0x6a],
            &[0x48, 0x8b, 0x72],
            &[0x48, 0x8b, 0x7a],
            &[0x48, 0x8b, 0x8a],
            &[0x48, 0x8b, 0x92],
            &[0x4c, 0x8b],
            &[0x51],
            &[0x31, 0xc0],
            &[0xc3],
        ],
        reason: "on the new stack the rows expect a return address that is pushed later, and the first one \
                 pushed is a function's first byte",
    },
    Hole { file: "steps", function: "realigned", code: REALIGNED_EPILOGUE, reason: REALIGNED },
    Hole { file: "steps", function: "realigned_alloca", code: REALIGNED_EPILOGUE, reason: REALIGNED },
];

/// One program under one source of rules.
struct Case<'a> {
    target: Target,
    arguments: &'a [&'a str],
    rules: Rules,
    /// Every call through the PLT resolves its function again.
    lookups: bool,
    /// Its exit status.
    status: i32,
    /// Fewer instructions than this mean that the program did not do its work.
    least: u64,
    /// Of a thousand stacks, how many may go wrong in code without call frame information.
    undescribed: u64,
}

/// Instructions of one short run, which is cut off there.
const SHORT: u64 = 1_000_000;

fn is_long() -> bool {
    std::env::var_os("SELFWIND_LONG").is_some()
}

fn step(case: &Case<'_>, rules: Rules) -> (Summary, Verdict) {
    let mut arguments: Vec<&OsStr> = case.arguments.iter().map(OsStr::new).collect();
    if is_long() {
        arguments = vec![OsStr::new("fljsatc"), OsStr::new("4")];
    }
    let environment: &[(&str, &str)] = if case.lookups || is_long() { &[("LD_BIND_NOT", "1")] } else { &[] };
    run(&case.target, &arguments, environment, rules, if is_long() { u64::MAX } else { SHORT })
}

/// Steps through a program; no more than `limit` instructions.
fn run(
    target: &Target,
    arguments: &[&OsStr],
    environment: &[(&str, &str)],
    rules: Rules,
    limit: u64,
) -> (Summary, Verdict) {
    let mut tracee = Tracee::start(&target.build(), arguments, environment).expect("ptrace");
    let plan = Plan { limit, inject: Some((Signal::SIGUSR1, 997)) };
    let mut oracle = Oracle::new(Walker::new(rules), HOLES);
    let summary = Stepper::new(&tracee, plan).run(&mut oracle).expect("ptrace");
    if summary.status.is_some() {
        println!("{}", tracee.output().expect("piped output"));
    }
    (summary, oracle.finish())
}

fn check(case: &Case<'_>) {
    let all = [Rules::OnDemand, Rules::Cached, Rules::Tables];
    for rules in if is_long() { all.to_vec() } else { vec![case.rules] } {
        let (summary, verdict) = step(case, rules);
        println!(
            "{rules:?}: {} instructions, {} stacks, {} frames",
            summary.instructions, verdict.compared, verdict.frames
        );
        println!("{summary:?}");
        println!("holes {:?}", verdict.holes);
        println!(
            "landings {:?}, rewritten {} installing {}",
            verdict.landings, verdict.rewritten, verdict.installing
        );
        println!("without CFI {:?}, handling {}", verdict.undescribed, verdict.handling);
        println!("wrong {}", verdict.wrong());
        assert!(summary.unexplained.is_empty(), "the shadow stack itself: {:?}", summary.unexplained);
        let cut = summary.instructions >= SHORT && !is_long();
        assert!(cut || summary.status == Some(case.status), "status {:?}", summary.status);
        assert!(summary.instructions >= case.least, "{} instructions", summary.instructions);
        assert_eq!(verdict.wrong(), 0, "{}", verdict.report(40));
        let excused: u64 = verdict.undescribed.values().sum();
        assert!(
            excused * 1000 <= verdict.compared * case.undescribed,
            "{excused} stacks through code without CFI: {:?}",
            verdict.undescribed.iter().take(40)
        );
    }
}

fn steps(variant: &str, flags: &[&str]) -> Target {
    Target::c("steps").with(variant, &["-lm", "-Wl,-z,lazy"]).with("", flags)
}

#[test]
fn gcc_optimised_with_tables() {
    let target = steps("O2", &[]);
    check(&Case {
        target,
        arguments: &["fljsatc", "1"],
        rules: Rules::Tables,
        lookups: true,
        status: 61,
        least: 500_000,
        undescribed: 1,
    });
}

#[test]
fn gcc_unoptimised_on_demand() {
    let target = steps("O0", &["-O0"]);
    check(&Case {
        target,
        arguments: &["fjs", "1"],
        rules: Rules::OnDemand,
        lookups: true,
        status: 61,
        least: 200_000,
        undescribed: 1,
    });
}

#[test]
fn gcc_with_frame_pointers() {
    let target = steps("fp", &["-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"]);
    check(&Case {
        target,
        arguments: &["fja", "1"],
        rules: Rules::Cached,
        lookups: true,
        status: 61,
        least: 200_000,
        undescribed: 1,
    });
}

#[test]
fn clang() {
    if !is_installed("clang") {
        return skip("clang is not installed");
    }
    let target = steps("lazy", &[]).by("clang");
    check(&Case {
        target,
        arguments: &["fjst", "1"],
        rules: Rules::Cached,
        lookups: true,
        status: 61,
        least: 200_000,
        undescribed: 1,
    });
}

/// Every part of the workload, with every compiler and level, resolving every call through the PLT again.
#[test]
fn every_compiler_and_level() {
    if !is_long() {
        return println!("in the long form only; the other tests are the short one");
    }
    let (mut instructions, mut frames) = (0, 0);
    for compiler in ["gcc", "clang"].into_iter().filter(|compiler| is_installed(compiler)) {
        for level in ["-O0", "-O1", "-O2", "-O3"] {
            for pointers in ["-fomit-frame-pointer", "-fno-omit-frame-pointer"] {
                let target = steps(&format!("{level}{pointers}"), &[level, pointers]).by(compiler);
                let arguments = ["fljsatc", "1"].map(OsStr::new);
                let (summary, verdict) =
                    run(&target, &arguments, &[("LD_BIND_NOT", "1")], Rules::Tables, u64::MAX);
                let build = format!("{compiler} {level} {pointers}");
                println!("{build}: {} instructions, {} frames", summary.instructions, verdict.frames);
                assert!(summary.unexplained.is_empty(), "{build}: {:?}", summary.unexplained);
                assert_eq!(summary.status, Some(61), "{build}");
                assert_eq!(verdict.wrong(), 0, "{build}: {}", verdict.report(40));
                instructions += summary.instructions;
                frames += verdict.frames;
            }
        }
    }
    println!("{instructions} instructions, {frames} frames, 0 wrong");
    assert!(instructions >= 5_000_000, "{instructions} instructions");
}

#[test]
fn exceptions() {
    let target = Target::cpp("steps_throw");
    // The library's relocations are a million instructions of their own.
    let target =
        if is_long() { target } else { target.with("static", &["-static-libstdc++", "-static-libgcc"]) };
    check(&Case {
        target,
        arguments: &[],
        rules: Rules::Cached,
        lookups: false,
        status: 62,
        least: 200_000,
        undescribed: 1,
    });
}

#[test]
fn hand_written_assembly() {
    let target = Target::c("steps_crypto");
    check(&Case {
        target,
        arguments: &[],
        rules: Rules::Cached,
        lookups: false,
        status: 64,
        least: 200_000,
        undescribed: 1,
    });
}

/// Debian's musl has no call frame information: where its code is on the stack, the unwinder must mark its guesses.
/// Four in five stacks of this workload go through it; most of them are wrong, and all of them marked.
#[test]
fn musl() {
    let target = steps("lazy", &[]).musl();
    check(&Case {
        target,
        arguments: &["fljsat", "1"],
        rules: Rules::Tables,
        lookups: true,
        status: 61,
        least: 30_000,
        undescribed: 900,
    });
}
