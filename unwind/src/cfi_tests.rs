//! Entries, augmentations, pointer encodings and the search table.

use std::vec::Vec;

use crate::arch::X86_64;
use crate::cfi;
use crate::end::End;
use crate::fixture::{ADDRESS, EhFrame, LENGTH, START, one};
use crate::module::Module;
use crate::rule::{Kind, Rule};
use crate::section::Section;

type Cie = cfi::Cie<X86_64>;
type Fde<'a> = cfi::Fde<'a, X86_64>;

const USUAL: [u8; 5] = [0x0c, 7, 8, 0x90, 1];
const HEADER_ADDRESS: u64 = 0x8_0000;

fn find(eh_frame: &EhFrame, header: Option<&[u8]>, address: u64) -> Result<Option<u64>, End> {
    let header = header.map(|bytes| Section { bytes, address: HEADER_ADDRESS });
    let module = Module { eh_frame: Some(eh_frame.section()), eh_frame_hdr: header, ..Module::default() };
    Ok(module.fde_at(address)?.map(|fde| fde.start))
}

/// A header with `sdata4` entries relative to itself.
fn header(entries: &[(u64, u64)]) -> Vec<u8> {
    let relative = |address: u64| (address.wrapping_sub(HEADER_ADDRESS) as u32).to_le_bytes();
    let mut bytes = Vec::from([1, 0x1b, 0x03, 0x3b]);
    bytes.extend((ADDRESS.wrapping_sub(HEADER_ADDRESS + 4) as u32).to_le_bytes());
    bytes.extend((entries.len() as u32).to_le_bytes());
    for (start, fde) in entries {
        bytes.extend(relative(*start));
        bytes.extend(relative(*fde));
    }
    bytes
}

#[test]
fn versions_and_augmentations() {
    for version in [1, 3, 4] {
        let mut made = EhFrame::new();
        let cie = made.cie(version, "zRS", &[0x1b], &USUAL);
        let fde = made.fde(cie, START, LENGTH, &[]);
        let fde = Fde::at(&made.section(), fde).unwrap();
        assert_eq!((fde.start, fde.end), (START, START + LENGTH));
        assert!(fde.cie.is_signal_frame());
        assert_eq!(fde.rule_at(START).unwrap().kind(), Kind::Complex);
        assert!(fde.rule_at(START).unwrap().is_signal_frame());
    }
    for (augmentation, data) in [
        ("zPLR", &[0x9b, 1, 2, 3, 4, 0x1b, 0x1b][..]),
        ("zPR", &[0x00, 1, 2, 3, 4, 5, 6, 7, 8, 0x1b]),
        ("zPR", &[0xff, 0x1b]),
        ("zRB", &[0x1b]),
        ("zRx", &[0x1b, 77, 77]),
    ] {
        let mut made = EhFrame::new();
        let cie = made.cie(1, augmentation, data, &USUAL);
        let fde = made.fde(cie, START, LENGTH, &[]);
        let fde = Fde::at(&made.section(), fde).unwrap();
        assert_eq!((fde.start, fde.end), (START, START + LENGTH), "{augmentation}");
        assert_eq!(fde.rule_at(START).unwrap().kind(), Kind::Sp, "{augmentation}");
    }
}

#[test]
fn unusual_entries_are_refused() {
    let refused = |version, augmentation, data: &[u8]| {
        let mut made = EhFrame::new();
        let cie = made.cie(version, augmentation, data, &USUAL);
        assert!(Cie::at(&made.section(), cie).is_none(), "{version} {augmentation}");
    };
    refused(2, "zR", &[0x1b]);
    refused(5, "zR", &[0x1b]);
    refused(1, "xyz", &[]);
    refused(1, "zR", &[]); // reads into the instructions
    let mut made = EhFrame::new();
    let cie = made.cie(1, "", &[], &USUAL);
    made.bytes[cie + 12] = 30; // return address column
    assert!(Cie::at(&made.section(), cie).is_none());
    let mut made = one(&[]);
    made.bytes[0] = 0xfc; // longer than the section
    assert!(Cie::at(&made.section(), 0).is_none());
    assert!(Fde::at(&one(&[]).section(), 0).is_none());
}

