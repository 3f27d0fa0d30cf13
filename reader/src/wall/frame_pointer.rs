//! Finds the frame pointer of a blocked thread: the kernel reports only its stack pointer and program counter.
//!
//! Few walks need it. Most code, including the C library's system calls, finds its callers by the stack pointer, and a callee
//! that saved the frame pointer makes it known. If a function has a frame record and nothing it called has saved the register,
//! the record is searched on the stack: at the offset given by the function's prologue, or else at the first pair of words
//! that can be a frame record and whose return address follows a call of this function, or an indirect call.

use super::call::{self, Call};

/// How far above the stack pointer to search, in bytes.
const REACH: u64 = 64 * 1024;
const WORD: u64 = 8;
/// Maximum number of prologue instructions to decode.
const PROLOGUE: usize = 12;

/// The thread's memory.
pub(super) trait Words {
    /// The eight bytes at an address.
    fn word(&mut self, address: u64) -> Option<u64>;
    /// The byte at an address.
    fn byte(&mut self, address: u64) -> Option<u8>;
}

/// How a record was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Its address: the frame pointer.
    pub(super) address: u64,
    /// The call before its return address calls the function, or the prologue determines the address.
    pub(super) is_certain: bool,
}

/// Candidates for the frame record of the function at `function` with the stack pointer `sp`, most likely first. `begins` tells
/// whether a function begins at an address.
pub(super) fn candidates(
    words: &mut impl Words,
    function: u64,
    pc: u64,
    sp: u64,
    begins: &mut dyn FnMut(u64) -> bool,
) -> Vec<Record> {
    let mut certain = Vec::new();
    let mut likely = Vec::new();
    if let Some(size) = frame_size(words, function, pc)
        && let Some(address) = sp.checked_add(size)
        && returns(words, address).is_some()
    {
        certain.push(Record { address, is_certain: true });
    }
    let mut address = sp.next_multiple_of(WORD);
    while address < sp.saturating_add(REACH) {
        let Some(saved) = words.word(address) else { break };
        // It must point to a frame record further out, or be 0 if there is none.
        let can_be_saved = saved == 0 || saved > address;
        match returns(words, address).filter(|_| can_be_saved) {
            Some(Call::Direct(target)) if target == function => {
                certain.push(Record { address, is_certain: true });
            }
            // A call to a PLT stub, which may lead anywhere.
            Some(Call::Direct(target)) if !begins(target) => {
                likely.push(Record { address, is_certain: false });
            }
            Some(Call::Indirect) => likely.push(Record { address, is_certain: false }),
            _ => {}
        }
        address += WORD;
    }
    certain.append(&mut likely);
    certain
}

/// The call before the return address of a record.
fn returns(words: &mut impl Words, record: u64) -> Option<Call> {
    let address = words.word(record.checked_add(WORD)?)?;
    if address < 4096 {
        return None;
    }
    call::before(address, &mut |at| words.byte(at))
}

/// Distance in bytes from the stack pointer after the prologue to the frame record; `None` if the function does not begin with
/// `push %rbp; mov %rsp, %rbp`, or `pc` is inside the prologue.
fn frame_size(words: &mut impl Words, function: u64, pc: u64) -> Option<u64> {
    let mut at = function;
    let mut code = [0; 7];
    let (mut has_record, mut size) = (false, 0u64);
    for _ in 0..PROLOGUE {
        for (byte, address) in code.iter_mut().zip(at..) {
            *byte = words.byte(address)?;
        }
        let len = match code {
            [0xf3, 0x0f, 0x1e, 0xfa, ..] => 4,
            [0x55, ..] if !has_record => 1,
            [0x48, 0x89, 0xe5, ..] | [0x48, 0x8b, 0xec, ..] => {
                has_record = true;
                3
            }
            [0x50..=0x57, ..] if has_record => {
                size += WORD;
                1
            }
            [0x41, 0x50..=0x57, ..] if has_record => {
                size += WORD;
                2
            }
            [0x48, 0x83, 0xec, bytes, ..] if has_record => {
                size += u64::from(bytes);
                return (pc >= at + 4).then_some(size);
            }
            [0x48, 0x81, 0xec, b1, b2, b3, b4] if has_record => {
                size += u64::from(u32::from_le_bytes([b1, b2, b3, b4]));
                return (pc >= at + 7).then_some(size);
            }
            _ => break,
        };
        at += len;
    }
    (has_record && pc >= at).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUNCTION: u64 = 0x40_1000;
    const CALLER: u64 = 0x40_2000;
    const STACK: u64 = 0x7000;

    struct Fixture {
        code: Vec<u8>,
        stack: Vec<u64>,
    }

    impl Words for Fixture {
        fn word(&mut self, address: u64) -> Option<u64> {
            self.stack.get(((address.checked_sub(STACK)?) / WORD) as usize).copied()
        }

        fn byte(&mut self, address: u64) -> Option<u8> {
            if let Some(at) = address.checked_sub(CALLER - 5).filter(|at| *at < 5) {
                let [b1, b2, b3, b4] = (FUNCTION.wrapping_sub(CALLER) as i32).to_le_bytes();
                return Some([0xe8, b1, b2, b3, b4][at as usize]);
            }
            // The second return address does not follow a call of this function.
            if let Some(at) = address.checked_sub(CALLER + 0x100 - 5).filter(|at| *at < 5) {
                return Some([0xe8, 1, 0, 0, 0][at as usize]);
            }
            let code = self.code.get(address.checked_sub(FUNCTION)? as usize).copied();
            code.or(Some(0x90))
        }
    }

    #[test]
    fn the_prologue_says_where_the_record_is() {
        // endbr64; push %rbp; mov %rsp, %rbp; push %rbx; sub $0x18, %rsp
        let code = vec![0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x53, 0x48, 0x83, 0xec, 0x18];
        let stack = vec![1, 2, 3, 4, STACK + 0x100, CALLER, 0, 0];
        let mut words = Fixture { code, stack };
        let found = candidates(&mut words, FUNCTION, FUNCTION + 40, STACK, &mut |_| true);
        assert_eq!(found[0], Record { address: STACK + 32, is_certain: true });
        assert_eq!(frame_size(&mut words, FUNCTION, FUNCTION + 9), None, "inside of the prologue");
    }

    #[test]
    fn a_record_left_by_another_call_is_passed_over() {
        // A frame of unknown size: first leftovers of an earlier call, then its own record.
        let stack = vec![0, STACK + 0x100, CALLER + 0x100, 0, STACK + 0x100, CALLER, 0, 0];
        let mut words = Fixture { code: vec![0xc3], stack };
        let found = candidates(&mut words, FUNCTION, FUNCTION + 40, STACK, &mut |_| true);
        assert_eq!(found, [Record { address: STACK + 32, is_certain: true }]);
        let found = candidates(&mut words, FUNCTION, FUNCTION + 40, STACK, &mut |_| false);
        assert_eq!(found[1], Record { address: STACK + 8, is_certain: false });
    }
}
