//! Names of generated code from the interface by which just-in-time compilers inform debuggers (GDB manual, "JIT Compilation
//! Interface"): a list of ELF files in the process's memory, headed by a variable with a well-known name.
//!
//! Compilers call a function after each change so that a debugger can set a breakpoint there; a profiler cannot. So the list
//! is read from outside, a few times a second, and only in processes that have samples outside all modules. It may change
//! while it is read, so nothing in it is trusted.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use memchr::memmem;
use object::read::elf::{ElfFile64, ElfSymbol64};
use object::{Endianness, Object, ObjectKind, ObjectSection, ObjectSymbol, ReadCache, SymbolKind};
use selfwind_profile::profile_file::GeneratedFunction;
use selfwind_profile::symbolize::short_name;

use crate::proc::Mapping;
use crate::process_files;
use crate::record::second_mappings;

/// The name of this source of names.
pub(super) const SOURCE: &str = "[jit]";
/// The variable that heads the list.
const DESCRIPTOR: &str = "__jit_debug_descriptor";
/// How often the list is read.
const READ_EVERY: Duration = Duration::from_millis(200);
/// Reading takes at most this fraction (1/N) of the recorder's time.
const TIME_SHARE: u32 = 50;
/// Limits for one reading: files in a list, bytes of all new files, time for their symbols.
const FILES_MAX: usize = 1 << 16;
const BYTES_MAX: u64 = 64 << 20;
const SYMBOLS_TIME: Duration = Duration::from_millis(100);
/// Maximum number of functions of a process, and of bytes of a name.
const FUNCTIONS_MAX: usize = 1 << 17;
const NAME_MAX: usize = 1 << 10;

/// What a process has registered about its generated code.
#[derive(Debug, Default)]
pub(super) struct DebuggerInterface {
    /// Mapped files that were searched for the variable.
    searched: HashSet<PathBuf>,
    lists: Vec<List>,
    functions: Vec<GeneratedFunction>,
    /// When the list was last read, on the recording's clock, and when it may be read again.
    last_read_ns: u64,
    next: Option<Instant>,
}

/// One list; a process has one for each compiler.
#[derive(Debug)]
struct List {
    descriptor: u64,
    /// Entry, address and size of the files that were read.
    read: HashSet<[u64; 3]>,
}

impl DebuggerInterface {
    /// True if it is time to read the list again.
    pub(super) fn is_due(&self) -> bool {
        self.next.is_none_or(|next| Instant::now() >= next)
    }

    /// Reads the lists of a process with these mappings. `begun` is when the reading of the mappings began.
    pub(super) fn read(&mut self, pid: u32, mappings: &[Mapping], now_ns: u64, begun: Instant) {
        for mapping in mappings {
            let is_code = mapping.executable && mapping.is_of_file() && !mapping.is_deleted;
            if is_code && self.searched.insert(mapping.path.clone()) {
                let found = descriptor(mapping, pid);
                self.lists.extend(found.map(|descriptor| List { descriptor, read: HashSet::new() }));
            }
        }
        if !self.lists.is_empty()
            && let Ok(memory) = File::open(format!("/proc/{pid}/mem"))
        {
            // It was not there at the last reading, so its contents are newer than that.
            let since_ns = self.last_read_ns;
            for list in &mut self.lists {
                let room = FUNCTIONS_MAX - self.functions.len();
                self.functions.extend(list.follow(&memory, since_ns, room).unwrap_or_default());
            }
        }
        self.last_read_ns = now_ns;
        self.next = Some(Instant::now() + READ_EVERY.max(begun.elapsed() * TIME_SHARE));
    }

    /// The functions for which `wanted` (first address, size) holds, in the order in which they were found.
    pub(super) fn functions(self, wanted: impl Fn(u64, u64) -> bool) -> Vec<GeneratedFunction> {
        let functions = self.functions.into_iter();
        functions.filter(|function| wanted(function.start, function.len)).collect()
    }
}

