//! The figures of one run, the ratios between them, and what they must at least be.

use crate::workload::DEPTH;

/// HOT, ROT, WALK, COLD and the first capture.
pub(crate) const COLUMNS: usize = 5;
const NAMES: [&str; COLUMNS] = ["HOT", "ROT", "WALK", "COLD", "FIRST"];
const HOT: usize = 0;
const ROT: usize = 1;
const WALK: usize = 2;
const COLD: usize = 3;
const FIRST: usize = 4;

/// One method's medians.
pub(crate) struct Figures {
    pub(crate) name: &'static str,
    pub(crate) ns: [f64; COLUMNS],
}

/// How many times slower than ours, in a column, a peer is expected to be at least.
const TARGETS: [(&str, usize, f64); 11] = [
    ("libunwind unw_backtrace", WALK, 1.8),
    ("framehop 0.16", WALK, 15.0),
    ("libgcc _Unwind_Backtrace", WALK, 40.0),
    ("glibc backtrace()", WALK, 40.0),
    ("libunwind unw_step", WALK, 150.0),
    ("frame pointers", HOT, 1.0),
    ("libunwind unw_backtrace", COLD, 3.0),
    ("framehop 0.16", COLD, 6.0),
    ("libunwind unw_backtrace", ROT, 1.0),
    ("framehop 0.16", FIRST, 4.0),
    ("libunwind unw_backtrace", FIRST, 20.0),
];

/// Prints everything; the first figures are ours.
pub(crate) fn print(figures: &[Figures]) {
    let ours = &figures[0];
    println!(
        "ns per stack of {DEPTH} frames and two of the harness, medians; every stack checked against the truth"
    );
    print!("{:<32}", "method");
    NAMES.iter().for_each(|name| print!("{name:>10}"));
    println!();
    for Figures { name, ns } in figures {
        print!("{name:<32}");
        ns.iter().for_each(|ns| print!("{ns:>10.0}"));
        println!();
    }
    println!("\nratio to {} (above 1: it is slower than we are)", ours.name);
    for Figures { name, ns } in &figures[1..] {
        print!("{name:<32}");
        ns.iter().zip(ours.ns).for_each(|(ns, ours)| print!("{:>10.2}", ns / ours));
        println!();
    }
    println!("\nexpected at least");
    for (name, column, least) in TARGETS {
        let Some(peer) = figures.iter().find(|figures| figures.name == name) else { continue };
        let ratio = peer.ns[column] / ours.ns[column];
        let met = if ratio >= least { "" } else { "  NOT MET" };
        println!("{:<6}{name:<32}{least:>7.1}x {ratio:>9.2}x{met}", NAMES[column]);
    }
}
