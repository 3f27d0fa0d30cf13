//! The event that compares a thread's own walk with the walk of its stack copy.

use super::fields::{Fields, Malformed, Put};
use super::limits::FRAMES_MAX;

/// The comparison of a stack copy, unwound by the recorder, with the thread's own walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// The process's number.
    pub process: u32,
    /// Kernel thread id.
    pub tid: u32,
    /// Number of the thread in its process.
    pub thread_seq: u32,
    /// When the stack was taken.
    pub ns: u64,
    /// The result.
    pub verdict: Verdict,
    /// Size of the copied stack in bytes.
    pub copied: u64,
    /// Number of words that were kept.
    pub kept: u64,
    /// Size of the copy as recorded, in bytes.
    pub recorded: u64,
    /// Number of frames of the stack, without interpreted ones.
    pub depth: u64,
    /// The frames found from code addresses alone.
    pub code_only: Recovered,
    /// The frames found by guessing.
    pub guess: Recovered,
    /// Why the thread's walk ended. This and the following fields are set only if the verdict is not [`Verdict::Identical`].
    pub own_end: u8,
    /// Why the walk of the copy ended.
    pub copy_end: u8,
    /// The thread's frames, as in [`Sample::frames`](super::Sample::frames).
    pub own: Vec<u64>,
    /// The frames of the copy.
    pub copy: Vec<u64>,
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// The same frames, and the same end.
    #[default]
    Identical = 0,
    /// The thread's frames extend beyond the end of the copy, or to another stack; as far as the copy goes, they are equal.
    Cut = 1,
    /// Other frames or another end.
    Differs = 2,
}

impl Verdict {
    /// The verdict with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Identical, Self::Cut, Self::Differs].into_iter().find(|verdict| *verdict as u8 == number)
    }
}

/// How much of a stack a method has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Frames.
    pub frames: u64,
    /// How many of them are on the stack, in its order.
    pub right: u64,
}

/// Appends the body of the event.
pub(super) fn put(v: &Comparison, body: &mut Vec<u8>) {
    for number in [v.process, v.tid, v.thread_seq] {
        body.put_u32(number);
    }
    body.put_u64(v.ns);
    body.push(v.verdict as u8);
    let (code_only, guess) = (v.code_only, v.guess);
    for number in [v.copied, v.kept, v.recorded, v.depth] {
        body.put_u64(number);
    }
    for number in [code_only.frames, code_only.right, guess.frames, guess.right] {
        body.put_u64(number);
    }
    if v.verdict != Verdict::Identical {
        body.push(v.own_end);
        body.push(v.copy_end);
        put_frames(&v.own, body);
        put_frames(&v.copy, body);
    }
}

/// Decodes it.
pub(super) fn take(f: &mut Fields<'_>) -> Result<Comparison, Malformed> {
    let (process, tid, thread_seq, ns) = (f.u32()?, f.u32()?, f.u32()?, f.u64()?);
    let mut comparison = Comparison {
        process,
        tid,
        thread_seq,
        ns,
        verdict: Verdict::from_number(f.byte()?).ok_or("an unknown verdict")?,
        copied: f.u64()?,
        kept: f.u64()?,
        recorded: f.u64()?,
        depth: f.u64()?,
        code_only: Recovered { frames: f.u64()?, right: f.u64()? },
        guess: Recovered { frames: f.u64()?, right: f.u64()? },
        ..Comparison::default()
    };
    if comparison.verdict != Verdict::Identical {
        (comparison.own_end, comparison.copy_end) = (f.byte()?, f.byte()?);
        (comparison.own, comparison.copy) = (frames(f)?, frames(f)?);
    }
    Ok(comparison)
}

/// Each as the difference to the previous one.
fn put_frames(frames: &[u64], body: &mut Vec<u8>) {
    let frames = &frames[..frames.len().min(FRAMES_MAX)];
    body.put_u64(frames.len() as u64);
    let mut last = 0u64;
    for word in frames.iter().map(|word| word.rotate_left(3)) {
        body.put_i64(word.wrapping_sub(last) as i64);
        last = word;
    }
}

fn frames(f: &mut Fields<'_>) -> Result<Vec<u64>, Malformed> {
    let mut last = 0u64;
    f.list(|f| {
        last = last.wrapping_add(f.i64()? as u64);
        Ok(last.rotate_right(3))
    })
}
