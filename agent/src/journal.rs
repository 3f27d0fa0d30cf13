//! Writes the durable records: what a reader needs to know about this process to interpret its samples.

use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use handler::recording::Recording;
use platform::clock;
use shm_format::Loss;
use shm_format::record::{self, DurableRecord};

use crate::config::Config;
use crate::kernel;
use crate::lock::Lock;
use crate::room;
use crate::sampling_signal;
use crate::session;

/// Longest command line recorded, in bytes.
pub(crate) const ARGUMENTS: usize = 4096;
/// Longest working directory (kernel: PATH_MAX).
const DIRECTORY: usize = 4096;

/// Serializes growth of the region.
static GROWTH: Lock = Lock::new();

/// Time of this process's record.
static STARTED: AtomicU64 = AtomicU64::new(0);

/// Time of this process's record, in ticks.
pub(crate) fn started() -> u64 {
    STARTED.load(Ordering::Relaxed)
}

/// The lock that a fork must hold.
pub(crate) fn lock() -> &'static Lock {
    &GROWTH
}

/// Appends `record`, backing more of the log if necessary. If the log cannot grow, the record is lost; samples of a
/// thread or module without a record are still counted.
pub(crate) fn append(recording: &Recording, record: &DurableRecord<'_>) {
    let region = &recording.region;
    while region.append(record) == Err(Loss::DurableFull) {
        let before = region.durable_backed();
        let _held = GROWTH.hold();
        if region.durable_backed() == before && !room::grow_log(region) {
            return;
        }
    }
}

/// Lets handlers append to the log, which they back when they need it. If they cannot, this many bytes are backed now.
pub(crate) fn open_log(recording: &Recording, bytes: u64) {
    let opened = {
        let _held = GROWTH.hold();
        room::open_log(&recording.region)
    };
    if !opened {
        make_log(recording, bytes);
    }
}

/// Backs this many bytes of the log, or as many as possible.
#[inline(never)]
pub(crate) fn make_log(recording: &Recording, bytes: u64) {
    let _held = GROWTH.hold();
    while recording.region.durable_backed() < bytes && room::grow_log(&recording.region) {}
}

/// Backs chunks for `threads` threads.
pub(crate) fn make_room(recording: &Recording, threads: usize) {
    if room::is_needed(&recording.region, threads) {
        let _held = GROWTH.hold();
        room::grow_pool(&recording.region, threads);
    }
}

/// Lets the reader back chunks of this many bytes in total.
#[cfg(feature = "allocations")]
pub(crate) fn extend_pool(recording: &Recording, bytes: usize) {
    let _held = GROWTH.hold();
    room::extend_pool(&recording.region, bytes);
}

/// Records the identity of this process and how it is sampled. `arguments` are its arguments, if they are already known.
pub(crate) fn tell_process(
    recording: &Recording,
    config: &Config,
    program: &[u8],
    arguments: Option<&[u8]>,
    parent_nonce: u64,
) {
    let ticks = clock::now();
    STARTED.store(ticks, Ordering::Relaxed);
    // On the heap: a child may be forked from a thread with a small stack.
    let mut read = Vec::new();
    let argv = arguments.unwrap_or_else(|| {
        read.resize(ARGUMENTS, 0);
        kernel::read_file(c"/proc/self/cmdline", &mut read).unwrap_or(&[])
    });
    let mut directory = vec![0u8; DIRECTORY];
    append(
        recording,
        &DurableRecord::Process(record::Process {
            ticks,
            // The pid that the recorder uses, if it has specified one.
            pid: config.handed.map_or_else(platform::sys::process_id, |(pid, _)| pid),
            ppid: kernel::parent_id(),
            parent_nonce,
            uid: kernel::user_id(),
            signal: sampling_signal::get() as u32,
            period_ns: config.unit_ns(recording.sources.clock),
            source: recording.sources.number().into(),
            exe: program,
            argv,
            cwd: kernel::current_directory(&mut directory),
            note: &config.note,
        }),
    );
}

/// Records a setting or fact for the reader.
pub(crate) fn tell_setting(recording: &Recording, key: &[u8], value: &[u8]) {
    append(recording, &DurableRecord::Setting(record::Setting { ticks: clock::now(), key, value }));
}

/// Records another reading of the clocks.
pub(crate) fn tell_anchor(recording: &Recording) {
    append(recording, &DurableRecord::Anchor(session::anchor()));
}
