//! Single-steps a tracee and maintains every thread's shadow stack.

use std::collections::{BTreeMap, HashMap};
use std::io;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::image::Images;
use super::instruction::{Flow, classify};
use super::shadow::Shadow;
use super::tracee::{Event, Registers, Tracee};

/// Functions that leave one stack for another, as known by their names.
const STACK_SWITCHES: [&str; 4] = ["swapcontext", "__swapcontext", "setcontext", "__setcontext"];

/// Functions whose `ret` may not return to the matching call: stack switches, and the exception unwinder, which
/// overwrites its return address with the landing pad.
const FREE_RETURNS: [&str; 9] = [
    "swapcontext",
    "__swapcontext",
    "setcontext",
    "__setcontext",
    "_Unwind_RaiseException",
    "_Unwind_Resume",
    "_Unwind_ForcedUnwind",
    "_Unwind_ForcedUnwind_Phase2",
    "_Unwind_Resume_or_Rethrow",
];

/// C library functions that jump without a return and whose call frame information describes, from some instruction on,
/// the target of that jump.
const JUMPS: [&str; 7] = [
    "__longjmp",
    "____longjmp_chk",
    "__longjmp_cancel",
    "swapcontext",
    "__swapcontext",
    "setcontext",
    "__setcontext",
];

/// Whether the CFI of the function named so may describe its landing.
pub(super) fn describes_its_landing(function: &str) -> bool {
    JUMPS.contains(&function)
}

/// A thread stopped between two instructions.
#[derive(Debug)]
pub struct Moment<'a> {
    /// The program.
    pub tracee: &'a Tracee,
    /// Its files.
    pub images: &'a Images,
    /// The thread.
    pub thread: Pid,
    /// Its registers.
    pub registers: &'a Registers,
    /// Its shadow stack.
    pub shadow: &'a Shadow,
}

/// Called after every instruction.
pub trait Observer {
    /// The executable mappings changed.
    fn remapped(&mut self, tracee: &Tracee, images: &Images) -> io::Result<()>;
    /// A thread is about to execute an instruction.
    fn moment(&mut self, moment: &Moment<'_>);
    /// The moment to be shown next was reached from `origin` by a return or an indirect jump.
    fn landed(&mut self, moment: &Moment<'_>, landing: Landing, origin: u64);
}

/// How control reached an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Landing {
    /// By a return to its call.
    Return,
    /// By an indirect jump, or by a return to where no call came from.
    Elsewhere,
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Stop after this many instructions; the program is killed then.
    pub limit: u64,
    /// Send this signal every this many instructions, if the program catches it.
    pub inject: Option<(Signal, u64)>,
}

/// What a run saw.
#[derive(Clone, Default, Debug)]
pub struct Summary {
    /// Instructions executed.
    pub instructions: u64,
    /// Calls, returns, signal frames built, stack switches, threads.
    pub calls: u64,
    /// Returns to the matching call.
    pub returns: u64,
    /// Signal handlers entered.
    pub signals: u64,
    /// Switches between coroutine stacks.
    pub switches: u64,
    /// Threads that ran, the first included.
    pub threads: u64,
    /// Deepest shadow stack.
    pub depth: usize,
    /// Returns that no call explains, by function: should be empty.
    pub unexplained: BTreeMap<String, u64>,
    /// Exit status; `None` if the limit came first or a signal killed it.
    pub status: Option<i32>,
}

#[derive(Clone, Copy)]
struct Code {
    flow: Flow,
    switches: bool,
    free: bool,
}

struct Thread {
    shadow: Shadow,
    before: Registers,
    /// Signal the next step delivers.
    pending: Option<Signal>,
    /// A context without history was entered and has not run its first instruction.
    fresh: bool,
}

/// Steps one tracee.
pub struct Stepper<'a> {
    tracee: &'a Tracee,
    images: Images,
    code: HashMap<u64, Code>,
    threads: HashMap<Pid, Thread>,
    plan: Plan,
    summary: Summary,
}

impl<'a> Stepper<'a> {
    /// A stepper for a tracee that has not run yet.
    pub fn new(tracee: &'a Tracee, plan: Plan) -> Self {
        Self {
            tracee,
            images: Images::default(),
            code: HashMap::new(),
            threads: HashMap::new(),
            plan,
            summary: Summary::default(),
        }
    }

    /// The files mapped now.
    pub fn images(&self) -> &Images {
        &self.images
    }

