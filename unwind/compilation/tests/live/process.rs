//! This process as the walker sees it.

use std::arch::asm;

use compilation::compile;
use unwind::elf_image::{ElfImage, ProgramHeader};
use unwind::{End, Frame, Memory, Module, Modules, Registers, RuleCache, StackCache, Table, walk};

/// How rules are looked up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Resolution {
    OnDemand,
    Tables,
    Cached,
    /// No search table: compiled rows, with CFI for complex rules only.
    WithoutHeader,
}

impl Resolution {
    pub(crate) const ALL: [Resolution; 4] =
        [Resolution::OnDemand, Resolution::Tables, Resolution::Cached, Resolution::WithoutHeader];
}

/// The modules of this process, without and with compiled tables.
pub(crate) struct Process {
    plain: Vec<Module<'static>>,
    compiled: Vec<Module<'static>>,
}

/// Reads this process's memory through a system call that cannot fault.
pub(crate) struct Own;

impl Memory for Own {
    fn read(&mut self, address: u64) -> Option<u64> {
        let mut word = 0u64;
        let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: 8 };
        let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: 8 };
        // SAFETY: the local vector is one word; the kernel checks the remote one.
        let count = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        (count == 8).then_some(word)
    }
}

unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, list: *mut libc::c_void) -> libc::c_int {
    // SAFETY: dl_iterate_phdr passes the list of `Process::new` and a valid description of a mapped object; the tests
    // never unload an object.
    let (list, image) = unsafe {
        let info = &*info;
        let headers =
            std::slice::from_raw_parts(info.dlpi_phdr.cast::<ProgramHeader>(), usize::from(info.dlpi_phnum));
        (&mut *list.cast::<Vec<ElfImage<'static>>>(), ElfImage::from_headers(info.dlpi_addr, headers))
    };
    list.extend(image);
    0
}

impl Process {
    pub(crate) fn new() -> Self {
        let mut images: Vec<ElfImage<'static>> = Vec::new();
        // SAFETY: `add` takes this list.
        unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut images).cast()) };
        assert!(images.len() >= 3, "{images:x?}");
        let mut plain: Vec<_> = images.iter().map(ElfImage::module).collect();
        let mut compiled: Vec<_> = images.iter().map(with_table).collect();
        Modules::sort(&mut plain);
        Modules::sort(&mut compiled);
        Self { plain, compiled }
    }

    pub(crate) fn list(&self, how: Resolution) -> Vec<Module<'static>> {
        match how {
            Resolution::OnDemand => self.plain.clone(),
            Resolution::Tables | Resolution::Cached => self.compiled.clone(),
            Resolution::WithoutHeader => {
                self.compiled.iter().map(|module| Module { eh_frame_hdr: None, ..*module }).collect()
            }
        }
    }

    pub(crate) fn walk(&self, how: Resolution, registers: &Registers) -> (Vec<Frame>, End) {
        let cache = Box::new(RuleCache::new());
        let list = self.list(how);
        let modules = Modules::new(&list, 1).unwrap();
        if matches!(how, Resolution::Cached) {
            walk_with(&modules, &cache, registers, 512);
        }
        walk_with(&modules, &cache, registers, 512)
    }

    pub(crate) fn walk_up_to(&self, depth: usize, registers: &Registers) -> (Vec<Frame>, End) {
        let cache = Box::new(RuleCache::new());
        walk_with(&Modules::new(&self.plain, 1).unwrap(), &cache, registers, depth)
    }
}

fn walk_with(
    modules: &Modules<'_>,
    cache: &RuleCache,
    registers: &Registers,
    depth: usize,
) -> (Vec<Frame>, End) {
    let mut stack_cache = Box::new(StackCache::new());
    let walked = walk(modules, cache, registers, &mut Own, &mut stack_cache, depth);
    (stack_cache.frames().to_vec(), walked.end)
}

fn with_table(image: &ElfImage<'static>) -> Module<'static> {
    let mut module = image.module();
    if let Some(section) = image.trimmed_eh_frame()
        && let Ok(bytes) = compile(section, image.bias, image.build_id.unwrap_or(&[]))
    {
        module.table = Some(Table::from_bytes(Box::leak(bytes.into_boxed_slice())).unwrap());
    }
    module
}

/// The registers at this point of the caller.
#[inline(always)]
pub(crate) fn capture() -> Registers {
    let mut registers = Registers::default();
    // SAFETY: stores the registers to the structure that rdi points to; rax is declared as clobbered.
    unsafe {
        asm!(
            "mov [rdi], rax", "mov [rdi + 8], rdx", "mov [rdi + 16], rcx", "mov [rdi + 24], rbx",
            "mov [rdi + 32], rsi", "mov [rdi + 40], rdi", "mov [rdi + 48], rbp", "mov [rdi + 56], rsp",
            "mov [rdi + 64], r8", "mov [rdi + 72], r9", "mov [rdi + 80], r10", "mov [rdi + 88], r11",
            "mov [rdi + 96], r12", "mov [rdi + 104], r13", "mov [rdi + 112], r14", "mov [rdi + 120], r15",
            "lea rax, [rip]", "mov [rdi + 128], rax",
            in("rdi") &mut registers,
            out("rax") _,
            options(nostack),
        );
    }
    registers
}

/// The registers that a signal interrupted.
pub(crate) fn registers_of(context: &libc::ucontext_t) -> Registers {
    let saved = |register: libc::c_int| context.uc_mcontext.gregs[register as usize] as u64;
    let order = [
        libc::REG_RAX,
        libc::REG_RDX,
        libc::REG_RCX,
        libc::REG_RBX,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_RBP,
        libc::REG_RSP,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
    ];
    Registers { r: order.map(saved), pc: saved(libc::REG_RIP) }
}
