//! x86-64 under the System V ABI. Constants and instruction patterns only; no walking happens here.

use super::abi::Abi;
use super::machine::Machine;
use crate::cursor::Cursor;
use crate::memory::Memory;
use crate::register_rule::Packed;
use crate::rule::{Kind, ReturnAddress, Rule, SavedFp};

/// rbp.
pub(crate) const FP: usize = 6;
/// rsp.
pub(crate) const SP: usize = 7;
/// The return address has a column of its own.
pub(crate) const RETURN_ADDRESS: usize = 16;
/// Columns tracked by a walk with all registers: the general registers and the return address.
pub(crate) const COLUMNS: usize = 17;
/// Where a call pushes the return address, in bytes from the CFA.
const PUSHED_AT: i32 = -8;
/// Alignment of functions.
pub(crate) const FUNCTION_ALIGNMENT: u64 = 16;
/// Alignment of instructions.
pub(crate) const INSTRUCTION_ALIGNMENT: usize = 1;
/// Length of a direct call.
pub(crate) const CALL_LENGTH: u64 = 5;
/// Bits of the highest user address under four-level paging.
pub(crate) const ADDRESS_BITS: u32 = 47;
/// Rule cache: bits for the distance in words from the return address to the CFA, which is constant.
pub(crate) const ABOVE_BITS: u32 = 0;
/// Rule cache: bits for the distance in words from the saved frame pointer to the return address.
pub(crate) const BELOW_BITS: u32 = 6;

/// The x86-64 ABI as readers of call frame information see it.
#[derive(Clone, Copy, Debug)]
pub struct X86_64;

impl Abi for X86_64 {
    const MACHINE: Machine = Machine::X86_64;
    const FP: usize = FP;
    const SP: usize = SP;
    const RETURN_ADDRESS: usize = RETURN_ADDRESS;
    const PUSHED_AT: Option<i32> = Some(PUSHED_AT);
    const SIGN_STATE: Option<usize> = None;
    const ENTRY: Rule = Rule::ENTRY_PUSHED;
    type Columns = [Packed; COLUMNS];
    const NO_RULES: Self::Columns = [Packed::SAME; COLUMNS];

    fn by_cfa_expression(expression: &[u8], fp: SavedFp) -> Option<Rule> {
        match expression {
            // breg7 8, breg16 0, lit15, and, lit N, ge, lit3, shl, plus
            [0x77, 8, 0x80, 0, 0x3f, 0x1a, threshold @ 0x30..=0x3f, 0x2a, 0x33, 0x24, 0x22] => {
                Rule::new(Kind::Plt, 8, i32::from(threshold - 0x30), fp)
            }
            // breg7 or breg6, deref, and possibly plus_uconst
            [base @ (0x76 | 0x77), rest @ ..] => {
                let kind = if *base == 0x77 { Kind::SpMemory } else { Kind::FpMemory };
                let (offset, rest) = sleb_16(rest)?;
                let addend = match rest {
                    [0x06] => 0,
                    [0x06, 0x23, number @ ..] => {
                        // Assemblers may pad the LEB128 number.
                        let mut cursor = Cursor::new(number);
                        let addend = i32::try_from(cursor.uleb()?).ok()?;
                        cursor.is_at_end().then_some(addend)?
                    }
                    _ => return None,
                };
                Rule::new(kind, i32::from(offset), addend, fp)
            }
            _ => None,
        }
    }

    fn fp_at_fp(expression: &[u8]) -> Option<i16> {
        // breg6
        let [0x76, rest @ ..] = expression else { return None };
        match sleb_16(rest)? {
            (offset, []) => Some(offset),
            _ => None,
        }
    }
}

fn sleb_16(bytes: &[u8]) -> Option<(i16, &[u8])> {
    let mut cursor = Cursor::new(bytes);
    let value = i16::try_from(cursor.sleb()?).ok()?;
    Some((value, bytes.get(cursor.position()..)?))
}

