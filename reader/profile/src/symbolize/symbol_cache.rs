//! The symbol cache: one file per build-id in a private directory of the user.
//!
//! A cached answer is valid as long as the files it was found in, and the paths where no file was found, are unchanged. The cache may be
//! removed at any time. A failure to read or write it costs time, but no names.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use super::cache_file::{CacheFile, Provenance};
use super::image::{FileState, Witness, hex};
use super::symbols::{Origin, Request, Symbols};
use crate::private_directory::{cache_directory, read_file, replace_file};

/// Extension of the cache's files.
const ENDING: &str = ".names";
/// Maximum size of a file; beyond it only the latest answers are kept.
const LARGEST_FILE: usize = 64 << 20;
/// Maximum size of all files; beyond it the least recently used ones are removed.
const LARGEST: u64 = 512 << 20;

/// A directory of cache files.
#[derive(Debug, Clone)]
pub struct SymbolCache {
    /// Created with its first file; not used if others can write to it.
    pub directory: PathBuf,
}

impl SymbolCache {
    /// The user's cache.
    pub fn of_user() -> Self {
        SymbolCache { directory: cache_directory().join("symbols") }
    }

    fn path(&self, build_id: &[u8]) -> PathBuf {
        self.directory.join(hex(build_id) + ENDING)
    }

    /// The file of a binary, if it contains what a search in `directories`, and perhaps by a server, would find now.
    pub(super) fn open(&self, request: &Request, directories: &[PathBuf], server: bool) -> Option<CacheFile> {
        if request.build_id.is_empty() {
            return None;
        }
        let file = CacheFile::decode(read_file(&self.path(&request.build_id), LARGEST_FILE as u64).ok()?)?;
        // A server may have better names than those found without one.
        let better = server && !matches!(file.origin, Origin::Dwarf(_));
        // What is no file, such as the vDSO, is identified by its build-id alone.
        let recorded =
            !request.path.is_absolute() || file.witnesses.iter().any(|witness| witness.path == request.path);
        let as_before = |witness: &Witness| FileState::of(&witness.path) == witness.state;
        let holds = file.build_id == request.build_id
            && file.directories == directories
            && recorded
            && !better
            && file.witnesses.iter().all(as_before);
        holds.then_some(file)
    }

    /// Stores the answers for ascending addresses together with those of `earlier`.
    pub(super) fn store(
        &self,
        of: &Provenance<'_>,
        addresses: &[u64],
        symbols: &Symbols,
        earlier: Option<&CacheFile>,
    ) {
        let merged = earlier.filter(|file| file.len() < LARGEST_FILE / 2).and_then(|file| {
            let mut all: Vec<u64> = file.addresses().chain(addresses.iter().copied()).collect();
            all.sort_unstable();
            all.dedup();
            let mut merged = Symbols::new(of.origin.clone(), all.len());
            file.answer(&all, &mut merged)?;
            symbols.fill(&mut merged, &all, addresses);
            Some((all, merged))
        });
        let bytes = match &merged {
            Some((all, merged)) => CacheFile::encode(of, all, merged),
            None => CacheFile::encode(of, addresses, symbols),
        };
        if let Some(bytes) = bytes.filter(|bytes| bytes.len() <= LARGEST_FILE) {
            // If the cache cannot be written, the next lookup takes as long as this one.
            let _ = replace_file(&self.path(of.build_id), &bytes);
        }
    }

    /// Removes the least recently used files until the rest fits.
    pub(super) fn trim(&self) {
        self.trim_to(LARGEST);
    }

