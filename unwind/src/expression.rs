//! The DWARF expression evaluator (DWARF 5, section 2.5), bounded in stack depth and steps.

use crate::cursor::Cursor;
use crate::end::End;
use crate::memory::Memory;
use crate::tracked::Tracked;

/// Depth of the evaluation stack.
const STACK: usize = 16;
/// Limit of operations per evaluation: branches can loop.
const STEPS: usize = 256;

struct Stack {
    values: [u64; STACK],
    count: usize,
}

impl Stack {
    fn push(&mut self, value: u64) -> Option<()> {
        *self.values.get_mut(self.count)? = value;
        self.count += 1;
        Some(())
    }

    fn pop(&mut self) -> Option<u64> {
        self.count = self.count.checked_sub(1)?;
        self.values.get(self.count).copied()
    }

    /// The value `depth` entries below the top.
    fn pick(&self, depth: usize) -> Option<u64> {
        self.values.get(self.count.checked_sub(depth.checked_add(1)?)?).copied()
    }

    /// Moves the top below the `depth` values under it.
    fn rotate(&mut self, depth: usize) -> Option<()> {
        let start = self.count.checked_sub(depth + 1)?;
        self.values.get_mut(start..self.count)?.rotate_right(1);
        Some(())
    }
}

/// Evaluates `code`. A given `cfa` is pushed first, as register rules require.
#[inline(never)]
pub(crate) fn evaluate<M: Memory>(
    code: &[u8],
    cfa: Option<u64>,
    registers: &Tracked,
    memory: &mut M,
) -> Result<u64, End> {
    let mut stack = Stack { values: [0; STACK], count: 0 };
    if let Some(cfa) = cfa {
        stack.push(cfa).ok_or(End::BadCfi)?;
    }
    let mut cursor = Cursor::new(code);
    for _ in 0..STEPS {
        if cursor.is_at_end() {
            return stack.pop().ok_or(End::BadCfi);
        }
        let opcode = cursor.u8().ok_or(End::BadCfi)?;
        match opcode {
            0x70..=0x8f | 0x92 => {
                let register = if opcode == 0x92 { cursor.uleb() } else { Some(u64::from(opcode - 0x70)) };
                let number =
                    register.and_then(|register| usize::try_from(register).ok()).ok_or(End::BadCfi)?;
                let offset = cursor.sleb().ok_or(End::BadCfi)?;
                let value = registers.get(number).ok_or(End::LostRegister)?.wrapping_add(offset as u64);
                stack.push(value).ok_or(End::BadCfi)?;
            }
            0x06 | 0x94 => {
                let size = if opcode == 0x94 { cursor.u8().ok_or(End::BadCfi)? } else { 8 };
                let address = stack.pop().ok_or(End::BadCfi)?;
                let value = load(address, size, memory)?;
                stack.push(value).ok_or(End::BadCfi)?;
            }
            _ => operate(opcode, &mut cursor, code, &mut stack).ok_or(End::BadCfi)?,
        }
    }
    Err(End::BadCfi)
}

/// The registers that `code` uses, as a bit mask of DWARF numbers; `None` if malformed.
pub(crate) fn registers(code: &[u8]) -> Option<u64> {
    let mut found = 0u64;
    let mut cursor = Cursor::new(code);
    while !cursor.is_at_end() {
        let opcode = cursor.u8()?;
        match opcode {
            0x70..=0x8f | 0x92 => {
                let number = if opcode == 0x92 { cursor.uleb()? } else { u64::from(opcode - 0x70) };
                cursor.sleb()?;
                found |= u32::try_from(number).ok().and_then(|number| 1u64.checked_shl(number)).unwrap_or(0);
            }
            0x03 | 0x08..=0x11 => drop(constant(opcode, &mut cursor)?),
            0x15 | 0x94 => drop(cursor.u8()?),
            0x23 => drop(cursor.uleb()?),
            0x28 | 0x2f => drop(cursor.u16()?),
            _ => {}
        }
    }
    Some(found)
}

fn load<M: Memory>(address: u64, size: u8, memory: &mut M) -> Result<u64, End> {
    if !(1..=8).contains(&size) {
        return Err(End::BadCfi);
    }
    let word = memory.read(address).ok_or(End::Unreadable)?;
    Ok(word & u64::MAX >> (64 - 8 * u32::from(size)))
}