/// Where a packed rule finds the return address.
#[inline(always)]
pub(crate) fn return_address(_: Rule) -> ReturnAddress {
    ReturnAddress::AtCfa(PUSHED_AT as i16)
}

/// The address itself: return addresses carry no signature here.
#[inline(always)]
pub(crate) fn strip(address: u64) -> u64 {
    address
}

/// The link register, which x86-64 does not have. Keeps the walker free of `cfg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link;

impl Link {
    /// The register has been overwritten.
    pub(crate) const LOST: Link = Link;

    /// With this content.
    pub(crate) fn new(_: Option<u64>) -> Self {
        Link
    }

    /// With the content that it has among `all` registers.
    pub(crate) fn of(_: &dyn Fn() -> Registers) -> Self {
        Link
    }

    /// The return address.
    #[inline(always)]
    pub(crate) fn get(self) -> Option<u64> {
        None
    }
}

/// The registers that a walk starts from, in DWARF order (System V ABI AMD64, figure 3.36): rax rdx rcx rbx rsi rdi
/// rbp rsp r8..r15.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// The general registers by DWARF number.
    pub r: [u64; Self::COUNT],
    /// The address of the next instruction.
    pub pc: u64,
}

impl Registers {
    /// Number of general registers.
    pub const COUNT: usize = 16;
    /// Placeholder that is overwritten before use.
    pub(crate) const NOTHING: Registers = Registers { r: [0; Self::COUNT], pc: 0 };

    /// rsp.
    pub fn sp(&self) -> u64 {
        self.r[SP]
    }

    /// rbp.
    pub fn fp(&self) -> u64 {
        self.r[FP]
    }

    /// Sets the program counter and the stack pointer.
    pub fn move_to(&mut self, pc: u64, sp: u64) {
        (self.pc, self.r[SP]) = (pc, sp);
    }

    /// Column `number`; the return address column is the program counter.
    pub(crate) fn column(&self, number: usize) -> Option<u64> {
        if number == RETURN_ADDRESS { Some(self.pc) } else { self.r.get(number).copied() }
    }

    pub(crate) fn set_column(&mut self, number: usize, value: u64) {
        if number == RETURN_ADDRESS {
            self.pc = value;
        } else if let Some(register) = self.r.get_mut(number) {
            *register = value;
        }
    }
}

/// Offset from the stack pointer at a signal restorer to `uc_mcontext.gregs` (asm/ucontext.h, asm/sigcontext.h).
const SIGCONTEXT: u64 = 40;
/// DWARF numbers in the order of `struct sigcontext`: r8..r15 rdi rsi rbp rbx rdx rax rcx rsp rip.
const SIGCONTEXT_ORDER: [u8; 17] = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, 16];

/// Whether the code at `pc` is a signal restorer without CFI (musl, Go): `mov $15, %eax or %rax; syscall`.
pub(crate) fn is_signal_restorer<M: Memory>(pc: u64, memory: &mut M) -> bool {
    let Some(first) = memory.read(pc) else { return false };
    match first.to_le_bytes() {
        [0xb8, 15, 0, 0, 0, 0x0f, 0x05, _] => true,
        [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f] => {
            memory.read(pc.wrapping_add(1)).is_some_and(|word| word.to_le_bytes()[7] == 0x05)
        }
        _ => false,
    }
}

/// Recognises Go's `goexit`: `nop; call; nop` with `pc` after the first nop. The first function of a goroutine returns
/// there although nothing there called it. Gives the target of the call.
pub(crate) fn goroutine_end<M: Memory>(pc: u64, memory: &mut M) -> Option<u64> {
    match memory.read(pc.checked_sub(1)?)?.to_le_bytes() {
        [0x90, 0xe8, b1, b2, b3, b4, 0x90, _] => {
            let relative = i32::from_le_bytes([b1, b2, b3, b4]);
            Some(pc.wrapping_add(5).wrapping_add(relative as u64))
        }
        _ => None,
    }
}

