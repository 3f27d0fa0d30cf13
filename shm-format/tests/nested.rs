//! Records written by a signal handler that interrupts another record of the same thread, at every step of the
//! protocol, with chunks being recycled in between.
#![cfg(not(loom))]

mod rig;

use std::cell::{Cell, RefCell};

use rig::interrupted::{Interrupted, STEPS};
use rig::ledger::Ledger;
use rig::{Mapping, Random, geometry, setting, tick, write};
use shm_format::{Mode, Pass, Pool, RecordKind, Region, RegionReader, Step, ThreadCursor};

/// One thread's cursor, a reader and a second thread's cursor that wants every chunk that becomes free.
struct Scene<'a> {
    region: &'a Region,
    cursor: ThreadCursor,
    other: ThreadCursor,
    reader: RefCell<RegionReader>,
    ledger: RefCell<Ledger>,
    written: Cell<u64>,
    others: Cell<u64>,
}

impl<'a> Scene<'a> {
    fn new(mapping: &Mapping, region: &'a Region) -> Self {
        let scene = Self {
            region,
            cursor: ThreadCursor::new(),
            other: ThreadCursor::new(),
            reader: RefCell::new(mapping.open()),
            ledger: RefCell::default(),
            written: Cell::new(0),
            others: Cell::new(0),
        };
        scene.cursor.begin(1, 1);
        scene.other.begin(2, 2);
        scene
    }

    fn record<P: Pool>(&self, pool: &P, words: usize) {
        let number = self.written.get();
        self.written.set(number + 1);
        let _ = write(&self.cursor, pool, 1, number, words).unwrap();
    }

    /// A nested record that is large enough to change the chunk about every other time, then a reader that recycles
    /// chunks, then another thread that takes and fills them.
    fn storm(&self, records: u64, words: usize) {
        for _ in 0..records {
            self.record(self.region, words);
        }
        self.ledger.borrow_mut().drain(&mut self.reader.borrow_mut(), Pass::Live);
        for _ in 0..3 {
            let number = self.others.get();
            if write(&self.other, self.region, 2, number, 300).is_ok() {
                self.others.set(number + 1);
            }
        }
        self.ledger.borrow_mut().drain(&mut self.reader.borrow_mut(), Pass::Live);
    }

    /// Everything was delivered once, whole, and in order of time.
    fn finish(self) {
        let _ = self.cursor.close(self.region);
        let _ = self.other.close(self.region);
        let mut ledger = self.ledger.into_inner();
        ledger.drain(&mut self.reader.into_inner(), Pass::Live);
        assert_eq!(ledger.stats.torn, 0);
        assert_eq!(ledger.holes(1, self.cursor.sequence()), []);
        assert_eq!(ledger.holes(2, self.other.sequence()), []);
        assert_eq!(ledger.thread(1).len() as u64, self.written.get());
        assert_eq!(ledger.thread(2).len() as u64, self.others.get());
        ledger.assert_ordered();
    }
}

#[test]
fn a_record_nests_at_every_step() {
    for step in STEPS {
        let mut ran = 0;
        for (outer, nested) in [(3, 3), (40, 200), (200, 40), (300, 300)] {
            let mapping = Mapping::new(geometry(16).total_len());
            let region = mapping.format(&geometry(16), Mode::Discard);
            let scene = Scene::new(&mapping, &region);
            let handler = |_: &Interrupted<'_>| scene.storm(3, nested);
            let pool = Interrupted::new(&region, &handler);
            for skip in 0..60 {
                pool.plan(step, skip % 3);
                scene.record(&pool, outer);
                scene.record(&pool, outer);
            }
            ran += pool.ran.get();
            scene.finish();
        }
        assert!(ran > 50, "{step:?} was interrupted {ran} times");
    }
}

