//! Parses everything before and after the records: the events, and facts about the recording.
//!
//! The layout: tools/perf/Documentation/perf.data-file-format.txt of the kernel's sources.

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};

use byteorder::LittleEndian;
use linux_perf_event_reader::{Endianness, PerfEventAttr, RecordParseInfo};

use crate::error::ImportError;
use crate::fields::{Fields, until_zero};

const MAGIC: &[u8; 8] = b"PERFILE2";
const OTHER_ORDER: &[u8; 8] = b"2ELIFREP";
const HEADER: usize = 104;
/// The size field of a header for pipes.
const PIPE_HEADER: u64 = 16;
/// Bytes of an offset and a size.
const SECTION: usize = 16;
/// Maximum size of a section and of an event's description.
const SECTION_MAX: u64 = 32 << 20;
const ATTRIBUTE_MAX: u64 = 4096;

/// Features, `HEADER_*` of tools/perf/util/header.h.
const BUILD_ID: usize = 2;
const HOSTNAME: usize = 3;
const OSRELEASE: usize = 4;
const ARCH: usize = 6;
const CMDLINE: usize = 11;
const EVENT_DESC: usize = 12;
const SAMPLE_TIME: usize = 21;
const DIR_FORMAT: usize = 24;
const CLOCK_DATA: usize = 29;

/// PERF_RECORD_MISC_BUILD_ID_SIZE.
const BUILD_ID_SIZE: u16 = 1 << 15;

/// An event that was recorded.
pub(crate) struct Attribute {
    pub(crate) attr: PerfEventAttr,
    pub(crate) name: Option<String>,
    pub(crate) layout: RecordParseInfo,
}

/// One instant: by the clock of the samples, and since 1970.
#[derive(Clone, Copy)]
pub(crate) struct ClockPair {
    pub(crate) ns: u64,
    pub(crate) realtime_ns: u64,
}

/// What a file says about itself.
#[derive(Default)]
pub(crate) struct Header {
    /// Where the records begin.
    pub(crate) data: u64,
    /// Their length in bytes, as far as the file goes.
    pub(crate) data_len: u64,
    /// The file is truncated, or its recorder did not finish it.
    pub(crate) is_cut: bool,
    pub(crate) attributes: Vec<Attribute>,
    /// Indices into `attributes` by the ids that records have.
    pub(crate) by_id: HashMap<u64, usize>,
    pub(crate) host: String,
    pub(crate) release: String,
    pub(crate) arch: String,
    pub(crate) command: Vec<String>,
    pub(crate) build_ids: HashMap<Vec<u8>, Vec<u8>>,
    /// Times of the first and last sample.
    pub(crate) sample_time: Option<(u64, u64)>,
    pub(crate) clock: Option<ClockPair>,
}

#[derive(Clone, Copy)]
struct Section {
    offset: u64,
    len: u64,
}

fn section(fields: &mut Fields<'_>) -> Option<Section> {
    Some(Section { offset: fields.u64()?, len: fields.u64()? })
}

impl Header {
    pub(crate) fn read(file: &mut (impl Read + Seek)) -> Result<Self, ImportError> {
        let len = file.seek(SeekFrom::End(0)).map_err(ImportError::Read)?;
        let mut bytes = vec![0; HEADER.min(len as usize)];
        read_at(file, 0, &mut bytes).map_err(ImportError::Read)?;
        let mut fields = Fields(&bytes);
        match fields.bytes(MAGIC.len()) {
            Some(magic) if magic == MAGIC => {}
            Some(magic) if magic == OTHER_ORDER => return Err(ImportError::BigEndian),
            _ => return Err(ImportError::NotPerf),
        }
        let cut = ImportError::Header("cut off");
        if fields.u64() == Some(PIPE_HEADER) {
            return Err(ImportError::Pipe);
        }
        let attribute_len = fields.u64().ok_or(cut)?;
        let cut = || ImportError::Header("cut off");
        let attributes = section(&mut fields).ok_or_else(cut)?;
        let data = section(&mut fields).ok_or_else(cut)?;
        section(&mut fields).ok_or_else(cut)?;
        let features = fields.bytes(32).ok_or_else(cut)?;
        let room = len.checked_sub(data.offset).ok_or_else(cut)?;
        let mut header = Self { data: data.offset, ..Self::default() };
        // A recorder that was killed has not written the length.
        header.is_cut = data.len == 0 || data.len > room;
        header.data_len = if header.is_cut { room } else { data.len };
        header.read_attributes(file, len, attributes, attribute_len)?;
        if !header.is_cut {
            header.read_features(file, len, data.offset + data.len, features)?;
        }
        Ok(header)
    }

