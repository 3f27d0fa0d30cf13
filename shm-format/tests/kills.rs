//! Death at any instruction: writers and readers killed with SIGKILL, and their successors.
//!
//! `SHM_KILLS` sets the kills of each kind, `SHM_KILL_STRIDE` their distance (1: at every instruction).
#![cfg(all(target_os = "linux", not(loom)))]

mod rig;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use rig::ledger::Ledger;
use rig::{Mapping, Random, geometry, setting, tick, write};
use shm_format::{Geometry, Mode, Pass, Region, ThreadCursor};

/// Runs `body` in a child process, which never returns from here.
fn child(body: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child runs `body` and leaves without destructors; glibc keeps its allocator usable after a fork.
    match unsafe { libc::fork() } {
        0 => {
            body();
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) }
        }
        pid => {
            assert!(pid > 0, "fork");
            pid
        }
    }
}

fn wait(pid: libc::pid_t) -> libc::c_int {
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

/// Kills a child, which must not have died before.
fn kill(pid: libc::pid_t) {
    // SAFETY: our own child, not waited for yet.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    let status = wait(pid);
    let killed = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL;
    assert!(killed || (libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0), "status {status:#x}");
}

fn sleep(microseconds: u64) {
    std::thread::sleep(std::time::Duration::from_micros(microseconds));
}

/// The child writes across a change of chunk and is killed after `steps` instructions; false if it ended before.
fn killed_after(steps: u64, before: u64) -> bool {
    let mapping = Mapping::new(geometry(4).total_len());
    let region = mapping.format(&geometry(4), Mode::Discard);
    let cursor = ThreadCursor::new();
    cursor.begin(1, 1);
    for number in 0..before {
        let _ = write(&cursor, &region, 1, number, 20).unwrap();
    }
    let pid = child(|| {
        // SAFETY: asks to be traced, and stops until the parent steps.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::raise(libc::SIGSTOP);
        }
        for number in before..before + 2 {
            let _ = write(&cursor, &region, 1, number, 20);
        }
    });
    wait(pid);
    let mut alive = true;
    for _ in 0..steps {
        // SAFETY: our own stopped child.
        unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, pid, 0, 0) };
        let mut status = 0;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        alive = libc::WIFSTOPPED(status);
        if !alive {
            break;
        }
    }
    if alive {
        kill(pid);
    }
    let committed = committed_of(&mapping);
    let mut ledger = Ledger::default();
    let stats = ledger.drain(&mut mapping.open(), Pass::Final);
    assert!(stats.torn <= 1, "{stats:?} after {steps} steps");
    assert_eq!(ledger.len() as u64 * 21, committed, "words delivered and committed after {steps} steps");
    assert!(ledger.holes(1, ledger.len() as u64).is_empty(), "after {steps} steps");
    ledger.assert_ordered();
    // The successor in that region can use all of it.
    let (heir, mut reader) = (ThreadCursor::new(), mapping.open());
    heir.begin(2, 2);
    for number in 0..300 {
        let _ = write(&heir, &region, 2, number, 20).unwrap();
        ledger.drain(&mut reader, Pass::Live);
    }
    ledger.drain(&mut reader, Pass::Final);
    assert_eq!(ledger.thread(2).len(), 300, "after {steps} steps");
    alive
}

/// Words committed in the current generation, according to the headers of all chunks.
fn committed_of(mapping: &Mapping) -> u64 {
    let geometry = geometry(4);
    let chunks = (0..geometry.chunk_capacity).map(|index| {
        let at = geometry.chunk_offset(index) / 8;
        let load = |word: usize| mapping.words()[at + word].load(Ordering::Relaxed);
        if load(1) >> 16 == load(0) >> 2 { load(1) & 0xffff } else { 0 }
    });
    chunks.sum()
}

#[test]
fn a_writer_killed_at_any_instruction_leaves_all_it_committed() {
    // Without optimization it takes thirty times as many instructions.
    let stride = setting("SHM_KILL_STRIDE", if cfg!(debug_assertions) { 1999 } else { 61 });
    // 24 records of 21 words fill a chunk: the change comes with the second record of the child.
    let before = geometry(4).chunk_words() as u64 / 21 - 1;
    let mut steps = 1;
    while killed_after(steps, before) {
        steps += stride;
    }
    assert!(steps > 2 * 60, "the child wrote two records in {steps} instructions");
}

