//! What frames stand for: binaries, their functions and source lines.

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::names::NameId;
use crate::profile_file::FileIdentity;
use crate::symbolize::Origin;

/// The identity of a binary: see [`Binary::key`].
pub(super) type BinaryKey = (Vec<u8>, Option<(PathBuf, Option<FileIdentity>)>);

/// Number of a function in [`super::Profile::functions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u32);

/// A function: a name in a binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Function {
    /// Readable name.
    pub name: NameId,
    /// Index in [`super::Profile::binaries`]; none for code outside all modules.
    pub binary: Option<u32>,
}

/// A function at a line of its source, as in pprof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceLine {
    /// The function.
    pub function: FunctionId,
    /// Its linkage (mangled) name; the readable one if there is no other.
    pub linkage: NameId,
    /// Source file.
    pub file: Option<NameId>,
    /// Source line, 0 if unknown.
    pub line: u32,
    /// The function is inlined into the next one.
    pub inlined: bool,
}

/// A sampled address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Index in [`super::Profile::binaries`]; none for code outside all modules.
    pub binary: Option<u32>,
    /// The address to look up: in the binary's ELF file or, without a binary, in the process.
    pub address: u64,
    /// Its functions in [`super::Profile::lines`], innermost first, at least one.
    pub lines: Range<u32>,
}

/// An ELF file, the same for all processes that map it.
#[derive(Debug, Clone)]
pub struct Binary {
    /// Where it was first seen.
    pub path: PathBuf,
    /// Its build-id; empty if it has none.
    pub build_id: Vec<u8>,
    /// The file as it was when it was mapped, if it has no build-id.
    pub file: Option<FileIdentity>,
    /// Where its names come from; none if it has no samples.
    pub origin: Option<Origin>,
    /// Its files were read for names; otherwise all names were stored or cached.
    pub read: bool,
}

impl Binary {
    /// Its identity: its build-id, or else its file.
    pub(super) fn key(path: &Path, build_id: &[u8], file: Option<FileIdentity>) -> BinaryKey {
        (build_id.to_vec(), build_id.is_empty().then(|| (path.to_owned(), file)))
    }
}
