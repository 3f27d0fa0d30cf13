//! Where names may be taken from, beside the binaries themselves.

use std::path::PathBuf;

use super::debuginfod::Debuginfod;
use super::symbol_cache::SymbolCache;

/// Places of names.
#[derive(Debug, Clone)]
pub struct SymbolSources {
    /// Directories that mirror the file system with separate debug files, `.build-id` among them.
    pub directories: Vec<PathBuf>,
    /// A server of debug files, if it was asked for.
    pub debuginfod: Option<Debuginfod>,
    /// What was looked up before.
    pub cache: Option<SymbolCache>,
    /// No bar, however long it takes.
    pub silent: bool,
}

impl Default for SymbolSources {
    /// What the user of this machine has: the system's debug files, their own cache, and the servers that
    /// `DEBUGINFOD_URLS` names.
    fn default() -> Self {
        let servers = std::env::var_os("DEBUGINFOD_URLS").filter(|servers| !servers.is_empty());
        SymbolSources {
            debuginfod: servers.map(|_| Debuginfod::default()),
            cache: Some(SymbolCache::of_user()),
            ..SymbolSources::in_directories(["/usr/lib/debug"])
        }
    }
}

impl SymbolSources {
    /// Nothing but the binaries.
    pub fn none() -> Self {
        SymbolSources::in_directories::<PathBuf>([])
    }

    /// The binaries and these debug directories.
    pub fn in_directories<P: Into<PathBuf>>(directories: impl IntoIterator<Item = P>) -> Self {
        let directories = directories.into_iter().map(Into::into).collect();
        SymbolSources { directories, debuginfod: None, cache: None, silent: false }
    }
}
