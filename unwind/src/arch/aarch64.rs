//! aarch64: the Procedure Call Standard (AAPCS64) and DWARF for the Arm 64-bit Architecture (AADWARF64). Constants and
//! instruction patterns only; no walking happens here.
//!
//! A call leaves the return address in x30. A leaf keeps it there; other functions save it anywhere, normally next to
//! the caller's x29. It may be signed (pointer authentication); the signature occupies bits above the address bits.

use super::abi::Abi;
use super::machine::Machine;
use crate::memory::Memory;
use crate::register_rule::Packed;
use crate::rule::{ReturnAddress, Rule, SavedFp};

/// x29.
pub(crate) const FP: usize = 29;
/// sp.
pub(crate) const SP: usize = 31;
/// x30, the link register.
pub(crate) const RETURN_ADDRESS: usize = 30;
/// RA_SIGN_STATE: whether the return address is signed.
const SIGN_STATE: usize = 34;
/// Columns tracked by a walk with all registers: the general registers and sp.
pub(crate) const COLUMNS: usize = 32;
/// Columns whose register rules are kept. Vector registers are left out: no caller's frame depends on them.
const RULES: usize = SIGN_STATE + 1;
/// Alignment of functions.
pub(crate) const FUNCTION_ALIGNMENT: u64 = 4;
/// Alignment of instructions.
pub(crate) const INSTRUCTION_ALIGNMENT: usize = 4;
/// Length of a direct call.
pub(crate) const CALL_LENGTH: u64 = 4;
/// Bits of a user address, unless a program requests more by a hint to mmap.
pub(crate) const ADDRESS_BITS: u32 = 48;
/// Rule cache: bits for the distance in words from the return address to the CFA.
pub(crate) const ABOVE_BITS: u32 = 9;
/// Rule cache: bits for the distance in words from the saved frame pointer to the return address, which are stored as a
/// pair.
pub(crate) const BELOW_BITS: u32 = 1;

/// The aarch64 ABI as readers of call frame information see it.
#[derive(Clone, Copy, Debug)]
pub struct Aarch64;

impl Abi for Aarch64 {
    const MACHINE: Machine = Machine::Aarch64;
    const FP: usize = FP;
    const SP: usize = SP;
    const RETURN_ADDRESS: usize = RETURN_ADDRESS;
    const PUSHED_AT: Option<i32> = None;
    const SIGN_STATE: Option<usize> = Some(SIGN_STATE);
    const ENTRY: Rule = Rule::ENTRY_LINKED;
    type Columns = [Packed; RULES];
    const NO_RULES: Self::Columns = [Packed::SAME; RULES];

    fn by_cfa_expression(_: &[u8], _: SavedFp) -> Option<Rule> {
        None // Only frames with scalable vectors use them.
    }

    fn fp_at_fp(_: &[u8]) -> Option<i16> {
        None
    }
}

/// Where a packed rule finds the return address.
#[inline]
pub(crate) fn return_address(rule: Rule) -> ReturnAddress {
    rule.return_address()
}

/// Removes the pointer authentication signature.
#[inline(always)]
pub(crate) fn strip(address: u64) -> u64 {
    if address >> ADDRESS_BITS == 0 { address } else { strip_signature(address) }
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn strip_signature(signed: u64) -> u64 {
    let address;
    // SAFETY: xpaclri modifies x30 only; processors without pointer authentication execute it as a nop.
    unsafe {
        core::arch::asm!("hint #7", inlateout("x30") signed => address, options(pure, nomem, nostack, preserves_flags));
    }
    address
}

/// What xpaclri does to a user address of at most [`ADDRESS_BITS`] bits.
#[cfg(not(target_arch = "aarch64"))]
fn strip_signature(signed: u64) -> u64 {
    signed & ((1 << ADDRESS_BITS) - 1)
}

/// Content of a frame's link register, as long as it still is the frame's return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link(Option<u64>);

impl Link {
    /// The register has been overwritten.
    pub(crate) const LOST: Link = Link(None);

    /// With this content.
    pub(crate) fn new(content: Option<u64>) -> Self {
        Link(content)
    }

    /// With the content that it has among `all` registers.
    pub(crate) fn of(all: &dyn Fn() -> Registers) -> Self {
        Link(all().column(RETURN_ADDRESS))
    }

    /// The return address.
    #[inline]
    pub(crate) fn get(self) -> Option<u64> {
        self.0
    }
}

/// The registers that a walk starts from, in DWARF order (AADWARF64, section 4.1): x0..x30, sp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// The general registers by DWARF number.
    pub r: [u64; Self::COUNT],
    /// The address of the next instruction.
    pub pc: u64,
}

