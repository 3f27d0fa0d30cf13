//! The format survives what files suffer: truncation, damage, later versions.

use selfwind_tests::random::Random;

use super::block::{BLOCK_EVENTS, BLOCK_HEADER_LEN, checksum};
use super::header::HEADER_LEN;
use super::limits::FRAMES_MAX;
use super::*;
use crate::tracepoint::{EventFields, FieldValue, Tracepoint};

fn sample(ns: u64, frames: &[u64]) -> Event {
    Event::Sample(Sample {
        process: 1,
        tid: 77,
        thread_seq: 3,
        ns,
        weight: 2,
        end: 4,
        source: 1,
        nonce: u64::MAX,
        frames: frames.to_vec(),
        ..Sample::default()
    })
}

/// A sample with events of the kernel whose stacks share frames.
fn kernel_sample(ns: u64) -> Event {
    let Event::Sample(sample) = sample(ns, &[1, 2]) else { unreachable!() };
    let event = |ns, frames: &[u64]| KernelSample { ns, weight: 3, event: 1, frames: frames.to_vec() };
    let high = 0xffff_ffff_8100_0000;
    let kernel = vec![event(ns - 1, &[high + 8, high]), event(ns, &[high + 9, high]), event(5, &[])];
    Event::Sample(Sample { repeated: true, kernel, ..sample })
}

/// An event of a tracepoint, with a field of each type.
fn tracepoint_event(ns: u64) -> Event {
    let Event::Sample(sample) = sample(ns, &[1, 2]) else { unreachable!() };
    let values = vec![
        FieldValue::I64(i64::MIN),
        FieldValue::U64(u64::MAX),
        FieldValue::F64(1.5f64.to_bits()),
        FieldValue::Text("/cart".into()),
        FieldValue::CutText("x".into()),
        FieldValue::Null,
    ];
    Event::Sample(Sample { fields: Some(Box::new(EventFields { tracepoint: 9, values })), ..sample })
}

fn counters() -> Counters {
    let cause = |name: &str, count| Cause { name: name.into(), count, weight: count * 2 };
    Counters {
        fired: 10,
        fired_weight: 20,
        recorded: 7,
        recorded_weight: 14,
        truncated: 1,
        lost: vec![cause("pool_full", 1)],
        skipped: vec![cause("nested", 2)],
        handler: vec![NanosBucket { low: 100, high: 125, count: u64::MAX }],
        threads_started: 4,
        threads_ended: 3,
        drained: 7,
        ring_bytes: 999,
        gaps: 1,
        torn: 2,
        violations: 3,
        earlier: 4,
        earlier_weight: 5,
        undecodable: 6,
        kernel: vec![cause("exact", 9)],
    }
}

