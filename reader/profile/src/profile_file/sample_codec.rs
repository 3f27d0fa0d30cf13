//! Encodes and decodes samples.

use super::event::{KernelSample, Sample};
use super::fields::{Fields, INTEGER_MOST, Malformed, Put, Room};
use super::limits::{FRAMES_MAX, KERNEL_FRAMES_MAX, KERNEL_SAMPLES_MAX};
use super::sample_ref::SampleRef;

/// The previous sample in the same block, relative to which a sample is encoded.
#[derive(Default)]
pub(super) struct PreviousSample {
    ns: u64,
    /// Root first, so that what the next one shares comes first.
    pub(super) frames: Vec<u64>,
    /// Where the next one is put together.
    scratch: Vec<u8>,
}

/// A sample's fields beside its frames and events of the kernel.
const FIELDS: usize = 10;

impl PreviousSample {
    /// A block begins.
    pub(super) fn reset(&mut self) {
        self.ns = 0;
        self.frames.clear();
    }
}

/// Outer frames equal to those of the previous sample are a number, which is returned; each other frame is the difference
/// to the frame outside it, flags rotated to the low end so that near addresses are near numbers.
pub(super) fn put_sample(
    sample_ref: SampleRef<'_>,
    previous: &mut PreviousSample,
    body: &mut Vec<u8>,
) -> usize {
    let SampleRef { sample: v, mut frames, shared } = sample_ref;
    let before = &mut previous.frames;
    // Of one as long as that the root may be missing.
    let is_whole = frames.len() <= FRAMES_MAX && before.len() < FRAMES_MAX;
    let mut shared = if is_whole { shared.min(before.len()).min(frames.len()) } else { 0 };
    // Keep the leaf end: what is on the CPU matters most.
    frames = &frames[frames.len().saturating_sub(FRAMES_MAX)..];
    debug_assert_eq!(frames[..shared], before[..shared], "shared with another sample");
    shared += frames[shared..].iter().zip(&before[shared..]).take_while(|(a, b)| a == b).count();
    let (outer, inner) = frames.split_at(shared);
    let most = INTEGER_MOST * (FIELDS + inner.len());
    if previous.scratch.len() < most {
        previous.scratch.resize(most.next_power_of_two(), 0);
    }
    let mut room = Room { bytes: &mut previous.scratch, len: 0 };
    room.put_u32(v.process);
    room.put_u32(v.tid);
    room.put_u32(v.thread_seq);
    room.put_i64(v.ns.wrapping_sub(previous.ns) as i64);
    room.put_u32(v.weight);
    room.put_byte(v.end);
    room.put_byte(v.source);
    room.put_u64(v.nonce);
    room.put_u64(frames.len() as u64);
    room.put_u64(shared as u64);
    let mut last = outer.last().map_or(0, |word| word.rotate_left(3));
    for word in inner {
        let word = word.rotate_left(3);
        room.put_i64(word.wrapping_sub(last) as i64);
        last = word;
    }
    let len = room.len;
    body.extend_from_slice(&previous.scratch[..len]);
    put_kernel(v, body);
    previous.ns = v.ns;
    before.truncate(shared);
    before.extend_from_slice(inner);
    shared
}

/// Only where there is something: most samples have no kernel part.
fn put_kernel(v: &Sample, body: &mut Vec<u8>) {
    if !v.repeated && v.kernel.is_empty() {
        return;
    }
    body.push(v.repeated.into());
    let kernel = &v.kernel[..v.kernel.len().min(KERNEL_SAMPLES_MAX)];
    body.put_u64(kernel.len() as u64);
    let (mut ns, mut frames_before): (u64, &[u64]) = (v.ns, &[]);
    for sample in kernel {
        body.put_i64(sample.ns.wrapping_sub(ns) as i64);
        body.put_u32(sample.weight);
        body.push(sample.event);
        let frames = &sample.frames[..sample.frames.len().min(KERNEL_FRAMES_MAX)];
        let equal = frames.iter().rev().zip(frames_before.iter().rev()).take_while(|(a, b)| a == b);
        let shared = equal.count();
        body.put_u64(frames.len() as u64);
        body.put_u64(shared as u64);
        let (inner, outer) = frames.split_at(frames.len() - shared);
        let mut last = outer.first().copied().unwrap_or(0);
        for &address in inner.iter().rev() {
            body.put_i64(address.wrapping_sub(last) as i64);
            last = address;
        }
        (ns, frames_before) = (sample.ns, frames);
    }
}

fn kernel(f: &mut Fields<'_>, mut ns: u64) -> Result<Vec<KernelSample>, Malformed> {
    let count = f.u64()?;
    if count > KERNEL_SAMPLES_MAX as u64 {
        return Err("too many kernel events");
    }
    let mut samples: Vec<KernelSample> = Vec::new();
    for _ in 0..count {
        ns = ns.wrapping_add(f.i64()? as u64);
        let mut sample = KernelSample { ns, weight: f.u32()?, event: f.byte()?, frames: Vec::new() };
        let before = samples.last().map_or(&[][..], |before| &before.frames);
        let (depth, shared) = (f.u64()?, f.u64()?);
        if depth > KERNEL_FRAMES_MAX as u64 || shared > depth || shared > before.len() as u64 {
            return Err("a kernel stack is too deep");
        }
        let outer = &before[before.len() - shared as usize..];
        let mut last = outer.first().copied().unwrap_or(0);
        let mut frames = vec![0; (depth - shared) as usize];
        for address in frames.iter_mut().rev() {
            last = last.wrapping_add(f.i64()? as u64);
            *address = last;
        }
        frames.extend_from_slice(outer);
        sample.frames = frames;
        samples.push(sample);
    }
    Ok(samples)
}

/// A sample without its frames, which are in `previous`, and how many of these were there before.
pub(super) fn sample(
    f: &mut Fields<'_>,
    previous: &mut PreviousSample,
) -> Result<(Sample, usize), Malformed> {
    let mut sample = Sample { process: f.u32()?, tid: f.u32()?, thread_seq: f.u32()?, ..Sample::default() };
    sample.ns = previous.ns.wrapping_add(f.i64()? as u64);
    sample.weight = f.u32()?;
    sample.end = f.byte()?;
    sample.source = f.byte()?;
    sample.nonce = f.u64()?;
    previous.ns = sample.ns;
    let (depth, shared) = (f.u64()?, f.u64()?);
    let frames = &mut previous.frames;
    if depth > FRAMES_MAX as u64 || shared > depth || shared > frames.len() as u64 {
        return Err("a stack is too deep");
    }
    frames.truncate(shared as usize);
    let mut last = frames.last().map_or(0, |word| word.rotate_left(3));
    for _ in shared..depth {
        last = last.wrapping_add(f.i64()? as u64);
        frames.push(last.rotate_right(3));
    }
    if !f.0.is_empty() {
        sample.repeated = f.byte()? != 0;
        sample.kernel = kernel(f, sample.ns)?;
    }
    Ok((sample, shared as usize))
}
