//! User stacks that the kernel walked itself, later than it took the sample (Linux 6.19, PERF_RECORD_CALLCHAIN_DEFERRED).
//!
//! They answer what no stack of ours does: the thread had blocked our signal, and moved on. The kernel walks by frame
//! pointers, so ours come first.

use shm_format::KernelAnswerHead;
use unwind::{FoundBy, Frame};

use super::perf_record::PerfSample;
use super::requester::{Claim, Named, Requester};

/// The stacks of one answer by their cookies.
#[derive(Debug, Default)]
pub(super) struct Deferred(Vec<(KernelAnswerHead, Vec<u64>)>);

impl Deferred {
    pub(super) fn add(&mut self, cookie: u64, addresses: Vec<u64>) {
        let answer = KernelAnswerHead { nonce: cookie, ..KernelAnswerHead::default() };
        let word = |(place, address)| Frame::new(address, FoundBy::FramePointer, place == 0).bits();
        self.0.push((answer, addresses.into_iter().enumerate().map(word).collect()));
    }

    /// The frame words of the stack that was promised for this sample.
    pub(super) fn answer_to(&self, sample: &PerfSample) -> Option<Vec<u64>> {
        let claims = |(answer, frames): &&(KernelAnswerHead, Vec<u64>)| {
            Named.claim(sample, 0, answer, frames) == Claim::Exact
        };
        self.0.iter().find(claims).map(|(_, frames)| frames.clone())
    }
}