/// One of each event, and samples that share frames, share none, and are empty.
fn events() -> Vec<Event> {
    let segment = Segment { address: 1 << 47, len: 1, pgoff: 4096, flags: 5 };
    vec![
        Event::Session(SessionInfo {
            version: "0.1.0".into(),
            host: "h".into(),
            kernel: "6.1".into(),
            started_realtime_ns: u64::MAX,
            started_ns: 1,
            command: vec!["a".into(), String::new(), "ö".into()],
            frequency: 99,
            source: "auto".into(),
        }),
        Event::Process(ProcessInfo {
            id: 1,
            pid: 4_194_304,
            ppid: 1,
            parent: Some(0),
            start_ns: 5,
            uid: u32::MAX,
            period_ns: 10_101_010,
            source: "cpu".into(),
            exe: "/bin/x".into(),
            argv: vec!["x".into()],
            note: "SELFWIND_FREQ=zz is no number".into(),
        }),
        Event::Module(ModuleInfo {
            process: 1,
            module: 2,
            start: 1 << 46,
            end: 1 << 47,
            bias: u64::MAX - 4095,
            path: "/lib/ld.so".into(),
            build_id: vec![0xde, 0xad],
            segments: vec![segment, Segment::default()],
            loaded_ns: 9,
            file: Some(FileIdentity { len: 1 << 40, modified_ns: -5, inode: 7 }),
        }),
        Event::Thread(ThreadInfo { process: 1, tid: 77, seq: 3, name: "w".into(), start_ns: 6 }),
        kernel_sample(1000),
        Event::KernelSymbol(KernelSymbol {
            start: u64::MAX - 9,
            end: u64::MAX,
            name: "f".into(),
            module: "m".into(),
        }),
        Event::Setting(Setting { process: 1, key: "source".into(), value: "perf".into() }),
        sample(1000, &[0x2000_7f00_0000_1234, 0x7f00_0000_1000, 0x5500_0000_0010]),
        sample(900, &[0xe000_7f00_0000_9999, 0x7f00_0000_1000, 0x5500_0000_0010]),
        sample(u64::MAX, &[]),
        sample(0, &[u64::MAX, 0, 1]),
        Event::ThreadName(ThreadName { process: 1, tid: 77, seq: 3, name: "worker".into(), ns: 8 }),
        Event::ThreadEnd(ThreadEnd { process: 1, tid: 77, seq: 3, ns: 8 }),
        Event::ModuleGone(ModuleGone { process: 1, module: 2, ns: 10 }),
        Event::Counters(CountersAt { process: 1, ns: 11, counters: counters() }),
        Event::ProcessEnd(ProcessEnd {
            process: 1,
            ns: 12,
            fate: ProcessFate::Executed,
            counters: counters(),
        }),
        Event::Function(InterpretedFunction {
            process: 3,
            id: 1 << 27,
            language: 1,
            first_line: 9,
            lines_form: 3,
            name: "Café.<locals>.f".into(),
            file: "/srv/app.py".into(),
            lines: vec![0x80, 0, 255],
        }),
        Event::Generated(GeneratedCode {
            process: 1,
            source: "/tmp/perf-77.map".into(),
            functions: vec![
                GeneratedFunction { since_ns: 9, start: 1 << 46, len: 64, name: "JS:~f a.js:1".into() },
                GeneratedFunction::default(),
            ],
        }),
        Event::Tracepoint(Tracepoint {
            process: 1,
            id: 9,
            provider: "shop".into(),
            name: "request".into(),
            fields: vec!["bytes".into(), String::new()],
        }),
        tracepoint_event(1001),
        tracepoint_event(1002),
        Event::LiveBlocks(LiveBlocks { process: 1, blocks: vec![1, 1 << 32, u64::MAX] }),
        Event::LiveMappings(LiveMappings {
            process: 1,
            mappings: vec![(1, 4096), (1 << 32, 0), (u64::MAX, 1 << 40)],
        }),
        Event::Comparison(Comparison {
            process: 1,
            tid: 1234,
            ns: 7,
            copied: 4096,
            depth: 3,
            guess: Recovered { frames: 9, right: 2 },
            ..Comparison::default()
        }),
        Event::Comparison(Comparison {
            process: 1,
            thread_seq: 2,
            verdict: Verdict::Differs,
            own_end: 0,
            copy_end: 5,
            own: vec![1 << 61 | 0x40_1000, 0x40_2000],
            copy: vec![1 << 61 | 0x40_1000],
            ..Comparison::default()
        }),
        Event::End(End { ns: 13, wall_ns: 12, status: Some(139) }),
    ]
}

/// `blocks` copies of [`events`], a block each.
fn file(blocks: usize) -> Vec<u8> {
    let mut writer = ProfileWriter::new(Vec::new()).unwrap();
    for _ in 0..blocks {
        for event in events() {
            writer.push(&event).unwrap();
        }
        writer.flush().unwrap();
    }
    let expected = writer.bytes_written();
    let bytes = writer.finish().unwrap();
    assert_eq!(bytes.len() as u64, expected);
    bytes
}

fn read(bytes: &[u8]) -> (Vec<Event>, Result<Tail, ProfileError>) {
    let mut reader = match ProfileReader::new(bytes, "p.data") {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Err(error)),
    };
    let mut events = Vec::new();
    for event in reader.by_ref() {
        match event {
            Ok(event) => events.push(event),
            Err(error) => return (events, Err(error)),
        }
    }
    let tail = reader.tail().expect("the events are exhausted");
    (events, Ok(tail))
}

#[test]
fn a_file_of_another_user_is_named_so() {
    let denied = |path: &str| {
        let cause = std::io::ErrorKind::PermissionDenied.into();
        ProfileError::Open { path: path.into(), cause }.to_string()
    };
    // Root's on every machine.
    let text = denied("/etc/passwd");
    assert!(text.ends_with("it belongs to root, who can `chmod a+r` it; or read it as root"), "{text}");
    let text = denied("/nonexistent/p.data");
    assert!(text.ends_with("read it as the user who recorded it"), "{text}");
}

#[test]
fn every_event_survives() {
    let (got, tail) = read(&file(2));
    assert_eq!(got, [events(), events()].concat());
    assert_eq!(tail.unwrap(), Tail::Complete);
}

#[test]
fn samples_can_be_left_out() {
    let bytes = file(2);
    let reader = ProfileReader::new(&*bytes, "p.data").unwrap().without_samples();
    let got: Vec<Event> = reader.map(Result::unwrap).collect();
    let mut expected = [events(), events()].concat();
    expected.retain(|event| !matches!(event, Event::Sample(_)));
    assert_eq!(got, expected);
}