#[test]
fn after_killed_writers_a_clean_one_loses_nothing() {
    let mapping = Mapping::new(geometry(8).total_len());
    let region = mapping.format(&geometry(8), Mode::Discard);
    let (mut reader, mut ledger, mut random) = (mapping.open(), Ledger::default(), Random(5));
    for victim in 1..=setting("SHM_KILLS", 60) as u32 {
        let pid = child(|| endless(&region, victim));
        sleep(random.below(1500));
        ledger.drain(&mut reader, Pass::Live);
        sleep(random.below(500));
        kill(pid);
        // The reader knows by the agent's ThreadEnd, or by the death of the process.
        reader.retire(victim, victim);
        ledger.drain(&mut reader, Pass::Live);
    }
    ledger.assert_ordered();
    let clean = ThreadCursor::new();
    clean.begin(u32::MAX, u32::MAX);
    for number in 0..5_000 {
        let _ = write(&clean, &region, 7, number, 10).unwrap();
        if number % 20 == 0 {
            ledger.drain(&mut reader, Pass::Live);
        }
    }
    let _ = clean.close(&region);
    ledger.drain(&mut reader, Pass::Live);
    assert_eq!(ledger.thread(u32::MAX).len(), 5_000);
    assert!(ledger.stats.torn <= setting("SHM_KILLS", 60), "{:?}", ledger.stats);
}

fn endless(region: &Region, thread: u32) {
    let cursor = ThreadCursor::new();
    cursor.begin(thread, thread);
    for number in 0.. {
        let words = 2 + (number % 37) as usize;
        let _ = write(&cursor, region, thread.into(), number, words);
    }
}

/// What readers delivered, in memory that survives them: pairs of words after a count.
struct Log<'a>(&'a Mapping);

impl Log<'_> {
    const ENTRIES: usize = 1 << 23;

    fn new_mapping() -> Mapping {
        Mapping::new(8 + 16 * Self::ENTRIES)
    }

    fn push(&self, entry: [u64; 2]) {
        let words = self.0.words();
        // One reader at a time: the count is incremented after the entry has been written.
        let count = words[0].load(Ordering::Relaxed) as usize;
        assert!(count < Self::ENTRIES, "the log is full");
        words[1 + 2 * count].store(entry[0], Ordering::Relaxed);
        words[2 + 2 * count].store(entry[1], Ordering::Relaxed);
        words[0].store(count as u64 + 1, Ordering::Release);
    }

    fn entries(&self) -> impl Iterator<Item = [u64; 2]> + '_ {
        let words = self.0.words();
        let count = words[0].load(Ordering::Acquire) as usize;
        (0..count)
            .map(|at| [words[1 + 2 * at].load(Ordering::Relaxed), words[2 + 2 * at].load(Ordering::Relaxed)])
    }
}

/// Drains forever, like a recorder.
fn read_on(mapping: &Mapping, log: &Log<'_>, once: bool, pass: Pass) {
    let (mut reader, mut scratch) = (mapping.open(), vec![0; 32 << 10]);
    loop {
        let stats = reader.drain(pass, &mut scratch, &mut |chunk, record| {
            if !record.again {
                rig::check(record.payload);
                let thread = u64::from(chunk.tid) << 40;
                log.push([thread | record.sequence, u64::from(chunk.index) << 48 | chunk.generation]);
            }
        });
        assert_eq!(stats.violations + stats.torn + stats.unknown + stats.void, 0, "{stats:?}");
        if once {
            return;
        }
    }
}

/// Drains forever, like a recorder that writes its profile from time to time: what it took is in the log before it is
/// acknowledged.
fn hold_on(mapping: &Mapping, log: &Log<'_>) {
    let (mut reader, mut scratch) = (mapping.open(), vec![0; 32 << 10]);
    let (mut positions, mut told) = (vec![0; reader.chunks()], vec![0; reader.chunks()]);
    let mut taken = Vec::new();
    for pass in 0u64.. {
        let stats = reader.drain_holding(Pass::Live, &mut scratch, &mut positions, &mut |chunk, record| {
            if !record.again {
                rig::check(record.payload);
                let thread = u64::from(chunk.tid) << 40;
                taken.push([thread | record.sequence, u64::from(chunk.index) << 48 | chunk.generation]);
            }
        });
        assert_eq!(stats.violations + stats.torn + stats.unknown + stats.void, 0, "{stats:?}");
        if pass % 3 == 2 {
            taken.drain(..).for_each(|entry| log.push(entry));
            for (index, (position, told)) in positions.iter().zip(&mut told).enumerate() {
                if position != told {
                    reader.acknowledge(index as u32, *position);
                    *told = *position;
                }
            }
        }
    }
}

