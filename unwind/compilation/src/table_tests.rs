//! Compilation of sections, and what `Table::from_bytes` rejects.

use std::vec;
use std::vec::Vec;

use unwind::table_layout::{HEADER, checksum};
use unwind::{Kind, Machine, Rule, SavedFp, Section, Source, Table, TableError};

use crate::compile::{CompileError, compile_for, set_source};
use crate::fixture::{ADDRESS, EhFrame, LENGTH, START, one};

fn compile(section: Section<'_>, bias: u64, build_id: &[u8]) -> Result<Vec<u8>, CompileError> {
    compile_for(Machine::X86_64, section, bias, build_id)
}

fn sp(offset: i32) -> Rule {
    Rule::new(Kind::Sp, offset, 0, SavedFp::Same).unwrap()
}

fn rows(made: &EhFrame) -> Vec<(u64, Rule)> {
    let bytes = compile(made.section(), 0, &[]).unwrap();
    Table::from_bytes(&bytes).unwrap().rows().collect()
}

#[test]
fn rows_and_lookups() {
    let made = one(&[0x44, 0x0e, 16, 0x03, 0, 3, 0x0e, 24]);
    let bytes = compile(made.section(), 0, &[0xab; 20]).unwrap();
    let table = Table::from_bytes(&bytes).unwrap();
    let expected =
        [(START, sp(8)), (START + 4, sp(16)), (START + 0x304, sp(24)), (START + LENGTH, Rule::UNCOVERED)];
    assert_eq!(table.rows().collect::<Vec<_>>(), expected);
    for address in [0, START - 1, START + LENGTH, START + LENGTH + 0x10_0000, u64::MAX] {
        assert_eq!(table.lookup(address), Rule::UNCOVERED, "{address:#x}");
    }
    for pair in expected.windows(2) {
        for address in [pair[0].0, pair[1].0 - 1] {
            assert_eq!(table.lookup(address), pair[0].1, "{address:#x}");
        }
    }
    assert_eq!(table.build_id(), [0xab; 20]);
    assert_eq!((table.fde_count(), table.row_count()), (1, 4));
    assert_eq!(table.eh_frame_length(), made.bytes.len() as u64);
}

#[test]
fn the_bias_is_subtracted() {
    let made = one(&[]);
    let bytes = compile(made.section(), START - 0x1000, &[]).unwrap();
    let table = Table::from_bytes(&bytes).unwrap();
    assert_eq!((table.lookup(0xfff), table.lookup(0x1000)), (Rule::UNCOVERED, sp(8)));
}

#[test]
fn every_uncovered_range_has_a_row() {
    let mut made = EhFrame::new();
    let cie = made.usual_cie();
    // Out of order, with 15 bytes in between: alignment padding, or a small function without an FDE.
    made.fde(cie, START + 0x11f, 0x10, &[0x0e, 24]);
    made.fde(cie, START, 0x100, &[]);
    made.fde(cie, START + 0x10f, 0, &[]);
    made.fde(cie, START + 0x10f, 1, &[0x0e, 16]);
    assert_eq!(
        rows(&made),
        [
            (START, sp(8)),
            (START + 0x100, Rule::UNCOVERED),
            (START + 0x10f, sp(16)),
            (START + 0x110, Rule::UNCOVERED),
            (START + 0x11f, sp(24)),
            (START + 0x12f, Rule::UNCOVERED)
        ]
    );
}

#[test]
fn overlaps_end_where_the_next_begins() {
    let mut made = EhFrame::new();
    let cie = made.usual_cie();
    made.fde(cie, START, 0x200, &[0x03, 0x80, 0x01, 0x0e, 40]);
    made.fde(cie, START + 0x100, 0x10, &[0x0e, 16]);
    assert_eq!(rows(&made), [(START, sp(8)), (START + 0x100, sp(16)), (START + 0x110, Rule::UNCOVERED)]);
}

