//! The names of a profile's addresses, stored in the profile so that it can be read on any machine.
//!
//! A section is a run of blocks after the events. It is used only if complete: one that is truncated or inconsistent is ignored, and the
//! profile is read as if it had none.

use std::io::{Read, Write};
use std::mem::take;
use std::path::PathBuf;

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;

use super::block::{BLOCK_MAX, BLOCK_NAMES, frame_block};
use super::codec::{path, put_path};
use super::event::FileIdentity;
use super::fields::{Fields, Malformed, Put, PutText};
use crate::names::{NameId, Names};
use crate::word_map::WordMap;

/// Version of the blocks' contents.
const VERSION: u8 = 1;
/// Flags of a block: it begins the section, it ends the section, its entries are compressed.
const FIRST: u8 = 1;
const LAST: u8 = 2;
const PACKED: u8 = 4;
const TEXTS: u8 = 1;
const FRAMES: u8 = 2;
const BINARY: u8 = 3;
const ADDRESSES: u8 = 4;
/// Target size of the entries of a block, and of one entry, in bytes.
const BLOCK_TARGET: usize = 256 << 10;
const ENTRY_TARGET: usize = 32 << 10;
/// Most times its size that a block unpacks to: what a file can make a reader keep is bounded by its size.
const MOST_TIMES: usize = 64;

/// Where the names of a binary were found; as `symbolize::Origin` says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredOrigin {
    /// 0: DWARF of a file, 1: symbol tables, 2: nowhere, the file has none, 3: nowhere, the file was another one,
    /// 4: nowhere, the file could not be read.
    pub kind: u8,
    /// 0: the file, 3: its build-id, 4: the reason.
    pub detail: Vec<u8>,
}

/// What binary the addresses that follow belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredBinary {
    /// Where it was.
    pub path: PathBuf,
    /// Its build-id; empty if it had none.
    pub build_id: Vec<u8>,
    /// The file, as its modules tell.
    pub file: Option<FileIdentity>,
    /// Where the names were found.
    pub origin: StoredOrigin,
    /// The addresses, ascending, as the ELF file numbers them.
    pub addresses: Vec<u64>,
    /// Where the frames of each address end in `frames`; they begin where those before it end.
    pub ends: Vec<u32>,
    /// Numbers of frames, innermost first.
    pub frames: Vec<u32>,
}

/// A function at a place in the source; texts by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoredFrame {
    /// Readable name.
    pub function: u32,
    /// Linker name.
    pub linkage: u32,
    /// Source file.
    pub file: Option<u32>,
    /// Source line, 0 if unknown.
    pub line: u32,
    /// It is inlined into the next one.
    pub inlined: bool,
}

/// A section that was read.
#[derive(Debug, Default)]
pub struct NameSection {
    /// All texts.
    pub texts: Vec<String>,
    /// All frames; their texts exist.
    pub frames: Vec<StoredFrame>,
    /// The binaries; their frames exist.
    pub binaries: Vec<StoredBinary>,
}

/// Assembles a section from its blocks.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    open: Option<NameSection>,
    whole: Option<NameSection>,
}

impl Assembly {
    /// Takes in the payload of a block.
    pub(super) fn block(&mut self, payload: &[u8]) {
        let Some((&[version, flags], body)) = payload.split_first_chunk::<2>() else { return };
        if flags & FIRST != 0 {
            self.open = Some(NameSection::default());
        }
        // What went wrong once goes on to the end of the section.
        let Some(mut section) = self.open.take() else { return };
        if version != VERSION || section.entries(body, flags).is_err() {
            return;
        }
        let slot = if flags & LAST != 0 { &mut self.whole } else { &mut self.open };
        *slot = Some(section);
    }

    /// The last section that is whole.
    pub(super) fn finish(self) -> Option<NameSection> {
        self.whole
    }
}