#[test]
fn records_nest_two_levels_deep_at_every_pair_of_steps() {
    for first in STEPS {
        for second in STEPS {
            let mapping = Mapping::new(geometry(24).total_len());
            let region = mapping.format(&geometry(24), Mode::Discard);
            let scene = Scene::new(&mapping, &region);
            let depth = Cell::new(0);
            let handler = |pool: &Interrupted<'_>| {
                depth.set(depth.get() + 1);
                if depth.get() == 1 {
                    pool.plan(second, 0);
                    scene.record(pool, 120);
                    scene.record(pool, 120);
                    pool.forget();
                    scene.storm(2, 120);
                } else {
                    scene.storm(3, 200);
                }
                depth.set(depth.get() - 1);
            };
            let pool = Interrupted::new(&region, &handler);
            for _ in 0..40 {
                pool.plan(first, 0);
                scene.record(&pool, 100);
            }
            assert!(pool.ran.get() > 4, "{first:?} {second:?}: {}", pool.ran.get());
            scene.finish();
        }
    }
}

#[test]
fn random_nesting_with_recycling_loses_nothing() {
    let mut random = Random(setting("SHM_SEED", 0x1234_5678));
    for _ in 0..setting("SHM_NEST_ROUNDS", 100) {
        let mapping = Mapping::new(geometry(32).total_len());
        let region = mapping.format(&geometry(32), Mode::Discard);
        let scene = Scene::new(&mapping, &region);
        let random = RefCell::new(&mut random);
        let below = |bound| random.borrow_mut().below(bound);
        let depth = Cell::new(0);
        let handler = |pool: &Interrupted<'_>| {
            depth.set(depth.get() + 1);
            scene.storm(below(4), 2 + below(300) as usize);
            if depth.get() < 4 {
                pool.plan(STEPS[below(12) as usize], below(2) as u32);
                scene.record(pool, 2 + below(200) as usize);
            }
            depth.set(depth.get() - 1);
        };
        let pool = Interrupted::new(&region, &handler);
        for _ in 0..100 {
            pool.plan(STEPS[below(12) as usize], below(3) as u32);
            scene.record(&pool, 2 + below(200) as usize);
        }
        scene.finish();
    }
}

#[test]
fn nested_records_in_overwrite_mode_are_never_torn() {
    let mut random = Random(setting("SHM_SEED", 77));
    for step in STEPS {
        let mapping = Mapping::new(geometry(4).total_len());
        let region = mapping.format(&geometry(4), Mode::Overwrite);
        let scene = Scene::new(&mapping, &region);
        let handler = |_: &Interrupted<'_>| {
            for number in 0..6 {
                let _ = write(&scene.other, &region, 2, number, 400);
            }
            for _ in 0..3 {
                scene.record(&region, 250);
            }
        };
        let pool = Interrupted::new(&region, &handler);
        for _ in 0..200 {
            pool.plan(step, random.below(2) as u32);
            scene.record(&pool, 2 + random.below(300) as usize);
            if random.below(4) == 0 {
                scene.ledger.borrow_mut().drain(&mut scene.reader.borrow_mut(), Pass::Live);
            }
        }
        let mut ledger = scene.ledger.into_inner();
        ledger.drain(&mut scene.reader.into_inner(), Pass::Final);
        assert_eq!(ledger.stats.torn, 0);
        ledger.assert_ordered();
        let holes =
            ledger.holes(1, scene.cursor.sequence()).len() + ledger.holes(2, scene.other.sequence()).len();
        assert!(holes as u64 <= region.control().snapshot().chunks_overwritten);
    }
}

#[test]
fn too_much_nesting_is_counted_and_bounded() {
    let mapping = Mapping::new(geometry(64).total_len());
    let region = mapping.format(&geometry(64), Mode::Discard);
    let cursor = ThreadCursor::new();
    cursor.begin(1, 1);
    let nested = Cell::new(0);
    // A handler that interrupts every attempt.
    let refused = cursor.reserve(&region, RecordKind::Stack, 4, || {
        let _ = write(&cursor, &region, 1, nested.get(), 4).unwrap();
        nested.set(nested.get() + 1);
        tick()
    });
    assert_eq!(refused.err(), Some(shm_format::Loss::Retries));
    assert_eq!((cursor.lost(), cursor.sequence()), (1, nested.get()));
    let mut ledger = Ledger::default();
    ledger.drain(&mut mapping.open(), Pass::Live);
    assert_eq!(ledger.len() as u64, nested.get());
}

