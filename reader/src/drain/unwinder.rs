//! Unwinds stack copies while they are drained, with the modules that their processes have reported. A running process's
//! files can still be read, and later the profile needs none of them.

use std::collections::HashMap;

use offline::{Binaries, GeneratedCode, NewMapping, Processes, Sample, Search};
use selfwind_profile::profile_file::{Event, ModuleInfo, Segment};
use shm_format::{Copied, CopiedWord, CopyHead, CopyReader};
use unwind::{End, Registers, Walk};

use crate::process_files;

/// PF_X of ELF `p_flags`.
const EXECUTABLE: u32 = 1;
/// Discard unused data each time this many processes have ended.
const SETTLE_EVERY: u64 = 64;

/// A decoded stack copy.
pub(crate) struct Stack {
    /// Its header: registers and addresses.
    pub(crate) head: CopyHead,
    /// The copy contains the whole stack that it is compared with.
    pub(crate) covers: bool,
    /// Number of non-zero words.
    pub(crate) kept: u64,
    registers: Registers,
    bytes: Vec<u8>,
    /// Offsets in `bytes` of words that point into the stack.
    pointers: Vec<usize>,
    /// Return addresses in generated code, ascending, each with the bytes before it.
    generated: Vec<(u64, u64)>,
}

impl Stack {
    /// Decodes a reassembled copy; `None` if it is malformed.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let reader = CopyReader::parse(bytes)?;
        let head = reader.head;
        let mut registers = Registers { pc: head.pc, ..Registers::default() };
        let (mut stack, mut pointers, mut generated) = (Vec::new(), Vec::new(), Vec::new());
        let mut kept = 0;
        let (_, covers) = reader.read(&mut registers.r, &mut |copied| match copied {
            Copied::Zeros(count) => stack.resize(stack.len() + count as usize * 8, 0),
            Copied::Word(word) => {
                kept += 1;
                match word {
                    CopiedWord::Stack(_) => pointers.push(stack.len()),
                    CopiedWord::Generated(address, before) => generated.push((address, before)),
                    CopiedWord::Code(_) | CopiedWord::Other(_) => {}
                }
                stack.extend(word.value().to_le_bytes());
            }
        })?;
        generated.sort_unstable();
        Some(Self { head, covers, kept, registers, bytes: stack, pointers, generated })
    }

    /// Size of the copied stack in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Drops all words but code addresses.
    pub(crate) fn keep_code_only(&mut self) {
        for at in std::mem::take(&mut self.pointers) {
            self.bytes[at..at + 8].fill(0);
        }
    }

    fn sample(&self, process: u32, ns: u64) -> Sample<'_> {
        Sample {
            pid: process,
            ns,
            registers: self.registers,
            stack_start: self.head.start,
            stack: &self.bytes,
            generated: GeneratedCode { leaf: self.head.code, before: &self.generated },
        }
    }
}

/// Unwinds stack copies with the modules of all processes that copy their stacks.
pub(crate) struct Unwinder {
    processes: Processes<'static>,
    /// The code segments of each module, by process and module number.
    modules: HashMap<(u32, u32), Vec<Segment>>,
    ended: u64,
}

impl Unwinder {
    /// Without any process.
    pub(crate) fn new() -> Self {
        // There is one recording per run of this program, and the binaries are needed until its end.
        let search = Search { infers: true, ..Search::default() };
        let binaries: &'static Binaries = Box::leak(Box::new(Binaries::new(search)));
        Self { processes: Processes::new(binaries), modules: HashMap::new(), ended: 0 }
    }

    /// Takes in the modules that a process with the id `pid` has mapped. Elsewhere here, a process is its number in the profile.
    pub(crate) fn observe(&mut self, event: &Event, pid: u32) {
        match event {
            Event::Module(module) => self.map(module, pid),
            Event::ModuleGone(gone) => {
                for segment in self.modules.remove(&(gone.process, gone.module)).unwrap_or_default() {
                    self.processes.unmap(gone.process, gone.ns, segment.address, segment.len);
                }
            }
            _ => {}
        }
    }

    fn map(&mut self, module: &ModuleInfo, pid: u32) {
        let is_code = |segment: &&Segment| segment.flags & EXECUTABLE != 0;
        let code: Vec<Segment> = module.segments.iter().filter(is_code).copied().collect();
        let path = process_files::path_here(pid, &module.path);
        for segment in &code {
            let new = NewMapping {
                start: segment.address,
                len: segment.len,
                offset: segment.pgoff,
                path: path.as_os_str().as_encoded_bytes(),
                build_id: &module.build_id,
                executable: true,
            };
            self.processes.map(module.process, module.loaded_ns, &new);
        }
        self.modules.insert((module.process, module.module), code);
    }

    /// Forgets a process that has ended and whose copies are all drained.
    pub(crate) fn end(&mut self, process: u32, ns: u64) {
        self.modules.retain(|(of, _), _| *of != process);
        self.processes.exit(process, ns);
        self.ended += 1;
        if self.ended.is_multiple_of(SETTLE_EVERY) {
            self.processes.settle(ns);
        }
    }

    /// Unwinds a copy taken at the time `ns`. Returns the frames, leaf first, and why the walk ended.
    pub(crate) fn walk(&mut self, process: u32, ns: u64, stack: &Stack) -> (Vec<u64>, End) {
        let mut frames = Vec::new();
        let Walk { end, .. } =
            self.processes.frames(&stack.sample(process, ns), |placed| frames.push(placed.frame.bits()));
        (frames, end)
    }

    /// Scans a copy for words that may be return addresses.
    pub(crate) fn guess(&mut self, process: u32, ns: u64, stack: &Stack) -> Vec<u64> {
        let mut frames = Vec::new();
        self.processes.guesses(&stack.sample(process, ns), |placed| frames.push(placed.frame.bits()));
        frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_copy_is_refused() {
        assert!(Stack::read(&[]).is_none());
        assert!(Stack::read(&[0; 64]).is_none());
    }
}
