//! x86-64 under Linux (System V ABI AMD64, arch/x86/kernel/signal_64.c).

use core::arch::asm;
use core::ffi::c_int;

use unwind::{Memory, Registers};

/// The red zone: bytes below the stack pointer that compiled code may use (System V ABI).
pub(crate) const RED_ZONE: u64 = 128;
/// Offset of the `ucontext` in the kernel's signal frame: after the return address.
pub(crate) const CONTEXT_AT: u64 = 8;

/// Where a signal frame whose return address is at `at` holds the interrupted program counter; `None` if it is no
/// signal frame. Checks that the saved code segment is that of 64-bit user code and that the saved flags are plausible.
#[inline(never)]
pub(crate) fn interrupted<M: Memory>(at: u64, memory: &mut M) -> Option<u64> {
    const REGISTERS_AT: u64 = CONTEXT_AT + 40;
    const USER_CODE: u64 = 0x33;
    /// Always set in user mode: bit 1, and interrupts enabled.
    const FLAGS: u64 = 0x202;
    let register = |index: c_int| at.checked_add(REGISTERS_AT + 8 * index as u64);
    let segments = memory.read(register(libc::REG_CSGSFS)?)?;
    let is_frame =
        segments & 0xffff_ffff_ffff == USER_CODE && memory.read(register(libc::REG_EFL)?)? & FLAGS == FLAGS;
    if is_frame { register(libc::REG_RIP) } else { None }
}

/// DWARF register number -> index into the kernel's `gregs` (System V ABI, figure 3.36).
const GREGS: [c_int; 16] = [
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

fn register(machine: &libc::mcontext_t, index: c_int) -> u64 {
    machine.gregs.get(index as usize).map_or(0, |value| *value as u64)
}

/// Number of callee-saved registers besides the stack pointer.
pub(crate) const PRESERVED: usize = 6;

/// The registers at a function's first instruction, as far as calls preserve them: r15, r14, r13, r12, rbx, rbp.
pub(crate) fn registers_at_entry(pc: u64, sp: u64, preserved: &[u64; PRESERVED]) -> Registers {
    let [r15, r14, r13, r12, rbx, rbp] = *preserved;
    // DWARF's order: rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15.
    Registers { r: [0, 0, 0, rbx, 0, 0, rbp, sp, 0, 0, 0, 0, r12, r13, r14, r15], pc }
}

/// The frame pointer among these.
#[inline(always)]
pub(crate) fn frame_pointer_at_entry(preserved: &[u64; PRESERVED]) -> u64 {
    let [.., rbp] = *preserved;
    rbp
}

/// The current registers, as far as calls preserve them.
#[inline(always)]
pub(crate) fn registers_here() -> Registers {
    let mut found = [0u64; PRESERVED + 2];
    // SAFETY: writes the eight words of the array only.
    unsafe {
        asm!(
            "mov [{found}], r15",
            "mov [{found} + 8], r14",
            "mov [{found} + 16], r13",
            "mov [{found} + 24], r12",
            "mov [{found} + 32], rbx",
            "mov [{found} + 40], rbp",
            "mov [{found} + 48], rsp",
            "lea {pc}, [rip]",
            "mov [{found} + 56], {pc}",
            found = in(reg) found.as_mut_ptr(),
            pc = out(reg) _,
            options(nostack, preserves_flags),
        );
    }
    let [preserved @ .., sp, pc] = found;
    registers_at_entry(pc, sp, &preserved)
}

/// The interrupted registers.
#[inline]
pub(crate) fn registers(machine: &libc::mcontext_t) -> Registers {
    Registers { r: GREGS.map(|index| register(machine, index)), pc: instruction_pointer(machine) }
}

/// The interrupted stack pointer.
#[inline]
pub(crate) fn stack_pointer(machine: &libc::mcontext_t) -> u64 {
    register(machine, libc::REG_RSP)
}

/// The interrupted frame pointer.
#[inline]
pub(crate) fn frame_pointer(machine: &libc::mcontext_t) -> u64 {
    register(machine, libc::REG_RBP)
}

/// The interrupted program counter.
#[inline]
pub(crate) fn instruction_pointer(machine: &libc::mcontext_t) -> u64 {
    register(machine, libc::REG_RIP)
}

/// Whether the thread has just returned from a system call: the instruction stores its return address in rcx, and the
/// kernel preserves that.
pub(crate) fn is_behind_a_call(machine: &libc::mcontext_t) -> bool {
    register(machine, libc::REG_RCX) == instruction_pointer(machine)
}

/// Length of the instruction of a system call.
pub(crate) const CALL_BYTES: u64 = 2;

/// Whether the thread may be about to repeat a system call that waits, and that a signal handler without SA_RESTART ends
/// (ERESTARTSYS). The instruction has stored its return address in rcx and the flags in r11.
pub(crate) fn may_repeat_wait(machine: &libc::mcontext_t) -> bool {
    let next = instruction_pointer(machine).wrapping_add(CALL_BYTES);
    let is_repeated = register(machine, libc::REG_RCX) == next
        && register(machine, libc::REG_R11) == register(machine, libc::REG_EFL);
    is_repeated
        && match register(machine, libc::REG_RAX) as libc::c_long {
            // Operations other than a simple wait are repeated after any signal.
            libc::SYS_futex => {
                let operation = register(machine, libc::REG_RSI) as c_int & libc::FUTEX_CMD_MASK;
                matches!(operation, libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET)
            }
            number => WAITS.contains(&number),
        }
}

/// System calls that wait and return ERESTARTSYS when a signal comes.
const WAITS: [libc::c_long; 30] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_ioctl,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_connect,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_mq_timedsend,
    libc::SYS_mq_timedreceive,
    libc::SYS_getrandom,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_tee,
];