#[test]
fn killed_readers_lose_nothing_and_deliver_nothing_twice_unnoticed() {
    readers_are_killed(|mapping, log| read_on(mapping, log, false, Pass::Live));
}

#[test]
fn records_held_by_killed_readers_come_to_their_successors() {
    readers_are_killed(hold_on);
}

fn readers_are_killed(read: impl Fn(&Mapping, &Log<'_>)) {
    const WRITERS: u32 = 2;
    // Enough records for as long as readers are being killed.
    let records = 60_000.max(300 * setting("SHM_KILLS", 60));
    let geometry = Geometry { chunk_size: 4096, ..geometry(16) };
    let mapping = Mapping::new(geometry.total_len());
    let region = mapping.format(&geometry, Mode::Discard);
    let memory = Log::new_mapping();
    let log = Log(&memory);
    let writers: Vec<_> = (1..=WRITERS)
        .map(|thread| {
            child(|| {
                let cursor = ThreadCursor::new();
                cursor.begin(thread, thread);
                let mut number = 0;
                while number < records {
                    match write(&cursor, &region, thread.into(), number, 2 + (number % 9) as usize) {
                        Ok(_) => number += 1,
                        // The pool is full: wait for a reader.
                        Err(_) => std::thread::yield_now(),
                    }
                }
                let _ = cursor.close(&region);
            })
        })
        .collect();
    let mut random = Random(17);
    for _ in 0..setting("SHM_KILLS", 60) {
        let reader = child(|| read(&mapping, &log));
        sleep(random.below(2500));
        kill(reader);
    }
    let reader = child(|| read(&mapping, &log));
    for writer in writers {
        assert_eq!(wait(writer), 0);
    }
    kill(reader);
    read_on(&mapping, &log, true, Pass::Final);

    let (mut seen, mut again) = (BTreeMap::new(), 0);
    for [record, position] in log.entries() {
        match seen.insert(record, position) {
            None => {}
            // Delivered by a reader that died before it could log it: the same record of the same generation.
            Some(before) if before == position => again += 1,
            Some(before) => panic!("record {record:#x} came from {before:#x} and {position:#x}"),
        }
    }
    let expected: BTreeSet<u64> =
        (1..=u64::from(WRITERS)).flat_map(|t| (0..records).map(move |n| t << 40 | n)).collect();
    let missing = expected.iter().filter(|record| !seen.contains_key(record)).count();
    assert_eq!((missing, seen.len()), (0, expected.len()), "{again} came again");
}

/// While the reader holds a copied record, the chunk is overwritten so often that a generation of 4 bits would have
/// wrapped around.
#[test]
fn a_chunk_overwritten_many_times_under_the_reader_is_not_mistaken_for_the_old_one() {
    for rounds in [1, 2, 15, 16, 17, 32, 48, 64] {
        let mapping = Mapping::new(geometry(1).total_len());
        let region = mapping.format(&geometry(1), Mode::Overwrite);
        let cursor = ThreadCursor::new();
        cursor.begin(1, 1);
        let fill = |from: u64| {
            let per_chunk = geometry(1).chunk_words() as u64 / 21;
            (from..from + per_chunk).for_each(|number| {
                let _ = write(&cursor, &region, 1, number, 20);
            });
            from + per_chunk
        };
        let mut next = fill(0);
        let mut disturbed = false;
        let mut scratch = vec![0; 4096];
        mapping.open().drain(Pass::Live, &mut scratch, &mut |_, record| {
            let (_, number) = rig::check(record.payload);
            assert_eq!(number, record.sequence, "after {rounds} rounds");
            if !std::mem::replace(&mut disturbed, true) {
                for _ in 0..rounds {
                    next = fill(next);
                }
            }
        });
        assert!(disturbed);
        let _ = tick();
    }
}