    /// Steps until the program ends or the limit is reached.
    pub fn run(&mut self, observer: &mut dyn Observer) -> io::Result<Summary> {
        self.remap(observer)?;
        self.adopt(self.tracee.pid(), observer)?;
        self.tracee.step(self.tracee.pid(), None)?;
        while self.summary.instructions < self.plan.limit {
            match self.tracee.wait()? {
                Event::Exited(status) => {
                    self.summary.status = Some(status);
                    break;
                }
                Event::Killed(_) => break,
                Event::ThreadEnded(thread) => {
                    self.threads.remove(&thread);
                }
                Event::Cloned(thread) => self.tracee.step(thread, None)?,
                Event::Step(thread) => self.stepped(thread, observer)?,
                Event::Signal(thread, signal) => self.signalled(thread, signal, observer)?,
            }
        }
        self.summary.threads = self.summary.threads.max(1);
        Ok(self.summary.clone())
    }

    fn adopt(&mut self, thread: Pid, observer: &mut dyn Observer) -> io::Result<()> {
        let before = self.tracee.registers(thread)?;
        self.summary.threads += 1;
        self.threads
            .insert(thread, Thread { shadow: Shadow::default(), before, pending: None, fresh: false });
        self.show(thread, observer);
        Ok(())
    }

    fn signalled(&mut self, thread: Pid, signal: Signal, observer: &mut dyn Observer) -> io::Result<()> {
        if !self.threads.contains_key(&thread) {
            // A new thread begins with a stop that is no signal of the program.
            self.adopt(thread, observer)?;
            return self.tracee.step(thread, None);
        }
        let now = self.tracee.registers(thread)?;
        if now.rip != self.threads[&thread].before.rip {
            self.account(thread, &now, observer)?;
        }
        self.step(thread, Some(signal))
    }

    fn stepped(&mut self, thread: Pid, observer: &mut dyn Observer) -> io::Result<()> {
        let now = self.tracee.registers(thread)?;
        self.account(thread, &now, observer)?;
        let signal = self.injection(thread);
        self.step(thread, signal)
    }

    fn step(&mut self, thread: Pid, signal: Option<Signal>) -> io::Result<()> {
        if let Some(state) = self.threads.get_mut(&thread) {
            state.pending = signal;
        }
        self.tracee.step(thread, signal)
    }

    /// The signal to send now, if it is time and the thread is not in a handler or a stack switch.
    fn injection(&mut self, thread: Pid) -> Option<Signal> {
        let (signal, period) = self.plan.inject?;
        if !self.summary.instructions.is_multiple_of(period) {
            return None;
        }
        let state = self.threads.get(&thread)?;
        let calm = !state.shadow.is_interrupted() && !state.fresh;
        let jumping = self.function(state.before.rip).is_some_and(describes_its_landing);
        (calm && !jumping && self.tracee.catches(thread, signal)).then_some(signal)
    }

    /// Brings the shadow stack from the previous registers to `now` and shows the moment.
    fn account(&mut self, thread: Pid, now: &Registers, observer: &mut dyn Observer) -> io::Result<()> {
        let Some(state) = self.threads.get_mut(&thread) else {
            return self.adopt(thread, observer);
        };
        let before = std::mem::replace(&mut state.before, *now);
        if state.pending.take().is_some() && self.entered_handler(thread, &before, now) {
            self.summary.signals += 1;
            self.show(thread, observer);
            return Ok(());
        }
        self.summary.instructions += 1;
        let code = self.code(before.rip);
        let landed = self.follow(thread, code, &before, now);
        if code.flow == Flow::Syscall && changes_code(&before) {
            self.remap(observer)?;
        }
        if let Some(landing) = landed {
            let state = &self.threads[&thread];
            observer.landed(&moment(self.tracee, &self.images, thread, state), landing, before.rip);
        }
        self.show(thread, observer);
        Ok(())
    }

