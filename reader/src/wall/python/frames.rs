//! The frames of one thread state, innermost first, in runs: a run is what one call of the evaluation loop evaluates.

use python_layout::{Linkage, OWN, REFERENCE_FLAGS, instruction_index};
use unwind::{Frame, Interpreted};

use super::functions::{Code, Functions};
use super::interpreter::Interpreter;
use crate::wall::memory::RemoteMemory;

/// Upper bound of the size of a thread state: the outermost `CFrame` or `_PyCFrame` is part of it.
const STATE: u64 = 1024;
/// Maximum number of frames and calls read of one thread state.
const FRAMES: usize = 8192;
/// Why frames are missing, as the handler says it: what should be a frame is not one, or cannot be read.
const UNREADABLE: Interpreted = Interpreted { function: Interpreted::NOTHING, offset: 1 };

/// Frames of one call of the evaluation loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// An address in the native frame of that call.
    pub(super) inside: u64,
    /// Frame words, leaf first.
    pub(super) frames: Vec<u64>,
}

/// Reads frames.
pub(super) struct Frames<'a, 'f> {
    interpreter: &'a Interpreter,
    functions: &'a mut Functions,
    memory: &'a mut RemoteMemory<'f>,
    runs: Vec<Run>,
    /// The frames of the run that is being read.
    open: Vec<u64>,
    /// Frames and calls that may still be read.
    left: usize,
}

impl<'a, 'f> Frames<'a, 'f> {
    pub(super) fn new(
        interpreter: &'a Interpreter,
        functions: &'a mut Functions,
        memory: &'a mut RemoteMemory<'f>,
    ) -> Self {
        Self { interpreter, functions, memory, runs: Vec::new(), open: Vec::new(), left: FRAMES }
    }

    /// The runs of a thread state. After an unreadable frame the rest is missing, and the last run ends with a mark; if there is none,
    /// the mark is in the `innermost` native frame.
    pub(super) fn of_state(mut self, state: u64, innermost: u64) -> Vec<Run> {
        let read = match self.interpreter.layout.linkage {
            Linkage::CFrames | Linkage::CFramesAndEntries => self.c_frames(state),
            Linkage::Entries => self.entries(state),
            Linkage::Objects | Linkage::ObjectsAndCFrames => self.frame_objects(state),
        };
        if read.is_none() {
            self.open.push(Frame::interpreted(UNREADABLE).bits());
            self.close(self.runs.last().map_or(innermost, |run| run.inside));
        }
        self.runs
    }

    /// 3.13 and later: one chain of all frames, in which those of the calls themselves end the runs.
    fn entries(&mut self, state: u64) -> Option<()> {
        let layout = &self.interpreter.layout;
        let mut frame = self.memory.field(state, layout.thread_frame)?;
        while self.goes_on() {
            if frame == 0 {
                return Some(());
            }
            match self.owner(frame)? >= OWN {
                true => self.close(frame),
                false => self.push(frame)?,
            }
            frame = self.memory.field(frame, layout.frame_previous)?;
        }
        None
    }

    /// 3.11 and 3.12: a `_PyCFrame` for each call, in a chain of their own that points to the runs. An unreadable run does not
    /// affect the outer ones.
    fn c_frames(&mut self, state: u64) -> Option<()> {
        let layout = &self.interpreter.layout;
        let mut c_frame = self.memory.field(state, layout.thread_frame)?;
        while self.goes_on() {
            if c_frame == 0 || c_frame.wrapping_sub(state) < STATE {
                return Some(());
            }
            let innermost = self.memory.field(c_frame, layout.c_frame_current)?;
            let outer = self.memory.field(c_frame, layout.c_frame_previous)?;
            let behind = self.memory.field(outer, layout.c_frame_current)?;
            if self.run(innermost, behind).is_none() {
                self.open.clear();
                self.open.push(Frame::interpreted(UNREADABLE).bits());
            }
            self.close(c_frame);
            c_frame = outer;
        }
        None
    }

