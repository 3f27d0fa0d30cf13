//! Alternate signal stacks that several threads of a process share.
//!
//! A program may give all its threads the same stack for its handler of fatal signals. Samples of two threads would destroy each
//! other on it, and the agent, which could tell by a thread's first sample only, would be too late. So before it starts, each thread
//! of a program that may have such stacks is asked for its own, and gets another one if that overlaps with an earlier thread's.

use std::fs::File;
use std::ops::Range;
use std::time::{Duration, Instant};

use memchr::memmem;
use nix::libc;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, ObjectSymbol, ReadCache};

use crate::proc::{Mapping, PAGE, Status, mappings, threads};
use crate::process_files::mapped_file;
use crate::target::inject::diversion::{Diversion, ROOM, Room};
use crate::target::inject::error::InjectError;
use crate::target::inject::gadgets::{Gadgets, Way};
use crate::target::inject::memory::Memory;
use crate::target::inject::own_thread;
use crate::target::inject::paused::{Paused, Stopped};

/// How long a thread may take to stop. One that waits uninterruptibly is left out.
const STOP: Duration = Duration::from_millis(200);
/// How long one call of it may take.
const CALL: Duration = Duration::from_secs(10);
/// How long all may take.
const ALL: Duration = Duration::from_secs(3);
/// If the first threads have as many stacks, all different, or none, so do the others: a program that shares one gives it to all
/// threads alike. Each thread takes a millisecond, or several if all processors are busy.
const ENOUGH_APART: usize = 8;
const ENOUGH_WITHOUT: usize = 32;
/// Stack of the agent's handler and of the kernel's signal frame.
const SAMPLES: u64 = 32 << 10;
/// The C library's function.
const FUNCTION: &[u8] = b"sigaltstack";
/// Bytes mapped while threads are visited: for their way back, and below for what the kernel reads and writes.
const ASIDE: u64 = PAGE + ROOM;
/// Size of the kernel's `stack_t`, in words: address, flags, size.
const WORDS: usize = 3;

/// A process whose threads make system calls.
pub(super) struct Process<'a> {
    pub(super) pid: i32,
    pub(super) memory: &'a Memory,
    pub(super) gadgets: Gadgets,
}

