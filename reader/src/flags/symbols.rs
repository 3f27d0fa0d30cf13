//! The flags that say where names come from.

use std::path::PathBuf;

use clap::Args;
use selfwind_profile::interpreted::InterpretedView;
use selfwind_profile::symbolize::{Again, Debuginfod, SymbolSources};

use crate::terminal::progress::Bar;

/// Where names come from.
#[derive(Debug, Default, Args)]
pub(crate) struct SymbolArgs {
    /// Fetch missing debug files with debuginfod-find, from the servers in DEBUGINFOD_URLS [default: if that is set]
    #[arg(long)]
    debuginfod: bool,
    /// Look for binaries and debug files in this directory before /usr/lib/debug, by build-id; may be given several times
    #[arg(long, value_name = "DIR", env = "SELFWIND_DEBUG_DIR", value_delimiter = ':')]
    debug_dir: Vec<PathBuf>,
    /// Look for binaries and debug files in this root file system first, as of a container's image; may be given several times
    #[arg(long, value_name = "DIR", env = "SELFWIND_SYSROOT", value_delimiter = ':')]
    sysroot: Vec<PathBuf>,
    /// Look up again the names that are stored in the profile; those that are not found stay
    #[arg(long)]
    fresh_names: bool,
    /// Neither use nor keep symbols in the cache
    #[arg(long)]
    no_symbol_cache: bool,
    /// Tell the lines of Python functions apart
    #[arg(long)]
    python_line: bool,
    /// Show the frames of the Python interpreter itself between those of the program
    #[arg(long)]
    python_internals: bool,
}

impl SymbolArgs {
    /// Where a recording takes names from when it ends: it does not wait for servers unless told to.
    pub(crate) fn for_recording(&self) -> SymbolSources {
        let sources = SymbolSources::from(self);
        SymbolSources { debuginfod: sources.debuginfod.filter(|_| self.debuginfod), ..sources }
    }

    /// Root file systems in which binaries are looked for first.
    pub(crate) fn sysroots(&self) -> &[PathBuf] {
        &self.sysroot
    }
}

impl From<&SymbolArgs> for SymbolSources {
    fn from(args: &SymbolArgs) -> Self {
        let mut sources = SymbolSources { progress: Some(Bar::start), ..SymbolSources::default() };
        if args.debuginfod {
            sources.debuginfod = Some(Debuginfod::default());
            sources.again = Again::Better;
        }
        if args.no_symbol_cache {
            sources.cache = None;
        }
        sources.search(&args.debug_dir, &args.sysroot);
        if args.fresh_names {
            sources.again = Again::Always;
        }
        sources.interpreted = InterpretedView { lines: args.python_line, internals: args.python_internals };
        sources
    }
}
