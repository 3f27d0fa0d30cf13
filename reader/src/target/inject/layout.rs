//! Where the agent lies in a process: what is laid out there, and the stub that a thread is sent to.
//!
//! ```text
//! page 0            the stub: blocks signals, makes the writable part writable, starts a thread, rt_sigreturn; that
//!                   thread calls the agent and ends
//! image             the agent's segments; from `writable` on the rest is writable
//! data              signal frame, call, result, thread id, reply, settings
//! stack             grows down to the data
//! ```

use std::mem::offset_of;

use nix::libc::{self, c_int};
use shm_format::injection::Call;

use crate::proc::PAGE;
use crate::target::inject::frame;
use crate::target::inject::image::{self, Image};
use crate::target::inject::memory::Memory;
use crate::target::inject::refusal::InjectError;

/// Frame, call, result, reply and settings.
const DATA: u64 = 32 << 10;
const STACK: u64 = 256 << 10;
pub(super) const CALL: u64 = frame::ROOM as u64;
pub(super) const RESULT: u64 = CALL + 128;
pub(super) const MASK: u64 = CALL + 136;
/// The thread at work, or 0: the kernel clears it at the end of one that was started.
pub(super) const WORKER: u64 = CALL + 144;
pub(super) const REPLY: u64 = CALL + 256;
pub(super) const REPLY_ROOM: u64 = 512;
pub(super) const SETTINGS: u64 = CALL + 1024;
pub(super) const SETTINGS_ROOM: u64 = DATA - SETTINGS;

/// A thread of the process that notes its id where it begins and ends, and has neither TLS nor a parent that waits.
pub(super) const THREAD: c_int = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Where things lie in the process.
#[derive(Clone, Copy, Debug)]
pub(super) struct AgentLayout {
    /// The stub's page; the first of all.
    pub(crate) base: u64,
    /// Bytes of the image.
    pub(super) image: u64,
}

impl AgentLayout {
    /// A place as an earlier recorder has left it, if it is one: the stub is there to the byte.
    pub(super) fn known(base: u64, file: &[u8], memory: &Memory) -> Option<Self> {
        let place = Self { base, image: image::size(file).ok()? };
        let image = Image::relocated(file, place.image_base()).ok()?;
        let stub = place.stub(&image);
        let mut found = vec![0; stub.len()];
        memory.read(base, &mut found).ok()?;
        (found == stub).then_some(place)
    }

    /// How many bytes one takes for the agent's `file`.
    pub(super) fn bytes(file: &[u8]) -> Result<u64, InjectError> {
        Ok(Self { base: 0, image: image::size(file)? }.end())
    }

    pub(super) fn image_base(self) -> u64 {
        self.base + PAGE
    }

    pub(super) fn data(self) -> u64 {
        self.image_base() + self.image
    }

    pub(super) fn end(self) -> u64 {
        self.data() + DATA + STACK
    }

    /// True if `address` lies in it.
    pub(super) fn holds(self, address: u64) -> bool {
        (self.base..self.end()).contains(&address)
    }

    /// Its memory.
    pub(super) fn range(self) -> (u64, u64) {
        (self.base, self.end() - self.base)
    }

    /// The thread that is at work in the agent, or 0.
    pub(super) fn worker(self, memory: &Memory) -> Result<u64, InjectError> {
        let [worker] = memory.words(self.data() + WORKER).map_err(InjectError::Memory)?;
        Ok(worker)
    }

    /// What the agent has said.
    pub(super) fn result(self, memory: &Memory) -> Result<(), InjectError> {
        let [result] = memory.words(self.data() + RESULT).map_err(InjectError::Memory)?;
        if result == 0 {
            return Ok(());
        }
        let mut text = vec![0; result.min(REPLY_ROOM) as usize];
        memory.read(self.data() + REPLY, &mut text).map_err(InjectError::Memory)?;
        let text = if result == u64::MAX {
            "its memory cannot be made writable".into()
        } else {
            String::from_utf8_lossy(&text)
        };
        Err(InjectError::Agent(text.into_owned()))
    }

