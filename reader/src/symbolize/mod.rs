//! From addresses to names.
//!
//! Each binary is read once for all processes of a profile, and only if it was hit. Binaries are
//! independent of each other, so they are read in parallel, the busiest first.

mod binary;
mod debug_file;
mod demangle;
mod dwarf;
mod frame_entry;
mod perf_map;
mod plt;
mod symbol_table;
mod vdso;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

pub use binary::{Line, Origin, Request, Symbols, base_name};
pub use debug_file::{DebugDirectories, hex};
pub use demangle::demangle;
pub use perf_map::PerfMap;

/// Names the addresses of all binaries; the answers have the order of the requests.
pub fn symbolize(requests: &[Request], directories: &DebugDirectories) -> Vec<Symbols> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(requests[index].addresses.len()));
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Symbols)>> = Mutex::new(Vec::with_capacity(requests.len()));
    let work = || {
        while let Some(&index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            let symbols = binary::symbolize(&requests[index], directories);
            done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((index, symbols));
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from).min(requests.len());
    thread::scope(|scope| {
        for _ in 1..workers {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    done.sort_unstable_by_key(|&(index, _)| index);
    done.into_iter().map(|(_, symbols)| symbols).collect()
}
