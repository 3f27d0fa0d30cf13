//! Random registers, random memory and damaged call frame information: nothing may panic, and every walk must end.
//!
//! Debug builds also catch every overflow. Seeds are fixed, so that failures are reproducible.

use std::boxed::Box;
use std::vec::Vec;

use unwind::elf_file::ElfFile;
use unwind::table_layout::checksum;
use unwind::{
    Abi, End, Memory, Module, Modules, Native, Registers, Rule, RuleCache, Section, StackCache, Table, cfi,
    walk,
};

use crate::compile::compile;
use crate::fixture::{ADDRESS, EhFrame, Random};

const TEXT: u64 = 0x20_0000;
const TEXT_LENGTH: u64 = 0x1_0000;
const STACK: u64 = 0x7000_0000;

/// Memory in which every readable word looks like a stack or like code.
struct Hostile {
    random: Random,
    reads: u64,
}

impl Memory for Hostile {
    fn read(&mut self, _: u64) -> Option<u64> {
        self.reads += 1;
        Some(match self.random.below(16) {
            0 => return None,
            1 => self.random.edge(),
            2..6 => STACK + 8 * self.random.below(0x1000),
            6 => u64::from_le_bytes([0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0]),
            7 => u64::from_le_bytes([0xb8, 15, 0, 0, 0, 0x0f, 0x05, 0]),
            _ => TEXT + self.random.below(TEXT_LENGTH + 0x100),
        })
    }
}

/// Upper bound of reads per frame: a scan of 128 words with the code before each, the registers, expressions.
const READS_PER_FRAME: u64 = 4 * 1024;

fn walk_hostile(
    module: Module<'_>,
    random: &mut Random,
    cache: &RuleCache,
    stack_cache: &mut StackCache,
) -> End {
    let modules = [module];
    let modules = Modules::new(&modules, random.next() as u32).unwrap();
    let mut registers = Registers { pc: TEXT + random.below(TEXT_LENGTH), ..Registers::default() };
    registers.r.fill_with(|| random.edge());
    if random.below(4) != 0 {
        registers.r[Native::SP] = STACK + 8 * random.below(0x1000);
        registers.r[Native::FP] = STACK + 8 * random.below(0x1000);
    } else {
        registers.pc = random.edge();
    }
    let mut memory = Hostile { random: Random(random.next() | 1), reads: 0 };
    let walked = walk(&modules, cache, &registers, &mut memory, stack_cache, 64);
    assert!((1..=64).contains(&walked.depth));
    assert!(memory.reads <= 2 * 64 * READS_PER_FRAME, "{} reads", memory.reads);
    walked.end
}

/// Mostly well-formed instructions.
fn code(random: &mut Random) -> Vec<u8> {
    let mut code = Vec::new();
    for _ in 0..random.below(12) {
        let register = random.below(18) as u8;
        let small = random.below(128) as u8;
        let expression = |random: &mut Random, code: &mut Vec<u8>| {
            let length = random.below(10) as u8;
            code.push(length);
            code.extend((0..length).map(|_| match random.below(3) {
                0 => 0x70 + random.below(18) as u8,
                1 => [0x06, 0x12, 0x22, 0x1c, 0x2f, 0x28, 0x94, 0x16][random.below(8) as usize],
                _ => random.next() as u8,
            }));
        };
        match random.below(14) {
            0..3 => code.push(0x40 | small & 0x3f),
            3 => code.extend([0x0c, register, small]),
            4 => code.extend([0x0e, small]),
            5 => code.extend([0x0d, register]),
            6 => code.extend([0x80 | register, small]),
            7 => {
                code.push(0x0f);
                expression(random, &mut code);
            }
            8 => {
                code.extend([[0x10, 0x16][random.below(2) as usize], register]);
                expression(random, &mut code);
            }
            9 => code.extend([[0x0a, 0x0b][random.below(2) as usize]]),
            10 => code.extend([[0x07, 0x08, 0x06][random.below(3) as usize], register]),
            11 => code.extend([0x09, register, random.below(18) as u8]),
            12 => code.extend([0x13, small]),
            _ => code.push(random.next() as u8),
        }
    }
    code
}

/// A section that covers the text with functions that have random programs.
fn made_up(random: &mut Random) -> EhFrame {
    let mut made = EhFrame::new();
    let plain = made.usual_cie();
    let signal = made.cie(1, "zRS", &[0x1b], &[0x0c, 7, 8, 0x90, 1]);
    let mut start = TEXT;
    while start < TEXT + TEXT_LENGTH {
        let length = 16 + random.below(0x400);
        let cie = if random.below(10) == 0 { signal } else { plain };
        made.fde(cie, start, length, &code(random));
        start += length + random.below(64);
    }
    made
}

