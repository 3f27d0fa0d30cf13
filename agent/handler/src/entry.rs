//! The ways into signal handlers: what the kernel calls, and where handlers of the program's return to.
//!
//! Each entry asks what is to run and on which frame, and goes there by a jump with nothing of us left on the stack: the
//! program's handler begins as the kernel would have begun it.

use core::arch::{global_asm, naked_asm};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::chain::{self, Disposition};
use crate::signal_stack;
use crate::slot;

/// Signals that the kernel knows.
const SIGNALS: usize = 64;

/// The program's handlers, by signal; kept when it goes back to the default, because one may be about to run.
static HANDLERS: [AtomicUsize; SIGNALS + 1] = [const { AtomicUsize::new(0) }; SIGNALS + 1];

/// The handler that the program has set for `signal`.
pub fn handler(signal: c_int) -> Option<&'static AtomicUsize> {
    HANDLERS.get(usize::try_from(signal).ok()?)
}

/// What runs next, in the two registers in which a function returns it.
#[repr(C)]
pub struct Next {
    /// The frame to run it on; 0: nothing runs, the signal is served.
    frame: u64,
    /// The handler, or what it is made from.
    what: usize,
}

impl Next {
    const NOTHING: Next = Next { frame: 0, what: 0 };
}

// rax = the new frame, on which rsp shall point to the return address. What points into the old frame is moved along.
macro_rules! switch_frame {
    () => {
        "mov r8, rax
        sub r8, rsp
        add rsi, r8
        add rdx, r8
        mov rsp, rax"
    };
}

/// Our own handler, as the kernel calls it.
///
/// # Safety
/// For the kernel to call, as an SA_SIGINFO handler with every signal blocked.
#[unsafe(naked)]
pub unsafe extern "C" fn on_own_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    naked_asm!(
        ".cfi_startproc",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "call {serve}",
        "mov rcx, rdx",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rax, rax",
        "jnz 2f",
        "ret",
        "2:",
        switch_frame!(),
        // The mask changes on that frame only: another signal may come at once.
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "call {begin}",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "jmp rax",
        ".cfi_endproc",
        serve = sym serve,
        begin = sym begin,
    )
}

unsafe extern "C" fn serve(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) -> Next {
    // SAFETY: the arguments are the kernel's.
    let Some(wanted) = (unsafe { crate::on_signal(signal, info, context) }) else { return Next::NOTHING };
    let on_alternate = wanted.flags & libc::SA_ONSTACK != 0;
    // SAFETY: as above.
    let frame = unsafe { settle(context, on_alternate) };
    Next { frame, what: core::ptr::from_ref(wanted) as usize }
}

unsafe extern "C" fn begin(signal: c_int, context: *mut c_void, wanted: &'static Disposition) -> usize {
    // SAFETY: `on_own_signal` passes what the kernel did, and what `serve` returned.
    unsafe { chain::begin(signal, context, wanted) }
}

/// The program's handlers of other signals, as the kernel calls them.
///
/// # Safety
/// For the kernel to call. May be called as a function too, by a program that has found it out: it is the handler.
#[unsafe(naked)]
pub unsafe extern "C" fn on_guest_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    naked_asm!(
        ".cfi_startproc",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "mov rsi, rdx",
        "lea rdx, [rsp + 24]",
        "call {pass}",
        "mov rcx, rdx",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        switch_frame!(),
        "jmp rcx",
        ".cfi_endproc",
        pass = sym pass,
    )
}

unsafe extern "C" fn pass(signal: c_int, context: *mut c_void, frame: u64) -> Next {
    let what = handler(signal).map_or(0, |handler| handler.load(Ordering::Acquire));
    // The kernel's frame begins with the return address, and the `ucontext` follows.
    let frame = match context as u64 == frame + 8 {
        // SAFETY: a frame of the kernel's.
        true => unsafe { settle(context, true) },
        false => frame,
    };
    Next { frame, what }
}