#[test]
fn absolute_pointers_and_no_augmentation() {
    let mut made = EhFrame::new();
    let cie = made.cie(1, "", &[], &USUAL);
    let mut body = Vec::from(START.to_le_bytes());
    body.extend(LENGTH.to_le_bytes());
    let fde = made.raw_fde(cie, &body);
    let fde = Fde::at(&made.section(), fde).unwrap();
    assert_eq!((fde.start, fde.end), (START, START + LENGTH));
}

#[test]
fn extended_length() {
    let plain = one(&[]);
    let mut made = EhFrame::new();
    made.bytes.extend([0xff; 4]);
    made.bytes.extend((u64::from(plain.bytes[0])).to_le_bytes());
    made.bytes.extend(&plain.bytes[4..4 + usize::from(plain.bytes[0])]);
    assert!(Cie::at(&made.section(), 0).is_some());
    assert_eq!(cfi::entries(made.section()).count(), 1);
}

#[test]
fn the_header_finds_what_the_scan_finds() {
    let mut made = EhFrame::new();
    let cie = made.usual_cie();
    let starts = [0x20_0000, 0x20_0100, 0x20_0400];
    let fdes = starts.map(|start| ADDRESS + made.fde(cie, start, 0x80, &[]) as u64);
    made.terminate();
    let table: Vec<_> = starts.into_iter().zip(fdes).collect();
    let header = header(&table);
    let mut addresses = Vec::from([0, u64::MAX, ADDRESS]);
    for start in starts {
        addresses.extend([start - 1, start, start + 1, start + 0x7f, start + 0x80]);
    }
    for address in addresses {
        let expected = starts.into_iter().find(|&start| start <= address && address < start + 0x80);
        assert_eq!(find(&made, None, address), Ok(expected), "{address:#x}");
        assert_eq!(find(&made, Some(&header), address), Ok(expected), "{address:#x}");
    }
    // With other encodings of the table the search falls back to the scan. An FDE address outside the section is an
    // error.
    let mut other = header.clone();
    other[3] = 0x1b;
    assert_eq!(find(&made, Some(&other), starts[1]), Ok(Some(starts[1])));
    let wild = self::header(&[(starts[0], 0x1234)]);
    assert_eq!(find(&made, Some(&wild), starts[0]), Err(End::BadCfi));
    let no_fde = self::header(&[(starts[0], ADDRESS)]);
    assert_eq!(find(&made, Some(&no_fde), starts[0]), Err(End::BadCfi));
    // A count larger than the section is clamped.
    let mut long = header.clone();
    long[8..12].fill(0xff);
    assert_eq!(find(&made, Some(&long), starts[2]), Ok(Some(starts[2])));
    assert_eq!(cfi::eh_frame_address(Section { bytes: &header, address: HEADER_ADDRESS }), Some(ADDRESS));
}

#[test]
fn an_empty_fde_hides_nothing() {
    let mut made = EhFrame::new();
    let cie = made.usual_cie();
    let empty = ADDRESS + made.fde(cie, START, 0, &[]) as u64;
    made.fde(cie, START, LENGTH, &[]);
    made.terminate();
    let header = header(&[(START, empty)]);
    assert_eq!(find(&made, Some(&header), START), Ok(Some(START)));
    assert_eq!(find(&made, None, START), Ok(Some(START)));
}

#[test]
fn code_without_an_fde_is_an_uncovered_range() {
    let made = one(&[]);
    let module = Module { eh_frame: Some(made.section()), ..Module::default() };
    assert_eq!(module.decode_rule(START - 1), Ok(Rule::UNCOVERED));
    assert_eq!(Module::default().decode_rule(START), Ok(Rule::UNCOVERED));
    let broken = one(&[0x3f]);
    let module = Module { eh_frame: Some(broken.section()), ..Module::default() };
    assert_eq!(module.decode_rule(START), Err(End::BadCfi));
}
