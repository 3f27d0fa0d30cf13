//! Where to look up names, besides the binaries themselves.

use std::path::PathBuf;
use std::sync::Arc;

use super::debuginfod::Debuginfod;
use super::file_tree::FileTree;
use super::symbol_cache::SymbolCache;
use crate::interpreted::InterpretedView;

/// Shows the progress of a task, which ends when this is dropped.
pub trait Progress: Sync {
    /// Reports progress: `done` of `of`.
    fn at(&self, done: usize, of: usize);
}

/// Starts showing a task, described as in `naming functions`.
pub type StartProgress = fn(&'static str) -> Box<dyn Progress>;

/// Sources of names.
#[derive(Debug, Clone)]
pub struct SymbolSources {
    /// Directories that mirror the file system with separate debug files, `.build-id` among them.
    pub directories: Vec<PathBuf>,
    /// Directories that hold a root file system, as of a container's image: searched before this machine's.
    pub sysroots: Vec<PathBuf>,
    /// Directories that are looked through for files that are nowhere else.
    pub trees: Vec<Arc<FileTree>>,
    /// A server of debug files, if it was asked for.
    pub debuginfod: Option<Debuginfod>,
    /// The symbol cache.
    pub cache: Option<SymbolCache>,
    /// Shows progress, as this may take long.
    pub progress: Option<StartProgress>,
    /// Which of the names stored in the profile to look up again.
    pub again: Again,
    /// How frames of interpreters are shown.
    pub interpreted: InterpretedView,
}

/// Names that are looked up though the profile brings them. Better ones are kept, whichever they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Again {
    /// None.
    #[default]
    Never,
    /// Those of binaries whose source lines are not known.
    Better,
    /// All.
    Always,
}

impl Default for SymbolSources {
    /// What the user of this machine has: the system's debug files, their own cache, and the servers that
    /// `DEBUGINFOD_URLS` names.
    fn default() -> Self {
        let servers = std::env::var_os("DEBUGINFOD_URLS").filter(|servers| !servers.is_empty());
        SymbolSources {
            debuginfod: servers.as_ref().map(|_| Debuginfod::default()),
            cache: Some(SymbolCache::of_user()),
            again: if servers.is_some() { Again::Better } else { Again::Never },
            ..SymbolSources::in_directories(["/usr/lib/debug"])
        }
    }
}

impl SymbolSources {
    /// Searches these directories of debug files and binaries, and these root file systems, first and to their depths.
    pub fn search(&mut self, directories: &[PathBuf], sysroots: &[PathBuf]) {
        self.directories.splice(0..0, directories.iter().cloned());
        self.directories.splice(0..0, sysroots.iter().map(|root| root.join("usr/lib/debug")));
        self.sysroots.splice(0..0, sysroots.iter().cloned());
        let trees = directories.iter().chain(sysroots);
        self.trees.extend(trees.map(|root| Arc::new(FileTree::new(root.clone()))));
        if !self.trees.is_empty() {
            self.again = Again::Better;
        }
    }

    /// All directories that are searched, told apart from each other.
    pub(super) fn searched(&self) -> Vec<PathBuf> {
        let sysroots = self.sysroots.iter().map(|root| root.join("."));
        self.directories.iter().cloned().chain(sysroots).collect()
    }

    /// Nothing but the binaries.
    pub fn none() -> Self {
        SymbolSources::in_directories::<PathBuf>([])
    }

    /// The binaries and these debug directories.
    pub fn in_directories<P: Into<PathBuf>>(directories: impl IntoIterator<Item = P>) -> Self {
        let directories = directories.into_iter().map(Into::into).collect();
        let (sysroots, trees) = Default::default();
        SymbolSources {
            directories,
            sysroots,
            trees,
            debuginfod: None,
            cache: None,
            progress: None,
            again: Again::Never,
            interpreted: InterpretedView::default(),
        }
    }
}
