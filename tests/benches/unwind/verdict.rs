//! The results of a run, the ratios between them, and the ratios that are required.

use crate::workload::DEPTH;

/// The scenarios in order, then the first capture.
const COLUMNS: usize = 5;
const NAMES: [&str; COLUMNS] = ["HOT", "ROT", "WALK", "COLD", "FIRST"];
const HOT: usize = 0;
const ROT: usize = 1;
const WALK: usize = 2;
const COLD: usize = 3;
pub(crate) const FIRST: usize = 4;

/// The results of one method.
pub(crate) struct Figures {
    name: &'static str,
    /// Per column, ns per stack in every round.
    rounds: [Vec<f64>; COLUMNS],
}

impl Figures {
    /// Without any round yet.
    pub(crate) fn none(name: &'static str) -> Figures {
        Figures { name, rounds: [const { Vec::new() }; COLUMNS] }
    }

    /// Adds the result of a round.
    pub(crate) fn note(&mut self, column: usize, ns: f64) {
        self.rounds[column].push(ns);
    }

    fn ns(&self, column: usize) -> f64 {
        median(self.rounds[column].iter().copied())
    }

    /// Median over the rounds of its time divided by that of `other`.
    fn ratio(&self, other: &Figures, column: usize) -> f64 {
        median(self.rounds[column].iter().zip(&other.rounds[column]).map(|(own, other)| own / other))
    }
}

/// The median.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// How many times slower than selfwind a peer is required to be in a column, at least.
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

/// Prints everything; the first results are selfwind's.
pub(crate) fn print(figures: &[Figures]) {
    let ours = &figures[0];
    println!(
        "ns per stack of {DEPTH} frames and two of the harness, medians; every stack checked against the truth"
    );
    print!("{:<32}", "method");
    NAMES.iter().for_each(|name| print!("{name:>10}"));
    println!();
    for method in figures {
        print!("{:<32}", method.name);
        (0..COLUMNS).for_each(|column| print!("{:>10.0}", method.ns(column)));
        println!();
    }
    println!("\nratio to {} (above 1: it is slower than we are), round by round, medians", ours.name);
    for method in &figures[1..] {
        print!("{:<32}", method.name);
        (0..COLUMNS).for_each(|column| print!("{:>10.2}", method.ratio(ours, column)));
        println!();
    }
    println!("\nexpected at least");
    for (name, column, least) in TARGETS {
        let Some(peer) = figures.iter().find(|figures| figures.name == name) else { continue };
        let ratio = peer.ratio(ours, column);
        let met = if ratio >= least { "" } else { "  NOT MET" };
        println!("{:<6}{name:<32}{least:>7.1}x {ratio:>9.2}x{met}", NAMES[column]);
    }
}