/// Distance from the stack pointer of compiled Haskell code to the return address of the C function that runs it, GHC's
/// `StgRun`: callee-saved registers, and space that the code uses below them (rts/StgCRun.c).
pub(crate) const HASKELL_FRAME: u64 = 0x4030;
/// Distance from that return address down to the saved frame pointer.
pub(crate) const HASKELL_SAVED_FP: u64 = 0x28;

/// Whether the function at `entry` sets up that frame: `sub $0x30, %rsp; mov %rsp, %rax; sub $0x4000, %rsp`.
pub(crate) fn runs_haskell<M: Memory>(entry: u64, memory: &mut M) -> bool {
    let at = |offset| memory.read(entry.wrapping_add(offset)).map(u64::to_le_bytes);
    [0, 6].map(at)
        == [
            Some([0x48, 0x83, 0xec, 0x30, 0x48, 0x89, 0xe0, 0x48]),
            Some([0xe0, 0x48, 0x81, 0xec, 0x00, 0x40, 0x00, 0x00]),
        ]
}

/// Whether the code at `pc` is `mov $status, %edi; mov $60, %eax; syscall`: where a thread's first function returns if
/// no C library created the thread (Go's `clone`).
pub(crate) fn ends_thread<M: Memory>(pc: u64, memory: &mut M) -> bool {
    let [Some(first), Some(second)] = [memory.read(pc), memory.read(pc.wrapping_add(8))] else {
        return false;
    };
    let (first, second) = (first.to_le_bytes(), second.to_le_bytes());
    first[0] == 0xbf && first[5..] == [0xb8, 60, 0] && second[..4] == [0, 0, 0x0f, 0x05]
}

/// Loads the registers that the kernel saved in the signal frame; `sp` is the stack pointer of its restorer.
pub(crate) fn read_sigcontext<M: Memory>(sp: u64, registers: &mut Registers, memory: &mut M) -> Option<()> {
    let mut address = sp.wrapping_add(SIGCONTEXT);
    for number in SIGCONTEXT_ORDER {
        registers.set_column(usize::from(number), memory.read(address)?);
        address = address.wrapping_add(8);
    }
    Some(())
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

/// Recognises PLT stubs (lld emits no CFI for them) and prologue and epilogue instructions at which a function has no
/// frame record. `pc` must be the next instruction to run, not a return address.
pub(crate) fn stub<M: Memory>(pc: u64, memory: &mut M) -> Option<Stub> {
    let code = memory.read(pc)?.to_le_bytes();
    let before = memory.read(pc.checked_sub(8)?)?.to_le_bytes();
    let at = |pushed, fp_on_top, plt| Some(Stub { cfa: pushed + 8, pushed: Some(pushed), fp_on_top, plt });
    let plt = |pushed| at(pushed, false, true);
    let function = |pushed, fp_on_top| at(pushed, fp_on_top, false);
    match (before, code) {
        // PLT0: push GOT[1]; jmp *GOT[2]. The entry has already pushed its index.
        (_, [0xff, 0x35, _, _, _, _, 0xff, 0x25] | [0xff, 0x35, _, _, _, _, 0xf2, 0xff]) => plt(8),
        ([_, _, 0xff, 0x35, ..], [0xff, 0x25, ..] | [0xf2, 0xff, 0x25, ..]) => plt(16),
        // An entry: (endbr64) jmp *GOT[n]; (endbr64) push index; jmp PLT0.
        (_, [0xff, 0x25, ..] | [0xf2, 0xff, 0x25, ..]) => plt(0),
        (_, [0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25, ..] | [0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, _]) => {
            plt(0)
        }
        (_, [0xf3, 0x0f, 0x1e, 0xfa, 0x68, ..]) => plt(0),
        (_, [0x68, _, _, _, _, 0xe9, ..] | [0x68, _, _, _, _, 0xf2, 0xe9, _]) => plt(0),
        ([_, _, _, 0x68, ..], [0xe9, ..] | [0xf2, 0xe9, ..]) => plt(8),
        // (endbr64) push %rbp; mov %rsp, %rbp ... pop %rbp; ret
        (
            _,
            [0x55, 0x48, 0x89, 0xe5, ..] | [0x55, 0x48, 0x8b, 0xec, ..] | [0xf3, 0x0f, 0x1e, 0xfa, 0x55, ..],
        ) => function(0, false),
        ([.., 0x55], [0x48, 0x89, 0xe5, ..] | [0x48, 0x8b, 0xec, ..]) => function(8, true),
        (_, [0x5d, 0xc3, ..]) => function(8, true),
        (_, [0xc3, ..]) => function(0, false),
        _ => None,
    }
}

/// A call instruction that ends right before an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// `call rel32` to this address.
    Direct(u64),
    /// `call` through a register or memory.
    Indirect,
}

