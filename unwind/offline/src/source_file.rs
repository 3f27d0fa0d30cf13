//! Reads the unwind sections of an ELF file from disk into private copies. A file truncated meanwhile gives an error;
//! through a mapping it would raise SIGBUS.

use std::fs::{Metadata, OpenOptions};
use std::io::{BufReader, Read, Seek};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail};
use compilation::{CompileError, InferredRow, compile_with, debug_frame, go_frame};
use nix::fcntl::OFlag;
use object::read::elf::{ElfFile64, ProgramHeader as _};
use object::{LittleEndian, Object, ObjectSection, ReadCache};
use unwind::elf_file::ElfFile;
use unwind::go_table::{self, GoTable};
use unwind::{Machine, Section, Source};

use crate::uncovered_code;

const PT_LOAD: u32 = 1;
const PF_X: u32 = 1;
/// Enough for the program headers of usual files.
const SEGMENTS: usize = 64;

type Parsed<'c, R> = ElfFile64<'c, LittleEndian, &'c ReadCache<R>>;

/// The unwind sections, segments and identity of an ELF file.
#[derive(Debug)]
pub struct SourceFile {
    machine: Machine,
    /// `.eh_frame`, with the contents of `.debug_frame` or of a Go program's table merged in.
    eh_frame: Option<Copied>,
    eh_frame_hdr: Option<Copied>,
    text: (u64, u64),
    entry: u64,
    /// Rows for code without call frame information.
    inferred: Vec<InferredRow>,
    /// The PT_LOAD segments.
    pub segments: Vec<LoadSegment>,
    /// The GNU build-id; empty when there is none.
    pub build_id: Vec<u8>,
    /// Identity of the file (device, inode, size, mtime), to detect that it was replaced.
    pub identity: Source,
}

/// One PT_LOAD segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadSegment {
    /// File offset.
    pub offset: u64,
    /// Its virtual address.
    pub address: u64,
    /// Size in the file, in bytes.
    pub size: u64,
    /// Whether it is executable.
    pub executable: bool,
}

#[derive(Debug)]
struct Copied {
    bytes: Vec<u8>,
    address: u64,
}

impl Copied {
    fn section(&self) -> Section<'_> {
        Section { bytes: &self.bytes, address: self.address }
    }
}

impl SourceFile {
    /// Reads the unwind sections of the file at `path`. Fails if it is not an ELF file for a supported machine with call
    /// frame information, or code for which rows can be inferred.
    pub fn read(path: &Path) -> Result<Self> {
        let found = Self::read_any(path, true)?;
        if found.eh_frame.is_none() && found.inferred.is_empty() {
            bail!("neither .eh_frame nor .debug_frame, and no code that can do without");
        }
        Ok(found)
    }