impl NameSection {
    fn entries(&mut self, body: &[u8], flags: u8) -> Result<(), Malformed> {
        let mut unpacked = Vec::new();
        let entries = if flags & PACKED != 0 {
            let most = body.len().saturating_mul(MOST_TIMES).min(BLOCK_MAX);
            let mut bounded = ZlibDecoder::new(body).take(most as u64 + 1);
            bounded.read_to_end(&mut unpacked).map_err(|_| "names cannot be unpacked")?;
            if unpacked.len() > most {
                return Err("names unpack to too much");
            }
            &unpacked
        } else {
            body
        };
        let mut fields = Fields(entries);
        while !fields.0.is_empty() {
            let tag = fields.byte()?;
            let len = usize::try_from(fields.u64()?).map_err(|_| "an entry is too long")?;
            let f = &mut Fields(fields.take(len)?);
            match tag {
                TEXTS => self.texts.append(&mut f.list(Fields::string)?),
                FRAMES => self.add_frames(f)?,
                BINARY => self.binaries.push(binary(f)?),
                ADDRESSES => self.add_addresses(f)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn add_frames(&mut self, f: &mut Fields<'_>) -> Result<(), Malformed> {
        let texts = self.texts.len() as u32;
        let known = |text: u32| if text < texts { Ok(text) } else { Err("a name is missing") };
        let mut frames = f.list(|f| {
            let (function, linkage) = (known(f.u32()?)?, known(f.u32()?)?);
            let file = f.u32()?.checked_sub(1).map(known).transpose()?;
            let packed = f.u64()?;
            let line = u32::try_from(packed >> 1).map_err(|_| "a line is out of range")?;
            Ok(StoredFrame { function, linkage, file, line, inlined: packed & 1 == 1 })
        })?;
        self.frames.append(&mut frames);
        Ok(())
    }

    fn add_addresses(&mut self, f: &mut Fields<'_>) -> Result<(), Malformed> {
        let known = self.frames.len() as u32;
        let binary = self.binaries.last_mut().ok_or("addresses without a binary")?;
        let count = f.u64()?;
        let mut address = 0u64;
        for _ in 0..count {
            address = address.wrapping_add(f.u64()?);
            let frames = f.list(Fields::u32)?;
            let ascends = binary.addresses.last().is_none_or(|&last| last < address);
            if !ascends || frames.is_empty() || frames.iter().any(|&frame| frame >= known) {
                return Err("addresses that do not hold together");
            }
            binary.addresses.push(address);
            binary.frames.extend(frames);
            binary.ends.push(u32::try_from(binary.frames.len()).map_err(|_| "too many frames")?);
        }
        Ok(())
    }
}

fn binary(f: &mut Fields<'_>) -> Result<StoredBinary, Malformed> {
    Ok(StoredBinary {
        path: path(f)?,
        build_id: f.bytes()?.to_vec(),
        file: match f.byte()? {
            0 => None,
            _ => Some(FileIdentity { len: f.u64()?, modified_ns: f.i64()?, inode: f.u64()? }),
        },
        origin: StoredOrigin { kind: f.byte()?, detail: f.bytes()?.to_vec() },
        ..StoredBinary::default()
    })
}

/// A function at a place in the source, to be stored.
#[derive(Clone, Copy, Debug)]
pub struct NamedFrame<'a> {
    /// Readable name.
    pub function: &'a str,
    /// Linker name.
    pub linkage: &'a str,
    /// Source file.
    pub file: Option<&'a str>,
    /// Source line, 0 if unknown.
    pub line: u32,
    /// It is inlined into the next one.
    pub inlined: bool,
}

/// Makes a section: for each binary [`NameSectionWriter::binary`], then its addresses in their order.
#[derive(Debug, Default)]
pub struct NameSectionWriter {
    /// Blocks that are done.
    out: Vec<u8>,
    /// Entries of the next one.
    entries: Vec<u8>,
    texts: Names,
    frames: WordMap<StoredFrame, u32>,
    new_texts: Pending,
    new_frames: Pending,
    addresses: Pending,
    last_address: u64,
}

/// The items of an entry to come.
#[derive(Debug, Default)]
struct Pending {
    count: u64,
    items: Vec<u8>,
}

impl NameSectionWriter {
    /// Begins a binary; its addresses are given one by one.
    pub fn binary(&mut self, head: &StoredBinary) {
        self.put_addresses();
        let mut body = Vec::new();
        put_path(&head.path, &mut body);
        body.put_bytes(&head.build_id);
        body.push(head.file.is_some().into());
        if let Some(file) = &head.file {
            body.put_u64(file.len);
            body.put_i64(file.modified_ns);
            body.put_u64(file.inode);
        }
        body.push(head.origin.kind);
        body.put_bytes(&head.origin.detail);
        self.entry(BINARY, &body);
    }

    /// The frames of the next address, innermost first, at least one.
    pub fn address<'a>(&mut self, address: u64, frames: impl ExactSizeIterator<Item = NamedFrame<'a>>) {
        let count = frames.len() as u64;
        let numbers: Vec<u32> = frames.map(|frame| self.frame(&frame)).collect();
        let items = &mut self.addresses.items;
        items.put_u64(address.wrapping_sub(self.last_address));
        items.put_u64(count);
        numbers.into_iter().for_each(|number| items.put_u32(number));
        self.addresses.count += 1;
        self.last_address = address;
        if self.addresses.items.len() >= ENTRY_TARGET {
            self.put_addresses();
        }
    }

    /// All blocks, as they stand in the file.
    pub fn finish(mut self) -> Vec<u8> {
        self.put_addresses();
        self.block(LAST);
        self.out
    }

    fn text(&mut self, text: &str) -> u32 {
        let before = self.texts.len();
        let NameId(number) = self.texts.intern(text);
        if self.texts.len() > before {
            self.new_texts.items.put_bytes(text.as_bytes());
            self.new_texts.count += 1;
            if self.new_texts.items.len() >= ENTRY_TARGET {
                self.put_texts();
            }
        }
        number
    }

    fn frame(&mut self, frame: &NamedFrame<'_>) -> u32 {
        let &NamedFrame { function, linkage, file, line, inlined } = frame;
        let (function, linkage) = (self.text(function), self.text(linkage));
        let file = file.map(|file| self.text(file));
        let frame = StoredFrame { function, linkage, file, line, inlined };
        let next = self.frames.len() as u32;
        let number = *self.frames.entry(frame).or_insert(next);
        if number == next {
            let items = &mut self.new_frames.items;
            items.put_u32(function);
            items.put_u32(linkage);
            items.put_u64(file.map_or(0, |file| u64::from(file) + 1));
            items.put_u64(u64::from(line) << 1 | u64::from(inlined));
            self.new_frames.count += 1;
            if self.new_frames.items.len() >= ENTRY_TARGET {
                self.put_frames();
            }
        }
        number
    }

    // What an entry refers to comes before it.

    fn put_texts(&mut self) {
        let texts = take(&mut self.new_texts);
        self.list(TEXTS, texts);
    }

    fn put_frames(&mut self) {
        self.put_texts();
        let frames = take(&mut self.new_frames);
        self.list(FRAMES, frames);
    }

    fn put_addresses(&mut self) {
        self.put_frames();
        let addresses = take(&mut self.addresses);
        self.last_address = 0;
        self.list(ADDRESSES, addresses);
    }

    fn list(&mut self, tag: u8, Pending { count, items }: Pending) {
        if count > 0 {
            let mut body = Vec::with_capacity(items.len() + 10);
            body.put_u64(count);
            body.extend_from_slice(&items);
            self.entry(tag, &body);
        }
    }

    fn entry(&mut self, tag: u8, body: &[u8]) {
        self.entries.push(tag);
        self.entries.put_u64(body.len() as u64);
        self.entries.extend_from_slice(body);
        if self.entries.len() >= BLOCK_TARGET {
            self.block(0);
        }
    }

    fn block(&mut self, flags: u8) {
        let entries = take(&mut self.entries);
        let flags = flags | if self.out.is_empty() { FIRST } else { 0 };
        let mut packer = ZlibEncoder::new(vec![VERSION, flags | PACKED], Compression::new(5));
        // A vector takes all that is written to it.
        let packed = packer.write_all(&entries).and_then(|()| packer.finish()).unwrap_or_default();
        let small = (packed.len().saturating_sub(2)).saturating_mul(MOST_TIMES) < entries.len();
        let payload = if small { [&[VERSION, flags][..], &entries].concat() } else { packed };
        frame_block(BLOCK_NAMES, &payload, &mut self.out);
    }
}

/// What a section says of where names were found, as a path.
impl StoredOrigin {
    /// The file.
    pub fn file(&self) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        PathBuf::from(std::ffi::OsStr::from_bytes(&self.detail))
    }
}

