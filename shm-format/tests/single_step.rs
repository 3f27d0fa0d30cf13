//! Nests a record at every machine instruction of a write, using the processor's trap flag.
//!
//! The steps of `nested.rs` are those that its author thought of; here the processor finds all of them.
//! `SHM_STEP_ROUNDS` adds random nesting of two levels.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(loom)))]

mod rig;

use std::arch::asm;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

use rig::ledger::Ledger;
use rig::{Mapping, Random, geometry, setting, write};
use shm_format::{Mode, Pass, Region, RegionReader, ThreadCursor};

const TRAP_FLAG: u64 = 0x100;

/// What the handler works on; it runs on the stepped thread only.
struct Stage {
    region: Region,
    cursor: ThreadCursor,
    other: ThreadCursor,
    reader: UnsafeCell<RegionReader>,
    ledger: UnsafeCell<Ledger>,
    written: AtomicU64,
    others: AtomicU64,
    /// Instructions executed in this write; the one to nest at; and the one of the nested write to nest at again.
    seen: AtomicU64,
    at: AtomicU64,
    again: AtomicU64,
    words: AtomicU64,
}

static STAGE: AtomicPtr<Stage> = AtomicPtr::new(std::ptr::null_mut());

impl Stage {
    fn write(&self, words: u64) {
        let number = self.written.fetch_add(1, Relaxed);
        let _ = write(&self.cursor, &self.region, 1, number, words as usize).unwrap();
    }

    /// The reader recycles chunks, and another thread fills them.
    fn recycle(&self) {
        // SAFETY: the reader and the ledger are only used here and in `check_all`, never nested: `recycle` runs
        // with the trap flag off.
        let (reader, ledger) = unsafe { (&mut *self.reader.get(), &mut *self.ledger.get()) };
        ledger.drain(reader, Pass::Live);
        for _ in 0..2 {
            let number = self.others.load(Relaxed);
            if write(&self.other, &self.region, 2, number, 400).is_ok() {
                self.others.store(number + 1, Relaxed);
            }
        }
        ledger.drain(reader, Pass::Live);
    }
}

extern "C" fn on_trap(_signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: STAGE is set before the first trap and outlives the last one.
    let stage = unsafe { &*STAGE.load(Relaxed) };
    let seen = stage.seen.fetch_add(1, Relaxed);
    if seen != stage.at.load(Relaxed) {
        return;
    }
    let again = stage.again.swap(u64::MAX, Relaxed);
    if again != u64::MAX {
        // Second level: step through the nested write too. The signal is not blocked (SA_NODEFER).
        stage.at.store(seen + 1 + again, Relaxed);
        step(|| stage.write(stage.words.load(Relaxed)));
        stage.at.store(u64::MAX, Relaxed);
        return;
    }
    stage.write(stage.words.load(Relaxed));
    stage.recycle();
    // Nothing more to test in this write: continue without traps.
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel passes a valid context.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_EFL as usize] &= !(TRAP_FLAG as i64) };
}

/// Runs `f` with the trap flag set: a SIGTRAP after each instruction.
fn step(f: impl FnOnce()) {
    // SAFETY: sets one flag; the stack pointer is moved past the red zone while pushing.
    unsafe {
        asm!("sub rsp, 128", "pushfq", "or qword ptr [rsp], 0x100", "popfq", "add rsp, 128");
    }
    f();
    // SAFETY: clears the flag again; the stack pointer is moved past the red zone while pushing.
    unsafe {
        asm!("sub rsp, 128", "pushfq", "and qword ptr [rsp], 0xfffffffffffffeff", "popfq", "add rsp, 128");
    }
}

fn install() {
    // SAFETY: the handler is async-signal-safe as far as the stepped code is: it interrupts only record writes,
    // which allocate nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_trap as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut()), 0);
    }
}

/// A new stage whose cursor has `lead` words in its chunk.
fn stage(mapping: &Mapping, lead: u64) -> Box<Stage> {
    let region = mapping.format(&geometry(8), Mode::Discard);
    let stage = Box::new(Stage {
        region,
        cursor: ThreadCursor::new(),
        other: ThreadCursor::new(),
        reader: UnsafeCell::new(mapping.open()),
        ledger: UnsafeCell::new(Ledger::default()),
        written: AtomicU64::new(0),
        others: AtomicU64::new(0),
        seen: AtomicU64::new(0),
        at: AtomicU64::new(u64::MAX),
        again: AtomicU64::new(u64::MAX),
        words: AtomicU64::new(3),
    });
    stage.cursor.begin(1, 1);
    stage.other.begin(2, 2);
    if lead > 0 {
        stage.write(lead);
    }
    stage
}

/// One write of `words` words, after `lead` words, interrupted at instruction `at` (and again at `again` of the nested
/// write). Checks everything; returns the number of instructions executed.
fn interrupted(lead: u64, words: u64, nested: u64, at: u64, again: u64) -> u64 {
    let mapping = Mapping::new(geometry(8).total_len());
    let stage = stage(&mapping, lead);
    stage.words.store(nested, Relaxed);
    stage.at.store(at, Relaxed);
    stage.again.store(again, Relaxed);
    STAGE.store((&raw const *stage).cast_mut(), Relaxed);
    step(|| stage.write(words));
    let seen = stage.seen.load(Relaxed);
    stage.write(5);
    let _ = stage.cursor.close(&stage.region);
    let _ = stage.other.close(&stage.region);
    let Stage { reader, ledger, written, others, .. } = *stage;
    let (mut reader, mut ledger) = (reader.into_inner(), ledger.into_inner());
    ledger.drain(&mut reader, Pass::Live);
    assert_eq!(ledger.stats.torn, 0, "instruction {at} then {again}");
    let (written, others) = (written.into_inner(), others.into_inner());
    assert_eq!(ledger.thread(1).len() as u64, written, "instruction {at} then {again}");
    assert_eq!(ledger.thread(2).len() as u64, others, "instruction {at} then {again}");
    assert_eq!(ledger.holes(1, written), []);
    assert_eq!(ledger.holes(2, others), []);
    ledger.assert_ordered();
    seen
}

/// One test, because the handler and its stage belong to the process.
#[test]
fn a_record_nests_at_every_instruction() {
    install();
    let mut cases = 0;
    let mut random = Random(setting("SHM_SEED", 4711));
    // Inside a chunk; across its end, the nested record inside the old chunk; across its end, nested larger.
    for (lead, words, nested) in [(3, 3, 3), (499, 6, 3), (499, 6, 400)] {
        let whole = interrupted(lead, words, nested, u64::MAX, u64::MAX);
        assert!(whole > 20, "the trap flag does nothing here");
        // With optimization, a write has some hundred instructions, and each is tested; without it, a uniform
        // selection.
        let stride = whole
            .div_ceil(setting("SHM_STEP_CASES", if cfg!(debug_assertions) { 25 } else { 5_000 }))
            as usize;
        println!("{whole} instructions, every {stride}.");
        for at in (random.below(stride as u64)..whole).step_by(stride) {
            interrupted(lead, words, nested, at, u64::MAX);
            cases += 1;
        }
    }
    for _ in 0..setting("SHM_STEP_ROUNDS", if cfg!(debug_assertions) { 10 } else { 500 }) {
        let (lead, words) = (random.below(2) * 499, 3 + random.below(4));
        let whole = interrupted(lead, words, 3, u64::MAX, u64::MAX);
        let nested = 3 + random.below(2) * 300;
        interrupted(lead, words, nested, random.below(whole), random.below(whole));
        cases += 1;
    }
    println!("{cases} nestings");
}