    /// The socket through which the agent waits for a file, if it does now.
    pub(super) fn socket(self, memory: &Memory) -> Option<i32> {
        let [word] = memory.words(self.data() + CALL + offset_of!(Call, socket) as u64).ok()?;
        i32::try_from(word.checked_sub(1)?).ok()
    }

    /// Where the loader may tell the agent of its changes, once the agent has been called.
    pub(super) fn hook(self, memory: &Memory) -> Option<u64> {
        let [hook] = memory.words(self.data() + CALL + offset_of!(Call, hook) as u64).ok()?;
        self.holds(hook).then_some(hook)
    }

    /// The stub's code.
    pub(super) fn stub(self, image: &Image) -> Vec<u8> {
        let (data, writable) = (self.data(), self.image_base() + image.writable);
        let mut code = vec![0xfc]; // cld
        let load = |code: &mut Vec<u8>, register: [u8; 2], value: u64| {
            code.extend(register);
            code.extend(value.to_le_bytes());
        };
        let (rax, rdi, rsi, rdx, rsp, r8, r10) = (
            [0x48, 0xb8],
            [0x48, 0xbf],
            [0x48, 0xbe],
            [0x48, 0xba],
            [0x48, 0xbc],
            [0x49, 0xb8],
            [0x49, 0xba],
        );
        let store_rax = [0x48, 0xa3];
        let enter = |code: &mut Vec<u8>, apart: u64| {
            load(code, rdi, data + CALL);
            load(code, rsi, apart);
            load(code, rax, self.image_base() + image.entry);
            code.extend([0xff, 0xd0]); // call rax
            load(code, store_rax, data + RESULT);
        };
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
        let mut to_back = vec![jump(&mut code, [0x0f, 0x85])]; // jnz
        load(&mut code, rax, libc::SYS_clone as u64);
        load(&mut code, rdi, THREAD as u64);
        load(&mut code, rsi, self.end() - 64);
        load(&mut code, rdx, data + WORKER);
        load(&mut code, r10, data + WORKER);
        load(&mut code, r8, 0);
        code.extend(SYSCALL);
        code.extend([0x48, 0x85, 0xc0]);
        to_back.push(jump(&mut code, [0x0f, 0x8f])); // jg: somebody else does it
        let to_apart = jump(&mut code, [0x0f, 0x84]); // jz
        load(&mut code, rax, libc::SYS_gettid as u64);
        code.extend(SYSCALL);
        load(&mut code, store_rax, data + WORKER);
        enter(&mut code, 0);
        code.extend([0x31, 0xc0]); // xor eax, eax
        load(&mut code, store_rax, data + WORKER);
        to_back.push(jump(&mut code, [0x90, 0xe9])); // jmp
        land(&mut code, to_apart);
        enter(&mut code, 1);
        load(&mut code, rax, libc::SYS_exit as u64);
        load(&mut code, rdi, 0);
        code.extend(SYSCALL);
        to_back.into_iter().for_each(|from| land(&mut code, from));
        let back = code.len();
        load(&mut code, rsp, data);
        load(&mut code, rax, libc::SYS_rt_sigreturn as u64);
        code.extend(SYSCALL);
        // Skipped by a tracer that was killed before it had set the registers: once more, then.
        code.extend([0xeb, (back as i32 - code.len() as i32 - 2) as u8]);
        code
    }

    /// The address after the `syscall` instruction of the way back.
    pub(super) fn returned(self, image: &Image) -> u64 {
        self.base + self.stub(image).len() as u64 - 2
    }
}

/// Appends a jump to somewhere ahead; where its distance goes.
fn jump(code: &mut Vec<u8>, operation: [u8; 2]) -> usize {
    code.extend(operation);
    code.extend([0; 4]);
    code.len()
}

/// Has the jump before `from` lead to the end of the code.
fn land(code: &mut [u8], from: usize) {
    let distance = (code.len() - from) as u32;
    code[from - 4..from].copy_from_slice(&distance.to_le_bytes());
}
