//! The flags that say where names come from.

use std::path::PathBuf;

use clap::Args;

use super::debuginfod::Debuginfod;
use super::sources::SymbolSources;

/// Where names come from.
#[derive(Debug, Default, Args)]
pub struct SymbolArgs {
    /// Fetch missing debug files with debuginfod-find, from the servers in DEBUGINFOD_URLS [default: if that is set]
    #[arg(long)]
    debuginfod: bool,
    /// Look for debug files here before /usr/lib/debug; may be given several times
    #[arg(long, value_name = "DIR", env = "SELFWIND_DEBUG_DIR", value_delimiter = ':')]
    debug_dir: Vec<PathBuf>,
    /// Neither use nor keep symbols in the cache
    #[arg(long)]
    no_symbol_cache: bool,
}

impl From<&SymbolArgs> for SymbolSources {
    fn from(args: &SymbolArgs) -> Self {
        let mut sources = SymbolSources::default();
        if args.debuginfod {
            sources.debuginfod = Some(Debuginfod::default());
        }
        if args.no_symbol_cache {
            sources.cache = None;
        }
        sources.directories.splice(0..0, args.debug_dir.iter().cloned());
        sources
    }
}
