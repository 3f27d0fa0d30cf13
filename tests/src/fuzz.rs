//! The fuzz targets: the table builder, the table file, the walker and the decoder of stack copies, each fed with a
//! byte string.
//!
//! The same functions run under libFuzzer (`tests/fuzz`) for any length of time, and briefly in `tests/fuzz.rs` in
//! every test run. Nothing may panic or loop forever; further properties are asserted here.

use compilation::{compile, compile_for, set_source};
use shm_format::{
    Copied, CopiedWord, CopyBuffer, CopyEnd, CopyHead, CopyPiece, CopyReader, CopyWriter, Loss,
};
use unwind::elf_file::ElfFile;
use unwind::{
    Aarch64, Abi, Memory, Module, Modules, Registers, Rule, RuleCache, Section, Source, StackCache, Table,
    X86_64, cfi, walk,
};

/// Address of the sections under test.
const ADDRESS: u64 = 0x10_0000;
const TEXT: u64 = 0x20_0000;
const TEXT_LENGTH: u64 = 0x1_0000;
const STACK: u64 = 0x7000_0000;
/// Maximum frames of a walk.
const FRAMES: usize = 64;
/// Upper bound of reads per frame: a scan of 128 words with the code before each, the registers, expressions.
const READS_PER_FRAME: u64 = 4 * 1024;
/// Size of a table's header in bytes.
const HEADER: usize = 152;

/// Numbers taken from bytes, and pseudo-random ones after their end.
struct Numbers<'a> {
    bytes: &'a [u8],
    state: u64,
}

impl<'a> Numbers<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, state: 0x5eed }
    }

    fn byte(&mut self) -> u8 {
        if let Some((&first, rest)) = self.bytes.split_first() {
            self.bytes = rest;
            self.state = self.state.rotate_left(8) ^ u64::from(first).wrapping_mul(0x2545_f491_4f6c_dd1d);
            return first;
        }
        // xorshift64; the state must not become 0.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state |= 1 << 40;
        (self.state >> 16) as u8
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.word() >> 16) % limit
    }

    /// A number near an edge of arithmetic, or an address.
    fn edge(&mut self) -> u64 {
        let small = u64::from(self.byte() & 15);
        match self.byte() % 8 {
            0 => small,
            1 => u64::MAX - small,
            2 => (1 << 63) ^ small,
            3 => 1 << (self.byte() & 63),
            4 => TEXT + self.below(TEXT_LENGTH + 0x100),
            5 | 6 => STACK + 8 * self.below(0x1000),
            _ => self.word(),
        }
    }
}

/// Compiles `bytes` as `.eh_frame`. The result must be a valid table that agrees with decoding on demand.
pub fn builder(bytes: &[u8]) {
    let _ = ElfFile::parse(bytes);
    builder_for::<X86_64>(bytes);
    builder_for::<Aarch64>(bytes);
}

fn builder_for<A: Abi>(bytes: &[u8]) {
    let section = Section { bytes, address: ADDRESS };
    let extents: Vec<_> = cfi::entries(section).collect();
    let fdes: Vec<cfi::Fde<'_, A>> =
        extents.iter().filter_map(|extent| cfi::Fde::at(&section, extent.offset)).collect();
    let Ok(compiled) = compile_for(A::MACHINE, section, 0, &[]) else { return };
    let table = Table::from_bytes(&compiled).expect("a compiled table is a table");
    for fde in fdes.iter().filter(|fde| fde.start < fde.end).take(64) {
        let alone = fdes.iter().filter(|other| other.start < fde.end && fde.start < other.end).count() == 1;
        for address in [fde.start, fde.start + (fde.end - fde.start) / 2, fde.end - 1] {
            let _ = fde.row_at(address);
            if let (true, Some(rule)) = (alone, fde.rule_at(address)) {
                // The table may be complex from the error of a malformed program on, but not before.
                assert!(
                    [rule, Rule::COMPLEX].contains(&table.lookup(address)),
                    "{address:#x}: table {:?}, on demand {rule:?}",
                    table.lookup(address)
                );
            }
        }
        let _ = fde.rows(|_, _, _| ());
    }
}