/// Whether code begins with the instruction of a system call (`syscall`).
pub(crate) fn is_call(code: u64) -> bool {
    code as u16 == 0x050f
}

/// Has the system call at the program counter return an error instead of being made.
pub(crate) fn end_call(machine: &mut libc::mcontext_t, error: c_int) {
    let next = instruction_pointer(machine).wrapping_add(CALL_BYTES);
    for (index, value) in [(libc::REG_RIP, next), (libc::REG_RAX, -i64::from(error) as u64)] {
        if let Some(register) = machine.gregs.get_mut(index as usize) {
            *register = value as i64;
        }
    }
}

/// End of the kernel's signal frame, where the processor state ends (arch/x86/kernel/fpu/signal.c).
///
/// # Safety
/// `context` must be in the kernel's signal frame.
pub(crate) unsafe fn frame_end(context: *const libc::ucontext_t) -> u64 {
    /// Size of the kernel's `ucontext` and `siginfo`, without the processor state.
    const WITHOUT_STATE: u64 = 304 + 128;
    /// Size of the state that every processor has.
    const LEGACY: u64 = 512;
    /// In its last bytes: a mark that more state follows, and the total length.
    const MARK: (usize, u32) = (464, 0x4650_5853);
    // SAFETY: the caller promises a context in the kernel's frame.
    let state = unsafe { (*context).uc_mcontext.fpregs }.cast::<u8>();
    if state.is_null() {
        return context as u64 + WITHOUT_STATE;
    }
    // SAFETY: the kernel's pointer to at least 512 bytes in this frame.
    let (mark, length) =
        unsafe { (state.add(MARK.0).cast::<u32>().read(), state.add(MARK.0 + 4).cast::<u32>().read()) };
    state as u64 + if mark == MARK.1 { u64::from(length) } else { LEGACY }
}

/// Adjusts the pointers in a signal frame that was copied from `distance` bytes below.
///
/// # Safety
/// `context` must be complete and in the copy.
pub(crate) unsafe fn relocate(context: *mut libc::ucontext_t, distance: u64) {
    // SAFETY: the caller promises a complete context.
    let state = unsafe { &mut (*context).uc_mcontext.fpregs };
    if !state.is_null() {
        *state = state.wrapping_byte_offset(distance as isize);
    }
}