#[test]
fn blocks_stay_small_and_lose_nothing() {
    let mut writer = ProfileWriter::new(Vec::new()).unwrap();
    let deep: Vec<u64> = (0..FRAMES_MAX as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let events: Vec<Event> = (0..100).map(|i| sample(i, &deep[i as usize..])).collect();
    for event in &events {
        writer.push(event).unwrap();
    }
    let (got, tail) = read(&writer.finish().unwrap());
    assert_eq!(got, events);
    assert_eq!(tail.unwrap(), Tail::Complete);
}

#[test]
fn a_sample_ref_is_written_as_any_other() {
    let (mut pushed, mut sample_ref) =
        (ProfileWriter::new(Vec::new()).unwrap(), ProfileWriter::new(Vec::new()).unwrap());
    let mut before: Vec<u64> = Vec::new();
    let mut state = 1u64;
    let mut random = |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % limit
    };
    for ns in 0..20_000 {
        let shared = random(before.len() + 1);
        let mut frames = before[..shared].to_vec();
        // Now and then more than a profile keeps, whose root is missing then.
        let new = if random(2000) == 0 { FRAMES_MAX } else { random(5) };
        frames.extend((0..new).map(|_| 0x40_0000 + random(9) as u64));
        let leaf_first: Vec<u64> = frames.iter().rev().copied().collect();
        let event = sample(ns, &leaf_first);
        pushed.push(&event).unwrap();
        let Event::Sample(sample) = event else { unreachable!() };
        let known = sample_ref.push_sample(SampleRef { sample: &sample, frames: &frames, shared }).unwrap();
        assert!(known <= frames.len() && before.get(..known).is_some());
        before = frames;
        before.truncate(FRAMES_MAX + 9);
    }
    assert!(pushed.finish().unwrap() == sample_ref.finish().unwrap());
}

/// Where the header and each block of a file end. Blocks differ in length: later ones refer to modules told before.
fn ends(whole: &[u8]) -> Vec<usize> {
    let mut ends = vec![HEADER_LEN];
    while let Some(&start) = ends.last().filter(|&&end| end < whole.len()) {
        let len = u32::from_le_bytes(whole[start + 4..start + 8].try_into().unwrap());
        ends.push(start + BLOCK_HEADER_LEN + len as usize);
    }
    ends
}

#[test]
fn any_truncation_keeps_the_complete_blocks() {
    let whole = file(3);
    let ends = ends(&whole);
    assert_eq!(ends.len(), 4);
    for len in 0..whole.len() {
        let (got, end) = read(&whole[..len]);
        if len < HEADER_LEN {
            assert!(matches!(end, Err(ProfileError::Empty { .. } | ProfileError::NotAProfile { .. })));
            continue;
        }
        let complete = ends.partition_point(|&end| end <= len) - 1;
        assert_eq!(got.len(), complete * events().len(), "at {len}");
        let offset = ends[complete] as u64;
        let expected = if offset == len as u64 { Tail::Complete } else { Tail::Truncated { offset } };
        assert_eq!(end.unwrap(), expected, "at {len}");
    }
}

#[test]
fn any_flipped_bit_is_noticed_where_it_is() {
    let whole = file(3);
    let ends = ends(&whole);
    for at in HEADER_LEN..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            let intact = ends.partition_point(|&end| end <= at) - 1;
            let (got, end) = read(&bytes);
            assert_eq!(got.len(), intact * events().len(), "byte {at} bit {bit}");
            let expected = ends[intact] as u64;
            match end {
                Err(ProfileError::Corrupt { offset, .. })
                | Ok(Tail::Truncated { offset } | Tail::Damaged { offset, .. }) => {
                    assert_eq!(offset, expected, "byte {at} bit {bit}");
                }
                other => panic!("byte {at} bit {bit}: {other:?}"),
            }
        }
    }
}

