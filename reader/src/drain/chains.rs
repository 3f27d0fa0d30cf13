//! The stacks of one region: each chunk holds a chain, in which a record may refer to the one before.
//!
//! A chunk comes in order, but not always at once, and chunks of one thread come in any order: so there is a decoder
//! per chunk, and memory is bounded by the pool (2 KiB and a stack per chunk in use).

use shm_format::{ChunkInfo, EncodedStack, RecordRef, StackDecoder, StackHead, Undecodable};

/// The decoders of a region's chunks.
#[derive(Default)]
pub(crate) struct Chains {
    /// By index of the chunk.
    chunks: Vec<Option<Box<Chain>>>,
    /// Room for a stack outside the chains.
    aside: Vec<u64>,
}

struct Chain {
    generation: u64,
    decoder: StackDecoder,
    /// The last stack, from the root; may be longer than that.
    frames: Vec<u64>,
}

/// A stack, put together.
pub(super) struct WholeStack<'a> {
    pub(super) head: StackHead,
    /// From the root.
    pub(super) frames: &'a [u64],
    /// So many of them are those of a stack before.
    pub(super) kept: usize,
    /// The number of that among the records of its thread.
    pub(super) before: Option<u64>,
    /// None refers to this one.
    pub(super) is_aside: bool,
}

impl Chains {
    /// The stack of a record that has `encoded` in it.
    pub(super) fn decode(
        &mut self,
        chunk: &ChunkInfo,
        record: &RecordRef<'_>,
        encoded: &[u8],
    ) -> Result<WholeStack<'_>, Undecodable> {
        let (index, generation) = (chunk.index as usize, chunk.generation);
        if self.chunks.len() <= index {
            self.chunks.resize_with(index + 1, || None);
        }
        let chain = self.chunks[index].get_or_insert_with(|| Box::new(Chain::new(generation, Vec::new())));
        if chain.generation != generation {
            **chain = Chain::new(generation, std::mem::take(&mut chain.frames));
        }
        let stack = EncodedStack::parse(encoded).ok_or(Undecodable::Malformed)?;
        let depth = stack.depth();
        let frames = if stack.is_aside() { &mut self.aside } else { &mut chain.frames };
        if frames.len() < depth {
            frames.resize(depth, 0);
        }
        if stack.is_aside() {
            stack.decode_aside(frames)?;
        } else {
            chain.decoder.decode(&stack, record.sequence, frames)?;
        }
        Ok(WholeStack {
            head: stack.head,
            frames: &frames[..depth],
            kept: stack.kept(),
            before: stack.before(record.sequence),
            is_aside: stack.is_aside(),
        })
    }
}

impl Chain {
    fn new(generation: u64, frames: Vec<u64>) -> Self {
        Self { generation, decoder: StackDecoder::new(), frames }
    }
}
