//! User stacks walked by the kernel itself, after it took the sample (Linux 6.19, PERF_RECORD_CALLCHAIN_DEFERRED).
//!
//! They are used only for events that match no stack of the agent, because the thread had blocked the agent's signal and
//! moved on: the kernel walks by frame pointers.

use shm_format::KernelAnswerHead;
use unwind::{FoundBy, Frame};

use super::perf_record::PerfSample;
use super::requester::{Match, Named, Requester};

/// The kernel's stacks in one answer, with their cookies.
#[derive(Debug, Default)]
pub(super) struct Deferred(Vec<(KernelAnswerHead, Vec<u64>)>);

impl Deferred {
    pub(super) fn add(&mut self, cookie: u64, addresses: Vec<u64>) {
        let answer = KernelAnswerHead { nonce: cookie, ..KernelAnswerHead::default() };
        let word = |(index, address)| Frame::new(address, FoundBy::FramePointer, index == 0).bits();
        self.0.push((answer, addresses.into_iter().enumerate().map(word).collect()));
    }

    /// The frame words of the deferred stack that belongs to this sample.
    pub(super) fn answer_to(&self, sample: &PerfSample) -> Option<Vec<u64>> {
        let claims = |(answer, frames): &&(KernelAnswerHead, Vec<u64>)| {
            Named.match_event(sample, 0, answer, frames) == Match::Exact
        };
        self.0.iter().find(claims).map(|(_, frames)| frames.clone())
    }
}
