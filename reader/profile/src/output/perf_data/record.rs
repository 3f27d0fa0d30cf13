//! One record: kind, flags, length, body, and for all records except samples the thread and time.

use std::io::{self, Write};

use super::header::EVENT_ID;

/// `enum perf_event_type` of include/uapi/linux/perf_event.h.
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub(super) enum Kind {
    Mmap = 1,
    Lost = 2,
    Comm = 3,
    Fork = 7,
    Sample = 9,
    Mmap2 = 10,
    FinishedRound = 68,
}

/// Flags of records, `PERF_RECORD_MISC_*`.
pub(super) mod misc {
    pub(in super::super) const KERNEL: u16 = 1;
    pub(in super::super) const USER: u16 = 2;
    pub(in super::super) const COMM_EXEC: u16 = 1 << 13;
    pub(in super::super) const MMAP_BUILD_ID: u16 = 1 << 14;
}

/// Bytes before the body.
const HEAD: usize = 8;
/// Maximum length of a build-id in a record.
const BUILD_ID_MAX: usize = 20;
/// Maximum length of a text: a record is shorter than 64 KiB, and the longest path is shorter than this.
const TEXT_MAX: usize = 4096;

/// The fields that end every record but a sample (`sample_id_all`).
#[derive(Debug, Clone, Copy)]
pub(super) struct Trailer {
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) ns: u64,
}

/// The body of a record under construction.
#[derive(Default)]
pub(super) struct Body(Vec<u8>);

impl Body {
    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Adds a text, padded with zeros to a multiple of eight bytes of the record.
    pub(super) fn text(&mut self, text: &[u8]) -> &mut Self {
        self.0.extend(text.iter().take(TEXT_MAX).map(|&byte| if byte == 0 { b'?' } else { byte }));
        self.0.push(0);
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self
    }

    /// Adds a build-id in place of device and inode numbers. Adds zeros and returns false if there is none that fits.
    pub(super) fn build_id(&mut self, id: &[u8]) -> bool {
        let fits = (1..=BUILD_ID_MAX).contains(&id.len());
        let id = if fits { id } else { &[] };
        self.0.extend([id.len() as u8, 0, 0, 0]);
        self.0.extend_from_slice(id);
        self.0.resize(self.0.len() + BUILD_ID_MAX - id.len(), 0);
        fits
    }

    /// Writes the record and empties the body.
    pub(super) fn finish(
        &mut self,
        kind: Kind,
        misc: u16,
        trailer: Option<Trailer>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        if let Some(Trailer { pid, tid, ns }) = trailer {
            self.u32(pid).u32(tid).u64(ns).u64(EVENT_ID);
        }
        let len = u16::try_from(HEAD + self.0.len()).map_err(|_| io::Error::other("a record is too long"))?;
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&(kind as u32).to_le_bytes());
        head[4..6].copy_from_slice(&misc.to_le_bytes());
        head[6..].copy_from_slice(&len.to_le_bytes());
        out.write_all(&head)?;
        out.write_all(&self.0)?;
        self.0.clear();
        Ok(())
    }
}