#[cfg(test)]
mod tests {
    use selfwind_tests::random::Random;

    use super::*;

    /// Many binaries, addresses and names; enough for several blocks.
    fn section() -> Vec<u8> {
        let mut writer = NameSectionWriter::default();
        for number in 0..3_u8 {
            writer.binary(&StoredBinary {
                path: format!("/bin/{number}").into(),
                build_id: vec![number; usize::from(number)],
                file: (number == 0).then_some(FileIdentity { len: 5, modified_ns: -7, inode: 9 }),
                origin: StoredOrigin { kind: number, detail: vec![1, 2] },
                ..StoredBinary::default()
            });
            for address in 0..4000_u64 {
                let (outer, inner) =
                    (format!("outer{}", address / 7), format!("inner{:0>40}", address * 77_777));
                let frame = |text| NamedFrame {
                    function: text,
                    linkage: text,
                    file: Some("f.c"),
                    line: 3,
                    inlined: true,
                };
                let last = NamedFrame { file: None, line: u32::MAX >> 1, inlined: false, ..frame(&outer) };
                writer.address(address * 1000 + u64::from(number), [frame(&inner), last].into_iter());
            }
        }
        writer.finish()
    }

    /// The payloads of a section's blocks.
    fn payloads(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut payloads = Vec::new();
        while let Some((head, rest)) = bytes.split_first_chunk::<12>() {
            let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
            payloads.push(rest[..len].to_vec());
            bytes = &rest[len..];
        }
        payloads
    }