impl Registers {
    /// Number of general registers.
    pub const COUNT: usize = 32;
    /// Placeholder that is overwritten before use.
    pub(crate) const NOTHING: Registers = Registers { r: [0; Self::COUNT], pc: 0 };

    /// sp.
    pub fn sp(&self) -> u64 {
        self.r[SP]
    }

    /// x29.
    pub fn fp(&self) -> u64 {
        self.r[FP]
    }

    /// Sets the program counter and the stack pointer.
    pub fn move_to(&mut self, pc: u64, sp: u64) {
        (self.pc, self.r[SP]) = (pc, sp);
    }

    /// Column `number`.
    pub(crate) fn column(&self, number: usize) -> Option<u64> {
        self.r.get(number).copied()
    }

    pub(crate) fn set_column(&mut self, number: usize, value: u64) {
        if let Some(register) = self.r.get_mut(number) {
            *register = value;
        }
    }
}

/// Offset from the stack pointer at a signal restorer to `uc_mcontext.regs`, which sp and pc follow (asm/sigcontext.h,
/// asm/ucontext.h): `siginfo`, then `ucontext` with space for 1024 signals, aligned to 16, then the fault address.
const SIGCONTEXT: u64 = 128 + 176 + 8;

/// Whether the code at `pc` is a signal restorer: `mov x8, #139; svc #0`. The vdso's has no CFI either.
pub(crate) fn is_signal_restorer<M: Memory>(pc: u64, memory: &mut M) -> bool {
    memory.read(pc).map(words) == Some([0xd280_1168, 0xd400_0001])
}

/// Loads the registers that the kernel saved in the signal frame; `sp` is the stack pointer of its restorer.
pub(crate) fn read_sigcontext<M: Memory>(sp: u64, registers: &mut Registers, memory: &mut M) -> Option<()> {
    let mut address = sp.wrapping_add(SIGCONTEXT);
    for register in registers.r.iter_mut().chain([&mut registers.pc]) {
        *register = memory.read(address)?;
        address = address.wrapping_add(8);
    }
    Some(())
}

/// Splits eight bytes into two instructions.
fn words(bytes: u64) -> [u32; 2] {
    [bytes as u32, (bytes >> 32) as u32]
}

/// Stack layout implied by the instruction at a program counter, in code without CFI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stub {
    /// Distance in bytes from the stack pointer to the CFA.
    pub(crate) cfa: u64,
    /// Distance in bytes from the stack pointer to the return address; `None` if that is in the link register.
    pub(crate) pushed: Option<u64>,
    /// Whether the caller's frame pointer is the word at the stack pointer.
    pub(crate) fp_on_top: bool,
    /// Whether this is a PLT stub, which is certain; otherwise a prologue or epilogue of a function with a frame
    /// pointer.
    pub(crate) plt: bool,
}

/// `stp x16, x30, [sp, #-16]!`: the first instruction of PLT0.
const PUSH_PLT: u32 = 0xa9bf_7bf0;
/// `mov x29, sp`.
const SET_FP: u32 = 0x9100_03fd;

/// Recognises PLT stubs, which have no CFI, and prologue and epilogue instructions at which a function has no frame
/// record. `pc` must be the next instruction to run, not a return address.
pub(crate) fn stub<M: Memory>(pc: u64, memory: &mut M) -> Option<Stub> {
    let code = words(memory.read(pc)?);
    let [before_2, before] = words(memory.read(pc.checked_sub(8)?)?);
    let linked = |plt| Some(Stub { cfa: 0, pushed: None, fp_on_top: false, plt });
    let record = |size| Some(Stub { cfa: size, pushed: Some(8), fp_on_top: true, plt: false });
    if is_plt(before_2, before, code) {
        let further = memory.read(pc.checked_sub(16)?).map_or([0; 2], words);
        let is_first = [before, before_2].iter().chain(&further).any(|&word| word == PUSH_PLT);
        let pushed = Some(Stub { cfa: 16, pushed: Some(8), fp_on_top: false, plt: true });
        return if is_first { pushed } else { linked(true) };
    }
    match code {
        [PUSH_PLT, _] => linked(true),
        // bti c or paciasp, before the frame record is pushed
        [0xd503_245f | 0xd503_233f, next] if push_record(next).is_some() => linked(false),
        [push, _] if push_record(push).is_some() => linked(false),
        [SET_FP, _] => record(push_record(before)?),
        // ret, retaa, retab
        [0xd65f_03c0 | 0xd65f_0bff | 0xd65f_0fff, _] => linked(false),
        [pop, _] => record(pop_record(pop)?),
    }
}

