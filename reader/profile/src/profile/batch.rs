//! Batches of samples to be counted together.
//!
//! Counting a sample takes a few look-ups in tables that are far larger than the CPU's caches. Done for many samples at once, their
//! cache misses overlap.

use std::ops::Range;

use super::stacks::{Digest, RawStack};

/// Number of samples in a batch.
const HANDFUL: usize = 1024;

/// What a sample counts for one event, with its stack, in a batch.
#[derive(Debug)]
pub(super) struct PendingSample {
    pub(super) ns: u64,
    pub(super) samples: u64,
    pub(super) weight: u64,
    pub(super) event: u8,
    pub(super) fields: u32,
    pub(super) thread: u32,
    pub(super) digest: Digest<3>,
    end: u8,
    process: u32,
    epoch: u32,
    layout: u32,
    kernel: Range<usize>,
    frames: Range<usize>,
}

/// Time, event and weight of what a sample counts for one event.
#[derive(Debug, Clone, Copy)]
pub(super) struct What {
    pub(super) ns: u64,
    pub(super) event: u8,
    /// The fields of its event.
    pub(super) fields: u32,
    /// How many samples it counts as.
    pub(super) samples: u64,
    pub(super) weight: u64,
}

/// A batch of samples.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) pending: Vec<PendingSample>,
    /// The words of their stacks.
    words: Vec<u64>,
}

impl Batch {
    /// Adds what a sample counts for one event.
    pub(super) fn push(&mut self, what: What, stack: &RawStack<'_>, digest: Digest<3>) {
        let What { ns, event, fields, samples, weight } = what;
        let mut keep = |words: &[u64]| {
            let from = self.words.len();
            self.words.extend_from_slice(words);
            from..self.words.len()
        };
        let (kernel, frames) = (keep(stack.kernel), keep(stack.frames));
        let &RawStack { thread, process, epoch, layout, end, .. } = stack;
        self.pending.push(PendingSample {
            ns,
            samples,
            weight,
            event,
            fields,
            thread,
            digest,
            end,
            process,
            epoch,
            layout,
            kernel,
            frames,
        });
    }

    pub(super) fn is_full(&self) -> bool {
        self.pending.len() >= HANDFUL
    }

    /// The stack of a sample in the batch.
    pub(super) fn stack(&self, pending: &PendingSample) -> RawStack<'_> {
        let &PendingSample { thread, process, epoch, layout, end, .. } = pending;
        let (kernel, frames) = (&self.words[pending.kernel.clone()], &self.words[pending.frames.clone()]);
        RawStack { thread, process, epoch, layout, end, kernel, frames }
    }

    pub(super) fn clear(&mut self) {
        self.pending.clear();
        self.words.clear();
    }
}