/// A handler that leaves by `siglongjmp`: its reservation is never committed.
#[test]
fn an_abandoned_record_is_torn_once_and_later_records_are_intact() {
    for step in [Step::Reserved, Step::Busy, Step::Published, Step::Done] {
        let mapping = Mapping::new(geometry(8).total_len());
        let region = mapping.format(&geometry(8), Mode::Discard);
        let cursor = ThreadCursor::new();
        cursor.begin(1, 1);
        let mut reader = mapping.open();
        let mut ledger = Ledger::default();
        let handler = |_: &Interrupted<'_>| std::panic::resume_unwind(Box::new("siglongjmp"));
        let pool = Interrupted::new(&region, &handler);
        for number in 0..400u64 {
            if number == 50 {
                pool.plan(step, 0);
                let abandoned = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    let record = cursor.reserve(&pool, RecordKind::Stack, 6, tick).unwrap();
                    if step == Step::Done {
                        std::mem::forget(record);
                        std::panic::resume_unwind(Box::new("siglongjmp"));
                    }
                    let _ = record.commit();
                }));
                assert!(abandoned.is_err());
            } else {
                let _ = write(&cursor, &region, 1, number, 20).unwrap();
            }
            ledger.drain(&mut reader, Pass::Live);
        }
        // All later records came while the thread lived; the one chunk waits for the thread's end.
        assert_eq!((ledger.len(), ledger.stats.torn), (399, 1), "{step:?}");
        assert_eq!(ledger.holes(1, cursor.sequence()), [(50, 51)]);
        let _ = cursor.close(&region);
        ledger.drain(&mut reader, Pass::Live);
        assert_eq!(reader.retire(1, 1), 1);
        ledger.drain(&mut reader, Pass::Live);
        ledger.drain(&mut reader, Pass::Final);
        assert_eq!((ledger.len(), ledger.stats.torn), (399, 1), "{step:?}");
        let next = ThreadCursor::new();
        next.begin(2, 2);
        for number in 0..8 {
            let _ = write(&next, &region, 2, number, 480).unwrap();
        }
    }
}

/// The process dies in the middle of a record, at every step, nested or not: everything committed is there.
#[test]
fn records_committed_before_death_are_delivered() {
    for step in STEPS {
        for nested in [0, 1, 4] {
            let mapping = Mapping::new(geometry(8).total_len());
            let region = mapping.format(&geometry(8), Mode::Discard);
            let cursor = ThreadCursor::new();
            cursor.begin(1, 1);
            let committed = Cell::new(0u64);
            let handler = |_: &Interrupted<'_>| {
                for _ in 0..nested {
                    let _ = write(&cursor, &region, 1, committed.get(), 9).unwrap();
                    committed.set(committed.get() + 1);
                }
                std::panic::resume_unwind(Box::new("killed"));
            };
            let pool = Interrupted::new(&region, &handler);
            let mut died = false;
            for round in 0..200 {
                if round >= 55 {
                    pool.plan(step, 0);
                }
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    let mut record = cursor.reserve(&pool, RecordKind::Stack, 20, tick).unwrap();
                    record.set(0, 1);
                    record.set(1, committed.get());
                    for at in 2..20 {
                        record.set(at, rig::word(1, committed.get(), at as u64));
                    }
                    let _ = record.commit();
                }));
                if outcome.is_err() {
                    died = true;
                    break;
                }
                committed.set(committed.get() + 1);
            }
            assert!(died, "{step:?} never came");
            let mut ledger = Ledger::default();
            ledger.drain(&mut mapping.open(), Pass::Final);
            let more = u64::from(matches!(step, Step::Committed));
            // Between DONE and the update of the count, the record may or may not count as committed.
            let unsure = u64::from(step == Step::Done);
            let seen = ledger.len() as u64;
            let least = committed.get() + more - if unsure == 1 { nested.min(1) } else { 0 };
            assert!(
                (least..=committed.get() + more + unsure).contains(&seen),
                "{step:?} with {nested} nested: {seen} of {}",
                committed.get()
            );
            assert!(ledger.stats.torn <= 1);
            assert_eq!(ledger.drain(&mut mapping.open(), Pass::Final).records, 0);
        }
    }
}
