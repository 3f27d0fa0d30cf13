//! Waits for a lock of Rust's standard library, which calls futex directly. Prints the number of waits and their
//! duration.

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

fn main() {
    let other = thread::spawn(|| {
        for round in 1..=ROUNDS {
            hold_rust(round);
            until(&DONE, round);
        }
    });
    let mut waited = Duration::ZERO;
    for round in 1..=ROUNDS {
        until(&HELD, round);
        let begun = Instant::now();
        drop(wait_rust());
        waited += begun.elapsed();
        DONE.store(round, Ordering::SeqCst);
    }
    other.join().expect("no panic");
    println!("rust {ROUNDS} {}", waited.as_nanos());
}