impl Process<'_> {
    /// Gives threads that share an alternate stack one each. Where this fails, nothing changes.
    pub(super) fn separate_stacks(&self) {
        let deadline = Instant::now() + ALL;
        let mut tids = threads(self.pid as u32).unwrap_or_default();
        // A filter of system calls may kill for these.
        tids.retain(|tid| {
            Status::of_thread(self.pid, *tid as i32).is_ok_and(|status| status.field("Seccomp") == Some("0"))
        });
        // A thread that does not return by itself would be lost if this process was killed meanwhile.
        if tids.len() < 2 || !matches!(self.gadgets.way(self.memory, true), Some(Way::Returning { .. })) {
            return;
        }
        let files = mappings(self.pid as u32).unwrap_or_default();
        if !files.iter().any(|file| may_set_stacks(file, self.pid as u32)) {
            return;
        }
        // The main thread has free space on its stack for the first call, and the last.
        let main = self.pid as u32;
        let Ok(aside) = self.visit(main, |thread| thread.call_system(Room::Stack(&files), map(ASIDE))) else {
            return;
        };
        let (mut seen, mut all_are_back) = (Seen::default(), true);
        for tid in tids.into_iter().take_while(|_| Instant::now() < deadline) {
            all_are_back &= self.visit(tid, |thread| self.separate(thread, aside, &mut seen)).is_ok();
            if seen.is_convincing() {
                break;
            }
        }
        if all_are_back {
            let unmap = [libc::SYS_munmap as u64, aside, ASIDE, 0, 0, 0];
            let _ = self.visit(main, |thread| thread.call_system(Room::Stack(&files), unmap));
        }
    }

    /// Looks at the thread's alternate stack, and replaces it if it overlaps with one of those `seen`. Uses the memory `aside`.
    fn separate(&self, thread: &Diversion<'_>, aside: u64, seen: &mut Seen) -> Result<(), InjectError> {
        let call = |arguments| thread.call_system(Room::Below(aside + ASIDE), arguments);
        call([libc::SYS_sigaltstack as u64, 0, aside, 0, 0, 0])?;
        let [low, _, size] = self.memory.words::<WORDS>(aside).map_err(InjectError::Memory)?;
        let range = low..low.saturating_add(size);
        if !seen.overlap(range) {
            return Ok(());
        }
        let bytes = size.saturating_add(PAGE + SAMPLES).next_multiple_of(PAGE);
        let base = call(map(bytes))?;
        let words: [u64; WORDS] = [base + PAGE, 0, bytes - PAGE];
        self.memory.write(aside, words.map(u64::to_ne_bytes).as_flattened()).map_err(InjectError::Memory)?;
        call([libc::SYS_mprotect as u64, base, PAGE, libc::PROT_NONE as u64, 0, 0])?;
        call([libc::SYS_sigaltstack as u64, aside, 0, 0, 0, 0]).map(drop)
    }

    /// Stops the thread for `what`.
    fn visit<T: Send>(
        &self,
        tid: u32,
        what: impl FnOnce(&Diversion<'_>) -> Result<T, InjectError> + Send,
    ) -> Result<T, InjectError> {
        own_thread::run(self.pid, || {
            let paused = match Paused::stop(self.pid, tid as i32, Instant::now() + STOP)? {
                Stopped::Paused(paused) => paused,
                Stopped::Gone | Stopped::Late => return Err(InjectError::Lost(tid as i32)),
            };
            what(&Diversion::new(paused.tid(), self.memory, &[], self.gadgets, Instant::now() + CALL))
        })
    }
}

/// The stacks of the threads that were asked.
#[derive(Default)]
struct Seen {
    apart: Vec<Range<u64>>,
    without: usize,
    shared: usize,
}

impl Seen {
    /// Whether a thread's stack, empty if it has none, overlaps with that of an earlier one.
    fn overlap(&mut self, range: Range<u64>) -> bool {
        if range.is_empty() {
            self.without += 1;
            return false;
        }
        let overlaps = self.apart.iter().any(|other| other.start < range.end && range.start < other.end);
        match overlaps {
            true => self.shared += 1,
            false => self.apart.push(range),
        }
        overlaps
    }

    /// Whether no thread need be asked any more: each has a stack of its own, or none.
    fn is_convincing(&self) -> bool {
        self.shared == 0 && (self.apart.len() >= ENOUGH_APART || self.without >= ENOUGH_WITHOUT)
    }
}

/// The system call that maps so many bytes.
fn map(bytes: u64) -> [u64; 6] {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    [libc::SYS_mmap as u64, 0, bytes, protection, flags, u64::MAX]
}

/// Whether the mapped file can set alternate stacks: it imports the C library's function. A static program may always; Go's
/// runtime gives each thread a stack of its own.
fn may_set_stacks(mapping: &Mapping, pid: u32) -> bool {
    let file =
        (mapping.executable && mapping.path.is_absolute()).then(|| mapped_file(mapping, pid)).flatten();
    file.is_some_and(|file| imports(&ReadCache::new(file)))
}

fn imports(file: &ReadCache<File>) -> bool {
    let Ok(elf) = ElfFile64::<Endianness, _>::parse(file) else { return false };
    let has = |name| elf.section_by_name(name).is_some();
    // The name of each symbol takes two system calls, all names together as many.
    match elf.section_by_name(".dynstr").map(|names| names.data()) {
        Some(Ok(names)) if memmem::find(names, FUNCTION).is_some() => {
            elf.dynamic_symbols().any(|symbol| symbol.is_undefined() && symbol.name_bytes() == Ok(FUNCTION))
        }
        Some(_) => false,
        None => !has(".go.buildinfo"),
    }
}
