//! `agent-path`: where the library is that somebody preloads by hand.

use std::io::Write;

use clap::Args;

use crate::flags::sources::SourcesParser;
use crate::sampling::sources::Sources;
use crate::target::agent_file;

const HELP: &str = "Examples:
  LD_PRELOAD=$(selfwind agent-path) ./server &
  LD_PRELOAD=$(selfwind agent-path -e alloc) SELFWIND_EVENT=alloc ./server &
  selfwind record -p $! -d 10            what it holds, and the next ten seconds";

/// For what.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct AgentPathArgs {
    /// What the program is going to be sampled by, as `record -e` has it: alloc, lock and mmap have a library of their own
    #[arg(short, long, value_name = "SOURCE", env = "SELFWIND_EVENT", default_value = "auto",
          value_parser = SourcesParser, hide_possible_values = true)]
    event: Sources,
}

/// Prints it, unpacked.
pub(crate) fn run(args: &AgentPathArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "{}", agent_file::unpack_for(&args.event)?.display())?;
    Ok(())
}
