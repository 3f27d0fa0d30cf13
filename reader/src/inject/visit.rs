//! One visit to a stopped thread: it is sent into the agent and comes back as it was.
//!
//! ```text
//! page 0            the stub: blocks signals, makes the writable part writable, calls the agent, rt_sigreturn
//! image             the agent's segments; from `writable` on the rest is writable
//! data              signal frame, call, result, reply, settings
//! stack             grows down to the data
//! ```
//!
//! The order keeps the thread safe at any time, should this process be killed:
//!
//! 1. One `mmap`, made by the thread at a `syscall; ret` of its C library, with a signal frame below the red zone of the
//!    main stack that this `ret` would lead through. Where the thread is on no main stack, whose depth is known to be
//!    free, a bare `syscall` must do: then our death between setting its registers and setting them back (two switches
//!    of tasks) would leave it astray.
//! 2. Everything is written while the thread is as it was.
//! 3. Its registers are set to the stub, all at once. From here on it comes back by itself, through the signal frame,
//!    whether anybody traces it or not.
//! 4. At the stub's `rt_sigreturn` it is stopped. Floating-point state, mask and, last, registers are set as they were,
//!    which (other than a signal frame can) also lets an interrupted `nanosleep` sleep only for what is left.

use std::cell::Cell;
use std::time::{Duration, Instant};

use nix::libc::{self, c_int, user_regs_struct};
use nix::sys::ptrace::{getregs, getsiginfo, setregs};
use nix::unistd::Pid;
use shm_format::injection::Call;

use crate::attach::ptrace::{self, Stop};
use crate::inject::InjectError;
use crate::inject::facts::Mapping;
use crate::inject::frame;
use crate::inject::frozen::wait_until_stopped;
use crate::inject::gadgets::Gadgets;
use crate::inject::image::{self, Image};
use crate::inject::memory::Memory;

const PAGE: u64 = 4096;
/// Frame, call, result, reply and settings.
const DATA: u64 = 32 << 10;
const STACK: u64 = 256 << 10;
const CALL: u64 = frame::ROOM as u64;
const RESULT: u64 = CALL + 128;
const MASK: u64 = CALL + 136;
const REPLY: u64 = CALL + 256;
const REPLY_ROOM: u64 = 512;
const SETTINGS: u64 = CALL + 1024;
const SETTINGS_ROOM: u64 = DATA - SETTINGS;

/// Signals of faults stay open: blocked, they would end the process without a word.
const BLOCKED: u64 = !(1 << (libc::SIGSEGV - 1)
    | 1 << (libc::SIGBUS - 1)
    | 1 << (libc::SIGILL - 1)
    | 1 << (libc::SIGFPE - 1)
    | 1 << (libc::SIGTRAP - 1));
const FRESH_FLAGS: u64 = 0x202;
/// `mov rax, 15; syscall; jmp` back to the beginning of all this.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// A thread that signals keep away from the stub.
const ATTEMPTS: usize = 100;
const LOOK: Duration = Duration::from_micros(20);

/// Where things lie in the process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The stub's page; the first of all.
    pub base: u64,
    /// Bytes of the image.
    image: u64,
}

impl Place {
    /// A place as an earlier recorder has left it, if it is one: the stub is there to the byte.
    pub(super) fn known(base: u64, file: &[u8], memory: &Memory) -> Option<Self> {
        let place = Self { base, image: image::size(file).ok()? };
        let image = Image::relocated(file, place.image_base()).ok()?;
        let stub = place.stub(&image);
        let mut found = vec![0; stub.len()];
        memory.read(base, &mut found).ok()?;
        (found == stub).then_some(place)
    }

    fn image_base(self) -> u64 {
        self.base + PAGE
    }

    fn data(self) -> u64 {
        self.image_base() + self.image
    }

    fn end(self) -> u64 {
        self.data() + DATA + STACK
    }

    /// The stub's code.
    fn stub(self, image: &Image) -> Vec<u8> {
        let (data, writable) = (self.data(), self.image_base() + image.writable);
        let mut code = vec![0xfc]; // cld
        let load = |code: &mut Vec<u8>, register: [u8; 2], value: u64| {
            code.extend(register);
            code.extend(value.to_le_bytes());
        };
        let (rax, rdi, rsi, rdx, rsp, r10) =
            ([0x48, 0xb8], [0x48, 0xbf], [0x48, 0xbe], [0x48, 0xba], [0x48, 0xbc], [0x49, 0xba]);
        load(&mut code, rax, libc::SYS_rt_sigprocmask as u64);
        load(&mut code, rdi, libc::SIG_SETMASK as u64);
        load(&mut code, rsi, data + MASK);
        load(&mut code, rdx, 0);
        load(&mut code, r10, 8);
        code.extend(SYSCALL);
        load(&mut code, rax, libc::SYS_mprotect as u64);
        load(&mut code, rdi, writable);
        load(&mut code, rsi, self.end() - writable);
        load(&mut code, rdx, (libc::PROT_READ | libc::PROT_WRITE) as u64);
        code.extend(SYSCALL);
        code.extend([0x48, 0x85, 0xc0]); // test rax, rax
        code.extend([0x75, 10 + 10 + 2 + 10]); // jnz to the way back
        load(&mut code, rdi, data + CALL);
        load(&mut code, rax, self.image_base() + image.entry);
        code.extend([0xff, 0xd0]); // call rax
        load(&mut code, [0x48, 0xa3], data + RESULT); // mov [result], rax
        let back = code.len();
        load(&mut code, rsp, data);
        load(&mut code, rax, libc::SYS_rt_sigreturn as u64);
        code.extend(SYSCALL);
        // Skipped by a tracer that was killed before it had set the registers: once more, then.
        code.extend([0xeb, (back as i32 - code.len() as i32 - 2) as u8]);
        code
    }

