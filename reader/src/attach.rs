//! `attach`: has a running process sampled, or no longer.

use std::io::{self, Write};

use clap::Args;
use clap::builder::FalseyValueParser;

use crate::sampling::rate::{self, Overhead};
use crate::sampling::unwinding::{CopyLimit, Unwinding};
use crate::target::inject::{self, Attachment, InjectError, Settings};

const HELP: &str = "Examples:
  selfwind attach -p 4711                then: selfwind record -p 4711 -d 10, tail -p 4711
  selfwind attach --detach -p 4711

One thread of the process is stopped for a moment; the others run on, however many there are. What only a process \
that is started with the agent sees is missing after an attach: children, and what the program does with SIGPROF. Attaching once more with another rate begins the flight recorder anew.";

/// What is asked of a process.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct AttachArgs {
    /// The process
    #[arg(short, long, value_name = "PID")]
    pid: u32,
    /// Samples per second of CPU time of each thread
    #[arg(short = 'F', long, value_name = "HZ", env = "SELFWIND_FREQ", default_value_t = 99,
          value_parser = rate::frequency)]
    freq: u32,
    /// Deepest stack that is kept whole, in frames
    #[arg(long, value_name = "FRAMES", env = "SELFWIND_MAX_STACK", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_stack: u32,
    /// Maximum share of CPU time spent on sampling, in percent; above it fewer samples are taken, and the summary says so
    #[arg(long, value_name = "PERCENT", env = "SELFWIND_MAX_OVERHEAD", default_value_t)]
    max_overhead: Overhead,
    /// Leave out the frames of functions that interpreters run (Python)
    #[arg(long, env = "SELFWIND_NATIVE_ONLY", value_parser = FalseyValueParser::new())]
    native_only: bool,
    /// End the sampling; the process runs on
    #[arg(long)]
    detach: bool,
}

/// Does it and says on `out` what to do next.
pub(crate) fn run(args: &AttachArgs, out: &mut dyn Write) -> Result<(), AttachError> {
    let pid = args.pid;
    if args.detach {
        inject::detach(pid)?;
        writeln!(out, "process {pid} is not sampled any more")?;
        return Ok(());
    }
    let settings = Settings {
        frequency: args.freq,
        max_stack: args.max_stack,
        max_overhead: args.max_overhead,
        native_only: args.native_only,
        unwinding: Unwinding::default(),
        copy_limit: CopyLimit::default(),
        ends_with_us: false,
    };
    let what = match inject::attach(pid, settings)? {
        Attachment::New => "is sampled from now on",
        Attachment::Renewed => "was sampled already; libraries and threads are those of now",
    };
    writeln!(out, "process {pid} {what}; selfwind record -p {pid}, tail -p {pid}, attach --detach -p {pid}")?;
    Ok(())
}

/// Why `attach` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    /// The process cannot have it.
    #[error(transparent)]
    Inject(#[from] InjectError),
    /// Nobody can be told.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}
