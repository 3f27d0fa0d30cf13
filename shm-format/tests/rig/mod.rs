//! What the tests share: memory like that of agent and reader, records whose contents can be checked, and a ledger of
//! deliveries.
#![allow(dead_code, unreachable_pub, reason = "each test program uses its part")]

pub mod interrupted;
pub mod ledger;
pub mod stacks;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use shm_format::{
    Anchor, ClockKind, Committed, Geometry, Identity, Loss, Mode, Pool, RecordKind, Region, RegionReader,
    ThreadCursor,
};

/// Shared anonymous memory: inherited by a forked child, like a region's file.
pub struct Mapping {
    pub base: NonNull<u8>,
    pub len: usize,
}

// SAFETY: plain memory; all access goes through the crate under test.
unsafe impl Send for Mapping {}
// SAFETY: plain memory; all access goes through the crate under test.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn new(len: usize) -> Self {
        let len = len.next_multiple_of(4096);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        Self { base: NonNull::new(base.cast()).unwrap(), len }
    }

    /// The current bytes. Only while nobody writes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped and initialised (zeroed) for its whole length.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// The mapping as words that anyone may change.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped, aligned to a page, and atomics may be changed by anyone.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len / 8) }
    }

    pub fn format(&self, geometry: &Geometry, mode: Mode) -> Region {
        // SAFETY: the mapping is zeroed, writable, and outlives the region in every test.
        unsafe {
            Region::format(self.base, self.len, geometry, &identity(), mode, ClockKind::Monotonic, anchor())
        }
        .unwrap()
    }

    pub fn open(&self) -> RegionReader {
        // SAFETY: the mapping is readable and writable and outlives the reader in every test.
        unsafe { RegionReader::open(self.base, self.len) }.unwrap()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps what `new` mapped; nothing borrows it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

pub fn geometry(chunks: u32) -> Geometry {
    Geometry {
        chunk_size: 4096,
        chunk_capacity: chunks,
        chunks_backed: chunks,
        durable_capacity: 64 * 1024,
        durable_backed: 64 * 1024,
    }
}

pub fn identity() -> Identity {
    Identity {
        pid: 4242,
        uid: 1000,
        start_time: 987_654,
        boot_id: *b"0123456789abcdef",
        session_nonce: 0x1122_3344_5566_7788,
        region_nonce: 0x99aa_bbcc_ddee_ff00,
    }
}

pub fn anchor() -> Anchor {
    Anchor { ticks: 1_000, monotonic_ns: 1_000, realtime_ns: 1_700_000_000_000_000_000 }
}

static CLOCK: AtomicU64 = AtomicU64::new(1_000);

/// A clock shared by all threads that advances at every reading.
pub fn tick() -> u64 {
    CLOCK.fetch_add(1, Ordering::Relaxed)
}

/// A payload word that depends on writer, number and position, so that any misplaced word is detected.
pub fn word(writer: u64, number: u64, at: u64) -> u64 {
    let mut x = writer.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ at;
    x ^= x >> 29;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 32
}

/// Writes record `number` of `writer` with `words` payload words, at least 2.
pub fn write<P: Pool>(
    cursor: &ThreadCursor,
    pool: &P,
    writer: u64,
    number: u64,
    words: usize,
) -> Result<Committed, Loss> {
    let mut record = cursor.reserve(pool, RecordKind::Stack, words, tick)?;
    record.set(0, writer);
    record.set(1, number);
    for at in 2..words {
        record.set(at, word(writer, number, at as u64));
    }
    Ok(record.commit())
}

/// Writer and number of a payload; asserts that every word is right.
pub fn check(payload: &[u8]) -> (u64, u64) {
    let words: Vec<u64> =
        payload.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().unwrap())).collect();
    assert!(words.len() >= 2 && payload.len().is_multiple_of(8), "payload of {} bytes", payload.len());
    for (at, value) in words.iter().enumerate().skip(2) {
        assert_eq!(*value, word(words[0], words[1], at as u64), "torn record: word {at} of {}", words.len());
    }
    (words[0], words[1])
}

/// Small, seeded random numbers.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 33) % bound
    }
}

/// A number from the environment, for the long forms of tests.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}