    /// Applies one executed instruction to the shadow stack; how it went on after a return or a jump.
    fn follow(&mut self, thread: Pid, code: Code, before: &Registers, now: &Registers) -> Option<Landing> {
        let state = self.threads.get_mut(&thread)?;
        match code.flow {
            Flow::Call if now.rsp == before.rsp.wrapping_sub(8) => {
                let address = self.tracee.word(now.rsp).unwrap_or(0);
                state.shadow.call(now.rsp, address);
                self.summary.calls += 1;
                let depth = state.shadow.entries().count();
                self.summary.depth = self.summary.depth.max(depth);
                None
            }
            Flow::Return => {
                let matching = state.shadow.at(before.rsp).is_some_and(|e| e.address == now.rip)
                    || state.shadow.was_taken(before.rsp, now.rip);
                state.shadow.returned(now.rsp);
                if state.fresh && state.shadow.is_empty() {
                    // makecontext stored the address of its trampoline under the function it starts.
                    let address = self.tracee.word(now.rsp).unwrap_or(0);
                    state.shadow.begin(now.rsp, address);
                    state.fresh = false;
                }
                if matching {
                    self.summary.returns += 1;
                    return Some(Landing::Return);
                }
                if !code.free {
                    let description = self.images.describe(before.rip);
                    *self.summary.unexplained.entry(description).or_default() += 1;
                }
                Some(Landing::Elsewhere)
            }
            _ if code.switches && now.rsp.abs_diff(before.rsp) > 8 => {
                state.fresh = !state.shadow.switch(now.rsp);
                self.summary.switches += 1;
                None
            }
            flow => {
                state.shadow.prune(now.rsp);
                (flow == Flow::IndirectJump).then_some(Landing::Elsewhere)
            }
        }
    }

    /// Whether the kernel built a signal frame between the two moments; if so the shadow stack has it.
    ///
    /// `rt_sigframe` of the kernel's `arch/x86/include/asm/sigframe.h`: the restorer's address, then the
    /// `ucontext`: flags, link, the alternate stack (3 words), then the registers, of which the stack
    /// pointer is word 15 and the instruction pointer word 16.
    fn entered_handler(&mut self, thread: Pid, before: &Registers, now: &Registers) -> bool {
        const UCONTEXT: u64 = 8;
        const STACK: u64 = UCONTEXT + 16;
        const REGISTERS: u64 = UCONTEXT + 40;
        let frame = now.rsp;
        let word = |offset| self.tracee.word(frame.wrapping_add(offset)).unwrap_or(0);
        let interrupted = word(REGISTERS + 16 * 8);
        // An interrupted system call is restarted: the saved instruction pointer steps back over it.
        let same_instruction = interrupted == before.rip || interrupted.wrapping_add(2) == before.rip;
        if !same_instruction || word(REGISTERS + 15 * 8) != before.rsp {
            return false;
        }
        let (low, size) = (word(STACK), word(STACK + 16));
        let alternate = low..low.wrapping_add(size);
        let switched = alternate.contains(&frame) && !alternate.contains(&before.rsp);
        let restorer = word(0);
        if let Some(state) = self.threads.get_mut(&thread) {
            state.shadow.signal(frame, restorer, interrupted, switched.then_some(alternate));
        }
        true
    }

    fn show(&self, thread: Pid, observer: &mut dyn Observer) {
        if let Some(state) = self.threads.get(&thread) {
            observer.moment(&moment(self.tracee, &self.images, thread, state));
        }
    }

    fn remap(&mut self, observer: &mut dyn Observer) -> io::Result<()> {
        self.images.refresh(self.tracee)?;
        self.code.clear();
        observer.remapped(self.tracee, &self.images)
    }

    fn function(&self, address: u64) -> Option<&str> {
        self.images.at(address)?.function(address).map(|(name, _)| name)
    }

    fn code(&mut self, address: u64) -> Code {
        if let Some(code) = self.code.get(&address) {
            return *code;
        }
        let mut bytes = [0; 15];
        let got = self.tracee.read(address, &mut bytes);
        let flow = classify(&bytes[..got]);
        let name = self.function(address).unwrap_or("");
        // `mov disp(%reg), %rsp`: REX.W 8b /4 with a memory operand.
        let loads_rsp =
            matches!(bytes, [0x48 | 0x49, 0x8b, modrm, ..] if modrm >> 3 & 7 == 4 && modrm >> 6 != 3);
        let code = Code {
            flow,
            switches: loads_rsp && STACK_SWITCHES.contains(&name),
            free: FREE_RETURNS.contains(&name),
        };
        self.code.insert(address, code);
        code
    }
}

fn moment<'a>(tracee: &'a Tracee, images: &'a Images, thread: Pid, state: &'a Thread) -> Moment<'a> {
    Moment { tracee, images, thread, registers: &state.before, shadow: &state.shadow }
}

/// Whether the system call in these registers may map or unmap code. `mprotect` is left out: the loader uses
/// it on data, and no image changes its extent by it.
fn changes_code(before: &Registers) -> bool {
    match before.rax as i64 {
        libc::SYS_mmap => before.r8 as i32 >= 0,
        libc::SYS_munmap => true,
        _ => false,
    }
}