/// `adrp x16, ...; ldr x17, [x16, ...]; add x16, x16, ...; br x17`, at any of these instructions.
fn is_plt(before_2: u32, before: u32, [this, next]: [u32; 2]) -> bool {
    let is_adrp = |word: u32| word & 0x9f00_001f == 0x9000_0010;
    let is_load = |word: u32| word & 0xffc0_03ff == 0xf940_0211;
    let is_add = |word: u32| word & 0xff80_03ff == 0x9100_0210;
    let is_jump = |word: u32| word == 0xd61f_0220;
    (is_adrp(this) && is_load(next))
        || (is_adrp(before) && is_load(this) && is_add(next))
        || (is_load(before) && is_add(this) && is_jump(next))
        || (is_load(before_2) && is_add(before) && is_jump(this))
}

/// Size of the frame that `stp x29, x30, [sp, #-size]!` pushes.
fn push_record(instruction: u32) -> Option<u64> {
    let size = -record_offset(instruction);
    (instruction & 0xffc0_7fff == 0xa980_7bfd && size > 0).then_some(size as u64)
}

/// Size of the frame that `ldp x29, x30, [sp], #size` pops.
fn pop_record(instruction: u32) -> Option<u64> {
    let size = record_offset(instruction);
    (instruction & 0xffc0_7fff == 0xa8c0_7bfd && size > 0).then_some(size as u64)
}

/// The signed 7-bit immediate of `stp` and `ldp`, converted from words to bytes.
fn record_offset(instruction: u32) -> i64 {
    i64::from((instruction << 10) as i32 >> 25) * 8
}

/// A call instruction that ends right before an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// `bl` to this address.
    Direct(u64),
    /// A call through a register.
    Indirect,
}

/// Distance from the stack pointer of compiled Haskell code to the return address of the function that runs it: not known.
pub(crate) const HASKELL_FRAME: u64 = 0;
/// Distance from that return address down to the saved frame pointer.
pub(crate) const HASKELL_SAVED_FP: u64 = 0;

/// Whether the function at `entry` sets up that frame.
pub(crate) fn runs_haskell<M: Memory>(_: u64, _: &mut M) -> bool {
    false
}

/// Recognises Go's `goexit`: a call between two moves of a register to itself, with `pc` after the first move. The
/// first function of a goroutine returns there although nothing there called it. Gives the target of that call.
pub(crate) fn goroutine_end<M: Memory>(pc: u64, memory: &mut M) -> Option<u64> {
    const MOVE_TO_ITSELF: u32 = 0xaa00_03e0;
    const BRANCH_WITH_LINK: u32 = 0b10_0101;
    let code = memory.read(pc.checked_sub(4)?)?;
    let (first, branch) = (code as u32, (code >> 32) as u32);
    if first != MOVE_TO_ITSELF || branch >> 26 != BRANCH_WITH_LINK {
        return None;
    }
    // Sign-extended 26-bit word offset.
    let relative = i64::from((branch << 6) as i32 >> 4);
    Some(pc.wrapping_add(relative as u64))
}

/// Whether the code at `pc` is `mov w0, #status; mov x8, #93; svc #0`: where a thread's first function returns if no C
/// library created the thread (Go's `clone`).
pub(crate) fn ends_thread<M: Memory>(pc: u64, memory: &mut M) -> bool {
    let [Some(first), Some(second)] = [memory.read(pc), memory.read(pc.wrapping_add(8))] else {
        return false;
    };
    first as u32 & 0x7fe0_001f == 0x5280_0000 && first >> 32 == 0xd280_0ba8 && second as u32 == 0xd400_0001
}

/// Decodes the call instruction that ends at `address`, if there is one.
pub(crate) fn call_before<M: Memory>(address: u64, memory: &mut M) -> Option<Call> {
    let [_, word] = words(memory.read(address.checked_sub(8)?)?);
    if word >> 26 == 0x25 {
        let distance = i64::from((word << 6) as i32 >> 6) * 4;
        return Some(Call::Direct((address - CALL_LENGTH).wrapping_add(distance as u64)));
    }
    // blr; blraaz, blrabz; blraa, blrab
    let is_call = word & 0xffff_fc1f == 0xd63f_0000
        || word & 0xffff_f81f == 0xd63f_081f
        || word & 0xffff_f800 == 0xd73f_0800;
    is_call.then_some(Call::Indirect)
}

/// Size of a cache line.
#[cfg(target_arch = "aarch64")]
const CACHE_LINE: usize = 64;

