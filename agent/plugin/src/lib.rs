//! Unwinders for regions of code, in Rust: a typed interface to agent/include/selfwind.h. docs/plug-ins.md is the
//! contract.
//!
//! The profiler is not linked: the agent is found at run time, and without it every call returns [`Error::NO_AGENT`].
#![no_std]
#![warn(missing_docs)]

mod abi;

use core::ffi::{CStr, c_int};
use core::ops::Range;

/// Number of registers that a frame may have, by DWARF number.
pub const COLUMNS: usize = abi::COLUMNS;
/// The column of the stack pointer.
pub const SP: usize = if cfg!(target_arch = "aarch64") { 31 } else { 7 };
/// The column of the frame pointer.
pub const FP: usize = if cfg!(target_arch = "aarch64") { 29 } else { 6 };
/// The callee-saved registers, for [`Unwinder::WANTS`].
pub const CALLEE_SAVED: u64 = if cfg!(target_arch = "aarch64") { 0x7ff8_0000 } else { 0xf048 };

/// An unwinder.
pub trait Unwinder: Sync + 'static {
    /// Tag of its frames: 2 to 15 characters of `a-z0-9+-_`.
    const LANGUAGE: &'static CStr;
    /// The registers that it needs besides the stack and frame pointer, one bit per column.
    const WANTS: u64;

    /// Unwinds a frame of its region. Runs in a signal handler: see [`add_region`].
    fn unwind(&self, walk: &mut Walk<'_>) -> Step;
}

/// The result for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Declined: unwind as if there were no unwinder. Emitted frames are discarded.
    NotMine,
    /// The registers are now the caller's. Emitted frames replace the native one.
    Caller {
        /// Whether the caller was interrupted instead of making a call.
        interrupted: bool,
        /// Whether it may be on another stack.
        other_stack: bool,
    },
    /// The native frame stays. Emitted frames are placed inside it.
    Beside,
    /// The stack is complete.
    Root,
    /// Memory could not be read.
    Unreadable,
    /// A register is unknown.
    LostRegister,
    /// The unwinder has no rule for this code.
    NoRule,
}

impl Step {
    fn result(self) -> c_int {
        match self {
            Step::NotMine => 0,
            Step::Caller { interrupted, other_stack } => {
                1 | c_int::from(interrupted) << 8 | c_int::from(other_stack) << 9
            }
            Step::Beside => 2,
            Step::Root => 3,
            Step::Unreadable => 4,
            Step::LostRegister => 5,
            Step::NoRule => 6,
        }
    }
}

/// Id of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name(u32);

impl Name {
    /// Id of a text; equal texts have equal ids. Not for use in unwinders.
    ///
    /// # Errors
    /// There is no agent, or no space.
    pub fn new(text: &str) -> Result<Name, Error> {
        let agent = abi::agent().ok_or(Error::NO_AGENT)?;
        // SAFETY: the string's bytes are readable.
        match unsafe { (agent.name)(text.as_ptr(), text.len()) } {
            0 => Err(Error(-libc::ENOMEM)),
            id => Ok(Name(id)),
        }
    }
}

/// The frame being unwound.
pub struct Walk<'a>(&'a mut abi::Walk);

impl Walk<'_> {
    /// Number of the native frame; the interrupted one is 0.
    pub fn frame(&self) -> u32 {
        self.0.frame
    }

    /// Whether the program counter is the next instruction rather than a return address.
    pub fn is_interrupted(&self) -> bool {
        self.0.interrupted != 0
    }

    /// The program counter.
    pub fn pc(&self) -> u64 {
        self.0.registers.pc
    }

    /// The value of a register, if known.
    pub fn register(&self, column: usize) -> Option<u64> {
        let is_known = column < COLUMNS && self.0.registers.known >> column & 1 != 0;
        self.0.registers.value.get(column).copied().filter(|_| is_known)
    }

    /// Sets the caller's program counter, for [`Step::Caller`].
    pub fn set_pc(&mut self, pc: u64) {
        self.0.registers.pc = pc;
    }

    /// Sets a register of the caller; `None` if it is unknown.
    pub fn set_register(&mut self, column: usize, value: Option<u64>) {
        if let Some(register) = self.0.registers.value.get_mut(column) {
            *register = value.unwrap_or(0);
            self.0.registers.known =
                self.0.registers.known & !(1 << column) | u64::from(value.is_some()) << column;
        }
    }

    /// The unwinder's state words, kept from frame to frame of a stack; 0 at first.
    pub fn state(&mut self) -> &mut [u64; 4] {
        &mut self.0.state
    }

    /// Copies memory; `None` if it is unreadable, or the budget is used up.
    pub fn read(&mut self, address: u64, to: &mut [u8]) -> Option<()> {
        // SAFETY: the agent's function, for its own walk, with room for so many bytes.
        let result = unsafe { (self.0.read)(self.0, address, to.as_mut_ptr(), to.len()) };
        (result == 0).then_some(())
    }

    /// The word at `address`.
    pub fn word(&mut self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Some(u64::from_ne_bytes(bytes))
    }

    /// Id of the text of `bytes` bytes at `address`. `key` must identify it uniquely among all texts of this unwinder,
    /// forever.
    pub fn name(&mut self, key: [u64; 2], address: u64, bytes: usize) -> Option<Name> {
        // SAFETY: the agent's function, for its own walk; it checks the address.
        let id = unsafe { (self.0.name)(self.0, key[0], key[1], address, bytes) };
        (id != 0).then_some(Name(id))
    }

    /// Adds a frame, the innermost first: a function, its file and first line (or 0), and the line that runs (or 0).
    pub fn emit(&mut self, name: Name, file: Option<Name>, first_line: u32, line: u32) -> Option<()> {
        let file = file.map_or(0, |file| file.0);
        let size = size_of::<abi::Frame>() as u32;
        let frame = abi::Frame { size, name: name.0, file, first_line, line };
        // SAFETY: the agent's function, for its own walk.
        let result = unsafe { (self.0.emit)(self.0, &frame) };
        (result == 0).then_some(())
    }
}