    fn read_attributes(
        &mut self,
        file: &mut (impl Read + Seek),
        file_len: u64,
        section: Section,
        each: u64,
    ) -> Result<(), ImportError> {
        let damaged = || ImportError::Header("its events lie outside the file");
        if !(SECTION as u64 + 64..=ATTRIBUTE_MAX).contains(&each) {
            return Err(ImportError::Header("no length of events"));
        }
        let bytes = contents(file, file_len, section).ok_or_else(damaged)?;
        for bytes in bytes.chunks_exact(each as usize) {
            // The ids that its records have are stored elsewhere.
            let (attr, ids) = bytes.split_at(bytes.len() - SECTION);
            let (attr, _) =
                PerfEventAttr::parse::<_, LittleEndian>(attr).map_err(|_| ImportError::UnknownEvent)?;
            let ids = self::section(&mut Fields(ids)).and_then(|ids| contents(file, file_len, ids));
            let ids = ids.unwrap_or_default();
            let ids = ids.as_chunks().0.iter().map(|id| u64::from_le_bytes(*id));
            self.by_id.extend(ids.map(|id| (id, self.attributes.len())));
            let layout = RecordParseInfo::new(&attr, Endianness::LittleEndian);
            self.attributes.push(Attribute { attr, name: None, layout });
        }
        if self.attributes.is_empty() { Err(ImportError::NoEvents) } else { Ok(()) }
    }

    fn read_features(
        &mut self,
        file: &mut (impl Read + Seek),
        file_len: u64,
        table: u64,
        features: &[u8],
    ) -> Result<(), ImportError> {
        let there = (0..256).filter(|bit| features[bit / 8] >> (bit % 8) & 1 != 0);
        for (number, feature) in there.enumerate() {
            let mut bytes = [0; SECTION];
            let offset = table.saturating_add((number * SECTION) as u64);
            if read_at(file, offset, &mut bytes).is_err() {
                // The end is missing, but the records are usable.
                return Ok(());
            }
            let wanted = [
                BUILD_ID,
                HOSTNAME,
                OSRELEASE,
                ARCH,
                CMDLINE,
                EVENT_DESC,
                SAMPLE_TIME,
                DIR_FORMAT,
                CLOCK_DATA,
            ];
            if feature == DIR_FORMAT {
                return Err(ImportError::Directory);
            }
            if wanted.contains(&feature)
                && let Some(section) = section(&mut Fields(&bytes))
                && let Some(bytes) = contents(file, file_len, section)
            {
                // Malformed features are skipped.
                let _ = self.feature(feature, Fields(&bytes));
            }
        }
        Ok(())
    }

    fn feature(&mut self, feature: usize, mut fields: Fields<'_>) -> Option<()> {
        match feature {
            HOSTNAME => self.host = fields.text()?,
            OSRELEASE => self.release = fields.text()?,
            ARCH => self.arch = fields.text()?,
            CMDLINE => {
                for _ in 0..fields.u32()? {
                    self.command.push(fields.text()?);
                }
            }
            EVENT_DESC => {
                let (count, attribute) = (fields.u32()?, fields.u32()?);
                for number in 0..count as usize {
                    fields.bytes(attribute as usize)?;
                    let ids = fields.u32()? as usize;
                    let name = fields.text()?;
                    fields.bytes(ids.checked_mul(8)?)?;
                    self.attributes.get_mut(number)?.name = Some(name);
                }
            }
            SAMPLE_TIME => self.sample_time = Some((fields.u64()?, fields.u64()?)),
            CLOCK_DATA => {
                fields.bytes(8)?;
                let realtime_ns = fields.u64()?;
                self.clock = Some(ClockPair { realtime_ns, ns: fields.u64()? });
            }
            BUILD_ID => while self.build_id(&mut fields).is_some() {},
            _ => {}
        }
        Some(())
    }

    /// The build-id of one file.
    fn build_id(&mut self, fields: &mut Fields<'_>) -> Option<()> {
        let (_, misc, size) = (fields.u32()?, fields.u16()?, fields.u16()?);
        let mut body = Fields(fields.bytes(usize::from(size).checked_sub(8)?)?);
        body.u32()?;
        let id = body.bytes(24)?;
        let len = match misc & BUILD_ID_SIZE {
            0 => 20,
            _ => usize::from(id[20]).min(20),
        };
        self.build_ids.insert(until_zero(body.0).to_vec(), id[..len].to_vec());
        Some(())
    }
}

fn read_at(file: &mut (impl Read + Seek), offset: u64, bytes: &mut [u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(bytes)
}

/// The bytes of a section, if it lies within the file.
fn contents(file: &mut (impl Read + Seek), file_len: u64, section: Section) -> Option<Vec<u8>> {
    let end = section.offset.checked_add(section.len)?;
    if end > file_len || section.len > SECTION_MAX {
        return None;
    }
    let mut bytes = vec![0; section.len as usize];
    read_at(file, section.offset, &mut bytes).ok()?;
    Some(bytes)
}
