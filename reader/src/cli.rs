//! The command line: what can be asked, and what the answer does to the exit status.
//!
//! Data goes to stdout or a file, everything else to stderr. An error is one line.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::notices::{Notices, warn};
use crate::output::{self, Format, Grouping};
use crate::record::{OWN_FAILURE, RecordOptions, Source};
use crate::report::{self, ReportOptions, Screen, View};
use crate::symbolize::DebugDirectories;
use crate::{agent_file, list, record, stats, tables, tail};

const EXAMPLES: &str = "Examples:
  selfwind record -- python3 job.py      profile a command and all it starts
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
  selfwind record -d 10 -p 4711          a process that was started with the agent

Exit status: that of CMD (128+N when signal N ended it); 127 when CMD is not found, 126 when it cannot be \
executed, 125 when selfwind itself fails. After -d CMD gets SIGTERM; a process given by -p keeps running.";

const REPORT_HELP: &str = "Examples:
  selfwind report                        the profile selfwind.data
  selfwind report --limit 0 job.data     everything, however long
  selfwind report --json job.data | jq '.functions[:5]'

SELF is what a function itself used, TOTAL what it used with all it called. A line of the tree is a chain
of calls that does not branch; TOTAL is that of its first function, SELF that of its last.";

/// Profiles native programs that unwind themselves: no root, no frame pointers, no kernel stack copies.
#[derive(Debug, Parser)]
#[command(name = "selfwind", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a command, or follow a running one, and write a profile
    #[command(after_help = RECORD_EXAMPLES, override_usage = RECORD_USAGE)]
    Record(RecordArgs),
    /// Show where the time went
    #[command(after_help = REPORT_HELP)]
    Report(ReportArgs),
    /// Write a profile in another format
    Export(ExportArgs),
    /// Print the numbers of a profile: samples, losses by cause, costs
    Stats(StatsArgs),
    /// Print the samples of running programs as they come
    Tail(TailArgs),
    /// Show sessions and preloaded processes
    List(ListArgs),
    /// Print the path of the library for LD_PRELOAD
    AgentPath,
    /// Build, verify and list unwind tables
    #[command(subcommand)]
    Tables(TablesCommand),
}

#[derive(Debug, Args)]
struct RecordArgs {
    /// Samples per second of CPU time of each thread
    #[arg(short = 'F', long, value_name = "HZ", env = "SELFWIND_FREQ", default_value_t = 99,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    freq: u32,
    /// What triggers samples: auto, cpu (a CPU timer per thread), itimer (one timer per process)
    #[arg(short, long, value_name = "SOURCE", env = "SELFWIND_EVENT", default_value = "auto")]
    event: Source,
    /// Stop after this many seconds
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Where to write: a profile, or with a known extension (.folded, .svg, .jsonl, .pb.gz, .speedscope.json) that format; %p is the process id [default: selfwind.data]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Record a process that already runs with the agent
    #[arg(short, long, value_name = "PID", conflicts_with = "command")]
    pid: Option<u32>,
    /// Deepest stack that is kept whole, in frames
    #[arg(long, value_name = "FRAMES", env = "SELFWIND_MAX_STACK", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_stack: u32,
    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// Say every step
    #[arg(short, long, conflicts_with = "quiet")]
    verbose: bool,
    /// The command and its arguments
    #[arg(value_name = "CMD", trailing_var_arg = true, required_unless_present = "pid")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct ReportArgs {
    /// Sort functions by what they used with all they called
    #[arg(long, overrides_with = "no_children")]
    children: bool,
    /// Show only what functions used themselves, and who called the hottest
    #[arg(long, overrides_with = "children")]
    no_children: bool,
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Rows of the table, and again of the tree; 0 for all [default: what fits the terminal]
    #[arg(long, value_name = "ROWS")]
    limit: Option<usize>,
    /// The profile
    #[arg(value_name = "FILE", default_value = "selfwind.data")]
    file: PathBuf,
}

impl From<&ReportArgs> for ReportOptions {
    fn from(args: &ReportArgs) -> Self {
        let view = match (args.children, args.no_children) {
            (true, _) => View::Children,
            (_, true) => View::NoChildren,
            _ => View::Both,
        };
        Self { view, json: args.json, limit: args.limit, directories: DebugDirectories::default() }
    }
}

#[derive(Debug, Args)]
struct ExportArgs {
    /// The format: folded, flamegraph, jsonl, pprof, firefox, speedscope [default: what OUT's extension says]
    #[arg(short, long, value_name = "FORMAT", required_unless_present = "output")]
    format: Option<Format>,
    /// Where to write [default: stdout]
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Begin each stack with its process, NAME-PID
    #[arg(long, conflicts_with = "per_thread")]
    per_process: bool,
    /// Begin each stack with its thread, NAME-PID/TID
    #[arg(long)]
    per_thread: bool,
    /// The profile
    #[arg(value_name = "FILE", default_value = "selfwind.data")]
    file: PathBuf,
}

