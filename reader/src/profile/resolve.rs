//! From the addresses of raw stacks to locations in binaries.

use unwind::Frame;

use super::generated::Generated;
use super::kernel::{KERNEL, KernelNames};
use super::stacks::{ROOT, RawItem, RawStacks};
use super::{Location, Profile, Stack, StackFrame};
use crate::mappings::{History, Replay};
use crate::profile_file::WAKE_LATENCY;
use crate::word_map::WordMap;

/// Resolves raw stacks, each of their nodes once.
pub(super) struct Resolver<'a> {
    pub(super) profile: &'a mut Profile,
    pub(super) generated: &'a mut Generated,
    pub(super) kernel: &'a mut KernelNames,
    /// By place of the process.
    pub(super) histories: &'a [History],
}

impl Resolver<'_> {
    /// Finds the binary of every address at the time of its stack; gives the place of each raw stack's stack.
    pub(super) fn resolve(mut self, raw: &RawStacks) -> Vec<u32> {
        let nodes = self.nodes(raw);
        let mut stacks: WordMap<(u32, u8), u32> = WordMap::default();
        let mut place = |&(node, end): &(u32, u8)| {
            let next = self.profile.stacks.len() as u32;
            let innermost = nodes[node as usize];
            let place = *stacks.entry((innermost, end)).or_insert(next);
            if place == next {
                self.profile.stacks.push(Stack { innermost, end });
            }
            place
        };
        let places = raw.list.iter().map(&mut place).collect();
        self.profile.paths.seal();
        places
    }

    /// The node of the profile's paths for each raw node.
    fn nodes(&mut self, raw: &RawStacks) -> Vec<u32> {
        // The place of each node, which stands at its root. Those below come first.
        let mut places: Vec<(u32, u32)> = Vec::with_capacity(raw.nodes());
        for number in 0..raw.nodes() as u32 {
            places.push(match raw.node(number) {
                (_, RawItem::Place { process, epoch }) => (process, epoch),
                (below, _) => places[below as usize],
            });
        }
        // Each history is replayed once, forwards.
        let mut order: Vec<u32> = (0..raw.nodes() as u32).collect();
        order.sort_unstable_by_key(|&number| (places[number as usize], number));
        let mut nodes = vec![ROOT; raw.nodes()];
        let mut locations = WordMap::default();
        let mut replay: Option<(u32, Replay<'_>)> = None;
        for number in order {
            let (process, epoch) = places[number as usize];
            if replay.as_ref().is_none_or(|&(other, _)| other != process) {
                replay = Some((process, self.histories[process as usize].replay()));
            }
            let Some((_, replay)) = &mut replay else { continue };
            replay.advance(epoch);
            let (below, item) = raw.node(number);
            let (binary, address, found_by) = match item {
                RawItem::Place { .. } => continue,
                RawItem::Kernel(WAKE_LATENCY) => (None, WAKE_LATENCY, KERNEL),
                RawItem::Kernel(address) => {
                    (Some(self.kernel.binary(self.profile, address)), address, KERNEL)
                }
                RawItem::Frame(word) => {
                    let frame = Frame::from_bits(word);
                    let address = frame.lookup_address();
                    let (binary, address) = match replay.find(address) {
                        Some(mapping) => (Some(mapping.binary), mapping.file_address(address)),
                        None => (self.generated.binary(self.profile, process), address),
                    };
                    (binary, address, frame.found_by() as u8)
                }
            };
            let location = self.location(&mut locations, binary, address);
            let below = nodes[below as usize];
            nodes[number as usize] = self.profile.paths.push(below, StackFrame { location, found_by });
        }
        nodes
    }

    fn location(&mut self, known: &mut WordMap<(u32, u64), u32>, binary: Option<u32>, address: u64) -> u32 {
        let next = self.profile.locations.len() as u32;
        let place = *known.entry((binary.unwrap_or(u32::MAX), address)).or_insert(next);
        if place == next {
            self.profile.locations.push(Location { binary, address, places: 0..0 });
        }
        place
    }
}
