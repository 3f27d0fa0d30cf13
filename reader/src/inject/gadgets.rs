//! Instructions of the process that a thread can be sent to, before there is memory for instructions of ours.

use crate::inject::facts::Mapping;
use crate::inject::memory::Memory;

/// `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `syscall; ret`, as in the C libraries' `getpid`.
const SYSCALL_RET: [u8; 3] = [0x0f, 0x05, 0xc3];
/// `mov rax, 15; syscall`: the return from every signal handler, in each C library.
const SIGRETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// Bytes looked through of one mapping.
const LIMIT: u64 = 16 << 20;

/// Addresses of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gadgets {
    /// A system call after which the thread finds its way back through a signal frame.
    Returning {
        /// `syscall; ret`.
        call: u64,
        /// `rt_sigreturn`.
        back: u64,
    },
    /// A system call after which somebody must look after the thread.
    Bare {
        /// `syscall`.
        call: u64,
    },
}

impl Gadgets {
    /// The best there are in `mappings`. Those that return need a signal frame on the stack.
    pub(super) fn find(mappings: &[Mapping], memory: &Memory, may_return: bool) -> Option<Self> {
        let (mut call, mut back, mut bare) = (None, None, None);
        for mapping in mappings.iter().filter(|mapping| mapping.executable && mapping.name != "[vsyscall]") {
            let mut code = vec![0; (mapping.end - mapping.start).min(LIMIT) as usize];
            if memory.read(mapping.start, &mut code).is_err() {
                continue;
            }
            let find = |bytes: &[u8]| {
                let offset = code.windows(bytes.len()).position(|window| window == bytes)?;
                Some(mapping.start + offset as u64)
            };
            call = call.or_else(|| find(&SYSCALL_RET));
            back = back.or_else(|| find(&SIGRETURN));
            bare = bare.or_else(|| find(&SYSCALL));
            if let (true, Some(call), Some(back)) = (may_return, call, back) {
                return Some(Self::Returning { call, back });
            }
            if !may_return && bare.is_some() {
                break;
            }
        }
        bare.map(|call| Self::Bare { call })
    }

    /// The address of the system call.
    pub(super) fn call(self) -> u64 {
        match self {
            Self::Returning { call, .. } | Self::Bare { call } => call,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inject::facts::mappings;

    #[test]
    fn the_c_library_has_them() {
        let pid = std::process::id() as i32;
        let (memory, mappings) = (Memory::of(pid).unwrap(), mappings(pid));
        let Some(Gadgets::Returning { call, back }) = Gadgets::find(&mappings, &memory, true) else {
            panic!("none")
        };
        let mut bytes = [0; 9];
        memory.read(back, &mut bytes).unwrap();
        assert_eq!(bytes, SIGRETURN);
        memory.read(call, &mut bytes[..3]).unwrap();
        assert_eq!(bytes[..3], SYSCALL_RET);
        assert!(matches!(Gadgets::find(&mappings, &memory, false), Some(Gadgets::Bare { .. })));
        assert_eq!(Gadgets::find(&[], &memory, true), None);
    }
}
