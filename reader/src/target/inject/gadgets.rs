//! Finds instructions in the process that a thread can be made to execute before there is memory for the stub.

use crate::proc::Mapping;
use crate::target::inject::memory::Memory;
use std::path::Path;

/// `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `syscall; ret`, as in the C libraries' `getpid`.
const SYSCALL_RET: [u8; 3] = [0x0f, 0x05, 0xc3];
/// `mov rax, 15; syscall`: the return from every signal handler, in each C library.
const SIGRETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// How many bytes of a mapping to search.
const LIMIT: u64 = 16 << 20;

/// Addresses of instructions, as far as they were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gadgets {
    /// `syscall; ret`, and `rt_sigreturn`.
    returning: Option<(u64, u64)>,
    /// `syscall`.
    bare: Option<u64>,
}

/// How to make a thread execute a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// A system call after which the thread returns through a signal frame.
    Returning {
        /// `syscall; ret`.
        call: u64,
        /// `rt_sigreturn`.
        back: u64,
    },
    /// A system call after which the tracer must restore the thread.
    Bare {
        /// `syscall`.
        call: u64,
    },
}

impl Gadgets {
    /// Searches `mappings`, the C library first, which has all of them.
    pub(super) fn find(mappings: &[Mapping], memory: &Memory) -> Self {
        let (mut call, mut back, mut bare) = (None, None, None);
        let mut executable: Vec<&Mapping> = mappings
            .iter()
            .filter(|mapping| mapping.executable && mapping.path != Path::new("[vsyscall]"))
            .collect();
        executable.sort_by_key(|mapping| {
            let path = mapping.path.to_string_lossy();
            !(path.contains("/libc") || path.contains("/ld-"))
        });
        for mapping in executable {
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
            if call.is_some() && back.is_some() {
                break;
            }
        }
        Self { returning: call.zip(back), bare }
    }

    /// The best way, if its code is unchanged. `Returning` needs a signal frame on the stack (`may_return`).
    pub(super) fn way(self, memory: &Memory, may_return: bool) -> Option<Way> {
        let is_there = |address, bytes: &[u8]| {
            let mut found = vec![0; bytes.len()];
            memory.read(address, &mut found).is_ok() && found == bytes
        };
        let returning = self.returning.filter(|(call, back)| {
            may_return && is_there(*call, &SYSCALL_RET) && is_there(*back, &SIGRETURN)
        });
        match returning {
            Some((call, back)) => Some(Way::Returning { call, back }),
            None => self.bare.filter(|call| is_there(*call, &SYSCALL)).map(|call| Way::Bare { call }),
        }
    }
}

impl Way {
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
    use crate::proc::mappings;

    #[test]
    fn the_c_library_has_them() {
        let pid = std::process::id() as i32;
        let (memory, mappings) = (Memory::of(pid).unwrap(), mappings(pid as u32).unwrap());
        let gadgets = Gadgets::find(&mappings, &memory);
        let Some(Way::Returning { call, back }) = gadgets.way(&memory, true) else { panic!("none") };
        let mut bytes = [0; 9];
        memory.read(back, &mut bytes).unwrap();
        assert_eq!(bytes, SIGRETURN);
        memory.read(call, &mut bytes[..3]).unwrap();
        assert_eq!(bytes[..3], SYSCALL_RET);
        assert!(matches!(gadgets.way(&memory, false), Some(Way::Bare { .. })));
        assert_eq!(Gadgets::find(&[], &memory).way(&memory, true), None);
    }
}