/// Puts the frame where the program's handler would have it, and hides our stack in it.
///
/// # Safety
/// `context` is the third argument of a running signal handler.
unsafe fn settle(context: *mut c_void, on_alternate: bool) -> u64 {
    let Some(slot) = slot::noted() else { return context as u64 - 8 };
    let stack = &slot.signal_stack;
    // SAFETY: the caller's promise; a frame that was moved is as good as the kernel's.
    unsafe {
        let frame = signal_stack::place(stack, context, on_alternate);
        if signal_stack::hide(stack, (frame + 8) as *mut c_void) {
            (frame as *mut usize).write(selfwind_guest_restore as unsafe extern "C" fn() as usize);
        }
        frame
    }
}

/// Our stack again, at the return from a handler of the program's. The thread may be another by now.
unsafe extern "C" fn return_stack(context: *mut c_void) {
    if let Some(slot) = slot::noted() {
        // SAFETY: the `ucontext` that the kernel is about to restore.
        unsafe { signal_stack::lend(&slot.signal_stack, context) };
    }
}

// The returns from handlers: from ours, and from the program's where our stack was hidden. The bytes of the first are those
// that unwinders and debuggers recognise, and the CFI says the same: rsp points to the kernel's `ucontext`, whose
// registers begin at offset 40.
global_asm!(
    ".text",
    ".p2align 4",
    ".cfi_startproc simple",
    ".cfi_signal_frame",
    // CFA = *(rsp + 160), the interrupted rsp.
    ".cfi_escape 0x0f,0x04,0x77,0xa0,0x01,0x06",
    ".cfi_escape 0x10,0x00,0x03,0x77,0x90,0x01", // rax
    ".cfi_escape 0x10,0x01,0x03,0x77,0x88,0x01", // rdx
    ".cfi_escape 0x10,0x02,0x03,0x77,0x98,0x01", // rcx
    ".cfi_escape 0x10,0x03,0x03,0x77,0x80,0x01", // rbx
    ".cfi_escape 0x10,0x04,0x03,0x77,0xf0,0x00", // rsi
    ".cfi_escape 0x10,0x05,0x03,0x77,0xe8,0x00", // rdi
    ".cfi_escape 0x10,0x06,0x03,0x77,0xf8,0x00", // rbp
    ".cfi_escape 0x10,0x07,0x03,0x77,0xa0,0x01", // rsp
    ".cfi_escape 0x10,0x08,0x02,0x77,0x28",      // r8
    ".cfi_escape 0x10,0x09,0x02,0x77,0x30",      // r9
    ".cfi_escape 0x10,0x0a,0x02,0x77,0x38",      // r10
    ".cfi_escape 0x10,0x0b,0x03,0x77,0xc0,0x00", // r11
    ".cfi_escape 0x10,0x0c,0x03,0x77,0xc8,0x00", // r12
    ".cfi_escape 0x10,0x0d,0x03,0x77,0xd0,0x00", // r13
    ".cfi_escape 0x10,0x0e,0x03,0x77,0xd8,0x00", // r14
    ".cfi_escape 0x10,0x0f,0x03,0x77,0xe0,0x00", // r15
    ".cfi_escape 0x10,0x10,0x03,0x77,0xa8,0x01", // return address
    // The rows must hold one byte before each label too: unwinders look a return address up at itself minus one.
    "nop",
    ".globl selfwind_restore",
    ".hidden selfwind_restore",
    ".type selfwind_restore,@function",
    "selfwind_restore:",
    "mov rax, 15",
    "syscall",
    ".size selfwind_restore, . - selfwind_restore",
    "nop",
    ".globl selfwind_guest_restore",
    ".hidden selfwind_guest_restore",
    ".type selfwind_guest_restore,@function",
    "selfwind_guest_restore:",
    "mov rdi, rsp",
    "call {return_stack}",
    "mov rax, 15",
    "syscall",
    ".size selfwind_guest_restore, . - selfwind_guest_restore",
    ".cfi_endproc",
    return_stack = sym return_stack,
);

unsafe extern "C" {
    fn selfwind_restore();
    fn selfwind_guest_restore();
}

/// Where our own handler returns to.
pub fn restorer() -> usize {
    selfwind_restore as unsafe extern "C" fn() as usize
}
