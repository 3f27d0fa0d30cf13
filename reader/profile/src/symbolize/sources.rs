//! Where to look up names, besides the binaries themselves.

use std::path::PathBuf;
use std::sync::Arc;

use super::debuginfod::Debuginfod;
use super::file_tree::FileTree;
use super::symbol_cache::SymbolCache;
use crate::interpreted::InterpretedView;

/// Shows the progress of a task until it is dropped.
pub trait Progress: Sync {
    /// Reports progress: `done` of `of`.
    fn at(&self, done: usize, of: usize);
}

/// Starts showing a task with a description such as `naming functions`.
pub type StartProgress = fn(&'static str) -> Box<dyn Progress>;

/// Sources of names.
#[derive(Debug, Clone)]
pub struct SymbolSources {
    /// Directories of debug files: mirrors of the file system, and `.build-id`.
    pub directories: Vec<PathBuf>,
    /// Root file systems, such as a container's image; searched before this machine's.
    pub sysroots: Vec<PathBuf>,
    /// Copies of files that may no longer exist; searched after the places where the files were.
    pub copies: Vec<FileCopy>,
    /// Directories searched completely for files that are found nowhere else.
    pub trees: Vec<Arc<FileTree>>,
    /// Servers of debug files, if the user requests them.
    pub debuginfod: Option<Debuginfod>,
    /// The symbol cache.
    pub cache: Option<SymbolCache>,
    /// Shows progress, because naming may take long.
    pub progress: Option<StartProgress>,
    /// Which names that the profile contains are looked up again.
    pub again: Again,
    /// How interpreted frames are shown.
    pub interpreted: InterpretedView,
}

/// A copy of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileCopy {
    /// Path of the file where the program ran.
    pub of: PathBuf,
    /// Path of the copy.
    pub at: PathBuf,
}

/// Names that are looked up although the profile contains them. The better name is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Again {
    /// None.
    #[default]
    Never,
    /// Those of binaries without source lines.
    Better,
    /// All.
    Always,
}

impl Default for SymbolSources {
    /// This machine's debug files, the user's cache, and the servers in `DEBUGINFOD_URLS`.
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
    /// Searches these directories of debug files and binaries, and these root file systems, first and completely.
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

    /// All directories that are searched, by kind.
    pub(super) fn searched(&self) -> Vec<PathBuf> {
        let sysroots = self.sysroots.iter().map(|root| root.join("."));
        self.directories.iter().cloned().chain(sysroots).collect()
    }

    /// The binaries alone.
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
            copies: Vec::new(),
            trees,
            debuginfod: None,
            cache: None,
            progress: None,
            again: Again::Never,
            interpreted: InterpretedView::default(),
        }
    }
}