    /// The address after the `syscall` instruction of the way back.
    fn returned(self, image: &Image) -> u64 {
        self.base + self.stub(image).len() as u64 - 2
    }
}

/// What a visit needs.
pub(super) struct Visit<'a> {
    tid: i32,
    memory: &'a Memory,
    agent: &'a [u8],
    deadline: Instant,
    /// A signal that came at the wrong time.
    held: Cell<Option<c_int>>,
}

/// Where a signal frame can lie below `sp`, if that is in the main stack and the frame too.
fn free_stack(mappings: &[Mapping], sp: u64) -> Option<u64> {
    /// System V ABI.
    const RED_ZONE: u64 = 128;
    let stack = mappings
        .iter()
        .find(|mapping| mapping.name == "[stack]" && (mapping.start..mapping.end).contains(&sp))?;
    let room = sp.checked_sub(RED_ZONE + frame::ROOM as u64)? & !63;
    // Room for a handler too, should one come in between.
    (room.checked_sub(PAGE)? >= stack.start).then_some(room)
}

enum Ended {
    /// The call came back.
    Returned,
    /// A signal came before the stub had blocked it; the thread is as it was, with the signal to come.
    Signal(c_int),
}

impl<'a> Visit<'a> {
    /// A visit to the stopped thread `tid`, whose process has this `memory`, with the `agent`'s file, which is given up
    /// at the `deadline`.
    pub(super) fn new(tid: i32, memory: &'a Memory, agent: &'a [u8], deadline: Instant) -> Self {
        Self { tid, memory, agent, deadline, held: Cell::new(None) }
    }

    /// A signal that the thread should have had meanwhile.
    pub(super) fn held(&self) -> Option<c_int> {
        self.held.get()
    }

    fn thread(&self) -> Pid {
        Pid::from_raw(self.tid)
    }

    fn failed(&self) -> InjectError {
        InjectError::Lost(self.tid)
    }

    /// Maps the place and lays the agent into it.
    pub(super) fn lay_out(&self, mappings: &[Mapping]) -> Result<Place, InjectError> {
        let image = image::size(self.agent)?;
        let place = Place { base: 0, image };
        let base = self.map(mappings, place.end())?;
        let place = Place { base, image };
        let image = Image::relocated(self.agent, place.image_base())?;
        let write = |address, bytes: &[u8]| self.memory.write(address, bytes);
        write(place.image_base(), &image.bytes)
            .and_then(|()| write(place.base, &place.stub(&image)))
            .map_err(InjectError::Memory)?;
        Ok(place)
    }

    /// Has the thread map `bytes`.
    fn map(&self, mappings: &[Mapping], bytes: u64) -> Result<u64, InjectError> {
        for _ in 0..ATTEMPTS {
            let original = getregs(self.thread()).map_err(|_| self.failed())?;
            let mut registers = original;
            let room = free_stack(mappings, original.rsp);
            let gadgets = Gadgets::find(mappings, self.memory, room.is_some()).ok_or(InjectError::NoWay)?;
            registers.rip = gadgets.call();
            if let (Gadgets::Returning { back, .. }, Some(room)) = (gadgets, room) {
                registers.rsp = self.lay_way_back(room, back, &original)?;
            }
            registers.orig_rax = u64::MAX;
            registers.rax = libc::SYS_mmap as u64;
            registers.rdi = 0;
            registers.rsi = bytes;
            // Never writable and executable at once: some processes may not.
            registers.rdx = (libc::PROT_READ | libc::PROT_EXEC) as u64;
            registers.r10 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
            registers.r8 = u64::MAX;
            registers.r9 = 0;
            let result = self.system_call(&original, registers)?;
            match result {
                Ok(address) if (-4095..0).contains(&(address as i64)) => {
                    return Err(InjectError::Map(std::io::Error::from_raw_os_error(-(address as i32))));
                }
                Ok(address) => return Ok(address),
                Err(signal) => self.deliver(signal)?,
            }
        }
        Err(InjectError::Busy(self.tid))
    }

    /// Writes a signal frame into free stack, with `back`, the address of an `rt_sigreturn`, below it; the address of that.
    fn lay_way_back(&self, room: u64, back: u64, original: &user_regs_struct) -> Result<u64, InjectError> {
        let state = ptrace::extended_state(self.tid).map_err(|_| self.failed())?;
        let mask = ptrace::signal_mask(self.tid).map_err(|_| self.failed())?;
        let mut bytes = back.to_le_bytes().to_vec();
        bytes.extend(frame::frame(room, original, &state, mask));
        self.memory.write(room - 8, &bytes).map_err(InjectError::Memory)?;
        Ok(room - 8)
    }

