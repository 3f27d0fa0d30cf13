//! `scripts/bench ring`: what a record costs its writer and its reader, and how many bytes a stack takes, beside
//! LTTng-UST, babeltrace2 and perf, in one run. Rounds are interleaved and medians are printed, since machines drift;
//! only the ratios say something.

mod lttng;
mod ours;
mod sizes;

use lttng::Lttng;
use ours::Ours;

const EVENTS: u64 = 200_000;
/// 4 MiB, as LTTng's four sub-buffers.
const CHUNKS: u32 = 256;
/// 64 MiB: beyond the caches.
const DRAINED_CHUNKS: u32 = 4096;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == "--test") {
        return; // `cargo test --benches` only asks whether it builds.
    }
    let rounds = if arguments.iter().any(|argument| argument == "--long") { 21 } else { 7 };
    let place = std::env::temp_dir().join(format!("selfwind-bench-ring-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("a temporary directory");
    let lttng = Lttng::start(&place);
    if let Err(missing) = &lttng {
        println!("without LTTng: {missing}");
    }
    let lttng = lttng.ok();
    writers(lttng.as_ref(), rounds);
    readers(lttng.as_ref(), &place, rounds);
    sizes::print(&place);
    drop(lttng);
    let _ = std::fs::remove_dir_all(&place);
}

fn writers(lttng: Option<&Lttng>, rounds: usize) {
    let mut ours = Ours::new(CHUNKS);
    ours.write(EVENTS);
    let mut own: [Vec<f64>; ours::ROWS] = Default::default();
    let mut theirs: [Vec<f64>; 3] = Default::default();
    if let Some(lttng) = lttng
        && let Err(reason) = lttng.session(None)
    {
        println!("{reason}");
    }
    for _ in 0..rounds {
        ours.write(EVENTS).into_iter().zip(&mut own).for_each(|(ns, row)| row.push(ns));
        let times = lttng.and_then(|lttng| lttng.write(EVENTS));
        times.into_iter().flatten().zip(&mut theirs).for_each(|(ns, row)| row.push(ns));
    }
    if let Some(lttng) = lttng {
        lttng.end();
    }
    let own = own.each_mut().map(|row| median(row));
    let theirs = theirs.each_mut().map(|row| median(row));
    let clock = ours::clock(EVENTS);
    println!("writing one record, ns of thread CPU time, overwrite mode, nobody reads");
    println!("{:<44}{:>9}{:>7}{:>10}{:>7}{:>10}{:>7}", "", "8 bytes", "", "16 frames", "", "40 frames", "");
    let line = |name: &str, times: [f64; 3]| {
        print!("{name:<44}");
        for (ns, peer) in times.into_iter().zip(theirs) {
            if ns.is_nan() {
                print!("{:>17}", "");
            } else {
                print!("{ns:>9.1}{:>7.2}x", ns / peer);
            }
        }
        println!();
    };
    line("LTTng-UST", theirs);
    line("selfwind, plain words", [own[0], own[1], own[2]]);
    line("selfwind, codec, 12 frames new", [f64::NAN, own[3], own[4]]);
    line("selfwind, codec, 12 new, told by the walk", [f64::NAN, own[5], own[6]]);
    line("selfwind, codec, 1 new, told by the walk", [f64::NAN, own[7], own[8]]);
    println!("{:<44}{clock:>9.1}", "  of it, in each of ours, reading the clock");
}

fn readers(lttng: Option<&Lttng>, place: &std::path::Path, rounds: usize) {
    let mut ours = Ours::new(DRAINED_CHUNKS);
    let (mut numbers, mut stacks, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    let trace = place.join("trace");
    let traced = lttng.is_some_and(|lttng| {
        let made = lttng.session(Some(&trace)).is_ok() && lttng.write(EVENTS / 2).is_some();
        lttng.end();
        made
    });
    for _ in 0..rounds {
        let drained = ours.drain();
        numbers.push(drained.numbers / 1e6);
        stacks.push(drained.stacks / 1e6);
        if traced {
            match lttng::babeltrace(&trace) {
                Ok(rate) => theirs.push(rate / 1e6),
                Err(reason) => println!("{reason}"),
            }
        }
    }
    println!("\nreading, millions of records per second of CPU time");
    println!("{:<44}{:>10.2}", "babeltrace2, counting", median(&mut theirs));
    println!("{:<44}{:>10.1}", "selfwind, 8-byte records", median(&mut numbers));
    println!("{:<44}{:>10.1}", "selfwind, stacks of 40 frames, decoded", median(&mut stacks));
    println!("{:<44}{:>10.1}", "  bytes per such stack", ours.bytes());
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
