//! A call of Python's evaluation loop, sampled at each of its instructions: while it is only half linked or unlinked, its
//! callers are all there, and nothing else.
//!
//! A debugger stops the program there and delivers a signal of the agent's timer once more.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use selfwind_tests::folded::Folded;
use selfwind_tests::python_stack::{GAP, functions};
use selfwind_tests::pythons::pythons;
use selfwind_tests::recording::{Recorder, read};
use selfwind_tests::scratch::Scratch;

/// The instructions from the beginning of the loop on that are sampled: in all versions the call has ended before.
const INSTRUCTIONS: usize = 150;
/// Samples at each of them.
const TIMES: usize = 2;
/// Samples in all. A stop without a step carries no signal that could be replaced.
const SAMPLES: usize = (INSTRUCTIONS - 1) * TIMES;
/// int3
const BREAKPOINT: i64 = 0xcc;

/// A stopped process with a breakpoint.
struct Debugged {
    pid: Pid,
    address: u64,
    original: i64,
}

impl Debugged {
    fn attach(pid: i32, address: u64) -> nix::Result<Self> {
        let pid = Pid::from_raw(pid);
        ptrace::attach(pid)?;
        waitpid(pid, None)?;
        Ok(Self { pid, address, original: ptrace::read(pid, address as _)? })
    }

    fn arm(&self) -> nix::Result<()> {
        ptrace::write(self.pid, self.address as _, self.original & !0xff | BREAKPOINT)
    }

    fn disarm(&self) -> nix::Result<()> {
        ptrace::write(self.pid, self.address as _, self.original)
    }

    /// Waits for a stop; the signal that caused it. `None` if the process has ended.
    fn wait(&self) -> nix::Result<Option<Signal>> {
        Ok(match waitpid(self.pid, None)? {
            WaitStatus::Stopped(_, signal) => Some(signal),
            _ => None,
        })
    }

    /// Lets it run to the next signal of its timer, which it does not get; what the kernel says about it.
    fn timer(&self) -> nix::Result<libc::siginfo_t> {
        let mut signal = None;
        loop {
            ptrace::cont(self.pid, signal)?;
            signal = self.wait()?;
            if signal == Some(Signal::SIGPROF) {
                return ptrace::getsiginfo(self.pid);
            }
        }
    }

    /// Executes one instruction. Signals of its timer are dropped.
    fn step(&self) -> nix::Result<()> {
        loop {
            ptrace::step(self.pid, None)?;
            if self.wait()? != Some(Signal::SIGPROF) {
                return Ok(());
            }
        }
    }

    /// Samples each instruction.
    fn sample(&self) -> nix::Result<()> {
        let timer = self.timer()?;
        let mut signal = None;
        for number in 0..SAMPLES {
            self.arm()?;
            loop {
                ptrace::cont(self.pid, signal.take())?;
                if self.wait()? == Some(Signal::SIGTRAP) {
                    break;
                }
            }
            self.disarm()?;
            let mut registers = ptrace::getregs(self.pid)?;
            registers.rip -= 1;
            assert_eq!(registers.rip, self.address, "the breakpoint");
            ptrace::setregs(self.pid, registers)?;
            for _ in 0..1 + number / TIMES {
                self.step()?;
            }
            ptrace::setsiginfo(self.pid, &timer)?;
            signal = Some(Signal::SIGPROF);
        }
        ptrace::detach(self.pid, signal)
    }
}

/// Samples an interpreter in its evaluation loop; the folded stacks.
fn enter(python: &Path) -> Folded {
    let scratch = Scratch::new();
    let file = scratch.join("selfwind.data");
    let script = format!("{}/targets/python_enters.py", env!("CARGO_MANIFEST_DIR"));
    let mut command = Recorder::at(99).event("cpu").command(&file, python, &[script, "100000".into()]);
    let mut recorder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("selfwind starts");
    let mut line = String::new();
    BufReader::new(recorder.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    let (pid, address) = line.trim().split_once(' ').expect("two numbers");
    let debugged =
        Debugged::attach(pid.parse().expect("a pid"), address.parse().expect("an address")).expect("ptrace");
    writeln!(recorder.stdin.take().expect("piped")).expect("the program waits");
    debugged.sample().expect("ptrace");
    assert!(recorder.wait().expect("it ends").success());
    Folded::parse(&read(&["export", "-f", "folded"], &file))
}

#[test]
fn a_call_has_its_callers_at_each_instruction() {
    for (minor, python) in pythons() {
        let folded = enter(&python);
        let of = |found: &[&str]| {
            let stacks = folded.stacks.iter().filter(|(stack, _)| functions(stack) == found);
            stacks.map(|(_, weight)| weight).sum::<u64>()
        };
        let (outside, inside) =
            (of(&["<module>", "outer", "middle"]), of(&["<module>", "outer", "middle", "inner"]));
        assert!(outside > 0 && inside > 0, "3.{minor}: {outside} {inside}");
        assert!(outside + inside >= SAMPLES as u64, "3.{minor}: {outside} {inside}: {folded:?}");
        // Views leave out the loop where they show its functions.
        let is_unread = |element: &String| element.starts_with(GAP) || element == "_PyEval_EvalFrameDefault";
        let unread = folded.stacks.iter().find(|(stack, _)| stack.iter().any(is_unread));
        assert_eq!(unread, None, "3.{minor}");
    }
}
