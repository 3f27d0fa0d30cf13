//! Waits for a lock of Rust's standard library, which calls futex directly. Prints the number of waits, how many of them
//! blocked, the duration of those, and for how much of that the thread was runnable and had no processor (ns, by the kernel).

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

const ROUNDS: u32 = 20;
static LOCK: Mutex<u64> = Mutex::new(0);
static HELD: AtomicU32 = AtomicU32::new(0);
static DONE: AtomicU32 = AtomicU32::new(0);

#[unsafe(no_mangle)]
#[inline(never)]
fn wait_rust() -> MutexGuard<'static, u64> {
    std::hint::black_box(LOCK.lock().expect("not poisoned"))
}

#[unsafe(no_mangle)]
#[inline(never)]
fn hold_rust(round: u32) {
    let mut held = LOCK.lock().expect("not poisoned");
    HELD.store(round, Ordering::SeqCst);
    thread::sleep(Duration::from_millis(2));
    *held += 1;
    drop(held);
    std::hint::black_box(());
}

fn until(word: &AtomicU32, round: u32) {
    while word.load(Ordering::SeqCst) < round {
        thread::sleep(Duration::from_micros(50));
    }
}

fn text(file: &str) -> String {
    fs::read_to_string(format!("/proc/thread-self/{file}")).expect("the kernel counts it")
}

fn unscheduled() -> u64 {
    text("schedstat").split(' ').nth(1).and_then(|ready| ready.parse().ok()).expect("a number")
}

fn blocked() -> u64 {
    let text = text("status");
    let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).expect("a number")
}

fn main() {
    let other = thread::spawn(|| {
        for round in 1..=ROUNDS {
            hold_rust(round);
            until(&DONE, round);
        }
    });
    let (mut waits, mut waited, mut ready) = (0, Duration::ZERO, 0);
    for round in 1..=ROUNDS {
        until(&HELD, round);
        let (times, before, begun) = (blocked(), unscheduled(), Instant::now());
        drop(wait_rust());
        let took = begun.elapsed();
        // A thread that is interrupted before it waits may find the lock free.
        if blocked() != times {
            waits += 1;
            waited += took;
            ready += unscheduled() - before;
        }
        DONE.store(round, Ordering::SeqCst);
    }
    other.join().expect("no panic");
    println!("rust {ROUNDS} {waits} {} {ready}", waited.as_nanos());
}
