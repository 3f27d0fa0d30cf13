//! Decodes the stacks of one region. The stacks of a chunk are delta-encoded: a record may refer to the one before.
//!
//! The records of a chunk arrive in order but may be spread over several passes, and the chunks of one thread arrive in
//! any order. So each chunk has its own decoder, and memory is bounded by the pool: 2 KiB and a stack per chunk in use.

use shm_format::{ChunkInfo, EncodedStack, RecordRef, StackDecoder, StackHead, Undecodable};

/// The decoders of a region's chunks.
#[derive(Default)]
pub(crate) struct Chains {
    /// By chunk index.
    chunks: Vec<Option<Box<Chain>>>,
    /// Buffer for standalone stacks.
    standalone: Vec<u64>,
}

struct Chain {
    generation: u64,
    decoder: StackDecoder,
    /// The last stack, root first; leftovers of longer stacks may follow it.
    frames: Vec<u64>,
}

/// A decoded stack.
pub(super) struct DecodedStack<'a> {
    pub(super) head: StackHead,
    /// Root first.
    pub(super) frames: &'a [u64],
    /// How many outer frames it shares with an earlier stack.
    pub(super) shared: usize,
    /// Sequence number of that earlier stack in its thread.
    pub(super) base: Option<u64>,
    /// No other stack refers to this one.
    pub(super) is_standalone: bool,
}

impl Chains {
    /// Decodes the stack `encoded` of a record.
    pub(super) fn decode(
        &mut self,
        chunk: &ChunkInfo,
        record: &RecordRef<'_>,
        encoded: &[u8],
    ) -> Result<DecodedStack<'_>, Undecodable> {
        let chain = chain(&mut self.chunks, chunk);
        let stack = EncodedStack::parse(encoded).ok_or(Undecodable::Malformed)?;
        let depth = stack.depth();
        let frames = if stack.is_standalone() { &mut self.standalone } else { &mut chain.frames };
        if frames.len() < depth {
            frames.resize(depth, 0);
        }
        if stack.is_standalone() {
            stack.decode_standalone(frames)?;
        } else {
            chain.decoder.decode(&stack, record.sequence, frames)?;
        }
        Ok(DecodedStack {
            head: stack.head,
            frames: &frames[..depth],
            shared: stack.shared(),
            base: stack.before(record.sequence),
            is_standalone: stack.is_standalone(),
        })
    }
}

/// The chain of a chunk, without stacks of an earlier generation.
fn chain<'a>(chunks: &'a mut Vec<Option<Box<Chain>>>, chunk: &ChunkInfo) -> &'a mut Chain {
    let (index, generation) = (chunk.index as usize, chunk.generation);
    if chunks.len() <= index {
        chunks.resize_with(index + 1, || None);
    }
    let chain = chunks[index].get_or_insert_with(|| Box::new(Chain::new(generation)));
    if chain.generation != generation {
        (chain.generation, chain.decoder) = (generation, StackDecoder::new());
    }
    chain
}

impl Chain {
    fn new(generation: u64) -> Self {
        Self { generation, decoder: StackDecoder::new(), frames: Vec::new() }
    }
}
