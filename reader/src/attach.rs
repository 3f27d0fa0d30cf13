//! `attach`: starts or stops sampling a running process.

use std::io::{self, Write};

use clap::Args;

use crate::flags::process_id::process_id;
use crate::flags::sampling::SamplingArgs;
use crate::sampling::buffer::Buffer;
use crate::sampling::rate;
use crate::sampling::sources::Sources;
use crate::sampling::unwinding::{CopyLimit, Unwinding};
use crate::tables::builder;
use crate::target::inject::{self, Attachment, Destination, InjectError, Settings};
use crate::terminal::notices::Notices;

const HELP: &str = "Examples:
  selfwind attach -p 4711                then selfwind record -p 4711 -d 10, tail -p 4711
  selfwind attach --detach -p 4711

Attaching stops one thread of the process for a few milliseconds; the others keep running. Unlike a process \
started with the agent, an attached process does not pass the agent on to its children (`record -p` injects it into those \
that are started meanwhile), and the agent does not notice if the program changes the handler of SIGPROF. Attaching \
again with another rate restarts the flight recorder.";

/// The flags of `attach`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct AttachArgs {
    /// The process
    #[arg(short, long, value_name = "PID", value_parser = process_id)]
    pid: u32,
    /// Sampling rate: samples per second of each thread's CPU time
    #[arg(short = 'F', long, value_name = "HZ", env = "SELFWIND_FREQ", default_value_t = rate::DEFAULT_FREQUENCY,
          value_parser = rate::frequency)]
    freq: u32,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Stop sampling; the process keeps running
    #[arg(long)]
    detach: bool,
}

/// Attaches or detaches, and prints what to do next to `out`.
pub(crate) fn run(args: &AttachArgs, out: &mut dyn Write) -> Result<(), AttachError> {
    let pid = args.pid;
    if args.detach {
        inject::detach(pid)?;
        writeln!(out, "sampling of process {pid} has stopped")?;
        return Ok(());
    }
    let settings = Settings {
        sources: Sources::default(),
        frequency: args.freq,
        max_stack: args.sampling.max_stack,
        max_overhead: args.sampling.max_overhead,
        native_only: args.sampling.native_only,
        unwinding: Unwinding::default(),
        copy_limit: CopyLimit::default(),
        buffer: Buffer::default(),
        ends_with_us: false,
        destination: Destination::Flight,
    };
    builder::before_attach(pid, Notices::Quiet);
    let what = match inject::attach(pid, &settings)? {
        Attachment::New => "is now being sampled",
        Attachment::Renewed => "was already being sampled; its libraries and threads have been refreshed",
    };
    writeln!(out, "process {pid} {what}; selfwind record -p {pid}, tail -p {pid}, attach --detach -p {pid}")?;
    Ok(())
}

/// Why `attach` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    /// The agent cannot be injected.
    #[error(transparent)]
    Inject(#[from] InjectError),
    /// The output cannot be written.
    #[error(transparent)]
    Output(#[from] io::Error),
}
