//! How a recorder speaks with an agent that it has put into a running process.
//!
//! The recorder stops one thread of the process, lays the agent's segments and one [`Call`] into its memory, and has
//! that thread start another, which enters the agent's entry point (`e_entry` of its file) as a C function of the call's
//! address and a number: 1 on such a thread of its own, 0 where the process may have no more threads and the stopped one
//! came itself. Either way it runs on a stack of the recorder's, with every signal blocked, while the process goes on. The
//! result is 0, or the length of a text in the reply buffer that says what is in the way. Both sides are of the same build,
//! since the recorder brings the agent along; an agent that is there already is spoken to only if [`Call::VERSION`] is its
//! own.

use core::mem::offset_of;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Command {
    /// Sample from now on; if the agent samples already, look at modules and threads once more.
    Start = 1,
    /// Sample no more. The agent stays where it is, since ticks may be on their way.
    Stop = 2,
}

impl Command {
    /// The command of that number, if there is one.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Option<Self> {
        match raw {
            1 => Some(Self::Start),
            2 => Some(Self::Stop),
            _ => None,
        }
    }
}

/// One call. Addresses are those of the process; they stay mapped for ever, except the reply, which is written during
/// the call only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Call {
    /// [`Call::VERSION`].
    pub version: u64,
    /// A [`Command`].
    pub command: u64,
    /// Address of the settings: `NAME=value` strings as in an environment, each ended by a NUL.
    pub settings: u64,
    /// Bytes of the settings.
    pub settings_len: u64,
    /// Address of the loader's `struct r_debug`, or 0 where no loader runs.
    pub debugger: u64,
    /// What the agent tells the next recorder, as the durable setting [`Call::SETTING`] in hexadecimal.
    pub control: u64,
    /// Address of the reply buffer.
    pub reply: u64,
    /// Bytes of the reply buffer.
    pub reply_capacity: u64,
    /// The signals that the calling thread blocks when it is not called.
    pub mask: u64,
    /// Written by the agent: the address of code that the loader may jump to where it tells debuggers of a change.
    pub hook: u64,
    /// Written by the agent while it waits for the file of its region: the descriptor, plus 1, of the socket through which
    /// the recorder sends it; else 0.
    pub socket: u64,
}

impl Call {
    /// Version of this structure and of what the commands mean.
    pub const VERSION: u64 = 2;
    /// Name of the durable setting that holds [`Call::control`].
    pub const SETTING: &'static [u8] = b"attached";
    /// Name of the durable setting that says which recorder ends the sampling with itself, as `PID-STARTTIME`; empty if
    /// somebody has to be asked for it.
    pub const RECORDER: &'static [u8] = b"recorder";
    /// 64-bit words of a call.
    pub const WORDS: usize = 11;

    /// The call as it lies in memory.
    #[must_use]
    pub const fn words(&self) -> [u64; Self::WORDS] {
        [
            self.version,
            self.command,
            self.settings,
            self.settings_len,
            self.debugger,
            self.control,
            self.reply,
            self.reply_capacity,
            self.mask,
            self.hook,
            self.socket,
        ]
    }
}

const _: () = assert!(size_of::<Call>() == 8 * Call::WORDS);
const _: () = assert!(offset_of!(Call, command) == 8 && offset_of!(Call, settings_len) == 24);
const _: () = assert!(offset_of!(Call, control) == 40 && offset_of!(Call, reply_capacity) == 56);
const _: () =
    assert!(offset_of!(Call, mask) == 64 && offset_of!(Call, hook) == 72 && offset_of!(Call, socket) == 80);
