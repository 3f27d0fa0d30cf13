//! The sampling flags shared by `record` and `attach`.

use clap::Args;
use clap::builder::FalseyValueParser;
use shm_format::MAX_DEPTH;

use crate::sampling::rate::Overhead;

/// The flags of commands that start sampling, except the rate, whose defaults differ.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct SamplingArgs {
    /// Maximum stack depth, in frames; deeper stacks are truncated
    #[arg(long, value_name = "FRAMES", env = "SELFWIND_MAX_STACK", default_value_t = MAX_DEPTH as u32,
          value_parser = clap::value_parser!(u32).range(1..=MAX_DEPTH as i64))]
    pub(crate) max_stack: u32,
    /// Maximum share of CPU time spent on sampling, in percent; at the limit fewer samples are taken, and the summary says so
    #[arg(long, value_name = "PERCENT", env = "SELFWIND_MAX_OVERHEAD", default_value_t)]
    pub(crate) max_overhead: Overhead,
    /// Record native frames only, no Python functions
    #[arg(long, env = "SELFWIND_NATIVE_ONLY", value_parser = FalseyValueParser::new())]
    pub(crate) native_only: bool,
}