/// Decodes the call instruction that ends at `address`, if the bytes before it can be one.
pub(crate) fn call_before<M: Memory>(address: u64, memory: &mut M) -> Option<Call> {
    let bytes = memory.read(address.checked_sub(8)?)?.to_le_bytes();
    let [_, b7, b6, b5, b4, b3, b2, b1] = bytes;
    if b5 == 0xe8 {
        let relative = i32::from_le_bytes([b4, b3, b2, b1]);
        return Some(Call::Direct(address.wrapping_add(relative as u64)));
    }
    // FF /2 with a ModRM byte that makes the instruction end exactly at `address`.
    let candidates = [(b2, b1, 0, 2), (b3, b2, b1, 3), (b4, b3, b2, 4), (b6, b5, b4, 6), (b7, b6, b5, 7)];
    let found = candidates.into_iter().any(|(opcode, modrm, sib, length)| {
        opcode == 0xff && modrm & 0x38 == 0x10 && indirect_length(modrm, sib) == length
    });
    found.then_some(Call::Indirect)
}

/// Length of an instruction with a one-byte opcode, this ModRM byte and, if it has one, this SIB byte.
fn indirect_length(modrm: u8, sib: u8) -> usize {
    let has_sib = modrm >> 6 != 3 && modrm & 7 == 4;
    let displacement = match modrm >> 6 {
        0 if modrm & 7 == 5 || (has_sib && sib & 7 == 5) => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    2 + usize::from(has_sib) + displacement
}

/// Size of a cache line.
#[cfg(target_arch = "x86_64")]
const CACHE_LINE: usize = 64;

/// Prefetches the cache lines of `value`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn prefetch<T: ?Sized>(value: &T) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    let start: *const i8 = core::ptr::from_ref(value).cast();
    for offset in (0..size_of_val(value)).step_by(CACHE_LINE) {
        // SAFETY: a prefetch cannot fault and affects caches only.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(offset)) }
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    /// Bytes that end at address 0x1000.
    struct Before([u8; 8]);

    impl Memory for Before {
        fn read(&mut self, address: u64) -> Option<u64> {
            (address == 0xff8).then_some(u64::from_le_bytes(self.0))
        }
    }

    fn before(code: &[u8]) -> Option<Call> {
        let mut bytes = [0x90; 8];
        bytes[8 - code.len()..].copy_from_slice(code);
        call_before(0x1000, &mut Before(bytes))
    }

    #[test]
    fn calls_are_recognised() {
        assert_eq!(before(&[0xe8, 0x10, 0, 0, 0]), Some(Call::Direct(0x1010)));
        assert_eq!(before(&[0xe8, 0xf0, 0xff, 0xff, 0xff]), Some(Call::Direct(0xff0)));
        let indirect: [&[u8]; 9] = [
            &[0xff, 0xd0],                         // call *%rax
            &[0x41, 0xff, 0xd4],                   // call *%r12
            &[0xff, 0x10],                         // call *(%rax)
            &[0xff, 0x14, 0xc3],                   // call *(%rbx,%rax,8)
            &[0xff, 0x15, 1, 2, 3, 4],             // call *rel(%rip)
            &[0xff, 0x50, 0x18],                   // call *0x18(%rax)
            &[0xff, 0x54, 0x24, 0x08],             // call *8(%rsp)
            &[0xff, 0x90, 0x00, 0x01, 0, 0],       // call *0x100(%rax)
            &[0xff, 0x94, 0x24, 0x00, 0x01, 0, 0], // call *0x100(%rsp)
        ];
        for code in indirect {
            assert_eq!(before(code), Some(Call::Indirect), "{code:x?}");
        }
        let others: [&[u8]; 4] = [&[0xff, 0xe0], &[0x90], &[0xff, 0x20], &[0xe9, 0, 0, 0, 0]];
        for code in others {
            assert_eq!(before(code), None, "{code:x?}");
        }
    }

    /// Code around 0x1000.
    struct Code(Vec<u8>);

    impl Memory for Code {
        fn read(&mut self, address: u64) -> Option<u64> {
            let bytes = self.0.get(address.checked_sub(0xff0)? as usize..)?;
            bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
        }
    }

    /// What [`stub`] recognises at each instruction of `code`.
    fn stubs(code: &[&[u8]]) -> Vec<Option<(u64, bool)>> {
        let mut bytes = vec![0xcc; 16];
        let mut starts = Vec::new();
        for instruction in code {
            starts.push(0xff0 + bytes.len() as u64);
            bytes.extend(*instruction);
        }
        bytes.extend([0xcc; 16]);
        let mut memory = Code(bytes);
        let pushed = |stub: Stub| (stub.pushed.unwrap(), stub.fp_on_top);
        starts.iter().map(|&pc| stub(pc, &mut memory).map(pushed)).collect()
    }

    #[test]
    fn stubs_are_recognised() {
        let (top, eight, sixteen) = (Some((0, false)), Some((8, false)), Some((16, false)));
        let jump: &[u8] = &[0xff, 0x25, 1, 2, 3, 4];
        let bnd_jump: &[u8] = &[0xf2, 0xff, 0x25, 1, 2, 3, 4];
        let push: &[u8] = &[0x68, 1, 0, 0, 0];
        let to_plt0: &[u8] = &[0xe9, 1, 2, 3, 4];
        let endbr: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
        let push_got: &[u8] = &[0xff, 0x35, 1, 2, 3, 4];
        assert_eq!(stubs(&[jump, push, to_plt0]), [top, top, eight]);
        assert_eq!(stubs(&[push_got, jump]), [eight, sixteen]);
        assert_eq!(stubs(&[push_got, bnd_jump]), [eight, sixteen]);
        assert_eq!(stubs(&[endbr, jump]), [top, top]);
        assert_eq!(stubs(&[endbr, bnd_jump]), [top, top]);
        assert_eq!(stubs(&[endbr, push, &[0xf2, 0xe9, 1, 2, 3, 4]]), [top, top, eight]);
        let saved = Some((8, true));
        let function: [&[u8]; 6] = [&[0x55], &[0x48, 0x89, 0xe5], &[0x31, 0xc0], &[0x90], &[0x5d], &[0xc3]];
        assert_eq!(stubs(&function), [top, saved, None, None, saved, top]);
        assert_eq!(stubs(&[&[0xcc]]), [None]);
    }

    /// A stack of words that start at 0x1000.
    struct Words([u64; 32]);

    impl Memory for Words {
        fn read(&mut self, address: u64) -> Option<u64> {
            self.0.get((address.checked_sub(0x1000)? / 8) as usize).copied()
        }
    }

    #[test]
    fn sigcontext_has_the_order_of_the_kernel() {
        let mut words = Words(core::array::from_fn(|i| i as u64));
        let mut registers = Registers::default();
        read_sigcontext(0x1000, &mut registers, &mut words).unwrap();
        // oRBP 120, oRSP 160, oRIP 168 in the kernel's rt_sigframe.
        assert_eq!((registers.fp(), registers.sp(), registers.pc), (15, 20, 21));
        assert_eq!(registers.r[8], 5);
        assert_eq!(registers.r[0], 18);
    }
}