fn module(section: Section<'_>) -> Module<'_> {
    Module {
        start: TEXT,
        end: TEXT + TEXT_LENGTH,
        entry: TEXT + 0x8000,
        eh_frame: Some(section),
        ..Module::default()
    }
}

#[test]
fn random_programs() {
    let mut random = Random(0x5eed_0001);
    let (cache, mut stack_cache) = (Box::new(RuleCache::new()), Box::new(StackCache::new()));
    let mut ends = [0; End::ALL.len()];
    for _ in 0..400 {
        let made = made_up(&mut random);
        let bytes = compile(made.section(), 0, &[]).unwrap();
        let table = Table::from_bytes(&bytes).unwrap();
        for _ in 0..10 {
            let plain = walk_hostile(module(made.section()), &mut random, &cache, &mut stack_cache);
            let compiled = Module { table: Some(table), ..module(made.section()) };
            let compiled = walk_hostile(compiled, &mut random, &cache, &mut stack_cache);
            ends[plain as usize] += 1;
            ends[compiled as usize] += 1;
        }
        // Table and decoder also agree on programs that no compiler would emit.
        for _ in 0..100 {
            let address = TEXT + random.below(TEXT_LENGTH);
            if let Ok(rule) = module(made.section()).decode_rule(address)
                && rule != Rule::UNCOVERED
            {
                assert_eq!(rule, table.lookup(address), "{address:#x}");
            }
        }
    }
    // The walks above must have ended for every reason that needs no region.
    let seen = |end: &End| (ends[*end as usize] > 0) == (*end != End::BadUnwinder);
    assert!(End::ALL.iter().all(seen), "{ends:?}");
}

#[test]
fn damaged_sections() {
    let mut random = Random(0x5eed_0002);
    let (cache, mut stack_cache) = (Box::new(RuleCache::new()), Box::new(StackCache::new()));
    for _ in 0..400 {
        let mut made = made_up(&mut random);
        for _ in 0..1 + random.below(20) {
            let at = random.below(made.bytes.len() as u64) as usize;
            made.bytes[at] = random.edge() as u8;
        }
        let cut = random.below(made.bytes.len() as u64 + 1) as usize;
        if random.below(4) == 0 {
            made.bytes.truncate(cut);
        }
        let mut header = Vec::from([1, 0x1b, 0x03, 0x3b]);
        header.extend((0..random.below(400)).map(|_| random.edge() as u8));
        let header = Section { bytes: &header, address: ADDRESS + random.below(0x1_0000) };
        for _ in 0..10 {
            walk_hostile(module(made.section()), &mut random, &cache, &mut stack_cache);
            let with_header = Module { eh_frame_hdr: Some(header), ..module(made.section()) };
            walk_hostile(with_header, &mut random, &cache, &mut stack_cache);
        }
        if let Ok(bytes) = compile(made.section(), 0, &[]) {
            assert!(Table::from_bytes(&bytes).is_ok());
        }
    }
}

#[test]
fn damaged_real_files() {
    let own = std::fs::read("/proc/self/exe").unwrap();
    let elf = ElfFile::parse(&own).unwrap();
    let section = elf.eh_frame.unwrap();
    let bytes = &section.bytes[..section.bytes.len().min(60_000)];
    let mut random = Random(0x5eed_0003);
    for _ in 0..60 {
        let mut damaged = Vec::from(bytes);
        for _ in 0..1 + random.below(200) {
            let at = random.below(damaged.len() as u64) as usize;
            damaged[at] = random.edge() as u8;
        }
        let damaged = Section { bytes: &damaged, ..section };
        if let Ok(bytes) = compile(damaged, 0, &[]) {
            assert!(Table::from_bytes(&bytes).is_ok());
        }
        for extent in cfi::entries(damaged) {
            let Some(fde) = cfi::Fde::<Native>::at(&damaged, extent.offset) else { continue };
            let address = fde.start.wrapping_add(random.below(256));
            let _ = (fde.rule_at(address), fde.row_at(address), fde.rows(|_, _, _| ()));
        }
    }
    // And the file around the section.
    let size = own.len().min(1 << 20);
    for _ in 0..2000 {
        let mut headers = Vec::from(&own[..64]);
        let at = random.below(64) as usize;
        headers[at] = random.edge() as u8;
        headers.extend(&own[size - 4096..size]);
        let _ = ElfFile::parse(&headers);
    }
}

#[test]
fn damaged_tables() {
    let mut random = Random(0x5eed_0004);
    let (cache, mut stack_cache) = (Box::new(RuleCache::new()), Box::new(StackCache::new()));
    let mut accepted = 0;
    for _ in 0..2000 {
        let made = made_up(&mut random);
        let mut bytes = compile(made.section(), 0, &[]).unwrap();
        for _ in 0..1 + random.below(3) {
            let at = 32 + random.below(bytes.len() as u64 - 32) as usize;
            bytes[at] = random.edge() as u8;
        }
        let sum = checksum(&bytes[32..]);
        bytes[24..32].copy_from_slice(&sum.to_le_bytes());
        let Ok(table) = Table::from_bytes(&bytes) else { continue };
        accepted += 1;
        for _ in 0..50 {
            table.lookup(random.edge());
            table.lookup(TEXT + random.below(TEXT_LENGTH));
        }
        assert_eq!(table.rows().count(), table.row_count());
        walk_hostile(
            Module { table: Some(table), ..module(made.section()) },
            &mut random,
            &cache,
            &mut stack_cache,
        );
    }
    assert!(accepted > 100, "{accepted}");
}
