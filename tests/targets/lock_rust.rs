//! Waits for a lock of Rust's standard library, which calls futex directly. Prints the waits as lock_sites does.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

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

fn now() -> u64 {
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut [u64; 2]) -> i32;
    }
    const MONOTONIC: i32 = 1;
    let mut time = [0; 2];
    // SAFETY: it writes a struct timespec, which has this shape on 64-bit Linux.
    assert_eq!(unsafe { clock_gettime(MONOTONIC, &raw mut time) }, 0);
    time[0] * 1_000_000_000 + time[1]
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
    for round in 1..=ROUNDS {
        until(&HELD, round);
        let (times, before, start) = (blocked(), unscheduled(), now());
        drop(wait_rust());
        let took = now() - start;
        // A thread that is interrupted before it waits may find the lock free.
        println!("rust {start} {took} {} {}", unscheduled() - before, u8::from(blocked() != times));
        DONE.store(round, Ordering::SeqCst);
    }
    other.join().expect("no panic");
}