    fn assemble<'a>(payloads: impl IntoIterator<Item = &'a Vec<u8>>) -> Option<NameSection> {
        let mut assembly = Assembly::default();
        payloads.into_iter().for_each(|payload| assembly.block(payload));
        assembly.finish()
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = section();
        let payloads = payloads(&bytes);
        assert!(payloads.len() > 1, "{} blocks", payloads.len());
        let section = assemble(&payloads).unwrap();
        assert_eq!(section.binaries.len(), 3);
        for (number, binary) in section.binaries.iter().enumerate() {
            assert_eq!(binary.path, PathBuf::from(format!("/bin/{number}")));
            assert_eq!((binary.build_id.len(), binary.file.is_some()), (number, number == 0));
            assert_eq!(binary.addresses.len(), 4000);
            for (index, &address) in binary.addresses.iter().enumerate() {
                assert_eq!(address, index as u64 * 1000 + number as u64);
                let end = binary.ends[index] as usize;
                let texts = binary.frames[end - 2..end].iter().map(|&frame| {
                    let frame = section.frames[frame as usize];
                    (section.texts[frame.function as usize].clone(), frame.file.is_some(), frame.inlined)
                });
                let expected = [
                    (format!("inner{:0>40}", index * 77_777), true, true),
                    (format!("outer{}", index / 7), false, false),
                ];
                assert_eq!(texts.collect::<Vec<_>>(), expected);
            }
        }
        let mut texts = section.texts.clone();
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), section.texts.len(), "each text is stored once");
    }

    #[test]
    fn a_part_of_a_section_is_none_and_the_last_whole_one_counts() {
        let payloads = payloads(&section());
        let (last, before) = payloads.split_last().unwrap();
        assert!(!before.is_empty());
        assert!(assemble(before).is_none() && assemble([last]).is_none());
        assert!(assemble(before.iter().chain([last])).is_some());
        assert!(assemble(before.iter().chain(&payloads)).is_some());
        assert!(assemble(payloads.iter().chain(before)).is_some());
        let mut later = payloads.clone();
        later[0][0] = VERSION + 1;
        assert!(assemble(&later).is_none());
    }

    #[test]
    fn damage_is_no_names_and_no_panic() {
        let intact = payloads(&section());
        let mut random = Random::new(0x1234_5678_9abc_def1);
        let mut next = |below| random.below(below);
        for round in 0..200 {
            let mut payloads = intact.clone();
            let block = next(payloads.len());
            // Damage below the compression, too, which would find it by itself.
            if round % 2 == 0 && payloads[block][1] & PACKED != 0 {
                let mut entries = Vec::new();
                ZlibDecoder::new(&payloads[block][2..]).read_to_end(&mut entries).unwrap();
                payloads[block].truncate(2);
                payloads[block][1] &= !PACKED;
                payloads[block].extend(entries);
            }
            for _ in 0..3 {
                let at = next(payloads[block].len());
                payloads[block][at] = next(256) as u8;
            }
            let cut = next(payloads[block].len());
            if round % 5 == 0 {
                payloads[block].truncate(cut);
            }
            if let Some(section) = assemble(&payloads) {
                let texts = section.texts.len() as u32;
                assert!(section.frames.iter().all(|frame| frame.function < texts && frame.linkage < texts));
            }
        }
    }

    #[test]
    fn a_block_does_not_unpack_to_much_more_than_it_is() {
        let mut packer = ZlibEncoder::new(vec![VERSION, FIRST | LAST | PACKED], Compression::best());
        let mut body = vec![TEXTS];
        let texts = vec![b'x'; 600 << 10];
        body.put_u64(texts.len() as u64);
        body.extend(texts);
        packer.write_all(&body).unwrap();
        assert!(assemble(&[packer.finish().unwrap()]).is_none());
        // One that the writer makes of equal names is not packed, and read.
        let mut writer = NameSectionWriter::default();
        writer.binary(&StoredBinary::default());
        let name = "x".repeat(60_000);
        for address in 0..10 {
            let text = format!("{name}{address}");
            let frame = NamedFrame { function: &text, linkage: &text, file: None, line: 0, inlined: false };
            writer.address(address, [frame].into_iter());
        }
        let section = assemble(&payloads(&writer.finish())).unwrap();
        assert_eq!(section.texts.len(), 10);
    }
}
