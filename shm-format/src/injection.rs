//! The interface between a recorder and an agent that it has injected into a running process.
//!
//! The recorder stops one thread of the process, copies the agent's segments and a [`Call`] into its memory, and makes
//! that thread start another one, which calls the agent's entry point (`e_entry` of its file) as a C function with two
//! arguments: the address of the call, and 1. If the process may create no more threads, the stopped thread makes the
//! call itself and passes 0. Either way it runs on a stack that the recorder provides, with all signals blocked, while
//! the process continues. The result is 0, or the length of an error message in the reply buffer. Both sides come from
//! the same build, since the recorder brings the agent; an agent that is already present is used only if its
//! [`Call::VERSION`] is the same.

use core::mem::offset_of;

/// The requested operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Command {
    /// Start sampling. If the agent is sampling already, look for new modules and threads.
    Start = 1,
    /// Stop sampling. The agent stays loaded, since signals may still be pending.
    Stop = 2,
    /// Redirect the program's allocations to the agent, if it records them, in all objects that are loaded now. The loader must be
    /// hooked ([`Call::hook`]), so that it waits meanwhile.
    Redirect = 3,
}

impl Command {
    /// The command with this number, if there is one.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Option<Self> {
        match raw {
            1 => Some(Self::Start),
            2 => Some(Self::Stop),
            3 => Some(Self::Redirect),
            _ => None,
        }
    }
}

/// One call. Addresses are those of the process. The memory stays mapped forever, except for the reply buffer, which is
/// only written during the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Call {
    /// [`Call::VERSION`].
    pub version: u64,
    /// A [`Command`].
    pub command: u64,
    /// Address of the settings: `NAME=value` strings as in an environment, each terminated by NUL.
    pub settings: u64,
    /// Length of the settings in bytes.
    pub settings_len: u64,
    /// Address of the loader's `struct r_debug`; 0 without a loader.
    pub debugger: u64,
    /// Address of a copy of the auxiliary vector: pairs of a tag and a value (getauxval(3)). A process that has given up
    /// privileges may not read its own.
    pub auxiliary: u64,
    /// Number of its 64-bit words.
    pub auxiliary_words: u64,
    /// A value for the next recorder, which the agent publishes as the durable setting [`Call::SETTING`] in
    /// hexadecimal.
    pub control: u64,
    /// Address of the reply buffer.
    pub reply: u64,
    /// Size of the reply buffer in bytes.
    pub reply_capacity: u64,
    /// The signal mask of the calling thread outside the call.
    pub mask: u64,
    /// 1 if the thread has no system call filter, so that the agent may ask the kernel about it; otherwise 0.
    pub unfiltered: u64,
    /// Set by the agent: address of the code that the loader is to jump to where it notifies debuggers.
    pub hook: u64,
    /// Set by the agent while it waits for the file of its region: the descriptor, plus 1, of the socket on which it
    /// expects the file from the recorder; otherwise 0.
    pub socket: u64,
}

impl Call {
    /// Version of this structure and of the meaning of the commands.
    pub const VERSION: u64 = 4;
    /// Name of the durable setting that holds [`Call::control`].
    pub const SETTING: &'static [u8] = b"attached";
    /// Name of the durable setting that names the recorder whose death ends the sampling, as `PID-STARTTIME`; empty if
    /// sampling ends on request only.
    pub const RECORDER: &'static [u8] = b"recorder";
    /// Number of 64-bit words of a call.
    pub const WORDS: usize = 14;

    /// The call as 64-bit words, as it lies in memory.
    #[must_use]
    pub const fn words(&self) -> [u64; Self::WORDS] {
        [
            self.version,
            self.command,
            self.settings,
            self.settings_len,
            self.debugger,
            self.auxiliary,
            self.auxiliary_words,
            self.control,
            self.reply,
            self.reply_capacity,
            self.mask,
            self.unfiltered,
            self.hook,
            self.socket,
        ]
    }
}

const _: () = assert!(size_of::<Call>() == 8 * Call::WORDS);
const _: () = assert!(offset_of!(Call, command) == 8 && offset_of!(Call, settings_len) == 24);
const _: () = assert!(offset_of!(Call, control) == 56 && offset_of!(Call, reply_capacity) == 72);
const _: () =
    assert!(offset_of!(Call, mask) == 80 && offset_of!(Call, hook) == 96 && offset_of!(Call, socket) == 104);
