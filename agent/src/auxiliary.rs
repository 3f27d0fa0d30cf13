//! The auxiliary vector, which the kernel passes to a program.

use core::sync::atomic::{AtomicU64, Ordering};

use platform::sys::PAGE;
use platform::thread_pointer;

use crate::initial_stack::{AT_BASE, InitialStack};
use crate::kernel;

const AT_PHDR: u64 = 3;
const AT_PHNUM: u64 = 5;
const AT_HWCAP2: u64 = 26;
const AT_SYSINFO_EHDR: u64 = 33;
/// Address of the path given to exec, which the kernel places at the end of the stack.
const AT_EXECFN: u64 = 31;
const AT_MINSIGSTKSZ: u64 = 51;

static HEADERS: AtomicU64 = AtomicU64::new(0);
static HEADER_COUNT: AtomicU64 = AtomicU64::new(0);
static LOADER: AtomicU64 = AtomicU64::new(0);
static VDSO: AtomicU64 = AtomicU64::new(0);
static STACK_END: AtomicU64 = AtomicU64::new(0);
static SIGNAL_FRAME: AtomicU64 = AtomicU64::new(0);

/// Reads the vector of a program that begins, once: from `stack`, or else from /proc/self/auxv.
pub(crate) fn read(stack: Option<&InitialStack>) {
    if let Some(stack) = stack {
        return stack.auxiliary().for_each(note);
    }
    let mut buffer = [0u8; 1024];
    let Ok(bytes) = kernel::read_file(c"/proc/self/auxv", &mut buffer) else { return };
    let (words, _) = bytes.as_chunks::<8>();
    let (pairs, _) = words.as_chunks::<2>();
    pairs.iter().map(|pair| pair.map(u64::from_le_bytes)).for_each(|[tag, value]| note((tag, value)));
}

/// Takes over the vector of a running process, as its recorder has read it.
pub(crate) fn take_over(words: &[u64]) {
    words.as_chunks::<2>().0.iter().for_each(|&[tag, value]| note((tag, value)));
}

fn note((tag, value): (u64, u64)) {
    match tag {
        AT_PHDR => HEADERS.store(value, Ordering::Relaxed),
        AT_PHNUM => HEADER_COUNT.store(value, Ordering::Relaxed),
        AT_BASE => LOADER.store(value, Ordering::Relaxed),
        AT_HWCAP2 => thread_pointer::note_capabilities(value),
        AT_SYSINFO_EHDR => VDSO.store(value, Ordering::Relaxed),
        // The page it begins in is mapped; nothing but the path itself and eight bytes lies above it.
        AT_EXECFN => STACK_END.store((value & !(PAGE - 1)) + PAGE, Ordering::Relaxed),
        AT_MINSIGSTKSZ => SIGNAL_FRAME.store(value, Ordering::Relaxed),
        _ => {}
    }
}

/// Address and number of the program's program headers.
pub(crate) fn program_headers() -> (u64, u64) {
    (HEADERS.load(Ordering::Relaxed), HEADER_COUNT.load(Ordering::Relaxed))
}

/// Whether the kernel has loaded the dynamic loader for the program, instead of as the program or not at all.
pub(crate) fn has_loader() -> bool {
    LOADER.load(Ordering::Relaxed) != 0
}

/// Address of the vDSO; 0 for none.
pub(crate) fn vdso() -> u64 {
    VDSO.load(Ordering::Relaxed)
}

/// An address above all frames of the main thread, up to which its stack is mapped; 0 if unknown.
pub(crate) fn stack_end() -> u64 {
    STACK_END.load(Ordering::Relaxed)
}

/// Largest signal frame that the kernel writes, in bytes; 0 if unknown.
pub(crate) fn signal_frame() -> usize {
    SIGNAL_FRAME.load(Ordering::Relaxed) as usize
}