    /// Has the thread make the system call of `registers` and stops it as it was before; or gives the signal that came
    /// in between.
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
                    // -ENOSYS stands there before the call.
                    if now.rax as i64 != -i64::from(libc::ENOSYS) {
                        result = Some(Ok(now.rax));
                    }
                }
                Stop::Signal(signal) => result = Some(Err(signal)),
                Stop::Interrupted | Stop::Group => {}
                Stop::Ended | Stop::Running => {
                    let _ = setregs(self.thread(), *original);
                    return Err(self.failed());
                }
            }
        }
        // First the interrupt, so that the kernel restarts an interrupted call whatever becomes of us.
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

    /// Lets the thread have a signal, and stops it again.
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
                Ok(Stop::Running) if Instant::now() < self.deadline => std::thread::sleep(LOOK),
                Ok(stop) => return stop,
                Err(_) => return Stop::Ended,
            }
        }
    }

    /// Calls the agent at `place`.
    pub(super) fn call(&self, place: Place, call: Call, settings: &[u8]) -> Result<(), InjectError> {
        if settings.len() as u64 > SETTINGS_ROOM {
            return Err(InjectError::Image("the settings are too long"));
        }
        let image = Image::relocated(self.agent, place.image_base())?;
        let data = place.data();
        let call = Call {
            version: Call::VERSION,
            settings: data + SETTINGS,
            settings_len: settings.len() as u64,
            control: place.base,
            reply: data + REPLY,
            reply_capacity: REPLY_ROOM,
            ..call
        };
        let words: Vec<u8> = call.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        let write =
            |offset, bytes: &[u8]| self.memory.write(data + offset, bytes).map_err(InjectError::Memory);
        write(CALL, &words)?;
        write(RESULT, &u64::MAX.to_le_bytes())?;
        write(MASK, &BLOCKED.to_le_bytes())?;
        write(SETTINGS, settings)?;
        for _ in 0..ATTEMPTS {
            let registers = getregs(self.thread()).map_err(|_| self.failed())?;
            let state = ptrace::extended_state(self.tid).map_err(|_| self.failed())?;
            let mask = ptrace::signal_mask(self.tid).map_err(|_| self.failed())?;
            write(0, &frame::frame(data, &registers, &state, mask))?;
            match self.run(place, &image, &registers, &state, mask)? {
                Ended::Returned => return self.result(data),
                Ended::Signal(signal) => self.deliver(signal)?,
            }
        }
        Err(InjectError::Busy(self.tid))
    }

    fn result(&self, data: u64) -> Result<(), InjectError> {
        let [result] = self.memory.words(data + RESULT).map_err(InjectError::Memory)?;
        if result == 0 {
            return Ok(());
        }
        let mut text = vec![0; result.min(REPLY_ROOM) as usize];
        self.memory.read(data + REPLY, &mut text).map_err(InjectError::Memory)?;
        let text = if result == u64::MAX {
            "its memory cannot be made writable".into()
        } else {
            String::from_utf8_lossy(&text)
        };
        Err(InjectError::Agent(text.into_owned()))
    }

    /// Sends the thread into the stub and waits until it is back.
    fn run(
        &self,
        place: Place,
        image: &Image,
        original: &user_regs_struct,
        state: &[u8],
        mask: u64,
    ) -> Result<Ended, InjectError> {
        let gone = |_| self.failed();
        let restore = || -> Result<(), InjectError> {
            ptrace::set_extended_state(self.tid, state).map_err(gone)?;
            ptrace::set_signal_mask(self.tid, mask).map_err(gone)?;
            setregs(self.thread(), *original).map_err(|_| self.failed())
        };
        let mut registers = *original;
        registers.rip = place.base;
        registers.rsp = place.end() - 64;
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
                    let mut now = getregs(self.thread()).map_err(|_| self.failed())?;
                    if now.rip == place.returned(image) && now.orig_rax == libc::SYS_rt_sigreturn as u64 {
                        now.orig_rax = u64::MAX;
                        ptrace::interrupt(self.tid).map_err(gone)?;
                        setregs(self.thread(), now).map_err(|_| self.failed())?;
                        ptrace::cont(self.tid, 0).map_err(gone)?;
                        wait_until_stopped(self.tid, self.deadline + LOOK).map_err(gone)?;
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
                // While all is blocked this is SIGSTOP, or a fault's signal that somebody sent.
                Stop::Signal(signal) => self.held.set(Some(signal)),
                Stop::Interrupted | Stop::Group => {}
                Stop::Running => {
                    // Too slow: it finds its way back alone.
                    return Err(InjectError::Slow(self.tid));
                }
                Stop::Ended => return Err(self.failed()),
            }
        }
    }

    /// True if the signal that the thread is stopped for comes from an instruction of its own.
    fn is_fault(&self, signal: c_int) -> bool {
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP].contains(&signal)
            && getsiginfo(self.thread()).is_ok_and(|info| info.si_code > 0)
    }
}