/// An error, as `-errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error(pub i32);

impl Error {
    /// The agent is not in the process.
    pub const NO_AGENT: Error = Error(-libc::ENOSYS);
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Error::NO_AGENT => f.write_str("the process is not profiled"),
            Error(error) if error == -libc::EBUSY => f.write_str("the unwinder may still be running"),
            Error(error) => write!(f, "errno {}", -error),
        }
    }
}

impl core::error::Error for Error {}

/// A registered region. It stays registered when this is dropped.
#[derive(Debug)]
pub struct Region(c_int);

/// Registers `unwinder` for the code in `range`.
///
/// # Errors
/// As for `selfwind_add_region`: no agent, an invalid range, a range that already has an unwinder, too many regions.
///
/// # Safety
/// [`Unwinder::unwind`] runs in a signal handler, at any instruction of the thread: it must not allocate, lock, call a
/// library or panic, must use at most 2 KiB of stack, and must always return.
pub unsafe fn add_region<U: Unwinder>(unwinder: &'static U, range: Range<u64>) -> Result<Region, Error> {
    unsafe extern "C" fn unwind<U: Unwinder>(walk: *mut abi::Walk) -> c_int {
        // SAFETY: the agent's walk, valid until this returns; `data` is what `add_region` registered.
        unsafe {
            let unwinder = &*(*walk).data.cast::<U>();
            unwinder.unwind(&mut Walk(&mut *walk)).result()
        }
    }
    let agent = abi::agent().ok_or(Error::NO_AGENT)?;
    let given = abi::Unwinder {
        size: size_of::<abi::Unwinder>() as u32,
        version: abi::VERSION,
        language: U::LANGUAGE.as_ptr(),
        unwind: unwind::<U>,
        data: core::ptr::from_ref(unwinder).cast_mut().cast(),
        wants: U::WANTS,
    };
    // SAFETY: a complete structure, which the agent copies.
    match unsafe { (agent.add_region)(&given, range.start, range.end) } {
        region if region > 0 => Ok(Region(region)),
        error => Err(Error(error)),
    }
}

impl Region {
    /// Removes the region. On success no thread runs its unwinder any more.
    ///
    /// # Errors
    /// As for `selfwind_remove`.
    pub fn remove(self) -> Result<(), Error> {
        let agent = abi::agent().ok_or(Error::NO_AGENT)?;
        // SAFETY: the agent accepts any number.
        match unsafe { (agent.remove)(self.0) } {
            0 => Ok(()),
            error => Err(Error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    struct Nobody;

    impl Unwinder for Nobody {
        const LANGUAGE: &'static CStr = c"nobody";
        const WANTS: u64 = CALLEE_SAVED;

        fn unwind(&self, _: &mut Walk<'_>) -> Step {
            Step::NotMine
        }
    }

    #[test]
    fn without_an_agent_it_is_inert() {
        // SAFETY: the unwinder does nothing, so it fulfils the contract.
        assert_eq!(unsafe { add_region(&Nobody, 4096..8192) }.unwrap_err(), Error::NO_AGENT);
        assert_eq!(Name::new("f"), Err(Error::NO_AGENT));
        assert_eq!(std::format!("{}", Error(-libc::EEXIST)), "errno 17");
    }

    #[test]
    fn results_are_what_the_header_says() {
        let caller = |interrupted, other_stack| Step::Caller { interrupted, other_stack }.result();
        assert_eq!([caller(false, false), caller(true, false), caller(false, true)], [1, 0x101, 0x201]);
        let others =
            [Step::NotMine, Step::Beside, Step::Root, Step::Unreadable, Step::LostRegister, Step::NoRule];
        assert_eq!(others.map(Step::result), [0, 2, 3, 4, 5, 6]);
    }
}
