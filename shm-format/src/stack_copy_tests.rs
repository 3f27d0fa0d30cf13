//! Copies round-trip in few bytes, and nothing else is accepted.

use std::vec;
use std::vec::Vec;

use super::*;

const HEAD: CopyHead = CopyHead {
    code_only: false,
    beside: true,
    source: 2,
    weight: 300,
    nonce: 7 << 40,
    start: 0x7ffd_0000_1000,
    pc: 0x5555_0000_1234,
    code: None,
};

type Pieces = Vec<(u64, Vec<u8>)>;

/// The pieces of a copy of these registers and words; zero words count as not copied.
fn write(head: &CopyHead, registers: &[u64], words: &[CopiedWord], end: CopyEnd) -> Pieces {
    let mut buffer = CopyBuffer { bytes: [0xaa; PIECE] };
    let mut pieces = Vec::new();
    let put = |kind, first, bytes: &[u8]| {
        assert_eq!(kind, RecordKind::Copy);
        pieces.push((first, bytes.to_vec()));
        Ok(())
    };
    let mut writer = CopyWriter::begin(&mut buffer, head, registers.len(), put).unwrap();
    for &register in registers {
        match register {
            0 => writer.no_register().unwrap(),
            value => writer.register(CopiedWord::Other(value)).unwrap(),
        }
    }
    writer.end_registers().unwrap();
    for &word in words {
        match word.value() {
            0 => writer.skip(),
            _ => writer.keep(word).unwrap(),
        }
    }
    writer.end(end, true).unwrap();
    pieces
}

fn joined(pieces: &Pieces) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (number, (first, part)) in pieces.iter().enumerate() {
        let payload = [&first.to_le_bytes()[..], part].concat();
        let piece = CopyPiece::parse(&payload).unwrap();
        assert_eq!((piece.number as usize, piece.is_last), (number, number + 1 == pieces.len()));
        bytes.extend(piece.bytes);
    }
    bytes
}

fn read(bytes: &[u8], registers: &mut [u64]) -> Option<(CopyHead, Vec<CopiedWord>, CopyEnd, bool)> {
    let reader = CopyReader::parse(bytes)?;
    let head = reader.head;
    let mut words = Vec::new();
    let (end, covers) = reader.read(registers, &mut |copied| match copied {
        Copied::Zeros(count) => words.extend((0..count).map(|_| CopiedWord::Other(0))),
        Copied::Word(word) => words.push(word),
    })?;
    Some((head, words, end, covers))
}

/// Words of all kinds, many of them zero.
fn some_words(count: u64) -> Vec<CopiedWord> {
    let word = |at: u64| {
        let random = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        match random % 16 {
            0 => CopiedWord::Stack(HEAD.start + random % 5000 * 8),
            4 => CopiedWord::Stack(HEAD.start + random % 5000),
            5 => CopiedWord::Generated(0x7f00_0000_0000 + random % 100_000, random),
            1 => CopiedWord::Code(HEAD.pc + random % 100_000),
            2 => CopiedWord::Code(0x7f12_3456_0000 + random % 100_000),
            3 => CopiedWord::Other(random | 1 << 63),
            _ => CopiedWord::Other(0),
        }
    };
    (0..count).map(word).collect()
}

#[test]
fn a_copy_round_trips() {
    let registers = [0, 0, 5, 0x7ffd_0000_1010, 0, 0];
    for (count, end) in [(0, CopyEnd::Base), (7, CopyEnd::Limit), (5000, CopyEnd::Unreadable)] {
        let words = some_words(count);
        let pieces = write(&HEAD, &registers, &words, end);
        assert_eq!(pieces.len() > 1, count == 5000);
        let mut back = [0; 6];
        assert_eq!(read(&joined(&pieces), &mut back), Some((HEAD, words, end, true)));
        assert_eq!(back, registers);
    }
    let head = CopyHead { code: Some([1, u64::MAX]), beside: false, code_only: true, ..HEAD };
    let bytes = joined(&write(&head, &[], &[], CopyEnd::Base));
    assert_eq!(read(&bytes, &mut []).unwrap().0, head);
}

/// Stack addresses whose distance is no multiple of a word, such as those of arguments, take two bytes each.
#[test]
fn unaligned_stack_addresses_are_copied() {
    let words: Vec<_> = (0..100).map(|number| CopiedWord::Stack(HEAD.start + 4003 + 21 * number)).collect();
    let bytes = joined(&write(&HEAD, &[], &words, CopyEnd::Base));
    assert!(bytes.len() < 250, "{}", bytes.len());
    assert_eq!(read(&bytes, &mut []).unwrap().1, words);
    let far = [CopiedWord::Stack(HEAD.start ^ 1 << 63 | 1), CopiedWord::Code(0)];
    let words = [far[0], words[0], far[1], words[1]];
    let (_, back, ..) = read(&joined(&write(&HEAD, &[], &words, CopyEnd::Base)), &mut []).unwrap();
    assert!(back.iter().zip(words).all(|(back, word)| back.value() == word.value()), "{back:x?}");
}

#[test]
fn zeros_take_no_space() {
    let mut words = vec![CopiedWord::Other(0); 4096];
    words[4000] = CopiedWord::Stack(HEAD.start + 4010 * 8);
    let pieces = write(&HEAD, &[], &words, CopyEnd::Base);
    assert!(pieces.len() == 1 && pieces[0].1.len() <= 48, "{}", pieces[0].1.len());
}

#[test]
fn malformed_records_are_refused() {
    let bytes = joined(&write(&HEAD, &[0, 9], &some_words(300), CopyEnd::Limit));
    assert!(read(&bytes, &mut [0; 2]).is_some());
    assert!(read(&bytes, &mut [0; 3]).is_none(), "another number of registers");
    for len in 0..bytes.len() - 8 {
        assert!(read(&bytes[..len], &mut [0; 2]).is_none(), "cut at {len}");
    }
    assert!(read(&[&bytes[..], &[0; 8]].concat(), &mut [0; 2]).is_none(), "longer");
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut broken = bytes.clone();
            broken[at] ^= 1 << bit;
            let _ = read(&broken, &mut [0; 2]);
        }
    }
    // More zeros than any copy can have.
    let head = joined(&write(&HEAD, &[], &[], CopyEnd::Base));
    let begun = &head[..head.iter().rposition(|byte| *byte != 0).unwrap() - 1];
    let many = [begun, &[0xfc, 0xff, 0xff, 0xff, 0x7f, 0, 0, 0]].concat();
    assert!(read(&many, &mut []).is_none());
    for payload in [&[0u8; 8][..], &[1; 16], &[0; 24], &[0, 0, 0, 0, 2, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]] {
        assert_eq!(CopyPiece::parse(payload), None, "{payload:x?}");
    }
}