/// Treats `bytes` as a table file, as they are and with a corrected checksum, and looks addresses up in it.
pub fn table(bytes: &[u8]) {
    let _ = Table::from_bytes(bytes);
    let mut sealed = bytes.to_vec();
    if sealed.len() >= HEADER {
        // A fuzzer would hardly guess these fields; `set_source` also updates the checksum.
        sealed[..8].copy_from_slice(b"SWUNWIND");
        sealed[8..16].copy_from_slice(&[2, 0, 0, 0, 62, 0, HEADER as u8, 0]);
        let length = (sealed.len() & !7) as u64;
        sealed[16..24].copy_from_slice(&length.to_le_bytes());
        sealed.truncate(length as usize);
        set_source(&mut sealed, &Source::default());
    }
    let Ok(table) = Table::from_trusted_bytes(&sealed) else { return };
    let mut numbers = Numbers::new(bytes);
    for _ in 0..64 {
        table.lookup(numbers.edge());
    }
    let consistent = Table::from_bytes(&sealed).is_ok();
    let rows: Vec<_> = table.rows().take(1 << 16).collect();
    if consistent {
        assert!(rows.is_sorted_by(|a, b| a.0 < b.0));
        for (address, rule) in rows {
            assert_eq!(table.lookup(address), rule, "{address:#x}");
        }
    }
    let _ = (table.build_id(), table.source(), table.as_bytes());
}

/// Memory in which every readable word looks like a stack or like code; constant.
struct Hostile<'a> {
    bytes: &'a [u8],
    reads: u64,
}

impl Memory for Hostile<'_> {
    fn read(&mut self, address: u64) -> Option<u64> {
        self.reads += 1;
        let offset = (address >> 3).wrapping_mul(9) as usize % self.bytes.len().max(1);
        let mut numbers = Numbers::new(self.bytes.get(offset..).unwrap_or(&[]));
        numbers.state ^= address;
        match numbers.byte() % 8 {
            0 => None,
            1 => Some(u64::from_le_bytes([0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0])),
            2 => Some(u64::from_le_bytes([0xb8, 15, 0, 0, 0, 0x0f, 0x05, 0])),
            3 => Some(TEXT + numbers.below(TEXT_LENGTH)),
            _ => Some(numbers.edge()),
        }
    }
}

/// Walks from registers and over memory derived from the second half of `bytes`, by the call frame information in the
/// first half, decoded on demand and compiled; and again with a warm stack cache, which must not change the result.
pub fn walker(bytes: &[u8]) {
    let (section, rest) = bytes.split_at(bytes.len() / 2);
    let section = Section { bytes: section, address: ADDRESS };
    let compiled = compile(section, 0, &[]).ok();
    let table = compiled.as_deref().and_then(|bytes| Table::from_bytes(bytes).ok());
    let (cache, mut stack_cache) = (Box::new(RuleCache::new()), Box::new(StackCache::new()));
    for (generation, table) in [(1, None), (2, table)] {
        let mut numbers = Numbers::new(rest);
        let header = Section { bytes: section.bytes.get(..256).unwrap_or(section.bytes), address: ADDRESS };
        let module = Module {
            start: TEXT,
            end: TEXT + TEXT_LENGTH,
            entry: TEXT + numbers.below(TEXT_LENGTH),
            eh_frame: Some(section),
            eh_frame_hdr: (numbers.byte() & 1 == 1).then_some(header),
            table,
            ..Module::default()
        };
        let modules = [module];
        let modules = Modules::new(&modules, generation).expect("one module is in order");
        let mut registers = Registers { pc: TEXT + numbers.below(TEXT_LENGTH), ..Registers::default() };
        registers.r.fill_with(|| numbers.edge());
        if numbers.byte() & 7 == 0 {
            registers.pc = numbers.edge();
        }
        let mut outcomes = Vec::new();
        for _ in 0..3 {
            let mut memory = Hostile { bytes: numbers.bytes, reads: 0 };
            let walked = walk(&modules, &cache, &registers, &mut memory, &mut stack_cache, FRAMES);
            assert!((1..=FRAMES).contains(&walked.depth), "{walked:?}");
            assert!(memory.reads <= 2 * FRAMES as u64 * READS_PER_FRAME, "{} reads", memory.reads);
            let frames = stack_cache.frames().get(..walked.depth).expect("the frames of the walk").to_vec();
            outcomes.push((walked.end, frames));
        }
        assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "{outcomes:?}");
    }
}

