//! `import`: converts a file of `perf record` to a profile.
//!
//! `selfwind-import` reads the file; this module writes the profile, with the names of its addresses as far as they can be
//! found. Kernel names are known only if the file is from the running kernel.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use nix::sys::utsname::uname;
use offline::Search;
use selfwind_import::{Import, Sink, Summary, Tail};
use selfwind_profile::digits::grouped;
use selfwind_profile::profile_file::{Event, ProfileWriter};
use selfwind_profile::staged_file::StagedFile;
use selfwind_profile::symbolize::SymbolSources;

use crate::flags::symbols::SymbolArgs;
use crate::record::kernel_symbols::KernelSymbols;
use crate::resolve;
use crate::terminal::notices::{Notices, warn};

/// How many unreadable files to name.
const UNREAD_MAX: usize = 5;

/// The flags of `import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Profile to write
    #[arg(short, long, value_name = "FILE", default_value = "selfwind.data")]
    output: PathBuf,
    /// Do not store function names in the profile; they are looked up when it is shown, or added by `selfwind resolve`
    #[arg(long)]
    no_names: bool,
    #[command(flatten)]
    symbols: SymbolArgs,
    /// Print only errors
    #[arg(short, long)]
    quiet: bool,
    /// File written by `perf record`
    #[arg(value_name = "PERF.DATA", default_value = "perf.data")]
    file: PathBuf,
}

/// Converts a file of `perf record` to a profile.
///
/// # Errors
/// If the file cannot be imported or the profile cannot be written.
pub(crate) fn run(args: &ImportArgs) -> anyhow::Result<()> {
    let notices = Notices::new(args.quiet, false);
    let name = args.file.display();
    if args.file.is_dir() {
        return Err(selfwind_import::ImportError::Directory).context(name.to_string());
    }
    let file = File::open(&args.file).with_context(|| format!("{name}: cannot open it"))?;
    let import = Import::open(file).with_context(|| name.to_string())?;
    if same_file(&args.file, &args.output) {
        anyhow::bail!("{name}: the profile would overwrite it; choose another file with -o");
    }
    let unwritten =
        || format!("{}: cannot write the output; choose another file with -o", args.output.display());
    let staged = StagedFile::create(&args.output).with_context(unwritten)?;
    let sources = SymbolSources::from(&args.symbols);
    let mut search = Search { infers: true, ..Search::for_user() };
    search.roots.extend(args.symbols.sysroots().iter().cloned());
    let mut profile = Profile {
        writer: ProfileWriter::new(staged).with_context(unwritten)?,
        symbols: KernelSymbols::default(),
        is_running_kernel: false,
    };
    let summary = import.run(search, &mut profile).with_context(|| name.to_string())?;
    profile.writer.finish().and_then(StagedFile::commit).with_context(unwritten)?;
    if !args.no_names {
        resolve::add_names(&args.output, &sources)?;
    }
    tell(args, &summary, notices);
    Ok(())
}

fn same_file(a: &Path, b: &Path) -> bool {
    a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b))
}

fn tell(args: &ImportArgs, summary: &Summary, notices: Notices) {
    let name = args.file.display();
    match summary.tail {
        Tail::Whole => {}
        Tail::Cut(bytes) => warn(format_args!(
            "{name}: truncated; the {} bytes of records before that are imported",
            grouped(bytes)
        )),
        Tail::Damaged(bytes, what) => {
            warn(format_args!(
                "{name}: damaged after {} bytes of records ({what}); everything before that is imported",
                grouped(bytes)
            ));
        }
    }
    if summary.damaged > 0 {
        warn(format_args!("{name}: {} damaged records were skipped", grouped(summary.damaged)));
    }
    for (path, why) in summary.unread.iter().take(UNREAD_MAX) {
        notices.say(format_args!("{}: stacks cannot be unwound through it: {why}", path.display()));
    }
    if let Some(more @ 1..) = summary.unread.len().checked_sub(UNREAD_MAX) {
        notices.say(format_args!("and {more} other files that could not be read"));
    }
    notices.say(format_args!(
        "{}: {} samples, {} truncated, {} lost; next: selfwind report {}",
        args.output.display(),
        grouped(summary.samples),
        grouped(summary.truncated),
        grouped(summary.lost),
        args.output.display()
    ));
}

/// The profile being written.
struct Profile<W: Write> {
    writer: ProfileWriter<W>,
    symbols: KernelSymbols,
    /// The file is from the running kernel, so kernel addresses can be named.
    is_running_kernel: bool,
}

impl<W: Write> Sink for Profile<W> {
    fn event(&mut self, event: Event) -> io::Result<()> {
        if let Event::Sample(sample) = &event
            && self.is_running_kernel
        {
            for symbol in self.symbols.new_symbols(sample) {
                self.writer.push(&Event::KernelSymbol(symbol))?;
            }
        }
        self.writer.push(&event)
    }

    fn kernel(&mut self, release: &str, text: u64) {
        // The kernel's address is randomized at each boot.
        let is_same = uname().is_ok_and(|running| running.release() == release);
        self.is_running_kernel =
            is_same && self.symbols.find(text).is_some_and(|symbol| symbol.start == text);
    }
}