    /// Like [`SourceFile::read`], but also accepts a file without call frame information; its segments still give
    /// addresses. Rows are inferred for code without it if `infers` is set.
    pub(crate) fn read_any(path: &Path, infers: bool) -> Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            bail!("not a regular file");
        }
        Self::read_from(BufReader::new(file), Self::identity_of(&metadata), infers)
    }

    /// The identity of the file that `metadata` describes.
    pub fn identity_of(metadata: &Metadata) -> Source {
        Source {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified_ns: (metadata.mtime() as u64)
                .wrapping_mul(1_000_000_000)
                .wrapping_add(metadata.mtime_nsec() as u64),
        }
    }

    /// Like [`SourceFile::read_any`], from an open reader.
    pub(crate) fn read_from(file: impl Read + Seek, identity: Source, infers: bool) -> Result<Self> {
        let cache = ReadCache::new(file);
        let (elf, machine) = parse(&cache)?;
        Self::copy(&elf, machine, identity, infers)
    }

    fn copy<R: Read + Seek>(
        elf: &Parsed<'_, R>,
        machine: Machine,
        identity: Source,
        infers: bool,
    ) -> Result<Self> {
        let mut found = Self {
            machine,
            eh_frame: None,
            eh_frame_hdr: None,
            text: (u64::MAX, 0),
            entry: elf.entry(),
            inferred: Vec::new(),
            segments: segments(elf),
            build_id: Vec::new(),
            identity,
        };
        if let Ok(Some(build_id)) = elf.build_id() {
            found.build_id = build_id.to_vec();
        }
        let (mut debug_frame, mut go) = (None, None);
        for section in elf.sections() {
            if uncovered_code::is_executable(&section) {
                let (start, end) = found.text;
                let address = section.address();
                found.text = (start.min(address), end.max(address.saturating_add(section.size())));
            }
            let index = match section.name() {
                Ok(".eh_frame") => &mut found.eh_frame,
                Ok(".eh_frame_hdr") => &mut found.eh_frame_hdr,
                Ok(".debug_frame") => &mut debug_frame,
                Ok(name) if name.ends_with(go_table::SECTION) => &mut go,
                _ => continue,
            };
            let name = section.name().unwrap_or_default();
            // Decompresses compressed sections.
            let bytes =
                section.uncompressed_data().with_context(|| format!("cannot read {name}"))?.into_owned();
            // Separate debug files list the sections of their program as empty.
            *index = (!bytes.is_empty()).then(|| Copied { bytes, address: section.address() });
        }
        let of_go = go.as_ref().and_then(|go| GoTable::parse(&go.bytes));
        let of_go = of_go.and_then(|table| go_frame::write(&table, 0));
        let more = of_go.or_else(|| Some(debug_frame::rewrite(&debug_frame?.bytes, 0)));
        if let Some(more) = more {
            let eh_frame = found.eh_frame.as_ref().map(Copied::section);
            let (bytes, address) = debug_frame::merge(more, eh_frame);
            found.eh_frame = Some(Copied { bytes, address });
            // The linker's search table does not cover the merged entries.
            found.eh_frame_hdr = None;
        }
        // Go's functions have their own table, and their own calling convention.
        if infers && machine == Machine::X86_64 && go.is_none() {
            let eh_frame = found.eh_frame.as_ref().map(Copied::section);
            found.inferred = inference::infer(&uncovered_code::read(elf, eh_frame));
        }
        Ok(found)
    }

    /// The unwind table of the file, for the key `build_id`.
    pub fn table(&self, build_id: &[u8]) -> Result<Vec<u8>, CompileError> {
        let eh_frame = self.eh_frame.as_ref().map(Copied::section);
        compile_with(self.machine, eh_frame, &self.inferred, 0, build_id)
    }

    /// Machine that the file is for.
    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// The sections, as input for the table builder.
    pub fn elf(&self) -> ElfFile<'_> {
        ElfFile {
            machine: self.machine,
            eh_frame: self.eh_frame.as_ref().map(Copied::section),
            debug_frame: None,
            go_table: None,
            eh_frame_hdr: self.eh_frame_hdr.as_ref().map(Copied::section),
            build_id: (!self.build_id.is_empty()).then_some(&self.build_id),
            text_start: self.text.0.min(self.text.1),
            text_end: self.text.1,
            entry: self.entry,
        }
    }
}

fn segments<R: Read + Seek>(elf: &Parsed<'_, R>) -> Vec<LoadSegment> {
    let headers = elf.elf_program_headers().iter().take(SEGMENTS);
    let loaded = headers.filter(|header| header.p_type(LittleEndian) == PT_LOAD);
    loaded
        .map(|header| LoadSegment {
            offset: header.p_offset(LittleEndian),
            address: header.p_vaddr(LittleEndian),
            size: header.p_filesz(LittleEndian),
            executable: header.p_flags(LittleEndian) & PF_X != 0,
        })
        .collect()
}

/// The parsed file and its machine.
fn parse<R: Read + Seek>(cache: &ReadCache<R>) -> Result<(Parsed<'_, R>, Machine)> {
    match object::FileKind::parse(cache) {
        Ok(object::FileKind::Elf64) => {}
        Ok(object::FileKind::Elf32) => bail!("an ELF file for another machine"),
        _ => bail!("not an ELF file"),
    }
    let elf: Parsed<'_, R> = ElfFile64::parse(cache).context("a damaged ELF file")?;
    let number = elf.elf_header().e_machine.get(LittleEndian);
    let machine = Machine::from_elf(number).context("an ELF file for another machine")?;
    Ok((elf, machine))
}