    /// Reads the frames from `frame` to the last one of the run, which is followed by `behind`.
    fn run(&mut self, mut frame: u64, behind: u64) -> Option<()> {
        let layout = &self.interpreter.layout;
        // A call that has just begun may have no frame yet.
        if frame == behind {
            return Some(());
        }
        while self.goes_on() {
            let owner = self.owner(frame)?;
            // The last one is marked, or is the call's own.
            let is_last = match layout.linkage {
                Linkage::CFrames => owner != 0,
                _ => owner >= OWN,
            };
            if !is_last || layout.linkage == Linkage::CFrames {
                self.push(frame)?;
            }
            frame = self.memory.field(frame, layout.frame_previous)?;
            if is_last {
                return (frame == behind).then_some(());
            }
        }
        None
    }

    /// 3.10: a frame object and a `CFrame` for each call. They are matched from the root; a call that begins or ends may have one
    /// without the other.
    fn frame_objects(&mut self, state: u64) -> Option<()> {
        let layout = &self.interpreter.layout;
        let mut frame = self.memory.field(state, layout.thread_frame)?;
        let mut frames = Vec::new();
        while frame != 0 && self.goes_on() {
            self.push(frame)?;
            frames.append(&mut self.open);
            frame = self.memory.field(frame, layout.frame_previous)?;
        }
        let mut c_frame = self.memory.field(state, layout.thread_c_frame)?;
        let mut calls = Vec::new();
        while c_frame.wrapping_sub(state) >= STATE && self.goes_on() {
            calls.push(c_frame);
            c_frame = self.memory.field(c_frame, layout.c_frame_previous)?;
        }
        if frames.len().abs_diff(calls.len()) > 1 {
            return None;
        }
        let pairs = calls.iter().rev().zip(frames.iter().rev());
        self.runs.extend(pairs.rev().map(|(&inside, &frame)| Run { inside, frames: vec![frame] }));
        Some(())
    }

    /// Counts a frame or call. The lists of a process that lies may be endless.
    fn goes_on(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left > 0
    }

    fn owner(&mut self, frame: u64) -> Option<u8> {
        self.memory.byte(frame.checked_add(self.interpreter.layout.frame_owner.into())?)
    }

    fn push(&mut self, frame: u64) -> Option<()> {
        let layout = &self.interpreter.layout;
        let code = self.memory.field(frame, layout.frame_code)? & !REFERENCE_FLAGS;
        let Code::Function(function) = self.functions.at(self.interpreter, code, self.memory)? else {
            return Some(());
        };
        let offset = match layout.linkage {
            Linkage::Objects | Linkage::ObjectsAndCFrames => {
                let last = self.memory.half(frame, layout.frame_instruction)?;
                instruction_index(i64::from(last as i32))?
            }
            _ => layout.instruction(self.memory.field(frame, layout.frame_instruction)?, code)?,
        };
        self.open.push(Frame::interpreted(Interpreted { function, offset }).bits());
        Some(())
    }

    /// Ends the run of the call that has this address in its native frame.
    fn close(&mut self, inside: u64) {
        if !self.open.is_empty() {
            self.runs.push(Run { inside, frames: std::mem::take(&mut self.open) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use python_layout::Layout;

    use super::*;

    /// Words that point at one another: whatever list is followed in them has no end.
    #[test]
    fn endless_lists_end() {
        let mut words = vec![0u64; 4096];
        let base = words.as_ptr() as u64;
        words
            .iter_mut()
            .enumerate()
            .for_each(|(index, word)| *word = base + (index as u64 * 8 + 2048) % 8192);
        let file = File::open("/proc/self/mem").unwrap();
        let by_table = |minor| Layout::of_minor(minor).unwrap();
        let entries = Layout { linkage: Linkage::Entries, ..by_table(12) };
        for layout in [by_table(10), by_table(11), by_table(12), entries] {
            let interpreter = Interpreter { layout, runtime: base, code_type: base };
            let mut memory = RemoteMemory::new(&file, base);
            let mut functions = Functions::default();
            for state in [base, base + 16_384] {
                let runs = Frames::new(&interpreter, &mut functions, &mut memory).of_state(state, base);
                assert!(runs.len() <= FRAMES, "{:?}", interpreter.layout.linkage);
            }
        }
    }
}