/// Treats `bytes` as a piece of a stack copy, and as a whole copy. A valid copy is written again and must read back the
/// same; and it can be walked.
pub fn copy(bytes: &[u8]) {
    if let Some(piece) = CopyPiece::parse(bytes) {
        assert!(piece.bytes.len() <= bytes.len());
    }
    let Some(read) = read_copy(bytes) else { return };
    let again = read_copy(&write_copy(&read)).expect("what was written is a copy");
    assert_eq!((again.head, again.registers, again.end), (read.head, read.registers, read.end), "{bytes:x?}");
    assert_eq!((again.values(), again.covers), (read.values(), read.covers), "{bytes:x?}");
    let (cache, mut stack_cache) = (Box::new(RuleCache::new()), Box::new(StackCache::new()));
    let modules = [Module { start: TEXT, end: TEXT + TEXT_LENGTH, ..Module::default() }];
    let modules = Modules::new(&modules, 1).expect("one module is in order");
    let mut registers = Registers { pc: read.head.pc, ..Registers::default() };
    registers.r.copy_from_slice(&read.registers);
    let mut memory = CopyMemory { start: read.head.start, words: &read.words };
    let walked = walk(&modules, &cache, &registers, &mut memory, &mut stack_cache, FRAMES);
    assert!((1..=FRAMES).contains(&walked.depth), "{walked:?}");
}

/// Everything in a copy.
struct CopyParts {
    head: CopyHead,
    registers: [u64; REGISTERS],
    /// `None` for words that were not copied.
    words: Vec<Option<CopiedWord>>,
    end: CopyEnd,
    covers: bool,
}

impl CopyParts {
    fn values(&self) -> Vec<u64> {
        self.words.iter().map(|word| word.map_or(0, CopiedWord::value)).collect()
    }
}

const REGISTERS: usize = 16;

struct CopyMemory<'a> {
    start: u64,
    words: &'a [Option<CopiedWord>],
}

impl Memory for CopyMemory<'_> {
    fn read(&mut self, address: u64) -> Option<u64> {
        let index = address.checked_sub(self.start)? / 8;
        self.words.get(index as usize).map(|word| word.map_or(0, CopiedWord::value))
    }
}

fn read_copy(bytes: &[u8]) -> Option<CopyParts> {
    let reader = CopyReader::parse(bytes)?;
    let head = reader.head;
    let (mut registers, mut words) = ([0; REGISTERS], Vec::new());
    let (end, covers) = reader.read(&mut registers, &mut |copied| match copied {
        Copied::Zeros(count) => words.resize(words.len() + count as usize, None),
        Copied::Word(word) => words.push(Some(word)),
    })?;
    Some(CopyParts { head, registers, words, end, covers })
}

fn write_copy(copy: &CopyParts) -> Vec<u8> {
    let (mut buffer, mut bytes) = (CopyBuffer::default(), Vec::new());
    let mut pieces = 0u32;
    let put = |_, first: u64, part: &[u8]| -> Result<(), Loss> {
        let payload = [&first.to_le_bytes(), part].concat();
        let piece = CopyPiece::parse(&payload).expect("a writer writes pieces");
        assert_eq!(piece.number, pieces);
        pieces += 1;
        bytes.extend_from_slice(piece.bytes);
        Ok(())
    };
    let write = || -> Result<(), Loss> {
        let mut writer = CopyWriter::begin(&mut buffer, &copy.head, REGISTERS, put)?;
        for register in copy.registers {
            match register {
                0 => writer.no_register()?,
                value => writer.register(CopiedWord::Other(value))?,
            }
        }
        writer.end_registers()?;
        for word in &copy.words {
            match *word {
                None => writer.skip(),
                Some(word) => writer.keep(word)?,
            }
        }
        writer.end(copy.end, copy.covers)
    };
    write().expect("nothing is lost");
    bytes
}