impl List {
    /// Reads the new files in the list: at most `most` functions.
    fn follow(&mut self, memory: &File, since_ns: u64, most: usize) -> Option<Vec<GeneratedFunction>> {
        let [version, _relevant, mut next] = words(memory, self.descriptor)?;
        if version as u32 != 1 {
            return None;
        }
        let (mut found, mut present, mut room) = (Vec::new(), HashSet::new(), BYTES_MAX);
        let deadline = Instant::now() + SYMBOLS_TIME;
        while next != 0 && present.len() < FILES_MAX {
            let Some([after, _before, address, size]) = words(memory, next) else { break };
            let file = [next, address, size];
            if !present.insert(file) {
                // The list is circular.
                break;
            }
            if size <= room && found.len() < most && !self.read.contains(&file) {
                room -= size;
                let mut bytes = vec![0; size as usize];
                if memory.read_exact_at(&mut bytes, address).is_ok() {
                    found.extend(functions(&bytes, since_ns, deadline).take(most - found.len()));
                    self.read.insert(file);
                }
            }
            next = after;
        }
        // A new file may reuse the address of a removed one.
        self.read.retain(|file| present.contains(file));
        Some(found)
    }
}

/// Reads words at an address of the process.
fn words<const N: usize>(memory: &File, address: u64) -> Option<[u64; N]> {
    let mut words = [[0; 8]; N];
    memory.read_exact_at(words.as_flattened_mut(), address).ok()?;
    Some(words.map(u64::from_ne_bytes))
}

/// The address of the variable, if a mapped file defines it.
fn descriptor(mapping: &Mapping, pid: u32) -> Option<u64> {
    let content = ReadCache::new(process_files::mapped_file(mapping, pid)?);
    let elf = ElfFile64::<Endianness, _>::parse(&content).ok()?;
    // The name of each symbol takes two system calls, all names together as many.
    let name = memmem::Finder::new(DESCRIPTOR);
    let mut strings = [".dynstr", ".strtab"].into_iter().filter_map(|strings| elf.section_by_name(strings));
    if !strings.any(|strings| strings.data().is_ok_and(|strings| name.find(strings).is_some())) {
        return None;
    }
    let mut symbols = elf.dynamic_symbols().chain(elf.symbols());
    let symbol = symbols.find(|symbol| symbol.is_definition() && symbol.name() == Ok(DESCRIPTOR))?;
    Some(second_mappings::bias(mapping, &elf, &content)?.wrapping_add(symbol.address()))
}

/// The functions of an ELF file in memory, until the deadline.
fn functions(bytes: &[u8], since_ns: u64, deadline: Instant) -> impl Iterator<Item = GeneratedFunction> {
    let elf = ElfFile64::<Endianness>::parse(bytes).ok();
    elf.into_iter().flat_map(move |elf| {
        let symbols = elf.symbols().take_while(|_| Instant::now() < deadline);
        symbols.filter_map(|symbol| function(&elf, &symbol, since_ns)).collect::<Vec<_>>()
    })
}

/// The function that a symbol names, if it is one.
fn function(elf: &ElfFile64<'_>, symbol: &ElfSymbol64<'_, '_>, since_ns: u64) -> Option<GeneratedFunction> {
    if !symbol.is_definition() || symbol.kind() != SymbolKind::Text || symbol.size() == 0 {
        return None;
    }
    // In a relocatable file, symbol values are relative to sections, whose headers hold the addresses.
    let base = match elf.kind() {
        ObjectKind::Relocatable => elf.section_by_index(symbol.section_index()?).ok()?.address(),
        _ => 0,
    };
    let name = symbol.name_bytes().ok()?;
    let name = short_name(&String::from_utf8_lossy(name.get(..NAME_MAX).unwrap_or(name)));
    Some(GeneratedFunction { since_ns, start: base.wrapping_add(symbol.address()), len: symbol.size(), name })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc;

    /// System calls of this thread that read.
    fn reads() -> usize {
        let counts = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        counts.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap().parse().unwrap()
    }

    #[test]
    fn few_names_are_read_to_look_for_the_variable() {
        let here = few_names_are_read_to_look_for_the_variable as fn() as usize as u64;
        let pid = std::process::id();
        let mappings = proc::mappings(pid).unwrap();
        let mapping = mappings.iter().find(|mapping| mapping.start <= here && here < mapping.end).unwrap();
        let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let symbols = ElfFile64::<Endianness>::parse(&*file).unwrap().symbols().count();
        let before = reads();
        assert_eq!(descriptor(mapping, pid), None);
        let took = reads() - before;
        assert!(symbols > 1000 && took < 100, "{took} reads for {symbols} symbols");
    }
}