/// Damage under a right checksum: the decoder itself must hold.
#[test]
fn arbitrary_payloads_end_in_events_or_an_error() {
    let valid = file(1)[HEADER_LEN + BLOCK_HEADER_LEN..].to_vec();
    let mut random = Random::new(0x1234_5678_9abc_def1);
    for _ in 0..20_000 {
        let mut payload = valid.clone();
        for _ in 0..4 {
            random.damage(&mut payload);
        }
        payload.truncate(payload.len() - random.below(64));
        let mut bytes = file(0);
        bytes.extend_from_slice(&BLOCK_EVENTS.to_le_bytes());
        bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&checksum(BLOCK_EVENTS, &payload).to_le_bytes());
        bytes.extend_from_slice(&payload);
        match read(&bytes).1 {
            Ok(Tail::Complete) | Err(ProfileError::Corrupt { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn unknown_events_and_blocks_are_skipped() {
    let mut payload = vec![200, 3, 1, 2, 3];
    codec::encode(&sample(1, &[5]), &mut codec::Previous::default(), &mut payload);
    let mut bytes = file(0);
    for (kind, payload) in [(77, &b"later"[..]), (BLOCK_EVENTS, &payload)] {
        bytes.extend_from_slice(&u32::to_le_bytes(kind));
        bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&checksum(kind, payload).to_le_bytes());
        bytes.extend_from_slice(payload);
    }
    let (got, tail) = read(&bytes);
    assert_eq!(got, [sample(1, &[5])]);
    assert_eq!(tail.unwrap(), Tail::Complete);
}

#[test]
fn errors_are_one_line_with_a_way_out() {
    let mut newer = file(1);
    newer[8] = 9;
    let mut damaged = file(1);
    damaged[40] ^= 1;
    let text = |bytes: &[u8]| read(bytes).1.unwrap_err().to_string();
    for (text, part) in [
        (text(b""), "record again"),
        (text(b"\x7fELF and so on and so on"), "not a selfwind profile"),
        (text(&newer), "profile version 9, but this selfwind reads versions 1 to 4"),
        (text(&damaged), "damaged at byte 16"),
        (text(b"PERFILE2 and so on and so on"), "perf report -i p.data"),
        (ProfileReader::open("/nonexistent/p").err().unwrap().to_string(), "name a profile"),
        (ProfileReader::open("/").err().unwrap().to_string(), "is a directory"),
    ] {
        assert!(text.contains(part) && !text.contains('\n'), "{text}");
    }
}

fn module(process: u32, start: u64, path: &str) -> Event {
    let segment = |at: u64| Segment { address: start + at, len: 0x800, pgoff: at, flags: 5 };
    Event::Module(ModuleInfo {
        process,
        module: 3,
        start,
        end: start + 0x3000,
        bias: start.wrapping_sub(0x40_0000),
        path: path.into(),
        build_id: vec![7; 20],
        segments: vec![segment(0), segment(0x1000)],
        loaded_ns: u64::from(process) + 9,
        file: None,
    })
}

fn written(events: &[Event]) -> Vec<u8> {
    let mut writer = ProfileWriter::new(Vec::new()).unwrap();
    events.iter().for_each(|event| writer.push(event).unwrap());
    writer.finish().unwrap()
}

#[test]
fn a_module_of_many_processes_is_told_once() {
    let path = "/usr/lib/x86_64-linux-gnu/libsomething.so.1.2.3";
    let events: Vec<Event> =
        (0..1000).map(|n| module(n, 0x7f00_0000_0000 + 0x1000 * u64::from(n), path)).collect();
    let bytes = written(&events);
    assert!(bytes.len() < 1000 * 24, "{} bytes", bytes.len());
    let read: Vec<Event> = ProfileReader::new(&bytes[..], "x").unwrap().map(Result::unwrap).collect();
    assert!(read == events);
}

#[test]
fn more_different_modules_than_are_kept_come_back_right() {
    let mixed = |n: u32| module(n, 0x1000 * u64::from(n), &format!("/lib/{}", n * 7 % 5000));
    let events: Vec<Event> = (0..20_000).map(mixed).collect();
    let bytes = written(&events);
    let read: Vec<Event> = ProfileReader::new(&bytes[..], "x").unwrap().map(Result::unwrap).collect();
    assert!(read == events);
}

#[test]
fn a_module_that_was_never_told_is_damage() {
    let whole = written(&[module(1, 0x1000, "/a"), module(2, 0x2000, "/a")]);
    let mut again = ProfileWriter::new(Vec::new()).unwrap();
    again.push(&module(1, 0x1000, "/a")).unwrap();
    let first = again.finish().unwrap().len();
    // The second event alone in a block of its own.
    let payload = &whole[first..];
    let mut alone = whole[..HEADER_LEN].to_vec();
    alone.extend_from_slice(&BLOCK_EVENTS.to_le_bytes());
    alone.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    alone.extend_from_slice(&checksum(BLOCK_EVENTS, payload).to_le_bytes());
    alone.extend_from_slice(payload);
    let result = ProfileReader::new(&alone[..], "x").unwrap().next().unwrap();
    assert!(result.unwrap_err().to_string().contains("not told before"));
}