/// Makes the handler that is about to run on `frame` return to `restorer`. Returns the frame to pass to the entry code.
///
/// # Safety
/// `frame` must be a signal frame on which a handler is about to run.
pub(crate) unsafe fn return_to(frame: u64, restorer: usize) -> u64 {
    // SAFETY: the caller promises a signal frame, which begins with the return address.
    unsafe { (frame as *mut usize).write(restorer) };
    frame
}

/// Copies without `memcpy`, which the compiler would call otherwise.
///
/// # Safety
/// `length` bytes must be readable at `from` and writable at `to`, without overlap.
pub(crate) unsafe fn copy(from: u64, to: u64, length: u64) {
    // SAFETY: the caller promises readable and writable bytes.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") length => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

// Calls with the stack aligned as the ABI requires. An emulator's signal frame may not be (qemu-user before 8.1).
macro_rules! call_aligned {
    ($function:literal) => {
        concat!(
            "push rbp\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset rbp, 0\n",
            "mov rbp, rsp\n.cfi_def_cfa_register rbp\n",
            "and rsp, -16\n",
            "call ",
            $function,
            "\n",
            "mov rsp, rbp\n.cfi_def_cfa_register rsp\n",
            "pop rbp\n.cfi_adjust_cfa_offset -8\n.cfi_restore rbp\n",
        )
    };
}
pub(crate) use call_aligned;

// rax = the new frame, with the return address that rsp is to point to. Pointers into the old frame are adjusted.
macro_rules! switch_frame {
    () => {
        "mov r8, rax
        sub r8, rsp
        add rsi, r8
        add rdx, r8
        mov rsp, rax"
    };
}
pub(crate) use switch_frame;

/// The code of `on_own_signal`.
macro_rules! own_signal {
    ($serve:path, $begin:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            platform::permit_any_alignment!(),
            platform::push!(rdi rsi rdx),
            $crate::arch::call_aligned!("{serve}"),
            "mov rcx, rdx",
            platform::pop!(rdx rsi rdi),
            "test rax, rax",
            "jnz 2f",
            "ret",
            "2:",
            $crate::arch::switch_frame!(),
            // The mask changes in that frame only: another signal may be delivered at once.
            platform::push!(rdi rsi rdx),
            "mov rsi, rdx",
            "mov rdx, rcx",
            $crate::arch::call_aligned!("{begin}"),
            platform::pop!(rdx rsi rdi),
            "jmp rax",
            ".cfi_endproc",
            serve = sym $serve,
            begin = sym $begin,
        )
    };
}
pub(crate) use own_signal;

/// The code of `on_guest_signal`.
macro_rules! guest_signal {
    ($pass:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            platform::permit_any_alignment!(),
            platform::push!(rdi rsi rdx),
            "mov rsi, rdx",
            "lea rdx, [rsp + 24]",
            $crate::arch::call_aligned!("{pass}"),
            "mov rcx, rdx",
            platform::pop!(rdx rsi rdi),
            $crate::arch::switch_frame!(),
            "jmp rcx",
            ".cfi_endproc",
            pass = sym $pass,
        )
    };
}
pub(crate) use guest_signal;

/// The code that handlers return to.
macro_rules! restorers {
    ($return_stack:path) => {
        // Unwinders and debuggers recognise the bytes of the first one, and its CFI is equivalent: rsp points to the
        // kernel's `ucontext`, whose registers begin at offset 40.
        core::arch::global_asm!(
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
            // The rows must also cover the byte before each label: unwinders look a return address up minus one.
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
            // Aligned already on any frame of the kernel's, so that the rules hold; rbx is about to be restored.
            "mov rbx, rsp",
            "and rsp, -16",
            "call {return_stack}",
            "mov rsp, rbx",
            "mov rax, 15",
            "syscall",
            ".size selfwind_guest_restore, . - selfwind_guest_restore",
            ".cfi_endproc",
            return_stack = sym $return_stack,
        );
    };
}
pub(crate) use restorers;
