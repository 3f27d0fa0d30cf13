//! The unwinder under test, walking a tracee with private copies of its modules.

use std::collections::HashMap;
use std::io;

use unwind::elf_file::ElfFile;
use unwind::elf_image::ElfImage;
use unwind::{End, Frame, Memory, Module, Modules, RuleCache, Section, StackCache, Table};

use super::image::{Image, Images};
use super::tracee::{Registers, Tracee};

/// More frames than any workload has.
const FRAMES: usize = 1024;
/// Bytes of stack fetched at once.
const WINDOW: usize = 2048;

/// Where rules come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rules {
    /// FDEs decoded on demand, nothing remembered between two walks.
    OnDemand,
    /// FDEs decoded on demand, through the rule cache.
    Cached,
    /// Tables compiled when a module appears, through the rule cache.
    Tables,
}

/// An unwinder for one tracee.
pub struct Walker {
    rules: Rules,
    modules: Vec<Module<'static>>,
    generation: u32,
    cache: Box<RuleCache>,
    /// The result of the previous walk, whichever thread that was.
    stack_cache: Box<StackCache>,
    /// Modules by what is mapped where: a library is seen half-mapped first.
    known: HashMap<(String, u64, u64, u64), Module<'static>>,
    window: Vec<u8>,
}

impl Walker {
    /// A walker that takes its rules from here.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            modules: Vec::new(),
            generation: 0,
            cache: Box::new(RuleCache::new()),
            stack_cache: Box::new(StackCache::new()),
            known: HashMap::new(),
            window: vec![0; WINDOW],
        }
    }

    /// Takes over the mappings of the tracee.
    pub fn remap(&mut self, tracee: &Tracee, images: &Images) -> io::Result<()> {
        let mut modules = Vec::new();
        for image in &images.all {
            let key = (image.path.clone(), image.start, image.end, image.layout);
            let module = match self.known.get(&key) {
                Some(module) => *module,
                None => {
                    let Some(module) = copy(tracee, image, self.rules) else { continue };
                    self.known.insert(key, module);
                    module
                }
            };
            modules.push(module);
        }
        Modules::sort(&mut modules);
        self.modules = modules;
        self.generation += 1;
        self.cache.clear();
        Ok(())
    }

    /// Walks the stack of a stopped thread into `found`.
    pub fn walk(&mut self, tracee: &Tracee, registers: &Registers, found: &mut Vec<Frame>) -> End {
        let modules = Modules::new(&self.modules, self.generation).expect("images do not overlap");
        if self.rules == Rules::OnDemand {
            self.cache.clear();
            self.stack_cache.forget();
        }
        let r = registers;
        let leaf = unwind::Registers {
            r: [
                r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12,
                r.r13, r.r14, r.r15,
            ],
            pc: r.rip,
        };
        // The red zone lies below the stack pointer.
        let mut memory = Window { tracee, base: r.rsp.wrapping_sub(256), bytes: &mut self.window, filled: 0 };
        memory.fill();
        let walk = unwind::walk(&modules, &self.cache, &leaf, &mut memory, &mut self.stack_cache, FRAMES);
        found.clear();
        found.extend_from_slice(self.stack_cache.frames());
        walk.end
    }
}

/// A stretch of the tracee's memory, moved when the walk leaves it.
struct Window<'a> {
    tracee: &'a Tracee,
    base: u64,
    bytes: &'a mut [u8],
    filled: usize,
}

impl Window<'_> {
    fn fill(&mut self) {
        self.filled = self.tracee.read(self.base, self.bytes);
    }

    fn get(&self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(self.base)?).ok()?;
        let bytes = self.bytes[..self.filled].get(offset..offset.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

impl Memory for Window<'_> {
    fn read(&mut self, address: u64) -> Option<u64> {
        if let Some(word) = self.get(address) {
            return Some(word);
        }
        self.base = address;
        self.fill();
        self.get(address)
    }
}

/// Copies `image` from the tracee's memory and reads the unwind sections from the copy, as the agent does in place. The
/// copy lives as long as the test: it is small and used until the end.
fn copy(tracee: &Tracee, image: &Image, rules: Rules) -> Option<Module<'static>> {
    let length = (image.end - image.start) as usize;
    let words: &'static mut [u64] = Vec::leak(vec![0; length.div_ceil(8)]);
    for (start, end) in &image.parts {
        let offset = (start - image.start) as usize;
        let mut bytes = vec![0; (end - start) as usize];
        let got = tracee.read(*start, &mut bytes);
        for (at, chunk) in bytes[..got].chunks_exact(8).enumerate() {
            words[offset / 8 + at] = u64::from_le_bytes(chunk.try_into().ok()?);
        }
    }
    let local = words.as_ptr() as u64;
    // SAFETY: the copy holds every mapped page of the image at the same distance from its first one, zeros
    // between, is aligned for the headers, and is never changed or freed again.
    let elf = unsafe { ElfImage::from_memory(local) }?;
    // Of a library just being mapped, the code may not be there yet.
    if elf.text_end.wrapping_sub(local) > length as u64 {
        return None;
    }
    let shift = image.start.wrapping_sub(local);
    let moved = |section: Section<'static>| Section {
        bytes: section.bytes,
        address: section.address.wrapping_add(shift),
    };
    let mut module = elf.module();
    module.start = module.start.wrapping_add(shift);
    module.end = module.end.wrapping_add(shift);
    module.bias = module.bias.wrapping_add(shift);
    module.entry = if module.entry == 0 { 0 } else { module.entry.wrapping_add(shift) };
    module.eh_frame_hdr = module.eh_frame_hdr.map(moved);
    module.eh_frame = module.eh_frame.map(moved);
    // Without the search table the section is found through the file, and compiled in every case.
    if module.eh_frame.is_none() {
        module.eh_frame = section_of_file(image);
    }
    if rules == Rules::Tables || module.eh_frame_hdr.is_none() {
        module.table = module.eh_frame.and_then(|section| table(section, module.bias));
    }
    Some(module)
}

fn section_of_file(image: &Image) -> Option<Section<'static>> {
    let file = std::fs::read(&image.path).ok()?;
    let section = ElfFile::parse(Vec::leak(file)).ok()?.eh_frame?;
    Some(Section { bytes: section.bytes, address: section.address.wrapping_add(image.bias) })
}

fn table(section: Section<'_>, bias: u64) -> Option<Table<'static>> {
    let table = compilation::compile(section, bias, &[]).ok()?;
    Some(Table::from_bytes(Vec::leak(table)).expect("a compiled table is valid"))
}
