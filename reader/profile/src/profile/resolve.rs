//! Resolves the addresses of raw stacks to locations in binaries, and adds them to the paths of the profile.

use unwind::Frame;

use super::bucket::{KERNEL, Stack, StackFrame};
use super::code::Location;
use super::contents::Profile;
use super::generated::Generated;
use super::interpreted::InterpretedFunctions;
use super::kernel::KernelNames;
use super::stacks::RawStack;
use crate::mappings::History;
use crate::profile_file::WALL_MARKS;
use crate::word_map::WordMap;

/// Maximum number of remembered frame words: continuously generated code creates ever new epochs.
const REMEMBERED: usize = 1 << 20;

/// Everything resolved so far.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// By layout and frame word.
    frames: WordMap<(u32, u64), StackFrame>,
    kernel: WordMap<u64, StackFrame>,
    /// By binary and address in it.
    locations: WordMap<(u32, u64), u32>,
    /// By innermost node and end.
    stacks: WordMap<(u32, u8), u32>,
    /// The last resolved stacks, by the low bits of their threads: the next stack of a thread shares its beginning.
    last: Vec<Last>,
}

/// Number of entries in `last`.
const THREADS: u32 = 256;

/// A resolved stack.
#[derive(Debug, Default)]
struct Last {
    layout: u32,
    /// Frame words, root first, and their frames.
    words: Vec<u64>,
    path: Vec<StackFrame>,
}

/// Finds the binary of every address at the time of its stack.
pub(super) struct Resolver<'a> {
    pub(super) resolved: &'a mut Known,
    pub(super) profile: &'a mut Profile,
    pub(super) generated: &'a mut Generated,
    pub(super) interpreted: &'a InterpretedFunctions,
    pub(super) kernel: &'a mut KernelNames,
    /// By process index.
    pub(super) histories: &'a [History],
}

impl Resolver<'_> {
    /// The index of a raw stack in the profile's stacks. Raw stacks of several processes may have the same.
    pub(super) fn stack(mut self, raw: &RawStack<'_>) -> u32 {
        let slot = (raw.thread % THREADS) as usize;
        self.resolved.last.resize_with(THREADS as usize, Last::default);
        let mut last = std::mem::take(&mut self.resolved.last[slot]);
        let pairs = raw.frames.iter().zip(&last.words);
        let same = last.layout == raw.layout;
        let shared = if same { pairs.take_while(|(a, b)| a == b).count() } else { 0 };
        last.layout = raw.layout;
        last.words.truncate(shared);
        last.path.truncate(shared);
        for &word in &raw.frames[shared..] {
            last.words.push(word);
            last.path.push(self.frame(raw.process, raw.epoch, raw.layout, word));
        }
        last.path.extend(raw.kernel.iter().rev().map(|&address| self.kernel_frame(address)));
        let innermost = self.profile.paths.push(&last.path, shared);
        last.path.truncate(last.words.len());
        self.resolved.last[slot] = last;
        let next = self.profile.stacks.len() as u32;
        let index = *self.resolved.stacks.entry((innermost, raw.end)).or_insert(next);
        if index == next {
            self.profile.stacks.push(Stack { innermost, end: raw.end });
        }
        index
    }

    /// Finds the locations of frames.
    pub(super) fn locate(mut self, process: u32, epoch: u32, layout: u32, frames: &[u64]) {
        for &word in frames {
            self.frame(process, epoch, layout, word);
        }
    }

    fn frame(&mut self, process: u32, epoch: u32, layout: u32, word: u64) -> StackFrame {
        if let Some(&known) = self.resolved.frames.get(&(layout, word)) {
            return known;
        }
        let frame = Frame::from_bits(word);
        let address = frame.lookup_address();
        let history = self.histories.get(process as usize);
        let (binary, address) = match frame.as_interpreted() {
            Some(interpreted) => self.interpreted.locate(process, interpreted),
            None => match history.and_then(|history| history.find(epoch, address)) {
                Some(mapping) => (Some(mapping.binary), mapping.file_address(address)),
                None => (self.generated.binary(self.profile, process), address),
            },
        };
        let resolved =
            StackFrame { location: self.location(binary, address), found_by: frame.found_by() as u8 };
        if self.resolved.frames.len() >= REMEMBERED {
            self.resolved.frames.clear();
        }
        self.resolved.frames.insert((layout, word), resolved);
        resolved
    }

    fn kernel_frame(&mut self, address: u64) -> StackFrame {
        if let Some(&known) = self.resolved.kernel.get(&address) {
            return known;
        }
        // A marker frame has no binary.
        let binary = (address < WALL_MARKS).then(|| self.kernel.binary(self.profile, address));
        let resolved = StackFrame { location: self.location(binary, address), found_by: KERNEL };
        self.resolved.kernel.insert(address, resolved);
        resolved
    }

    fn location(&mut self, binary: Option<u32>, address: u64) -> u32 {
        let next = self.profile.locations.len() as u32;
        let key = (binary.unwrap_or(u32::MAX), address);
        let index = *self.resolved.locations.entry(key).or_insert(next);
        if index == next {
            self.profile.locations.push(Location { binary, address, lines: 0..0 });
        }
        index
    }
}
