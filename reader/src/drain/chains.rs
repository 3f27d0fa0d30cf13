//! The stacks of one region: each chunk holds a chain, in which a record may refer to the one before.
//!
//! A chunk comes in order, but not always at once, and chunks of one thread come in any order: so there is a decoder
//! per chunk, and memory is bounded by the pool (1 KiB and a stack per chunk in use).

use std::collections::BTreeMap;

use shm_format::{ChunkInfo, EncodedStack, RecordRef, StackDecoder, StackHead, Undecodable};

/// The decoders of a region's chunks.
#[derive(Default)]
pub(crate) struct Chains {
    chunks: BTreeMap<u32, Chain>,
    /// Room for a stack outside the chains.
    aside: Vec<u64>,
}

struct Chain {
    generation: u64,
    decoder: StackDecoder,
    /// The last stack, from the root; may be longer than that.
    frames: Vec<u64>,
}

impl Chains {
    /// The head and the frames, from the root, of a record with the stack `encoded`.
    pub(super) fn decode(
        &mut self,
        chunk: &ChunkInfo,
        record: &RecordRef<'_>,
        encoded: &[u8],
    ) -> Result<(StackHead, &[u64]), Undecodable> {
        let generation = chunk.generation;
        let chain = self.chunks.entry(chunk.index).or_insert_with(|| Chain::new(generation, Vec::new()));
        if chain.generation != generation {
            *chain = Chain::new(generation, std::mem::take(&mut chain.frames));
        }
        let stack = EncodedStack::parse(encoded).ok_or(Undecodable::Malformed)?;
        let depth = stack.depth();
        let frames = if stack.is_aside() { &mut self.aside } else { &mut chain.frames };
        frames.resize(frames.len().max(depth), 0);
        if stack.is_aside() {
            stack.decode_aside(frames)?;
        } else {
            chain.decoder.decode(&stack, record.sequence, frames)?;
        }
        Ok((stack.head, &frames[..depth]))
    }
}

impl Chain {
    fn new(generation: u64, frames: Vec<u64>) -> Self {
        Self { generation, decoder: StackDecoder::new(), frames }
    }
}