#[derive(Debug, Subcommand)]
enum TablesCommand {
    /// Compile the unwind tables of ELF files
    Build {
        /// Where to put them [default: the user's cache]
        #[arg(short, long, value_name = "DIR")]
        output: Option<PathBuf>,
        /// ELF files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Check every row against an independent evaluation; prints `rows N mismatches M`, exit status 1 if M > 0
    Verify {
        /// ELF files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Describe table files, and what ELF files would give
    List {
        /// Table files, directories of them, ELF files [default: the user's cache]
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

#[derive(Debug, Args)]
struct StatsArgs {
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// The profile
    #[arg(value_name = "FILE", default_value = "selfwind.data")]
    file: PathBuf,
}

#[derive(Debug, Args)]
struct TailArgs {
    /// Only this process
    #[arg(short, long, value_name = "PID")]
    pid: Option<u32>,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// One JSON object per line
    #[arg(long)]
    json: bool,
    /// Remove the regions of dead processes and what they recorded
    #[arg(long)]
    reap: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no number of seconds above 0");
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(seconds).ok().filter(|duration| !duration.is_zero()).ok_or_else(wrong)
}

/// Runs the command that the arguments ask for.
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            // 1 and 2 may be what a recorded command ends with.
            let record = std::env::args_os().nth(1).is_some_and(|command| command == "record");
            let code = if record && error.use_stderr() { OWN_FAILURE } else { error.exit_code() as u8 };
            return ExitCode::from(code);
        }
    };
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
    let stdout = &mut io::stdout();
    match command {
        Command::Record(args) => return Ok(ExitCode::from(record::run(&args.into()))),
        Command::Report(args) => report::run(&args.file, &(&args).into(), Screen::of_stdout(), stdout)?,
        Command::Export(args) => export(&args, stdout)?,
        Command::Stats(args) => stats::run(&args.file, args.json, stdout)?,
        Command::Tail(args) => tail::run(args.pid, args.json, stdout)?,
        Command::List(args) => list::run(args.json, args.reap, stdout)?,
        Command::Tables(command) => return run_tables(command),
        Command::AgentPath => {
            writeln!(stdout, "{}", agent_file::unpack()?.display())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn export(args: &ExportArgs, stdout: &mut dyn Write) -> anyhow::Result<()> {
    let grouping = match (args.per_thread, args.per_process) {
        (true, _) => Grouping::Thread,
        (_, true) => Grouping::Process,
        _ => Grouping::None,
    };
    let Some(format) = args.format.or_else(|| args.output.as_deref().and_then(Format::from_path)) else {
        let names = Format::ALL.map(Format::name).join(", ");
        anyhow::bail!("the name of the output tells no format; give one with -f: {names}");
    };
    let directories = DebugDirectories::default();
    match &args.output {
        None => output::export_grouped(format, grouping, &args.file, &directories, stdout)?,
        Some(path) => output::export_file(format, grouping, &args.file, &directories, path)?,
    };
    Ok(())
}

fn run_tables(command: TablesCommand) -> anyhow::Result<ExitCode> {
    let cache = || agent_file::cache_directory().join("tables");
    match command {
        TablesCommand::Build { output, files } => tables::build(&files, &output.unwrap_or_else(cache)),
        TablesCommand::Verify { files } => tables::verify(&files),
        TablesCommand::List { files } if files.is_empty() => tables::list(&[cache()]),
        TablesCommand::List { files } => tables::list(&files),
    }
}

impl From<RecordArgs> for RecordOptions {
    fn from(args: RecordArgs) -> Self {
        Self {
            frequency: args.freq,
            source: args.event,
            duration: args.duration,
            output: args.output,
            pid: args.pid,
            max_stack: args.max_stack,
            notices: Notices::new(args.quiet, args.verbose),
            command: args.command,
        }
    }
}

/// Whoever reads our stdout has had enough: that is no failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

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
            assert_eq!(options.frequency, 199);
            assert_eq!(options.command, ["ls", "-F", "--", "-q"]);
        }
        let options = record(&["-p", "7", "-d", "0.5", "-e", "itimer"]).unwrap();
        assert_eq!((options.pid, options.duration), (Some(7), Some(Duration::from_millis(500))));
        assert_eq!(options.source, Source::Itimer);
    }

    #[test]
    fn wrong_values_are_named() {
        for (arguments, part) in [
            (&["-F", "0", "ls"][..], "0"),
            (&["-e", "perf", "ls"], "auto, cpu, itimer"),
            (&["-e", "nonsense", "ls"], "auto, cpu, itimer"),
            (&["-d", "-1", "ls"], "-1"),
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
