//! Diverts a stopped thread: it starts another thread, which enters the agent, and then continues where it was.
//!
//! The order of steps keeps the thread safe at any time, even if this process is killed:
//!
//! 1. The thread makes one `mmap` call at a `syscall; ret` of its C library, with a signal frame below the red zone of the main stack
//!    through which that `ret` would return. If the thread is not on the main stack, where free space is certain, a bare `syscall`
//!    is used: then, if this process dies between setting the registers and restoring them (two context switches), the thread is
//!    lost.
//! 2. Everything is written while the thread is in its original state.
//! 3. Its registers are set to the stub, all at once. From here on it returns by itself, through the signal frame, whether it is
//!    traced or not.
//! 4. At the stub's `rt_sigreturn` it is stopped. Floating-point state, signal mask and finally registers are restored, which
//!    (unlike a signal frame) also lets an interrupted `nanosleep` sleep only for the remaining time.
//!
//! Long work is done by the started thread and delays no other. If no thread can be started (RLIMIT_NPROC), the stopped one does it.
//! The word with the thread id is not 0 while either is working.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::libc::{self, c_int, user_regs_struct};
use nix::sys::ptrace::{getregs, getsiginfo, setregs};
use nix::unistd::Pid;
use shm_format::injection::Call;

use crate::proc::{Mapping, PAGE, Status};
use crate::target::attach::ptrace::{self, Stop};
use crate::target::inject::error::InjectError;
use crate::target::inject::gadgets::{Gadgets, Way};
use crate::target::inject::handed_region::HandedRegion;
use crate::target::inject::image::{self, Image};
use crate::target::inject::layout::{
    AUXILIARY, AUXILIARY_WORDS, AgentLayout, CALL, MASK, REPLY, REPLY_ROOM, RESULT, SETTINGS, SETTINGS_ROOM,
    WORKER,
};
use crate::target::inject::memory::Memory;
use crate::target::inject::paused::wait_until_stopped;
use crate::target::inject::{filter, frame};

/// All signals but those of faults, which would kill the process if blocked.
const BLOCKED: u64 = !(1 << (libc::SIGSEGV - 1)
    | 1 << (libc::SIGBUS - 1)
    | 1 << (libc::SIGILL - 1)
    | 1 << (libc::SIGFPE - 1)
    | 1 << (libc::SIGTRAP - 1));
const FRESH_FLAGS: u64 = 0x202;
/// The segments of 64-bit code and of its stack (arch/x86/include/asm/segment.h: __USER_CS, __USER_DS).
const SEGMENTS: (u64, u64) = (0x33, 0x2b);
/// Maximum number of attempts while signals keep the thread from entering the stub.
const ATTEMPTS: usize = 100;
const POLL_EVERY: Duration = Duration::from_micros(20);
/// Maximum number of instructions in which a thread has to leave the agent's code.
const STEPS: usize = 20_000;

/// The registers with which the thread executes 64-bit code next, though it may be in 32-bit code, as emulators are for a while.
fn in_64_bit_code(mut registers: user_regs_struct) -> user_regs_struct {
    (registers.cs, registers.ss) = SEGMENTS;
    registers
}

/// A stopped thread to be diverted.
pub(super) struct Diversion<'a> {
    tid: i32,
    memory: &'a Memory,
    agent: &'a [u8],
    gadgets: Gadgets,
    deadline: Instant,
    /// A signal that arrived at the wrong time.
    held: Cell<Option<c_int>>,
}

/// Where a thread finds its way back.
#[derive(Clone, Copy)]
pub(super) enum Room<'m> {
    /// Below its stack pointer, if that is in the main stack according to these mappings.
    Stack(&'m [Mapping]),
    /// Below this address, a multiple of 64: [`ROOM`] bytes of memory that nothing else uses.
    Below(u64),
}

/// Bytes for a signal frame, and for a signal handler that may run in between.
pub(super) const ROOM: u64 = frame::ROOM as u64 + 2 * PAGE;

/// Where to put a signal frame below `sp`, if both are in the main stack.
fn free_stack(mappings: &[Mapping], sp: u64) -> Option<u64> {
    /// System V ABI.
    const RED_ZONE: u64 = 128;
    let stack = mappings
        .iter()
        .find(|mapping| mapping.path == Path::new("[stack]") && (mapping.start..mapping.end).contains(&sp))?;
    let room = sp.checked_sub(RED_ZONE + frame::ROOM as u64)? & !63;
    // With room for a signal handler that may run in between.
    (room.checked_sub(PAGE)? >= stack.start).then_some(room)
}

