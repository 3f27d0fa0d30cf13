//! Symbolization: finds the names of addresses.
//!
//! Each binary is read once for all processes of a profile, and only if it has samples. Binaries are read in parallel, those with the
//! most addresses first.

mod binary;
mod cache_file;
mod debuginfod;
mod demangle;
mod dwarf;
mod dwarf_storage;
mod file_tree;
mod frame_entry;
mod generated_name;
mod go_lines;
mod image;
mod jitdump;
mod locator;
mod name_file;
mod namer;
mod perf_map;
mod plt;
mod sources;
mod split_dwarf;
mod symbol_cache;
mod symbol_table;
mod symbols;
mod vdso;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

pub use debuginfod::Debuginfod;
pub use demangle::demangle;
pub use generated_name::short_name;
pub use image::hex;
pub use name_file::NameFile;
pub use perf_map::perf_map_path;
pub use sources::{Again, FileCopy, Progress, StartProgress, SymbolSources};
pub use symbol_cache::SymbolCache;
pub use symbols::{Line, Origin, Request, Symbols};

/// Names the addresses of all binaries. The answers are in the order of the requests.
pub fn symbolize(requests: &[Request], sources: &SymbolSources) -> Vec<Symbols> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(requests[index].addresses.len()));
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Symbols)>> = Mutex::new(Vec::with_capacity(requests.len()));
    let progress = sources.progress.map(|start| start("naming functions"));
    let work = || {
        while let Some(&index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            let symbols = binary::symbolize(&requests[index], sources);
            let mut done = done.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            done.push((index, symbols));
            if let Some(progress) = &progress {
                progress.at(done.len(), requests.len());
            }
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from).min(requests.len());
    thread::scope(|scope| {
        for _ in 1..workers {
            // If no thread can be started, this one does all the work.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    if let Some(cache) = &sources.cache {
        cache.trim();
    }
    let mut done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    done.sort_unstable_by_key(|&(index, _)| index);
    done.into_iter().map(|(_, symbols)| symbols).collect()
}
