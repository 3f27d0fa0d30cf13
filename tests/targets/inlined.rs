//! A Rust program with debug info: generic, inlined and trait-object frames, threads and a caught panic.

use std::hint::black_box;
use std::time::{Duration, Instant};

trait Work {
    fn work(&self, rounds: u64) -> u64;
}

struct Mixer(u64);

impl Work for Mixer {
    #[inline(never)]
    fn work(&self, rounds: u64) -> u64 {
        (0..rounds).fold(self.0, |state, round| inlined_mix(state, round))
    }
}

#[inline(always)]
fn inlined_mix(state: u64, round: u64) -> u64 {
    inlined_rotate(state ^ round).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[inline(always)]
fn inlined_rotate(value: u64) -> u64 {
    black_box(value.rotate_left(17))
}

#[inline(never)]
fn sorted_strings(count: usize) -> usize {
    let mut all: Vec<String> = (0..count).map(|n| format!("{:x}", n * 7919 % count)).collect();
    all.sort();
    all.iter().map(String::len).sum()
}

fn busy(works: &[Box<dyn Work>], rounds: u32) -> u64 {
    let mut sum = 0u64;
    for _ in 0..rounds {
        sum = sum.wrapping_add(works.iter().map(|w| w.work(200_000)).fold(0, u64::wrapping_add));
        sum = sum.wrapping_add(sorted_strings(2_000) as u64);
    }
    sum
}

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let other = std::thread::spawn(|| busy(&[Box::new(Mixer(3)) as Box<dyn Work>], 400));
    let mine = busy(&[Box::new(Mixer(1)) as Box<dyn Work>, Box::new(Mixer(2))], 400);
    let caught = std::panic::catch_unwind(|| {
        let start = Instant::now();
        assert!(start.elapsed() > Duration::from_secs(3600), "always panics");
    });
    println!("{mine:x} {:x} {}", other.join().unwrap(), caught.is_err());
    std::process::exit(51);
}
