//! The command line: all commands and their flags, and the exit status of each outcome.
//!
//! Data goes to stdout or a file, everything else to stderr. An error is one line.

mod manual;
mod perf_flags;
mod recorded_file;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::builder::{FalseyValueParser, PathBufValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory, Parser, Subcommand};
use selfwind_profile::input::{self, Input};
use selfwind_profile::output::{self, Export, Format, Grouping};
use selfwind_profile::symbolize::SymbolSources;

use crate::agent_path;
use crate::attach;
use crate::diff;
use crate::doctor;
use crate::drain::watch;
use crate::dump;
use crate::flags::duration::{duration, interval};
use crate::flags::event::EventArgs;
use crate::flags::process_id::process_id;
use crate::flags::sampling::SamplingArgs;
use crate::flags::sources::SourcesParser;
use crate::flags::symbols::SymbolArgs;
use crate::import;
use crate::list;
use crate::record;
use crate::record::{OWN_FAILURE, RecordOptions};
use crate::report;
use crate::request;
use crate::resolve;
use crate::sampling::buffer::Buffer;
use crate::sampling::plugin::plugin;
use crate::sampling::rate;
use crate::sampling::settings::SamplingSettings;
use crate::sampling::sources::Sources;
use crate::sampling::unwinding::{CopyLimit, Unwinding};
use crate::stats;
use crate::tables;
use crate::tables::cache::{Cache, DEFAULT_AGE, DEFAULT_BYTES, Limits};
use crate::tail;
use crate::terminal::notices::{Notices, warn};
use crate::terminal::screen::{Printable, Screen};
use crate::terminal::standard_output::StandardOutput;
use crate::top;

const EXAMPLES: &str = "Examples:
  selfwind record -- python3 job.py      profile a command and everything it starts
  selfwind report selfwind.data          where its time went
  selfwind export -f flamegraph -o job.svg selfwind.data
  LD_PRELOAD=$(selfwind agent-path) ./server &
  selfwind record -p $! -d 10            profile a program that is already running
";

const RECORD_USAGE: &str = "selfwind record [OPTIONS] [--] CMD [ARGS]...
       selfwind record [OPTIONS] -p PID";

const RECORD_EXAMPLES: &str = "Examples:
  selfwind record -- make -j8
  selfwind record -F 999 -o job.data -- ./job --input x
  selfwind record -o job.svg -- ./job    straight to a flame graph
  selfwind record --delay 2 --open -- ./job    skip two seconds, then show a flame graph
  selfwind record -o job-%p.data -- ./job      file named after the process id
  selfwind record -d 10 -p 4711          a running process
  selfwind record --snapshot -p 4711     what its flight recorder holds now

Exit status: CMD's own (128+N if signal N killed it); 127 if CMD is not found, 126 if it cannot be \
executed, 125 if selfwind itself fails. When -d expires, CMD gets SIGTERM; a process named by -p keeps running.

Ctrl-C goes to CMD, as it would without selfwind. Pressed twice within a second, it ends the recording and \
sends SIGTERM to CMD; a third time, SIGKILL. The environment variable shown with a flag sets its default.";

const RESOLVE_EXAMPLES: &str = "Examples:
  selfwind resolve job.data              a recording that was interrupted, or made with --no-names
  selfwind resolve --sysroot /mnt/image job.data    use the binaries of a container image";

const IMPORT_EXAMPLES: &str = "Examples:
  selfwind import perf.data              writes selfwind.data, for report, export and diff
  selfwind import -o job.data /tmp/perf.data
  selfwind import --sysroot /mnt/image perf.data    unwind with the binaries of a container image";

const EXPORT_EXAMPLES: &str = "Examples:
  selfwind export -o job.svg             a flame graph of selfwind.data
  selfwind export -o job.pb.gz job.data  for pprof and compatible tools
  selfwind export -f folded job.data     one line per stack, to standard output
  selfwind export -f firefox -o job.json job.data    for profiler.firefox.com";