/// Operations that use neither registers nor memory.
fn operate<'a>(opcode: u8, cursor: &mut Cursor<'a>, code: &'a [u8], stack: &mut Stack) -> Option<()> {
    match opcode {
        0x30..=0x4f => stack.push(u64::from(opcode - 0x30)), // lit
        0x03 | 0x08..=0x11 => stack.push(constant(opcode, cursor)?),
        0x12 => stack.push(stack.pick(0)?), // dup
        0x13 => stack.pop().map(|_| ()),    // drop
        0x14 => stack.push(stack.pick(1)?), // over
        0x15 => {
            let depth = cursor.u8()?;
            stack.push(stack.pick(usize::from(depth))?)
        }
        0x16 => stack.rotate(1), // swap
        0x17 => stack.rotate(2), // rot
        0x19 | 0x1f | 0x20 | 0x23 => {
            let value = stack.pop()?;
            stack.push(match opcode {
                0x19 => (value as i64).unsigned_abs(),
                0x1f => value.wrapping_neg(),
                0x20 => !value,
                _ => value.wrapping_add(cursor.uleb()?),
            })
        }
        0x1a..=0x27 | 0x29..=0x2e => {
            let (right, left) = (stack.pop()?, stack.pop()?);
            stack.push(binary(opcode, left, right)?)
        }
        0x28 | 0x2f => {
            let distance = cursor.u16()? as i16;
            if opcode == 0x2f || stack.pop()? != 0 {
                let target = cursor.position().checked_add_signed(isize::from(distance))?;
                *cursor = Cursor::at(code, target);
                (target <= code.len()).then_some(())?;
            }
            Some(())
        }
        0x96 => Some(()), // nop
        _ => None,
    }
}

fn constant(opcode: u8, cursor: &mut Cursor<'_>) -> Option<u64> {
    match opcode {
        0x08 => cursor.u8().map(u64::from),
        0x09 => cursor.u8().map(|value| value as i8 as u64),
        0x0a => cursor.u16().map(u64::from),
        0x0b => cursor.u16().map(|value| value as i16 as u64),
        0x0c => cursor.u32().map(u64::from),
        0x0d => cursor.u32().map(|value| value as i32 as u64),
        0x03 | 0x0e | 0x0f => cursor.u64(),
        0x10 => cursor.uleb(),
        _ => cursor.sleb().map(|value| value as u64),
    }
}

