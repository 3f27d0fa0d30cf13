//! `resolve`: stores the names of its addresses in a profile, so that it can be read on any machine.
//!
//! `record` does the same when it ends. On any error, the profile stays unchanged.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use nix::sys::signal::SigSet;
use rustix::fs::{FlockOperation, flock};
use selfwind_profile::file_name::with_suffix;
use selfwind_profile::profile::{self, Resolved};
use selfwind_profile::profile_file::{Event, ProfileReader, ProfileWriter};
use selfwind_profile::symbolize::{Again, SymbolSources};

use crate::flags::symbols::SymbolArgs;
use crate::terminal::notices::Notices;

/// The flags of `resolve`.
#[derive(Debug, Args)]
pub(crate) struct ResolveArgs {
    #[command(flatten)]
    symbols: SymbolArgs,
    /// Print only errors
    #[arg(short, long)]
    quiet: bool,
    /// The profile
    #[arg(value_name = "FILE", default_value = "selfwind.data")]
    file: PathBuf,
}

/// Adds names to a profile.
///
/// # Errors
/// If the profile cannot be read, is still being recorded, or cannot be replaced.
pub(crate) fn run(args: &ResolveArgs) -> anyhow::Result<()> {
    let notices = Notices::new(args.quiet, false);
    let mut sources = SymbolSources { again: Again::Always, ..(&args.symbols).into() };
    if args.quiet {
        sources.progress = None;
    }
    let name = args.file.display();
    let resolved = add_names(&args.file, &sources)?;
    resolved.notes.iter().for_each(|note| notices.say(note));
    notices.say(format_args!("{name}: names of {} addresses", resolved.addresses));
    Ok(())
}

/// Looks up the names and replaces the profile by a copy with names.
pub(crate) fn add_names(file: &Path, sources: &SymbolSources) -> anyhow::Result<Resolved> {
    let resolved = profile::resolve(file, sources)?;
    // Replace the target of a symbolic link, not the link.
    let path = file.canonicalize().with_context(|| format!("{}: cannot find it", file.display()))?;
    replace(&path, &resolved)?;
    Ok(resolved)
}

/// Marks a profile as being written while `file` is open.
pub(crate) fn hold(file: &File) {
    // Best effort: not all file systems support locks.
    let _ = flock(file, FlockOperation::NonBlockingLockShared);
}

/// Replaces a profile by a copy with names.
fn replace(path: &Path, resolved: &Resolved) -> anyhow::Result<()> {
    let original = File::open(path).with_context(|| format!("{}: cannot open it", path.display()))?;
    if flock(&original, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK) {
        anyhow::bail!(
            "{}: it is still being recorded; add names when the recording has ended",
            path.display()
        );
    }
    let copy = with_suffix(path, format!(".{}.part", std::process::id()));
    // Signals are blocked until there is one file again.
    let before = SigSet::thread_get_mask()?;
    SigSet::all().thread_block()?;
    let written = write_copy(path, &original, &copy, resolved).and_then(|()| Ok(fs::rename(&copy, path)?));
    if written.is_err() {
        let _ = fs::remove_file(&copy);
    }
    before.thread_set_mask()?;
    written.with_context(|| format!("{}: cannot add the names; the profile is unchanged", path.display()))
}

fn write_copy(path: &Path, original: &File, copy: &Path, resolved: &Resolved) -> anyhow::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(copy)?;
    let whole = ProfileReader::open(path)?.copy_without_names(&mut file)?;
    let mut writer = ProfileWriter::go_on(&mut file, whole);
    append(&mut writer, resolved)?;
    drop(writer);
    let metadata = original.metadata()?;
    // Only root can change the owner; other users own the copy anyway.
    let _ = fchown(&file, Some(metadata.uid()), Some(metadata.gid()));
    file.set_permissions(fs::Permissions::from_mode(metadata.mode() & 0o7777))?;
    file.sync_all()?;
    Ok(())
}

/// Appends names to a profile.
pub(crate) fn append(writer: &mut ProfileWriter<impl io::Write>, resolved: &Resolved) -> io::Result<()> {
    for code in &resolved.generated {
        writer.push(&Event::Generated(code.clone()))?;
    }
    writer.append_names(&resolved.section)
}
