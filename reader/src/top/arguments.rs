//! The flags of `top`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::flags::process_id::process_id;
use crate::flags::sources::SourcesParser;
use crate::sampling::rate;
use crate::sampling::sources::Sources;

const USAGE: &str = "selfwind top [OPTIONS] [--] CMD [ARGS]...
       selfwind top [OPTIONS] -p PID
       selfwind top [OPTIONS]";

const HELP: &str = "Examples:
  selfwind top -- ./server --port 80     a command and all it starts
  selfwind top -p 4711                   a running process
  selfwind top                           all processes that were started with the agent
  selfwind top --window 0 -- make        everything since the start
  selfwind top -e alloc -- ./server      the memory in use; with -e cpu,alloc,lock, key e switches

Keys: hjkl or arrows move, Enter zooms, Esc goes back, Tab changes between table and flame graph, \
/ searches, n and N repeat the search, s sorts by self or total, e shows the next event, z freezes, ? shows help, q quits.

Exit status: CMD's own if it has ended, else 0. CMD gets SIGTERM when you quit; a process named by -p \
keeps running.";

/// The flags of `top`.
#[derive(Debug, Args)]
#[command(override_usage = USAGE, after_help = HELP)]
pub(crate) struct TopArgs {
    /// Sampling rate: samples per second of each thread's CPU time
    #[arg(short = 'F', long, value_name = "HZ", env = "SELFWIND_FREQ", default_value_t = rate::DEFAULT_FREQUENCY,
          value_parser = rate::frequency)]
    pub(super) freq: u32,
    /// Sampling sources for CMD, as in `record`
    #[arg(short, long, value_name = "SOURCE", env = "SELFWIND_EVENT", default_value = "auto",
          value_parser = SourcesParser, hide_possible_values = true)]
    pub(super) event: Sources,
    /// Only this process; injects the agent if needed
    #[arg(short, long, value_name = "PID", value_parser = process_id, conflicts_with = "command")]
    pub(super) pid: Option<u32>,
    /// Length of the window shown, in seconds; 0 shows everything since the start
    #[arg(long, value_name = "SECONDS", env = "SELFWIND_WINDOW", default_value_t = 30)]
    pub(super) window: u64,
    /// File for the output of CMD, which would disturb the screen [default: discarded]
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,
    /// The command and its arguments
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    pub(super) command: Vec<OsString>,
}
