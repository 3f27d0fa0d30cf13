//! Finds files by name and build-id.
//!
//! A file is used only if its build-id matches: the file under the recorded name may be a later build.

use std::fs::{self, File};
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use unwind::Source;

use crate::source_file::SourceFile;

/// Name of the vdso in /proc/PID/maps.
const VDSO: &str = "[vdso]";
/// Upper bound of the vdso's size, in bytes.
const VDSO_MAX: u64 = 1 << 20;

/// Where to look for files.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// Alternative root directories, tried before `/`: a container's file system, or a copy of another machine's.
    pub roots: Vec<PathBuf>,
    /// Directories laid out as perf's build-id cache (`~/.debug`): `.build-id/XX/YYYY/elf` or `vdso`.
    pub caches: Vec<PathBuf>,
    /// Whether rows are inferred for code without call frame information, which can take seconds for a file.
    pub infers: bool,
}

/// A file and its bytes.
pub(crate) struct Found {
    pub(crate) source: SourceFile,
    pub(crate) image: Image,
}

/// Where the code of a file is read from.
#[derive(Debug)]
pub(crate) enum Image {
    File(File),
    Bytes(Vec<u8>),
}

impl Search {
    /// The default: the root file system and the user's perf build-id cache.
    pub fn for_user() -> Self {
        let cache = std::env::home_dir().map(|home| home.join(".debug"));
        Self { caches: cache.into_iter().collect(), ..Self::default() }
    }

    pub(crate) fn find(&self, path: &Path, build_id: &[u8]) -> Result<Found> {
        let mut problem = None;
        for candidate in self.candidates(path, build_id) {
            match self.open(&candidate, build_id) {
                Ok(found) => return Ok(found),
                Err(error) => problem = Some(error),
            }
        }
        if path == Path::new(VDSO) {
            return own_vdso(build_id);
        }
        Err(problem.unwrap_or_else(|| anyhow::anyhow!("not a file")))
    }

    fn open(&self, path: &Path, build_id: &[u8]) -> Result<Found> {
        let source = SourceFile::read_any(path, self.infers)?;
        check(&source, build_id)?;
        Ok(Found { source, image: Image::File(File::open(path)?) })
    }

    /// Candidate paths, best first. The last one is the file's own name, so that its error is the one reported.
    fn candidates(&self, path: &Path, build_id: &[u8]) -> Vec<PathBuf> {
        let mut candidates = Vec::new();
        if let Some((first, rest)) = build_id.split_first() {
            let name = format!("{first:02x}/{}", hexadecimal(rest));
            for cache in &self.caches {
                let directory = cache.join(".build-id").join(&name);
                candidates.extend(
                    ["elf", "vdso"].map(|file| directory.join(file)).into_iter().filter(|it| it.exists()),
                );
            }
        }
        if let Ok(inside) = path.strip_prefix("/") {
            candidates.extend(self.roots.iter().map(|root| root.join(inside)));
            candidates.push(path.to_owned());
        }
        candidates
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn check(source: &SourceFile, build_id: &[u8]) -> Result<()> {
    if !build_id.is_empty() && source.build_id != build_id {
        bail!("the file has changed since the recording (its build-id is {})", hexadecimal(&source.build_id));
    }
    Ok(())
}

/// The vdso of this process: every process of the same kernel has the same one.
fn own_vdso(build_id: &[u8]) -> Result<Found> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let line = maps.lines().find(|line| line.ends_with(VDSO)).context("this kernel has no vdso")?;
    let range = line.split(' ').next().and_then(|range| range.split_once('-'));
    let (start, end) = range.context("an unknown form of /proc/self/maps")?;
    let (start, end) = (u64::from_str_radix(start, 16)?, u64::from_str_radix(end, 16)?);
    let mut memory = File::open("/proc/self/mem")?;
    memory.seek(SeekFrom::Start(start))?;
    let mut bytes = vec![0; end.saturating_sub(start).min(VDSO_MAX) as usize];
    memory.read_exact(&mut bytes)?;
    let source = SourceFile::read_from(Cursor::new(&bytes), Source::default(), false)?;
    if build_id.is_empty() || source.build_id == build_id {
        return Ok(Found { source, image: Image::Bytes(bytes) });
    }
    bail!("the vdso of another kernel");
}
