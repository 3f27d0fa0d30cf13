//! Every record round-trips, and no payload that is shorter, longer or out of range is accepted.

use super::*;
use std::vec::Vec;

fn segments() -> [Segment; 2] {
    [
        Segment { address: 0x5000, len: 0x1000, page_offset: 0, flags: 5, reserved: 0 },
        Segment { address: 0x6000, len: 0x800, page_offset: 0x1000, flags: 6, reserved: 0 },
    ]
}

const FRAMES: [u64; 3] = [0x5123, 0x5456, 0x6789];

fn samples(segments: &[Segment]) -> Vec<DurableRecord<'_>> {
    let thread = Thread { ticks: 9, tid: 77, seq: 3, name: b"worker" };
    std::vec![
        DurableRecord::Process(Process {
            ticks: 1,
            pid: 2,
            ppid: 3,
            parent_nonce: 4,
            uid: 5,
            signal: 27,
            period_ns: 10_101_010,
            source: 1,
            exe: b"/usr/bin/python3",
            argv: b"python3\0-c\0pass\0",
            cwd: b"/",
            note: b"",
        }),
        DurableRecord::Module(Module {
            ticks: 8,
            id: 1,
            start: 0x5000,
            end: 0x7000,
            bias: 0x5000,
            build_id: &[1, 2, 3],
            path: b"/lib/libc.so.6",
            segments: Segments::new(segments),
        }),
        DurableRecord::ModuleGone(ModuleGone { ticks: 10, id: 1 }),
        DurableRecord::Thread(thread),
        DurableRecord::ThreadName(thread),
        DurableRecord::ThreadEnd(Thread { name: b"", ..thread }),
        DurableRecord::Exec(Exec { ticks: 3, path: b"/bin/ls" }),
        DurableRecord::Exit(Exit { ticks: 4, status: None }),
        DurableRecord::Exit(Exit { ticks: 4, status: Some(-1) }),
        DurableRecord::Anchor(Anchor { ticks: 1, monotonic_ns: 2, realtime_ns: 3 }),
        DurableRecord::Setting(Setting { ticks: 1, key: b"freq", value: b"99" }),
        DurableRecord::Function(Function {
            ticks: 5,
            id: 1 << 27,
            language: 1,
            lines_form: 3,
            first_line: 12,
            name_width: 1,
            file_width: 4,
            name: b"Worker.run",
            file: b"a\0\0\0",
            lines: &[0x80, 1],
        }),
        DurableRecord::Tracepoint(Tracepoint {
            ticks: 6,
            id: 3,
            provider: b"app",
            name: b"request",
            fields: b"bytes\0path\0",
        }),
        DurableRecord::RecurringStack(RecurringStack {
            id: 7,
            tid: 4242,
            seq: 3,
            base: 6,
            shared: 2,
            frames: FrameWords::new(&FRAMES)
        }),
        DurableRecord::KernelRing(KernelRing {
            ticks: 1,
            tid: 77,
            ring: 5,
            bytes: 65536,
            ..Default::default()
        }),
    ]
}

#[test]
fn durable_records_round_trip_and_no_other_length_parses() {
    let segments = segments();
    for record in samples(&segments) {
        let (kind, bytes) = record.encode(|kind, parts| (kind, parts.concat()));
        assert_eq!(DurableKind::from_number(kind as u16), Some(kind));
        assert_eq!(DurableRecord::parse(kind, &bytes), Some(record));
        for len in 0..bytes.len() {
            assert_eq!(DurableRecord::parse(kind, &bytes[..len]), None, "{record:?} cut to {len}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(DurableRecord::parse(kind, &longer), None);
    }
}

#[test]
fn a_module_has_its_segments() {
    let segments = segments();
    assert_eq!(Segments::new(&segments).iter().collect::<Vec<_>>(), segments);
}

#[test]
fn changed_bytes_never_panic_the_parser() {
    let segments = segments();
    for record in samples(&segments) {
        let (kind, bytes) = record.encode(|kind, parts| (kind, parts.concat()));
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                let _ = DurableRecord::parse(kind, &changed);
            }
        }
    }
}