#[test]
fn malformed_programs_are_complex_from_the_error_on() {
    assert_eq!(
        rows(&one(&[0x44, 0x0e, 16, 0x44, 0x3f])),
        [(START, sp(8)), (START + 4, sp(16)), (START + 8, Rule::COMPLEX), (START + LENGTH, Rule::UNCOVERED)]
    );
    let mut made = EhFrame::new();
    let cie = made.cie(1, "zR", &[0x1b], &[0x3f]);
    made.fde(cie, START, LENGTH, &[]);
    assert_eq!(rows(&made), [(START, Rule::COMPLEX), (START + LENGTH, Rule::UNCOVERED)]);
}

#[test]
fn nothing_to_compile() {
    let mut made = EhFrame::new();
    assert_eq!(compile(made.section(), 0, &[]), Err(CompileError::NoFdes));
    let cie = made.usual_cie();
    assert_eq!(compile(made.section(), 0, &[]), Err(CompileError::NoFdes));
    made.fde(cie, START, 0x10, &[]);
    assert_eq!(compile(made.section(), 0, &[0; 49]), Err(CompileError::BuildIdTooLong));
    let far = made.cie(1, "", &[], &[]);
    let alone = made.bytes.len();
    // A few functions gigabytes apart: such a table would be nearly all index.
    for distance in [1 << 33, 1 << 31, 70 << 20] {
        made.bytes.truncate(alone);
        let mut body = Vec::from((START + distance).to_le_bytes());
        body.extend(16u64.to_le_bytes());
        made.raw_fde(far, &body);
        assert_eq!(compile(made.section(), 0, &[]), Err(CompileError::TooWide), "{distance:#x}");
    }
}

#[test]
fn many_rules_and_blocks() {
    // More distinct rules than an index can count: the excess is left to the evaluation of all registers.
    let mut code = Vec::new();
    for offset in 0..70_000u32 {
        let offset = offset * 8;
        code.extend([0x41, 0x0e, offset as u8 | 0x80, (offset >> 7) as u8 | 0x80, (offset >> 14) as u8]);
    }
    let mut made = EhFrame::new();
    let cie = made.usual_cie();
    made.fde(cie, START, 0x20_0000, &code);
    let bytes = compile(made.section(), 0, &[]).unwrap();
    let table = Table::from_bytes(&bytes).unwrap();
    assert!(table.rule_count() <= 65_536);
    for row in [1u64, 2, 255, 256, 257, 65_279, 65_280, 65_281, 65_500] {
        assert_eq!(table.lookup(START + row), sp(8 * (row as i32 - 1)), "{row}");
    }
    for row in [65_600, 69_999] {
        assert_eq!(table.lookup(START + row), Rule::COMPLEX, "{row}");
    }
}

#[test]
fn damage_is_found() {
    let made = one(&[0x44, 0x0e, 16, 0x03, 0, 3, 0x0e, 24]);
    let good = compile(made.section(), 0, &[1, 2, 3]).unwrap();
    for length in 0..good.len() {
        assert!(Table::from_bytes(&good[..length]).is_err(), "{length} bytes");
    }
    let mut longer = good.clone();
    longer.extend([0; 100]);
    assert_eq!(Table::from_bytes(&longer).unwrap().as_bytes(), good);
    for byte in 0..good.len() {
        for bit in 0..8 {
            let mut damaged = good.clone();
            damaged[byte] ^= 1 << bit;
            assert!(Table::from_bytes(&damaged).is_err(), "bit {bit} of byte {byte}");
        }
    }
    assert_eq!(Table::from_bytes(b"SWUNWIND").unwrap_err(), TableError::NotATable);
    let mut other = good.clone();
    other[8] = 2;
    assert_eq!(Table::from_bytes(&other).unwrap_err(), TableError::Version(2));
    let mut other = good;
    other[12] = 40;
    assert_eq!(Table::from_bytes(&other).unwrap_err(), TableError::Machine(40));
}

