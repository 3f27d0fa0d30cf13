//! The layout of an injected agent in a process's memory, and the stub that a thread executes.
//!
//! ```text
//! page 0            the stub: blocks signals, makes the writable part writable, starts a thread, rt_sigreturn; that
//!                   thread calls the agent and ends
//! image             the agent's segments; from `writable` on the rest is writable
//! data              signal frame, call, result, thread id, reply, auxiliary vector, settings
//! stack             grows down to the data
//! ```

use std::mem::offset_of;

use nix::libc::{self, c_int};
use shm_format::injection::Call;

use crate::proc::PAGE;
use crate::target::inject::error::InjectError;
use crate::target::inject::frame;
use crate::target::inject::image::{self, Image};
use crate::target::inject::memory::Memory;

/// Frame, call, result, reply, auxiliary vector and settings.
const DATA: u64 = 32 << 10;
const STACK: u64 = 256 << 10;
pub(super) const CALL: u64 = frame::ROOM as u64;
pub(super) const RESULT: u64 = CALL + 128;
pub(super) const MASK: u64 = CALL + 136;
/// Id of the working thread, or 0: the kernel clears it when that thread ends.
pub(super) const WORKER: u64 = CALL + 144;
pub(super) const REPLY: u64 = CALL + 256;
pub(super) const REPLY_ROOM: u64 = 512;
pub(super) const AUXILIARY: u64 = CALL + 1024;
/// Room for the auxiliary vector; that of today's kernels has 50.
pub(super) const AUXILIARY_WORDS: usize = 128;
pub(super) const SETTINGS: u64 = AUXILIARY + 8 * AUXILIARY_WORDS as u64;
pub(super) const SETTINGS_ROOM: u64 = DATA - SETTINGS;

/// Clone flags of the injected thread: it shares everything with the process, stores and clears its id, and has neither TLS nor a
/// waiting parent.
pub(super) const THREAD: c_int = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Addresses in the process.
#[derive(Clone, Copy, Debug)]
pub(super) struct AgentLayout {
    /// The stub's page, which is the first.
    pub(crate) base: u64,
    /// Size of the image in bytes.
    pub(super) image: u64,
}

impl AgentLayout {
    /// The layout left by an earlier recorder at `base`, if its stub is unchanged.
    pub(super) fn known(base: u64, file: &[u8], memory: &Memory) -> Option<Self> {
        let layout = Self { base, image: image::size(file).ok()? };
        let image = Image::relocated(file, layout.image_base()).ok()?;
        let stub = layout.stub(&image);
        let mut found = vec![0; stub.len()];
        memory.read(base, &mut found).ok()?;
        (found == stub).then_some(layout)
    }

    /// Total size in bytes for the agent's `file`.
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

    /// True if it contains `address`.
    pub(super) fn holds(self, address: u64) -> bool {
        (self.base..self.end()).contains(&address)
    }

    /// Its address range.
    pub(super) fn range(self) -> (u64, u64) {
        (self.base, self.end() - self.base)
    }

    /// Id of the thread that is executing the agent, or 0.
    pub(super) fn worker(self, memory: &Memory) -> Result<u64, InjectError> {
        let [worker] = memory.words(self.data() + WORKER).map_err(InjectError::Memory)?;
        Ok(worker)
    }

    /// The result of the agent's call.
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

    /// The socket on which the agent is waiting for a file, if it is.
    pub(super) fn socket(self, memory: &Memory) -> Option<i32> {
        let [word] = memory.words(self.data() + CALL + offset_of!(Call, socket) as u64).ok()?;
        i32::try_from(word.checked_sub(1)?).ok()
    }

    /// The function that the loader may call to notify the agent; known once the agent has been called.
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
        // Reached if the tracer was killed before it set the registers: repeat the call.
        code.extend([0xeb, (back as i32 - code.len() as i32 - 2) as u8]);
        code
    }

    /// The address after the `syscall` instruction of the return.
    pub(super) fn returned(self, image: &Image) -> u64 {
        self.base + self.stub(image).len() as u64 - 2
    }
}

/// Appends a forward jump. Returns where its displacement goes.
fn jump(code: &mut Vec<u8>, operation: [u8; 2]) -> usize {
    code.extend(operation);
    code.extend([0; 4]);
    code.len()
}

/// Sets the target of the jump before `from` to the end of the code.
fn land(code: &mut [u8], from: usize) {
    let distance = (code.len() - from) as u32;
    code[from - 4..from].copy_from_slice(&distance.to_le_bytes());
}