enum Ended {
    /// The call returned.
    Returned,
    /// A signal arrived before the stub had blocked it; the thread is in its original state, and the signal is still to be delivered.
    Signal(c_int),
}

impl<'a> Diversion<'a> {
    /// For the stopped thread `tid`, in a process with this `memory` and these `gadgets`, and the `agent`'s file. It is given up at the
    /// `deadline`.
    pub(super) fn new(
        tid: i32,
        memory: &'a Memory,
        agent: &'a [u8],
        gadgets: Gadgets,
        deadline: Instant,
    ) -> Self {
        Self { tid, memory, agent, gadgets, deadline, held: Cell::new(None) }
    }

    /// Lets the thread leave the agent's code, where it may hold the agent's locks: a thread that records all its allocations is
    /// hardly ever anywhere else. False if it is still there.
    pub(super) fn leave_agent(&self, layout: AgentLayout) -> Result<bool, InjectError> {
        let trap = 1 << (libc::SIGTRAP - 1);
        let ignored = Status::of_process(self.tid).map_or(!0, |status| status.set("SigIgn"));
        for _ in 0..STEPS {
            if !layout.holds(getregs(self.thread()).map_err(|_| self.failed())?.rip) {
                return Ok(true);
            }
            // If a step ends while SIGTRAP is blocked or ignored, the kernel resets the process's handler of it.
            let may_step = ptrace::signal_mask(self.tid).is_ok_and(|mask| (mask | ignored) & trap == 0);
            if !may_step || !self.step()? {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// Has the thread execute one instruction. False if that is a system call which waits.
    fn step(&self) -> Result<bool, InjectError> {
        let gone = |_| self.failed();
        ptrace::step(self.tid).map_err(gone)?;
        let mut in_time = true;
        loop {
            match ptrace::wait(self.tid) {
                Ok(Stop::Signal(libc::SIGTRAP)) if self.is_end_of_step() => return Ok(in_time),
                Ok(Stop::Signal(signal)) => return self.deliver(signal).map(|()| in_time),
                Ok(Stop::Interrupted | Stop::SystemCall) => return Ok(in_time),
                Ok(Stop::Group) => return Ok(false),
                Ok(Stop::Running) if in_time && Instant::now() > self.deadline => {
                    in_time = false;
                    ptrace::interrupt(self.tid).map_err(gone)?;
                }
                Ok(Stop::Running) => std::thread::yield_now(),
                Ok(Stop::Ended) | Err(_) => return Err(self.failed()),
            }
        }
    }

    /// Whether the SIGTRAP for which the thread is stopped is due to a step.
    fn is_end_of_step(&self) -> bool {
        getsiginfo(self.thread())
            .is_ok_and(|info| [libc::TRAP_TRACE, libc::TRAP_BRKPT].contains(&info.si_code))
    }

    /// A signal that could not be delivered in between.
    pub(super) fn held(&self) -> Option<c_int> {
        self.held.get()
    }

    fn thread(&self) -> Pid {
        Pid::from_raw(self.tid)
    }

    fn failed(&self) -> InjectError {
        InjectError::Lost(self.tid)
    }

    /// Maps memory, at `hint` if that is free, and writes the agent to it.
    pub(super) fn lay_out(&self, mappings: &[Mapping], hint: u64) -> Result<AgentLayout, InjectError> {
        let image = image::size(self.agent)?;
        let layout = AgentLayout { base: 0, image };
        // Never writable and executable at once, which some processes are not permitted.
        let protection = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let arguments = [libc::SYS_mmap as u64, hint, layout.end(), protection, flags, u64::MAX];
        let base = self.call_system(Room::Stack(mappings), arguments)?;
        let layout = AgentLayout { base, image };
        let image = Image::relocated(self.agent, layout.image_base())?;
        let write = |address, bytes: &[u8]| self.memory.write(address, bytes);
        write(layout.image_base(), &image.bytes)
            .and_then(|()| write(layout.base, &layout.stub(&image)))
            .map_err(InjectError::Memory)?;
        Ok(layout)
    }

    /// Unmaps an unused layout.
    pub(super) fn take_away(&self, mappings: &[Mapping], layout: AgentLayout) -> Result<(), InjectError> {
        let (base, bytes) = layout.range();
        self.call_system(Room::Stack(mappings), [libc::SYS_munmap as u64, base, bytes, 0, 0, 0]).map(drop)
    }

    /// Makes the thread execute a system call: its number, and all arguments but the last, which is 0.
    pub(super) fn call_system(&self, room: Room<'_>, arguments: [u64; 6]) -> Result<u64, InjectError> {
        for _ in 0..ATTEMPTS {
            let original = getregs(self.thread()).map_err(|_| self.failed())?;
            let mut registers = in_64_bit_code(original);
            let room = match room {
                Room::Stack(mappings) => free_stack(mappings, original.rsp),
                Room::Below(end) => Some(end - frame::ROOM as u64),
            };
            let way = self.gadgets.way(self.memory, room.is_some()).ok_or(InjectError::NoWay)?;
            registers.rip = way.call();
            if let (Way::Returning { back, .. }, Some(room)) = (way, room) {
                registers.rsp = self.lay_way_back(room, back, &original)?;
            }
            registers.orig_rax = u64::MAX;
            [registers.rax, registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8] =
                arguments;
            registers.r9 = 0;
            match self.system_call(&original, registers)? {
                Ok(result) if (-4095..0).contains(&(result as i64)) => {
                    return Err(InjectError::Map(std::io::Error::from_raw_os_error(-(result as i32))));
                }
                Ok(result) => return Ok(result),
                Err(signal) => self.deliver(signal)?,
            }
        }
        Err(InjectError::Busy(self.tid))
    }

    /// Writes a signal frame to free stack memory, and below it `back`, the address of an `rt_sigreturn`. Returns the address of that.
    fn lay_way_back(&self, room: u64, back: u64, original: &user_regs_struct) -> Result<u64, InjectError> {
        let state = ptrace::extended_state(self.tid).map_err(|_| self.failed())?;
        let mask = ptrace::signal_mask(self.tid).map_err(|_| self.failed())?;
        let mut bytes = back.to_le_bytes().to_vec();
        bytes.extend(frame::frame(room, original, &state, mask));
        self.memory.write(room - 8, &bytes).map_err(InjectError::Memory)?;
        Ok(room - 8)
    }

    /// Makes the thread execute the system call in `registers`, and stops it in its original state. Returns a signal if one arrived in
    /// between.
    fn system_call(
        &self,
        original: &user_regs_struct,
        registers: user_regs_struct,
    ) -> Result<Result<u64, c_int>, InjectError> {
        let gone = |_| self.failed();
        setregs(self.thread(), registers).map_err(|_| self.failed())?;
        let mut result = None;
        while result.is_none() {
            ptrace::cont_to_system_call(self.tid).map_err(gone)?;
            match self.next_stop() {
                Stop::SystemCall => {
                    let now = getregs(self.thread()).map_err(|_| self.failed())?;
                    // rax is -ENOSYS before the call.
                    if now.rax as i64 != -i64::from(libc::ENOSYS) {
                        result = Some(Ok(now.rax));
                    }
                }
                Stop::Signal(signal) => result = Some(Err(signal)),
                Stop::Interrupted | Stop::Group => {}
                Stop::Ended => return Err(self.failed()),
                Stop::Running => return Err(InjectError::Slow(self.tid)),
            }
        }
        // Interrupt first, so that the kernel restarts an interrupted call even if this process dies.
        if !matches!(result, Some(Err(_))) {
            ptrace::interrupt(self.tid).map_err(gone)?;
        }
        setregs(self.thread(), *original).map_err(|_| self.failed())?;
        if matches!(result, Some(Ok(_))) {
            ptrace::cont(self.tid, 0).map_err(gone)?;
            wait_until_stopped(self.tid, self.deadline).map_err(gone)?;
        }
        result.ok_or_else(|| self.failed())
    }

    /// Delivers a signal to the thread, and stops it again.
    fn deliver(&self, signal: c_int) -> Result<(), InjectError> {
        let gone = |_| self.failed();
        ptrace::cont(self.tid, signal).map_err(gone)?;
        ptrace::interrupt(self.tid).map_err(gone)?;
        match wait_until_stopped(self.tid, self.deadline) {
            Ok(true) => Ok(()),
            _ => Err(self.failed()),
        }
    }

    fn next_stop(&self) -> Stop {
        loop {
            match ptrace::wait(self.tid) {
                Ok(Stop::Running) if Instant::now() < self.deadline => std::thread::sleep(POLL_EVERY),
                Ok(stop) => return stop,
                Err(_) => return Stop::Ended,
            }
        }
    }

    /// Calls the agent that has this `layout`. Its result arrives later.
    pub(super) fn call(
        &self,
        layout: AgentLayout,
        call: Call,
        settings: &[u8],
        auxiliary: &[u64],
        region: Option<&HandedRegion>,
    ) -> Result<(), InjectError> {
        if settings.len() as u64 > SETTINGS_ROOM {
            return Err(InjectError::Image("the settings are too long"));
        }
        let auxiliary = auxiliary.get(..AUXILIARY_WORDS).unwrap_or(auxiliary);
        let image = Image::relocated(self.agent, layout.image_base())?;
        let data = layout.data();
        let call = Call {
            version: Call::VERSION,
            settings: data + SETTINGS,
            settings_len: settings.len() as u64,
            auxiliary: data + AUXILIARY,
            auxiliary_words: auxiliary.len() as u64,
            control: layout.base,
            reply: data + REPLY,
            reply_capacity: REPLY_ROOM,
            mask: ptrace::signal_mask(self.tid).map_err(|_| self.failed())?,
            unfiltered: filter::has_none(self.tid).into(),
            ..call
        };
        let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let write =
            |offset, bytes: &[u8]| self.memory.write(data + offset, bytes).map_err(InjectError::Memory);
        write(CALL, &bytes(&call.words()))?;
        write(AUXILIARY, &bytes(auxiliary))?;
        write(RESULT, &u64::MAX.to_le_bytes())?;
        write(MASK, &BLOCKED.to_le_bytes())?;
        write(WORKER, &[0; 8])?;
        write(SETTINGS, settings)?;
        for _ in 0..ATTEMPTS {
            let registers = getregs(self.thread()).map_err(|_| self.failed())?;
            let state = ptrace::extended_state(self.tid).map_err(|_| self.failed())?;
            let mask = ptrace::signal_mask(self.tid).map_err(|_| self.failed())?;
            write(0, &frame::frame(data, &registers, &state, mask))?;
            match self.run(layout, &image, &registers, (&state, mask), region)? {
                Ended::Returned => return Ok(()),
                Ended::Signal(signal) => self.deliver(signal)?,
            }
        }
        Err(InjectError::Busy(self.tid))
    }

    /// Diverts the thread to the stub and waits until it is back.
    fn run(
        &self,
        layout: AgentLayout,
        image: &Image,
        original: &user_regs_struct,
        (state, mask): (&[u8], u64),
        region: Option<&HandedRegion>,
    ) -> Result<Ended, InjectError> {
        let gone = |_| self.failed();
        let restore = || -> Result<(), InjectError> {
            ptrace::set_extended_state(self.tid, state).map_err(gone)?;
            ptrace::set_signal_mask(self.tid, mask).map_err(gone)?;
            setregs(self.thread(), *original).map_err(|_| self.failed())
        };
        let mut registers = in_64_bit_code(*original);
        registers.rip = layout.base;
        registers.rsp = layout.end() - 64;
        registers.rbp = 0;
        registers.orig_rax = u64::MAX;
        registers.eflags = FRESH_FLAGS;
        setregs(self.thread(), registers).map_err(|_| self.failed())?;
        let mut calls = 0;
        loop {
            ptrace::cont_to_system_call(self.tid).map_err(gone)?;
            match self.next_stop() {
                Stop::SystemCall => {
                    calls += 1;
                    // The thread itself executes the agent, if no other one can be started.
                    if let (Some(region), Some(socket)) = (region, layout.socket(self.memory)) {
                        region.hand_over(socket)?;
                    }
                    let mut now = getregs(self.thread()).map_err(|_| self.failed())?;
                    if now.rip == layout.returned(image) && now.orig_rax == libc::SYS_rt_sigreturn as u64 {
                        now.orig_rax = u64::MAX;
                        ptrace::interrupt(self.tid).map_err(gone)?;
                        setregs(self.thread(), now).map_err(|_| self.failed())?;
                        ptrace::cont(self.tid, 0).map_err(gone)?;
                        wait_until_stopped(self.tid, self.deadline + POLL_EVERY).map_err(gone)?;
                        restore()?;
                        return Ok(Ended::Returned);
                    }
                }
                Stop::Signal(signal) if calls == 0 => {
                    restore()?;
                    return Ok(Ended::Signal(signal));
                }
                Stop::Signal(signal) if self.is_fault(signal) => {
                    restore()?;
                    return Err(InjectError::Fault(signal));
                }
                // As all others are blocked, this is SIGSTOP, or a fault signal sent by another process.
                Stop::Signal(signal) => self.held.set(Some(signal)),
                Stop::Interrupted | Stop::Group => {}
                Stop::Running => {
                    // Too slow: it will return by itself.
                    return Err(InjectError::Slow(self.tid));
                }
                Stop::Ended => return Err(self.failed()),
            }
        }
    }

    /// True if the signal for which the thread is stopped was caused by its own instruction.
    fn is_fault(&self, signal: c_int) -> bool {
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP].contains(&signal)
            && getsiginfo(self.thread()).is_ok_and(|info| info.si_code > 0)
    }
}