const STATS_EXAMPLES: &str = "Examples:
  selfwind stats job.data
  selfwind stats --json job.data         for scripts: samples, weight, lost, truncated, detail";

const TAIL_EXAMPLES: &str = "Examples:
  selfwind tail -p 4711
  selfwind tail --json                   all processes that run the agent";

const TABLES_EXAMPLES: &str = "Examples:
  selfwind tables verify /usr/bin/python3      check every row against another DWARF implementation
  selfwind tables list";

/// A sampling profiler for native Linux programs; needs no root, no frame pointers, no rebuild.
#[derive(Debug, Parser)]
#[command(name = "selfwind", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Record a command or a running process to a profile
    #[command(after_help = RECORD_EXAMPLES, override_usage = RECORD_USAGE)]
    Record(RecordArgs),
    /// Start sampling a running process
    Attach(attach::AttachArgs),
    /// Show where the time went
    Report(report::ReportArgs),
    /// Store function names in a profile, so that it can be shown on any machine
    #[command(after_help = RESOLVE_EXAMPLES)]
    Resolve(resolve::ResolveArgs),
    /// Convert a perf.data file to a profile
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(import::ImportArgs),
    /// Compare two profiles
    Diff(diff::DiffArgs),
    /// Write a profile in another format
    #[command(after_help = EXPORT_EXAMPLES)]
    Export(ExportArgs),
    /// Print the statistics of a profile: samples, losses by cause, overhead
    #[command(after_help = STATS_EXAMPLES)]
    Stats(StatsArgs),
    /// Print samples of running programs as they arrive
    #[command(after_help = TAIL_EXAMPLES)]
    Tail(TailArgs),
    /// Print the stack of every thread of a running process, without pausing it
    Dump(dump::DumpArgs),
    /// Request the stack of one thread and show each step of the protocol
    Request(request::RequestArgs),
    /// Check what this machine permits, and how to fix problems
    Doctor(doctor::DoctorArgs),
    /// Show live where time is spent
    Top(top::TopArgs),
    /// List the processes that run the agent
    List(ListArgs),
    /// Print the path of the agent library, for LD_PRELOAD
    AgentPath(agent_path::AgentPathArgs),
    /// Print selfwind.h, the interface for programs and plug-ins
    Header,
    /// Print shell completions
    Completions(manual::CompletionsArgs),
    /// Write the manual pages to a directory
    Man(manual::ManArgs),
    /// Build, verify, list and prune unwind tables
    #[command(subcommand, after_help = TABLES_EXAMPLES)]
    Tables(TablesCommand),
}

