//! The event that tells how a stack and its copy compare.

use super::FRAMES_MAX;
use super::fields::{Fields, Malformed, Put};

/// How the copy of a stack, unwound by the recorder, compares with the stack that the thread itself found.
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
    /// What came out.
    pub verdict: Verdict,
    /// Bytes of the stack that were copied.
    pub copied: u64,
    /// Words of them that were kept.
    pub kept: u64,
    /// Bytes of what was kept, as it was recorded.
    pub recorded: u64,
    /// Frames of the stack, those of interpreters left out.
    pub depth: u64,
    /// What is found by the addresses of code alone.
    pub code_only: Recovered,
    /// What is found by guessing.
    pub guess: Recovered,
    /// Why the walk of the thread ended. This and what follows are told only if the verdict is not [`Verdict::Identical`].
    pub own_end: u8,
    /// Why the walk of the copy ended.
    pub copy_end: u8,
    /// The thread's frames, as in [`Sample::frames`](super::Sample::frames).
    pub own: Vec<u64>,
    /// The copy's.
    pub copy: Vec<u64>,
}

/// What comparing gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// The same frames, and the same reason why there are no more.
    #[default]
    Identical = 0,
    /// The thread's frames lie further out than the copy goes, or on another stack, and as far as the copy goes they are
    /// the same.
    Cut = 1,
    /// Other frames or another reason.
    Differs = 2,
}

impl Verdict {
    /// The verdict with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Identical, Self::Cut, Self::Differs].into_iter().find(|verdict| *verdict as u8 == number)
    }
}

/// How much of a stack is found by less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Frames.
    pub frames: u64,
    /// Those of them that are the stack's, in its order.
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

/// Takes it again.
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

/// Each as the difference to the one before.
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
