//! Hand-made `.eh_frame` sections and random numbers for tests, also for those of the crate `compilation`.

use std::vec;
use std::vec::Vec;

use unwind::Section;

/// Address of every section made here.
pub(crate) const ADDRESS: u64 = 0x10_0000;
/// Start of the function in [`one`].
pub(crate) const START: u64 = 0x20_0000;
/// Length of the function in [`one`].
pub(crate) const LENGTH: u64 = 0x1000;

/// A section under construction.
pub(crate) struct EhFrame {
    pub(crate) bytes: Vec<u8>,
}

impl EhFrame {
    pub(crate) fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    pub(crate) fn section(&self) -> Section<'_> {
        Section { bytes: &self.bytes, address: ADDRESS }
    }

    fn entry(&mut self, id: u32, body: &[u8]) -> usize {
        let offset = self.bytes.len();
        let length = (4 + body.len()).next_multiple_of(4);
        self.bytes.extend((length as u32).to_le_bytes());
        self.bytes.extend(id.to_le_bytes());
        self.bytes.extend(body);
        self.bytes.resize(offset + 4 + length, 0);
        offset
    }

    /// A CIE with an augmentation string, augmentation data without its length, and instructions. Code alignment 1, data
    /// alignment -8, return address in column 16.
    pub(crate) fn cie(&mut self, version: u8, augmentation: &str, data: &[u8], code: &[u8]) -> usize {
        let mut body = vec![version];
        body.extend(augmentation.bytes());
        body.push(0);
        if version == 4 {
            body.extend([8, 0]);
        }
        body.extend([1, 0x78, 16]);
        if augmentation.starts_with('z') {
            body.push(data.len() as u8);
            body.extend(data);
        }
        body.extend(code);
        self.entry(0, &body)
    }

    /// An FDE with its encoded range and what follows it.
    pub(crate) fn raw_fde(&mut self, cie: usize, body: &[u8]) -> usize {
        let id = self.bytes.len() + 4 - cie;
        self.entry(id as u32, body)
    }

    /// An FDE of a CIE with augmentation `zR` and `DW_EH_PE_pcrel | DW_EH_PE_sdata4`.
    pub(crate) fn fde(&mut self, cie: usize, start: u64, length: u64, code: &[u8]) -> usize {
        let field = ADDRESS + self.bytes.len() as u64 + 8;
        let mut body = Vec::new();
        body.extend((start.wrapping_sub(field) as u32).to_le_bytes());
        body.extend((length as u32).to_le_bytes());
        body.push(0);
        body.extend(code);
        self.raw_fde(cie, &body)
    }

    /// The usual CIE: CFA = rsp + 8, return address at CFA - 8.
    pub(crate) fn usual_cie(&mut self) -> usize {
        self.cie(1, "zR", &[0x1b], &[0x0c, 7, 8, 0x90, 1])
    }

    pub(crate) fn terminate(&mut self) {
        self.bytes.extend([0; 4]);
    }
}

/// The usual CIE and one FDE with these instructions.
pub(crate) fn one(code: &[u8]) -> EhFrame {
    let mut made = EhFrame::new();
    let cie = made.usual_cie();
    made.fde(cie, START, LENGTH, code);
    made.terminate();
    made
}

/// xorshift64*.
pub(crate) struct Random(pub(crate) u64);

// Some architectures have no walker tests and leave some of these unused.
#[allow(dead_code)]
impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    /// A number near an edge of arithmetic: zero, overflow, sign.
    pub(crate) fn edge(&mut self) -> u64 {
        match self.below(6) {
            0 => self.below(16),
            1 => u64::MAX - self.below(16),
            2 => (1 << 63) ^ self.below(16),
            3 => 1 << self.below(64),
            _ => self.next(),
        }
    }
}