#[derive(Debug, Args)]
struct RecordArgs {
    /// Sampling rate: samples per second of each thread's CPU time
    #[arg(short = 'F', long, value_name = "HZ", env = "SELFWIND_FREQ", default_value_t = rate::DEFAULT_FREQUENCY,
          value_parser = rate::frequency)]
    freq: u32,
    /// What to record: a comma-separated list. At most one clock: auto (the best available), cpu (a CPU timer per thread), itimer (one timer per process), perf (the kernel's clock of each thread, with kernel stacks), perf:EVENT,... or perf:EVENT@PERIOD,... (page-faults, cs, GROUP:TRACEPOINT, ...), usdt:PROVIDER:NAME and fn:FILE:SYMBOL (USDT probes and function entries), offcpu (blocked time). In addition: alloc or alloc:BYTES (allocations: one sample per 512 KiB or per BYTES, alloc:all for all), lock or lock:TIME (waits for locks, and who ended them: one sample per 100us or per TIME of waiting, lock:all for all), mmap (all memory mappings), wall (wall-clock time of all threads), tp:PROVIDER:NAME (the program's own tracepoints; * and ? in names, `,nostack` leaves out stacks)
    #[arg(short, long, value_name = "SOURCE", env = "SELFWIND_EVENT", default_value = "auto",
          value_parser = SourcesParser, hide_possible_values = true)]
    event: Sources,
    /// Stop after DURATION: seconds, or with a unit, such as 500ms or 5m
    #[arg(short, long, value_name = "DURATION", env = "SELFWIND_DURATION", value_parser = duration)]
    duration: Option<Duration>,
    /// Start recording after DURATION
    #[arg(long, value_name = "DURATION", env = "SELFWIND_DELAY", value_parser = duration)]
    delay: Option<Duration>,
    #[arg(short, long, value_name = "FILE", help = recorded_file::help(), env = "SELFWIND_OUTPUT",
          value_parser = PathBufValueParser::new().try_map(recorded_file::checked))]
    output: Option<PathBuf>,
    /// In exported formats, start each stack with its thread, NAME-PID/TID
    #[arg(long, env = "SELFWIND_PER_THREAD", value_parser = FalseyValueParser::new())]
    per_thread: bool,
    /// Open the result when done: a flame graph (FILE.svg), or the file that -o names
    #[arg(long)]
    open: bool,
    /// Record a running process; injects the agent if needed
    #[arg(short, long, value_name = "PID", value_parser = process_id, conflicts_with = "command")]
    pid: Option<u32>,
    /// Flight recorder: with -p, write what the process's buffer holds, without emptying it; with CMD, keep the latest samples in memory and write them on SIGUSR2 (to FILE.1, FILE.2, ...) and at the end
    #[arg(long)]
    snapshot: bool,
    /// Save a snapshot every DURATION, such as 10s or 5m, and on SIGUSR2: profiles FILE.1, FILE.2, ... of what was recorded so far or, with --snapshot, of what the flight recorder holds
    #[arg(long, value_name = "DURATION", env = "SELFWIND_EVERY", value_parser = interval)]
    every: Option<Duration>,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Load this plug-in into the program, such as an unwinder for an interpreter; may be given more than once
    #[arg(long = "plugin", value_name = "FILE", env = "SELFWIND_PLUGINS", value_delimiter = ':', value_parser = plugin)]
    plugins: Vec<PathBuf>,
    /// How to unwind stacks: self (each thread unwinds itself), copy (the recorder unwinds a copy of the addresses on the stack), copy-code (the same, but only code addresses are copied), guess (no unwinding: every address on the stack that follows a call is a frame), both (self and copy; `stats` shows whether they agree)
    #[arg(
        long,
        value_name = "HOW",
        env = "SELFWIND_UNWIND",
        value_enum,
        default_value_t,
        hide_possible_values = true
    )]
    unwind: Unwinding,
    /// Maximum number of bytes to copy or scan per stack; not used with --unwind self
    #[arg(long, value_name = "SIZE", env = "SELFWIND_COPY_LIMIT", default_value_t)]
    copy_limit: CopyLimit,
    /// Size of each process's buffer for samples that the recorder has not read yet, such as 512K or 16M [default: grows as needed, to 2M and more]
    #[arg(long, value_name = "SIZE", env = "SELFWIND_POOL")]
    buffer: Option<Buffer>,
    /// Do not store function names in the profile; they are looked up when it is shown, or added by `selfwind resolve`
    #[arg(long, env = "SELFWIND_NO_NAMES", value_parser = FalseyValueParser::new())]
    no_names: bool,
    #[command(flatten)]
    symbols: SymbolArgs,
    /// Print only errors
    #[arg(short, long, env = "SELFWIND_QUIET", value_parser = FalseyValueParser::new())]
    quiet: bool,
    /// Print each step
    #[arg(short, long, env = "SELFWIND_VERBOSE", value_parser = FalseyValueParser::new())]
    verbose: bool,
    /// The command and its arguments
    #[arg(value_name = "CMD", trailing_var_arg = true, required_unless_present = "pid")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct ExportArgs {
    #[arg(short, long, value_name = "FORMAT", help = format!("Output format: {} [default: by OUT's extension]", Format::names()), required_unless_present = "output", hide_possible_values = true,
          value_parser = PossibleValuesParser::new(Format::ALL.map(Format::name)).try_map(|name| name.parse::<Format>()))]
    format: Option<Format>,
    /// Output file; `-` is standard output [default: -]
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Start each stack with its process, NAME-PID
    #[arg(long, conflicts_with = "per_thread")]
    per_process: bool,
    /// Start each stack with its thread, NAME-PID/TID
    #[arg(long)]
    per_thread: bool,
    #[command(flatten)]
    event: EventArgs,
    #[command(flatten)]
    symbols: SymbolArgs,
    /// The profile
    #[arg(value_name = "FILE", default_value = "selfwind.data")]
    file: PathBuf,
}