/// Prefetches the cache lines of `value`.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(crate) fn prefetch<T: ?Sized>(value: &T) {
    let start: *const u8 = core::ptr::from_ref(value).cast();
    for offset in (0..size_of_val(value)).step_by(CACHE_LINE) {
        // SAFETY: a prefetch cannot fault and affects caches only.
        unsafe {
            core::arch::asm!("prfm pldl1keep, [{}]", in(reg) start.wrapping_add(offset), options(nostack, readonly, preserves_flags));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight instructions; the fifth is at 0x1000.
    struct Code([u32; 8]);

    impl Memory for Code {
        fn read(&mut self, address: u64) -> Option<u64> {
            let at = (address.checked_sub(0xff0)? / 4) as usize;
            Some(u64::from(*self.0.get(at)?) | u64::from(self.0.get(at + 1).copied().unwrap_or(0)) << 32)
        }
    }

    #[test]
    fn signatures_are_stripped() {
        assert_eq!(strip(0x0000_aaaa_bbbb_cccc), 0x0000_aaaa_bbbb_cccc);
        assert_eq!(strip_signature(0x0000_aaaa_bbbb_cccc), 0x0000_aaaa_bbbb_cccc);
        #[cfg(not(target_arch = "aarch64"))]
        assert_eq!(strip(0x0035_aaaa_bbbb_cccc), 0x0000_aaaa_bbbb_cccc);
    }

    #[test]
    fn calls_are_recognised() {
        let before = |word| call_before(0x1000, &mut Code([0, 0, 0, word, 0, 0, 0, 0]));
        assert_eq!(before(0x9400_0004), Some(Call::Direct(0x100c))); // bl .+16
        assert_eq!(before(0x97ff_ffff), Some(Call::Direct(0xff8))); // bl .-4
        assert_eq!(before(0xd63f_0060), Some(Call::Indirect)); // blr x3
        assert_eq!(before(0xd63f_087f), Some(Call::Indirect)); // blraaz x3
        assert_eq!(before(0xd73f_0883), Some(Call::Indirect)); // blraa x4, x3
        for other in [0x1400_0004, 0xd61f_0060, 0xd65f_03c0, 0xd503_201f] {
            assert_eq!(before(other), None, "{other:x}"); // b, br, ret, nop
        }
    }

    const NOP: u32 = 0xd503_201f;

    fn at(code: [u32; 8]) -> Option<(u64, Option<u64>, bool, bool)> {
        stub(0x1000, &mut Code(code)).map(|stub| (stub.cfa, stub.pushed, stub.fp_on_top, stub.plt))
    }

    #[test]
    fn plt_stubs_are_recognised() {
        let plt = [0xb000_00f0, 0xf947_fe11, 0x913f_e210, 0xd61f_0220];
        let (linked, pushed) = (Some((0, None, false, true)), Some((16, Some(8), false, true)));
        for first in 0..4 {
            for (push, expected) in [(NOP, linked), (PUSH_PLT, pushed)] {
                let mut code = [NOP; 8];
                let from = 4 - first;
                code[from..8.min(from + 4)].copy_from_slice(&plt[..8.min(from + 4) - from]);
                code[from - 1] = push;
                assert_eq!(at(code), expected, "{first}");
            }
        }
        assert_eq!(at([NOP, NOP, NOP, NOP, PUSH_PLT, plt[0], plt[1], plt[2]]), linked);
        assert_eq!(at([NOP, NOP, NOP, NOP, plt[3], NOP, NOP, NOP]), None);
    }

    #[test]
    fn ends_of_functions_are_recognised() {
        let (push, pop) = (0xa9bd_7bfd, 0xa8c3_7bfd); // stp x29, x30, [sp, #-48]!; ldp x29, x30, [sp], #48
        let (linked, record) = (Some((0, None, false, false)), Some((48, Some(8), true, false)));
        let code = |before: u32, this: u32, next: u32| at([NOP, NOP, NOP, before, this, next, NOP, NOP]);
        assert_eq!(code(NOP, push, SET_FP), linked);
        assert_eq!(code(NOP, 0xd503_233f, push), linked);
        assert_eq!(code(push, SET_FP, NOP), record);
        assert_eq!(code(SET_FP, NOP, NOP), None);
        assert_eq!(code(NOP, pop, 0xd65f_03c0), record);
        assert_eq!(code(pop, 0xd65f_03c0, NOP), linked);
    }

    /// Memory from 0x1000 on whose words hold their own index.
    struct Numbered;

    impl Memory for Numbered {
        fn read(&mut self, address: u64) -> Option<u64> {
            Some(address.checked_sub(0x1000)? / 8)
        }
    }

    #[test]
    fn sigcontext_has_the_order_of_the_kernel() {
        let mut registers = Registers::default();
        read_sigcontext(0x1000, &mut registers, &mut Numbered).unwrap();
        // 39 words before x0.
        assert_eq!((registers.r[0], registers.fp(), registers.r[30]), (39, 68, 69));
        assert_eq!((registers.sp(), registers.pc), (70, 71));
    }
}