#[test]
fn tables_of_other_machines_are_refused() {
    for machine in [Machine::X86_64, Machine::Aarch64] {
        // No CIE of the other machine has this return address column, so all functions are dropped.
        let compiled = compile_for(machine, one(&[]).section(), 0, &[]);
        assert_eq!(compiled.is_ok(), machine == Machine::X86_64);
        let mut bytes = compile(one(&[]).section(), 0, &[]).unwrap();
        bytes[12..14].copy_from_slice(&machine.to_elf().to_le_bytes());
        assert_eq!(Table::from_bytes(&bytes).unwrap().machine(), machine);
        let loaded = Table::from_trusted_bytes(&bytes).map(|table| table.machine());
        let refused = Err(TableError::Machine(machine.to_elf()));
        assert_eq!(loaded, if machine == Machine::NATIVE { Ok(machine) } else { refused });
    }
}

#[test]
fn the_source_is_stored() {
    let made = one(&[]);
    let mut bytes = compile(made.section(), 0, &[7; 20]).unwrap();
    assert_eq!(Table::from_bytes(&bytes).unwrap().source(), Source::default());
    let source = Source { device: 1, inode: 2, size: 3, modified_ns: u64::MAX };
    set_source(&mut bytes, &source);
    let table = Table::from_bytes(&bytes).unwrap();
    assert_eq!((table.source(), table.build_id()), (source, &[7; 20][..]));
}

/// Recomputes the checksum.
fn reseal(bytes: &mut [u8]) {
    let sum = checksum(&bytes[32..]);
    bytes[24..32].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn wrong_contents_under_a_right_checksum_are_refused() {
    let made = one(&[0x44, 0x0e, 16, 0x03, 0, 3, 0x0e, 24]);
    let good = compile(made.section(), 0, &[]).unwrap();
    let rules = Table::from_bytes(&good).unwrap().rule_count();
    let blocks_at = HEADER + 8 * rules + 4;
    let row_rules_at = blocks_at + 2 * 17;
    let cases = [
        (HEADER, 0x09),            // a kind that no rule has
        (HEADER, 0x80),            // a bit that no rule of this machine has
        (HEADER + 8 * rules, 1),   // first row of the group
        (blocks_at + 2, 0xff),     // first row of a block
        (row_rules_at, 0xff),      // rule that does not exist
        (row_rules_at + 2 * 4, 5), // rows of a block out of order
    ];
    for (at, value) in cases {
        let mut damaged = good.clone();
        damaged[at] = value;
        reseal(&mut damaged);
        assert_eq!(Table::from_bytes(&damaged).unwrap_err(), TableError::Structure, "byte {at}");
    }
    let mut harmless = good.clone();
    harmless[32..40].copy_from_slice(&(ADDRESS & !0xff).to_le_bytes());
    reseal(&mut harmless);
    assert!(Table::from_bytes(&harmless).is_ok());
    let mut high = good.clone();
    high[32..40].copy_from_slice(&(u64::MAX << 8).to_le_bytes());
    reseal(&mut high);
    assert_eq!(Table::from_trusted_bytes(&high).unwrap_err(), TableError::Length);
    for at in 40..52 {
        let mut damaged = good.clone();
        damaged[at] = 0xfe;
        reseal(&mut damaged);
        assert!(Table::from_bytes(&damaged).is_err(), "byte {at}");
    }
    let mut empty = vec![0; HEADER];
    empty[..HEADER].copy_from_slice(&good[..HEADER]);
    empty[16..24].copy_from_slice(&(HEADER as u64).to_le_bytes());
    empty[40..52].fill(0);
    reseal(&mut empty);
    let table = Table::from_bytes(&empty).unwrap();
    assert_eq!((table.lookup(START), table.row_count()), (Rule::UNCOVERED, 0));
}