#[derive(Debug, Subcommand)]
enum TablesCommand {
    /// Build the unwind tables of ELF files
    Build {
        /// Output directory [default: the user's cache]
        #[arg(short, long, value_name = "DIR")]
        output: Option<PathBuf>,
        /// ELF files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Check every row against another DWARF implementation; prints `rows N mismatches M`, exits with 1 if M > 0
    Verify {
        /// ELF files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Remove tables that are damaged or have not been used for long
    Prune {
        /// Maximum total size of the tables kept, in MiB
        #[arg(long, value_name = "MIB", default_value_t = DEFAULT_BYTES >> 20)]
        max_size: u64,
        /// Maximum time since a recording last used a table, in days
        #[arg(long, value_name = "DAYS", default_value_t = DEFAULT_AGE.as_secs() / (24 * 60 * 60))]
        max_age: u64,
        /// Directory to prune [default: the user's cache]
        #[arg(value_name = "DIR")]
        directory: Option<PathBuf>,
    },
    /// Describe table files, and the tables that would be built from ELF files
    List {
        /// Table files, directories of them, ELF files [default: the user's cache]
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

#[derive(Debug, Args)]
struct StatsArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Number of processes to list, those with the most samples first; 0 for all [default: 5, fewer on a small screen]
    #[arg(long, value_name = "ROWS")]
    limit: Option<usize>,
    /// The profile
    #[arg(value_name = "FILE", default_value = "selfwind.data")]
    file: PathBuf,
}

#[derive(Debug, Args)]
struct TailArgs {
    /// Only this process
    #[arg(short, long, value_name = "PID", value_parser = process_id)]
    pid: Option<u32>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Remove what your dead processes have left behind, including unread samples, and print each
    #[arg(long)]
    reap: bool,
}

/// Runs the command given by the arguments.
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // 1 and 2 may be the exit status of a recorded command.
            let record = std::env::args_os().nth(1).is_some_and(|command| command == "record");
            match perf_flags::advice(&error).filter(|_| record) {
                Some(advice) => warn(advice),
                None => drop(error.print()),
            }
            let code = if record && error.use_stderr() { OWN_FAILURE } else { error.exit_code() as u8 };
            return ExitCode::from(code);
        }
    };
    watch::block_size_signal();
    match dispatch(cli.command) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            warn(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    // Not locked: some commands print from several threads.
    let stdout = &mut StandardOutput::new();
    let plain = &mut Printable(StandardOutput::new());
    match command {
        Command::Record(args) => return Ok(ExitCode::from(record::run(&args.into()))),
        Command::Attach(args) => attach::run(&args, plain)?,
        Command::Report(args) => {
            let input = Input::open(&args.file)?;
            report::run(input.path(), &(&args).into(), Screen::of_stdout(), stdout)?;
        }
        Command::Resolve(args) => resolve::run(&args)?,
        Command::Import(args) => import::run(&args)?,
        Command::Diff(args) => return compare(&args, stdout),
        Command::Export(args) => export(&args, stdout)?,
        Command::Stats(args) => {
            let input = Input::open(&args.file)?;
            stats::run(input.path(), args.json, args.limit, Screen::of_stdout(), stdout)?;
        }
        Command::Tail(args) => tail::run(args.pid, args.json, plain)?,
        Command::Dump(args) => dump::run(&args, plain)?,
        Command::Request(args) => request::run(&args, plain)?,
        Command::Doctor(args) => return doctor::run(&args, plain),
        Command::Top(args) => return Ok(ExitCode::from(top::run(&args)?)),
        Command::List(args) => list::run(args.json, args.reap, plain)?,
        Command::Completions(args) => manual::completions(args.shell, Cli::command(), stdout)?,
        Command::Man(args) => manual::man(Cli::command(), &args.directory)?,
        Command::Tables(command) => return run_tables(command),
        Command::AgentPath(args) => agent_path::run(&args, stdout)?,
        Command::Header => stdout.write_all(include_bytes!("../../../agent/include/selfwind.h"))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Exit status as of diff(1): 1 if a --fail-if condition holds, 2 for errors.
fn compare(args: &diff::DiffArgs, stdout: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let compared = Input::open(&args.a).and_then(|a| {
        let b = Input::open(&args.b)?;
        diff::run(a.path(), b.path(), &args.into(), Screen::of_stdout(), stdout)
    });
    match compared {
        Ok(failures) => {
            failures.iter().for_each(warn);
            Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Err(error) if is_broken_pipe(&error) => Err(error),
        Err(error) => {
            warn(format_args!("{error:#}"));
            Ok(ExitCode::from(2))
        }
    }
}

fn export(args: &ExportArgs, stdout: &mut dyn Write) -> anyhow::Result<()> {
    let grouping = match (args.per_thread, args.per_process) {
        (true, _) => Grouping::Thread,
        (_, true) => Grouping::Process,
        _ => Grouping::None,
    };
    let Some(format) = args.format.or_else(|| args.output.as_deref().and_then(Format::from_path)) else {
        anyhow::bail!(
            "the name of the output does not determine a format; choose one with -f: {}",
            Format::names()
        );
    };
    let sources = SymbolSources::from(&args.symbols);
    let output = args.output.as_deref().filter(|path| *path != Path::new("-"));
    if output.is_none() && format.is_binary() && io::stdout().is_terminal() {
        let (name, extension) = (format.name(), format.extension());
        anyhow::bail!(
            "{name} is binary and standard output is a terminal; name a file: -o selfwind.{extension}"
        );
    }
    let input = Input::open(&args.file)?;
    if let Some(path) = output {
        output::refuse_own(input.path(), path)?;
    }
    let mut export = Export::read(format, input.path(), &sources)?;
    if let Some(event) = args.event.name() {
        export.choose(event)?;
    }
    let left_out = export.left_out();
    if !left_out.is_empty() {
        warn(format_args!(
            "{} holds one event only; --event exports the others: {}",
            format.name(),
            left_out.join(", ")
        ));
    }
    if let Some(remark) = &export.incomplete {
        warn(format_args!("{}: {remark}", input::name(input.path())));
    }
    match output {
        None => export.write(grouping, stdout)?,
        Some(path) => export.write_file(grouping, path)?,
    };
    Ok(())
}

fn run_tables(command: TablesCommand) -> anyhow::Result<ExitCode> {
    match command {
        TablesCommand::Build { output, files } => tables::build(&files, &table_cache(output)?),
        TablesCommand::Verify { files } => tables::verify(&files),
        TablesCommand::List { files } if files.is_empty() => {
            tables::list(&[table_cache(None)?.directory().to_owned()])
        }
        TablesCommand::List { files } => tables::list(&files),
        TablesCommand::Prune { directory, max_size, max_age } => {
            let age = Duration::from_secs(max_age.saturating_mul(24 * 60 * 60));
            tables::prune(
                &table_cache(directory)?,
                Limits { bytes: max_size.saturating_mul(1 << 20), age, examine: true },
            )
        }
    }
}

/// The cache in `directory`, which may be relative, or that of the user.
fn table_cache(directory: Option<PathBuf>) -> anyhow::Result<Cache> {
    match directory {
        Some(directory) => Ok(Cache::at(&std::path::absolute(directory)?)?),
        None => Cache::find()?.context("SELFWIND_TABLES turns unwind tables off; name a directory"),
    }
}

impl From<RecordArgs> for RecordOptions {
    fn from(args: RecordArgs) -> Self {
        Self {
            sampling: SamplingSettings {
                frequency: args.freq,
                sources: args.event,
                max_stack: args.sampling.max_stack,
                max_overhead: args.sampling.max_overhead,
                native_only: args.sampling.native_only,
                plugins: args.plugins,
                unwinding: args.unwind,
                copy_limit: args.copy_limit,
                buffer: args.buffer.unwrap_or_default(),
            },
            duration: args.duration,
            delay: args.delay,
            per_thread: args.per_thread,
            open: args.open,
            output: args.output,
            pid: args.pid,
            snapshot: args.snapshot,
            every: args.every,
            names: !args.no_names,
            sources: args.symbols.for_recording(),
            notices: Notices::new(args.quiet, args.verbose),
            command: args.command,
        }
    }
}

/// True if the reader of standard output has closed it, which is not a failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let mut kinds = error.chain().filter_map(|cause| {
        let json = || cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        cause.downcast_ref::<io::Error>().map(io::Error::kind).or_else(json)
    });
    kinds.any(|kind| kind == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::clock::Clock;

    /// A pipe that nobody reads.
    struct Unread;

    impl Write for Unread {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_stops_is_no_failure() {
        let text = Unread.write_all(b"x").unwrap_err();
        let json = || serde_json::to_writer(Unread, "x").unwrap_err();
        assert!(is_broken_pipe(&text.into()) && is_broken_pipe(&json().into()));
        assert!(is_broken_pipe(&anyhow::Error::from(json()).context("stats")));
        assert!(!is_broken_pipe(&anyhow::anyhow!("Broken pipe")));
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    fn record(arguments: &[&str]) -> Result<RecordOptions, String> {
        match Cli::try_parse_from([&["selfwind", "record"], arguments].concat()) {
            Ok(Cli { command: Command::Record(args) }) => Ok(args.into()),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn the_command_keeps_its_own_flags() {
        for arguments in
            [&["-F", "199", "ls", "-F", "--", "-q"][..], &["-F199", "--", "ls", "-F", "--", "-q"]]
        {
            let options = record(arguments).unwrap();
            assert_eq!(options.sampling.frequency, 199);
            assert_eq!(options.command, ["ls", "-F", "--", "-q"]);
        }
        let options = record(&["-p", "7", "-d", "0.5", "-e", "itimer"]).unwrap();
        assert_eq!((options.pid, options.duration), (Some(7), Some(Duration::from_millis(500))));
        assert_eq!(options.sampling.sources.clock, Some(Clock::Itimer));
    }

    #[test]
    fn wrong_values_are_named() {
        for (arguments, part) in [
            (&["-F", "0", "ls"][..], "at least 1"),
            (&["-F", "200000", "ls"], "the maximum is 100000"),
            (&["--max-overhead", "0", "ls"], "0.01 to 100"),
            (&["--buffer", "4Q", "ls"], "invalid size `4Q`: expected 64K to 1G"),
            (&["-e", "perf:nonsense", "ls"], "unknown event `nonsense`"),
            (&["-e", "nonsense", "ls"], "auto, cpu, itimer"),
            (&["-d", "-1", "ls"], "-1"),
            (&["--every", "10", "--every", "0", "ls"], "cannot be used multiple times"),
            (&["--every", "1ms", "ls"], "invalid interval `1ms`: expected 100ms or more"),
            (&["-d", "nan", "ls"], "nan"),
            (&["-p", "7", "ls"], "cannot be used with"),
            (&["--no-such-flag", "ls"], "--no-such-flag"),
            (&[], "CMD"),
        ] {
            let text = record(arguments).unwrap_err();
            assert!(text.contains(part), "{arguments:?}: {text}");
        }
    }
}
