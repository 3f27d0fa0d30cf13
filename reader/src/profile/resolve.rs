//! From the addresses of raw stacks to locations in binaries.

use unwind::Frame;

use super::generated::Generated;
use super::kernel::{KERNEL, KernelNames};
use super::stacks::{Interned, RawStack, WordMap};
use super::{Location, Profile, Stack, StackFrame};
use crate::mappings::Replay;
use crate::profile_file::WAKE_LATENCY;

/// Interns locations and stacks.
#[derive(Default)]
pub(super) struct Resolver {
    locations: WordMap<(u32, u64), u32>,
    stacks: Interned,
    words: Vec<u64>,
}

impl Resolver {
    /// The place of the stack in the profile.
    pub(super) fn stack(
        &mut self,
        profile: &mut Profile,
        stack: &RawStack<'_>,
        replay: &Replay<'_>,
        generated: &mut Generated,
        kernel: &mut KernelNames,
    ) -> u32 {
        self.words.clear();
        self.words.push(u64::from(stack.end));
        let first = profile.frames.len();
        for &address in stack.kernel {
            let binary = (address != WAKE_LATENCY).then(|| kernel.binary(profile, address));
            self.push(profile, binary, address, KERNEL);
        }
        for &word in stack.frames {
            let frame = Frame::from_bits(word);
            let address = frame.lookup_address();
            let (binary, address) = match replay.find(address) {
                Some(mapping) => (Some(mapping.binary), mapping.file_address(address)),
                None => (generated.binary(profile, stack.process), address),
            };
            self.push(profile, binary, address, frame.found_by() as u8);
        }
        let (number, new) = self.stacks.intern(&self.words);
        if new {
            let frames = first as u32..profile.frames.len() as u32;
            profile.stacks.push(Stack { frames, end: stack.end });
        } else {
            profile.frames.truncate(first);
        }
        number
    }

    fn push(&mut self, profile: &mut Profile, binary: Option<u32>, address: u64, found_by: u8) {
        let location = self.location(profile, binary, address);
        self.words.push(u64::from(location) << 8 | u64::from(found_by));
        profile.frames.push(StackFrame { location, found_by });
    }

    fn location(&mut self, profile: &mut Profile, binary: Option<u32>, address: u64) -> u32 {
        let next = profile.locations.len() as u32;
        let place = *self.locations.entry((binary.unwrap_or(u32::MAX), address)).or_insert(next);
        if place == next {
            profile.locations.push(Location { binary, address, places: 0..0 });
        }
        place
    }
}