    fn trim_to(&self, limit: u64) {
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
            .flatten()
            .filter_map(|entry| {
                let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
                Some((metadata.modified().ok()?, metadata.len(), entry.path()))
            })
            .collect();
        files.sort_unstable();
        let mut total: u64 = files.iter().map(|&(_, len, _)| len).sum();
        for (_, len, path) in files {
            if total <= limit {
                break;
            }
            if fs::remove_file(path).is_ok() {
                total -= len;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use selfwind_tests::random::Random;

    use super::*;
    use crate::names::NameId;
    use crate::private_directory::private_directory;
    use crate::symbolize::Line;

    fn directory(test: &str) -> PathBuf {
        let directory =
            std::env::temp_dir().join(format!("selfwind-symbol-cache-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        directory
    }

    /// One line for each address: `fADDRESS`.
    fn symbols(addresses: &[u64]) -> Symbols {
        let mut symbols = Symbols::new(Origin::Symbols, addresses.len());
        for address in addresses {
            let function = symbols.names.intern(&format!("f{address}"));
            let at = symbols.lines.len() as u32;
            let file = (address % 2 == 0).then_some(NameId(0));
            symbols.lines.push(Line { function, linkage: function, file, line: 7, inlined: false });
            symbols.ranges.push(at..at + 1);
        }
        symbols
    }

    fn names(symbols: &Symbols) -> Vec<&str> {
        let lines = symbols.ranges.iter().map(|range| symbols.lines.get(range.start as usize));
        lines.map(|line| line.map_or("", |line| symbols.names.get(line.function))).collect()
    }

    #[test]
    fn answers_gather_and_hold_while_files_stay() {
        let directory = directory("gather");
        let cache = SymbolCache { directory: directory.join("cache") };
        let program = directory.join("program");
        fs::create_dir_all(&directory).unwrap();
        fs::write(&program, "1").unwrap();
        let witnesses = [
            Witness { state: FileState::of(&program), path: program.clone() },
            Witness { path: directory.join("program.debug"), state: None },
        ];
        let of = Provenance {
            build_id: &[1, 2],
            origin: &Origin::Symbols,
            directories: &[],
            witnesses: &witnesses,
        };
        let request = Request { path: program.clone(), build_id: vec![1, 2], file: None, addresses: vec![] };
        assert!(cache.open(&request, &[], false).is_none());
        cache.store(&of, &[10, 30], &symbols(&[10, 30]), None);
        let earlier = cache.open(&request, &[], false).unwrap();
        cache.store(&of, &[20, 30, 41], &symbols(&[20, 30, 41]), Some(&earlier));

        let file = cache.open(&request, &[], false).unwrap();
        let mut found = Symbols::new(Origin::Symbols, 0);
        assert_eq!(file.answer(&[9, 10, 20, 30, 40, 41, 50], &mut found), Some(vec![9, 40, 50]));
        assert_eq!(names(&found)[1..4], ["f10", "f20", "f30"]);
        assert_eq!((found.lines[0].line, found.lines[3].file), (7, None));

        // Another build-id, path or list of directories: no answer.
        assert!(cache.open(&Request { build_id: vec![9], ..request.clone() }, &[], false).is_none());
        assert!(cache.open(&Request { path: "/elsewhere".into(), ..request.clone() }, &[], false).is_none());
        assert!(cache.open(&request, &["/x".into()], false).is_none());
        // A debug file appears: answers found without it are outdated.
        fs::write(directory.join("program.debug"), "").unwrap();
        assert!(cache.open(&request, &[], false).is_none());
        fs::remove_file(directory.join("program.debug")).unwrap();
        assert!(cache.open(&request, &[], false).is_some());
        // Others can write to the directory: it is not trusted.
        fs::set_permissions(&cache.directory, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert!(cache.open(&request, &[], false).is_none());
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn damaged_files_are_no_files() {
        let of = Provenance { build_id: &[1], origin: &Origin::Stripped, directories: &[], witnesses: &[] };
        let addresses: Vec<u64> = (0..50).collect();
        let intact = CacheFile::encode(&of, &addresses, &symbols(&addresses)).unwrap();
        assert!(CacheFile::decode(intact.clone()).is_some());
        for len in 0..intact.len() {
            assert!(CacheFile::decode(intact[..len].to_vec()).is_none(), "{len}");
        }
        let mut random = Random::new(0x1234_5678_9abc_def1);
        for _ in 0..20_000 {
            let mut bytes = intact.clone();
            for _ in 0..3 {
                random.damage(&mut bytes[12..]);
            }
            let checksum = crc32fast::hash(&bytes[12..]);
            bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
            // Damage under a correct checksum: any answer will do, but no panic.
            if let Some(file) = CacheFile::decode(bytes) {
                let mut found = Symbols::new(Origin::Stripped, 0);
                let _ = file.answer(&addresses, &mut found);
            }
        }
    }

    #[test]
    fn the_oldest_go_first() {
        let directory = directory("trim");
        private_directory(&directory).unwrap();
        let cache = SymbolCache { directory: directory.clone() };
        for (name, age) in [("old", 30), ("older", 40), ("new", 10)] {
            let file = File::create(directory.join(name)).unwrap();
            file.set_len(100).unwrap();
            file.set_modified(SystemTime::now() - std::time::Duration::from_secs(age)).unwrap();
        }
        cache.trim_to(250);
        assert!(!directory.join("older").exists() && directory.join("old").exists());
        cache.trim_to(0);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        fs::remove_dir_all(&directory).unwrap();
    }
}
