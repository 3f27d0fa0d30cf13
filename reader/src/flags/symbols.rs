//! The flags for looking up names.

use std::path::PathBuf;

use clap::Args;
use selfwind_profile::interpreted::InterpretedView;
use selfwind_profile::symbolize::{Again, Debuginfod, SymbolSources};

use crate::terminal::progress::Bar;

/// Where to look up names.
#[derive(Debug, Default, Args)]
pub(crate) struct SymbolArgs {
    /// Fetch missing debug files with debuginfod-find, from the servers in DEBUGINFOD_URLS [default: if it is set]
    #[arg(long)]
    debuginfod: bool,
    /// Look for binaries and debug files in this directory before /usr/lib/debug, by build-id; may be repeated
    #[arg(long, value_name = "DIR", env = "SELFWIND_DEBUG_DIR", value_delimiter = ':')]
    debug_dir: Vec<PathBuf>,
    /// Look for binaries and debug files in this root directory first, such as that of a container image; may be repeated
    #[arg(long, value_name = "DIR", env = "SELFWIND_SYSROOT", value_delimiter = ':')]
    sysroot: Vec<PathBuf>,
    /// Look up the names stored in the profile again; those not found are kept
    #[arg(long)]
    fresh_names: bool,
    /// Do not use the symbol cache
    #[arg(long)]
    no_symbol_cache: bool,
    /// Break Python functions down by source line
    #[arg(long)]
    python_line: bool,
    /// Show the Python interpreter's own frames too
    #[arg(long)]
    python_internals: bool,
}

impl SymbolArgs {
    /// Where a recording looks up names when it ends. It does not wait for servers unless told to.
    pub(crate) fn for_recording(&self) -> SymbolSources {
        let sources = SymbolSources::from(self);
        SymbolSources { debuginfod: sources.debuginfod.filter(|_| self.debuginfod), ..sources }
    }

    /// Root directories in which to look for binaries first.
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
