//! `agent-path`: the path of the agent library, for preloading it by hand.

use std::io::Write;

use clap::Args;

use crate::flags::sources::SourcesParser;
use crate::sampling::sources::Sources;
use crate::target::agent_file;

const HELP: &str = "Examples:
  LD_PRELOAD=$(selfwind agent-path) ./server &
  LD_PRELOAD=$(selfwind agent-path -e alloc) SELFWIND_EVENT=alloc ./server &
  selfwind record -p $! -d 10            what it holds, and the next ten seconds";

/// The flags of `agent-path`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct AgentPathArgs {
    /// Sampling source that will be used, as in `record -e`: alloc, lock and mmap need another library
    #[arg(short, long, value_name = "SOURCE", env = "SELFWIND_EVENT", default_value = "auto",
          value_parser = SourcesParser, hide_possible_values = true)]
    event: Sources,
}

/// Unpacks the library and prints its path.
pub(crate) fn run(args: &AgentPathArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "{}", agent_file::unpack_for(&args.event)?.display())?;
    Ok(())
}