fn binary(opcode: u8, left: u64, right: u64) -> Option<u64> {
    let (signed_left, signed_right) = (left as i64, right as i64);
    let shift = u32::try_from(right).unwrap_or(u32::MAX);
    Some(match opcode {
        0x1a => left & right,
        0x1b => signed_left.checked_div(signed_right)? as u64,
        0x1c => left.wrapping_sub(right),
        0x1d => left.checked_rem(right)?,
        0x1e => left.wrapping_mul(right),
        0x21 => left | right,
        0x22 => left.wrapping_add(right),
        0x24 => left.checked_shl(shift).unwrap_or(0),
        0x25 => left.checked_shr(shift).unwrap_or(0),
        0x26 => (signed_left >> shift.min(63)) as u64,
        0x27 => left ^ right,
        0x29 => u64::from(signed_left == signed_right),
        0x2a => u64::from(signed_left >= signed_right),
        0x2b => u64::from(signed_left > signed_right),
        0x2c => u64::from(signed_left <= signed_right),
        0x2d => u64::from(signed_left < signed_right),
        _ => u64::from(signed_left != signed_right),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Registers;

    struct Identity;

    impl Memory for Identity {
        fn read(&mut self, address: u64) -> Option<u64> {
            (address != 0).then_some(address ^ 0xaaaa_bbbb_cccc_dddd)
        }
    }

    fn run(code: &[u8]) -> Result<u64, End> {
        let mut registers = Registers { pc: 0x1234b, ..Registers::default() };
        registers.r[7] = 0x7000;
        let mut tracked = Tracked::from(&registers);
        tracked.forget(3);
        evaluate(code, Some(0x5000), &tracked, &mut Identity)
    }

    #[test]
    fn registers_are_found_after_all_operands() {
        for (code, wanted) in [
            (&[][..], Some(0)),
            // libcrypto's bn_mul_mont: *(rsp + 8 * r9 + 8) + 8.
            (&[0x77, 8, 0x79, 0, 0x38, 0x1e, 0x22, 6, 0x23, 8], Some(1 << 7 | 1 << 9)),
            (&[0x92, 16, 0x80, 1, 0x94, 4], Some(1 << 16)),
            // Operands that look like register operations.
            (
                &[0x08, 0x70, 0x0b, 0x71, 0x72, 0x0c, 0x73, 0x73, 0x73, 0x73, 0x28, 0x74, 0x74, 0x15, 0x75],
                Some(0),
            ),
            (
                &[0x03, 0x70, 0x70, 0x70, 0x70, 0x70, 0x70, 0x70, 0x70, 0x10, 0xf1, 0, 0x11, 0x70, 0x7f, 1],
                Some(1 << 15),
            ),
            (&[0x92, 64, 0], Some(0)),
            (&[0x71], None),
            (&[0x0a, 1], None),
        ] {
            assert_eq!(registers(code), wanted, "{code:x?}");
        }
    }

    #[test]
    fn every_operation() {
        let minus_1 = u64::MAX;
        let cases: [(&[u8], u64); 56] = [
            (&[], 0x5000),
            (&[0x30], 0),
            (&[0x4f], 31),
            (&[0x03, 1, 0, 0, 0, 0, 0, 0, 0x80], 0x8000_0000_0000_0001),
            (&[0x08, 0xff], 255),
            (&[0x09, 0xff], minus_1),
            (&[0x0a, 0xff, 0xff], 65535),
            (&[0x0b, 0xff, 0xff], minus_1),
            (&[0x0c, 0xff, 0xff, 0xff, 0xff], 0xffff_ffff),
            (&[0x0d, 0xff, 0xff, 0xff, 0xff], minus_1),
            (&[0x0e, 1, 2, 0, 0, 0, 0, 0, 0], 0x201),
            (&[0x0f, 1, 2, 0, 0, 0, 0, 0, 0], 0x201),
            (&[0x10, 0x81, 1], 129),
            (&[0x11, 0x7f], minus_1),
            (&[0x77, 8], 0x7008),
            (&[0x77, 0x78], 0x6ff8),
            (&[0x92, 7, 8], 0x7008),
            (&[0x80, 0], 0x1234b),
            (&[0x77, 0, 0x06], 0x7000 ^ 0xaaaa_bbbb_cccc_dddd),
            (&[0x77, 0, 0x94, 1], 0xdd),
            (&[0x77, 0, 0x94, 4], 0xcccc_addd),
            (&[0x12, 0x22], 0xa000),
            (&[0x31, 0x13], 0x5000),
            (&[0x31, 0x32, 0x14], 1),
            (&[0x31, 0x32, 0x33, 0x15, 2], 1),
            (&[0x31, 0x32, 0x16], 1),
            (&[0x31, 0x32, 0x33, 0x17], 2),
            (&[0x31, 0x32, 0x33, 0x17, 0x13, 0x13], 3),
            (&[0x11, 0x7f, 0x19], 1),
            (&[0x31, 0x1f], minus_1),
            (&[0x30, 0x20], minus_1),
            (&[0x31, 0x23, 0x7f], 128),
            (&[0x36, 0x33, 0x1a], 2),
            (&[0x11, 0x7a, 0x33, 0x1b], minus_1 - 1),
            (&[0x36, 0x33, 0x1c], 3),
            (&[0x37, 0x34, 0x1d], 3),
            (&[0x36, 0x33, 0x1e], 18),
            (&[0x36, 0x33, 0x21], 7),
            (&[0x36, 0x33, 0x22], 9),
            (&[0x31, 0x34, 0x24], 16),
            (&[0x31, 0x08, 64, 0x24], 0),
            (&[0x11, 0x7f, 0x08, 63, 0x25], 1),
            (&[0x11, 0x7f, 0x08, 64, 0x25], 0),
            (&[0x11, 0x70, 0x32, 0x26], minus_1 - 3),
            (&[0x11, 0x7f, 0x08, 200, 0x26], minus_1),
            (&[0x36, 0x33, 0x27], 5),
            (&[0x31, 0x31, 0x29], 1),
            (&[0x31, 0x31, 0x2a], 1),
            (&[0x11, 0x7f, 0x31, 0x2b], 0),
            (&[0x11, 0x7f, 0x31, 0x2c], 1),
            (&[0x11, 0x7f, 0x31, 0x2d], 1),
            (&[0x31, 0x31, 0x2e], 0),
            (&[0x31, 0x28, 1, 0, 0x35, 0x36], 0x16 - 0x10),
            (&[0x30, 0x28, 1, 0, 0x35, 0x96], 5),
            (&[0x2f, 1, 0, 0x35, 0x37], 7),
            (&[0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22], 0x7010),
        ];
        for (code, value) in cases {
            assert_eq!(run(code), Ok(value), "{code:x?}");
        }
    }

    #[test]
    fn malformed_code_ends() {
        let cases: [(&[u8], End); 14] = [
            (&[0x13], End::BadCfi),                   // nothing left
            (&[0x13, 0x13], End::BadCfi),             // drop of nothing
            (&[0x22], End::BadCfi),                   // one operand missing
            (&[0x2f, 0xfd, 0xff], End::BadCfi),       // endless loop
            (&[0x2f, 0x00, 0x80], End::BadCfi),       // branch before the start
            (&[0x2f, 0xff, 0x7f], End::BadCfi),       // branch past the end
            (&[0x31, 0x30, 0x1b], End::BadCfi),       // division by zero
            (&[0x31, 0x30, 0x1d], End::BadCfi),       // remainder by zero
            (&[0x12, 0x2f, 0xfc, 0xff], End::BadCfi), // stack overflow
            (&[0x08], End::BadCfi),                   // operand missing
            (&[0xff], End::BadCfi),                   // unknown
            (&[0x94, 9], End::BadCfi),                // load of nine bytes
            (&[0x30, 0x06], End::Unreadable),
            (&[0x73, 0], End::LostRegister),
        ];
        for (code, end) in cases {
            assert_eq!(run(code), Err(end), "{code:x?}");
        }
    }
}
