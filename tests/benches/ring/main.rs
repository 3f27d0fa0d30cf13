//! `scripts/bench ring`: the cost of a record for writer and reader, and the bytes of a stack, compared with LTTng-UST,
//! babeltrace2 and perf, in one run. Rounds are interleaved and medians are printed, since machines drift; only the
//! ratios are meaningful.

mod lttng;
mod ours;
mod sizes;

use lttng::Lttng;
use ours::Ours;

const EVENTS: u64 = 200_000;
/// 4 MiB, as LTTng's four sub-buffers.
const CHUNKS: u32 = 256;
/// 64 MiB: exceeds the caches.
const DRAINED_CHUNKS: u32 = 4096;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == "--test") {
        return; // `cargo test --benches` only asks whether it builds.
    }
    let rounds = if arguments.iter().any(|argument| argument == "--long") { 21 } else { 7 };
    let directory = std::env::temp_dir().join(format!("selfwind-bench-ring-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a temporary directory");
    let lttng = Lttng::start(&directory);
    if let Err(missing) = &lttng {
        println!("without LTTng: {missing}");
    }
    let lttng = lttng.ok();
    writers(lttng.as_ref(), rounds);
    readers(lttng.as_ref(), &directory, rounds);
    sizes::print(&directory);
    drop(lttng);
    let _ = std::fs::remove_dir_all(&directory);
}

fn writers(lttng: Option<&Lttng>, rounds: usize) {
    let mut ours = Ours::new(CHUNKS);
    ours.write(EVENTS);
    let mut numbers = Vec::new();
    let mut own = ours::NAMES.map(|_| [Vec::new(), Vec::new()]);
    let mut theirs: [Vec<f64>; 3] = Default::default();
    if let Some(lttng) = lttng
        && let Err(reason) = lttng.session(None)
    {
        println!("{reason}");
    }
    for _ in 0..rounds {
        let (number, rows) = ours.write(EVENTS);
        numbers.push(number);
        own.iter_mut().flatten().zip(rows.as_flattened()).for_each(|(row, ns)| row.push(*ns));
        let times = lttng.and_then(|lttng| lttng.write(EVENTS));
        times.into_iter().flatten().zip(&mut theirs).for_each(|(ns, row)| row.push(ns));
    }
    if let Some(lttng) = lttng {
        lttng.end();
    }
    let own = own.each_mut().map(|row| row.each_mut().map(|times| median(times)));
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
    let number = median(&mut numbers);
    for (name, (row, [short, long])) in ours::NAMES.iter().zip(own.into_iter().enumerate()) {
        line(name, [if row == 0 { number } else { f64::NAN }, short, long]);
    }
    println!("{:<44}{clock:>9.1}", "  of it, in each of ours, reading the clock");
}

fn readers(lttng: Option<&Lttng>, directory: &std::path::Path, rounds: usize) {
    let mut ours = Ours::new(DRAINED_CHUNKS);
    let (mut numbers, mut stacks, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    let trace = directory.join("trace");
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
    println!("\nbytes in the ring of a stack of 40 frames");
    for (name, bytes) in ours::NAMES.iter().zip(ours.bytes()) {
        println!("{name:<44}{bytes:>10.1}");
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
