//! One ELF file, read at first use and at most once, for all processes that map it.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use unwind::{Machine, Module, Section, Table};

use crate::search::{Found, Image, Search};
use crate::source_file::{LoadSegment, SourceFile};

const PAGE: u64 = 4096;
/// Code pages cached per file. Few are read: only the bytes before return addresses in code without CFI.
const PAGES: usize = 256;

/// A mapped file, identified by its name and build-id.
#[derive(Debug)]
pub struct Binary {
    path: PathBuf,
    build_id: Vec<u8>,
    contents: OnceCell<Result<Contents, String>>,
}

impl Binary {
    pub(crate) fn new(path: &Path, build_id: &[u8]) -> Self {
        Self { path: path.to_owned(), build_id: build_id.to_vec(), contents: OnceCell::new() }
    }

    /// The name under which it was mapped.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The build-id given with the mapping; otherwise the file's own, once it has been read; empty if there is none.
    pub fn build_id(&self) -> &[u8] {
        match self.contents.get() {
            Some(Ok(contents)) if self.build_id.is_empty() => &contents.source.build_id,
            _ => &self.build_id,
        }
    }

    pub(crate) fn told_build_id(&self) -> &[u8] {
        &self.build_id
    }

    /// Why reading the file failed, if it did.
    pub fn problem(&self) -> Option<&str> {
        self.contents.get()?.as_ref().err().map(String::as_str)
    }

    pub(crate) fn is_read(&self) -> bool {
        self.contents.get().is_some()
    }

    pub(crate) fn read(&self, search: &Search) -> Option<&Contents> {
        let contents = self.contents.get_or_init(|| Contents::read(&self.path, &self.build_id, search));
        contents.as_ref().ok()
    }

    /// The contents; `None` if the file has not been read or cannot be.
    pub(crate) fn contents(&self) -> Option<&Contents> {
        self.contents.get()?.as_ref().ok()
    }
}

/// What unwinding needs of a file.
#[derive(Debug)]
pub(crate) struct Contents {
    source: SourceFile,
    /// The compiled table, if the file has call frame information that yields rows.
    table: Option<Vec<u8>>,
    image: Image,
    pages: RefCell<HashMap<u64, Box<[u8]>>>,
}

impl Contents {
    fn read(path: &Path, build_id: &[u8], search: &Search) -> Result<Self, String> {
        let Found { source, image } = search.find(path, build_id).map_err(|error| format!("{error:#}"))?;
        if source.machine() != Machine::NATIVE {
            return Err("a file for another machine than this one".into());
        }
        let table = source.table(&[]).ok();
        Ok(Self { source, table, image, pages: RefCell::default() })
    }

    /// Load bias (runtime address minus virtual address) of a mapping that begins at `start` with file offset `offset`.
    /// `None` if no segment contains that offset.
    pub(crate) fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        let holds = |segment: &&LoadSegment| {
            let first = segment.offset & !(PAGE - 1);
            first <= offset && offset < segment.offset.saturating_add(segment.size)
        };
        let segments = || self.source.segments.iter().filter(holds);
        let segment = segments().find(|segment| segment.executable).or_else(|| segments().next())?;
        Some(start.wrapping_sub(segment.address.wrapping_add(offset).wrapping_sub(segment.offset)))
    }

    /// The table. Validates all its bytes.
    pub(crate) fn table(&self) -> Option<Table<'_>> {
        Table::from_trusted_bytes(self.table.as_deref()?).ok()
    }

    /// The walker's module for this file at the given load bias.
    pub(crate) fn module<'a>(
        &'a self,
        start: u64,
        end: u64,
        bias: u64,
        table: Option<Table<'a>>,
    ) -> Module<'a> {
        let elf = self.source.elf();
        let at = |section: Section<'a>| Section { address: section.address.wrapping_add(bias), ..section };
        let entry = if elf.entry == 0 { 0 } else { elf.entry.wrapping_add(bias) };
        Module {
            start,
            end,
            bias,
            entry,
            eh_frame_hdr: elf.eh_frame_hdr.map(at),
            eh_frame: elf.eh_frame.map(at),
            table,
            late: None,
        }
    }

    /// The eight bytes at file offset `offset`.
    pub(crate) fn word(&self, offset: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = self.byte(offset.checked_add(at as u64)?)?;
        }
        Some(u64::from_le_bytes(bytes))
    }

    fn byte(&self, offset: u64) -> Option<u8> {
        match &self.image {
            Image::Bytes(bytes) => bytes.get(usize::try_from(offset).ok()?).copied(),
            Image::File(file) => self.page_byte(file, offset),
        }
    }

    fn page_byte(&self, file: &File, offset: u64) -> Option<u8> {
        let mut pages = self.pages.borrow_mut();
        let (page, at) = (offset / PAGE, (offset % PAGE) as usize);
        if pages.len() >= PAGES && !pages.contains_key(&page) {
            pages.clear();
        }
        let page = pages.entry(page).or_insert_with(|| {
            let mut bytes = vec![0; PAGE as usize];
            let length = file.read_at(&mut bytes, page * PAGE).unwrap_or(0);
            bytes.truncate(length);
            bytes.into()
        });
        page.get(at).copied()
    }
}
