//! Writes the stack pointers of a [`GoTable`] as `.eh_frame`, so that one reader handles both. Allocates, so it must never run in
//! a handler.
//!
//! Go's linker makes `.debug_frame` of the same numbers. It is absent from a stripped program, and says neither where functions
//! save the frame pointer nor which of them change stacks, where only the frame pointer leads to the caller.

use alloc::vec::Vec;

use unwind::go_table::{Field, GoFunction, GoTable, Version};

/// A CIE for x86-64 (the only machine whose tables are read), whose rules hold at the start of a function: CFA at rsp + 8,
/// return address at CFA - 8.
const CIE: [u8; 20] = [
    16, 0, 0, 0, // length
    0, 0, 0, 0, // id
    1, 0, // version, no augmentation
    1, 0x78, 16, // units of code and data, column of the return address
    0x0c, 7, 8, // DW_CFA_def_cfa
    0x90, 1, // DW_CFA_offset
    0, 0, // DW_CFA_nop
];
const ADVANCE: u8 = 0x04;
const DEFINE_OFFSET: u8 = 0x0e;
/// DW_CFA_undefined of the return address.
const NO_CALLER: [u8; 2] = [0x07, 16];
/// Size of a return address.
const ADDRESS: i32 = 8;
/// DW_CFA_offset of the frame pointer: at CFA - 16, where functions with a frame save it.
const SAVED: [u8; 2] = [0x86, 2];
/// DW_CFA_restore: the frame pointer is in its register.
const RESTORED: u8 = 0xc6;
/// Flags of functions: nothing called them; they load the stack pointer.
const OUTERMOST: u8 = 1;
const CHANGES_STACKS: u8 = 2;
/// Maximum size, which fits a distance of 32 bits.
const LARGEST: usize = 1 << 30;

/// The rules of all functions, with addresses that are `bias` higher than in the table. `None` if the table does not say where the
/// code is, or is of a version that does not tell which functions nothing called.
pub fn write(table: &GoTable<'_>, bias: u64) -> Option<Vec<u8>> {
    if table.version == Version::Go116 || table.text == 0 {
        return None;
    }
    let mut bytes = CIE.to_vec();
    let functions = (0..table.count).map_while(|number| table.function(number));
    for function in functions.filter(|function| function.start < function.end) {
        if bytes.len() > LARGEST {
            return None;
        }
        let start = bytes.len();
        // The length is known at the end.
        bytes.extend([0; 4]);
        bytes.extend((start as u32 + 4).to_le_bytes());
        bytes.extend(function.start.wrapping_add(bias).to_le_bytes());
        bytes.extend((function.end - function.start).to_le_bytes());
        if write_rules(table, &function, &mut bytes).is_none() {
            bytes.truncate(start);
            continue;
        }
        let length = (bytes.len() - start - 4) as u32;
        if let Some(field) = bytes.get_mut(start..start + 4) {
            field.copy_from_slice(&length.to_le_bytes());
        }
    }
    Some(bytes)
}

fn write_rules(table: &GoTable<'_>, function: &GoFunction<'_>, bytes: &mut Vec<u8>) -> Option<()> {
    // Behind the number that says what kind of function it is, and before padding and the number of other data.
    let flags = *function.record.get(table.version.record_size() - 3)?;
    if flags & OUTERMOST != 0 {
        bytes.extend(NO_CALLER);
    } else if flags & CHANGES_STACKS != 0 {
        return None;
    }
    let (mut row, mut begin, mut is_first) = (function.start, function.start, true);
    for (end, moved) in table.values(function, table.field(function, Field::StackProgram)?) {
        let offset = u32::try_from(moved.checked_add(ADDRESS)?).ok()?;
        advance(&mut row, begin, bytes)?;
        bytes.push(DEFINE_OFFSET);
        write_varint(offset, bytes);
        if moved == 0 {
            bytes.push(RESTORED);
        } else {
            // Functions push the frame pointer first; until Go 1.20 they stored it after moving the stack pointer.
            if core::mem::take(&mut is_first) && moved != ADDRESS {
                let store = if moved - ADDRESS < 128 { 5 } else { 8 };
                if begin + store >= end {
                    begin = end;
                    continue;
                }
                advance(&mut row, begin + store, bytes)?;
            }
            bytes.extend(SAVED);
        }
        begin = end;
    }
    Some(())
}

/// Begins a row at `to`, unless it has begun.
fn advance(row: &mut u64, to: u64, bytes: &mut Vec<u8>) -> Option<()> {
    if to > *row {
        bytes.push(ADVANCE);
        bytes.extend(u32::try_from(to - *row).ok()?.to_le_bytes());
        *row = to;
    }
    Some(())
}

/// Seven bits a byte, the lowest first.
fn write_varint(mut value: u32, bytes: &mut Vec<u8>) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}
