//! The sums of small profiles, worked out by hand.

use super::*;
use crate::profile_file::{Cause, CountersAt, NanosBucket, ProcessEnd, Tail};
use crate::profile_file::{Counters, ProcessInfo};

fn cause(name: &str, count: u64) -> Cause {
    Cause { name: name.into(), count, weight: count * 3 }
}

fn process(id: u32, pid: u32, parent: Option<u32>) -> Event {
    Event::Process(ProcessInfo { id, pid, parent, source: "cpu".into(), ..ProcessInfo::default() })
}

fn sample(process: u32, end: u8) -> Event {
    let frames = vec![1, 2, 3];
    Event::Sample(Sample { process, tid: 10, weight: 2, end, frames, ..Sample::default() })
}

fn counters(fired: u64, recorded: u64) -> Counters {
    Counters {
        fired,
        recorded,
        lost: vec![cause("pool_full", 4), cause("retries", 0)],
        skipped: vec![cause("nested", 1)],
        handler: vec![
            NanosBucket { low: 400, high: 500, count: 98 },
            NanosBucket { low: 900, high: 1000, count: 1 },
            NanosBucket { low: 9000, high: 9999, count: 1 },
        ],
        drained: 2,
        ring_bytes: 101,
        ..Counters::default()
    }
}

fn tally(events: &[Event]) -> Stats {
    let mut tally = Tally::default();
    events.iter().for_each(|event| tally.add(event));
    tally.finish(1000)
}

#[test]
fn everything_that_fired_is_somewhere() {
    let end = |process, counters| {
        Event::ProcessEnd(ProcessEnd { process, fate: ProcessFate::Exited, counters, ..Default::default() })
    };
    let events = [
        process(0, 10, None),
        process(1, 10, Some(0)),
        process(2, 11, Some(1)),
        sample(0, 0),
        sample(1, 3),
        Event::Counters(CountersAt { process: 1, counters: counters(99, 99), ..Default::default() }),
        // 1 sample of 3 recorded ones arrived; 2 handlers were cut short.
        end(0, counters(10, 3)),
        end(1, counters(6, 1)),
        end(2, Counters::default()),
        Event::End(End { wall_ns: 5, status: Some(0), ..End::default() }),
    ];
    let stats = tally(&events);
    let detail = &stats.detail;
    assert_eq!((stats.samples, stats.weight, stats.truncated), (2, 4, 1));
    assert_eq!((stats.lost, detail.lost["unread"], detail.lost["pool_full"]), (10, 2, 8));
    assert_eq!((stats.processes, detail.images), (2, 3));
    assert_eq!((stats.threads, detail.threads_sampled), (1, 2), "the thread of process 10 went through exec");
    assert_eq!((detail.accounting.fired, detail.accounting.cut_short), (16, 2));
    assert_eq!(detail.accounting.adds_up, Some(true));
    assert_eq!((detail.handler_ns.p50, detail.handler_ns.p99, detail.handler_ns.max), (500, 1000, 9999));
    assert_eq!(detail.ring_bytes_per_sample, 50.5);
    assert_eq!(detail.lost.len(), 2, "causes that never struck are left out");
    // Killed between commit and count of its second sample: that handler was not cut short.
    let mut killed = [&events[..4], &[sample(1, 0)], &events[4..]].concat();
    killed[8] = end(1, counters(7, 1));
    let accounting = tally(&killed).detail.accounting;
    assert_eq!((accounting.cut_short, accounting.adds_up), (2, Some(true)));
    // More samples than the process counted: the accounts do not balance, which is reported.
    let wrong = [&events[..4], &[sample(0, 0)], &events[4..]].concat();
    let wrong = [&wrong[..4], &vec![sample(0, 0); 9], &wrong[4..]].concat();
    assert_eq!(tally(&wrong).detail.accounting.adds_up, Some(false));
    assert_eq!(tally(&events[..9]).detail.accounting.adds_up, None, "the recorder was killed");
}

#[test]
fn an_empty_profile_has_numbers_too() {
    let stats = tally(&[]);
    assert_eq!((stats.samples, stats.truncated_percent()), (0, 0.0));
    assert!(stats.text(Some(Tail::Truncated { offset: 16 }), 8).contains("byte 16"));
}

#[test]
fn stacks_that_answer_for_several_samples_are_what_adds_up() {
    let mut stats = Stats { samples: 64, ..Stats::default() };
    stats.detail.unwinds = 1;
    stats.detail.accounting.adds_up = Some(true);
    assert!(stats.text(None, 0).contains("(= unwinds + lost + skipped)"));
    stats.detail.unwinds = 64;
    assert!(stats.text(None, 0).contains("(= samples + lost + skipped)"));
}

/// A recorder drops processes that have ended, and gets the same sums.
#[test]
fn what_has_ended_is_only_added_up() {
    let (mut kept, mut flat) = (Tally::default(), Tally::flat());
    for id in 0..5000 {
        let pid = 100 + id / 2;
        let end = |fate| ProcessEnd { process: id, ns: 5, fate, counters: counters(9, 2) };
        let fate = if id == 77 { ProcessFate::Running } else { ProcessFate::Exited };
        for event in [
            process(id, pid, (id % 2 == 1).then(|| id - 1)),
            sample(id, 0),
            sample(id, 3),
            Event::ProcessEnd(end(fate)),
        ] {
            kept.add(&event);
            flat.add(&event);
        }
    }
    assert!(flat.images.len() <= ENDED_KEPT + 1, "{}", flat.images.len());
    let (mut kept, flat) = (kept.finish(1), flat.finish(1));
    assert_eq!((flat.processes, flat.detail.images, flat.threads), (2500, 5000, kept.threads));
    assert!(flat.outlived().is_some_and(|text| text.contains("(138)")), "{:?}", flat.outlived());
    kept.detail.by_process.retain(|process| process.fate == "running");
    let json = |stats: &Stats| serde_json::to_value(stats).unwrap();
    assert_eq!(json(&kept), json(&flat));
}

#[test]
fn ends_of_waits_count_what_was_waited_for_them() {
    use crate::locks::LOCK;
    use shm_format::LockNonce;
    let at_lock = |ns, nonce: LockNonce| {
        let sample = Sample { process: 0, ns, nonce: nonce.0, source: LOCK, weight: 1, ..Sample::default() };
        Event::Sample(sample)
    };
    let session = SessionInfo { source: "lock:all".into(), frequency: 99, ..SessionInfo::default() };
    let stats = tally(&[
        Event::Session(session),
        process(0, 10, None),
        at_lock(2_000_000, LockNonce::holder(3)),
        at_lock(2_100_000, LockNonce::wait(1_600_000, 3)),
        // It is not known who ended this wait.
        at_lock(2_200_000, LockNonce::wait(800_000, 4)),
    ]);
    let weights: Vec<_> =
        stats.detail.weights.iter().map(|it| (it.event.as_str(), it.samples, it.weight)).collect();
    let [_, delay, held] = weights[..] else { panic!("{weights:?}") };
    assert_eq!((delay, held), (("delay", 2, 2_400_000), ("held_delay", 1, 1_600_000)));
    assert_eq!(stats.samples, 3);
}
